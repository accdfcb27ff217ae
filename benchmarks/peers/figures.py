"""The results of a sitting of a peer: its loads, between two measurements of the floor."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.loads import Load

NOISY = 2.0
"""A sitting is noisy when a floor after it is more than so many times one before it, or the other way round."""
BUSY = 0.2
"""A sitting is also noisy if other programs used more than this share of the processors just before or after it."""


@dataclass(frozen=True)
class Floor:
    """The time that the machine needs for the least work of any peer, and how busy other programs keep it."""

    fdatasync_ms: float
    echo_ms: float
    busy: float = 0.0
    """The share of the processors' time that other programs used while nothing of ours ran."""

    def differs(self, other: Floor) -> bool:
        """Whether the fdatasync, or the echo, of one floor takes more than `NOISY` times as long as the other's."""
        pairs = ((self.fdatasync_ms, other.fdatasync_ms), (self.echo_ms, other.echo_ms))
        return any(max(pair) > NOISY * min(pair) for pair in pairs)


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a peer in one set-up, with the point at which it acknowledges a transaction."""

    peer: str
    """The peer's name in `--only`."""
    name: str
    acknowledged: str
    """Completes "it is acknowledged when"."""
    durable: bool
    """Whether two copies have synced a transaction when it is acknowledged."""
    client: str
    locks: str = ""
    """How the client makes an append depend on what it has read; empty if the peer can't do that."""


@dataclass
class Sitting:
    """A configuration's loads between two floors, or the reason why some are missing."""

    configuration: Configuration
    version: str = ""
    before: Floor | None = None
    after: Floor | None = None
    runs: dict[int, list[Load]] = field(default_factory=dict)
    """The loads' runs, by the number of outstanding transactions."""
    withdrawals: dict[int, list[Load]] = field(default_factory=dict)
    """The withdrawals' runs, by the number of accounts."""
    missing: str = ""
    """Why there are no loads, or not all of them."""

    @property
    def noise(self) -> list[str]:
        """Return why the sitting's figures say little: one reason a line, none for a quiet sitting."""
        if self.before is None or self.after is None:
            return []
        busy = max(self.before.busy, self.after.busy)
        reasons = ["its floors differ by more than twice"] if self.before.differs(self.after) else []
        return reasons + ([f"other programs had {busy:.0%} of the processors"] if busy > BUSY else [])

    @property
    def fdatasync_ms(self) -> float:
        """The floor to compare with, in ms: the mean of the floors before and after."""
        assert self.before is not None
        assert self.after is not None
        return statistics.mean((self.before.fdatasync_ms, self.after.fdatasync_ms))
