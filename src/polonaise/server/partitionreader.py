"""The reads of one partition: recent batches from memory, history from the replicas, trimmed history from fragments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from polonaise.errors import (
    BatchDamaged,
    BeyondLog,
    DeadlineExceeded,
    HistoryTrimmed,
    PartitionNotReady,
    PolonaiseError,
    ProtocolError,
    fresh,
)
from polonaise.fragments.protocol.coverage import BatchEnd
from polonaise.log.batch import HEADER_BYTES, Batch
from polonaise.patience import PATIENCE_S_MAX, SyncPatience
from polonaise.server.archivedhistory import ArchivedHistory, end_before, required
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLink, expect
from polonaise.server.waiters import Waiters
from polonaise.terms import NO_SESSION, NO_TRANSACTION, StorageId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.fetches import FETCH_MAX, encode_bodies, parse_fetch
from polonaise.wire.messages import WHOLE, Batches, Bodies, Fetch, Read, ReadBatches


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
        """`on_damage` is called when a replica can't read what it holds: only a new session repairs it."""
        self.owner = owner
        self.history = history
        self._links = links
        self._settings = settings
        self._on_damage = on_damage
        self.moved = Waiters()
        """To be woken when more may be committed, or this owner will commit nothing any more."""
        self.patience = SyncPatience(settings.replica_s_max, PATIENCE_S_MAX)
        """How long a replica is waited for until the next one is asked."""
        self._next_source = 0

    # ------------------------------------------------------------------ waiting

    async def wait(self, request: Read) -> None:
        """Wait until the request's first id is committed, its time or `read_wait_s_max` is over, or the ownership ends.

        Raises `ProtocolError` for a negative id.
        """
        if request.first < 0:
            raise ProtocolError(f"invalid read: {request.first} is below the first transaction, 0")
        if request.first > self.owner.committed and request.wait_ms:
            try:
                async with asyncio.timeout(min(request.wait_ms / 1000, self._settings.read_wait_s_max)):
                    while self.owner.committed < request.first and self.owner.stopped is None:
                        await self.moved.woken()
            except TimeoutError:
                pass

    # ------------------------------------------------------------------ ranges and bodies

    async def read(self, request: Read) -> Batches:
        """Return committed batches from `request.first` on, or none if it is not committed yet.

        Raises `PartitionNotReady` before the owner's first session, the reason after the ownership has ended, and what
        `read_history` raises.
        """
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
        """Raise the reason if the owner does not know what is committed: it has had no session, or has ended."""
        owner = self.owner
        if owner.stopped is not None:
            raise fresh(owner.stopped)  # a copy: many requests share this error, and each adds to its traceback
        if not owner.counts["sessions"]:
            raise PartitionNotReady(f"partition {owner.partition} is not ready: {owner.readiness.waits_for}")

    def _from_cache(self, request: Read, bytes_max: int) -> list[bytes] | None:
        """Read from the cache; None if it lacks the ids, an empty list if no batch begins in the part asked for."""
        batches: list[bytes] = []
        first, size, in_part = request.first, 0, request.part_last >= 0
        while size < bytes_max and (batch := self.owner.cache.holding(first)) is not None:
            if not in_part or batch.first >= request.first:
                raw = batch.raw if request.with_data else Batch(memoryview(batch.raw)).without_data()
                batches.append(raw)
                size += len(raw)
            first = batch.last + 1
            if in_part and first > request.part_last:
                return batches
        return batches or None

    async def fetch(self, request: Fetch) -> Bodies:
        """Return the bodies of single transactions, each checked against its CRC.

        Raises `BeyondLog` for an id that is not committed, `ProtocolError` for too many ids or bytes or an id that is
        cut short, `DataDamaged` for a body that does not fit its CRC, and else what `read` raises.
        """
        if len(request.ids) > 8 * FETCH_MAX:
            raise ProtocolError(
                f"a fetch of {len(request.ids) // 8} bodies; the limit is {FETCH_MAX}: ask for fewer ids at a time"
            )
        self._check_opened()
        bodies: list[bytes] = []
        crcs: list[int] = []
        batch: Batch | None = None
        size = 0
        for transaction in parse_fetch(request):
            if not 0 <= transaction <= self.owner.committed:
                raise BeyondLog(
                    f"transaction {transaction} is not committed: the committed high-water mark is "
                    f"{self.owner.committed}"
                )
            if batch is None or not batch.first <= transaction <= batch.last:
                batch = await self.batch_holding(transaction)
            body = batch.body(transaction)
            size += len(body)
            if size > 4 * self._settings.read_bytes_max + self._settings.inline_bytes_max:
                raise ProtocolError("a fetch of more bytes than fit into one answer: ask for fewer ids at a time")
            bodies.append(body)
            crcs.append(batch.data_crcs[transaction - batch.first])
        return encode_bodies(bodies, crcs)

    async def batch_holding(self, transaction: TransactionId) -> Batch:
        """Return the batch that holds a committed transaction, from the cache or as `read_history` reads it."""
        cached = self.owner.cache.holding(transaction)
        if cached is not None:
            return Batch.parse(cached.raw, verify=False)
        raw = await self.read_history(transaction, self.owner.committed, HEADER_BYTES)
        if not raw:
            raise PartitionNotReady(
                f"a replica answered without transaction {transaction}, which is committed: ask again, for each read "
                "begins with the next replica"
            )
        try:
            batch = Batch.parse(raw)
        except BatchDamaged as error:  # damaged on its way here: the replica has checked what it read
            raise PartitionNotReady(f"a replica sent transaction {transaction} damaged: {error}") from None
        if not batch.first <= transaction <= batch.last:
            raise PartitionNotReady(
                f"a replica sent transactions {batch.first} to {batch.last} in place of {transaction}"
            )
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
        """Read committed batches from the one with `first` on, from an engaged replica or, if trimmed, the fragments.

        `last` must be committed; no batch ends above it. About `bytes_max` bytes are read, and one batch at least, if
        any qualifies. With `after_time_us` (µs UTC), from the first batch of that commit time or later. With
        `part_last`, only batches that begin at `first` or above and at that id or below.

        Raises `BeyondLog` if `last` is not committed, `PartitionNotReady` if no replica could read the batches now,
        and, for trimmed ids, what `ArchivedHistory.read` raises, or `HistoryTrimmed` in a server without fragments.
        """
        owner = self.owner
        if last > owner.committed:
            raise BeyondLog(f"transaction {last} is above the committed high-water mark {owner.committed}")
        request = ReadBatches(NO_SESSION, first, last, bytes_max, int(with_data), after_time_us, part_last)
        try:
            return await self._from_replicas(request)
        except HistoryTrimmed as trimmed:
            history = required(self.history, trimmed, owner.partition)
            held_from, follows = trimmed.first, partial(self._end_before, trimmed.first)
        # Asked before the fragments are read: what is archived meanwhile is not in what was read.
        reached = await history.up_to(owner.partition) if after_time_us else NO_TRANSACTION
        batches = await history.read(owner.partition, first, last, bytes_max, after_time_us, follows)
        if not batches and after_time_us:  # all fragments are of an earlier time: go on behind them
            # What the replicas hold may be passed over in fragments, which may be of another life of the log there. A
            # node of an older version does not say from where on it holds the log.
            request.first = max(first, min(reached + 1, held_from or reached + 1))
            try:
                return await self._from_replicas(request)
            except HistoryTrimmed as error:
                raise PartitionNotReady(
                    f"no engaged replica could send transaction {request.first} just now: {error}"
                ) from error
        if part_last >= 0:
            batches = [batch for batch in batches if first <= batch.first <= part_last]
        return memoryview(b"".join(batch.view if with_data else batch.without_data() for batch in batches))

    async def _end_before(self, first: TransactionId) -> BatchEnd:
        try:
            return end_before(await self.read_held(first, self.owner.committed, 1))
        except (HistoryTrimmed, BatchDamaged) as error:
            raise PartitionNotReady(
                f"no engaged replica could send the batch of transaction {first} just now: {error}"
            ) from error

    async def read_held(self, first: TransactionId, last: TransactionId, bytes_max: int) -> memoryview:
        """Read batches as `read_history` does, without their data and from an engaged replica only.

        Raises `HistoryTrimmed` for ids that the replicas have dropped, also if fragments hold them.
        """
        return await self._from_replicas(ReadBatches(NO_SESSION, first, last, bytes_max, 0, 0, WHOLE))

    async def _from_replicas(self, request: ReadBatches) -> memoryview:
        """Read from an engaged replica of the present session, whose number is written into the request.

        A replica that can't read what it holds is passed over, and ends the session, so that it is repaired. If none
        sends the batches, raises `HistoryTrimmed` when one has dropped the ids, else `PartitionNotReady`: for a reader
        it passes.
        """
        session = self.owner.session
        if session is None:
            raise PartitionNotReady(f"partition {self.owner.partition} is not ready: {self.owner.readiness.waits_for}")
        request.session = session.id
        trimmed: HistoryTrimmed | None = None
        names = list(session.engaged)
        # Each read begins with another replica, so that they share the work.
        self._next_source += 1
        troubles: list[str] = []
        deadline_s, late = self.patience.seconds, 0
        for turn in range(len(names)):
            name = names[(self._next_source + turn) % len(names)]
            try:
                answer = expect(await self.ask_to_read(name, request), Batches)
                return memoryview(answer.payload[0] if answer.payload else b"")
            except HistoryTrimmed as refused:
                trimmed = refused
            except PolonaiseError as failed:
                troubles.append(f"{name}: {failed}")
                late += isinstance(failed, DeadlineExceeded)
                if failed.code in ("segment_damaged", "partition_unavailable") and self.owner.session is session:
                    self._on_damage(troubles[-1])
        if trimmed is not None:
            raise trimmed
        if late and late == len(names):
            self.patience.exceeded(deadline_s, asyncio.get_running_loop().time())
        raise PartitionNotReady(
            f"no engaged replica could read transaction {request.first} just now: {'; '.join(troubles) or 'none'}"
        )

    async def ask_to_read(self, name: StorageId, message: Message) -> Message:
        """Ask a replica to read, as `ask` does, but only for as long as any replica lately needed."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        answer = await self._links[name].ask_bulk(message, self.owner.partition, self.patience.seconds)
        self.patience.answered(loop.time() - began_s, loop.time())
        return answer

    async def ask(self, name: StorageId, message: Message) -> Message:
        """Ask a replica over the bulk connection (`StorageLink.ask_bulk`)."""
        return await self._links[name].ask_bulk(message, self.owner.partition)
