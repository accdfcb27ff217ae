"""The figures of one partition, which are told one by one or summed up for the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from polonaise.node.condition import lacking_copies, without_spare
from polonaise.node.reasons import Reason
from polonaise.server.protocol.commit import losses_that_stop
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.terms import NO_TRANSACTION, ClientId, StorageId

STATES: Final = ("ready", "starting", "failing", "blocked", "stopped")
"""Values of the label `state`."""


class SeenPartition(NamedTuple):
    """The figures of one partition at one moment."""

    state: str
    waiting: tuple[int, int]
    in_flight: int
    engaged: list[StorageId]
    late: list[StorageId]
    lacks_copies: bool
    """Whether its session has fewer members than the partition is to have."""
    replica_lag: dict[StorageId, int]
    mounts: int
    feed_lag: dict[ClientId, int]
    """By client the transactions that its mount was not fed; empty before the owner knows what is committed."""
    reasons: set[Reason]
    """As its health has them; what storage nodes found is theirs to tell."""


def state_of(owner: PartitionOwner, now_s: float) -> str:
    """Return one of `STATES`; `ready` exactly if the partition's health says so."""
    if owner.stopped is not None:
        return "stopped"
    if owner.readiness.blocked is not None:
        return "blocked"
    if owner.session is None:
        return "starting"
    return "failing" if owner.readiness.trouble(now_s) else "ready"


def look_at(owner: PartitionOwner, now_s: float, copies: int, connected: Mapping[StorageId, bool]) -> SeenPartition:
    """Return the figures of a partition, which is to have so many copies, at this moment."""
    session = owner.session
    engaged = list(session.engaged) if session is not None else []
    late = [name for name in session.value.members if name not in session.engaged] if session is not None else []
    lag: dict[StorageId, int] = {}
    if session is not None:
        sent = session.sent
        lag = {name: sent - session.reached(name) for name in engaged}
        reached = owner.readiness.reached
        lag |= {name: max(0, sent - reached.get(name, NO_TRANSACTION)) for name in late}
    state, mounts, committed = state_of(owner, now_s), owner.feeds.mounts, owner.proved
    feed_lag = {}
    if committed is not None:
        feed_lag = {client: max(0, committed + 1 - mount.next_id) for client, mount in mounts.items()}
    return SeenPartition(
        state,
        owner.waiting,
        session.in_flight if session is not None else 0,
        engaged,
        late,
        session is not None and len(session.value.members) < copies,
        lag,
        len(mounts),
        feed_lag,
        _reasons(owner, copies, connected, ready=state == "ready"),
    )


def _reasons(owner: PartitionOwner, copies: int, connected: Mapping[StorageId, bool], *, ready: bool) -> set[Reason]:
    """Return what `condition_of` finds by the partition's health, without making that document: it takes long."""
    found = set() if ready else {Reason.PARTITION_NOT_READY}
    session = owner.session
    if session is None:
        return found if all(connected.values()) else {*found, Reason.REPLICA_LEFT_OUT}
    members, engaged, required = session.value.members, session.engaged, session.value.required
    if any((ready and name not in engaged) or not connected.get(name, True) for name in members):
        found.add(Reason.REPLICA_LEFT_OUT)
    told: dict[str, Any] = {"members": members, "next": session.value.next, "ready": ready}
    if lacking_copies({"replication_factor": copies, "storage": connected}, told):
        found.add(Reason.COPIES)
    if ready and required is not None and required.told:
        stopping = losses_that_stop(members, list(engaged), required)
        if without_spare({**told, "required": required.told, "stops_without": stopping}):
            found.add(Reason.NO_SPARE)
    return found
