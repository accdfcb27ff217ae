"""The health of one partition, as its owner tells it."""

from __future__ import annotations

from typing import Any, Final

from polonaise.server.protocol.commit import losses_that_stop, zones_that_stop
from polonaise.server.protocol.commitclock import Moment
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.recovery import OlderStateProved, ReplicaAnswer
from polonaise.terms import NO_TRANSACTION

_STILL_US: Final = 1_000_000
"""Commit times that stand still for less than this are told to nobody: clocks differ by so much."""


def health_of(owner: PartitionOwner, now: Moment) -> dict[str, Any]:
    """Return the health of one partition, as a JSON-ready document."""
    now_s, stand_still = now.monotonic_s, stand_still_until_us(owner, now)
    session, trouble, answers = owner.session, owner.readiness.trouble(now_s), owner.readiness.answers
    stopped = owner.stopped or owner.readiness.blocked
    required = session.value.required if session else None
    members, engaged = (session.value.members, list(session.engaged)) if session else ((), [])
    zone_of = required.zone_of if required is not None and required.zones else {}
    return {
        "generation": owner.generation,
        "committed": owner.committed,
        "ready": session is not None and not trouble,
        "waits_for": trouble or owner.readiness.waits_for,
        # Whether what it waits for is a later state of the coordinator, which then nobody is to believe or change.
        **({"coordinator_outdated": True} if isinstance(stopped, OlderStateProved) else {}),
        "engaged": engaged,
        "members": list(members) if session else None,
        "next": list(session.value.next) if session and session.value.next is not None else None,
        "added": {name: [owner.readiness.reached.get(name), why] for name, why in owner.readiness.added.items()},
        "session": session.id if session else None,
        **({"required": required.told} if required is not None and required.told else {}),
        # What must not be lost: without each of these the partition would take no appends.
        "stops_without": losses_that_stop(session.value.members, session.engaged, required) if session else [],
        "stops_without_zones": zones_that_stop(session.value.members, session.engaged, required, zone_of)
        if session
        else [],
        **({"times_stand_still_until_us": stand_still} if stand_still is not None else {}),
        "late": owner.readiness.late,
        "mounts": len(owner.feeds.mounts),
        "leases": owner.leases.count(now_s),
        # For `partition reset-head`, and only while the partition is not open.
        **({"held": {name: _held(answer) for name, answer in answers.items()}} if answers else {}),
        **({"known": owner.readiness.known} if owner.readiness.known != NO_TRANSACTION else {}),
        **owner.counts,
    }


def stand_still_until_us(owner: PartitionOwner, now: Moment) -> int | None:
    """Return until when commit times stand still, in µs UTC, because a clock was ahead; None if they do not."""
    if owner.session is None:
        return None
    last_us = owner.session.order.commit_time_us
    return last_us if last_us - now.wall_us > _STILL_US else None


def _held(answer: ReplicaAnswer) -> dict[str, Any]:
    return {
        "last": answer.max_synced,
        "confirmed": answer.confirmed,
        "joined": answer.joined,
        "lost_above": answer.lost_above,
    }
