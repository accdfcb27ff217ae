"""Translate what Spark raises into errors of Polonaise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from polonaise.errors import PolonaiseError, error_of, fault
from polonaise.pipelines.rowtexts import has_row, shown_in_error
from polonaise.redaction import redacted

_OURS: Final = re.compile(
    r"(?:^|\[USER_RAISED_EXCEPTION\] )polonaise\.(?:errors|faults)\.\w+: \[(\w+)\] (.*?)(?: SQLSTATE: \w+)?$",
    re.MULTILINE,
)
"""The last line of a task's traceback that ends with a `PolonaiseError`, or one that a column raises: code and text."""
_JAVAS: Final = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
"""The message of a Java exception, after the line that names the call."""
_JAVA_ENDED: Final = "JAVA_GATEWAY_EXITED"
_PYTHONS: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)
"""A Python traceback in a Spark error; its group is the last line."""
_NO_ANSWER: Final = re.compile(r"Answer from Java side is empty|error while sending or receiving|Connection refused")
"""Messages of Py4J and Spark when Spark's driver is gone."""
_WORKER_GONE: Final = re.compile(
    r"Stream closed|Broken pipe|Connection reset|EOFException|Python worker exited unexpectedly|SIGKILL|exit code: 137"
)
"""Messages of Spark when one of its Python processes was killed and could say nothing itself."""
_AGAIN: Final = (
    "often for want of memory: look for a killed process in the system's log, give it more memory or fewer cores "
    "(--master 'local[2]', --conf spark.driver.memory=4g), and run it again: it goes on from what was committed"
)

SPARKS: Final = (PySparkException, Py4JError)
"""Errors of Spark. Py4J's are raised where nothing translates Java's exceptions."""


@contextmanager
def translating() -> Iterator[None]:
    """Translate what Spark raises inside the `with` statement, by `translated`."""
    try:
        yield
    except SPARKS as error:
        # A row in Spark's own words may have a secret, which a traceback would show.
        raise translated(error) from (None if has_row(str(error)) else error)


def translated(error: PySparkException | Py4JError) -> PolonaiseError:
    """Return the `PolonaiseError` that a task raised; or else a `spark_failed` with what Spark says, in one line."""
    message = str(error)
    if matches := _OURS.findall(message):
        code, text = matches[-1]
        return error_of(code, shown_in_error(text.strip()))
    raised = _JAVAS.search(message) if isinstance(error, Py4JError) else None
    if isinstance(error, PySparkException) and error.getCondition() == _JAVA_ENDED:
        return fault(
            "spark_failed", "Spark's Java ended while it started, and said why on stderr: correct Spark's settings"
        )
    first = next((line for line in message.splitlines() if line.strip()), type(error).__name__).strip()
    words = redacted(raised[1].strip() if raised else first)
    if isinstance(error, Py4JNetworkError) or _NO_ANSWER.search(message):
        return fault("spark_failed", f"Spark's Java process, its driver, is gone ({words}), {_AGAIN}")
    # Before the signs of a killed process: what the user's function raised may read like one of them.
    if matches := _PYTHONS.findall(message):
        return fault("spark_failed", f"{words}: {redacted(matches[-1].strip())}")
    if _WORKER_GONE.search(message):
        return fault(
            "spark_failed", f"a Python process of Spark's, in which it reads the log, is gone ({words}), {_AGAIN}"
        )
    return fault("spark_failed", words)
