"""How far targets are behind in seconds and bytes: estimates whose errors have bounds, in bounded memory."""

from __future__ import annotations

from bisect import bisect_left
from random import Random

import pytest

from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.deliveryhealth import targets_health
from polonaise.player.protocol.deliverylag import DeliveryLag, Lacking, MainHistory, TargetLag
from polonaise.player.protocol.settings import PlayerSettings

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
