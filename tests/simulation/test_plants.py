"""A test that cannot fail is a defect: every planted bug is found, and the code without any is not accused."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from polonaise.simulator.plants import PLANTS

BUDGET = 500
"""Seeds, from 0, within which each plant has to be found."""

FOUND_BY = {
    "acknowledge-before-sync": 0,
    "quorum-of-one": 1,
    "stale-replica-says-has-not": 240,
    "wiped-replica-says-has-not": 2,
    "damaged-replica-says-has-not": 14,
    "skip-the-fence": 50,
    "fence-not-on-disk": 11,
    "loss-mark-forgotten-after-copy": 91,
    "failed-sync-taken-for-a-loss": 6,
    "fence-and-joined-confused": 2,
    "feed-or-refuse-before-metadata": 89,
    "append-before-metadata": 72,
    "feed-before-commit": 1,
    "truncate-too-far": 2,
    "lock-table-reset-to-zero": 1,
    "count-a-replica-that-is-not-engaged": 0,
    "settle-a-committed-append-as-failed": 2,
    "group-split-over-two-batches": 1,
    "register-change-lost-at-roll": 1,
    "trim-without-looking-whether-it-is-archived": 47,
    "trim-above-confirmed": 13,
    "trim-before-it-is-noted": 11,
    "fragments-ahead-not-checked": 11,
    "store-without-its-mark-believed": 66,
    "wiped-replica-not-filled-from-fragments": 13,
    "rest-of-a-part-left-out": 0,
}
"""The first seed that finds each, when this was written: tried first, because most of the time it still does."""


def search(plant: str, first: int, seeds: int) -> int | None:
    """A seed that finds the plant."""
    command = [sys.executable, "-m", "polonaise.simulator", "--first", "--plant", plant]
    command += ["--start", str(first), "--seeds", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    found = re.search(r"FAILED seeds: (\d+)", done.stdout)
    assert (done.returncode == 1) == (found is not None)
    return int(found[1]) if found else None


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    known = FOUND_BY.get(plant)
    seed = search(plant, known, 1) if known is not None else None
    if seed is None:
        seed = search(plant, 0, BUDGET)
    assert seed is not None, f"{BUDGET} seeds do not find {plant}, which {PLANTS[plant].breaks}"


def test_a_plant_that_the_code_has_outgrown_is_an_error() -> None:
    command = [sys.executable, "-c", ""]
    command[2] = (
        "from polonaise.simulator import plants; "
        "plants.PLANTS['x'] = plants.Plant('polonaise.log.tail', 'no such line', '', ''); "
        "plants.put_in('x'); import polonaise.log.tail"
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "PlantDoesNotTake" in done.stderr


def test_every_plant_takes() -> None:
    source = (
        "from polonaise.simulator import plants; import importlib, sys\n"
        "for name, plant in plants.PLANTS.items():\n"
        "    plants.put_in(name); importlib.import_module(plant.module)\n"
        "    sys.meta_path.pop(0)\n"
        "    for module in [m for m in sys.modules if m.startswith('polonaise.') and 'simulator' not in m]:\n"
        "        del sys.modules[module]\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
