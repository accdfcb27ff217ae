"""The route function: which targets get what of a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeAlias

from polonaise.log.batch import Batch
from polonaise.player.protocol.entries import REASON_CHARACTERS_MAX, RoutedEntry, TargetName
from polonaise.redaction import redacted, redacted_text, redacted_trace
from polonaise.terms import Transaction, TransactionId

PAYLOAD_BYTES_MAX: Final = 60 * 1024 * 1024
"""The most bytes that a target may get of one transaction: a little less than the messages of all transports carry."""

Route: TypeAlias = Callable[[Transaction], Mapping[TargetName, bytes]]
"""Returns what each target gets of a transaction, by its name. A pure function: whenever it is called for a
transaction, it has to return the same."""


class Unroutable(Exception):
    """A transaction for which the route function raised, or returned what is no route."""

    def __init__(self, id: TransactionId, why: str, trace: str = "") -> None:
        super().__init__(f"transaction {id} can't be routed: {why}")
        self.id = id
        self.trace = trace
        """Where the route function raised; empty if it did not."""


class Router:
    """Calls the route function, and checks what it returns."""

    def __init__(self, route: Route, targets: Collection[TargetName], retired: Collection[TargetName]) -> None:
        """The route function may return `targets`; what it returns for `retired` ones is dropped."""
        self._route = route
        self._targets = targets
        self._retired = retired

    def routed(
        self, batch: Batch, after: TransactionId, through: TransactionId
    ) -> tuple[dict[TargetName, list[RoutedEntry]], Unroutable | None]:
        """Return the entries of the batch's transactions with ids above `after` and up to `through`, by target. Also
        returns the error of the first transaction that can't be routed, or None; the entries are of those before."""
        routed: dict[TargetName, list[RoutedEntry]] = {}
        try:
            for entries in self.each(batch, after, through):
                for name, entry in entries:
                    routed.setdefault(name, []).append(entry)
        except Unroutable as error:
            return routed, error
        return routed, None

    def each(
        self, batch: Batch, after: TransactionId, through: TransactionId
    ) -> Iterator[list[tuple[TargetName, RoutedEntry]]]:
        """Yield the entries of each of these transactions. Raises the error of the first that can't be routed."""
        for tx in batch.transactions(after):
            if tx.id > through:
                break
            yield self._entries(tx)

    def _entries(self, tx: Transaction) -> list[tuple[TargetName, RoutedEntry]]:
        try:
            payloads = self._route(tx)
            if not isinstance(payloads, Mapping):
                raise Unroutable(tx.id, f"the route function returned {type(payloads).__name__}, and not a mapping")
            items = list(payloads.items())
        except Unroutable:
            raise
        # Even a cancellation: the function is a plain one, so nobody but itself can have cancelled anything. Even an
        # exit: a standby would come to the same transaction, and end as well.
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            why = f"the route function raised {type(error).__name__}: {redacted_text(error)}"
            raise Unroutable(tx.id, redacted(why, REASON_CHARACTERS_MAX), redacted_trace(error)) from error
        entries = []
        for name, payload in items:
            if name in self._retired:
                continue
            if name not in self._targets:
                names = ", ".join(sorted(self._targets)) or "none"
                raise Unroutable(tx.id, f"no target is called {name!r}: there are {names}")
            if isinstance(payload, bytearray | memoryview):
                payload = bytes(payload)
            if not isinstance(payload, bytes):
                raise Unroutable(tx.id, f"what target {name} is to get is {type(payload).__name__}, and not bytes")
            if len(payload) > PAYLOAD_BYTES_MAX:
                what = f"{len(payload)} bytes, and a message to a target carries {PAYLOAD_BYTES_MAX} at most"
                raise Unroutable(tx.id, f"what target {name} is to get is {what}: have the route function return less")
            entries.append((name, RoutedEntry(tx.id, payload)))
        return entries
