"""Publishing is exact in every interleaving: kills between any two steps, lost answers, zombies, other splits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polonaise.client.protocol.draft import Expectation
from polonaise.client.protocol.group import Group
from polonaise.errors import PolonaiseError
from polonaise.spark import publishing
from polonaise.spark.protocol.plans import Plan
from polonaise.spark.protocol.sinkprogress import Step
from rigs import stepping
from rigs.stepping import Scenario, SteppedPort, World, check_all

A, B, C, D, E, F, G = (b"A", b"B", b"C", b"D", b"E", b"F", b"G")

CHAINS = Scenario(
    batches=[
        [[{0: [A, B, C], 1: [F]}, {0: [D, E]}], [{0: [A, C, E]}, {0: [B, D], 1: [F]}]],
        [[{0: [G], 1: [G]}]],
    ]
)
"""A batch of a chain and of a single group, split in two ways, and a batch after it."""
INLINE = Scenario(CHAINS.batches, inline=True)
SMALL = Scenario(batches=[[[{0: [A, B]}, {0: [C]}], [{0: [A]}, {0: [B, C]}]], [[{0: [G]}]]])
"""A chain of two groups, cut in two ways, and a batch after it."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What is left to be collected is said in a warning, thousands of times here."""
    caplog.set_level(logging.CRITICAL, logger="polonaise.spark")


def test_without_faults_every_batch_is_there_once_and_nothing_is_left_behind() -> None:
    world = CHAINS.play(lambda _: 0)
    CHAINS.check(world)
    assert world.rows == {0: [A, B, C, D, E, G], 1: [F, G]}
    assert world.objects == {}


@pytest.mark.parametrize("scenario", [CHAINS, INLINE], ids=["staged", "inline"])
def test_each_row_is_there_once_whatever_one_thing_goes_wrong(scenario: Scenario) -> None:
    assert check_all(scenario, 1) > 40


@pytest.mark.slow
@given(st.data())
@settings(max_examples=40)
def test_each_row_is_there_once_whatever_goes_wrong(data: st.DataObject) -> None:
    wrongs = st.integers(0, 3)

    def choose(count: int) -> int:
        return data.draw(st.integers(1, count - 1)) if data.draw(wrongs) == 3 and len(taken) < 12 else 0

    taken: list[int] = []

    def counted(count: int) -> int:
        choice = choose(count)
        if choice:
            taken.append(choice)
        return choice

    CHAINS.check(CHAINS.play(counted))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [CHAINS, INLINE], ids=["staged", "inline"])
def test_each_row_is_there_once_whatever_two_things_go_wrong(scenario: Scenario) -> None:
    assert check_all(scenario, 2) > 1_000


# ------------------------------------------------------------------ mutations


class WithoutExpectations(SteppedPort):
    async def append(self, partition: int, group: Group, expectations: Any, changes: Any) -> None:
        await super().append(partition, group, [], changes)


class WithoutChanges(SteppedPort):
    async def append(self, partition: int, group: Group, expectations: Any, changes: Any) -> None:
        await super().append(partition, group, expectations, [])


class ExpectsPresenceOnly(SteppedPort):
    """Whether the register is there, and not what it holds."""

    async def append(self, partition: int, group: Group, expectations: Any, changes: Any) -> None:
        weak = [Expectation.present(each.key) if each.value else each for each in expectations]
        await super().append(partition, group, weak, changes)


def own_plan_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was not stored: whoever goes on cuts its own."""
    go_on = publishing.Publication._go_on

    async def planned(self: publishing.Publication) -> None:
        async def load_plan(_: str) -> Plan:
            return self._own

        monkeypatch.setattr(self._port, "load_plan", load_plan)
        await go_on(self)

    monkeypatch.setattr(publishing.Publication, "_go_on", planned)


def begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = publishing.next_step

    def wrong(held: Any, batch: int, *rest: Any) -> Step:
        return Step.BEGIN if held is not None and held.batch == batch else decide(held, batch, *rest)

    monkeypatch.setattr(publishing, "next_step", wrong)


def takes_zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = publishing.next_step

    def wrong(held: Any, batch: int, *rest: Any) -> Step:
        return Step.BEGIN if held is not None and held.batch > batch else decide(held, batch, *rest)

    monkeypatch.setattr(publishing, "next_step", wrong)


def abort_deletes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def everything(store: Any, staged: Any) -> None:
        await stepping.discard(store, [name for task in staged for name in task.objects], 1_000.0)

    monkeypatch.setattr(stepping, "aborted", everything)


def nothing(_: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize(
    ("mutation", "port"),
    [
        (nothing, WithoutExpectations),
        (nothing, WithoutChanges),
        (nothing, ExpectsPresenceOnly),
        (own_plan_again, SteppedPort),
        (begins_again, SteppedPort),
        (takes_zombies, SteppedPort),
        (abort_deletes_all, SteppedPort),
    ],
    ids=[
        "no expectation", "no change", "weak expectation", "no plan", "batch begun twice", "zombies taken",
        "abort deletes all",
    ],
)  # fmt: skip
def test_a_mutation_is_found(
    mutation: Callable[[pytest.MonkeyPatch], None],
    port: Callable[[World], SteppedPort],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    with pytest.raises((AssertionError, PolonaiseError)):
        check_all(SMALL, 2, port)
