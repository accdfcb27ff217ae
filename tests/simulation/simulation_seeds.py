"""Which seeds the tests run."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import NamedTuple

import polonaise

KEPT = Path(__file__).with_name("kept_seeds.txt")


class Kept(NamedTuple):
    """A seed that once failed, and how many later features schedules had then."""

    seed: int
    later: int
    of_simulator: bool = False
    """Whether the simulator itself was wrong, and accused code that was right."""


def kept() -> list[Kept]:
    """Those that once failed."""
    lines = [line for line in KEPT.read_text().splitlines() if line and not line.startswith("#")]
    return [kept_in(line) for line in lines]


def kept_in(line: str) -> Kept:
    """The seed of a line, which is followed by `later=NUMBER` unless that is 0, and by what was wrong."""
    seed, later = re.match(r"(\d+)(?: +later=(\d+))? ", line).groups()  # type: ignore[union-attr] # a line that is none
    return Kept(int(seed), int(later or 0), "(the simulator's own)" in line)


def fresh() -> int:
    """The first of a range that nobody has run on this code before: it follows from the code itself."""
    total = 0
    for path in sorted(Path(polonaise.__file__).parent.rglob("*.py")):
        total = zlib.crc32(path.read_bytes(), total)
    return 10_000 + total % 10**9
