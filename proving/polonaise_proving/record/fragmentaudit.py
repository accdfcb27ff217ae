"""The fragment audit: reads what fragments hold, and decides by itself up to where they hold all of it.

As with the disk audit, only the decoding of single fragments is production's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polonaise.fragments.format import batches_in
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise_proving.record.failures import Violation


def archived_up_to(fragments: Iterable[FragmentName], partition: PartitionId) -> TransactionId:
    """Return the highest id of the partition up to which fragments hold every one; -1 if they lack the first."""
    fragments, end = list(fragments), NO_TRANSACTION
    while (further := _reaching_farthest(fragments, partition, end + 1)) is not None:
        end = further.last
    return end


def batches_below(fragments: Mapping[FragmentName, bytes], partition: PartitionId, first: TransactionId) -> list[Batch]:
    """Return the partition's batches below `first`, in order. Raises `Violation` if an id there is in no fragment."""
    batches: dict[TransactionId, Batch] = {}
    end = NO_TRANSACTION
    while end + 1 < first:
        name = _reaching_farthest(fragments, partition, end + 1)
        if name is None:
            expected = f"partition {partition} below {first}, which was trimmed"
            raise Violation("P1 durability", expected, f"no fragment has {end + 1}")
        for batch in map(Batch.parse, batches_in(fragments[name])):
            batches[batch.first] = batch
        end = name.last
    return [batch for _, batch in sorted(batches.items()) if batch.last < first]


def _reaching_farthest(
    fragments: Iterable[FragmentName], partition: PartitionId, id: TransactionId
) -> FragmentName | None:
    """Return the fragment with this id that goes on farthest; None if no fragment has it."""
    having = [each for each in fragments if each.partition == partition and each.first <= id <= each.last]
    return max(having, key=lambda each: each.last, default=None)
