"""Local paths as Spark takes them: nothing in them is escaped, and where it reads some characters are patterns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PATTERN: Final = re.compile(r"([\\{}\[\]*?])")


def written_to(path: Path) -> str:
    """A local path for `DataFrameWriter`."""
    return f"file://{path}"


def read_from(path: Path) -> str:
    """A local path for `DataFrameReader`: this one, whatever characters it has."""
    return "file://" + _PATTERN.sub(r"\\\1", str(path))
