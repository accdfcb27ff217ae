"""What Spark says went wrong, as errors of ours."""

from __future__ import annotations

import re
from typing import Final

from pyspark.errors import PySparkException

from polonaise.errors import PolonaiseError, SparkFailed, error_of

_OURS: Final = re.compile(r"^polonaise\.errors\.\w+: \[(\w+)\] (.*)$", re.MULTILINE)
"""The last line of a traceback in a task."""


def translated(error: PySparkException) -> PolonaiseError:
    """What a task of ours raised, as what it was; what Spark itself has to say, in its first line."""
    said = str(error)
    if found := _OURS.findall(said):
        code, text = found[-1]
        return error_of(code, text.strip())
    return SparkFailed(next((line for line in said.splitlines() if line.strip()), type(error).__name__).strip())
