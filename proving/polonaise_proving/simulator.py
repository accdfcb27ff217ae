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
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

from polonaise_proving.mutations import known
from polonaise_proving.mutations.mutation import MutationDoesNotApply
from polonaise_proving.scenarios.arguments import at_least_one, whole

if TYPE_CHECKING:
    from polonaise_proving.scenarios.schedule import Result

_CENSUS_SEEDS_MIN: Final = 200
"""The least number of seeds in a run for which a class of faults that never took effect is a failure of the run."""
_SEEDS: Final = 200
_JOBS: Final = 2
_PROGRESS_S: Final = 5.0
_REFUSED: Final = 2
_INTERRUPTED: Final = 130
_UNREAD: Final = 141
"""The exit status when nobody reads what is printed any more, as of a program that SIGPIPE ended."""
_ALONE: Final = {"trace": ("seeds", "start", "seed", "having", "jobs", "first"), "seed": ("seeds", "start")}
"""By option that names seeds itself: those that would be ignored beside it."""
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
    _check_together(parser, options)
    before = signal.signal(signal.SIGTERM, _interrupt)
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
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_: int, __: FrameType | None) -> None:
    """End as by Ctrl-C."""
    raise KeyboardInterrupt


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m polonaise_proving.simulator", description=__doc__)
    parser.add_argument("--seeds", type=at_least_one, help=f"how many schedules (default: {_SEEDS})")
    parser.add_argument("--start", type=whole, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=whole, nargs="+", action="extend", help="these seeds, and no others")
    parser.add_argument(
        "--having", metavar="NAME", help="of all these seeds only those that have this step of clients, or this fault"
    )
    parser.add_argument("--mutation", help="a mutation to run with; see --list-mutations")
    parser.add_argument(
        "--only",
        metavar="FAULT",
        help="have the nemesis do nothing else; what else a seed draws (its network, its disks, clean stops) remains",
    )
    parser.add_argument(
        "--later",
        type=whole,
        metavar="NUMBER",
        help="how many seeds have of the features that were added when there were kept seeds, in that order (default: "
        "all; of the mutation's own seed, those that it was found with)",
    )
    parser.add_argument("--jobs", type=at_least_one, help=f"worker processes (default: {_JOBS})")
    parser.add_argument("--first", action="store_true", default=None, help="stop at the first failing seed")
    parser.add_argument(
        "--trace", type=whole, metavar="SEED", help="run this seed alone and print all that happened and was told"
    )
    parser.add_argument("--list-mutations", action="store_true", help="name the mutations")
    return parser


def _check_together(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with a usage error if some of the options would be ignored beside others."""
    for one, others in _ALONE.items():
        ignored = [each for each in others if getattr(options, each) is not None]
        if getattr(options, one) is not None and ignored:
            parser.error(f"--{one} says which seeds to run: leave out --{' and --'.join(ignored)}")


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
    start = options.start or 0
    seeds = options.seed or range(start, start + (options.seeds or _SEEDS))
    if options.having is not None:
        seeds = _those_having(options.having, seeds, trying)
    return _report(
        _run_all(seeds, options.jobs or _JOBS, trying), len(seeds), trying, stop_at_first=bool(options.first)
    )


def _those_having(name: str, seeds: Iterable[int], trying: _Trying) -> list[int]:
    """Return those seeds that have the step or action of that name. Raises `_Untriable` if there is none."""
    from polonaise_proving.scenarios.schedule import has, named  # after the mutation is in, like `run` below

    if name not in (names := named()):
        raise _Untriable(
            f"no seed has a step or fault {name!r}{known.close_to(name, names)}; some have: {', '.join(names)}"
        )
    if not (having := [seed for seed in seeds if has(seed, name, trying.later_of(seed))]):
        raise _Untriable(f"none of these seeds has {name}: try more of them")
    return having


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

    def say_untried(self, *, loaded: bool, begun: int) -> bool:
        """Say so if the changed code never ran, or the only fault was never begun, and return whether that is so."""
        if not loaded:
            _say(f"{self.module}, which {self.mutation} changes, was never loaded: these seeds say nothing of it")
        if self.only is not None and not begun:
            _say(f"the nemesis never came to {self.only}: these seeds say nothing of it, try more of them")
        return not loaded or (self.only is not None and not begun)


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
    with multiprocessing.get_context("fork").Pool(jobs, _begin_worker) as pool:
        yield from pool.imap_unordered(run, seeds)


def _begin_worker() -> None:
    """Have this worker end when its parent ends it, or is gone, and at nothing else."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_outlive_no_parent, daemon=True).start()


def _outlive_no_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(_INTERRUPTED)


def _report(outcomes: Iterator[_Outcome], total: int, trying: _Trying, *, stop_at_first: bool) -> int:
    faults: Counter[str] = Counter()
    failed: list[Result] = []
    done = appends = committed = 0
    began = shown = time.monotonic()
    virtual_s = 0.0
    begun = 0
    loaded = interrupted = False
    try:
        for result, with_it in outcomes:
            done += 1
            loaded |= with_it
            begun += result.begun
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
    if trying.say_untried(loaded=loaded, begun=begun):
        return _REFUSED
    return int(bool(missing) and done >= _CENSUS_SEEDS_MIN)


def _say_failed(failed: list[Result]) -> None:
    if failed:
        _say(f"FAILED seeds: {', '.join(str(result.seed) for result in sorted(failed, key=lambda r: r.seed))}")


def _trace(seed: int, trying: _Trying) -> int:
    result, loaded = _run(seed, trying, record=True)
    for line in result.trace:
        _say(line)
    _say(f"fingerprint {result.fingerprint}\n{result.failure or 'every promise held'}")
    if result.failure:
        return 1
    return _REFUSED if trying.say_untried(loaded=loaded, begun=result.begun) else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
