"""What a process asked of the log and what it was told, line by line: written so that a kill loses no line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

OPEN: Final = "open"
"""Kind of a line: the process has opened the log."""
ASK: Final = "ask"
"""Kind of a line: the process is about to ask for this operation."""
ACK: Final = "ack"
"""Kind of a line: the operation is in the log, under this id."""
FAIL: Final = "fail"
"""Kind of a line: the operation is not in the log, and never will be."""
UNKNOWN: Final = "unknown"
"""Kind of a line: the operation may be in the log or not."""
WRONG: Final = "wrong"
"""Kind of a line: a read gave something wrong; the field `operation` says what."""
TASKS: Final = "tasks"
"""Kind of a line: the number of tasks in the process's event loop, in the field `id`."""
END: Final = "end"
"""Kind of a line: the process ended cleanly."""


class JournalLine(NamedTuple):
    """One step of one process."""

    at_s: float
    """Seconds of the machine's monotonic clock, which all processes share."""
    kind: str
    operation: str = ""
    id: int = -1


class CampaignJournal:
    """The journal of one life of a process. The kernel has a line before the next step: only a power loss loses it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, operation: str = "", id: int = -1) -> None:
        os.write(self._descriptor, json.dumps([time.monotonic(), kind, operation, id]).encode() + b"\n")


class JournalReader:
    """Follows a journal that may still be written to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.lines: list[JournalLine] = []
        """All lines so far except those of kind `TASKS`."""
        self.opened = False
        self.tasks = -1
        """The number of tasks in the process's event loop by the last `TASKS` line; -1 before the first."""
        self.pending: set[str] = set()
        """Operations that were asked for and have no answer yet."""

    def follow(self) -> None:
        """Take in the whole lines that were written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in (JournalLine(*json.loads(each)) for each in whole.splitlines()):
            if line.kind == TASKS:
                self.tasks = line.id
                continue
            if line.kind == ASK:
                self.pending.add(line.operation)
            elif line.kind in (ACK, FAIL, UNKNOWN):
                self.pending.discard(line.operation)
            self.opened |= line.kind == OPEN
            self.lines.append(line)
