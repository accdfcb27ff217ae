"""The trace: a fingerprint of everything that happened in a schedule and, on request, a readable list of it.

Two runs of one seed must give the same fingerprint, whatever `PYTHONHASHSEED` is. The fingerprint is the hash of a
tuple of numbers: CPython does not randomise that, as it does the hashes of strings. It costs a fifth of a microsecond
per event, so that it is always on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum


class Event(IntEnum):
    """The kind of an event. Its number, and not its name, is part of the fingerprint."""

    START = 0
    CRASH = 1
    POWER_LOSS = 2
    PAUSE = 3
    RESUME = 4
    END = 5
    CONNECT = 6
    ACCEPT = 7
    DELIVER = 8
    END_OF_STREAM = 9
    RESET = 10
    PARTITION = 11
    HEAL = 12
    READ = 13
    WRITE = 14
    SYNC = 15
    NAME = 16
    DAMAGE = 17
    NOTE = 18


class Trace:
    """The events of one schedule, in order."""

    def __init__(self, now: Callable[[], float], *, record: bool = False) -> None:
        self._now = now
        self._hash = 0
        self._names: list[str] = []
        self.lines: list[str] | None = [] if record else None
        """What happened, one line per event; None unless recording was asked for."""

    def subject(self, name: str) -> int:
        """Return a new number that stands for `name` in events."""
        self._names.append(name)
        return len(self._names) - 1

    def add(self, kind: Event, subject: int, detail: int = 0, data: bytes = b"") -> None:
        """Add an event: its kind, what it happened to, and enough detail to tell it from other events."""
        now = self._now()
        crc = zlib.crc32(data)
        self._hash = hash((self._hash, now, kind, subject, detail, crc))
        if self.lines is not None:
            size = f" {len(data)} bytes {crc:08x}" if data else ""
            self.lines.append(f"{now:14.6f} {_words(kind):13} {self._names[subject]} {detail}{size}")

    def note(self, text: str) -> None:
        """Add an event of the scenario's own, so that what it did or saw is part of the fingerprint."""
        self._hash = hash((self._hash, self._now(), Event.NOTE, zlib.crc32(text.encode())))
        if self.lines is not None:
            self.lines.append(f"{self._now():14.6f} {_words(Event.NOTE):13} {text}")

    def tell(self, text: str) -> None:
        """Add a line for who reads the list; it is no event, and not part of the fingerprint."""
        if self.lines is not None:
            self.lines.append(f"{self._now():14.6f} {'told':13} {text}")

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits, equal for equal courses of events."""
        return f"{self._hash & 0xFFFFFFFFFFFFFFFF:016x}"


def _words(kind: Event) -> str:
    return kind.name.lower().replace("_", " ")
