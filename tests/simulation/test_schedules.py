"""Whole clusters under faults: every promise holds, for seeds that once failed and for seeds never seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from simulation_seeds import Kept, fresh, kept, kept_in

from polonaise_proving.record.partitionrecord import Fate
from polonaise_proving.scenarios import schedule
from polonaise_proving.scenarios.schedule import Schedule, run
from rigs.programs import output_of, run_python

FRESH_QUICK = 3
FRESH_SLOW = 40

PRINT_FINGERPRINTS = """
import logging; logging.disable(logging.CRITICAL)
from polonaise_proving.scenarios.schedule import run
for seed in (3, 9, 17): print(seed, run(seed).fingerprint)
"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("each", [each for each in kept() if not each.of_simulator], ids=lambda each: str(each.seed))
def test_a_seed_that_once_failed_holds(each: Kept) -> None:
    assert run(each.seed, later=each.later).failure == ""


@pytest.mark.slow
@pytest.mark.exhaustive(
    "polonaise_proving.stages.simulated", "polonaise_proving.judges", "polonaise_proving.faults",
    "polonaise_proving.scenarios.schedule",
)  # fmt: skip
@pytest.mark.parametrize("each", [each for each in kept() if each.of_simulator], ids=lambda each: str(each.seed))
def test_a_seed_that_the_simulator_once_failed_by_its_own_mistake_holds(each: Kept) -> None:
    assert run(each.seed, later=each.later).failure == ""


def test_a_kept_seed_says_how_many_later_features_it_has() -> None:
    assert kept_in("4711 later=2 a link that carried nothing large stopped a partition") == Kept(4711, 2)
    assert kept_in("31290 the same as 619416516") == Kept(31290, 0)
    assert kept_in("136 # (the simulator's own) replicas went back") == Kept(136, 0, of_simulator=True)


@pytest.mark.parametrize("number", range(FRESH_QUICK))
def test_a_few_fresh_seeds_hold(number: int) -> None:
    seed = fresh() + number
    assert run(seed).failure == "", f"seed {seed}"


@pytest.mark.slow
def test_many_fresh_seeds_hold_and_meet_every_fault() -> None:
    which = ("--seeds", FRESH_SLOW, "--start", fresh() + FRESH_QUICK)
    done = run_python("-m", "polonaise_proving.simulator", *which, within_s=None)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_a_trace_tells_each_try_and_its_fate_and_the_fingerprint_stays_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Schedule] = []

    def make(seed: int, **how: Any) -> Schedule:
        made.append(Schedule(seed, **how))
        return made[-1]

    monkeypatch.setattr(schedule, "Schedule", make)
    traced, plain = run(9, record=True), run(9)
    assert traced.fingerprint == plain.fingerprint
    lines = [line.partition(" told          ")[2] for line in traced.trace]
    tries = made[0].history.tries
    assert len(tries) > 100
    for attempt in tries:
        before = f"try {attempt.number} ({attempt.kind.name} of {attempt.client}, partition {attempt.partition}): "
        told = [line.removeprefix(before) for line in lines if line.startswith(before)]
        assert told[0].startswith("asked")
        assert attempt.fate is Fate.PENDING or str(attempt).removeprefix(before) in told[-1]
    assert "client-0, partition 1: transfer begins" in lines
    assert "client-0, partition 1: transfer ends" in lines


@pytest.mark.slow
def test_a_seed_is_one_history_whatever_the_hash_seed_of_python() -> None:
    histories = [
        output_of(run_python("-c", PRINT_FINGERPRINTS, environment={"PYTHONHASHSEED": hash_seed}, within_s=None))
        for hash_seed in ("1", "2")
    ]
    assert histories[0] == histories[1]
    assert histories[0].count("\n") == 3
