"""Which partitions start a session now: so many at a time, those that somebody waits for first."""

from __future__ import annotations

from polonaise.server.protocol.startqueue import StartQueue


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
