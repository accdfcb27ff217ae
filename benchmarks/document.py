"""Where figures go: `docs/performance.md`, between the marks of the benchmark that measured them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"


def write_figures(benchmark: str, lines: Sequence[str]) -> None:
    """Replace what a benchmark, by the name of its file, has written there before."""
    begin, end = (f"<!-- benchmarks/{benchmark}: {mark} -->" for mark in ("begin", "end"))
    before, _, rest = DOCUMENT.read_text().partition(begin)
    _, _, after = rest.partition(end)
    DOCUMENT.write_text(before + "\n".join([begin, *lines, end]) + after)
