"""What a sitting of a peer came to: its loads between two floors."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.loads import Load

NOISY = 2.0
"""A sitting is noisy when a floor after it is more than so many times one before it, or the other way round."""
BUSY = 0.2
"""It is noisy, too, when other programs had more than this part of the processors just before or just after it."""


@dataclass(frozen=True)
class Floor:
    """What the machine needs for the least that any peer must do, and how much of it others have."""

    fdatasync_ms: float
    echo_ms: float
    busy: float = 0.0
    """The part of the processors' time that others had while nothing of ours ran."""

    def differs(self, other: Floor) -> bool:
        """Whether one of the two is more than `NOISY` times the other."""
        pairs = ((self.fdatasync_ms, other.fdatasync_ms), (self.echo_ms, other.echo_ms))
        return any(max(pair) > NOISY * min(pair) for pair in pairs)


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a peer, set up so, which acknowledges a transaction at that point."""

    peer: str
    """What `--only` calls it."""
    name: str
    acknowledged: str
    """Completes "it is acknowledged when"."""
    durable: bool
    """Whether what was acknowledged is synced to the disks of two copies."""
    client: str
    locks: str = ""
    """How the client makes an append depend on what it has read; empty where the peer can't."""


@dataclass
class Sitting:
    """A configuration's loads between two floors, or the reason why some are missing."""

    configuration: Configuration
    version: str = ""
    before: Floor | None = None
    after: Floor | None = None
    runs: dict[int, list[Load]] = field(default_factory=dict)
    """By how many transactions were outstanding."""
    withdrawals: dict[int, list[Load]] = field(default_factory=dict)
    """By the number of accounts."""
    missing: str = ""
    """Why there are no loads, or not all of them."""

    @property
    def noise(self) -> list[str]:
        """Why its figures say little: one reason a line, none for a quiet sitting."""
        if self.before is None or self.after is None:
            return []
        busy = max(self.before.busy, self.after.busy)
        reasons = ["its floors differ by more than twice"] if self.before.differs(self.after) else []
        return reasons + ([f"other programs had {busy:.0%} of the processors"] if busy > BUSY else [])

    @property
    def fdatasync_ms(self) -> float:
        """The floor to compare with: the mean of before and after."""
        assert self.before is not None
        assert self.after is not None
        return statistics.mean((self.before.fdatasync_ms, self.after.fdatasync_ms))
