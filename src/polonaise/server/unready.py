"""Says in the server's log what keeps partitions from being ready: whoever starts a cluster sees what is missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from polonaise.host import Host
from polonaise.server.owner import Owner
from polonaise.server.replicas import StorageLink
from polonaise.server.settings import ServerSettings
from polonaise.terms import PartitionId, StorageId

_log = logging.getLogger(__name__)
_LOOK_S = 1.0
_NAMED_MAX = 8
"""Partitions that a warning names; of more it tells how many."""


class Unready:
    """Looks at what this server owns, and warns: soon after it stops being ready, and again while that lasts."""

    def __init__(
        self,
        host: Host,
        settings: ServerSettings,
        owners: Mapping[PartitionId, Owner],
        links: Mapping[StorageId, StorageLink],
    ) -> None:
        self._host = host
        self._settings = settings
        self._owners = owners
        self._links = links

    async def watch(self) -> None:
        """For ever; a task of its own."""
        settings, clock = self._settings, self._host.clock
        since_s: float | None = None
        warn_at_s = 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            waiting = [o for _, o in sorted(self._owners.items()) if o.writing is None and o.stopped is None]
            now = clock.monotonic_s()
            if not waiting:
                since_s = None
            elif since_s is None:
                since_s, warn_at_s = now, now + settings.warn_s
            elif now >= warn_at_s:
                _log.warning("%s", self._warning(waiting, now - since_s))
                warn_at_s = now + settings.warn_again_s

    def _warning(self, waiting: Sequence[Owner], for_s: float) -> str:
        named = ", ".join(str(owner.partition) for owner in waiting[:_NAMED_MAX])
        more = f" and {len(waiting) - _NAMED_MAX} more" if len(waiting) > _NAMED_MAX else ""
        text = f"not ready for {for_s:.0f} s: partition {named}{more}. What is waited for: {waiting[0].waits_for}"
        missing = [
            f"{name} ({link.last_error or 'not tried yet'})" for name, link in self._links.items() if not link.session
        ]
        if missing:
            there = len(self._links) - len(missing)
            text += (
                f". {there} of {len(self._links)} storage nodes are connected; "
                f"start these, or see why they can't be reached: {'; '.join(missing)}"
            )
        return text
