"""A mistake of the proving ground fails the seed, and is told as one: else all that it hides would count as held."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polonaise_proving.faults import nemesis
from polonaise_proving.faults.clockfaults import ClockFaults
from polonaise_proving.faults.nemesis import Nemesis
from polonaise_proving.judges.deliverycheck import DeliveryCheck
from polonaise_proving.record.observations import History, Kind
from polonaise_proving.scenarios import delivering, schedule
from polonaise_proving.scenarios.schedule import run
from polonaise_proving.stages.simulated import ProcessFailed, World
from polonaise_proving.stages.simulated.cluster import Cluster
from polonaise_proving.stages.simulated.network import SimulatedNetwork
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from polonaise_proving.stages.simulated.observer import Observer
from polonaise_proving.work import workload
from polonaise_proving.work.workload import ClientLife
from rigs.scenarios import idle, in_a_world

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


# ------------------------------------------------------------------ steps


def test_a_step_that_crashes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "MOVE", SimpleNamespace(pack=crash))
    failure = run(SEED).failure
    assert "failed: RuntimeError: crashed (test_crashes_are_heard.py:" in failure
    assert "workload.take_step:" in failure
    assert "workload.transfer:" in failure


def test_nothing_is_printed_of_the_process_whose_step_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    steps = count()

    async def crash_later_on(session: ClientLife, partition: int) -> None:
        if next(steps) > 2:  # when its client has something to close
            crash()

    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    monkeypatch.setattr(schedule, "STEPS", tuple((crash_later_on, 1) for _ in workload.STEPS))
    assert "crashed" in run(SEED).failure
    gc.collect()
    assert heard == []


async def forget_what_became_of_it(session: ClientLife, partition: int) -> None:
    session.invoke(partition, Kind.PLAIN, [b""])


def test_a_step_that_never_notes_what_became_of_its_append_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "STEPS", ((forget_what_became_of_it, 1),))
    failure = run(SEED).failure
    assert failure.startswith("P6 fate: expected the fate of try ")
    assert "the step that made it has not noted it" in failure


# ------------------------------------------------------------------ faults that nobody ended


def test_a_fault_that_heal_forgets_is_named_and_production_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "ACTIONS", ((Nemesis.partition, 1.0, 1.0),))
    monkeypatch.setattr(SimulatedNetwork, "heal", lambda *_: None)
    failure = run(SEED).failure
    assert failure.startswith("every fault was to end, and these are still in force: ")
    assert " is cut" in failure


FAULTS: dict[str, tuple[Callable[[World], object], Callable[[World], object]]] = {
    "a->b is cut": (lambda world: world.network.partition("a", "b", both=False), lambda world: world.network.heal()),
    "a->b lets nothing of more than 9 bytes pass": (
        lambda world: world.network.black_hole("a", "b", 9),
        lambda world: world.network.heal(),
    ),
    "a->b takes 0.5 s longer, b->a takes 0.5 s longer": (
        lambda world: world.network.delay("a", "b", 0.5),
        lambda world: world.network.delay("a", "b", 0.0),
    ),
    "the disk of a is to fail the next sync": (
        lambda world: world.machine("a").disk.fail_syncs(),
        lambda world: world.machine("a").disk.mend(),
    ),
    "the disk of a fails every read": (
        lambda world: world.machine("a").disk.fail_reads(None),
        lambda world: world.machine("a").disk.mend(),
    ),
    "the disk of a has no room for more than 7 bytes": (
        lambda world: world.machine("a").disk.fill(7),
        lambda world: world.machine("a").disk.free(),
    ),
    "the disk of a takes 0.25 s longer": (
        lambda world: world.machine("a").disk.slow(0.25),
        lambda world: world.machine("a").disk.slow(0.0),
    ),
    "a/1 is paused": (
        lambda world: world.machine("a").processes[0].pause(),
        lambda world: world.machine("a").processes[0].resume(),
    ),
    "a/1 is to crash at its call 3": (
        lambda world: setattr(world.machine("a").processes[0], "crash_on_call", 3),
        lambda world: setattr(world.machine("a").processes[0], "crash_on_call", None),
    ),
}


@pytest.mark.parametrize("told", FAULTS)
@in_a_world
async def test_a_stage_tells_which_faults_are_in_force_until_they_end(world: World, *, told: str) -> None:
    inflict, end = FAULTS[told]
    world.machine("b")
    world.machine("a").start(idle)
    assert world.faults_in_force() == []
    inflict(world)
    assert ", ".join(world.faults_in_force()) == told
    end(world)
    assert world.faults_in_force() == []


@in_a_world
async def test_a_store_tells_which_faults_are_in_force(world: World) -> None:
    store = SimulatedStore(world)
    store.put_now("one", b"1")
    store.away = store.unmounted = True
    store.damage()
    assert world.faults_in_force() == [
        "the store answers nobody", "the store is unmounted", "one in the store is damaged",
    ]  # fmt: skip
    store.away = store.unmounted = False
    store.restore()
    assert world.faults_in_force() == []


def test_a_cluster_tells_which_faults_are_in_force() -> None:
    made = schedule.Schedule(SEED)
    cluster: Cluster = made.cluster
    held, cut, away = cluster.nodes[:3]
    held.hold_down()
    cluster.cut_off.add(cut.name)
    away.away_since = 1.0
    cluster.service.configuration = replace(cluster.knobs.coordinator, unavailable_chance=0.2)
    assert made.world.faults_in_force() == [
        f"{held.name} is held down",
        f"{cut.name} is cut off from the coordinator",
        f"{away.name} counts as away at the coordinator",
        "the coordinator is in trouble",
    ]
    made.world.loop.close()


def test_what_does_not_settle_is_told_with_the_faults_that_are_in_force_on_purpose() -> None:
    cluster = SimpleNamespace(
        knobs=SimpleNamespace(partitions=1),
        owners={},
        partition_values=list,
        world=SimpleNamespace(faults_in_force=lambda: ["a->b is cut"]),
    )
    assert Observer(cast(Any, cluster), History(1), {}).described() == "meanwhile a->b is cut"
