"""Whole clusters under faults: every promise holds, for seeds that once failed and for seeds never seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from simulation_seeds import Kept, fresh, kept, kept_in

from polonaise_proving.scenarios.schedule import run
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
@pytest.mark.parametrize(("seed", "later"), [pytest.param(*each, id=str(each.seed)) for each in kept()])
def test_a_seed_that_once_failed_holds(seed: int, later: int) -> None:
    assert run(seed, later=later).failure == ""


def test_a_kept_seed_says_how_many_later_features_it_has() -> None:
    assert kept_in("4711 later=2 a link that carried nothing large stopped a partition") == Kept(4711, 2)
    assert kept_in("31290 the same as 619416516") == Kept(31290, 0)


@pytest.mark.parametrize("number", range(FRESH_QUICK))
def test_a_few_fresh_seeds_hold(number: int) -> None:
    seed = fresh() + number
    assert run(seed).failure == "", f"seed {seed}"


@pytest.mark.slow
def test_many_fresh_seeds_hold_and_meet_every_fault() -> None:
    which = ("--seeds", FRESH_SLOW, "--start", fresh() + FRESH_QUICK)
    done = run_python("-m", "polonaise_proving.simulator", *which, within_s=None)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_a_seed_is_one_history_whatever_the_hash_seed_of_python() -> None:
    histories = [
        output_of(run_python("-c", PRINT_FINGERPRINTS, environment={"PYTHONHASHSEED": hash_seed}, within_s=None))
        for hash_seed in ("1", "2")
    ]
    assert histories[0] == histories[1]
    assert histories[0].count("\n") == 3
