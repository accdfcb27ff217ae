"""A trim may be asked for at any id. Copies are cut where batches, and segments, end: that is what is confirmed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.admin.copymoves import CopyMoves
from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.storagenodes import add_storage
from polonaise.client.log import Log
from polonaise.fragments.protocol.names import fingerprint
from polonaise.server import trimming
from polonaise.wire.messages import Confirm, Trimmed
from rigs.archivedtown import ArchivedTown
from rigs.town import held_down
from rigs.waiting import wait_until

TIMEOUT_S = 2.0


class TrimmedTown(ArchivedTown):
    """A town whose log is one batch at first, of the ids 0 to 2, all archived."""

    def __init__(self) -> None:
        super().__init__(spares=1)

    async def begin(self) -> None:
        async def append_at_once(log: Log) -> None:
            await asyncio.gather(*(log.append(b"%d" % n, 0) for n in range(3)))

        await self.application("writer", append_at_once)
        assert [batch.last async for batch in self._batches()] == [2], "one batch"
        await self.archive()

    async def _batches(self) -> Any:
        async def read(log: Log) -> list[Any]:
            return [batch async for batch in log.read_batches(0)]

        for batch in await self.application("reader", read):
            yield batch

    async def trim(self, before: int) -> None:
        names = [name for name in self.store.fragments() if before]

        async def ask(log: Log) -> None:
            assert await log.trim(0, before, fingerprint(names)) == (0, True)

        await self.application("operator of the archive", ask)

    async def confirm(self, mark: int) -> None:
        """Confirm a mark to each storage node, as servers of an earlier version did when they trimmed there."""
        served = self.server.partitions[0]
        session = served.owner.session
        assert session is not None
        for name in session.engaged:
            await served.reader.ask(name, Confirm(session.id, mark))

    def confirmed(self) -> list[int]:
        copies = [node.promised(0) for node in self.cluster.storage]
        return [-1 if copy is None else copy.promises.confirmed for copy in copies]

    async def move(self, old: int, new: int) -> None:
        async def do(host: Any, coordinator: Any) -> None:
            edits = MemberEdits(coordinator, TIMEOUT_S)
            await add_storage(host, edits, self.name(new), self.name(new), "", TIMEOUT_S)
            moves = CopyMoves(host, edits, step_s=60.0, timeout_s=TIMEOUT_S, report=lambda *_: None)
            await moves.replace(0, self.name(old), self.name(new))

        self.cluster.named_nodes = True
        await self.operator(do)

    async def come_back_with_what_was_confirmed(self) -> None:
        """Move a copy that is down to another node and back, while appends go on; then it has to be engaged."""
        left = self.cluster.storage[0]
        held_down(left)
        await self.move(0, 3)
        await self.append(b"3", b"4")
        left.let_up()
        await self.move(3, 0)
        value = self.cluster.partition_value(0)
        assert sorted(value.members) == sorted(self.name(n) for n in range(3))
        await wait_until(lambda: len(self.server.health()["partitions"]["0"]["engaged"]) == 3)
        assert await self.log() == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize(("before", "confirmed"), [(0, -1), (1, 2), (2, 2)])
def test_a_trim_confirms_whole_batches_only(before: int, confirmed: int) -> None:
    async def story(town: TrimmedTown) -> None:
        await town.begin()
        await town.trim(before)
        assert town.confirmed() == [confirmed] * 3
        await town.come_back_with_what_was_confirmed()

    TrimmedTown().tell(story)  # type: ignore[arg-type]


@pytest.mark.parametrize("mark", [0, 1])
def test_a_copy_with_a_mark_within_a_batch_from_an_earlier_version_is_engaged_again(mark: int) -> None:
    async def story(town: TrimmedTown) -> None:
        await town.begin()
        await town.confirm(mark)
        assert town.confirmed() == [mark] * 3
        await town.come_back_with_what_was_confirmed()

    TrimmedTown().tell(story)  # type: ignore[arg-type]


async def test_the_first_id_is_the_one_from_which_on_every_replica_holds_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    firsts = {"a": [40, 80], "b": [95], "c": [0]}

    async def drop_one(reader: Any, session: Any, name: str, before: int, certain: int) -> Trimmed:
        first = firsts[name].pop(0)
        return Trimmed(first, not firsts[name])

    monkeypatch.setattr(trimming, "_drop_one", drop_one)
    session: Any = SimpleNamespace(engaged=list(firsts), id=1)
    reader: Any = SimpleNamespace(owner=SimpleNamespace(session=session, partition=0))
    told = await trimming._drop(reader, session, 100, 101)
    assert (told.first, bool(told.done)) == (95, True)


async def test_a_trim_has_not_ended_while_one_replica_has_something_left_to_drop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def drop_one(reader: Any, session: Any, name: str, before: int, certain: int) -> Trimmed:
        if name == "c":
            reader.owner.session = None  # as if the time were over
        return Trimmed(95, name != "c")

    monkeypatch.setattr(trimming, "_drop_one", drop_one)
    session: Any = SimpleNamespace(engaged=["a", "b", "c"], id=1)
    reader: Any = SimpleNamespace(owner=SimpleNamespace(session=session, partition=0))
    told = await trimming._drop(reader, session, 100, 101)
    assert (told.first, bool(told.done)) == (95, False)
