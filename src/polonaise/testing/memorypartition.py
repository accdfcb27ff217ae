"""One partition in memory: the owner of production, over one replica that is a list of batches."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Any, Final

from polonaise.coordination.values import PartitionValue
from polonaise.host import Clock
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol.commitclock import Moment
from polonaise.server.protocol.effects import (
    Answer,
    AwaitRoom,
    AwaitTurn,
    ConfirmClean,
    Effect,
    EffectQueue,
    EndSession,
    FeedBatch,
    MarkMoved,
    ReadHistory,
    Replicate,
)
from polonaise.server.protocol.mounts import Committed
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.session import StartedSession
from polonaise.server.servedpartition import send
from polonaise.server.settings import ServerSettings
from polonaise.terms import NO_TRANSACTION, Generation, PartitionId, SessionId, StorageId, Transaction, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import Batches, Flushed, Mounted, ReadBatches

GENERATION: Final[Generation] = 1
BEGINNING_US: Final = 946_684_800_000_000
"""The beginning of the year 2000, in microseconds UTC, so that every run has the same commit times."""
STEP_US: Final = 1_000
_REPLICAS: Final[tuple[StorageId, ...]] = ("memory-0", "memory-1", "memory-2")
"""The names under which the one replica takes part, one zone each: an append may need up to 3 copies and 3 zones."""
_FIRST_SESSION: Final = 1
_SETTINGS: Final = ServerSettings(lock_entries=1 << 16)


class MemoryReplica:
    """A partition's only replica. What it stores counts as synced."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    @property
    def last(self) -> TransactionId:
        return self.batches[-1].last if self.batches else NO_TRANSACTION

    def from_id(self, first: TransactionId) -> list[Batch]:
        return self.batches[bisect_left(self.batches, first, key=lambda batch: batch.last) :]

    async def ask_bulk(self, message: Message, partition: PartitionId, deadline_s: float | None = None) -> Message:
        assert isinstance(message, ReadBatches)
        encoded: list[bytes] = []
        size = 0
        for batch in self.from_id(message.first):
            if message.after_time_us and batch.commit_time_us < message.after_time_us:
                continue
            if message.part_last >= 0 and batch.first < message.first:
                continue
            if batch.last > message.last or 0 <= message.part_last < batch.first:
                break
            encoded.append(bytes(batch.view) if message.with_data else batch.without_data())
            size += batch.length
            if size >= message.bytes_max:
                break
        return Batches(message.last, payload=[b"".join(encoded)])


class MemoryPartition:
    """Brings a partition's owner its events, and carries out the owner's effects in their order."""

    def __init__(self, partition: PartitionId, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock
        self._replica = MemoryReplica()
        self._time_us = BEGINNING_US
        self.feed_suspended = False
        self._withheld: list[Effect] = []
        self.carry_out = EffectQueue(self._carry_out)
        self.owner = PartitionOwner(partition, GENERATION, _SETTINGS)
        links: Any = dict.fromkeys(_REPLICAS, self._replica)
        self.reader = PartitionReader(self.owner, links, _SETTINGS, None, lambda reason: None)
        self._start_session(_FIRST_SESSION)

    @property
    def now(self) -> Moment:
        """The clock's time, and the next batch's commit time, which is the same in every run."""
        return Moment(self._clock.monotonic_s(), self._time_us + STEP_US)

    @property
    def mark(self) -> TransactionId:
        return self._replica.last

    @property
    def registers(self) -> dict[bytes, bytes]:
        return self.owner.registers.values

    def transactions(self) -> list[Transaction]:
        """Return all committed transactions, without the library's own."""
        return [tx for batch in self._replica.batches for tx in batch.transactions()]

    # ------------------------------------------------------------------ sessions

    def _start_session(self, session: SessionId) -> None:
        """Start a session at the end of the replica's log; the replica stores at once all that it is sent."""
        batches = self._replica.batches
        # The owner's registers are those at its committed mark; the batches behind it change them further.
        values = dict(self.owner.registers.values)
        for batch in self._replica.from_id(self.owner.committed + 1):
            registers.apply(values, batch.registers)
        started = StartedSession(
            value=PartitionValue(GENERATION, session, _REPLICAS),
            closing=self._replica.last,
            last_crc=batches[-1].crc if batches else 0,
            commit_time_us=self._time_us,
            registers=values,
            engaged=dict.fromkeys(_REPLICAS, self._replica),
            zones={name: name for name in _REPLICAS},
            first=session == _FIRST_SESSION,
        )
        self.carry_out(self.owner.session_started(started, self.now))

    # ------------------------------------------------------------------ effects

    def _carry_out(self, effect: Effect) -> None:
        """Carry out one effect, or withhold it while the feed is suspended."""
        if self.feed_suspended and _is_of_feed(effect):
            self._withheld.append(effect)
            return
        match effect:
            case ConfirmClean():
                pass
            case Replicate():
                self._store(effect)
            case ReadHistory():
                self._read_history(effect)
            case AwaitRoom(mount):
                asyncio.get_running_loop().call_soon(lambda: self.carry_out(self.owner.room(mount)))
            case AwaitTurn():
                asyncio.get_running_loop().call_soon(lambda: self.carry_out(self.owner.turn(self.now)))
            case MarkMoved():
                self.reader.moved.wake()
            case EndSession():
                # An owner ends a session by itself now and then, for a checkpoint.
                self._start_session(effect.session + 1)
            case _:
                send(effect, self.partition, GENERATION)

    def suspend_feed(self) -> None:
        self.feed_suspended = True

    def resume_feed(self) -> None:
        self.feed_suspended = False
        withheld, self._withheld = self._withheld, []
        self.carry_out(withheld)

    def _store(self, effect: Replicate) -> None:
        if effect.batch is not None:
            self._time_us += STEP_US
            self._replica.batches.append(Batch.parse(effect.batch.raw))
        for name in _REPLICAS:
            self.carry_out(self.owner.stored(name, self._replica, effect.session, effect.number, self.now))

    def _read_history(self, effect: ReadHistory) -> None:
        batches = [
            Committed(batch.first, batch.last, bytes(batch.view)) for batch in self._replica.from_id(effect.first)
        ]
        self.carry_out(self.owner.history_read(effect.mount, batches))


def _is_of_feed(effect: Effect) -> bool:
    return isinstance(effect, FeedBatch) or (
        isinstance(effect, Answer) and isinstance(effect.message, (Mounted, Flushed))
    )
