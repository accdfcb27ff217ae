"""Run simulated schedules, one per seed, and print which seeds failed and which faults took effect."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from polonaise_proving.mutations import known

if TYPE_CHECKING:
    from polonaise_proving.scenarios.schedule import Result

_CENSUS_SEEDS_MIN: Final = 200
"""The least number of seeds in a run for which a class of faults that never took effect is a failure of the run."""
_PROGRESS_S: Final = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for, and return the exit status.

    It is 1 if a seed failed, or if a class of faults never took effect in `_CENSUS_SEEDS_MIN` seeds or more; else 0.
    """
    # The nodes log every fault that is inflicted on them; what counts is what the checks find.
    logging.disable(logging.CRITICAL)
    options = _options().parse_args(arguments)
    if options.list_mutations:
        for name, mutation in known.MUTATIONS.items():
            _say(f"{name:38} {mutation.breaks}")
        return 0
    # Before a schedule runs, traced or not: that loads the code which the mutation changes.
    if options.mutation:
        known.put_in(options.mutation)
    if options.trace is not None:
        return _trace(options.trace)
    seeds = range(options.start, options.start + options.seeds)
    results = _run_all(seeds, options.jobs)
    return _report(results, len(seeds), options.mutation, stop_at_first=options.first)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m polonaise_proving.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many schedules")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--mutation", help="a mutation to run with; see --list-mutations")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--first", action="store_true", help="stop at the first failing seed")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run this seed alone and print all that happened")
    parser.add_argument("--list-mutations", action="store_true", help="name the mutations")
    return parser


def _run_all(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    """Run the schedules in `jobs` processes and yield their results in the order in which they end."""
    from polonaise_proving.scenarios.schedule import (
        run,  # after the mutation is in: this loads the code that it changes
    )

    gc.freeze()  # what is loaded stays for good: no schedule's collections need look at it
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, seeds)


def _report(results: Iterator[Result], total: int, mutation: str | None, *, stop_at_first: bool) -> int:
    faults: Counter[str] = Counter()
    failed: list[Result] = []
    done = appends = committed = 0
    began = shown = time.monotonic()
    virtual_s = 0.0
    for result in results:
        done += 1
        appends += result.appends
        committed += result.committed
        virtual_s += result.virtual_s
        faults.update(result.faults)
        if result.failure:
            failed.append(result)
            _say(f"\nseed {result.seed}: {result.failure}\n  again: {_command(result.seed, mutation)}")
            if stop_at_first:
                break
        if time.monotonic() - shown > _PROGRESS_S:
            shown = time.monotonic()
            _say(f"{done} of {total} seeds, {done / (shown - began):.1f} seeds/s, {len(failed)} failed")
    elapsed = time.monotonic() - began
    _say(f"\n{done} seeds in {elapsed:.1f} s ({done / elapsed:.1f} seeds/s), {virtual_s:.0f} virtual seconds")
    _say(f"{appends} appends tried, {committed} transactions committed")
    _say("faults that took effect:")
    for name, times in faults.items():
        _say(f"  {name:24} {times}")
    missing = [name for name, times in faults.items() if not times]
    if missing and done >= _CENSUS_SEEDS_MIN:
        _say(f"these faults never occurred, so nothing was shown about them: {', '.join(missing)}")
    if failed:
        _say(f"FAILED seeds: {', '.join(str(result.seed) for result in sorted(failed, key=lambda r: r.seed))}")
    return 1 if failed or (missing and done >= _CENSUS_SEEDS_MIN) else 0


def _trace(seed: int) -> int:
    from polonaise_proving.scenarios.schedule import run

    result = run(seed, record=True)
    for line in result.trace:
        _say(line)
    _say(f"fingerprint {result.fingerprint}\n{result.failure or 'every promise held'}")
    return 1 if result.failure else 0


def _command(seed: int, mutation: str | None) -> str:
    return f"python -m polonaise_proving.simulator --seeds 1 --start {seed}" + (
        f" --mutation {mutation}" if mutation else ""
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
