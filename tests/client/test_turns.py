"""Contexts that want the same locks take turns: few runs in vain, first come first served, clients in a round."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polonaise
from polonaise import testing
from polonaise.client.appends import TurnTaking
from polonaise.client.protocol.turns import Turn, Turns, checked
from polonaise.client.waiting import AppliedMark
from polonaise.errors import Abandoned, AppendExpired, Closed
from polonaise.terms import LockMode
from rigs.waiting import nothing_happens_for, time_passes, wait_until

READ, WRITE, APPEND = LockMode
ME, B, C = 1, 2, 3


@pytest.fixture
def turns() -> Turns:
    return Turns(ME)


def locks(*names: str, mode: LockMode = WRITE) -> dict[bytes, bool]:
    return checked(polonaise.Lock(name, 1, mode) for name in names)


# ------------------------------------------------------------------ within a client


def test_who_wants_the_same_goes_one_after_the_other_first_come_first_served(turns: Turns) -> None:
    first, second, third = (turns.join(locks("a")) for _ in range(3))
    assert [turn.granted for turn in (first, second, third)] == [True, False, False]
    assert turns.leave(first) == [second]
    assert turns.leave(second) == [third]
    assert turns.leave(third) == []
    assert not turns.watching, "nothing is left of it"


def test_who_wants_something_else_does_not_wait(turns: Turns) -> None:
    assert turns.join(locks("a")).granted
    assert turns.join(locks("b")).granted


def test_a_turn_needs_all_of_its_locks(turns: Turns) -> None:
    a, b = turns.join(locks("a")), turns.join(locks("b"))
    both = turns.join(locks("a", "b"))
    assert not both.granted
    assert turns.leave(b) == []
    assert turns.leave(a) == [both]


def test_readers_of_a_lock_run_together_and_not_past_a_waiting_writer(turns: Turns) -> None:
    readers = [turns.join(locks("a", mode=READ)) for _ in range(2)]
    writer = turns.join(locks("a"))
    late = turns.join(locks("a", mode=READ))
    assert [turn.granted for turn in (*readers, writer, late)] == [True, True, False, False]
    assert turns.leave(readers[1]) == []
    assert turns.leave(readers[0]) == [writer]
    assert turns.leave(writer) == [late]


def test_a_context_that_gives_up_its_turn_lets_those_behind_it_go(turns: Turns) -> None:
    reader = turns.join(locks("a", mode=READ))
    writer = turns.join(locks("a"))
    late = turns.join(locks("a", mode=READ))
    assert turns.leave(writer) == [late]
    assert reader.granted


def test_a_lock_for_appending_is_never_waited_for() -> None:
    turns = Turns(ME)
    turns.join(locks("a"))
    assert turns.join(locks("a", mode=APPEND)).granted
    assert not turns.contended(locks("a", mode=APPEND))
    assert turns.contended(locks("a"))
    assert turns.contended(locks("a", mode=READ))
    assert not turns.contended(locks("b"))


def test_a_lock_that_is_read_and_appended_to_is_raised_in_whatever_order() -> None:
    both = [polonaise.Lock("a", 1, READ), polonaise.Lock("a", 1, APPEND)]
    assert checked(both) == checked(both[::-1]) == locks("a")


@pytest.mark.slow
@given(
    wanted=st.lists(
        st.tuples(st.sets(st.sampled_from("abc"), min_size=1), st.sets(st.sampled_from("abc"))), min_size=1, max_size=12
    ),
    order=st.randoms(use_true_random=False),
)
def test_whatever_is_wanted_all_get_their_turn_and_no_two_that_clash_at_once(
    wanted: list[tuple[set[str], set[str]]], order: object
) -> None:
    turns = Turns(ME)
    asked = [{**locks(*reads, mode=READ), **locks(*writes)} for reads, writes in wanted]
    waiting: list[tuple[Turn, dict[bytes, bool]]] = [(turns.join(held), held) for held in asked]
    while waiting:
        granted = [(turn, held) for turn, held in waiting if turn.granted]
        assert granted, "somebody's turn it always is"
        assert waiting[0][0].granted, "and that of whoever waits longest"
        for turn, held in granted:
            for other, theirs in granted:
                clash = [lock for lock in held.keys() & theirs.keys() if held[lock] or theirs[lock]]
                assert turn is other or not clash
        choice = order.choice(waiting)  # type: ignore[attr-defined]
        waiting.remove(choice)
        turns.leave(choice[0])
    assert not turns.watching


# ------------------------------------------------------------------ between clients


def contending(*rivals: int) -> tuple[Turns, Turn]:
    """We have been refused for a commit of each of these, 0, 1, …, and have committed behind them."""
    turns = Turns(ME)
    turn = turns.join(locks("a"))
    turns.fed(0, list(rivals))
    for place in range(len(rivals)):
        turns.beaten(turn, place)
    assert not turns.owed(turn), "who has not committed yet lets nobody go first"
    turns.fed(len(rivals), [ME])
    turns.committed(locks("a"), len(rivals))
    following = turns.join(locks("a"))
    assert turns.leave(turn) == [following]
    return turns, following


def test_who_has_committed_lets_those_go_who_were_before_it() -> None:
    turns, turn = contending(B, C)
    assert turns.owed(turn) == {B, C}
    assert turns.fed(3, [B])
    assert turns.owed(turn) == {C}
    assert turns.newest(turn) == 3, "and runs on what these have changed"
    assert not turns.fed(4, [7])
    assert turns.fed(5, [7, C])
    assert not turns.owed(turn)


def test_one_that_comes_fresh_is_no_exception() -> None:
    turns, turn = contending(B)
    turns.leave(turn)
    assert turns.contended(locks("a"))
    turns.fed(2, [B])
    assert not turns.contended(locks("a"))


def test_rivals_are_waited_for_about_as_long_as_their_turns_take_and_not_for_ever() -> None:
    turns, turn = contending(B, C)
    for _ in range(100):
        turns.took(0.01)
    assert 0.05 < turns.patience_s(turn, 0.0) < turns.patience_s(turn, 1.0) < 0.11
    turns.took(1_000)
    assert turns.patience_s(turn, 1.0) <= 0.7
    for missed in range(3):
        turns.given_up(turn)
        assert not turns.owed(turn), "this time it goes without them"
        turns.committed(locks("a"), 10 + missed)
    assert not turns.owed(turn), "and then they are no rivals any more"


def test_nothing_is_kept_of_locks_that_nobody_wants_any_more() -> None:
    turns, turn = contending(B)
    turns.leave(turn)
    assert turns.watching
    for start in range(0, 200_000, 1_000):
        turns.fed(start, [B] * 1_000)
    assert not turns.watching
    for number in range(5_000):
        held = locks(f"lock {number}")
        each = turns.join(held)
        turns.fed(number, [B])
        turns.beaten(each, number)
        turns.leave(each)
    assert len(turns._queues) <= 1_025


def test_of_many_rivals_only_those_that_committed_last_are_remembered() -> None:
    """Clients that live for one context have a new id each, and a lock that is only read waits for none of them."""
    turns, turn = contending(B)
    reading = turns.join(locks("read by all", mode=READ))
    for number in range(2, 10_002):
        turns.fed(number, [1_000 + number])
        turns.beaten(reading, number)
    rivals = {client for queue in turns._queues.values() for client in queue.rivals}
    assert len(rivals) <= len(turns._seen) <= 1_024
    assert {1_000 + number for number in range(10_002 - 500, 10_002)} <= rivals
    assert turns.newest(reading) == 10_001
    turns.leave(reading)
    turns.leave(turn)


@pytest.mark.slow
def test_what_is_remembered_of_the_feed_takes_four_bytes_for_each_transaction() -> None:
    """Also of batches with one transaction each. An object for each made a client grow for hours."""
    turns, turn = contending(B)
    tracemalloc.start()
    try:
        for number in range(2, 140_000):
            turns.fed(number, [B] if number % 2 else [C])
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 500_000
    assert turns._writer_of(139_999) == B
    assert turns._writer_of(139_998) == C
    assert turns._writer_of(139_999 - 30_000) == B
    assert turns._writer_of(140_000) is None
    assert turns._writer_of(70_000) is None
    turns.leave(turn)


def test_after_a_gap_in_the_feed_only_what_comes_then_is_remembered() -> None:
    turns, _ = contending(B)
    turns.fed(1_000, [C])
    assert turns._writer_of(1_000) == C
    assert [turns._writer_of(id) for id in (0, 999, 1_001)] == [None, None, None]


# ------------------------------------------------------------------ contexts


class Counting:
    """A view with one number that every context changes, and what the contexts of its client went through."""

    def __init__(self) -> None:
        self.mark, self.number = -1, 0
        self.runs = self.commits = 0
        self.order: list[int] = []

    def high_water_mark(self, partition: int) -> int:
        return self.mark

    def apply(self, tx: polonaise.Transaction) -> None:
        self.mark, self.number = tx.id, int(tx.data)

    def failed(self, partition: int, id: int, error: Exception) -> None:
        raise error

    def count(self, tx: polonaise.Draft) -> None:
        self.runs += 1
        tx.write_lock("counter", 1)
        tx.append(b"%d" % (self.number + 1))

    async def share(self, log: polonaise.Log, tasks: int, times: int) -> None:
        async def task(number: int) -> None:
            for _ in range(times):
                await log.run(self.count, timeout=60)
                self.commits += 1
                self.order.append(number)

        await asyncio.gather(*[task(number) for number in range(tasks)])


def numbers(log: testing.MemoryLog) -> Iterable[int]:
    return [int(tx.data) for tx in log.transactions()]


@pytest.mark.slow
async def test_one_hot_lock_costs_few_runs_and_is_shared_fairly_by_clients_and_tasks() -> None:
    cluster = testing.MemoryCluster()
    views = [Counting() for _ in range(3)]
    async with AsyncExitStack() as clients:
        logs = [await clients.enter_async_context(cluster.connect(view=view)) for view in views]
        sharing = [asyncio.ensure_future(view.share(log, 20, 10)) for view, log in zip(views, logs, strict=True)]
        await wait_until(lambda: sum(view.commits for view in views) >= 300, every_s=0.001)
        shares = [view.commits for view in views]
        await asyncio.gather(*sharing)
        assert numbers(logs[0]) == list(range(1, 601)), "none is lost, none is there twice"
    assert sum(view.runs for view in views) <= 5 * 600
    assert max(shares) <= 1.3 * min(shares), shares
    for view in views:
        half = Counter(view.order[: len(view.order) // 2])
        assert max(half.values()) - min(half.values()) <= 2, "first come first served among the tasks"


@pytest.mark.parametrize("end", ["abandon", "raise", "expire", "cancel"])
async def test_whoever_ends_in_its_turn_lets_the_next_one_go(end: str) -> None:
    view = Counting()
    async with testing.log(view=view) as log:
        log.faults.suspend_feed()
        first = asyncio.ensure_future(log.run(view.count))
        others = [asyncio.ensure_future(log.run(view.count)) for _ in range(3)]
        runs = 0

        async def ends(tx: polonaise.Draft) -> None:
            nonlocal runs
            runs += 1
            tx.write_lock("counter", 1)
            if runs == 1:
                tx.append(b"0")
            elif end == "abandon":
                tx.abandon("no")
            elif end == "raise":
                raise ValueError("no")
            else:
                await asyncio.Event().wait()

        ending = asyncio.ensure_future(log.run(ends, timeout=0.2 if end == "expire" else None))
        await time_passes(0.01)  # it has its turn
        last = asyncio.ensure_future(log.run(view.count))
        log.faults.resume_feed()
        await wait_until(lambda: runs >= 2)
        if end == "cancel":
            ending.cancel()
        with pytest.raises((Abandoned, ValueError, AppendExpired, asyncio.CancelledError)):
            await ending
        await asyncio.wait_for(asyncio.gather(first, *others, last), 5)
        await log.wait_applied(4, timeout=5)
        assert view.number == 5


async def test_who_waits_for_a_turn_is_told_when_the_client_ends() -> None:
    view = Counting()
    async with testing.log(view=view) as log:
        log.faults.suspend_feed()
        waiting = [asyncio.ensure_future(log.run(view.count)) for _ in range(5)]
        await nothing_happens_for(0.01)
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(error, polonaise.PolonaiseError) for error in told)
    assert any(isinstance(error, Closed) for error in told)


@pytest.mark.parametrize("stops", [False, True])
async def test_contexts_that_wait_are_woken_in_the_order_in_which_they_came(stops: bool) -> None:
    """In the simulator a seed is one run: their order must not depend on where in memory they are."""
    loop = asyncio.get_running_loop()
    taking = TurnTaking(ME, AppliedMark(3))
    turn = taking.turns.join(locks("a"))
    taking.turns.fed(0, [ME, B])
    taking.turns.committed(locks("a"), 0)
    taking.turns.beaten(turn, 1)
    taking.turns.committed(locks("a"), 2)  # the rival B is owed a turn
    woken: list[int] = []

    async def wait(number: int) -> None:
        await asyncio.sleep(0)
        with suppress(Closed):
            await taking.wait(turn, lambda: 1.0, loop.time() + 60)
        woken.append(number)

    tasks = [loop.create_task(wait(number)) for number in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if stops:
        taking.stop(Closed("over"))
    else:
        taking.fed(3, [B])
    await asyncio.gather(*tasks)
    assert woken == list(range(50))
