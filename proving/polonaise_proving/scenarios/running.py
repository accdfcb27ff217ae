"""How a campaign runs: its options, where its files are, and the table of what it did."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

import polonaise
import polonaise_proving
from polonaise_proving.mutations.known import MUTATIONS

SOURCES: Final = os.pathsep.join(
    str(Path(file).parents[1]) for file in (polonaise.__file__, polonaise_proving.__file__)
)
"""The PYTHONPATH of processes: they run the code that this process runs, wherever that is installed."""


def options(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the command-line options that every campaign takes."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the victims")
    add_mutation(parser)
    parser.add_argument(
        "--keep", type=Path, help="a new directory that keeps the log, the journals and what was logged"
    )
    return parser


def add_mutation(parser: argparse.ArgumentParser) -> None:
    """Add the option `--mutation` to the parser of a campaign, whose processes then have it."""
    parser.add_argument(
        "--mutation",
        default="",
        choices=["", *MUTATIONS],
        metavar="NAME",
        help="a mutation that all processes of the campaign run with, and that it has to find: "
        "`python -m polonaise_proving.simulator --list-mutations` names them",
    )


@contextlib.contextmanager
def directory(keep: Path | None) -> Iterator[Path]:
    """Make the campaign's directory: the given one, which is kept, or, if None, one that is removed at the end."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="polonaise-campaign-") as scratch:
        yield Path(scratch)


def table(title: str, figures: Mapping[str, int | str]) -> Table:
    """Return a text table of figures, each with its label."""
    rows = Table("what", "figure", title=title)
    for name, figure in figures.items():
        rows.add_row(name, figure if isinstance(figure, str) else f"{figure:,}")
    return rows


def print_wrong(console: Console, wrong: list[str]) -> int:
    """Print the first mistakes. Return the exit status: 1 if a mistake was found, else 0."""
    for each in wrong[:20]:
        console.print(f"[red]wrong:[/] {each}", soft_wrap=True)
    return int(bool(wrong))
