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
"""Optional in JSON, given by `extra` where they are known."""


class LogFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


class TextLines(logging.Formatter):
    """Log lines for people; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class JsonLines(logging.Formatter):
    """Log lines as JSON objects: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `exception`, known `FIELDS`."""

    def format(self, record: logging.LogRecord) -> str:
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
    """Write this process's log to a stream (None: standard error): warnings, errors, and if `verbose` what it does."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else TextLines())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
