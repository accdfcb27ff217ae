"""Late replicas: brought up to date in the background, then let back in through a new session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from polonaise.errors import PolonaiseError, ProtocolError
from polonaise.host import Host
from polonaise.server.archivedhistory import ArchivedHistory, ToCopy, copy_on, read_to_copy
from polonaise.server.protocol import recovery
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.session import Session
from polonaise.server.replicas import StorageLink, expect
from polonaise.server.sessionstart import answer_of
from polonaise.server.settings import ServerSettings
from polonaise.terms import StorageId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    Confirm,
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
        owner: PartitionOwner,
        session: Session,
        history: ArchivedHistory | None,
        readmit: Callable[[StorageId], None],
        readmitted_s: float,
        turns: asyncio.Semaphore,
    ) -> None:
        """`readmit` ends the session to let a replica back in; it was done last at `readmitted_s`. The partitions of a
        server take `turns` in bringing theirs up: a node that comes back is late in all of them."""
        self._host = host
        self._settings = settings
        self._links = links
        self._owner = owner
        self._session = session
        self._history = history
        self._readmit = readmit
        self._readmitted_s = readmitted_s
        self._turns = turns

    async def run(self) -> None:
        """Until the session ends."""
        late = [name for name in self._session.value.members if name not in self._session.engaged]
        while self._owner.session is self._session:
            await self._until_one_is_there(late)
            await asyncio.sleep(_LOOK_S * (0.5 + self._host.random.random()))
            for name in late:
                if self._links[name].bulk is None:
                    continue
                try:
                    await self._bring_up(name)
                    await self._let_back_in(name)
                except PolonaiseError as error:
                    self._owner.readiness.replica_late(name, str(error))
                    _log.info("partition %d: %s is not brought up to date: %s", self._owner.partition, name, error)

    async def _until_one_is_there(self, late: Sequence[StorageId]) -> None:
        """While all of them are away there is nothing to look after, in thousands of partitions perhaps."""
        if any(self._links[name].session is not None for name in late):
            return
        waits = [asyncio.ensure_future(self._links[name].connected()) for name in late]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _let_back_in(self, name: StorageId) -> None:
        """End the session to let `name` back in, but not more often than the appends can bear."""
        wait_s = self._readmitted_s + self._settings.readmit_s_min - self._host.clock.monotonic_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        if self._owner.session is self._session:
            self._readmit(name)

    async def _bring_up(self, name: StorageId) -> None:
        """Until it is nearly at the committed high-water mark. Only committed batches are ever copied here.

        Each round of copying takes a turn: those of a busy partition may be many, and others wait for theirs.
        """
        session = self._session.id
        async with self._turns:
            info = expect(await self._ask(name, LastSessionInfo(session)), SessionInfo)
        answer = answer_of(info)
        if answer.joined == session:
            # It joined and was left out of the engagement: in this session it takes neither cuts nor copies.
            return
        last: TransactionId = answer.max_synced
        clean = recovery.clean_to(self._session.value, name, answer, self._session.closing)
        if last > clean or answer.lost_above is not None:
            last = expect(await self._ask(name, Truncate(session, clean)), Done).last
        copied, worked_s = 0, 0.0
        while (missing := self._owner.committed - last) > 0:
            if missing <= min(copied, self._settings.readmit_transactions) and worked_s <= self._settings.gather_s / 4:
                # No more than the last round brought, which was quick: the next session will wait for that much.
                return
            async with self._turns:
                began_s = self._host.clock.monotonic_s()
                read = await self._read(last + 1, self._owner.committed)
                done = await copy_on(partial(self._ask, name), session, name, last, read)
                copied, last = done.last - last, done.last
                await self._ask(name, Confirm(session, last))
                worked_s = self._host.clock.monotonic_s() - began_s
            await asyncio.sleep(worked_s * self._settings.copy_pause_ratio)

    async def _ask(self, name: StorageId, message: Message) -> Message:
        return await self._links[name].ask_bulk(message, self._owner.partition)

    async def _read(self, first: TransactionId, last: TransactionId) -> ToCopy:
        """From an engaged replica; what none of them holds any more, from the fragments."""
        request = ReadBatches(self._session.id, first, last, self._settings.copy_bytes, 1, 0)
        nobody = ProtocolError("no engaged replica has a bulk connection")
        return await read_to_copy(
            self._ask, self._session.engaged, request, self._owner.partition, self._history, nobody
        )
