"""Which bytes of a storage node are looked at next, and when: rot is found while other copies can mend it.

Everything is read again and again, in rounds: every partition from its beginning to its end, one after the other, at a
bounded rate. A round that ends early waits for the time of the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from polonaise.terms import PartitionId, TransactionId

DAMAGES_MAX: Final = 100
"""So many findings are remembered, the latest ones."""
_ROUND_S_MIN: Final = 1.0
"""From the beginning of a round to that of the next one at least: there may be nothing that can be read."""


class ScrubDamage(NamedTuple):
    """Bytes that were not as they were written when the scrub came by."""

    partition: PartitionId
    what: str
    found_us: int
    repaired_us: int = 0
    """When the copy was seen to be whole again; 0 while it is not."""


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """How far the scrub of a storage node has come, and what it found. Times are wall-clock µs; 0 for never."""

    rounds: int = 0
    """Rounds that have ended."""
    partitions: int = 0
    """Partitions that the present round, or the last one, has read to their end."""
    partitions_of: int = 0
    skipped: int = 0
    """Among those that were read: they could not be used then, or were damaged and not read to their end."""
    bytes: int = 0
    """Bytes that the present round, or the last one, has read."""
    started_us: int = 0
    finished_us: int = 0
    """When the last round that has ended did."""
    found: int = 0
    """Damages since the node started."""
    repaired: int = 0
    """Those of them after which the copy was whole again."""
    damages: tuple[ScrubDamage, ...] = ()


class Look(NamedTuple):
    """Read some of this partition, from the batch with this id on; then call `looked` or `skip`."""

    partition: PartitionId
    first: TransactionId


class Rest(NamedTuple):
    """Do nothing for so long, and ask again."""

    seconds: float


Step: TypeAlias = Look | Rest


class Scrub:
    """The decisions. Times are monotonic seconds unless they say otherwise."""

    __slots__ = ("_bytes_per_s", "_every_s", "_first", "_next_s", "_round_s", "_waiting", "scrubbed")

    def __init__(self, bytes_per_s: int, every_s: float, first_s: float) -> None:
        """Rounds begin `every_s` after each other at the earliest, the first one at `first_s`."""
        self._bytes_per_s = bytes_per_s
        self._every_s = max(every_s, _ROUND_S_MIN)
        self._round_s = first_s
        """When the next round may begin."""
        self._next_s = first_s
        """When the next bytes may be read."""
        self._waiting: deque[PartitionId] = deque()
        """The partitions that this round has still to read; the first of them is being read."""
        self._first: TransactionId = 0
        self.scrubbed = Scrubbed()

    def next(self, now_s: float, wall_us: int, partitions: Collection[PartitionId]) -> Step:
        """What to do now. `partitions`: those that the node holds; a round is about what was there when it began."""
        if now_s < self._next_s:
            return Rest(self._next_s - now_s)
        if not self._waiting:
            if now_s < self._round_s:
                return Rest(self._round_s - now_s)
            self._round_s = now_s + self._every_s
            self._waiting.extend(sorted(partitions))
            self._first = 0
            self.scrubbed = replace(
                self.scrubbed, partitions=0, partitions_of=len(partitions), skipped=0, bytes=0, started_us=wall_us
            )
            if not self._waiting:
                self._end_round(wall_us)
                return Rest(self._every_s)
        return Look(self._waiting[0], self._first)

    def looked(self, now_s: float, wall_us: int, bytes_read: int, following: TransactionId | None) -> None:
        """So many bytes were good. Go on with the batch from `following` on; None: that was the partition's end."""
        self.scrubbed = replace(self.scrubbed, bytes=self.scrubbed.bytes + bytes_read)
        self._next_s = max(self._next_s, now_s) + bytes_read / self._bytes_per_s
        if following is None:
            self._end_partition(wall_us)
        else:
            self._first = following

    def skip(self, wall_us: int) -> None:
        """The partition can't be read now. In the next round it is looked at again."""
        self.scrubbed = replace(self.scrubbed, skipped=self.scrubbed.skipped + 1)
        self._end_partition(wall_us)

    def damaged(self, wall_us: int, what: str) -> None:
        """Bad bytes were found. What follows them is copied anew, so there is no use in reading it."""
        damage = ScrubDamage(self._waiting[0], what, wall_us)
        kept = (*self.scrubbed.damages, damage)[-DAMAGES_MAX:]
        self.scrubbed = replace(self.scrubbed, found=self.scrubbed.found + 1, damages=kept)
        self.skip(wall_us)

    @property
    def unrepaired(self) -> set[PartitionId]:
        """Partitions with damage after which the copy was not seen whole again."""
        return {damage.partition for damage in self.scrubbed.damages if not damage.repaired_us}

    def repaired(self, wall_us: int, partition: PartitionId) -> int:
        """The copy is whole again: how many of its damages are over by that."""
        count = 0
        damages: list[ScrubDamage] = []
        for damage in self.scrubbed.damages:
            if damage.partition == partition and not damage.repaired_us:
                damage = damage._replace(repaired_us=wall_us)
                count += 1
            damages.append(damage)
        self.scrubbed = replace(self.scrubbed, repaired=self.scrubbed.repaired + count, damages=tuple(damages))
        return count

    def _end_partition(self, wall_us: int) -> None:
        self._waiting.popleft()
        self._first = 0
        self.scrubbed = replace(self.scrubbed, partitions=self.scrubbed.partitions + 1)
        if not self._waiting:
            self._end_round(wall_us)

    def _end_round(self, wall_us: int) -> None:
        self.scrubbed = replace(self.scrubbed, rounds=self.scrubbed.rounds + 1, finished_us=wall_us)
