"""Which partitions are told the time, and start a session, now: so many at a time, those in use first."""

from __future__ import annotations

from collections import Counter

from polonaise.server.protocol.turns import StartQueue, Ticks
from rigs.owner import Talk


def come(queue: StartQueue) -> list[object]:
    """Those whose turn has come."""
    found: list[object] = []
    while (following := queue.next()) is not None:
        found.append(following)
    return found


def queue_of(at_once_max: int, *, wanted: str = "", others: str = "") -> StartQueue:
    queue = StartQueue(at_once_max)
    for partition in others:
        queue.ask(partition, wanted=False)
    for partition in wanted:
        queue.ask(partition, wanted=True)
    return queue


def test_a_bounded_number_of_partitions_start_at_a_time_in_the_order_they_asked() -> None:
    queue = queue_of(2, others="abcd")
    assert come(queue) == ["a", "b"]
    assert come(queue) == []
    assert len(queue) == 2
    queue.leave("b")
    assert come(queue) == ["c"]
    queue.leave("a")
    queue.leave("c")
    assert come(queue) == ["d"]
    assert len(queue) == 0


def test_partitions_that_clients_want_start_first() -> None:
    assert come(queue_of(3, wanted="xyz", others="ab")) == ["x", "y", "z"]


def test_a_waiting_partition_that_becomes_wanted_starts_before_the_others() -> None:
    queue = queue_of(1, others="abcd")
    assert come(queue) == ["a"]
    queue.want("d")
    queue.want("a")  # has its turn
    queue.want("e")  # asks for none
    queue.leave("a")
    assert come(queue) == ["d"]
    queue.leave("d")
    assert come(queue) == ["b"]


def test_however_many_are_wanted_one_turn_of_four_is_for_the_others() -> None:
    queue = queue_of(8, wanted="stuvwxyz", others="abc")
    assert come(queue) == ["s", "t", "u", "a", "v", "w", "x", "b"]


def test_who_waits_no_more_leaves_its_place_to_the_next() -> None:
    queue = queue_of(1, wanted="x", others="abc")
    assert come(queue) == ["x"]
    queue.leave("a")
    queue.leave("x")
    assert come(queue) == ["b"]
    queue.leave("b")
    queue.ask("a", wanted=False)
    assert come(queue) == ["c"]


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
