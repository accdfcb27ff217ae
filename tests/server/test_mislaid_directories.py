"""Storage nodes come up with the wrong directories, and then with the right ones: a session start asks them again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.coordination.values import HeadReset
from polonaise.errors import ConnectionLost, HeadNotReset
from polonaise.server.protocol.recovery import Decided
from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED
from polonaise.wire.messages import Batches, LastSessionInfo, SessionInfo
from polonaise_proving.stages.simulated.diskimages import DirectoryImage
from rigs.fragments import plain_batches
from rigs.headresets import health, lose_majority, state
from rigs.sessionstart import VALUE, session_start
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import wait_until


async def mislaid(town: Town) -> list[DirectoryImage]:
    """Let two of the three storage nodes come up with empty directories; return what belongs in these."""
    right = [node.machine.disk.snapshot() for node in town.cluster.storage[1:]]
    await lose_majority(town)
    return right


def put_right(town: Town, right: list[DirectoryImage]) -> None:
    for node, image in zip(town.cluster.storage[1:], right, strict=True):
        held_down(node)
        node.machine.disk.restore(image)
        node.let_up()


@in_a_town
async def test_a_partition_opens_once_storage_nodes_have_the_directories_that_they_had(town: Town) -> None:
    await town.append(b"1", b"2")
    right = await mislaid(town)
    assert "is empty: give it the directory that it had" in health(town)["waits_for"]
    put_right(town, right)
    await wait_until(lambda: health(town)["ready"], within_s=5.0)
    await town.append(b"3")
    assert await town.log() == [b"1", b"2", b"3"]


@in_a_town
async def test_who_is_to_reset_a_head_is_shown_what_storage_nodes_hold_now(town: Town) -> None:
    await town.append(b"1", b"2")
    first, second, third = town.cluster.storage
    await mislaid(town)
    assert [copy.last for copy in (await state(town)).copies] == [1, -1, -1]
    held_down(first)
    found = await state(town)
    assert ([copy.last for copy in found.copies], found.silent) == ([-1, -1], [town.name(0)])
    assert found.known == 1, "what the one that is gone has told is given up as well"
    first.let_up()
    for node in (second, third):
        held_down(node)
    await wait_until(lambda: len(health(town).get("held", {})) == 1)
    assert [copy.name for copy in (await state(town)).copies] == [town.name(0)]


@in_a_town
async def test_nothing_is_shown_to_who_is_to_reset_a_head_when_nobody_is_left_that_has_answered(town: Town) -> None:
    await town.append(b"1")
    await mislaid(town)
    for node in town.cluster.storage:
        held_down(node)
    with pytest.raises(HeadNotReset, match="no replica of partition 0 has told"):
        await state(town)


class Lives:
    """The connections to one storage node, each to another life of it, with what its copy answers when it is fenced.

    The first ends when it is asked for a batch, which it still sends.
    """

    def __init__(self, *infos: SessionInfo) -> None:
        self._lives = [SimpleNamespace(closed=None, info=info) for info in infos]
        self._changed = asyncio.Event()
        self.fenced = 0
        self.asked: list[Any] = []

    @property
    def session(self) -> Any:
        return self._lives[0]

    async def connected(self) -> Any:
        return self.session

    async def until_closed(self, connection: Any) -> None:
        while connection.closed is None:
            self._changed.clear()
            await self._changed.wait()

    async def ask(self, connection: Any, message: Any, partition: int) -> Any:
        if isinstance(message, LastSessionInfo):
            self.fenced += 1
            return connection.info
        self.asked.append(connection)
        if len(self._lives) > 1:
            self._lives.pop(0).closed = ConnectionLost("killed")
            self._changed.set()
            await wait_until(lambda: self.fenced == 2)
        return Batches(1, payload=(bytes(plain_batches([2])[0].view),))


async def test_a_reset_goes_by_one_life_of_its_source() -> None:
    (batch,) = plain_batches([2])
    before = SessionInfo(8, 7, NO_TRANSACTION, 1, 1, batch.crc, UNRESOLVED)
    after = SessionInfo(8, 7, NO_TRANSACTION, NO_TRANSACTION, 1, batch.crc, UNRESOLVED)
    empty = SessionInfo(8, NO_SESSION, NO_TRANSACTION, NO_TRANSACTION, NO_TRANSACTION, 0, UNRESOLVED)
    links = {"A": Lives(before, after), "B": Lives(empty), "C": Lives(empty)}
    value = replace(VALUE, resets=(HeadReset(1, "A", 1, 0),))
    start = session_start(links)
    assert await start._fence_and_decide(value) == Decided(1, batch.crc, ("A",))
    assert len(links["A"].asked) == 2, "the next life is asked for the batch, too"
    assert start._certain == NO_TRANSACTION, "by its own answer"
