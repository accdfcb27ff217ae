"""Feeds: the tail to everybody who has caught up, at once; history to the others, on a path of their own."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from polonaise.errors import BatchDamaged, BeyondLog, HistoryTrimmed, PartitionNotReady, PolonaiseError
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.server.history import needed
from polonaise.server.mounts import Mount
from polonaise.server.protocol.feed import Committed, TailCache
from polonaise.server.replicas import expect
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_TRANSACTION, TransactionId
from polonaise.wire.messages import WHOLE, Batches, ReadBatches

if TYPE_CHECKING:
    from polonaise.server.owner import Owner


_log = logging.getLogger(__name__)

_HISTORY_READS_MAX = 8
"""Laggards of one partition that are read for at the same time: a flood of mounts must not hold a flood of history."""


class Feeding:
    """Feeds one partition's mounts from the cache, and reads what the cache no longer has from the replicas."""

    def __init__(self, host: Host, settings: ServerSettings, owner: Owner) -> None:
        self._host = host
        self._settings = settings
        self._owner = owner
        self.cache = TailCache(settings.cache_bytes_max)
        self._news = asyncio.Event()
        self._history_reads = asyncio.Semaphore(_HISTORY_READS_MAX)
        self._next_source = 0
        self._tasks: dict[asyncio.Task[None], None] = {}

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._news.set()

    # ------------------------------------------------------------------ the tail

    def commit(self, batch: Committed) -> None:
        """A batch is committed: to the cache, and to every mount that waits for exactly this one."""
        self.cache.add(batch)
        for mount in list(self._owner.mounts.values()):
            subscription = mount.subscription
            if not mount.feeding and batch.first <= subscription.next_id <= batch.last and mount.may_send:
                mount.send(batch, batch.last)
        self.on_committed()

    def on_committed(self) -> None:
        """Something is committed: whoever waits for it looks again."""
        self._news.set()
        self._news = asyncio.Event()
        for mount in list(self._owner.mounts.values()):
            self.wake(mount)

    async def wait_for(self, transaction: TransactionId) -> None:
        """Until this id is committed. Callers bring a deadline."""
        while self._owner.committed < transaction and self._owner.stopped is None:
            await self._news.wait()

    # ------------------------------------------------------------------ the second path

    def wake(self, mount: Mount) -> None:
        """See to it that a mount which is behind gets fed: after a commit, and when it gives credit."""
        if not mount.feeding and mount.subscription.next_id <= self._owner.committed and mount.subscription.has_credit:
            mount.feeding = True
            task = self._host.spawn(self._feed(mount), f"feed of client {mount.client_id}")
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _feed(self, mount: Mount) -> None:
        """Feed until the mount has caught up, is out of credit, or is gone."""
        subscription, owner = mount.subscription, self._owner
        try:
            while self._is_current(mount) and subscription.has_credit and subscription.next_id <= owner.committed:
                await mount.connection.wait_writable()
                if not self._is_current(mount):
                    return
                batch = self.cache.holding(subscription.next_id)
                if batch is not None:
                    mount.send(batch, owner.committed)
                    continue
                await self._feed_history(mount)
        except PolonaiseError:
            pass  # Its connection is gone, and with it the mount.
        finally:
            mount.feeding = False
        if self._is_current(mount):
            self.wake(mount)

    async def _feed_history(self, mount: Mount) -> None:
        subscription = mount.subscription
        before = subscription.next_id
        try:
            async with self._history_reads:
                raw = await self.read(subscription.next_id, self._owner.committed, self._settings.copy_bytes)
        except (PartitionNotReady, BeyondLog):
            raw = memoryview(b"")
        except PolonaiseError as error:
            self._refuse(mount, error)
            return
        offset = 0
        while offset < len(raw):
            try:
                batch = Batch.parse(raw, offset)
            except BatchDamaged as error:
                _log.warning("partition %d: a damaged batch from a replica: %s", self._owner.partition, error)
                break
            offset += batch.length
            await mount.connection.wait_writable()
            if not self._is_current(mount):
                return
            if subscription.has_credit and batch.first <= subscription.next_id <= batch.last:
                history = Committed(batch.first, batch.last, bytes(batch.view))
                mount.send(history, self._owner.committed, cached=False)
        if subscription.next_id == before:
            await asyncio.sleep(self._settings.retry_s_min)

    def _refuse(self, mount: Mount, error: PolonaiseError) -> None:
        """What this mount is to be fed next is in no replica and can't be had: who mounted is told why."""
        if self._is_current(mount):
            _log.warning("partition %d: client %d can't be fed: %s", self._owner.partition, mount.client_id, error)
            del self._owner.mounts[mount.client_id]
            mount.connection.refuse(error, partition=self._owner.partition)

    def _is_current(self, mount: Mount) -> bool:
        return self._owner.mounts.get(mount.client_id) is mount and mount.connection.closed is None

    # ------------------------------------------------------------------ history

    async def read(
        self,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        *,
        with_data: bool = True,
        after_time_us: int = 0,
        part_last: TransactionId = WHOLE,
    ) -> memoryview:
        """Committed batches from `first` on, from an engaged replica; `last` must be committed.

        With `part_last`, only those that begin at `first` or above and at that id or below. When none of the replicas
        holds these any more, from the fragments, and then it raises what `History.read` does, or `HistoryTrimmed` in a
        server that knows of none.
        """
        owner = self._owner
        if last > owner.committed:
            raise BeyondLog(f"{last} is above the committed high-water mark {owner.committed}")
        try:
            return await self._from_replicas(first, last, bytes_max, with_data, after_time_us, part_last)
        except HistoryTrimmed as trimmed:
            history = needed(owner.history, trimmed, owner.partition)
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
        """Of the engaged ones. Raises `HistoryTrimmed` when none could read them and one has dropped them.

        A replica that cannot read them is passed over, and ends the session: it has to be repaired. When none of
        them can, that is `PartitionNotReady`, whatever they say: what ails a replica passes, for those who ask here.
        """
        owner = self._owner
        writing = owner.writing
        if writing is None:
            raise PartitionNotReady(f"partition {owner.partition} is not ready: {owner.waits_for}")
        request = ReadBatches(writing.session, first, last, bytes_max, int(with_data), after_time_us, part_last)
        trimmed: HistoryTrimmed | None = None
        names = list(writing.engaged)
        self._next_source += 1
        troubles: list[str] = []
        for turn in range(len(names)):
            name = names[(self._next_source + turn) % len(names)]
            try:
                answer = expect(await owner.link(name).ask_bulk(request, owner.partition), Batches)
                return memoryview(answer.payload[0] if answer.payload else b"")
            except HistoryTrimmed as refused:
                trimmed = refused
            except PolonaiseError as failed:
                troubles.append(f"{name}: {failed}")
                if failed.code in ("segment_damaged", "partition_unavailable"):
                    writing.end(troubles[-1])
        if trimmed is not None:
            raise trimmed
        raise PartitionNotReady(f"no engaged replica could read {first} just now: {'; '.join(troubles) or 'none'}")
