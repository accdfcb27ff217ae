"""The assignment as a client knows it: which server owns which partition, kept up to date from its source."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from polonaise.client.discovery import Discovery
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.settings import ClientSettings
from polonaise.coordination.values import Assignment, Owner, Versioned
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.terms import PartitionId

_log = logging.getLogger("polonaise.client")


class Routes:
    """Finds the owner of a partition, by an assignment that is watched, and read anew when a server refuses.

    A server that no longer owns a partition refuses, and names no other: the only source is the `Discovery`, which asks
    the coordinator or servers. What it tells may be out of date: the assignment never goes back to an earlier version.
    """

    def __init__(
        self, host: Host, discovery: Discovery, settings: ClientSettings, whereabouts: Callable[[], str]
    ) -> None:
        """`whereabouts` returns what is known of the process that serves the log, for messages; empty for nothing."""
        self._host = host
        self._whereabouts = whereabouts
        self._discovery = discovery
        self._settings = settings
        self._assignment: Versioned[Assignment] = Versioned(-1, Assignment())
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """A future that is done when a newer assignment is read."""
        self._trouble = ""
        """Why the last attempt to read the assignment failed; empty if it succeeded."""
        self.listeners: dict[Callable[[Assignment], None], None] = {}
        """The functions that are called with every newer assignment. A dict for its order: listeners come and go."""

    async def start(self) -> asyncio.Task[None]:
        """Read the assignment; return a task that goes on watching it."""
        self._learn(await self._discovery.assignment())
        return self._host.spawn(self._watch(), "client: watch the assignment")

    def known(self, partition: PartitionId) -> Owner | None:
        """Return the owner of a partition, as far as this client knows; None while it has none."""
        return self._assignment.value.owners.get(partition)

    async def owner(self, partition: PartitionId) -> Owner:
        """Return the owner of a partition; wait, without a deadline of its own, while it has none."""
        while True:
            owner = self.known(partition)
            if owner is not None:
                return owner
            await asyncio.shield(self._changed)  # shared: one wait that is given up must not cancel the others

    def waits_for(self, partition: PartitionId) -> str:
        """Return what is waited for when the partition does not answer, for error messages."""
        owner = self.known(partition)
        if self._trouble:
            return f"an assignment that can be read: {self._trouble}"
        if owner is None:
            return "a server that owns it: none does, so start one (`polonaise server run`) or see why none runs"
        return f"its owner, {owner.address}{self.whereabouts()}"

    def whereabouts(self) -> str:
        """Return what is known of the process that serves the log, as the end of a sentence."""
        where = self._whereabouts()
        return f"; {where}" if where else ""

    async def reread(self) -> None:
        """Read the assignment again, because a server refused; keep the old one if that fails."""
        try:
            async with asyncio.timeout(self._settings.request_s_max):
                self._learn(await self._discovery.assignment())
        except (PolonaiseError, TimeoutError) as error:
            self._note_trouble(str(error) or "there was no answer")

    def _note_trouble(self, trouble: str) -> None:
        """Remember and log why the assignment can't be read, once for the same reason."""
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("the assignment can't be read, and is read again: %s", trouble)

    def _learn(self, read: Versioned[Assignment]) -> None:
        """Keep an assignment that was read if it is newer; then end the waits for a change, and call listeners."""
        self._trouble = ""
        if read.version <= self._assignment.version:
            return
        self._assignment = read
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)
        for listener in list(self.listeners):
            listener(read.value)

    async def _watch(self) -> None:
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        while True:
            try:
                async with asyncio.timeout(self._settings.coordinator_s_max):
                    self._learn(await self._discovery.assignment_after(self._assignment.version))
                backoff.reset()
            except TimeoutError:
                continue  # nothing has changed; asked again, in case the wait was lost
            except PolonaiseError as error:
                self._note_trouble(str(error))
                await asyncio.sleep(backoff.pause_s(self._host.random.random()))
