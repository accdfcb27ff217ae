"""A target's partitions, their queue, and how far it is behind."""

from __future__ import annotations

from bisect import bisect_left
from random import Random
from typing import Any

import pytest

from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.deliveryhealth import targets_health
from polonaise.player.protocol.deliverylag import DeliveryLag, Lacking, MainHistory, TargetLag
from polonaise.player.protocol.entries import ENTRY_BYTES, RoutedEntry
from polonaise.player.protocol.mainstream import MainStream
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetpartition import Halt, TargetPartition
from polonaise.player.protocol.targetqueue import QueueBudget, QueueState, RecoveryRead, TargetQueue


def entries(*ids: int, size: int = 0) -> list[RoutedEntry]:
    return [RoutedEntry(each, bytes(size)) for each in ids]


def queue_from(
    last: int, current: int, budget: QueueBudget | None = None, start_after: int = -1, **settings: Any
) -> TargetQueue:
    chosen = PlayerSettings(**settings)
    return TargetQueue(7, chosen, budget or QueueBudget(chosen), last, max(last, start_after), current)


def sent(queue: TargetQueue, entries_max: int = 512) -> list[tuple[int, list[int]]]:
    """Take all that can be taken: for each batch its previous id, and its ids."""
    batches = []
    while batch := queue.take(entries_max):
        batches.append((batch.previous, [entry.id for entry in batch.entries]))
    return batches


def test_a_target_that_lacks_nothing_is_served_by_the_main_stream_at_once() -> None:
    queue = queue_from(4, 4)
    assert queue.state is QueueState.NORMAL
    queue.push(entries(5, 8))
    assert sent(queue) == [(4, [5, 8])]


def test_a_target_ahead_of_the_main_stream_is_not_sent_again_what_it_has() -> None:
    queue = queue_from(6, 4)
    queue.push(entries(5, 6))
    queue.push(entries(7))
    assert sent(queue) == [(6, [7])]


def test_a_target_that_lacks_little_gets_the_main_stream_while_it_is_caught_up() -> None:
    queue = queue_from(1, 4)
    assert queue.next_read(4, 1) == RecoveryRead(1, 2, 4)
    queue.push(entries(5))
    assert sent(queue) == [], "what it lacks comes first"
    assert queue.recovered(1, entries(2), through=3)
    assert sent(queue) == [(1, [2])]
    assert queue.next_read(5, 2) == RecoveryRead(2, 4, 4)
    assert queue.recovered(2, entries(4), through=4)
    assert queue.next_read(5, 3) is None
    assert queue.state is QueueState.FETCHED
    assert sent(queue) == [(2, [4]), (4, [5])]
    assert queue.state is QueueState.NORMAL


def test_a_target_that_lacks_much_joins_the_main_stream_when_little_lies_between() -> None:
    queue = queue_from(-1, 100, join_transactions=10)
    assert queue.next_read(100, 1) == RecoveryRead(1, 0, 100)
    queue.push(entries(101))
    assert queue.waiting == 0, "it has not joined"
    queue.recovered(1, [], through=100)
    assert queue.next_read(150, 2) == RecoveryRead(2, 101, 150)
    queue.recovered(2, entries(101, 150), through=150)
    assert queue.next_read(155, 3) == RecoveryRead(3, 151, 155)
    queue.push(entries(156))
    queue.recovered(3, entries(155), through=155)
    assert queue.next_read(156, 4) is None
    assert sent(queue) == [(-1, [101, 150, 155]), (155, [156])]


def test_no_further_read_is_made_while_enough_waits_to_be_sent() -> None:
    queue = queue_from(-1, 9, recovery_bytes_max=1_000)
    queue.next_read(9, 1)
    queue.recovered(1, entries(0, 1, size=600), through=1)
    assert queue.next_read(9, 2) is None
    queue.take(1)
    assert queue.next_read(9, 2) == RecoveryRead(2, 2, 9)


def test_the_answer_to_an_earlier_read_is_not_taken() -> None:
    queue = queue_from(-1, 9)
    assert queue.next_read(9, 2) == RecoveryRead(2, 0, 9)
    assert not queue.recovered(1, entries(0), through=0)
    assert sent(queue) == []


def test_after_a_failed_read_nothing_is_read_until_it_is_tried_again() -> None:
    queue = queue_from(-1, 9)
    queue.next_read(9, 1)
    assert queue.read_failed(1, "nobody answers", 5.0)
    assert not queue.read_failed(1, "nobody answers", 5.0)
    assert not queue.retry_read(4.9)
    assert queue.next_read(9, 2) is None
    assert queue.retry_read(5.0)
    assert not queue.retry_read(6.0), "it is being tried"
    assert queue.next_read(9, 2) == RecoveryRead(2, 0, 9)


def test_what_overflows_is_dropped_and_read_from_the_log() -> None:
    queue = queue_from(-1, -1, queue_entries_max=2)
    queue.push(entries(3, 5))
    assert queue.take(1) is not None
    queue.push(entries(6, 7))
    assert (queue.state, queue.waiting) == (QueueState.FETCHING, 0)
    assert queue.next_read(7, 1) == RecoveryRead(1, 5, 7), "from the first that was dropped"


def test_a_target_that_is_caught_up_may_overflow_again() -> None:
    queue = queue_from(-1, 0, queue_entries_max=1)
    queue.next_read(0, 1)
    queue.push(entries(1, 2))
    assert queue.recovered(1, entries(0), through=0)
    assert queue.next_read(2, 2) == RecoveryRead(2, 1, 2)
    assert sent(queue) == [(-1, [0])]


def test_one_entry_is_kept_however_large_it_is() -> None:
    queue = queue_from(-1, -1, queue_bytes_max=10)
    queue.push(entries(0, size=500))
    assert sent(queue) == [(-1, [0])]


def test_the_queues_of_a_target_have_one_bound() -> None:
    budget = QueueBudget(PlayerSettings(queue_entries_max=3))
    first, second = (queue_from(-1, -1, budget) for _ in range(2))
    first.push(entries(0, 1))
    second.push(entries(0, 1))
    assert (first.waiting, second.waiting) == (2, 0), "the one that brought too much drops what it has"
    first.drop()
    assert (budget.entries, budget.bytes) == (0, 0)


def test_a_batch_has_a_bound_of_bytes_and_a_larger_entry_goes_alone() -> None:
    queue = queue_from(-1, -1, batch_bytes_max=2 * ENTRY_BYTES + 100)
    queue.push([*entries(0, size=50), *entries(1, size=50), *entries(2, size=51), *entries(3, size=999), *entries(4)])
    assert sent(queue) == [(-1, [0, 1]), (1, [2]), (2, [3]), (3, [4])]


def test_the_acknowledgement_of_the_last_releases_all_before_it() -> None:
    queue = queue_from(-1, -1)
    queue.push(entries(0, 1, 2, size=10))
    sent(queue, entries_max=1)
    assert queue.acknowledge(1) == 2 * (ENTRY_BYTES + 10)
    assert queue.acknowledge(0) == 0
    assert queue.drop() == ENTRY_BYTES + 10


@pytest.mark.parametrize(("current", "dummy"), [(9, False), (10, True)])
def test_an_idle_target_is_sent_a_dummy(current: int, dummy: bool) -> None:
    queue = queue_from(0, 0)
    assert queue.push_dummy(current, 10) is dummy
    batch = queue.take(512)
    assert (batch.entries if batch else []) == [RoutedEntry(current, None)] * dummy


def test_a_target_that_is_sent_something_needs_no_dummy() -> None:
    queue = queue_from(0, 0)
    queue.push(entries(1))
    assert not queue.push_dummy(50, 10)
    queue.take(512)
    assert not queue.push_dummy(50, 10), "the acknowledgement is under way"
    queue.acknowledge(1)
    assert queue.push_dummy(50, 10)


def test_a_new_target_gets_what_follows_the_id_that_it_starts_after() -> None:
    queue = queue_from(-1, 3, start_after=5)
    queue.push(entries(4, 5, 6))
    assert sent(queue) == [(-1, [6])]
    queue = queue_from(6, 8, start_after=5)
    assert queue.next_read(8, 1) == RecoveryRead(1, 7, 8)


def entries_of(*ids: int) -> list[RoutedEntry]:
    return [RoutedEntry(each, b"") for each in ids]


class Pair(TargetPartition):
    """A pair whose main stream is where the test says."""

    def __init__(self) -> None:
        settings = PlayerSettings(retry_s_min=1.0, retry_s_max=3.0)
        super().__init__(7, MainStream(), settings, QueueBudget(settings), -1)

    def at(self, current: int) -> int:
        """Return what is delivered while the main stream is at `current`."""
        self.main.current = current
        return self.delivered

    def served(self, last: int, current: int) -> TargetQueue:
        self.main.current = current
        return self.serve(last, current)


def test_a_target_that_is_away_is_sent_nothing() -> None:
    pair = Pair()
    assert (pair.queue, pair.told, pair.at(9)) == (None, False, -1)


def test_what_is_delivered_is_what_the_target_has_applied_and_what_was_not_for_it() -> None:
    pair = Pair()
    queue = pair.served(2, 9)
    assert pair.at(9) == 2
    queue.next_read(9, 1)
    queue.recovered(1, entries_of(4), through=6)
    assert pair.at(9) == 3, "an entry waits"
    pair.take(queue)
    assert pair.at(9) == 3, "it is in flight"
    queue.acknowledge(4)
    assert pair.acknowledge(4)
    assert pair.at(9) == 6
    queue.next_read(9, 2)
    queue.recovered(2, [], through=9)
    queue.next_read(12, 3)
    assert pair.at(12) == 12
    pair.disconnect("reset")
    assert pair.at(15) == 12, "what was not its own before is not its own now"
    pair.served(4, 15)
    assert pair.at(15) == 12
    pair.disconnect("reset")
    pair.served(3, 15)
    assert pair.at(15) == 3, "it was put back"


def test_a_target_lacks_what_follows_the_entry_before_the_one_that_waits() -> None:
    pair = Pair()
    queue = pair.served(2, 2)
    queue.push(entries_of(300))
    assert pair.at(310) == 299
    pair.take(queue)
    queue.push(entries_of(305))
    assert pair.at(310) == 299, "it is in flight"
    pair.halt(2, "refused", 0.0, for_good=False)
    assert pair.at(310) == 299, "it was refused"
    pair.served(2, 310)
    assert pair.at(310) == 299, "it is read again"


def test_a_target_that_gets_a_dummy_lacks_nothing() -> None:
    pair = Pair()
    queue = pair.served(2, 2)
    assert queue.push_dummy(9, 1)
    assert pair.at(9) == 9
    pair.take(queue)
    assert pair.at(9) == 9
    queue.push(entries_of(12))
    assert pair.at(12) == 9, "what lies behind the dummy is looked at once it is acknowledged"
    queue.acknowledge(9)
    assert pair.at(12) == 11


def test_pauses_grow_until_the_target_has_applied_something() -> None:
    pair, pauses = Pair(), []
    for acknowledged in (-1, -1, -1, 0):
        pair.served(-1, -1)
        pair.acknowledge(acknowledged)
        pair.halt(-1, "refused", 100.0, for_good=False)
        assert isinstance(pair.state, Halt)
        pauses.append(pair.state.retry_at_s - 100.0)
    assert pauses == [1.0, 2.0, 3.0, 1.0]


@pytest.mark.parametrize(("sends", "told"), [(False, "refused"), (True, "reset")])
def test_a_refusal_is_told_after_the_stream_has_ended_until_it_is_sent_again(sends: bool, told: str) -> None:
    pair = Pair()
    pair.served(-1, -1)
    pair.halt(-1, "refused", 0.0, for_good=False)
    queue = pair.served(-1, -1)
    queue.push(entries_of(0))
    if sends:
        pair.take(queue)
    pair.disconnect("reset")
    assert pair.trouble == told


S = 1_000_000


@pytest.mark.parametrize("seed", range(5))
def test_an_age_is_never_too_low_and_at_most_a_sixteenth_too_high(seed: int) -> None:
    random = Random(seed)
    history, now_us, last, through = MainHistory(0), 10**15, -1, 0
    truth: list[tuple[int, int, int]] = []
    for _ in range(20_000):
        now_us += round(random.choice((0, 200, 3_000, 50_000)) * random.random())
        if random.random() < 0.0005:
            now_us += 3_600 * S  # nothing is appended for an hour
        last += random.randint(1, 50)
        size = random.randint(10, 9_000)
        through += size
        history.brought(last, now_us, size)
        truth.append((last, now_us, through))
    assert len(history._points) <= 1024
    lasts = [each[0] for each in truth]
    for id in (0, last, *(random.randint(0, last) for _ in range(500))):
        right_us = truth[bisect_left(lasts, id)][1]
        told_us = history.committed_us(id)
        assert told_us is not None
        assert 0 <= right_us - told_us <= (now_us - right_us) / 16 + 1
    for position in (0, 19_999, *(random.randrange(20_000) for _ in range(200))):
        id, _, before = truth[position]
        told = history.bytes_after(id)
        assert told is not None
        assert abs(told - (through - before)) <= through / 16


def test_memory_is_bounded_whatever_the_clocks_do() -> None:
    history = MainHistory(0)
    random = Random(1)
    for id in range(20_000):
        history.brought(id, random.randrange(10**15), 1)
    assert len(history._points) <= 1024
    assert history.bytes_after(-1) == 20_000


def test_many_partitions_share_a_bound() -> None:
    lag = DeliveryLag(ActivePlayer(1, range(2_000), PlayerSettings()))
    for id in range(300):
        for partition in (0, 1_999):
            lag.brought(partition, id, id, id * S, 1)
    assert all(len(history._points) <= 65 for history in lag._histories.values())
    assert len(lag._histories) == 2


def test_a_history_knows_nothing_of_what_it_was_not_brought() -> None:
    history = MainHistory(100)
    assert history.committed_us(100) is None
    assert history.bytes_after(99) == 0
    history.brought(110, 5 * S, 1_000)
    assert history.committed_us(99) is None
    assert history.committed_us(111) is None
    assert history.committed_us(100) == history.committed_us(110) == 5 * S
    assert history.bytes_after(98) is None
    assert history.bytes_after(99) == 1_000
    assert history.bytes_after(110) == history.bytes_after(500) == 0


def machine_at(applied: int, last: int) -> tuple[ActivePlayer, DeliveryLag]:
    """A player whose main stream is at `last`; target `a` has applied up to `applied`, and is away by now."""
    machine = ActivePlayer(1, [0], PlayerSettings())
    machine.add_target("a")
    machine.add_target("away")
    machine.partitions[0].current = last
    pair = machine.targets["a"].pairs[0]
    pair.acked, pair.told = applied, True
    return machine, DeliveryLag(machine)


def test_a_target_that_lacks_nothing_is_not_behind_and_one_that_was_never_there_is_unknown() -> None:
    _, lag = machine_at(applied=9, last=9)
    lag.brought(0, 0, 9, 5 * S, 700)
    assert lag.lags(60 * S) == {"a": TargetLag(0.0, 0), "away": TargetLag(None, None)}
    assert list(lag.unknown()) == []


def test_a_target_is_as_far_behind_as_the_first_transaction_that_it_lacks_is_old() -> None:
    _, lag = machine_at(applied=4, last=9)
    lag.brought(0, 0, 4, 5 * S, 100)
    lag.brought(0, 5, 9, 20 * S, 700)
    assert lag.lags(60 * S)["a"] == TargetLag(40.0, 700)


def test_an_age_below_zero_is_not_known() -> None:
    """One of two clocks is wrong: 0 would be taken for well."""
    _, lag = machine_at(applied=4, last=9)
    lag.brought(0, 0, 9, 3_600 * S, 700)
    assert lag.lags(60 * S)["a"].seconds is None
    assert lag.lags(3_595 * S)["a"].seconds == 0.0, "clocks may differ by some seconds"


def test_what_lies_before_the_main_stream_is_looked_up_once() -> None:
    _, lag = machine_at(applied=4, last=109)
    lag.brought(0, 100, 109, 50 * S, 700)
    assert lag.lags(60 * S)["a"] == TargetLag(10.0, None), "until then it is as old as what is known, at the least"
    assert list(lag.unknown()) == [Lacking("a", 0, 5)]
    lag.told(Lacking("a", 0, 5), 20 * S)
    assert lag.lags(60 * S)["a"] == TargetLag(40.0, None)
    assert list(lag.unknown()) == []
    lag.told(Lacking("a", 0, 5), None)  # it was trimmed
    assert lag.lags(60 * S)["a"] == TargetLag(10.0, None)
    assert list(lag.unknown()) == []


def test_a_main_stream_that_begins_anew_further_on_forgets_what_was_before() -> None:
    machine, lag = machine_at(applied=4, last=9)
    lag.brought(0, 0, 9, 5 * S, 100)
    machine.partitions[0].current = 209
    lag.brought(0, 200, 209, 50 * S, 300)
    assert list(lag.unknown()) == [Lacking("a", 0, 5)]
    assert lag.lags(60 * S)["a"].bytes is None


def test_what_is_not_known_is_not_0() -> None:
    machine, lag = machine_at(applied=9, last=9)
    lag.brought(0, 0, 9, 5 * S, 700)
    assert lag.lags(60 * S, silent={0})["a"].seconds is None, "the log may have grown"
    machine.targets["a"].pairs[0].acked = 4
    assert lag.lags(60 * S, silent={0})["a"].seconds == 55.0, "this much it lacks in any case"


def test_of_a_partition_that_is_not_read_yet_nothing_is_known() -> None:
    machine, lag = machine_at(applied=9, last=9)
    machine.partitions[0].current = None
    assert lag.lags(60 * S)["a"] == TargetLag(None, None)
    assert targets_health(machine)["a"]["lag"] == {"0": None}


def test_what_was_committed_at_an_unknown_time_is_not_committed_just_now() -> None:
    _, lag = machine_at(applied=4, last=9)
    assert lag.lags(60 * S)["a"] == TargetLag(None, None)
    lag.told(next(lag.unknown()), 20 * S)
    assert lag.lags(60 * S)["a"].seconds == 40.0


def test_what_is_not_read_any_more_is_lacking_as_well() -> None:
    machine, lag = machine_at(applied=9, last=9)
    lag.brought(0, 0, 9, 5 * S, 700)
    machine.partitions[0].stopped = "transaction 10 can't be routed"
    machine.mark_seen(0, 9, 12, 0.0)
    assert list(lag.unknown()) == [Lacking("a", 0, 10)]
    assert lag.lags(60 * S)["a"].seconds is None
    lag.told(Lacking("a", 0, 10), 20 * S)
    assert lag.lags(60 * S)["a"].seconds == 40.0
    assert targets_health(machine)["a"]["lag"] == {"0": 3}


def test_a_target_that_has_told_nothing_lacks_nobody_knows_what() -> None:
    machine, _ = machine_at(applied=9, last=9)
    assert targets_health(machine)["away"]["lag"] == {"0": None}, "10 would say that it has applied nothing"


def test_a_log_that_does_not_answer_leaves_the_lag_unknown() -> None:
    machine, _ = machine_at(applied=9, last=9)
    assert targets_health(machine)["a"]["lag"] == {"0": 0}
    assert targets_health(machine, silent={0})["a"]["lag"] == {"0": None}


def test_how_far_a_target_is_behind_a_log_that_was_put_back_is_not_known() -> None:
    machine, lag = machine_at(applied=9, last=9)
    lag.brought(0, 0, 9, 5 * S, 700)
    machine.mark_seen(0, 9, 5, 0.0)
    assert lag.lags(60 * S)["a"] == TargetLag(None, None)
    assert targets_health(machine)["a"]["lag"] == {"0": None}
