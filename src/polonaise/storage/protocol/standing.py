"""The standing of a transaction on a single replica: whether that replica by itself proves it to be committed."""

from __future__ import annotations

import enum
from typing import NamedTuple

from polonaise.terms import TransactionId


class Standing(enum.Enum):
    """The standing of a transaction that one replica holds."""

    COMMITTED = "committed"
    """An owner has confirmed the transaction to this replica."""
    UNPROVED = "unproved"
    """The transaction was written here; only a quorum could tell whether it is committed."""
    UNTRUSTED = "untrusted"
    """Its sync failed, or damage was found at it or below: the node would cut it."""


class Bounds(NamedTuple):
    """The ids that bound the standings of one replica's transactions."""

    confirmed: TransactionId
    """Transactions up to this id are `COMMITTED`, unless they are above `trusted`."""
    trusted: TransactionId | None = None
    """Transactions above this id are `UNTRUSTED`; None if all are trusted."""
    lost: TransactionId | None = None
    """The replica may have lost transactions above this id; None if it has lost nothing."""

    def standing_of(self, id: TransactionId) -> Standing:
        if self.trusted is not None and id > self.trusted:
            return Standing.UNTRUSTED
        return Standing.COMMITTED if id <= self.confirmed else Standing.UNPROVED
