"""The fate of appends, told once and true; how many may be undecided; and who waits for slots and marks."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.client.appends import PartitionAppends
from polonaise.client.log import partitions_of
from polonaise.client.protocol.draft import Draft
from polonaise.client.protocol.outstanding import (
    AppendFailure,
    AppendWindow,
    Outstanding,
    Pending,
    SentFrame,
    Unordered,
)
from polonaise.client.waiting import Admission, AppliedMark
from polonaise.errors import Closed, ConsistencyLost
from polonaise.terms import FailureReason
from polonaise.wire.appends import AppendColumns, inbox_bytes
from rigs.clients import World
from rigs.waiting import time_passes, wait_until


def sent(*counts: int) -> tuple[Outstanding, list[Pending]]:
    """Appends (or groups, by their counts) that were registered and sent."""
    outstanding = Outstanding()
    entries = [Pending(count, size=10 * count) for count in counts]
    for entry in entries:
        entry.watchers = [object()]
        outstanding.add(entry)
    outstanding.all_sent()
    return outstanding, entries


def fates(entries: list[Pending]) -> str:
    """One mark each: the id, `-` for failed, `?` for pending."""
    return " ".join(str(e.id) if e.id >= 0 else "-" if e.failure else "?" for e in entries)


def test_sequences_start_at_one_and_are_never_reused() -> None:
    outstanding, entries = sent(1, 3, 1)
    assert [entry.sequence for entry in entries] == [1, 2, 5]
    outstanding.passed(5)
    late = Pending()
    outstanding.add(late)
    assert late.sequence == 6


@pytest.mark.parametrize(
    ("counts", "sequences", "ids", "told"),
    [
        ((1, 1, 1), [1, 2, 3], [7, 8, 9], "7 8 9"),
        ((1, 1, 1), [1], [7], "7 ? ?"),
        ((1, 1, 1), [2], [7], "- 7 ?"),
        ((1, 1, 1), [1, 3], [7, 9], "7 - 9"),
        ((1, 1, 1, 1), [2, 3], [4, 9], "- 4 9 ?"),
        ((2, 1), [1, 2, 3], [0, 1, 2], "0 2"),
        ((1, 2, 1), [2, 3], [5, 6], "- 5 ?"),
        ((1, 2, 1), [1, 4], [5, 6], "5 - 6"),
    ],
)
def test_an_own_id_in_the_feed_commits_it_and_fails_what_is_older(
    counts: tuple[int, ...], sequences: list[int], ids: list[int], told: str
) -> None:
    outstanding, entries = sent(*counts)
    outstanding.committed(sequences, ids)
    assert fates(entries) == told
    pending = [entry for entry in entries if not entry.settled]
    assert outstanding.count == sum(entry.count for entry in pending)
    assert outstanding.bytes == sum(entry.size for entry in pending)


def test_a_refusal_settles_the_one_it_names_and_no_other() -> None:
    outstanding, entries = sent(1, 1, 1)
    watched = outstanding.refused(2, AppendFailure(FailureReason.LOCK_CONFLICT, 40))
    assert watched == [entries[1]]
    assert entries[1].failure == AppendFailure(FailureReason.LOCK_CONFLICT, 40)
    assert fates(entries) == "? - ?"


def test_a_refusal_of_what_is_settled_already_is_ignored() -> None:
    outstanding, entries = sent(1, 1)
    outstanding.committed([2], [0])
    assert outstanding.refused(1, AppendFailure(FailureReason.LOCK_CONFLICT, 40)) == []
    assert outstanding.refused(2, AppendFailure(FailureReason.SESSION_ENDED)) == []
    assert fates(entries) == "- 0"


def test_what_the_mount_it_was_sent_on_did_not_tell_of_is_told_apart_from_what_an_older_one_may_have_told() -> None:
    outstanding, entries = sent(1)
    outstanding.mount_over()
    for _ in range(2):
        entries.append(Pending())
        outstanding.add(entries[-1])
    outstanding.all_sent()
    outstanding.committed([3], [0])
    assert [entry.failure for entry in entries[:2]] == [
        AppendFailure(Unordered.PASSED_OVER),
        AppendFailure(Unordered.UNTOLD),
    ]


def test_a_refused_group_is_refused_once_although_each_of_its_rows_names_it() -> None:
    outstanding, entries = sent(3, 1)
    for sequence in (1, 2, 3):
        outstanding.refused(sequence, AppendFailure(FailureReason.LOCK_CONFLICT, 9))
    assert fates(entries) == "- ?"
    assert (outstanding.count, outstanding.bytes) == (1, 10)


def test_a_duplicate_is_committed_under_the_id_of_the_first_time() -> None:
    outstanding, entries = sent(1)
    outstanding.refused(1, AppendFailure(FailureReason.DUPLICATE, 12))
    assert entries[0].id == 12
    assert entries[0].failure is None


def test_a_flush_fails_what_it_covers_and_leaves_what_came_later() -> None:
    outstanding, entries = sent(1, 1, 1)
    outstanding.passed(2)
    assert fates(entries) == "- - ?"


def test_what_was_not_sent_can_be_withdrawn_and_what_was_sent_cannot() -> None:
    outstanding, entries = sent(1)
    unsent = Pending()
    outstanding.add(unsent)
    assert outstanding.withdraw(unsent)
    assert not outstanding.withdraw(entries[0])
    assert unsent.failure == AppendFailure(Unordered.WITHDRAWN)
    assert fates(entries) == "?"


def test_stopping_tells_unknown_of_what_was_sent_and_stopped_of_what_was_not() -> None:
    outstanding, entries = sent(1, 1)
    unsent = Pending()
    outstanding.add(unsent)
    outstanding.committed([1], [0])
    assert outstanding.stop("why") == [entries[1]]
    assert fates(entries) == "0 -"
    assert entries[1].failure == AppendFailure(Unordered.UNKNOWN, cause="why")
    assert unsent.failure == AppendFailure(Unordered.STOPPED, cause="why")
    assert (outstanding.count, outstanding.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("counts", "settle", "sequences"),
    [
        pytest.param((1, 1), lambda o: o.passed(1), [1], id="told failed by a flush"),
        pytest.param((1, 1), lambda o: o.passed(1), [1, 2], id="told failed, among others"),
        pytest.param((1, 1), lambda o: o.refused(2, AppendFailure(FailureReason.DEADLINE)), [1, 2], id="refused"),
        pytest.param((1, 1), lambda o: o.committed([1], [7]), [1], id="committed twice"),
        pytest.param((1, 1), lambda o: None, [3], id="never sent"),
        pytest.param((1, 1), lambda o: None, [2, 1], id="out of order"),
        pytest.param((1, 1), lambda o: None, [1, 1], id="twice in one batch"),
        pytest.param((2, 1), lambda o: None, [1], id="half of a group"),
        pytest.param((2, 1), lambda o: None, [2, 3], id="the other half of a group"),
        pytest.param((2, 2), lambda o: None, [1, 2, 3], id="a group and a half"),
    ],
)
def test_a_feed_that_contradicts_a_told_fate_is_said_loudly(counts, settle, sequences) -> None:
    outstanding, _ = sent(*counts)
    settle(outstanding)
    with pytest.raises(ConsistencyLost):
        outstanding.committed(sequences, list(range(20, 20 + len(sequences))))


@given(st.data())
def test_fates_never_contradict_the_log(data: st.DataObject) -> None:
    """A server that decides at random, told through feed, refusals, flushes and mounts in random order."""
    outstanding = Outstanding()
    entries: list[Pending] = []
    unsent: list[Pending] = []
    in_flight: list[Pending] = []
    log: list[int] = []
    truth: dict[int, int] = {}
    unfed: list[tuple[int, int]] = []
    unrefused: list[tuple[int, AppendFailure]] = []
    first_fate: dict[int, tuple[int, AppendFailure | None]] = {}

    def feed() -> None:
        if unfed:
            outstanding.committed([sequence for sequence, _ in unfed], [transaction for _, transaction in unfed])
            unfed.clear()

    for step in data.draw(st.lists(st.sampled_from("asdfrlwm"), max_size=60)):
        if step == "a":
            entry = Pending(data.draw(st.integers(1, 3)), 5)
            outstanding.add(entry)
            entries.append(entry)
            unsent.append(entry)
        elif step == "s":
            in_flight += [entry for entry in unsent if not entry.settled]
            unsent.clear()
            outstanding.all_sent()
        elif step == "w" and unsent:
            assert outstanding.withdraw(unsent.pop(data.draw(st.integers(0, len(unsent) - 1))))
        elif step == "d" and in_flight:
            entry = in_flight.pop(0)
            if data.draw(st.booleans()):
                truth[entry.sequence] = len(log)
                for place in range(entry.count):
                    unfed.append((entry.sequence + place, len(log)))
                    log.append(entry.sequence + place)
            elif data.draw(st.booleans()):
                rows = range(entry.sequence, entry.sequence + entry.count)
                unrefused += [(sequence, AppendFailure(FailureReason.LOCK_CONFLICT, len(log))) for sequence in rows]
        elif step == "f":
            feed()
        elif step == "r" and unrefused:
            outstanding.refused(*unrefused.pop(data.draw(st.integers(0, len(unrefused) - 1))))
        elif step in "lm" and not in_flight:
            feed()
            outstanding.passed(outstanding.sent)
        for entry in entries:
            if entry.settled:
                fate = first_fate.setdefault(entry.sequence, (entry.id, entry.failure))
                assert fate == (entry.id, entry.failure)
                assert entry.id == truth.get(entry.sequence, -1)
        pending = [entry for entry in entries if not entry.settled]
        assert outstanding.count == sum(entry.count for entry in pending)
        assert outstanding.bytes == sum(entry.size for entry in pending)
        assert outstanding.awaited == any(entry.sequence <= outstanding.sent for entry in pending)
    in_flight.clear()
    feed()
    outstanding.passed(outstanding.sent)
    for entry in entries:
        if entry.sequence <= outstanding.sent:
            assert entry.settled
            assert entry.id == truth.get(entry.sequence, -1)


def test_places_of_settled_appends_are_given_up() -> None:
    outstanding = Outstanding()
    for number in range(1, 20_001):
        outstanding.add(Pending())
        outstanding.sent_through(number)
        outstanding.committed([number], [number])
    assert len(outstanding._entries) < 4_096
    assert not outstanding.awaited


def frame(sequence: int, size: int) -> SentFrame:
    columns = AppendColumns()
    columns.add(sequence, -1, 0, b"", 0)
    return SentFrame(columns, size)


@given(st.lists(st.tuples(st.integers(1, 5_000), st.booleans()), max_size=60), st.integers(0, 20_000))
def test_no_more_than_the_window_is_undecided_but_for_one_frame(steps: list[tuple[int, bool]], window: int) -> None:
    kept, undecided, sequence = AppendWindow(), dict[int, int](), 0
    kept.open(window)
    for size, decides in steps:
        if decides and undecided:
            oldest = min(undecided)
            del undecided[oldest]
            kept.decided_below(oldest + 1)
        fits = kept.fits(size)
        assert fits == (not undecided or sum(undecided.values()) + inbox_bytes(size) <= window)
        if fits:
            sequence += 1
            undecided[sequence] = inbox_bytes(size)
            kept.sent(frame(sequence, size))


def test_a_new_mount_begins_with_the_whole_window() -> None:
    window = AppendWindow()
    window.open(3_000)
    window.sent(frame(1, 2_000))
    assert not window.fits(10)
    window.open(3_000)
    assert window.fits(10)


async def test_what_the_window_has_no_room_for_waits_and_goes_out_in_order(world: World) -> None:
    world.server.window_bytes = 6_000
    world.server.hold = True
    client = await world.client(settings={"frame_bytes_max": 1_000})
    await client.ready(0)
    receipts = [client.append(b"%03d" % number + bytes(900), 0) for number in range(10)]
    receipts.append(client.append(b"010", 0))
    receipts += [client.append(b"%03d" % number + bytes(900), 0) for number in range(11, 20)]
    heard = world.server.heard.appends
    await wait_until(lambda: heard)
    while len(world.log.bodies()) < 20:
        await wait_until(lambda: world.server.held)
        await time_passes(0.01)  # for more to come, if it may
        undecided = sum(inbox_bytes(appends.size) for _, _, appends in world.server.held)
        assert 0 < undecided <= 6_000
        world.server.release(hold=True)
    await asyncio.gather(*receipts)
    assert [body[:3] for body in world.log.bodies()] == [b"%03d" % number for number in range(20)]


async def test_a_flush_waits_for_what_the_window_has_no_room_for(world: World) -> None:
    world.server.window_bytes = 1
    client = await world.client(settings={"frame_bytes_max": 1_000})
    await client.ready(0)
    receipts = [client.append(bytes(900), 0) for _ in range(8)]
    assert await client.flush(0) == 7
    assert all(receipt.done for receipt in receipts)


async def test_a_partition_that_stands_still_does_not_hold_up_the_others(two_partitions: World) -> None:
    """They share a connection: of the one that stands still, no more is under way than its window."""
    world = two_partitions
    world.server.on_append = lambda mount, log, message: log.partition == 0
    world.server.window_bytes = 10_000
    client = await world.client(settings={"idle_flush_s": 60.0, "frame_bytes_max": 1_000})
    await client.ready(0)
    await client.ready(1)
    stuck = [client.append(bytes(900), 0) for _ in range(200)]
    for _ in range(5):
        await client.append(b"on and on", 1)
    sent = sum(appends.size for _, appends in world.server.heard.appends)
    assert sent < 20_000
    assert not any(receipt.done for receipt in stuck)


@pytest.mark.parametrize("bodies", [1, 3])
async def test_appends_of_many_contexts_go_out_in_parts_while_the_loop_runs_the_others(
    world: World, bodies: int
) -> None:
    """With three bodies at a time, the number of unsent transactions is never exactly 512."""
    client = await world.client()
    await client.ready(0)
    sent_when_run: list[int] = []

    def context(tx: Draft, number: int) -> None:
        sent_when_run.append(partitions_of(client).appends_of(0)._outstanding.sent)
        for part in range(bodies):
            tx.append(b"%04d" % (number + part))

    await asyncio.gather(*(client.run(context, number, partition=0) for number in range(0, 1_200, bodies)))
    assert sent_when_run[0] == 0
    assert 0 < sent_when_run[-1] < 1_200, "the server had some of them before the last one was built"
    assert world.log.bodies() == [b"%04d" % number for number in range(1_200)]


async def test_a_full_window_is_not_tried_again_for_each_append(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.server.window_bytes = 1
    world.server.hold = True
    client = await world.client(settings={"frame_bytes_max": 1_000})
    await client.ready(0)
    tries: list[int] = []
    send_all = PartitionAppends._send_all
    monkeypatch.setattr(PartitionAppends, "_send_all", lambda *args: (tries.append(1), send_all(*args)))

    def context(tx: Draft, number: int) -> None:
        for _ in range(3):
            tx.append(b"%04d" % number)

    running = asyncio.gather(*(client.run(context, number, partition=0) for number in range(1_000)))
    await wait_until(lambda: world.server.held)
    assert len(tries) < 5
    world.server.release()
    await running
    assert world.log.bodies() == [b"%04d" % number for number in range(1_000) for _ in range(3)], "in their order"


async def test_a_slot_given_to_somebody_who_was_cancelled_goes_to_the_next() -> None:
    slots = 0
    admission = Admission(lambda taken: taken < slots)
    first, second = [asyncio.ensure_future(admission.take(None)) for _ in range(2)]
    await asyncio.sleep(0)
    slots = 1
    admission.admit()
    first.cancel()
    await asyncio.wait([first, second], timeout=1)
    assert first.cancelled()
    assert second.done()
    assert admission.taken == 1


async def test_slots_are_given_in_order_of_asking() -> None:
    slots = 0
    admission = Admission(lambda taken: taken < slots)
    order: list[int] = []

    async def take(number: int) -> None:
        await admission.take(None)
        order.append(number)

    waiting = [asyncio.ensure_future(take(number)) for number in range(5)]
    await asyncio.sleep(0)
    slots = 5
    admission.admit()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]


async def test_waiting_for_a_slot_has_a_deadline_and_an_end() -> None:
    admission = Admission(lambda taken: False)
    with pytest.raises(TimeoutError):
        await admission.take(asyncio.get_running_loop().time() + 0.001)
    waiting = asyncio.ensure_future(admission.take(None))
    await asyncio.sleep(0)
    admission.stop(Closed("over"))
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await admission.take(None)
    assert admission.taken == 0


async def test_waits_for_a_slot_that_were_given_up_are_forgotten() -> None:
    admission = Admission(lambda taken: False)
    past = asyncio.get_running_loop().time() - 1
    waiting = [asyncio.ensure_future(admission.take(None)) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(100):
        with pytest.raises(TimeoutError):
            await admission.take(past)
    waiting[1].cancel()
    await asyncio.wait(waiting[1:2])
    assert len(admission._waiting) == 2
    admission.stop(Closed("over"))
    with pytest.raises(Closed):
        await waiting[0]
    with pytest.raises(Closed):
        await waiting[2]


async def test_whoever_waits_for_a_mark_is_woken_when_it_is_reached() -> None:
    mark = AppliedMark(-1)
    waiting = [asyncio.ensure_future(mark.wait(value)) for value in (5, 2, 9)]
    await asyncio.sleep(0)
    mark.reach(5)
    await asyncio.wait(waiting[:2], timeout=1)
    assert [task.done() for task in waiting] == [True, True, False]
    mark.stop(Closed("over"))
    with pytest.raises(Closed):
        await waiting[2]


async def test_waits_for_a_mark_that_were_given_up_are_forgotten() -> None:
    mark = AppliedMark(-1)
    past = asyncio.get_running_loop().time() - 1
    for _ in range(3_000):
        with pytest.raises(TimeoutError):
            await mark.wait(10**6, past)
    assert len(mark._waiting) <= 1_024


async def test_a_wait_for_a_mark_that_was_given_up_keeps_no_object_of_its_caller() -> None:
    """It stays in the row of waits until the mark is reached, which may be never: with a receipt and its value."""
    mark = AppliedMark(-1)

    class Built:
        pass

    async def applied(built: Built) -> None:
        with pytest.raises(TimeoutError):
            await mark.wait(10**6, asyncio.get_running_loop().time())

    built = Built()
    gone = weakref.ref(built)
    await applied(built)
    del built
    gc.collect()
    assert gone() is None
