"""What a process asked of the log and what it was told, line by line: written so that a kill loses no line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

OPEN, ASK, ACK, FAIL, UNKNOWN, END = "open", "ask", "ack", "fail", "unknown", "end"
"""The log is open · about to ask for this operation · committed, under this id · not in the log and never will be ·
may be · ended cleanly."""


class Line(NamedTuple):
    """One step of one process."""

    at_s: float
    """The machine's monotonic clock, which all processes share."""
    kind: str
    operation: str
    id: int


class Journal:
    """One life of a process. A line is with the kernel before the step that follows it: only a power loss loses it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, operation: str = "", id: int = -1) -> None:
        os.write(self._descriptor, json.dumps([time.monotonic(), kind, operation, id]).encode() + b"\n")


class Reader:
    """Follows a journal that may still be written to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.lines: list[Line] = []
        self.opened = False
        self.pending: set[str] = set()
        """Operations that were asked for and have no answer yet."""

    def follow(self) -> list[Line]:
        """The whole lines that were written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [Line(*json.loads(line)) for line in whole.splitlines()]
        for line in new:
            if line.kind == ASK:
                self.pending.add(line.operation)
            elif line.kind in (ACK, FAIL, UNKNOWN):
                self.pending.discard(line.operation)
            self.opened |= line.kind == OPEN
        self.lines += new
        return new
