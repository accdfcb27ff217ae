"""Common parts of all benchmarks: the command line, tables in Markdown, and the place on a page of `docs/`."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"


def arguments(description: str | None, **defaults: float | str) -> argparse.Namespace:
    """Read the command line: an option of its type for each default, a flag for each that is False, and `--write`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--write", action="store_true", help="write the figures into their page of docs/")
    return parser.parse_args()


def command(benchmark: str, **options: float | str) -> str:
    """Return the command that makes the figures, and what machine it ran on. True stands for a flag, False for none."""
    return f"`python benchmarks/{benchmark} {words(**options)} --write` {machine()}"


def words(**options: float | str) -> str:
    """Return options as they stand on a command line."""
    return " ".join(_option(name, value) for name, value in options.items() if value is not False)


def _option(name: str, value: float | str) -> str:
    if value is True:
        return f"--{name}"
    return f"--{name} {value:g}" if isinstance(value, float) else f"--{name} {value}"


def machine() -> str:
    return f"on {os.cpu_count()} cores, Python {platform.python_version()}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table whose first column has names, and the others figures."""
    return [row(header), "| --- |" + " ---: |" * (len(header) - 1), *map(row, rows)]


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write_figures(benchmark: str, lines: Sequence[str], document: Path = DOCUMENT) -> None:
    """Replace the figures that the benchmark of this name wrote on the page before.

    Raises ValueError, and writes nothing, where the page does not have both marks.
    """
    begin, end = (f"<!-- benchmarks/{benchmark}: {mark} -->" for mark in ("begin", "end"))
    before, found_begin, following = document.read_text().partition(begin)
    _, found_end, after = following.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{document} has no {begin} with {end} after it")
    document.write_text(before + "\n".join([begin, *lines, end]) + after)
