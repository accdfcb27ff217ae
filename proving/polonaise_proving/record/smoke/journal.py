"""What a client of the smoke test asked and was told, line by line: written so that a kill loses no line."""

from __future__ import annotations

import os
from pathlib import Path

from polonaise_proving.record.smoke.history import Line, LineKind


class Journal:
    """The journal of one life of a client. The kernel has a line before the next step: only a power loss loses it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: LineKind, partition: int = -1, operation: str = "-", id: int = -1) -> None:
        """Write one line."""
        os.write(self._descriptor, f"{kind} {partition} {operation} {id}\n".encode())


class Follower:
    """Reads a journal while it is still being written.

    Counts the acknowledged operations, and notes whether the client has opened the log, has an answer to each append
    and makes no more, and has ended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self.acknowledged = 0
        """The number of acknowledged operations in the lines that `follow` has taken in."""
        self.failed: list[str] = []
        """The operations whose append failed as none does because of a planned change, in these lines."""
        self.opened = False
        self.quiet = False
        self.ended = False

    def follow(self) -> None:
        """Take in the whole lines that were written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            raw = file.read()
        self._offset += len(raw)
        *whole, self._rest = (self._rest + raw).split(b"\n")
        for line in whole:
            kind = line[: line.index(b" ")]
            self.acknowledged += kind == LineKind.ACK.encode()
            if kind == LineKind.FAILED.encode():
                self.failed.append(line.split()[2].decode())
            self.opened |= kind == LineKind.OPEN.encode()
            self.quiet |= kind == LineKind.QUIET.encode()
            self.ended |= kind == LineKind.END.encode()


def journal_of(directory: Path, name: str, life: int) -> Path:
    """Return where a client of this name keeps the journal of a life; 1 for its first one."""
    return directory / f"{name}.{life}.journal"


def lines_in(path: Path) -> list[Line]:
    """Return the whole lines of a journal; a last one that a kill has torn is left out."""
    lines = []
    for raw in path.read_text().splitlines(keepends=True):
        if raw.endswith("\n"):
            kind, partition, operation, id = raw.split()
            lines.append(Line(LineKind(kind), int(partition), operation, int(id)))
    return lines
