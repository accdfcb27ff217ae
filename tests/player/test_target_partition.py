"""A pair of target and partition: what it is known to have, from one stream to the next."""

from __future__ import annotations

import pytest

from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.protocol.mainstream import MainStream
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetpartition import Halt, TargetPartition
from polonaise.player.protocol.targetqueue import QueueBudget, TargetQueue


def entries(*ids: int) -> list[RoutedEntry]:
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
    queue.recovered(1, entries(4), through=6)
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
    queue.push(entries(300))
    assert pair.at(310) == 299
    pair.take(queue)
    queue.push(entries(305))
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
    queue.push(entries(12))
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
    queue.push(entries(0))
    if sends:
        pair.take(queue)
    pair.disconnect("reset")
    assert pair.trouble == told
