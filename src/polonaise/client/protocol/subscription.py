"""One partition's subscription over all its mounts: where the feed is, and what an answer to a mount means."""

from __future__ import annotations

import enum

from polonaise.client.protocol.continuity import Continuity
from polonaise.errors import OutOfOrder
from polonaise.log.batch import Batch
from polonaise.terms import Generation, MountState, TransactionId


class MountVerdict(enum.Enum):
    """What the answer to a mount means for this client."""

    READY = "ready"
    """Everything before is decided and was fed; appends may go out under the answer's generation."""
    ASK_AGAIN = "ask again"
    """The owner has no session yet."""
    CLIENT_AHEAD = "client ahead"
    """The log lacks what this client has applied. Nothing goes on before somebody has looked."""
    OLD_GENERATION = "old generation"
    """From an owner that has been replaced: not to be believed."""
    INCOMPLETE = "incomplete"
    """It says ready and has not fed all it should have: not to be believed either."""


class Subscription:
    """Feeds go on where the last one stopped, whatever happens between.

    Two marks are kept apart. `received` is what the application has been given, and it may be rewound when the
    application's database went back. `judged` is how far the fates of appends have been read from the feed: it only
    rises, so that no fate is told twice.
    """

    __slots__ = ("_expecting_first", "_mounted_at", "continuity", "generation_known", "judged")

    def __init__(self, client_high_water_mark: TransactionId) -> None:
        self.continuity = Continuity(client_high_water_mark + 1)
        self.judged = client_high_water_mark
        self.generation_known: Generation = 0
        """The largest generation of the partition seen so far."""
        self._expecting_first = False
        self._mounted_at = client_high_water_mark

    @property
    def received(self) -> TransactionId:
        return self.continuity.next_id - 1

    def mount(self) -> TransactionId:
        """A mount goes out: the mark from which it has to feed."""
        self._expecting_first = True
        self._mounted_at = self.received
        return self.received

    def rewind(self, client_high_water_mark: TransactionId) -> None:
        """The application's mark has gone back: what follows it is needed once more."""
        self.continuity.rewind(client_high_water_mark + 1)

    def fed(self, batch: Batch) -> bool:
        """Whether this batch brings something that the application was not given.

        Until the first batch of a mount arrives, remains of the feed before it may still come on the same connection;
        they lie further on and are passed over. Raises `OutOfOrder` and `LogForked` as `Continuity.follows`.
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
        """Whether fates have to be read from this batch; says so once for each."""
        if batch.last <= self.judged:
            return False
        self.judged = batch.last
        return True

    def mounted(self, state: MountState, generation: Generation, high_water_mark: TransactionId) -> MountVerdict:
        """What this answer to the mount means. A newer generation in it is remembered."""
        if generation < self.generation_known:
            return MountVerdict.OLD_GENERATION
        self.generation_known = generation
        if state is MountState.NOT_READY:
            return MountVerdict.ASK_AGAIN
        if state is MountState.CLIENT_AHEAD or high_water_mark < self._mounted_at:
            return MountVerdict.CLIENT_AHEAD
        return MountVerdict.READY if high_water_mark <= self.received else MountVerdict.INCOMPLETE
