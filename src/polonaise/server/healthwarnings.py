"""Warnings in the server's log about partitions and storage nodes, so that operators see what is missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from polonaise.host import Host
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.readiness import FAULTS_LAST_S, ReadinessChanges
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLink
from polonaise.terms import StorageId, counted, partition_words

_log = logging.getLogger(__name__)
_LOOK_S: Final = 1.0
_NAMED_MAX: Final = 8


class _Trouble:
    """Decides when to warn of a trouble: once it has lasted for `patience_s` seconds, and again every `again_s`.

    Until the first warning, one that shrinks counts as new: while partitions open one after the other, all is well.
    """

    def __init__(self, patience_s: float, again_s: float, over: str = "") -> None:
        self._patience_s = patience_s
        self._again_s = again_s
        self._over = over
        self._since_s: float | None = None
        self._warn_at_s = 0.0
        self._warned = False
        self._size = 0

    def due(self, now: float, size: int) -> float | None:
        """Return the seconds that the trouble has lasted if a warning is due now; with a `size` of 0 it is over."""
        if not size:
            if self._warned and self._over:
                _log.warning("%s", self._over)
            self._since_s, self._warned = None, False
            return None
        shrank, self._size = size < self._size, size
        if self._since_s is None or (shrank and not self._warned):
            self._since_s, self._warn_at_s = now, now + self._patience_s
        if now < self._warn_at_s:
            return None
        self._warn_at_s, self._warned = now + self._again_s, True
        return now - self._since_s


class HealthWarnings:
    """Warns of a server that owns nothing, partitions that are not ready, late replicas, and sessions that faults have
    ended.
    """

    def __init__(
        self,
        host: Host,
        settings: ServerSettings,
        owners: Callable[[], Sequence[PartitionOwner]],
        links: Mapping[StorageId, StorageLink],
        changes: ReadinessChanges,
        not_owning: Callable[[], str] = str,
    ) -> None:
        """`changes` counts what happens to the partitions of `owners`; `not_owning` is as in `ServerMembership`."""
        self._host = host
        self._not_owning = not_owning
        self._idle = _Trouble(settings.warn_s, settings.warn_again_s)
        self._owners = owners
        self._links = links
        self._changes = changes
        self._looked_at: int | None = None
        self._without_session: list[PartitionOwner] = []
        self._with_late: dict[StorageId, list[PartitionOwner]] = {}
        self._waiting = _Trouble(settings.warn_s, settings.warn_again_s)
        self._late = _Trouble(settings.warn_s, settings.warn_again_s, "all storage nodes take part again")
        self._faults = _Trouble(0.0, settings.warn_again_s)
        self._faults_seen: dict[PartitionOwner, int] = {}
        self._last_faulty: PartitionOwner | None = None
        """The owner of the latest fault; None while there is none, or when it owns its partition no more."""
        self._last_fault_s = float("-inf")

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now = self._host.clock.monotonic_s()
            if self._looked_at != self._changes.count:
                self._look(now)
            reason = self._not_owning()
            if (for_s := self._idle.due(now, bool(reason))) is not None:
                _log.warning("for %.0f s: %s", for_s, reason)
            waiting, late = self._without_session, self._with_late
            if (for_s := self._waiting.due(now, len(waiting))) is not None:
                _log.warning("%s", self._not_ready(waiting, for_s))
            # Not before all partitions are ready: which replicas take part in one that is not ready is not known.
            if not waiting and (for_s := self._late.due(now, bool(late))) is not None:
                _log.warning("%s", self._not_engaged(late, for_s))
            last = self._last_faulty
            lasting = last is not None and now - self._last_fault_s < FAULTS_LAST_S
            if self._faults.due(now, lasting) is not None and last is not None:
                fields = {"partition": last.partition, "generation": last.generation}
                _log.warning(
                    "a session of %s was ended by %s", _named([last]), last.readiness.faults.last, extra=fields
                )

    def _look(self, now: float) -> None:
        self._looked_at = self._changes.count
        owners = [owner for owner in self._owners() if owner.stopped is None]
        self._without_session = [owner for owner in owners if owner.session is None]
        self._with_late = self._late_replicas(owners)
        self._look_for_faults(owners, now)

    def _look_for_faults(self, owners: Sequence[PartitionOwner], now: float) -> None:
        for owner in owners:
            if owner.readiness.faults.total > self._faults_seen.get(owner, 0):
                self._last_faulty, self._last_fault_s = owner, now
        self._faults_seen = {owner: owner.readiness.faults.total for owner in owners}
        if self._last_faulty not in self._faults_seen:
            self._last_faulty = None

    def _late_replicas(self, owners: Sequence[PartitionOwner]) -> dict[StorageId, list[PartitionOwner]]:
        late: dict[StorageId, list[PartitionOwner]] = {}
        for owner in owners:
            if owner.readiness.late and owner.session is not None:
                for name in owner.readiness.late:
                    late.setdefault(name, []).append(owner)
        return late

    def _not_engaged(self, late: Mapping[StorageId, Sequence[PartitionOwner]], for_s: float) -> str:
        troubles = [
            f"{name} in {_named(owners)} ({self._trouble_of(name, owners[0].readiness.late.get(name, ''))})"
            for name, owners in late.items()
        ]
        return (
            f"storage nodes have not taken part for {for_s:.0f} s: {'; '.join(troubles)}. "
            "Commits go on with the others, with fewer copies to spare"
        )

    def _trouble_of(self, name: StorageId, reason: str = "") -> str:
        link = self._links[name]
        if link.session is not None:
            return f"connected, being brought up to date{': ' if reason else ''}{reason}"
        return str(link.last_error or "not tried yet")

    def _not_ready(self, waiting: Sequence[PartitionOwner], for_s: float) -> str:
        waits_for = waiting[0].readiness.waits_for or "waiting for its next session"
        text = f"not ready for {for_s:.0f} s: {_named(waiting)}. Reason: {waits_for}"
        missing = [f"{name} ({self._trouble_of(name)})" for name, link in self._links.items() if not link.session]
        if missing:
            connected = len(self._links) - len(missing)
            text += (
                f". {connected} of {counted(len(self._links), 'storage node')} connected; "
                f"start these, or see why they can't be reached: {'; '.join(missing)}"
            )
        return text


def _named(owners: Sequence[PartitionOwner]) -> str:
    return partition_words([owner.partition for owner in owners], _NAMED_MAX)
