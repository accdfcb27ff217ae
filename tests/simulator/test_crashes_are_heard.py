"""A fault or a check that crashes fails the seed: else all that it had still to find would count as held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from polonaise_proving.faults import nemesis
from polonaise_proving.faults.clockfaults import ClockFaults
from polonaise_proving.faults.nemesis import Nemesis
from polonaise_proving.judges.deliverycheck import DeliveryCheck
from polonaise_proving.scenarios import delivering, schedule
from polonaise_proving.scenarios.schedule import run
from polonaise_proving.stages.simulated import ProcessFailed, World

SEED = 3
"""Of the shortest ones."""
DELIVERY_SEED = 17
"""One with players and targets."""
CLOCKS_SEED = 24
"""One whose clocks are set wrong."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def crash(*_: Any, **__: Any) -> Any:
    raise RuntimeError("crashed")


async def crash_later(*_: Any) -> None:
    await asyncio.sleep(0.01)
    crash()


def test_a_task_beside_the_scenario_that_raises_fails_the_schedule_under_its_name() -> None:
    world = World(3)

    async def scenario() -> None:
        watches = [world.spawn(crash_later(), "watch")]
        await asyncio.sleep(1)
        watches[0].cancel()

    with pytest.raises(
        ProcessFailed, match=r"seed 3: watch failed: RuntimeError: crashed \(test_crashes.*, in crash\)"
    ):
        world.run(scenario())


def test_a_task_beside_the_scenario_that_is_cancelled_fails_nothing() -> None:
    world = World(3)

    async def scenario() -> str:
        watch = world.spawn(crash_later(), "watch")
        watch.cancel()
        await asyncio.sleep(1)
        return "held"

    assert world.run(scenario()) == "held"


@pytest.mark.parametrize(
    ("seed", "where", "name", "wrong", "who"),
    [
        (SEED, nemesis, "ACTIONS", ((crash_later, 1.0, 1.0),), "nemesis: crash_later"),
        (SEED, schedule, "quorum_holds", crash, "watch"),
        (SEED, schedule.Schedule, "_stop_now_and_then", crash_later, "stops"),
        (CLOCKS_SEED, ClockFaults, "_wrong_for_a_while", crash_later, "a wrong clock"),
        (DELIVERY_SEED, DeliveryCheck, "look_at_health", crash, "watch of players"),
        (DELIVERY_SEED, delivering, "_DEEDS", (crash_later,), "delivery: crash_later"),
    ],
    ids=["an action of the nemesis", "the watch of what a quorum holds", "a clean stop", "a clock that is set wrong",
         "a look at players", "a fault of delivery"],
)  # fmt: skip
def test_what_raises_beside_the_scenario_fails_the_seed(
    monkeypatch: pytest.MonkeyPatch, seed: int, where: Any, name: str, wrong: Any, who: str
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert run(seed).failure.startswith(f"seed {seed}: {who} failed: RuntimeError: crashed")


async def count_what_no_census_knows(self: Nemesis) -> None:
    self._world.faults.count("not_in_faults")


def test_an_action_that_counts_a_fault_of_no_census_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "ACTIONS", ((count_what_no_census_knows, 1.0, 1.0),))
    assert "failed: KeyError: 'not_in_faults'" in run(SEED).failure
