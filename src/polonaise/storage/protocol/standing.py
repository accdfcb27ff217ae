"""What one replica by itself tells of the transactions that it holds: which of them are known to be committed."""

from __future__ import annotations

import enum
from typing import NamedTuple

from polonaise.terms import TransactionId


class Standing(enum.Enum):
    """What one replica by itself tells of a transaction that it holds."""

    COMMITTED = "committed"
    """It has been told so."""
    UNPROVED = "unproved"
    """It was written here. It may be committed, or may never have been: a quorum of replicas would tell."""
    UNTRUSTED = "untrusted"
    """Its sync failed, or the node has found damage below it: the node itself would cut it."""


class Bounds(NamedTuple):
    """Up to where the transactions of one replica are what."""

    confirmed: TransactionId
    """`COMMITTED`."""
    trusted: TransactionId | None = None
    """Above it `UNTRUSTED`; None when all are trusted."""
    lost: TransactionId | None = None
    """The node says that it may have lost what was above; None when it does not."""

    def standing_of(self, id: TransactionId) -> Standing:
        if self.trusted is not None and id > self.trusted:
            return Standing.UNTRUSTED
        return Standing.COMMITTED if id <= self.confirmed else Standing.UNPROVED
