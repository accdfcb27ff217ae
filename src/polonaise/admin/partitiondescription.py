"""Describe one partition: what its owner says of it, and what the coordinator keeps of each of its replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from polonaise.admin.cluster import ClusterObserver, PartitionStatus
from polonaise.coordination.values import PartitionValue
from polonaise.terms import PartitionId, SessionId, TransactionId


class ReplicaStatus(NamedTuple):
    """The status of one replica, according to the partition's owner and to the coordinator."""

    name: str
    """The name of the replica's storage node."""
    state: str
    """`engaged`; `behind` or `out`, with the reason; `not engaged` while the partition is not ready; `unknown`."""
    session: SessionId | None
    """The last session in which the replica was engaged; None if it never was."""
    closing: TransactionId | None
    """The closing mark of that session; None while it is undecided, or if there was no session."""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Everything that is known of one partition."""

    status: PartitionStatus
    value: PartitionValue
    replicas: list[ReplicaStatus]
    required: str
    """What its commits need beside a quorum, from the next session on; empty for nothing."""
    doubt: str
    """Why nodes don't believe what the coordinator holds; empty if they do."""

    def document(self) -> dict[str, Any]:
        return {
            **self.status.document(),
            "required": self.required,
            "coordinator": {
                "generation": self.value.generation,
                "session": self.value.session,
                "members": list(self.value.members),
                "next": None if self.value.next is None else list(self.value.next),
            },
            "replicas": [each._asdict() for each in self.replicas],
            "counts": dict(self.status.counts),
        }


async def describe_partition(observer: ClusterObserver, partition: PartitionId) -> PartitionDescription:
    """Return everything known of a partition. Raises `UnknownPartition`, and what reading the coordinator raises."""
    value = await observer.partition_value(partition)
    cluster = await observer.look()
    if cluster.coordinator_error is not None:
        raise cluster.coordinator_error
    status = cluster.partitions[partition]
    required = None if cluster.description is None else cluster.description.requirements().get(partition)
    replicas = [_replica_status(name, value, status) for name in value.members]
    told = "" if required is None else required.told
    return PartitionDescription(status, value, replicas, told, cluster.belief.doubt)


def _replica_status(name: str, value: PartitionValue, status: PartitionStatus) -> ReplicaStatus:
    condition, engagement = status.condition, value.engagements.get(name)
    state = "unknown"
    if condition is not None:
        if name in condition.engaged:
            state = "engaged"
        elif name in condition.left_out:
            state = f"{'out' if name in condition.unreachable else 'behind'}: {condition.left_out[name]}"
        else:
            state = "not engaged: the partition is not ready"
    if engagement is None:
        return ReplicaStatus(name, state, None, None)
    return ReplicaStatus(name, state, engagement.session, None if engagement.unresolved else engagement.closing)
