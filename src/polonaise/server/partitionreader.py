"""Reads of one partition: the tail from memory, history from the replicas, what these dropped from the fragments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from polonaise.errors import (
    BatchDamaged,
    BeyondLog,
    HistoryTrimmed,
    PartitionNotReady,
    PolonaiseError,
    ProtocolError,
    fresh,
)
from polonaise.log.batch import HEADER_BYTES, Batch
from polonaise.server.archivedhistory import ArchivedHistory, needed
from polonaise.server.protocol.feed import Committed
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.replicas import StorageLink, expect
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_TRANSACTION, StorageId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.fetches import encode_bodies, parse_fetch
from polonaise.wire.messages import WHOLE, Batches, Bodies, Fetch, Read, ReadBatches

FETCH_MAX = 4_096
"""Bodies that one request may ask for."""


class PartitionReader:
    """Reads what is committed in one partition, for its clients and for its own feeds."""

    def __init__(
        self,
        owner: PartitionOwner,
        links: Mapping[StorageId, StorageLink],
        settings: ServerSettings,
        history: ArchivedHistory | None,
        on_damage: Callable[[str], None],
    ) -> None:
        """`history`: the fragments of the log, if the server was told of any. `on_damage` hears of a replica that
        can't read what it holds: it has to be repaired, so it ends the session."""
        self.owner = owner
        self.history = history
        self._links = links
        self._settings = settings
        self._on_damage = on_damage
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._next_source = 0

    # ------------------------------------------------------------------ waiting

    def mark_moved(self) -> None:
        """More is committed, or nothing will be any more: whoever waits looks again."""
        waiting, self._waiting = self._waiting, {}
        for news in waiting:
            if not news.done():
                news.set_result(None)

    async def wait(self, request: Read) -> None:
        """Wait, if the reader asks for that, until what it wants to read first is committed. Takes no memory."""
        if request.first < 0:
            raise ProtocolError(f"a read from {request.first}")
        if request.first > self.owner.committed and request.wait_ms:
            try:
                async with asyncio.timeout(min(request.wait_ms / 1000, self._settings.read_wait_s_max)):
                    while self.owner.committed < request.first and self.owner.stopped is None:
                        await self._moved()
            except TimeoutError:
                pass

    async def _moved(self) -> None:
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[news] = None
        try:
            await news
        finally:
            self._waiting.pop(news, None)

    # ------------------------------------------------------------------ ranges and bodies

    async def read(self, request: Read) -> Batches:
        """Committed batches from `request.first` on: from memory if it reaches back far enough, else from a replica."""
        self._check_opened()
        committed = self.owner.committed
        if request.first > committed:
            return Batches(committed)
        bytes_max = min(request.bytes_max, self._settings.read_bytes_max)
        if not request.after_time_us:
            cached = self._from_cache(request, bytes_max)
            if cached is not None:
                return Batches(committed, payload=cached)
        raw = await self.read_history(
            request.first,
            committed,
            bytes_max,
            with_data=bool(request.with_data),
            after_time_us=request.after_time_us,
            part_last=request.part_last,
        )
        return Batches(committed, payload=[raw])

    def _check_opened(self) -> None:
        """Before its first session an owner does not know what is committed: it may not say that there is nothing."""
        owner = self.owner
        if owner.stopped is not None:
            raise fresh(owner.stopped)  # one error for many requests
        if not owner.counts["sessions"]:
            raise PartitionNotReady(f"partition {owner.partition} is not ready: {owner.readiness.waits_for}")

    def _from_cache(self, request: Read, bytes_max: int) -> list[bytes] | None:
        """Read from the cache: None when it does not tell, an empty list when no batch begins in that part."""
        found: list[bytes] = []
        first, size, in_part = request.first, 0, request.part_last >= 0
        while size < bytes_max and (batch := self.owner.cache.holding(first)) is not None:
            if not in_part or batch.first >= request.first:
                raw = batch.raw if request.with_data else _without_data(batch)
                found.append(raw)
                size += len(raw)
            first = batch.last + 1
            if in_part and first > request.part_last:
                return found
        return found or None

    async def fetch(self, request: Fetch) -> Bodies:
        """The bodies of single transactions, each checked against its CRC before it is sent."""
        if len(request.ids) > 8 * FETCH_MAX:
            raise ProtocolError(f"a fetch of more than {FETCH_MAX} bodies")
        self._check_opened()
        bodies: list[bytes] = []
        crcs: list[int] = []
        batch: Batch | None = None
        size = 0
        for transaction in parse_fetch(request):
            if not 0 <= transaction <= self.owner.committed:
                raise BeyondLog(f"transaction {transaction}; the committed high-water mark is {self.owner.committed}")
            if batch is None or not batch.first <= transaction <= batch.last:
                batch = await self._batch_holding(transaction)
            body = batch.body(transaction)
            size += len(body)
            if size > 4 * self._settings.read_bytes_max + self._settings.inline_bytes_max:
                raise ProtocolError("a fetch of more bytes than one answer holds: ask for fewer ids at a time")
            bodies.append(body)
            crcs.append(batch.data_crcs[transaction - batch.first])
        return encode_bodies(bodies, crcs)

    async def _batch_holding(self, transaction: TransactionId) -> Batch:
        cached = self.owner.cache.holding(transaction)
        if cached is not None:
            return Batch.parse(cached.raw, verify=False)
        raw = await self.read_history(transaction, self.owner.committed, HEADER_BYTES)
        if not raw:
            raise PartitionNotReady(f"no replica told transaction {transaction}")
        try:
            batch = Batch.parse(raw)
        except BatchDamaged as error:  # on its way here: the replica had checked what it read
            raise PartitionNotReady(f"transaction {transaction} came damaged from a replica: {error}") from None
        if not batch.first <= transaction <= batch.last:
            raise PartitionNotReady(f"a replica told {batch.first} to {batch.last} for transaction {transaction}")
        return batch

    # ------------------------------------------------------------------ history

    async def read_history(
        self,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        *,
        with_data: bool = True,
        after_time_us: int = 0,
        part_last: TransactionId = WHOLE,
    ) -> memoryview:
        """Read committed batches from `first` on from an engaged replica; `last` must be committed.

        With `part_last`, only those that begin at `first` or above and at that id or below. When none of the replicas
        holds these any more, from the fragments, and then it raises what `ArchivedHistory.read` does, or
        `HistoryTrimmed` in a server that knows of none.
        """
        owner = self.owner
        if last > owner.committed:
            raise BeyondLog(f"{last} is above the committed high-water mark {owner.committed}")
        try:
            return await self._from_replicas(first, last, bytes_max, with_data, after_time_us, part_last)
        except HistoryTrimmed as trimmed:
            history = needed(self.history, trimmed, owner.partition)
        # Before it is read: what is archived meanwhile was not looked at.
        reached = await history.up_to(owner.partition) if after_time_us else NO_TRANSACTION
        batches = await history.read(owner.partition, first, last, bytes_max, after_time_us)
        if not batches and after_time_us:  # none of that time below what the replicas hold
            first = max(first, reached + 1)
            return await self._from_replicas(first, last, bytes_max, with_data, after_time_us, part_last)
        if part_last >= 0:
            batches = [batch for batch in batches if first <= batch.first <= part_last]
        return memoryview(b"".join(batch.view if with_data else batch.without_data() for batch in batches))

    async def _from_replicas(
        self,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        with_data: bool,
        after_time_us: int,
        part_last: TransactionId,
    ) -> memoryview:
        """Read from an engaged replica. Raises `HistoryTrimmed` when none could read it and one has dropped it.

        A replica that cannot read is passed over, and ends the session: it has to be repaired. When none of them can,
        that is `PartitionNotReady`, whatever they say: what ails a replica passes, for those who ask here.
        """
        session = self.owner.session
        if session is None:
            raise PartitionNotReady(f"partition {self.owner.partition} is not ready: {self.owner.readiness.waits_for}")
        request = ReadBatches(session.id, first, last, bytes_max, int(with_data), after_time_us, part_last)
        trimmed: HistoryTrimmed | None = None
        names = list(session.engaged)
        self._next_source += 1
        troubles: list[str] = []
        for turn in range(len(names)):
            name = names[(self._next_source + turn) % len(names)]
            try:
                answer = expect(await self.ask(name, request), Batches)
                return memoryview(answer.payload[0] if answer.payload else b"")
            except HistoryTrimmed as refused:
                trimmed = refused
            except PolonaiseError as failed:
                troubles.append(f"{name}: {failed}")
                if failed.code in ("segment_damaged", "partition_unavailable") and self.owner.session is session:
                    self._on_damage(troubles[-1])
        if trimmed is not None:
            raise trimmed
        raise PartitionNotReady(f"no engaged replica could read {first} just now: {'; '.join(troubles) or 'none'}")

    async def ask(self, name: StorageId, message: Message) -> Message:
        """A replica's answer to a bulk request. Raises what it refused with, or `ConnectionLost`."""
        return await self._links[name].ask_bulk(message, self.owner.partition)


def _without_data(batch: Committed) -> bytes:
    return Batch(memoryview(batch.raw)).without_data()
