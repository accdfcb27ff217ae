"""A target's queue: what it takes from where, what it drops, and what it sends."""

from __future__ import annotations

from typing import Any

import pytest

from polonaise.player.protocol.entries import ENTRY_BYTES, RoutedEntry
from polonaise.player.protocol.settings import PlayerSettings
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
