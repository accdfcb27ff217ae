"""The schedule of a storage node's scrub: which bytes it reads next, and when.

Each round reads every partition from beginning to end, one after the other, at a bounded rate; one that is damaged or
can't be read is left until the next round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from polonaise.scrubrounds import DAMAGES_MAX, ScrubRounds
from polonaise.terms import PartitionId, TransactionId


class ScrubDamage(NamedTuple):
    """Bytes that the scrub has found not to be as they were written."""

    partition: PartitionId
    what: str
    """Text for operators: which bytes, and what is wrong with them."""
    found_us: int
    """When it was found, in microseconds UTC."""
    repaired_us: int = 0
    """When the copy was seen to be whole again, in microseconds UTC; 0 while it is not."""


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The progress and the findings of a storage node's scrub. Times are microseconds UTC; 0 for never."""

    rounds: int = 0
    """The number of rounds that have ended."""
    partitions: int = 0
    """The number of partitions that this or the last round is done with, skipped ones included."""
    partitions_of: int = 0
    """The number of partitions that this or the last round has in all."""
    skipped: int = 0
    """The number of partitions that this or the last round did not read to their end: unusable, or damaged."""
    bytes: int = 0
    """The number of good bytes that this or the last round has read."""
    started_us: int = 0
    """When the present or last round began."""
    finished_us: int = 0
    """When a round ended last."""
    found: int = 0
    """The number of damages found since the node started."""
    repaired: int = 0
    """The number of these after which the copy was whole again."""
    damages: tuple[ScrubDamage, ...] = ()
    """The latest damages, in the order in which they were found; those that are repaired are forgotten first."""


class Look(NamedTuple):
    """Read some of this partition from the batch with this id on; then call `looked`, `damaged` or `skip`."""

    partition: PartitionId
    first: TransactionId


class Rest(NamedTuple):
    """Do nothing for this many seconds, then call `next` again."""

    seconds: float


Step: TypeAlias = Look | Rest


class Scrub:
    """Decides what the scrub does next. Times in seconds are monotonic, times in microseconds are UTC."""

    __slots__ = ("_first", "_forgotten", "_rounds", "scrubbed")

    def __init__(self, bytes_per_s: int, every_s: float, first_s: float) -> None:
        """Make a schedule that reads at most `bytes_per_s` bytes a second, with the first round at `first_s`
        (monotonic).

        Each further round begins at the earliest `every_s` seconds after the beginning of the one before.
        """
        self._rounds: ScrubRounds[PartitionId] = ScrubRounds(bytes_per_s, every_s, first_s)
        self._first: TransactionId = 0
        """Where to go on in the partition that is being read."""
        self._forgotten: Counter[PartitionId] = Counter()
        """By partition: the number of damages that are in `Scrubbed.damages` no more, though not repaired yet."""
        self.scrubbed = Scrubbed()

    def next(self, now_s: float, wall_us: int, partitions: Collection[PartitionId]) -> Step:
        """Return what to do now. A round reads the `partitions` that the node holds when the round begins."""
        rounds = self._rounds
        if now_s < rounds.free_s:
            return Rest(rounds.free_s - now_s)
        if rounds.next is None:
            if now_s < rounds.begin_s:
                return Rest(rounds.begin_s - now_s)
            rounds.begin(now_s, sorted(partitions))
            self._first = 0
            self.scrubbed = replace(
                self.scrubbed, partitions=0, partitions_of=len(partitions), skipped=0, bytes=0, started_us=wall_us
            )
            if rounds.next is None:
                self._end_round(wall_us)
                return Rest(rounds.every_s)
        return Look(rounds.next, self._first)

    def looked(self, now_s: float, wall_us: int, bytes_read: int, following: TransactionId | None) -> None:
        """Note that `bytes_read` bytes were good, and go on from the id `following`; None: the partition is done."""
        self.scrubbed = replace(self.scrubbed, bytes=self.scrubbed.bytes + bytes_read)
        self._rounds.read(now_s, bytes_read)
        if following is None:
            self._end_partition(wall_us)
        else:
            self._first = following

    def skip(self, wall_us: int) -> None:
        """Leave the partition until the next round, because it can't be read now."""
        self.scrubbed = replace(self.scrubbed, skipped=self.scrubbed.skipped + 1)
        self._end_partition(wall_us)

    def damaged(self, wall_us: int, what: str) -> None:
        """Note a damage, and leave the partition until the next round: what follows the damage is copied anew."""
        damaged = self._rounds.next
        assert damaged is not None
        damage = ScrubDamage(damaged, what, wall_us)
        damages = [*self.scrubbed.damages, damage]
        if len(damages) > DAMAGES_MAX:  # rather one that is repaired: the others have to be seen to be repaired, too
            gone = damages.pop(next((index for index, each in enumerate(damages) if each.repaired_us), 0))
            if not gone.repaired_us:
                self._forgotten[gone.partition] += 1
        self.scrubbed = replace(self.scrubbed, found=self.scrubbed.found + 1, damages=tuple(damages))
        self.skip(wall_us)

    @property
    def unrepaired(self) -> set[PartitionId]:
        """The partitions with a damage after which the copy was not yet seen to be whole again."""
        return {damage.partition for damage in self.scrubbed.damages if not damage.repaired_us} | self._forgotten.keys()

    def found_outside(self, partitions: Collection[PartitionId]) -> Scrubbed:
        """Return the progress and the findings, but for damages of these partitions that are not repaired."""
        left = [each for each in self.scrubbed.damages if each.repaired_us or each.partition not in partitions]
        out = len(self.scrubbed.damages) - len(left) + sum(self._forgotten[each] for each in partitions)
        return replace(self.scrubbed, found=self.scrubbed.found - out, damages=tuple(left))

    def repaired(self, wall_us: int, partition: PartitionId) -> None:
        """Note that a partition's copy is whole again: all its damages are over with that."""
        damages = self.scrubbed.damages
        over = [damage for damage in damages if damage.partition == partition and not damage.repaired_us]
        self.scrubbed = replace(
            self.scrubbed,
            repaired=self.scrubbed.repaired + len(over) + self._forgotten.pop(partition, 0),
            damages=tuple(damage._replace(repaired_us=wall_us) if damage in over else damage for damage in damages),
        )

    def _end_partition(self, wall_us: int) -> None:
        over = self._rounds.done()
        self._first = 0
        self.scrubbed = replace(self.scrubbed, partitions=self.scrubbed.partitions + 1)
        if over:
            self._end_round(wall_us)

    def _end_round(self, wall_us: int) -> None:
        self.scrubbed = replace(self.scrubbed, rounds=self.scrubbed.rounds + 1, finished_us=wall_us)
