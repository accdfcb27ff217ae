"""Local paths as Spark expects them: nothing is escaped, but when reading, some characters are patterns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PATTERN: Final = re.compile(r"([\\{}\[\]*?])")


def written_to(path: Path) -> str:
    """Return a local path for `DataFrameWriter`."""
    return f"file://{path}"


def read_from(path: Path) -> str:
    """Return a local path for `DataFrameReader`, with the characters of patterns escaped."""
    return "file://" + _PATTERN.sub(r"\\\1", str(path))
