"""How a campaign runs: its options, where its files are, its bar, its end, and the tables of what it did.

However it ends, its processes end with it; one that hangs is ended, and says where.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
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
from polonaise_proving.mutations.children import put_into_children
from polonaise_proving.mutations.known import LISTS_MUTATIONS, find
from polonaise_proving.mutations.mutation import MutationDoesNotApply
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.stages.processes import end_as_by_control_c
from polonaise_proving.stages.watchdog import watched

SOURCES: Final = os.pathsep.join(
    str(Path(file).parents[1]) for file in (polonaise.__file__, polonaise_proving.__file__)
)
"""The PYTHONPATH of processes: they run the code that this process runs, wherever that is installed."""

INTERRUPTED: Final = 130
"""The exit status of a campaign that Ctrl-C or SIGTERM has ended."""
HANGS_S: Final = 1_800.0
"""Seconds without progress after which a campaign hangs: longer than all the time limits within one of its steps."""
_AGAIN_S: Final = 300.0
"""Seconds after which a campaign that hangs is ended again, in case something has kept that to itself."""


def options(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the command-line options that every campaign takes."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the victims")
    parser.add_argument(
        "--mutation",
        default="",
        type=_mutation,
        metavar="NAME",
        help=f"a mutation that all processes of the campaign run with, and that it has to find: {LISTS_MUTATIONS} "
        "names them",
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
    """Return the path of a directory that can be made. Raises `ArgumentTypeError` if something is there already."""
    path = Path(text)
    if path.exists():
        raise argparse.ArgumentTypeError(f"{text} is there already: name a new directory")
    return path


@contextlib.contextmanager
def directory(keep: Path | None) -> Iterator[Path]:
    """Make the campaign's directory: the given one, which is kept, or, if None, one that is removed at the end."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="polonaise-campaign-") as scratch:
        yield Path(scratch)


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


def carry_out(
    options: argparse.Namespace,
    total: float,
    unit: str,
    campaign: Callable[[Path, Progressed], CampaignReport],
) -> int:
    """Run a campaign under a bar that ends at `total`, and print what it did and the first mistakes.

    No process of it outlives it. Returns the exit status: 1 if a mistake was found, or the campaign gave up;
    `INTERRUPTED`, once all is cleared up, after Ctrl-C or SIGTERM, with how many of `unit` were done; else 0.
    """
    console = Console()
    end_as_by_control_c()
    reached = 0.0
    try:
        with (
            ended_if_hanging() as goes_on,
            directory(options.keep) as where,
            watched(),
            put_into_children(options.mutation),
            Progress(console=console) as progress,
        ):
            bar = progress.add_task("campaign", total=total)

            def progressed(done: float) -> None:
                nonlocal reached
                goes_on()
                reached = done
                progress.update(bar, completed=done)

            report = campaign(where, progressed)
    except GaveUp as error:
        console.print(f"[red]gave up after {reached:.0f} of {total:.0f} {unit}:[/] {error}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print(f"[red]interrupted after {reached:.0f} of {total:.0f} {unit}:[/] no verdict", soft_wrap=True)
        return INTERRUPTED
    for each in report.figures():
        console.print(each.table())
    for mistake in report.wrong[:20]:
        console.print(f"[red]wrong:[/] {mistake}", soft_wrap=True)
    return int(bool(report.wrong))
