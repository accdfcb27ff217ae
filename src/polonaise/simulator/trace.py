"""The trace: a fingerprint of everything that happened in a schedule and, on request, a readable list of it.

Two runs of one seed must give the same fingerprint, whatever `PYTHONHASHSEED` is. The fingerprint is the hash of a
tuple of numbers: CPython does not randomise that, as it does the hashes of strings. It costs a fifth of a microsecond
per event, so that it is always on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

START: Final = 0
CRASH: Final = 1
POWER_LOSS: Final = 2
PAUSE: Final = 3
RESUME: Final = 4
END: Final = 5
CONNECT: Final = 6
ACCEPT: Final = 7
DELIVER: Final = 8
END_OF_STREAM: Final = 9
RESET: Final = 10
PARTITION: Final = 11
HEAL: Final = 12
READ: Final = 13
WRITE: Final = 14
SYNC: Final = 15
NAME: Final = 16
DAMAGE: Final = 17
NOTE: Final = 18

_KINDS: Final = (
    "start",
    "crash",
    "power loss",
    "pause",
    "resume",
    "end",
    "connect",
    "accept",
    "deliver",
    "end of stream",
    "reset",
    "partition",
    "heal",
    "read",
    "write",
    "sync",
    "name",
    "damage",
    "note",
)


class Trace:
    """The events of one schedule, in order."""

    def __init__(self, now: Callable[[], float], *, record: bool = False) -> None:
        self._now = now
        self._hash = 0
        self._names: list[str] = []
        self.events = 0
        self.lines: list[str] | None = [] if record else None
        """What happened, one line per event; None unless recording was asked for."""

    def subject(self, name: str) -> int:
        """Return a new number that stands for `name` in events."""
        self._names.append(name)
        return len(self._names) - 1

    def add(self, kind: int, subject: int, detail: int = 0, data: bytes = b"") -> None:
        """Add an event: its kind, what it happened to, and enough detail to tell it from other events."""
        now = self._now()
        crc = zlib.crc32(data)
        self._hash = hash((self._hash, now, kind, subject, detail, crc))
        self.events += 1
        if self.lines is not None:
            size = f" {len(data)} bytes {crc:08x}" if data else ""
            self.lines.append(f"{now:14.6f} {_KINDS[kind]:13} {self._names[subject]} {detail}{size}")

    def note(self, text: str) -> None:
        """Add an event of the scenario's own, so that what it did or saw is part of the fingerprint."""
        self._hash = hash((self._hash, self._now(), NOTE, zlib.crc32(text.encode())))
        self.events += 1
        if self.lines is not None:
            self.lines.append(f"{self._now():14.6f} {_KINDS[NOTE]:13} {text}")

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits, equal for equal courses of events."""
        return f"{self._hash & 0xFFFFFFFFFFFFFFFF:016x}"
