"""The health of one partition, as its owner tells it."""

from __future__ import annotations

from typing import Any

from polonaise.server.protocol.owner import PartitionOwner


def health_of(owner: PartitionOwner, now_s: float) -> dict[str, Any]:
    """Return the health of one partition at this monotonic time in seconds, as a JSON-ready document."""
    session, trouble = owner.session, owner.readiness.trouble(now_s)
    return {
        "generation": owner.generation,
        "committed": owner.committed,
        "ready": session is not None and not trouble,
        "waits_for": trouble or owner.readiness.waits_for,
        "engaged": list(session.engaged) if session else [],
        "members": list(session.value.members) if session else None,
        "next": list(session.value.next) if session and session.value.next is not None else None,
        "added": {name: [owner.readiness.reached.get(name), why] for name, why in owner.readiness.added.items()},
        "session": session.id if session else None,
        "late": owner.readiness.late,
        "mounts": len(owner.feeds.mounts),
        **owner.counts,
    }
