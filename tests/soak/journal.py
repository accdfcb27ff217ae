"""What a client asked of the log and what it was told, line by line: written so that a kill loses no line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

OPEN: Final = "open"
"""The log is open."""
ASK: Final = "ask"
"""About to ask for this operation."""
ACK: Final = "ack"
"""It is in the log, under this id."""
FAIL: Final = "fail"
"""It is not in the log, and never will be."""
WRONG: Final = "wrong"
"""What was read is not what may be read; the operation's place says what."""
TASKS: Final = "tasks"
"""So many tasks are in the client's event loop."""


class Line(NamedTuple):
    """One step of one client."""

    kind: str
    operation: str
    id: int


class Journal:
    """One life of a client."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, operation: str = "", id: int = -1) -> None:
        os.write(self._descriptor, json.dumps([kind, operation, id]).encode() + b"\n")


class Reader:
    """Follows a journal that is still written to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.lines: list[Line] = []
        """What was asked and told."""
        self.opened = False
        self.tasks = -1
        """As many as the client had when it last said so; -1 before."""

    def follow(self) -> None:
        """Take in the whole lines that were written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in (Line(*json.loads(each)) for each in whole.splitlines()):
            if line.kind == TASKS:
                self.tasks = line.id
            elif line.kind == OPEN:
                self.opened = True
            else:
                self.lines.append(line)
