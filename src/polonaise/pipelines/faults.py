"""What Spark says went wrong, as errors of ours."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from polonaise.errors import PolonaiseError, SparkFailed, error_of

_OURS: Final = re.compile(r"^polonaise\.errors\.\w+: \[(\w+)\] (.*)$", re.MULTILINE)
"""The last line of a traceback in a task."""
_JAVAS: Final = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
"""What was raised in Java, behind the line that says which call it was."""
_JAVA_ENDED: Final = "JAVA_GATEWAY_EXITED"

SPARKS: Final = (PySparkException, Py4JError)
"""What Spark raises; the second where it could not even start, and nobody translates what Java raises."""


def translated(error: PySparkException | Py4JError) -> PolonaiseError:
    """What a task of ours raised, as what it was; what Spark itself has to say, in its first line."""
    said = str(error)
    if found := _OURS.findall(said):
        code, text = found[-1]
        return error_of(code, text.strip())
    if isinstance(error, Py4JError) and (raised := _JAVAS.search(said)):
        return SparkFailed(raised[1].strip())
    if isinstance(error, PySparkException) and error.getCondition() == _JAVA_ENDED:
        return SparkFailed("Spark's Java has ended as it began, and said why on stderr: correct the settings of Spark")
    return SparkFailed(next((line for line in said.splitlines() if line.strip()), type(error).__name__).strip())
