"""What Spark says went wrong, as errors of ours."""

from __future__ import annotations

import re
from typing import Final

from pyspark.errors import PySparkException

from polonaise import errors
from polonaise.errors import PolonaiseError, SparkFailed

_OURS: Final = re.compile(r"^polonaise\.errors\.(\w+): \[\w+\] (.*)$", re.MULTILINE)


def translated(error: PySparkException) -> PolonaiseError:
    """What a task of ours raised, as what it was; what Spark itself has to say, in its first line."""
    said = str(error)
    if found := _OURS.findall(said):
        name, text = found[-1]
        kind = getattr(errors, name, PolonaiseError)
        return kind(text.strip()) if issubclass(kind, PolonaiseError) else PolonaiseError(text.strip())
    return SparkFailed(next((line for line in said.splitlines() if line.strip()), type(error).__name__).strip())
