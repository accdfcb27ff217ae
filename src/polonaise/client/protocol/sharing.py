"""How the members of a worker group share its partitions: each decides for itself, from the same list of leases.

Lists of different moments do no harm: a lease keeps each partition with one member. The decisions only have to come to
rest, each member with its share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from polonaise.terms import PartitionId


class NextMove(NamedTuple):
    """The next step of one member towards its share."""

    wanted: tuple[PartitionId, ...]
    """Partitions that nobody has and this member asks for."""
    surplus: tuple[PartitionId, ...]
    """Partitions that it gives up."""


def next_move(partitions: int, members: Collection[int], held: Mapping[PartitionId, int], me: int) -> NextMove:
    """Return the next step of the member `me`, given who has which of so many partitions. Shares differ by one at most.
    The members that have the most get the larger ones, so that few partitions change hands."""
    counts = dict.fromkeys(sorted({*members, me}), 0)
    for holder in held.values():
        if holder in counts:
            counts[holder] += 1
    least, larger = divmod(partitions, len(counts))
    by_count = sorted(counts, key=lambda member: (-counts[member], member))
    shares = {member: least + (place < larger) for place, member in enumerate(by_count)}
    mine = sorted(partition for partition, holder in held.items() if holder == me)
    if len(mine) >= shares[me]:
        return NextMove((), tuple(mine[shares[me] :]))
    # Free partitions are dealt out in the order of members, so that no two ask for the same one.
    free = [partition for partition in range(partitions) if partition not in held]
    for member, count in counts.items():
        lacking = max(0, shares[member] - count)
        if member == me:
            return NextMove(tuple(free[:lacking]), ())
        free = free[lacking:]
    raise AssertionError("a member is among the members")
