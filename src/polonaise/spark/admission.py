"""How much of what is new one micro-batch takes: a share of each partition, by how much it has."""

from __future__ import annotations

from collections.abc import Mapping

from polonaise.terms import PartitionId, TransactionId


def admitted(
    starts: Mapping[PartitionId, TransactionId], ends: Mapping[PartitionId, TransactionId], rows_max: int | None
) -> dict[PartitionId, TransactionId]:
    """Up to where to read each partition, so that it is `rows_max` transactions in all (None: everything).

    Partitions are taken from in proportion to what they hold, so that none falls behind for good; what is left over by
    rounding goes to the first ones. All of `rows_max` is used where there is so much.
    """
    waiting = {partition: max(end - starts[partition], 0) for partition, end in ends.items()}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return {partition: starts[partition] + rows for partition, rows in waiting.items()}
    shares = {partition: rows_max * rows // total for partition, rows in waiting.items()}
    left = rows_max - sum(shares.values())
    for partition in sorted(waiting):
        extra = min(left, waiting[partition] - shares[partition], 1)
        shares[partition] += extra
        left -= extra
    return {partition: starts[partition] + share for partition, share in shares.items()}
