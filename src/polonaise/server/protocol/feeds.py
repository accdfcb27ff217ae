"""The feeds of a partition: its recent batches, which clients are mounted, what each is fed and told of its appends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from polonaise.errors import NotOwner, Overloaded, PartitionNotReady, PolonaiseError, ProtocolError
from polonaise.log.batch import Batch
from polonaise.server.protocol.effects import (
    Answer,
    AwaitRoom,
    Effect,
    FeedBatch,
    ReadHistory,
    RefuseRequest,
    TellFailures,
)
from polonaise.server.protocol.mounts import ClientMount, Committed, Flow
from polonaise.server.protocol.order import Refusal, SealedBatch
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import (
    NO_TRANSACTION,
    BodyForm,
    ClientId,
    FailureReason,
    Generation,
    MountState,
    PartitionId,
    TransactionId,
)
from polonaise.wire.appends import FailedAppend, ReceivedAppends
from polonaise.wire.messages import Mount as MountRequest
from polonaise.wire.messages import Mounted


class TailCache:
    """Caches the most recent committed batches, bounded in bytes, without a gap up to the mark; what lagging mounts
    read from replicas stays out.
    """

    __slots__ = ("_batches", "_bytes_max", "_firsts", "_start", "bytes", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        """How often an id was older than all that is held."""
        self._firsts: list[TransactionId] = []
        self._batches: list[Committed] = []
        self._start = 0

    def add(self, batch: Committed) -> None:
        """Add a batch that follows on the last one; drop the oldest ones above the bound."""
        self._firsts.append(batch.first)
        self._batches.append(batch)
        self.bytes += len(batch.raw)
        start = self._start
        while self.bytes > self._bytes_max and start < len(self._batches) - 1:
            self.bytes -= len(self._batches[start].raw)
            self._batches[start] = _GONE
            start += 1
        self._start = start
        # The lists are cut now and then only: cutting them at each commit would move all that is left.
        if start > 1024 and start > len(self._batches) // 2:
            del self._firsts[:start], self._batches[:start]
            self._start = 0

    def holding(self, transaction: TransactionId) -> Committed | None:
        """Return the batch that holds this id; None if the cache lacks it."""
        position = bisect_right(self._firsts, transaction, lo=self._start) - 1
        if position < self._start:
            self.misses += 1
            return None
        batch = self._batches[position]
        if batch.last < transaction:
            return None
        self.hits += 1
        return batch

    def clear(self) -> None:
        self._firsts.clear()
        self._batches.clear()
        self.bytes = self._start = 0


_GONE = Committed(-1, -1, b"")


_FLUSHES_MAX: Final = 1_000
"""With this many answers waiting for a mount's feed, another flush is refused: a client must read what it is fed."""


class Feeds:
    """The mounts of one partition under one generation, fed up to the committed mark that the owner gives."""

    __slots__ = ("_cache", "_generation", "_partition", "_settings", "mounts", "trouble")

    def __init__(
        self, partition: PartitionId, generation: Generation, settings: OwnerSettings, cache: TailCache
    ) -> None:
        self._partition = partition
        self._generation = generation
        self._settings = settings
        self._cache = cache
        self.mounts: dict[ClientId, ClientMount] = {}
        self.trouble = ""
        """Why appends are not committed, as the ready mounts were told it; empty if nothing keeps them."""

    # ------------------------------------------------------------------ who is mounted

    def mount_of(self, client_id: ClientId, connection: Hashable) -> ClientMount | None:
        """Return the client's mount if it is on this connection; messages of its older connections are void."""
        mount = self.mounts.get(client_id)
        return mount if mount is not None and mount.connection is connection else None

    def is_current(self, mount: ClientMount) -> bool:
        """Whether this is still the client's mount: it has neither left nor mounted anew."""
        return self.mounts.get(mount.client_id) is mount

    def subscribe(self, client_id: ClientId, connection: Hashable, message: MountRequest) -> ClientMount:
        """Mount a client; its older mount is void from now on.

        Raises `ProtocolError` for an invalid mount and after one on a newer connection, `Overloaded` if too many
        clients are mounted, and `NotOwner` if the client has seen a later generation than this one.
        """
        self._check(client_id, message)
        mount = self.mounts[client_id] = ClientMount(client_id, connection, message)
        return mount

    def _check(self, client_id: ClientId, message: MountRequest) -> None:
        before = self.mounts.get(client_id)
        if before is not None and before.connection_sequence > message.connection_sequence:
            raise ProtocolError("this client has mounted on a newer connection")
        if client_id < 1:
            raise ProtocolError("invalid mount: the client has no id; the coordinator gives them out")
        if message.client_high_water_mark < NO_TRANSACTION or message.form > max(BodyForm) or message.credit < 0:
            raise ProtocolError(
                f"invalid mount: high-water mark {message.client_high_water_mark} (from {NO_TRANSACTION} on), "
                f"form {message.form} (0 to {max(BodyForm)}), credit {message.credit} (from 0 on)"
            )
        if len(self.mounts) >= self._settings.subscriptions_max and before is None:
            raise Overloaded(f"partition {self._partition} has {len(self.mounts)} mounts, and takes no more")
        # A later owner exists. This one could only tell the client less than it knows already.
        if message.generation_known > self._generation:
            raise NotOwner(
                f"generation {message.generation_known} of partition {self._partition} is not known to this server yet"
            )

    def admit_flush(self, client_id: ClientId, connection: Hashable) -> ClientMount:
        """Return the mount for which a flush is to be answered.

        Raises `PartitionNotReady` if the client has none on this connection, and `Overloaded` if too many answers wait.
        """
        mount = self.mount_of(client_id, connection)
        if mount is None:
            raise PartitionNotReady("this client has no mount on this connection: mount before a flush")
        if mount.answers_waiting >= _FLUSHES_MAX:
            raise Overloaded(
                f"{mount.answers_waiting} answers wait for this client to read its feed: read it before the next flush"
            )
        return mount

    def end(self, mount: ClientMount, error: PolonaiseError | None = None) -> list[Effect]:
        """Make a mount void; with an error, tell its client why."""
        del self.mounts[mount.client_id]
        return [] if error is None else [RefuseRequest(mount.connection, 0, error)]

    def end_all(self, error: PolonaiseError) -> list[Effect]:
        return [effect for mount in list(self.mounts.values()) for effect in self.end(mount, error)]

    # ------------------------------------------------------------------ what each is fed

    def feed(self, mount: ClientMount, committed: TransactionId) -> list[Effect]:
        """Feed a mount from the cache up to `committed`, within its credit; ask to read what the cache lacks."""
        effects: list[Effect] = []
        while mount.next_id <= committed and mount.may_be_fed:
            batch = self._cache.holding(mount.next_id)
            if batch is None:
                mount.flow = Flow.READING
                effects.append(ReadHistory(mount, mount.next_id))
                break
            payload = mount.take(batch)
            effects.append(FeedBatch(mount, committed, payload, shared=payload is batch.raw))
            if mount.flow is Flow.FULL:
                effects.append(AwaitRoom(mount))
        return effects

    def feed_history(self, mount: ClientMount, batches: Sequence[Committed], committed: TransactionId) -> list[Effect]:
        """Feed a mount the batches that were read for it, as far as they follow on its feed and its credit goes."""
        effects: list[Effect] = []
        mount.flow = Flow.OPEN
        for batch in batches:
            # Not `may_be_fed`: these are in memory for this mount already, and would have to be read once more. They
            # are bounded by one read; only the credit is the client's to give.
            if mount.has_credit and batch.first <= mount.next_id <= batch.last:
                effects.append(FeedBatch(mount, committed, mount.take(batch), shared=False))
        if mount.flow is Flow.FULL:
            effects.append(AwaitRoom(mount))
        return effects

    # ------------------------------------------------------------------ what each is told

    def refuse(self, mount: ClientMount, appends: ReceivedAppends, value: int, reason: FailureReason) -> list[Effect]:
        return [TellFailures(mount, [FailedAppend(each, value, reason) for each in appends.sequences.tolist()])]

    def tell(self, refusals: Iterable[Refusal]) -> list[Effect]:
        return self._fail((each.client_id, FailedAppend(each.sequence, each.value, each.reason)) for each in refusals)

    def tell_lost(self, batch: SealedBatch, committed: TransactionId) -> list[Effect]:
        """Tell all clients with appends in a batch that these are not in the log and never will be."""
        columns = Batch(memoryview(batch.raw))
        lost = zip(columns.client_ids.tolist(), columns.sequences.tolist(), strict=True)
        return self._fail(
            (client_id, FailedAppend(sequence, committed, FailureReason.SESSION_ENDED)) for client_id, sequence in lost
        )

    def _fail(self, failures: Iterable[tuple[ClientId, FailedAppend]]) -> list[Effect]:
        """Tell failures on the clients' present mounts; a client without one learns them by its next mount."""
        by_client: dict[ClientId, list[FailedAppend]] = {}
        for client_id, failure in failures:
            by_client.setdefault(client_id, []).append(failure)
        mounts = self.mounts
        return [TellFailures(mounts[each], failed) for each, failed in by_client.items() if each in mounts]

    def tell_trouble(self, trouble: str, committed: TransactionId) -> list[Effect]:
        """Tell the ready mounts what keeps their appends from being committed (empty: nothing), if that has changed."""
        if trouble == self.trouble:
            return []
        self.trouble = trouble
        return [self._tell_trouble(mount, committed) for mount in self.mounts.values() if mount.ready]

    def make_ready(self, mount: ClientMount, committed: TransactionId) -> list[Effect]:
        """Note that the client was just told that it may append; tell it what its appends wait for, if anything."""
        mount.ready = True
        return [self._tell_trouble(mount, committed)] if self.trouble else []

    def _tell_trouble(self, mount: ClientMount, committed: TransactionId) -> Effect:
        state = MountState.NOT_READY if self.trouble else MountState.READY
        window = self._settings.append_window_bytes
        news = Mounted(state, self._generation, committed, window, reason=self.trouble)
        return Answer(mount.connection, 0, news)
