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


def test_an_action_of_the_nemesis_that_raises_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "ACTIONS", ((crash_later, 1.0, 1.0),))
    assert run(SEED).failure.startswith(f"seed {SEED}: nemesis: crash_later failed: RuntimeError: crashed")


async def count_what_no_census_knows(self: Nemesis) -> None:
    self._world.faults.count("not_in_faults")


def test_an_action_that_counts_a_fault_of_no_census_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "ACTIONS", ((count_what_no_census_knows, 1.0, 1.0),))
    assert "failed: KeyError: 'not_in_faults'" in run(SEED).failure


def test_the_watch_of_what_a_quorum_holds_fails_the_seed_when_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "quorum_holds", crash)
    assert run(SEED).failure.startswith(f"seed {SEED}: watch failed: RuntimeError: crashed")


def test_a_clean_stop_that_raises_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule.Schedule, "_stop_now_and_then", crash_later)
    assert run(SEED).failure.startswith(f"seed {SEED}: stops failed: RuntimeError: crashed")


def test_a_clock_that_can_t_be_set_wrong_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClockFaults, "_wrong_for_a_while", crash_later)
    assert run(CLOCKS_SEED).failure.startswith(f"seed {CLOCKS_SEED}: a wrong clock failed: RuntimeError: crashed")


def test_a_look_at_players_that_raises_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeliveryCheck, "look_at_health", crash)
    assert run(DELIVERY_SEED).failure.startswith(f"seed {DELIVERY_SEED}: watch of players failed: RuntimeError")


def test_a_fault_of_delivery_that_raises_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "_DEEDS", (crash_later,))
    assert run(DELIVERY_SEED).failure.startswith(f"seed {DELIVERY_SEED}: delivery: crash_later failed: RuntimeError")
