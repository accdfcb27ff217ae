"""Which server owns which partition, as the coordinator says, kept up to date by watching."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from polonaise.client.protocol.backoff import Backoff
from polonaise.client.settings import ClientSettings
from polonaise.coordination import Coordinator
from polonaise.coordination.values import Assignment, Owner, Versioned
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.terms import PartitionId

_log = logging.getLogger("polonaise.client")


class Routes:
    """The assignment. Whoever is refused by a server that owns a partition no more asks here again."""

    def __init__(
        self, host: Host, coordinator: Coordinator, settings: ClientSettings, whereabouts: Callable[[], str]
    ) -> None:
        """`whereabouts`: what else is known of who serves the log, for whoever waits; empty for nothing."""
        self._host = host
        self._whereabouts = whereabouts
        self._coordinator = coordinator
        self._settings = settings
        self._known: Versioned[Assignment] = Versioned(-1, Assignment())
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._trouble = ""
        """Why the assignment can't be had; empty when it was had last."""
        self.listeners: dict[Callable[[Assignment], None], None] = {}
        """Told of every newer assignment."""

    async def start(self) -> asyncio.Task[None]:
        """Read the assignment, and go on watching it."""
        self._learn(await self._coordinator.assignment())
        return self._host.spawn(self._watch(), "client: watch the assignment")

    def known(self, partition: PartitionId) -> Owner | None:
        """The owner, as far as this client knows; None while the partition has none."""
        return self._known.value.owners.get(partition)

    async def owner(self, partition: PartitionId) -> Owner:
        """The owner of the partition; waits, without a deadline of its own, while it has none."""
        while True:
            owner = self.known(partition)
            if owner is not None:
                return owner
            await asyncio.shield(self._changed)

    def waits_for(self, partition: PartitionId) -> str:
        """Who is waited for when the partition does not answer, in words."""
        owner = self.known(partition)
        if self._trouble:
            return f"an assignment that can be read: {self._trouble}"
        if owner is None:
            return "a server that owns it: none does, so start one (`polonaise server run`) or see why it does not"
        return f"its owner, {owner.address}{self.whereabouts()}"

    def whereabouts(self) -> str:
        """What else is known of who serves the log, as the end of a sentence."""
        known = self._whereabouts()
        return f"; {known}" if known else ""

    async def reread(self) -> None:
        """A server says that the assignment has moved on: read it, if the coordinator can be reached."""
        try:
            async with asyncio.timeout(self._settings.request_s_max):
                self._learn(await self._coordinator.assignment())
        except (PolonaiseError, TimeoutError) as error:
            self._say(str(error) or "the coordinator did not answer")

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("the assignment can't be read, and is tried again: %s", trouble)

    def _learn(self, found: Versioned[Assignment]) -> None:
        self._trouble = ""
        if found.version <= self._known.version:
            return
        self._known = found
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)
        for listener in list(self.listeners):
            listener(found.value)

    async def _watch(self) -> None:
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        while True:
            try:
                async with asyncio.timeout(self._settings.coordinator_s_max):
                    self._learn(await self._coordinator.assignment_after(self._known.version))
                backoff.reset()
            except TimeoutError:
                continue
            except PolonaiseError as error:
                self._say(str(error))
                await asyncio.sleep(backoff.pause_s(self._host.random.random()))
