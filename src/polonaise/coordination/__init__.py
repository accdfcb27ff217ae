"""What the cluster must never forget, and who is alive: the coordinator port.

The coordinator holds one value per partition, the assignment of partitions to servers and the description of the
cluster. Storage nodes never talk to it. Implementations: `coordination.file` (one machine, several processes) and the
simulator's; all pass `tests/conformance/test_coordinator.py`.

Every call may raise `CoordinatorUnavailable`; after a *change* that means the change may or may not have been made,
and the caller reads again before it does anything else.
"""

from __future__ import annotations

from typing import Protocol

from polonaise.coordination.values import (
    Assignment,
    ClusterDescription,
    PartitionValue,
    Registration,
    Versioned,
)
from polonaise.terms import PartitionId

__all__ = ["Coordinator", "Membership"]


class Membership(Protocol):
    """This process's registration: lasts until left, until the process is dead, or until it has not been renewed for
    the time of a lease (`coordination.lease`)."""

    async def renew(self) -> None:
        """Say that this process works. To be called again and again, by what would hang if it did not."""

    async def leave(self) -> None: ...


class Coordinator(Protocol):
    async def initialize(self, description: ClusterDescription) -> None:
        """Make the cluster, with the initial value of every partition. `AlreadyInitialized`."""

    async def describe(self) -> ClusterDescription:
        """`NotInitialized` when there is no cluster here."""

    async def partition(self, partition: PartitionId) -> Versioned[PartitionValue]:
        """`UnknownPartition`."""

    async def set_partition(
        self, partition: PartitionId, value: PartitionValue, expected_version: int
    ) -> Versioned[PartitionValue] | None:
        """Compare-and-set: the new version, or None when somebody else was first (nothing changed)."""

    async def assignment(self) -> Versioned[Assignment]: ...

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        """Waits until the assignment's version is above `version`. Callers bring a deadline."""

    async def set_assignment(self, value: Assignment, expected_version: int) -> Versioned[Assignment] | None:
        """Compare-and-set: the new version, or None when somebody else was first (nothing changed)."""

    async def unique_id(self) -> int:
        """A number never given out before, from 1, below 2**31."""

    async def register(self, registration: Registration) -> Membership:
        """Announce this process; its entry goes when the process does."""

    async def members(self) -> list[Registration]:
        """Who is registered and alive, by server id."""

    async def close(self) -> None: ...
