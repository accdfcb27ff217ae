"""Whether fragments of one partition are of one log: wherever two of them meet or overlap, both hold the same batch.

Each batch carries the CRC of the one before it. So two fragments that have the same batch at one id have the same ones
before it, as far as both reach; and at the lower one of their last ids both have to end a batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from polonaise.fragments.format import Footer
from polonaise.fragments.protocol.names import FragmentName
from polonaise.terms import TransactionId

MOVE_OUT: Final = "move those that are not of the log out of the store"
"""What to do about fragments that contradict each other, for messages."""


class FragmentFacts(NamedTuple):
    """What is compared of a fragment with others."""

    name: FragmentName
    footer: Footer
    ends: Mapping[TransactionId, int | None]
    """The CRC of the batch that ends at an id of the fragment, None where none ends, for the ids that were asked for.
    """

    def crc_at(self, id: TransactionId) -> int | None:
        """Return the CRC of the batch that ends at this id, by the fragment; None if none ends there."""
        if id == self.footer.last:
            return self.footer.last_crc
        return self.footer.previous_crc if id == self.footer.first - 1 else self.ends[id]


def ids_to_compare(names: Iterable[FragmentName]) -> dict[FragmentName, Collection[TransactionId]]:
    """Return for each fragment of a partition the ids at which others end within it, to be compared with these.

    Its own last id is left out: the footer has its CRC.
    """
    listed = list(names)
    lasts = sorted({name.last for name in listed})
    return {name: lasts[bisect_left(lasts, name.first) : bisect_left(lasts, name.last)] for name in listed}


def contradictions(good: Sequence[FragmentFacts]) -> list[str]:
    """Return what is wrong between fragments of one partition, in words; `ids_to_compare` says what each has to know.

    That is: a fragment of another cluster than the first one, one whose first batch does not follow the last batch of a
    fragment that ends right before it, or two that hold different batches of the same ids.
    """
    wrong: list[str] = []
    own: list[FragmentFacts] = []
    for facts in good:
        if facts.footer.cluster_key == good[0].footer.cluster_key:
            own.append(facts)
        else:
            wrong.append(f"{facts.name.path} belongs to another cluster than {good[0].name.path}")
    ending = sorted(own, key=lambda each: each.name.last)
    lasts = [each.name.last for each in ending]
    for facts in own:
        first, last = facts.name.first, facts.name.last
        for other in ending[bisect_left(lasts, first - 1) : bisect_right(lasts, last)]:
            if other is facts or facts.crc_at(other.name.last) == other.footer.last_crc:
                continue
            if other.name.last < first:
                wrong.append(f"{facts.name.path} does not follow the batch that ends at {first - 1}")
            elif last > other.name.last or facts.name < other.name:  # else it is told of the other one
                both = max(first, other.name.first), other.name.last
                wrong.append(
                    f"{facts.name.path} and {other.name.path} hold different transactions of ids {both[0]} to {both[1]}"
                )
            else:
                continue
            break
    return wrong
