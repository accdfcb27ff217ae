"""Where figures go: a page of `docs/`, between the marks of the benchmark that measured them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"


def write_figures(benchmark: str, lines: Sequence[str], document: Path = DOCUMENT) -> None:
    """Replace what a benchmark, by the name of its file, has written there before.

    Raises ValueError, and writes nothing, where the page does not have both marks.
    """
    begin, end = (f"<!-- benchmarks/{benchmark}: {mark} -->" for mark in ("begin", "end"))
    before, found_begin, rest = document.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{document} has no {begin} with {end} after it")
    document.write_text(before + "\n".join([begin, *lines, end]) + after)
