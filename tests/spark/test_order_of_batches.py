"""Named batches that come in any order, and die anywhere: whose write returned has its rows in the log, each once."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import combinations, permutations, product
from typing import TypeAlias

import pytest

from polonaise.errors import BadOption, PolonaiseError
from polonaise.spark.protocol.sinkprogress import (
    BATCH_WRITES,
    RUNS_MAX,
    UNKNOWN,
    Origin,
    Runs,
    SinkProgress,
    Step,
    check_order,
    next_step,
)
from rigs.faults import raises_code

APP = "load"
PARTITIONS = range(3)
Shape: TypeAlias = dict[int, int]
"""Of a batch: in which partitions it has how many groups."""
SHAPES: list[Shape] = [
    dict(zip(places, groups, strict=True))
    for size in (1, 2)
    for places in combinations(PARTITIONS, size)
    for groups in product((1, 2), repeat=size)
]


class Died(Exception):
    """The driver of a write is no more."""


class World:
    """What partitions hold of an application, and which of its groups are in the log."""

    def __init__(self) -> None:
        self.held: dict[int, SinkProgress] = {}
        self.log: Counter[tuple[int, int, int]] = Counter()
        """Batch, partition and group."""

    def write(self, batch: int, shape: Shape, order: tuple[int, ...], steps: int = 99) -> None:
        """As `publishing.publish` for somebody who does not come in order.

        Raises `Died` after so many groups.
        """
        earlier = check_order(self.held, batch, shape, APP)
        if earlier is None:
            return
        for place in (place for place in order if place in shape):
            while next_step(self.held.get(place), batch, APP, place) is not Step.NOTHING:
                if not steps:
                    raise Died
                steps -= 1
                self._append(batch, place, shape, earlier)

    def _append(self, batch: int, place: int, shape: Shape, earlier: Runs) -> None:
        held = self.held.get(place)
        done = held.done if held is not None and held.batch == batch else 0
        self.held[place] = SinkProgress(batch, done + 1, shape[place], len(shape), earlier)
        self.log[batch, place, done] += 1

    def has(self, batch: int, shape: Shape) -> bool:
        return all(self.log[batch, place, group] for place in shape for group in range(shape[place]))

    def begun(self, batch: int) -> bool:
        return any(number == batch for number, _, _ in self.log)


def check_stories(first: Shape) -> Counter[str]:
    """Two batches die anywhere, and are written again. What was refused, by its code."""
    refused = Counter[str]()
    for second, order in product(SHAPES, permutations(PARTITIONS)):
        for dies_1, dies_2 in product(range(sum(first.values()) + 1), range(sum(second.values()) + 1)):
            world = World()
            story = [(1, first, dies_1), (2, second, dies_2), (1, first, 99), (2, second, 99), (1, first, 99)]
            for batch, shape, steps in story:
                try:
                    world.write(batch, shape, order, steps)
                except Died:
                    continue
                except PolonaiseError as error:
                    refused[error.code] += 1
                    continue
                assert world.has(batch, shape)
            assert set(world.log.values()) <= {1}
            assert world.has(2, second), "in the end each can be written, or is too late"
            assert world.has(1, first) or not world.begun(1)
    return refused


@pytest.mark.parametrize("first", SHAPES, ids=str)
def test_whose_write_returned_has_its_rows_in_the_log_each_once(first: Shape) -> None:
    refused = check_stories(first)
    assert bool(refused["batch_unfinished"]) == (sum(first.values()) > 1)
    assert refused["batch_overtaken"]
    assert set(refused) <= {"batch_unfinished", "batch_overtaken"}


def test_what_was_written_before_is_known_by_its_number() -> None:
    world, shape, order = World(), {0: 1, 1: 1}, (0, 1, 2)
    numbers = [*range(1, 40), *range(100, 200, 7)]
    for number in numbers:
        world.write(number, shape, order)
    before = world.log.copy()
    for number in range(1, numbers[-1]):
        if number in numbers:
            world.write(number, shape, order)
        else:
            with raises_code("batch_overtaken", match=rf"batch {numbers[-1]} .* batch {number} is not, .* above"):
                world.write(number, shape, order)
    assert world.log == before
    for number in range(200, 200 + 2 * RUNS_MAX, 2):
        world.write(number, shape, order)
    with raises_code("batch_overtaken", match="too long ago to be remembered"):
        world.write(39, shape, order)


@pytest.mark.parametrize("first", SHAPES, ids=str)
def test_a_batch_that_comes_again_with_rows_for_other_partitions_adds_nothing_to_what_is_there(first: Shape) -> None:
    for other, dies in product(SHAPES, range(sum(first.values()) + 1)):
        if other.keys() == first.keys():
            continue
        world = World()
        with suppress(Died):
            world.write(1, first, (0, 1, 2), dies)
        before = world.log.copy()
        if before and not world.has(1, first):
            if len(other) == len(first) and world.held.keys() <= other.keys():
                continue  # as if it were what was begun: nothing says otherwise
            with raises_code("batch_unfinished", match="the same rows, in the same partitions"):
                world.write(1, other, (0, 1, 2))
        else:
            world.write(1, other, (0, 1, 2))
        assert world.log == before if before else world.has(1, other)


# ------------------------------------------------------------------ whose batch it is

Q, OTHER = Origin("query", "7-aa"), Origin("other query", "7-aa")
MORE, WRITE = Origin("query", "8-bb"), Origin(BATCH_WRITES, "7-aa")


@pytest.mark.parametrize(
    ("before", "after", "batch", "in_order", "outcome"),
    [
        (Q, Q, 5, True, None),  # Spark has forgotten its commit
        (Q, Q, 6, True, ()),
        (Q, MORE, 6, True, ()),
        (Q, MORE, 5, True, "batch_overtaken"),  # an older copy of the checkpoint, whose batch took up more
        (Q, Q, 4, True, "batch_overtaken"),
        (Q, OTHER, 5, True, BadOption.code),
        (Q, OTHER, 6, True, BadOption.code),
        (Q, WRITE, 6, False, BadOption.code),
        (WRITE, Q, 6, True, BadOption.code),
        (WRITE, Origin(BATCH_WRITES, "8-bb"), 5, False, None),
        (WRITE, WRITE, 6, False, ((5, 5),)),
        (UNKNOWN, Q, 5, True, None),  # written by 0.1
        (UNKNOWN, Q, 6, True, ()),
        (Q, UNKNOWN, 5, True, None),  # Spark did not tell
    ],
)
def test_a_name_belongs_to_one_query_and_its_latest_batch_to_the_same_rows(
    before: Origin, after: Origin, batch: int, in_order: bool, outcome: str | Runs | None
) -> None:
    held = {0: SinkProgress.parse(SinkProgress(5, 1, 1, 1, origin=before).pack(), APP, 0)}
    assert held[0].origin == before
    if isinstance(outcome, str):
        with raises_code(outcome):
            check_order(held, batch, [0], APP, in_order=in_order, origin=after)
    else:
        assert check_order(held, batch, [0], APP, in_order=in_order, origin=after) == outcome


def test_a_batch_that_was_begun_is_not_finished_with_other_rows() -> None:
    held = {0: SinkProgress(5, 1, 2, 1, (), "plans/x", WRITE)}
    assert check_order(held, 5, [0], APP, origin=WRITE) == ()
    with raises_code("batch_unfinished", match=r"begun with other rows .7 and 8 rows"):
        check_order(held, 5, [0], APP, origin=Origin(BATCH_WRITES, "8-bb"))
