"""The leases of a partition, as its owner knows them: in memory, for as long as it is the owner.

Two holders of one name are kept apart by time alone: a holder counts its lease from the moment at which it sent the
request, the owner from a later one. An owner that takes over knows of no leases, but those of an earlier owner were
asked for before this one began, because each answer is proved by a message to the replicas. So once the duration of a
lease has passed since then, nobody has it; until then only those may go on whose lease has not run out by their own
clock. A partition that never had a session has nobody to wait for.

Clocks may lie, and a process may be stopped after a look at its clock. So a lease makes it likely that only one works;
what must never happen twice needs a fence as well, checked where the effect is made durable.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from polonaise.wire.leases import (
    AnsweredLease,
    AskedLease,
    HoldLeases,
    LeaseAnswer,
    LeasesAre,
    LeasesReleased,
    ListedLease,
    ReleaseLeases,
    check_duration,
    encode_answered,
    encode_listed,
    parse_asked,
    parse_names,
)

LEASES_MAX: Final = 4_096
"""The most leases of one partition."""
LEASES_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of names and notes of one partition's leases: one answer has room to list them all."""


class AskedLeases(NamedTuple):
    """A `HoldLeases` that was checked."""

    holder: int
    duration_ms: int
    asked: list[AskedLease]
    prefix: str | None
    """The prefix of the names to be listed; None to list none."""


class ReleasedLeases(NamedTuple):
    """A `ReleaseLeases` that was checked."""

    holder: int
    names: list[str]


class _Granted(NamedTuple):
    """A lease that somebody holds."""

    holder: int
    duration_ms: int
    until_s: float
    note: bytes


def checked_leases(message: HoldLeases | ReleaseLeases) -> AskedLeases | ReleasedLeases:
    """Return what a request asks; raises `ProtocolError` if it is invalid, or beyond a bound."""
    if isinstance(message, ReleaseLeases):
        return ReleasedLeases(message.holder, parse_names(message.names))
    check_duration(message.duration_ms)
    prefix = message.prefix if message.lists else None
    return AskedLeases(message.holder, message.duration_ms, parse_asked(message.asked), prefix)


class LeaseTable:
    """Grants the leases of one partition, each to one holder at a time. All times are monotonic seconds."""

    __slots__ = ("_bytes", "_granted", "_since_s")

    def __init__(self) -> None:
        self._granted: dict[str, _Granted] = {}
        self._bytes = 0
        self._since_s = inf
        """Since when no earlier owner has granted anything, as far as is known: before the first session, never."""

    def begin(self, now_s: float) -> None:
        """Note that no earlier owner has granted anything after this moment. A later call changes nothing."""
        self._since_s = min(self._since_s, now_s)

    def count(self, now_s: float) -> int:
        return sum(granted.until_s > now_s for granted in self._granted.values())

    def answer(self, asked: AskedLeases | ReleasedLeases, now_s: float) -> LeasesAre | LeasesReleased:
        """Carry out a request whose answer is proved now."""
        if isinstance(asked, ReleasedLeases):
            return LeasesReleased(self._release(asked, now_s))
        answered = [self._hold(each, asked.holder, asked.duration_ms, now_s) for each in asked.asked]
        listed = [] if asked.prefix is None else self.held(asked.prefix, now_s)
        return LeasesAre(encode_answered(answered), encode_listed(listed))

    def _hold(self, asked: AskedLease, holder: int, duration_ms: int, now_s: float) -> AnsweredLease:
        granted = self._granted.get(asked.name)
        if granted is not None and granted.until_s <= now_s:
            self._drop(asked.name)
            granted = None
        early_s = self._since_s + duration_ms / 1000 - now_s
        if granted is not None and granted.duration_ms != duration_ms:
            # After a change of owners, holders are waited for as long as the duration that is asked for: so all that
            # ask for one name must ask for the same.
            return AnsweredLease(LeaseAnswer.OTHER_DURATION, _ms(granted.until_s - now_s), granted.holder)
        if granted is not None and granted.holder != holder:
            return AnsweredLease(LeaseAnswer.TAKEN, _ms(granted.until_s - now_s), granted.holder)
        if early_s > 0 and not asked.renews:
            # Even if the holder seems to have it: that may be from a message that came late, after another one was
            # granted the lease by the owner before.
            return AnsweredLease(LeaseAnswer.TOO_EARLY, _ms(early_s), 0)
        if early_s <= 0 and granted is None and asked.renews:
            # All that is held is known here: it has run out, and another one may have had it meanwhile.
            return AnsweredLease(LeaseAnswer.LOST, 0, 0)
        if not self._has_room_for(asked, granted, now_s):
            return AnsweredLease(LeaseAnswer.FULL, 0, 0)
        if granted is not None:
            self._drop(asked.name)
        self._granted[asked.name] = _Granted(holder, duration_ms, now_s + duration_ms / 1000, asked.note)
        self._bytes += _size(asked.name, asked.note)
        return AnsweredLease(LeaseAnswer.HELD, duration_ms, holder)

    def _release(self, asked: ReleasedLeases, now_s: float) -> int:
        had = 0
        for name in asked.names:
            granted = self._granted.get(name)
            if granted is not None and granted.holder == asked.holder:
                had += granted.until_s > now_s
                self._drop(name)
        return had

    def held(self, prefix: str, now_s: float) -> list[ListedLease]:
        """Return the leases that are held and whose names begin with `prefix`, in the order of names."""
        return [
            ListedLease(name, granted.holder, _ms(granted.until_s - now_s), granted.note)
            for name, granted in sorted(self._granted.items())
            if granted.until_s > now_s and name.startswith(prefix)
        ]

    def _has_room_for(self, asked: AskedLease, present: _Granted | None, now_s: float) -> bool:
        more, size = 1, _size(asked.name, asked.note)
        if present is not None:
            more, size = 0, size - _size(asked.name, present.note)

        def fits() -> bool:
            return len(self._granted) + more <= LEASES_MAX and self._bytes + size <= LEASES_BYTES_MAX

        if not fits():
            for name in [name for name, granted in self._granted.items() if granted.until_s <= now_s]:
                self._drop(name)
        return fits()

    def _drop(self, name: str) -> None:
        self._bytes -= _size(name, self._granted.pop(name).note)


def _size(name: str, note: bytes) -> int:
    return len(name.encode()) + len(note)


def _ms(seconds: float) -> int:
    """Return milliseconds, rounded up: who waits for so long does not come too early."""
    return max(1, -int(-seconds * 1000 // 1))
