"""Whether fragments of one partition are of one log: wherever two of them meet or overlap, both hold the same batch.

Each batch carries the CRC of the one before it. So two fragments that have the same batch at one id have the same ones
before it, and at the lower one of their last ids both have to end a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from polonaise.fragments.format import Footer
from polonaise.fragments.protocol.coverage import BatchEnd
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.terms import TransactionId

MOVE_OUT: Final = "move those that are not of the log out of the store"


class FragmentFacts(NamedTuple):
    """What is compared of a fragment with others."""

    name: FragmentName
    footer: Footer
    ends: Mapping[TransactionId, int | None]
    """The CRC of the batch that ends at an id, None where none ends, for the ids that were asked for."""

    def crc_at(self, id: TransactionId) -> int | None:
        """Return the CRC of the batch that ends at this id, by the footer or `ends`; None if none ends there."""
        if id == self.footer.last:
            return self.footer.last_crc
        return self.footer.previous_crc if id == self.footer.first - 1 else self.ends[id]


class Disagreement(NamedTuple):
    """Two fragments that are not of one log."""

    one: FragmentName
    other: FragmentName
    what: str
    """What is wrong between them, in words that name both."""


def beside_each(names: Iterable[FragmentName]) -> dict[FragmentName, list[FragmentName]]:
    """Return for each fragment of a partition the others that overlap or meet it, and so have to agree with it."""
    found: dict[FragmentName, list[FragmentName]] = {name: [] for name in sorted(names)}
    reaching: list[FragmentName] = []
    for name, others in found.items():
        reaching = [other for other in reaching if other.last >= name.first - 1]
        for other in reaching:
            others.append(other)
            found[other].append(name)
        reaching.append(name)
    return found


def ids_to_compare(names: Iterable[FragmentName]) -> dict[FragmentName, Collection[TransactionId]]:
    """Return for each fragment of a partition the ids at which others end within it; its last one is in the footer."""
    return {
        name: sorted({other.last for other in others if name.first <= other.last < name.last})
        for name, others in beside_each(names).items()
    }


def agree(one: FragmentFacts, other: FragmentFacts) -> bool:
    """Whether two fragments that overlap or meet hold the same batch at the lower one of their last ids."""
    at = min(one.name.last, other.name.last)
    return one.crc_at(at) == other.crc_at(at)


def ends_told(batch: Batch) -> tuple[BatchEnd, BatchEnd]:
    """Return the ends of the batch before this one, and of this one; a log goes on from a fragment that has either."""
    return BatchEnd(batch.first - 1, batch.previous_crc), BatchEnd(batch.last, batch.crc)


def contradictions(good: Sequence[FragmentFacts]) -> list[Disagreement]:
    """Return what is wrong between fragments of one partition; `ids_to_compare` says what each has to know. A fragment
    of another cluster than the first one, one that does not follow the fragment that ends right before it, or two that
    hold different batches of the same ids. Of several contradictions of one fragment, one is named."""
    wrong: list[Disagreement] = []
    own: dict[FragmentName, FragmentFacts] = {}
    for facts in good:
        if facts.footer.cluster_key == good[0].footer.cluster_key:
            own[facts.name] = facts
        else:
            what = f"{facts.name.path} belongs to another cluster than {good[0].name.path}"
            wrong.append(Disagreement(facts.name, good[0].name, what))
    for name, others in beside_each(own).items():
        for other in sorted(others, key=lambda each: (each.last, each)):
            if (other.last, other) > (name.last, name):  # it is told of that one
                break
            if agree(own[name], own[other]):
                continue
            if other.last < name.first:
                what = f"{name.path} does not follow the batch that ends at {other.last}, in {other.path}"
            else:
                both = max(name.first, other.first), other.last
                what = f"{name.path} and {other.path} hold different transactions of ids {both[0]} to {both[1]}"
            wrong.append(Disagreement(name, other, what))
            break
    return wrong
