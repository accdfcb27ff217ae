"""The small interface that every peer has."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from benchmarks.loads import Load
from benchmarks.peers.figures import Configuration

BODY_BYTES = 100
OUTSTANDING = (1, 64, 1_024)
ACCOUNTS = (1, 10_000)
"""The numbers of accounts of the withdrawals: one hot account, or so many that two rarely meet."""
WITHDRAWING = 64
"""The number of outstanding withdrawals."""
GRACE_S = 60.0
"""Seconds that a load may take beyond its duration before it is ended."""


class Peer(Protocol):
    """Servers of one kind, set up in one way, with a client that keeps transactions unanswered at them.

    Each method raises `Missing`, with the reason, where this machine lacks something or a server does not do its work.
    """

    @property
    def configuration(self) -> Configuration: ...

    @property
    def warming_s(self) -> tuple[float, float]:
        """Seconds of load before the first measurement, and before each load of the first run."""

    def install(self) -> str:
        """Make sure that the peer's programs are installed, and return their version."""

    def start(self, directory: Path) -> None:
        """Set up three copies on an empty directory, and return when they take transactions."""

    def load(self, outstanding: int, seconds: float) -> Load:
        """Keep `outstanding` transactions of `BODY_BYTES` bytes unanswered for `seconds`."""

    def withdraw(self, accounts: int, outstanding: int, seconds: float) -> Load:
        """Keep so many withdrawals from random accounts going: read the balance, check it, and append, provided that
        nothing has changed the account since; otherwise again. Only where the configuration says how locks are done.
        """

    def stop(self) -> None:
        """End every process, also after a start that failed. Files are left to whoever owns the directory."""
