"""The rule by which a server takes the partitions that have no living owner."""

from __future__ import annotations

from collections.abc import Collection

from polonaise.coordination.values import Assignment, Owner
from polonaise.terms import PartitionId, ServerId


def take_over(
    assignment: Assignment, server: ServerId, address: str, partitions: int, alive: Collection[ServerId]
) -> Assignment:
    """Return the assignment in which `server` owns each partition without a living owner; the others stay.

    A partition that changes owner gets the next generation, which voids what was sent to the owner before.
    """
    owners = dict(assignment.owners)
    for partition in range(partitions):
        owner = owners.get(partition)
        if owner is None or (owner.server not in alive and owner.server != server):
            owners[partition] = Owner(server, address, owner.generation + 1 if owner else 1)
    return Assignment(owners)


def owned_by(assignment: Assignment, server: ServerId) -> dict[PartitionId, Owner]:
    """Return the partitions that this server owns, each with its generation."""
    return {partition: owner for partition, owner in assignment.owners.items() if owner.server == server}
