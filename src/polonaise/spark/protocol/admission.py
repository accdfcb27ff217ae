"""Share one micro-batch out among partitions, in proportion to how much each has that is new."""

from __future__ import annotations

from collections.abc import Mapping

from polonaise.terms import PartitionId, TransactionId


def admitted(
    starts: Mapping[PartitionId, TransactionId], ends: Mapping[PartitionId, TransactionId], rows_max: int | None
) -> dict[PartitionId, TransactionId]:
    """Return the id before which to stop in each partition, for `rows_max` transactions in all (None: no limit).

    Partitions are read from their id in `starts`; `ends` holds the id after each one's last transaction. Every
    partition with something new gives at least one transaction if `rows_max` allows, so that none waits for the others.
    Beyond that, each gives in proportion to what it has. All of `rows_max` is used if there is that much.
    """
    waiting = {partition: end - starts[partition] for partition, end in ends.items() if end > starts[partition]}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        shares = waiting
    else:
        each = int(rows_max >= len(waiting))
        rest, over = rows_max - each * len(waiting), total - each * len(waiting)
        shares = {partition: each + (rows - each) * rest // over for partition, rows in waiting.items()}
        unshared = rows_max - sum(shares.values())
        # What rounding left over goes to the partitions with most to read, so that each gets its turn.
        by_need = sorted(waiting, key=lambda partition: (shares[partition] - waiting[partition], partition))
        for partition in by_need[:unshared]:
            shares[partition] += 1
    return {partition: starts[partition] + shares.get(partition, 0) for partition in ends}
