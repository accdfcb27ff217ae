"""Write local paths as Spark expects them: unescaped to write to, and with wildcard characters escaped to read from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PATTERN: Final = re.compile(r"([\\{}\[\]*?])")


def written_to(path: Path) -> str:
    """Return a local path for `DataFrameWriter`."""
    return f"file://{path}"


def read_from(path: Path) -> str:
    """Return a local path for `DataFrameReader`, with wildcard characters escaped."""
    return "file://" + _PATTERN.sub(r"\\\1", str(path))
