"""Who owns what: how a server takes the partitions that nobody alive owns."""

from __future__ import annotations

from collections.abc import Collection

from polonaise.coordination.values import Assignment, Owner
from polonaise.terms import PartitionId, ServerId


def take_over(
    assignment: Assignment, server: ServerId, address: str, partitions: int, alive: Collection[ServerId]
) -> Assignment:
    """Every partition without a living owner goes to `server`, under the next generation; the others stay."""
    owners = dict(assignment.owners)
    for partition in range(partitions):
        held = owners.get(partition)
        if held is None or (held.server not in alive and held.server != server):
            owners[partition] = Owner(server, address, held.generation + 1 if held else 1)
    return Assignment(owners)


def owned_by(assignment: Assignment, server: ServerId) -> dict[PartitionId, Owner]:
    return {partition: owner for partition, owner in assignment.owners.items() if owner.server == server}
