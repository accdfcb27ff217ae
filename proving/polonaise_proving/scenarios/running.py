"""How a campaign runs: its options, where its files are, its bar, its end, and the tables of what it did.

However it ends, its processes end with it; one that hangs is ended, and says where.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, Protocol

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import polonaise
import polonaise_proving
from polonaise.errors import ExtraMissing, JavaMissing
from polonaise_proving.mutations.children import loads_in, put_into_children
from polonaise_proving.mutations.known import LISTS_MUTATIONS, MUTATIONS, find
from polonaise_proving.mutations.mutation import MutationDoesNotApply
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.scenarios.arguments import STATUSES, Status, whole_number
from polonaise_proving.stages.processes import end_as_by_control_c
from polonaise_proving.stages.scratch import scratch
from polonaise_proving.stages.watchdog import watched

SOURCES: Final = os.pathsep.join(
    str(Path(file).parents[1]) for file in (polonaise.__file__, polonaise_proving.__file__)
)
"""The PYTHONPATH of processes: they run the code that this process runs, wherever that is installed."""

PACKAGE: Final = "polonaise_proving.scenarios"
HANGS_S: Final = 1_800.0
"""Seconds without progress after which a campaign hangs: longer than all the time limits within one of its steps."""
_AGAIN_S: Final = 300.0
"""Seconds after which a campaign that hangs is ended again, in case something has kept that to itself."""


def options(module: str, make: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the command-line options that every campaign takes.

    `module` is the campaign's, and `make` how `make` runs it, with what it takes.
    """
    epilog = f"By make: {make}. {STATUSES}"
    parser = argparse.ArgumentParser(prog=f"python -m {PACKAGE}.{module}", description=description, epilog=epilog)
    parser.add_argument("--seed", type=whole_number, default=1, help="of the moments and the victims")
    parser.add_argument(
        "--mutation",
        default="",
        type=_mutation,
        metavar="NAME",
        help=f"a mutation that all processes of the campaign run with, and that it has to find (exit status "
        f"{Status.WRONG:d}): {LISTS_MUTATIONS} names them",
    )
    parser.add_argument(
        "--keep", type=_new_directory, help="a new directory that keeps the log, the journals and what was logged"
    )
    return parser


def _mutation(name: str) -> str:
    """Return the name of a mutation, or "" for none. Raises `ArgumentTypeError` if there is none of that name."""
    try:
        if name:
            find(name)
    except MutationDoesNotApply as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def _new_directory(text: str) -> Path:
    """Return the path of a directory that is not there. Raises `ArgumentTypeError` if something is."""
    if os.path.lexists(text):
        raise argparse.ArgumentTypeError(f"{text} is there already: name a new directory")
    return Path(text)


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return what the command line says, and make the directory that it names; anything wrong ends this process."""
    given = parser.parse_args()
    if given.keep is not None:
        try:
            given.keep.mkdir(parents=True)
            try:
                (given.keep / "probe").write_text("can be written\n")
                (given.keep / "probe").unlink()
            except OSError:
                given.keep.rmdir()
                raise
        except OSError as error:
            parser.error(
                f"argument --keep: {given.keep} can't be made and written: {error.strerror}: name a new directory on a "
                "disk with room, where you may write"
            )
    return given


@contextlib.contextmanager
def directory(keep: Path | None) -> Iterator[Path]:
    """Give the campaign's directory: the given one, which is kept, or, if None, one that is removed at the end."""
    if keep is not None:
        yield keep.resolve()
        return
    with scratch() as made:
        yield made


_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP end the block, and do afterwards what they did before."""
    handlers = {each: signal.getsignal(each) for each in _ENDING}
    end_as_by_control_c()
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _nothing_breaks_off_what_follows() -> Iterator[None]:
    """Ignore Ctrl-C and its like after the block: who presses it again is not to be left with half of a clean-up."""
    try:
        yield
    finally:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)


@contextlib.contextmanager
def ended_if_hanging() -> Iterator[Callable[[], None]]:
    """Raise `GaveUp` in the block, which runs in the main thread, `HANGS_S` after it has called what is yielded.

    In a test that has a limit of its own, which takes the same timer, that one holds.
    """

    def hangs(_: int, frame: FrameType | None) -> None:
        at = [each for each in traceback.extract_stack(frame) if "polonaise" in each.filename][-1]
        raise GaveUp(f"it hangs: no progress for {HANGS_S:g} s, at {at.filename}:{at.lineno} in {at.name}")

    def progressed() -> None:
        signal.setitimer(signal.ITIMER_REAL, HANGS_S, _AGAIN_S)

    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield lambda: None
        return
    signal.signal(signal.SIGALRM, hangs)
    progressed()
    try:
        yield progressed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def never_loaded(mutation: str) -> str:
    """Return what to tell of a mutation that no process has loaded."""
    return (
        f"no process has loaded {MUTATIONS[mutation].module}, which {mutation} changes: this run says nothing of it, "
        "so name a mutation of code that it runs"
    )


class CampaignReport(Protocol):
    """What a campaign did, and what it found."""

    @property
    def wrong(self) -> Sequence[str]:
        """A text for each mistake."""
        ...

    def figures(self) -> Sequence[Figures]:
        """Return tables of what was done."""
        ...


class Figures(NamedTuple):
    """A table of what a campaign did."""

    title: str
    rows: Mapping[str, int | str | Sequence[str]]
    """By label: a figure, or the cells of a row."""
    header: Sequence[str] = ("what", "figure")

    def table(self) -> Table:
        """Return the figures as a table of text."""
        table = Table(*self.header, title=self.title)
        for name, row in self.rows.items():
            cells = [row] if isinstance(row, str) else [f"{row:,}"] if isinstance(row, int) else row
            table.add_row(name, *cells)
        return table


Progressed = Callable[[float], None]
"""Called with how much of a campaign is done."""


@_ended_by_signals()
def carry_out(
    options: argparse.Namespace,
    total: float,
    unit: str,
    campaign: Callable[[Path, Progressed], CampaignReport],
    planted: str = "",
) -> int:
    """Run a campaign under a bar that ends at `total`, and print what it did and the first mistakes.

    No process of it outlives it. Returns a `Status`: `INTERRUPTED` after Ctrl-C or SIGTERM, once all is cleared up, and
    how many of `unit` were done is told. `planted` says what else than a mutation has to be found.
    """
    console = Console()
    reached, loads = 0.0, 0

    def verdict(status: Status) -> Status:
        """Return the status of a campaign that ran, after saying what it does not show of what was planted."""
        if options.mutation and not loads:
            console.print(f"[red]nothing was tried:[/] {never_loaded(options.mutation)}", soft_wrap=True)
            return status or Status.UNTRIED
        if (planted or options.mutation) and not status:
            console.print(f"[red]not found:[/] {planted or options.mutation}", soft_wrap=True)
            return Status.NOT_FOUND
        return status

    try:
        with (
            ended_if_hanging() as goes_on,
            directory(options.keep) as where,
            watched(where.name if options.keep is None else ""),
            put_into_children(options.mutation, where / "mutated"),
            Progress(console=console) as progress,
            _nothing_breaks_off_what_follows(),
        ):
            bar = progress.add_task("campaign", total=total)

            def progressed(done: float) -> None:
                nonlocal reached
                goes_on()
                reached = done
                progress.update(bar, completed=done)

            try:
                report = campaign(where, progressed)
            finally:
                loads = loads_in(where / "mutated")
    except (ExtraMissing, JavaMissing) as error:
        sys.stderr.write(f"nothing could be tried: {error}\n")
        return Status.UNTRIED
    except GaveUp as error:
        console.print(f"[red]gave up after {reached:.0f} of {total:.0f} {unit}:[/] {error}", soft_wrap=True)
        return verdict(Status.WRONG)
    except KeyboardInterrupt:
        console.print(f"[red]interrupted after {reached:.0f} of {total:.0f} {unit}:[/] no verdict", soft_wrap=True)
        return Status.INTERRUPTED
    for each in report.figures():
        console.print(each.table())
    for mistake in report.wrong[:20]:
        console.print(f"[red]wrong:[/] {mistake}", soft_wrap=True)
    return verdict(Status.WRONG if report.wrong else Status.HELD)
