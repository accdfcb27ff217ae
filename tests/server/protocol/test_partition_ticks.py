"""Who is told the time: partitions with something under way always, the others a few at a time."""

from __future__ import annotations

from collections import Counter

from polonaise.server.protocol.ticks import Ticks
from rigs.owner import Talk


def test_thousands_at_rest_are_told_the_time_two_at_a_time_each_once_in_a_round() -> None:
    ticks, partitions = Ticks(), range(4_096)
    told: Counter[int] = Counter()
    for _ in range(2_049):
        due = ticks.due(partitions)
        assert len(due) <= 2
        told.update(due)
    assert told == Counter(partitions)


def test_what_has_something_under_way_is_told_it_each_time_and_once() -> None:
    ticks, partitions = Ticks(), range(100)
    for _ in range(200):
        ticks.busy(77)
        ticks.busy(3)
        due = ticks.due(partitions)
        assert due[:2] == [77, 3]
        assert len(due) == len(set(due)) <= 4
    assert [due for due in (ticks.due(partitions) for _ in range(200)) if 77 in due] == [[76, 77]] * 4


def test_a_few_are_all_told_it_nearly_each_time() -> None:
    ticks = Ticks()
    told = Counter(partition for _ in range(100) for partition in ticks.due([0, 1]))
    assert min(told[0], told[1]) >= 49


def test_what_is_gone_is_told_nothing() -> None:
    ticks = Ticks()
    ticks.busy(2)
    assert ticks.due([]) == []
    ticks.due([5, 6])
    assert ticks.due([6]) == [6]


def test_an_owner_is_at_rest_once_every_replica_has_synced_what_it_was_sent() -> None:
    talk = Talk()
    assert talk.owner.at_rest
    assert not talk.owner.wanted
    talk("x mounts at -1")
    assert talk.owner.wanted
    assert not talk.owner.at_rest  # the request has a deadline
    talk("session 1 at -1")
    assert not talk.owner.at_rest
    talk.hear("A B store 1", "time 1")
    assert not talk.owner.at_rest  # C is late, perhaps
    talk.hear("C store 1", "time 1")
    assert talk.owner.at_rest
    talk("x appends 1")
    assert not talk.owner.at_rest
    talk.hear("A B C store 2", "time 1")
    assert talk.owner.at_rest
    talk("x leaves")
    assert not talk.owner.wanted


def test_an_owner_with_mounts_is_told_the_time_until_it_has_told_them_that_nothing_hinders_them() -> None:
    talk = Talk().hear("session 1 at -1", "x mounts at -1", "A B C store 1", "time 1")
    assert talk.owner.at_rest
    talk("ends")
    assert not talk.owner.at_rest
    talk.owner.readiness.attempt_waits("storage")
    assert "storage" in " ".join(talk("time 5"))
    assert not talk.owner.at_rest
    talk.hear("session 2 at -1", "time 5")
    assert talk.owner.at_rest


def test_a_request_left_from_a_session_that_ended_keeps_its_deadline() -> None:
    talk = Talk().hear("session 1 at -1", "x mounts at -1", "ends")
    assert not talk.owner.at_rest
    talk("time 100")
    assert talk.owner.at_rest
