"""One partition's subscription over all its mounts: the place of the feed, and the meaning of a mount's answer."""

from __future__ import annotations

import enum
from typing import Final

from polonaise.errors import ClientAhead, LogForked, OutOfOrder
from polonaise.log.batch import Batch
from polonaise.terms import Generation, MountState, PartitionId, TransactionId


class Continuity:
    """The place up to which a partition's batches have been received, whole and in order."""

    __slots__ = ("_last_crc", "_last_seen", "next_id")

    def __init__(self, next_id: TransactionId) -> None:
        self.next_id = next_id
        """The id that has to come next."""
        self._last_seen: TransactionId | None = None
        self._last_crc = 0

    def follows(self, batch: Batch) -> bool:
        """Move on past this batch; return True if it brings the next id, False if it brings nothing new. Raises
        `OutOfOrder` for a gap, and `LogForked` if the batch contradicts the last one, as its successor or its
        repetition."""
        if batch.first > self.next_id:
            raise OutOfOrder(
                f"ids {self.next_id} to {batch.first - 1} of partition {batch.partition} are missing: read again"
            )
        # Before a repetition is passed over: it may be of another log.
        if self._last_seen is not None:
            self._check_link(batch)
        if batch.last < self.next_id:
            return False
        self.next_id = batch.last + 1
        self._last_seen = batch.last
        self._last_crc = batch.crc
        return True

    def _check_link(self, batch: Batch) -> None:
        follows = batch.first - 1 == self._last_seen and batch.previous_crc != self._last_crc
        repeats = batch.last == self._last_seen and batch.crc != self._last_crc
        if follows or repeats:
            raise LogForked(
                f"partition {batch.partition}: the batch of ids {batch.first} to {batch.last} does not fit the one "
                f"received before it, which ended at {self._last_seen}: stop, and compare the replicas"
            )

    def rewind(self, next_id: TransactionId) -> None:
        """Go back to an earlier id, and check no CRC there: that of the batch before it is not kept."""
        self.next_id = next_id
        self._last_seen = None


class MountVerdict(enum.Enum):
    """The meanings of the answer to a mount."""

    READY = "ready"
    """Everything from before the mount is decided and was fed; appends may be sent under the answer's generation."""
    ASK_AGAIN = "ask again"
    """The partition has no session, or its owner can't prove a commit just now; mount again."""
    CLIENT_AHEAD = "client ahead"
    """The log lacks what this client has applied, or was fed: the partition stops, and a person has to look."""
    OLD_GENERATION = "old generation"
    """The answer is of an owner that has been replaced, and is not believed."""
    INCOMPLETE = "incomplete"
    """The owner says ready at a committed high-water mark above what was fed so far, and is not believed."""


def ahead_of_log(partition: PartitionId, mark: TransactionId, end: TransactionId) -> ClientAhead:
    where = f"ids up to {mark} are applied, or were fed, and the log ended at {end}"
    why = (
        "the database is of another log, its high-water mark was set forward (a SqlView's is in the table "
        "polonaise_marks, or its marks_table), or the log lost transactions; compare before anything else. Then restore"
        " the database from a backup of one moment, or drop its tables, and the log brings everything again"
    )
    return ClientAhead(f"partition {partition}: {where}: {why}")


class Subscription:
    """The place of a partition's feed, which each mount takes up where the last one stopped. `received` is the last id
    that was fed, or the mark after which the feed starts; it is rewound when the application's database has gone back.
    `judged`, up to which fates were read from the feed, only rises, so that no fate is told twice."""

    __slots__ = ("_expecting_first", "_mounted_at", "continuity", "generation_known", "judged")

    def __init__(self, client_high_water_mark: TransactionId) -> None:
        self.continuity: Final = Continuity(client_high_water_mark + 1)
        self.judged = client_high_water_mark
        self.generation_known: Generation = 0
        """The largest generation of the partition seen so far; `Mounting` raises it to that of the assignment."""
        self._expecting_first = False
        self._mounted_at = client_high_water_mark

    @property
    def received(self) -> TransactionId:
        return self.continuity.next_id - 1

    def mount(self) -> TransactionId:
        """Begin a mount; return the mark after which its feed has to start."""
        self._expecting_first = True
        self._mounted_at = self.received
        return self.received

    def rewind(self, client_high_water_mark: TransactionId) -> None:
        self.continuity.rewind(client_high_water_mark + 1)

    def fed(self, batch: Batch) -> bool:
        """Take a fed batch; return whether it brings ids above `received`.

        After a rewind, batches of the mount before may still arrive on the same connection, with a gap above
        `received`. So until the mount has brought an id above `received`, a gap returns False; from then on it raises
        `OutOfOrder`. Raises `LogForked` as `Continuity.follows`.
        """
        try:
            brings = self.continuity.follows(batch)
        except OutOfOrder:
            if self._expecting_first:
                return False
            raise
        self._expecting_first = self._expecting_first and not brings
        return brings

    def unjudged(self, batch: Batch) -> bool:
        """Return whether the fates in this batch have not been read yet, and count them as read."""
        if batch.last <= self.judged:
            return False
        self.judged = batch.last
        return True

    def mounted(self, state: MountState, generation: Generation, high_water_mark: TransactionId) -> MountVerdict:
        """Return what this answer to the mount means, and remember its generation if that is newer."""
        # First of all: whatever else an owner says that was replaced, it may not prove.
        if generation < self.generation_known:
            return MountVerdict.OLD_GENERATION
        self.generation_known = generation
        if state is MountState.NOT_READY:
            return MountVerdict.ASK_AGAIN
        # The committed high-water mark is proved after the mount arrived: below the mount's mark, the log is short.
        if state is MountState.CLIENT_AHEAD or high_water_mark < self._mounted_at:
            return MountVerdict.CLIENT_AHEAD
        return MountVerdict.READY if high_water_mark <= self.received else MountVerdict.INCOMPLETE
