"""Which seeds the tests run."""

from __future__ import annotations

import zlib
from pathlib import Path

import polonaise

KEPT = Path(__file__).with_name("kept_seeds.txt")


def kept() -> list[int]:
    """Those that once failed."""
    lines = KEPT.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def fresh() -> int:
    """The first of a range that nobody has run on this code before: it follows from the code itself."""
    total = 0
    for path in sorted(Path(polonaise.__file__).parent.rglob("*.py")):
        total = zlib.crc32(path.read_bytes(), total)
    return 10_000 + total % 10**9
