"""Resets of the head of a partition whose history is in fragments, and on no storage node any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from polonaise.admin.asking import ask_health
from polonaise.admin.headresets import (
    HeadOutcome,
    HeadState,
    HeldCopy,
    check_archived,
    decision,
    with_archived,
)
from polonaise.admin.trimming import trim
from polonaise.client.log import Log
from polonaise.coordination.values import ClusterDescription, HeadReset, PartitionValue
from polonaise.errors import ConnectionLost, DeadlineExceeded, HeadNotReset
from polonaise.fragments.cutting import cut_fragments
from polonaise.fragments.mark import put_mark
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.terms import NO_SESSION
from rigs.archivedtown import ArchivedTown
from rigs.fragments import KEY, PARTITION
from rigs.headresets import health, lose_majority, reset, state
from rigs.lives import SECOND, put
from rigs.town import held_down
from rigs.waiting import wait_until

BODIES = [b"%d" % n + bytes(80) for n in range(30)]


class TrimmedTown(ArchivedTown):
    """A town of small segments, whose storage nodes have dropped the beginning of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster.knobs = replace(self.cluster.knobs, segment_bytes_max=600)

    async def begin(self, fragments: int, before: int) -> None:
        """Append and archive everything, in so many fragments, trim, and lose a majority of the replicas for good."""
        part = len(BODIES) // fragments
        for number in range(fragments):
            await self.append(*BODIES[number * part : (number + 1) * part])
            await self.archive()

        await self.trim(before)
        await lose_majority(self, restarted=True)

    async def trim(self, before: int) -> None:
        async def drop(log: Log) -> None:
            await trim(log, self.store, 0, before=before)

        await self.application("trimmer", drop)

    async def reset(self, to: int, seconds: float = 30.0) -> HeadOutcome:
        return await reset(self, to, self.name(0), seconds, checked=False)

    async def cut(self, last: int) -> None:
        async def do(*_: Any) -> None:
            await cut_fragments(self.store, 0, last)

        await self.operator(do)

    async def moved_out(self, last: int) -> dict[str, bytes]:
        """Take the fragments that reach above `last` out of the store, and return them."""
        moved = {name.path: raw for name, raw in self.store.fragments().items() if name.last > last}

        async def do(*_: Any) -> None:
            for path in moved:
                await self.store.delete(path)

        await self.operator(do)
        return moved

    def first_held(self) -> int:
        return self.cluster.storage[0].replica(0).first

    async def goes_on(self, last: int) -> None:
        """Check that the partition has opened after `last`, and is archived and read as a whole."""
        await wait_until(lambda: health(self).get("session") is not None)
        await self.append(b"on")
        await self.archive()
        assert await self.log() == [*BODIES[: last + 1], b"on"]


Story: TypeAlias = Callable[[TrimmedTown], Coroutine[Any, Any, None]]


def in_a_trimmed_town(fragments: int = 1, before: int = 20) -> Callable[[Story], Any]:
    def decorate(story: Story) -> Any:
        def test() -> None:
            async def tell(town: Any) -> None:
                await town.begin(fragments, before)
                assert 0 < town.first_held() < 27
                await story(town)

            TrimmedTown().run(tell)

        test.__name__ = story.__name__
        return test

    return decorate


@pytest.mark.slow
@in_a_trimmed_town()
async def test_a_reset_within_a_fragment_says_how_to_cut_it_and_cuts_nothing_before(town: TrimmedTown) -> None:
    with pytest.raises(
        DeadlineExceeded, match=r"fragments_ahead.*reach up to 29.*polonaise archive cut .* 0=27"
    ) as why:
        await town.reset(27)
    assert "move" not in why.value.text
    assert "or reset the head to no less than 29" in why.value.text
    assert "The ids 28 to 29 of partition 0 are committed" in why.value.text
    assert "polonaise archive restore" in why.value.text
    assert (await state(town)).copies[0].last == 29, "nothing was cut"
    await town.cut(27)
    await town.goes_on(27)


@pytest.mark.slow
@in_a_trimmed_town(fragments=3, before=12)
async def test_fragments_that_lie_wholly_above_a_reset_are_moved_aside(town: TrimmedTown) -> None:
    before = town.store.fragments()
    with pytest.raises(DeadlineExceeded, match=r"polonaise archive cut .* 0=19"):
        await town.reset(19)
    await town.cut(19)
    assert town.store.fragments() == {name: raw for name, raw in before.items() if name.last <= 19}
    await town.goes_on(19)


@pytest.mark.slow
@in_a_trimmed_town()
async def test_a_copy_is_not_cut_for_a_reset_before_the_others_can_be_filled(town: TrimmedTown) -> None:
    moved = await town.moved_out(27)  # as an operator does who takes them for given up
    first = town.first_held()
    lacking = rf"fragment_missing.*ids 0 to {first - 1}.*Nothing was cut.*polonaise archive cut"
    with pytest.raises(DeadlineExceeded, match=lacking):
        await town.reset(27)
    assert (await state(town)).copies[0].last == 29
    assert town.cluster.partition_value(0).resets[-1].begun == NO_SESSION
    # Another decision is still possible: with the fragment in its place, at its own end.
    for path, raw in moved.items():
        town.store.put_now(path, raw)
    assert (await town.reset(29)).carried_out
    await town.goes_on(29)


@pytest.mark.slow
@in_a_trimmed_town()
async def test_a_copy_that_an_earlier_version_has_cut_too_early_opens_with_the_fragment_cut(town: TrimmedTown) -> None:
    moved = await town.moved_out(27)
    with pytest.MonkeyPatch.context() as patches:

        async def unlooked(*_: Any) -> None: ...

        patches.setattr("polonaise.server.sessionstart.SessionStart._check_fillable", unlooked)
        with pytest.raises(DeadlineExceeded, match="fragment_missing"):
            await town.reset(27)
        assert (await state(town)).copies[0].last == 27
    for path, raw in moved.items():
        town.store.put_now(path, raw)
    with pytest.raises(DeadlineExceeded, match=r"polonaise archive cut .* 0=27$"):  # 29 is no choice any more
        await town.reset(27)
    await town.cut(27)
    await town.goes_on(27)


@pytest.mark.slow
@in_a_trimmed_town()
async def test_a_reset_waits_for_a_store_that_is_away_and_cuts_nothing(town: TrimmedTown) -> None:
    await town.cut(27)
    town.store.away = True
    with pytest.raises(DeadlineExceeded, match="store_unavailable"):
        await town.reset(27)
    assert (await state(town)).copies[0].last == 29
    town.store.away = False
    await town.goes_on(27)


@in_a_trimmed_town()
async def test_an_empty_log_needs_no_fragments(town: TrimmedTown) -> None:
    await town.cut(-1)
    assert (await town.reset(-1)).carried_out
    await town.goes_on(-1)


@pytest.mark.slow
def test_a_copy_that_has_trimmed_what_a_missed_reset_has_left_of_it_is_filled_from_its_beginning() -> None:
    async def story(town: Any) -> None:
        await town.append(*BODIES)
        await town.archive()
        source, wiped, missed = town.cluster.storage
        await town.trim(8)  # confirms to each what it holds
        held_down(source)
        await town.trim(20)
        for node in (wiped, missed):
            held_down(node, wiped=node is wiped)
        assert missed.replica(0).first > 12, "it holds nothing of what the reset leaves"
        for node in (source, wiped):
            node.let_up()
        await wait_until(lambda: len(health(town).get("held", {})) == 2)
        await town.cut(12)
        assert (await town.reset(12)).carried_out
        assert town.cluster.partition_value(0).resets[-1].certain >= 7
        await town.append(b"on")
        missed.let_up()
        await wait_until(lambda: len(health(town).get("engaged", ())) == 3, within_s=60.0)
        assert missed.replica(0).first == 0
        assert await town.log() == [*BODIES[:13], b"on"]

    TrimmedTown().run(story)


@pytest.mark.slow
@in_a_trimmed_town()
async def test_the_last_question_that_the_deadline_cuts_short_does_not_hide_what_keeps_a_reset(
    town: TrimmedTown,
) -> None:
    async def asked(host: Any, address: str, role: int, key: bytes, timeout_s: float) -> Any:
        if timeout_s > 1.0:
            return await ask_health(host, address, role, key, timeout_s)
        await asyncio.sleep(timeout_s)
        return ConnectionLost(f"{address} did not answer within {timeout_s:g} s")

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("polonaise.admin.headresets.ask_health", asked)
        with pytest.raises(DeadlineExceeded, match=r"What keeps it: \[fragments_ahead\]"):
            await town.reset(27)


class Described:
    """A coordinator that only tells the cluster's description."""

    async def describe(self) -> ClusterDescription:
        return ClusterDescription.new(KEY, 1, {"a": "a:1"})


async def looked(store: str, known: int = 55) -> tuple[HeadState, list[str]]:
    copies = [HeldCopy("a", known, known, 1, True), HeldCopy("b", -1, -1, 1, False)]
    state = HeadState(PARTITION, "", copies, [], known, PartitionValue(1, 8, ("a", "b")), 1, store)
    (seen,), troubles = await with_archived(Described(), [state], 5.0)  # type: ignore[arg-type]
    return seen, troubles


async def second_life(tmp_path: Path) -> ObstoreStore:
    store = open_store(str(tmp_path / "store"))
    await put_mark(store, KEY)
    await put(store, SECOND)
    return store


async def test_a_reset_below_what_the_store_holds_is_refused_before_it_is_written_down(tmp_path: Path) -> None:
    store = await second_life(tmp_path)
    state, troubles = await looked(str(store))
    with pytest.raises(HeadNotReset) as refused:
        check_archived([(state, HeadReset(27, "a", 55, 0))])
    told = refused.value.text
    assert "reach up to 55" in told
    assert f"archive cut {store} {PARTITION}=27. Nothing was changed" in told
    assert f"The ids 28 to 55 of partition {PARTITION} are committed" in told
    assert "may have their only copy" in told
    assert f"polonaise archive restore {store} " in told
    assert "other transactions get these ids" in told
    check_archived([(state, HeadReset(55, "a", 55, 0))])
    await cut_fragments(store, PARTITION, 27)
    check_archived([((await looked(str(store)))[0], HeadReset(27, "a", 55, 0))])
    assert troubles == []


async def test_ids_that_only_the_store_has_are_told_with_what_keeps_them(tmp_path: Path) -> None:
    store = await second_life(tmp_path)
    state, _ = await looked(str(store), known=27)
    for told in (state.only_archived, refusal(state, 55), refusal(state, 55, "a")):
        assert f"The ids 28 to 55 of partition {PARTITION} are committed" in told
        assert f"polonaise archive restore {store} " in told
    assert state.document()["archived"] == 55
    whole, _ = await looked(str(store), known=55)
    assert whole.only_archived == ""
    assert "store" not in refusal(whole, 56)


def refusal(state: HeadState, to: int, source: str | None = None) -> str:
    with pytest.raises(HeadNotReset) as refused:
        decision(state, to, source, 0)
    return refused.value.text


async def test_a_store_that_is_not_seen_from_here_keeps_nobody_from_deciding(tmp_path: Path) -> None:
    (tmp_path / "another machine's").mkdir()
    for name, told in (("nowhere", "no directory"), ("another machine's", "no mark of this cluster")):
        state, (why,) = await looked(str(tmp_path / name))
        assert told in why
        assert state.archived == -1
    assert (await looked(""))[1] == []
