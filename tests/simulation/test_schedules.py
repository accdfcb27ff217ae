"""Whole clusters under faults: every promise holds, for seeds that once failed and for seeds never seen."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from simulation_seeds import fresh, kept

from polonaise.simulator.schedule import run

FRESH_QUICK = 5
FRESH_SLOW = 40

PRINT_FINGERPRINTS = """
import logging; logging.disable(logging.CRITICAL)
from polonaise.simulator.schedule import run
for seed in (3, 9, 20): print(seed, run(seed).fingerprint)
"""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("seed", kept())
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    assert run(seed).failure == ""


@pytest.mark.parametrize("number", range(FRESH_QUICK))
def test_a_few_fresh_seeds_hold(number: int) -> None:
    seed = fresh() + number
    assert run(seed).failure == "", f"seed {seed}"


@pytest.mark.slow
def test_many_fresh_seeds_hold_and_meet_every_fault() -> None:
    command = [
        sys.executable,
        "-m",
        "polonaise.simulator",
        "--seeds",
        str(FRESH_SLOW),
        "--start",
        str(fresh() + FRESH_QUICK),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_a_seed_is_one_history_whatever_the_hash_seed_of_python() -> None:
    histories = [
        subprocess.run(
            [sys.executable, "-c", PRINT_FINGERPRINTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert histories[0] == histories[1]
    assert histories[0].count("\n") == 3
