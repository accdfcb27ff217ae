"""What a client knows of one partition, with words for error messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from polonaise.client.clientparts import ClientParts
from polonaise.client.links import Stream
from polonaise.client.proofrequests import ProofRequests
from polonaise.client.protocol.outstanding import Outstanding
from polonaise.client.waiting import AppliedMark
from polonaise.errors import PolonaiseError, ViewUnavailable
from polonaise.terms import NO_TRANSACTION, PartitionId

_SLOW_S: Final = 5.0
"""Seconds of applying the same transactions after which a view counts as slow in `Log.trouble`."""


class PartitionCondition:
    """The condition of one partition, as this client knows it: the base of `PartitionAppends`."""

    def __init__(self, parts: ClientParts, partition: PartitionId) -> None:
        self.id = parts.routes.id_of(partition)
        """The partition's id in the cluster."""
        self.loop = parts.loop
        """The event loop in which alone the partition may be used."""
        self.partition = partition
        self.mark = AppliedMark(NO_TRANSACTION)
        self.stopped: PolonaiseError | None = None
        """The error that stopped the partition for good; None while it goes on."""
        self.trouble: PolonaiseError | None = None
        """Why the partition is not mounted; None while it is, and until the first attempt has failed. `Mounting` writes
        it, and before the first mount `MarkOnly`, whose mark it waits for."""
        self.commit_trouble: PolonaiseError | None = None
        """What keeps appends of a mounted partition from committing, by its server's word; None for nothing. `Mounting`
        writes it, and `PartitionAppends.shut` clears it, as no server speaks for the partition between mounts."""
        self.waits_for: Callable[[], str] = lambda: "its first mount"
        """Returns, in words, what an unmounted partition waits for; set by `Mounting`."""
        self.proofs = ProofRequests(parts.host, partition, partial(parts.requests.prove, partition))
        """Asks for proofs of copies."""
        self.served_by: Callable[[], str] = lambda: ""
        """Returns which process serves the log, as the end of a sentence, or empty; set by `Mounting`."""
        self._outstanding = Outstanding()
        self._stream: Stream | None = None

    def why_it_waits(self) -> str:
        """Return what keeps an append waiting, for a message."""
        if self._stream is None:
            last = self.trouble or self.mark.trouble  # the view's, because a mount begins with the view's mark
            trouble = f" (the last trouble: {last})" if last else ""
            return f"it is not mounted and waits for {self.waits_for()}{trouble}"
        return f"{self._outstanding.count} appends ({self._outstanding.bytes} bytes) are undecided{self.silence()}"

    def because(self) -> str:
        """Return what keeps appends from being committed, as the end of a message; empty if not known."""
        cause = self._cause()
        return f"; what holds it up: {cause}" if cause else ""

    def silence(self) -> str:
        """Return why sent appends are not answered, or else which process should answer, as the end of a message."""
        return self.because() or self.served_by()

    def _cause(self) -> str:
        cause = self.commit_trouble or self.trouble
        return cause.text if cause is not None else ""

    def lag(self) -> str:
        """Return how far this client's view is, and what holds it up, for a message."""
        applied = f"applied up to {self.mark.value}"
        if self.mark.trouble is not None:
            return f"{applied}; {self.mark.trouble}"
        if self.mark.applying is not None:
            applied += f"; {self.mark.applying.describe(self.loop.time())}"
        return f"{applied}{self.because()}" if self._stream is not None else f"{applied}; {self.why_it_waits()}"

    def views_trouble(self) -> PolonaiseError | None:
        """Return why the view does not advance; None if nothing is known to be wrong. A view whose database hangs
        raises nothing: it counts as trouble after `_SLOW_S` seconds."""
        applying, now_s = self.mark.applying, self.loop.time()
        if self.mark.trouble is None and applying is not None and now_s - applying.since_s >= _SLOW_S:
            return ViewUnavailable(f"partition {self.partition}: {applying.describe(now_s)}")
        return self.mark.trouble
