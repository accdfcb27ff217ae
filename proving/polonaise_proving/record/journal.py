"""What a client process asked and was told, line by line: written so that a kill loses no line."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from polonaise_proving.record.history import Line, LineKind

_RECENT: Final = 1_000
"""The acknowledged operations whose times a follower keeps."""
_ANSWERS: Final = frozenset({LineKind.ACK, LineKind.REFUSED, LineKind.UNKNOWN})


class Journal:
    """The journal of one life of a client. The kernel has a line before the next step: only a power loss loses it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: LineKind, partition: int = -1, operation: str = "", id: int = -1) -> None:
        """Write one line."""
        line = json.dumps([kind, partition, operation, id, time.monotonic()])
        os.write(self._descriptor, line.encode() + b"\n")


class Follower:
    """Reads a journal while it is still being written, and counts what is in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.acknowledged = 0
        """The number of acknowledged operations in the lines that `follow` has taken in."""
        self.failed: list[str] = []
        """The operations whose append failed as none does because of a planned change, in these lines."""
        self.pending: dict[str, float] = {}
        """By operation without an answer: when it was asked for, by the machine's monotonic clock."""
        self.recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        """When each of the operations that were acknowledged last was asked for, and acknowledged."""
        self.tasks = -1
        """The number of tasks in the process's event loop, as it said last; -1 before that."""
        self.opened = False
        self.quiet = False
        self.ended = False

    def follow(self) -> None:
        """Take in the whole lines that were written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = _whole(file.read())
        self._offset += len(whole)
        for line in _decoded(whole):
            asked_s = self.pending.pop(line.operation, line.at_s) if line.kind in _ANSWERS else line.at_s
            if line.kind is LineKind.ASK:
                self.pending[line.operation] = line.at_s
            elif line.kind is LineKind.ACK:
                self.acknowledged += 1
                self.recent.append((asked_s, line.at_s))
            elif line.kind is LineKind.FAILED:
                self.failed.append(line.operation)
            elif line.kind is LineKind.TASKS:
                self.tasks = line.id
            self.opened |= line.kind is LineKind.OPEN
            self.quiet |= line.kind is LineKind.QUIET
            self.ended |= line.kind is LineKind.END


def journal_of(directory: Path, name: str, life: int) -> Path:
    """Return where a client of this name keeps the journal of a life; 1 for its first one."""
    return directory / f"{name}.{life}.journal"


def lines_of(directory: Path, name: str, lives: int) -> list[Line]:
    """Return the lines of all lives of a client; a life may have no journal."""
    paths = [journal_of(directory, name, life) for life in range(1, lives + 1)]
    return [line for path in paths if path.exists() for line in lines_in(path)]


def lines_in(path: Path) -> list[Line]:
    """Return the whole lines of a journal."""
    return list(_decoded(_whole(path.read_bytes())))


def _whole(raw: bytes) -> bytes:
    """Leave out a last line that is not there to its end: it is being written, or a kill has torn it."""
    return raw[: raw.rfind(b"\n") + 1]


def _decoded(raw: bytes) -> Iterator[Line]:
    for each in raw.splitlines():
        kind, *rest = json.loads(each)
        yield Line(LineKind(kind), *rest)
