"""Late replicas: brought up to date in the background, then let back in through a new session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from polonaise.errors import PolonaiseError, ProtocolError
from polonaise.host import Host
from polonaise.server.history import History, read_to_copy
from polonaise.server.opening import answer_of
from polonaise.server.protocol import recovery
from polonaise.server.replicas import StorageLink, expect
from polonaise.server.settings import ServerSettings
from polonaise.server.writing import Writing
from polonaise.terms import PartitionId, StorageId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    Confirm,
    Copy,
    Done,
    LastSessionInfo,
    ReadBatches,
    SessionInfo,
    Truncate,
)

_log = logging.getLogger(__name__)
_LOOK_S = 0.5


class CatchUp:
    """Copies committed batches to the members that are not engaged in this session.

    A replica comes back only through a new session: when one is nearly there, this ends the present one, whose
    successor copies the rest and engages it.
    """

    def __init__(
        self,
        host: Host,
        settings: ServerSettings,
        links: Mapping[StorageId, StorageLink],
        partition: PartitionId,
        writing: Writing,
        readmitted_s: float,
        history: History | None = None,
    ) -> None:
        self._host = host
        self._settings = settings
        self._links = links
        self._partition = partition
        self._writing = writing
        self._history = history
        self.readmitted_s = readmitted_s
        """When a session was last ended to let replicas back in."""

    async def run(self) -> None:
        while self._writing.open:
            await asyncio.sleep(_LOOK_S * (0.5 + self._host.random.random()))
            for name in self._writing.value.members:
                if name in self._writing.engaged or self._links[name].bulk is None:
                    continue
                try:
                    await self._bring_up(name)
                    await self._readmit(name)
                except PolonaiseError as error:
                    _log.info("partition %d: %s is not brought up to date: %s", self._partition, name, error)

    async def _readmit(self, name: StorageId) -> None:
        """End the session to let `name` back in, but not more often than the appends can bear."""
        wait_s = self.readmitted_s + self._settings.readmit_s_min - self._host.clock.monotonic_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        self.readmitted_s = self._host.clock.monotonic_s()
        self._writing.end(f"{name} has caught up", planned=True)

    async def _bring_up(self, name: StorageId) -> None:
        """Until it is nearly at the committed high-water mark. Only committed batches are ever copied here."""
        session = self._writing.session
        info = expect(await self._links[name].ask_bulk(LastSessionInfo(session), self._partition), SessionInfo)
        answer = answer_of(info)
        if answer.joined == session:
            # It joined and was left out of the engagement: in this session it takes neither cuts nor copies.
            return
        last: TransactionId = answer.max_synced
        clean = recovery.clean_to(self._writing.value, name, answer, self._writing.closing)
        if last > clean or answer.lost_above is not None:
            last = expect(await self._ask(name, Truncate(session, clean)), Done).last
        copied, worked_s = 0, 0.0
        while (missing := self._writing.committed - last) > 0:
            if missing <= min(copied, self._settings.readmit_transactions) and worked_s <= self._settings.gather_s / 4:
                # No more than the last round brought, which was quick: the next session will wait for that much.
                return
            began_s = self._host.clock.monotonic_s()
            payload = await self._read(last + 1, self._writing.committed)
            done = expect(await self._ask(name, Copy(session, payload=[payload])), Done)
            if done.last <= last:
                raise ProtocolError(f"{name} took a copy and did not grow")
            copied, last = done.last - last, done.last
            await self._ask(name, Confirm(session, last))
            worked_s = self._host.clock.monotonic_s() - began_s
            await asyncio.sleep(worked_s * self._settings.copy_pause_ratio)

    async def _ask(self, name: StorageId, message: Message) -> Message:
        return await self._links[name].ask_bulk(message, self._partition)

    async def _read(self, first: TransactionId, last: TransactionId) -> memoryview:
        """From an engaged replica; what none of them holds any more, from the fragments."""
        request = ReadBatches(self._writing.session, first, last, self._settings.copy_bytes, 1, 0)
        nobody = ProtocolError("no engaged replica has a bulk connection")
        return await read_to_copy(self._ask, self._writing.engaged, request, self._partition, self._history, nobody)
