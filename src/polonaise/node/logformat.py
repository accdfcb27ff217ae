"""The format of a node's log lines: text for people, or one JSON object a line for programs. Neither shows secrets."""

from __future__ import annotations

import enum
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from polonaise.redaction import redacted

FIELDS: Final = ("partition", "session", "generation", "server", "storage")
"""The fields that a line may have beside its message: those that are known where it is written (`extra`)."""


class LogFormat(enum.StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


class TextLines(logging.Formatter):
    """Lines for people: time, level, who, message; the traceback of a mistake of ours on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text, without secrets."""
        return redacted(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, and those `FIELDS` that are known.

    A traceback is the field `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a JSON object on one line, without secrets."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        line |= {field: value for field in FIELDS if (value := getattr(record, field, None)) is not None}
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(line, default=lambda value: redacted(value))


def log_to(stream: TextIO | None, log_format: LogFormat, *, verbose: bool) -> None:
    """Write the log of this process to a stream, None for standard error: warnings, with `verbose` all that is done."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else TextLines())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
