"""Run simulated schedules, one per seed, and print which seeds failed and which faults took effect."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from polonaise_proving.mutations import known
from polonaise_proving.mutations.mutation import MutationDoesNotApply
from polonaise_proving.scenarios.arguments import at_least_one

if TYPE_CHECKING:
    from polonaise_proving.scenarios.schedule import Result

_CENSUS_SEEDS_MIN: Final = 200
"""The least number of seeds in a run for which a class of faults that never took effect is a failure of the run."""
_PROGRESS_S: Final = 5.0
_REFUSED: Final = 2
_INTERRUPTED: Final = 130
_UNREAD: Final = 141
"""The exit status when nobody reads what is printed any more, as of a program that SIGPIPE ended."""
_TEST_OF_TESTS: Final = "tests/simulation/test_known_mutations.py::test_a_mutation_is_found_by_a_test"


class _Untriable(Exception):
    """What is asked for can't be tried; the text says why, and what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for, and return the exit status.

    It is 1 if a seed failed, or if a class of faults never took effect in `_CENSUS_SEEDS_MIN` seeds or more; 2 if
    nothing could be tried, 130 if the run was interrupted; else 0.
    """
    # The nodes log every fault that is inflicted on them; what counts is what the checks find.
    logging.disable(logging.CRITICAL)
    parser = _options()
    options = parser.parse_args(arguments)
    try:
        return _carry_out(options)
    except (_Untriable, MutationDoesNotApply) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return _REFUSED
    except BrokenPipeError:
        # Else Python complains of the same pipe once more, as it flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _UNREAD
    except KeyboardInterrupt:
        _say("interrupted: no verdict")
        return _INTERRUPTED


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m polonaise_proving.simulator", description=__doc__)
    parser.add_argument("--seeds", type=at_least_one, default=200, help="how many schedules")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--mutation", help="a mutation to run with; see --list-mutations")
    parser.add_argument(
        "--only",
        metavar="FAULT",
        help="have the nemesis do nothing else; what else a seed draws (its network, its disks, clean stops) remains",
    )
    parser.add_argument(
        "--later",
        type=int,
        metavar="NUMBER",
        help="how many seeds have of the features that were added when there were kept seeds, in that order (default: "
        "all; of the mutation's own seed, those that it was found with)",
    )
    parser.add_argument("--jobs", type=at_least_one, default=2, help="worker processes")
    parser.add_argument("--first", action="store_true", help="stop at the first failing seed")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run this seed alone and print all that happened")
    parser.add_argument("--list-mutations", action="store_true", help="name the mutations")
    return parser


def _carry_out(options: argparse.Namespace) -> int:
    if options.list_mutations:
        for name, mutation in known.MUTATIONS.items():
            _say(f"{name:38} {mutation.breaks}")
        return 0
    # Before a schedule runs, traced or not: that loads the code which the mutation changes.
    if options.mutation is not None:
        _put_in(options.mutation)
    if options.only is not None:
        _check_action(options.only)
    if options.later is not None:
        _check_later(options.later)
    trying = _Trying(options.mutation, options.only, options.later)
    if options.trace is not None:
        return _trace(options.trace, trying)
    seeds = range(options.start, options.start + options.seeds)
    return _report(_run_all(seeds, options.jobs, trying), len(seeds), trying, stop_at_first=options.first)


def _put_in(name: str) -> None:
    """Put the mutation in. Raises `MutationDoesNotApply`, and `_Untriable` if no schedule finds it."""
    mutation = known.find(name)
    if mutation.model and not mutation.is_for_schedules:
        raise _Untriable(f"no schedule finds {name}, but a model does: {_python()} -m pytest tests -k '{name}'")
    if mutation.test is not None:
        command = f"{_python()} -m pytest {shlex.quote(f'{_TEST_OF_TESTS}[{name}]')}"
        raise _Untriable(f"no schedule finds {name}, but this test does: {mutation.test}. To see that: {command}")
    known.put_in(name)


def _check_action(name: str) -> None:
    """Raise `_Untriable` if the nemesis has no action of that name."""
    from polonaise_proving.faults.nemesis import action_names  # after the mutation is in, like `run` below

    names = action_names()
    if name not in names:
        raise _Untriable(f"the nemesis has no action {name!r}{known.close_to(name, names)}; it has: {', '.join(names)}")


def _check_later(number: int) -> None:
    """Raise `_Untriable` if there are not as many later features."""
    from polonaise_proving.scenarios.schedule import LATER_FEATURES  # after the mutation is in, like `run` below

    if not 0 <= number <= LATER_FEATURES:
        raise _Untriable(f"--later {number}: there are {LATER_FEATURES} later features; say a number from 0 to that")


class _Trying(NamedTuple):
    """What is tried with every seed."""

    mutation: str | None = None
    only: str | None = None
    later: int | None = None
    """The number of later features that was asked for."""

    def later_of(self, seed: int) -> int:
        """Return the number of later features that a seed has."""
        from polonaise_proving.scenarios.schedule import LATER_FEATURES  # after the mutation is in, like `run` below

        if self.later is not None:
            return self.later
        mutation = known.MUTATIONS[self.mutation] if self.mutation is not None else None
        return mutation.later if mutation is not None and mutation.seed == seed else LATER_FEATURES

    @property
    def module(self) -> str | None:
        """The module that the mutation changes."""
        return None if self.mutation is None else known.MUTATIONS[self.mutation].module

    def command(self, seed: int) -> str:
        """Return the command that runs a seed again, for a shell in this directory, also when there is more later."""
        given = {"--later": self.later_of(seed), "--mutation": self.mutation, "--only": self.only}
        more = "".join(f" {option} {value}" for option, value in given.items() if value is not None)
        return f"{_python()} -m polonaise_proving.simulator --seeds 1 --start {seed}{more}"

    def say_untried(self) -> int:
        """Say that the changed code never ran, and return the exit status."""
        _say(f"{self.module}, which {self.mutation} changes, was never loaded: these seeds say nothing of it")
        return _REFUSED


def _python() -> str:
    """Return the Python that runs this, as a shell in this directory finds it."""
    here = Path.cwd()
    python = Path(sys.executable)
    return shlex.quote(str(python.relative_to(here) if python.is_relative_to(here) else python))


class _Outcome(NamedTuple):
    """The result of one seed, and whether the module was loaded that the mutation changes; true without one."""

    result: Result
    loaded: bool


def _run(seed: int, trying: _Trying, *, record: bool = False) -> _Outcome:
    from polonaise_proving.scenarios.schedule import (
        run,  # after the mutation is in: this loads the code that it changes
    )

    result = run(seed, record=record, only=trying.only, later=trying.later_of(seed))
    return _Outcome(result, trying.module is None or trying.module in sys.modules)


def _run_all(seeds: Iterable[int], jobs: int, trying: _Trying) -> Iterator[_Outcome]:
    """Run the schedules in `jobs` processes and yield what comes of them in the order in which they end."""
    import polonaise_proving.scenarios.schedule  # noqa: F401 - here, and not in each process; see `_run`

    gc.freeze()  # what is loaded stays for good: no schedule's collections need look at it
    run = partial(_run, trying=trying)
    if jobs == 1:
        yield from map(run, seeds)
        return
    # Ctrl-C is for this process, which ends the others.
    with multiprocessing.get_context("fork").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(run, seeds)


def _report(outcomes: Iterator[_Outcome], total: int, trying: _Trying, *, stop_at_first: bool) -> int:
    faults: Counter[str] = Counter()
    failed: list[Result] = []
    done = appends = committed = 0
    began = shown = time.monotonic()
    virtual_s = 0.0
    loaded = interrupted = False
    try:
        for result, with_it in outcomes:
            done += 1
            loaded |= with_it
            appends += result.appends
            committed += result.committed
            virtual_s += result.virtual_s
            faults.update(result.faults)
            if result.failure:
                failed.append(result)
                _say(f"\nseed {result.seed}: {result.failure}\n  again: {trying.command(result.seed)}")
                if stop_at_first:
                    break
            if time.monotonic() - shown > _PROGRESS_S:
                shown = time.monotonic()
                _say(f"{done} of {total} seeds, {done / (shown - began):.1f} seeds/s, {len(failed)} failed")
    except KeyboardInterrupt:
        interrupted = True
    elapsed = time.monotonic() - began
    if interrupted:
        _say(f"\ninterrupted after {done} of {total} seeds in {elapsed:.1f} s, {len(failed)} failed")
        _say_failed(failed)
        return _INTERRUPTED
    _say(f"\n{done} seeds in {elapsed:.1f} s ({done / elapsed:.1f} seeds/s), {virtual_s:.0f} virtual seconds")
    _say(f"{appends} appends tried, {committed} transactions committed")
    _say("faults that took effect:")
    for name, times in faults.items():
        _say(f"  {name:24} {times}")
    missing = [name for name, times in faults.items() if not times] if trying.only is None else []
    if missing and done >= _CENSUS_SEEDS_MIN:
        _say(f"these faults never occurred, so nothing was shown about them: {', '.join(missing)}")
    _say_failed(failed)
    if failed:
        return 1
    if not loaded:
        return trying.say_untried()
    return int(bool(missing) and done >= _CENSUS_SEEDS_MIN)


def _say_failed(failed: list[Result]) -> None:
    if failed:
        _say(f"FAILED seeds: {', '.join(str(result.seed) for result in sorted(failed, key=lambda r: r.seed))}")


def _trace(seed: int, trying: _Trying) -> int:
    result, loaded = _run(seed, trying, record=True)
    for line in result.trace:
        _say(line)
    _say(f"fingerprint {result.fingerprint}\n{result.failure or 'every promise held'}")
    return 1 if result.failure else (0 if loaded else trying.say_untried())


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
