"""Forgetting what can have no effect any more, so that states that differ only in it are one.

An attempt that was overtaken can reach a replica only while that replica's fence is not above its session, and a
fence falls only with its disk.
"""

from __future__ import annotations

from polonaise_proving.model.states import (
    Attempt,
    Cleaning,
    Engaged,
    Fencing,
    Gone,
    Head,
    Late,
    ModelColumn,
    Part,
    replaced,
)


def settle_one(head: Head, column: ModelColumn) -> tuple[ModelColumn, frozenset[int]]:
    """The column without what is void, and the sessions that may yet do something to this replica."""
    able: set[int] = set()
    parts = list(column.parts)
    for session, attempt in enumerate(head.attempts):
        current = head.claimed and session == len(head.attempts) - 1
        if not current:
            parts[session] = _settled(parts[session], column.replica.fence, session)
        if current or _is_able(attempt, parts[session], column.replica.fence <= session, head.left.fences_may_fall):
            able.add(session)
    return column._replace(parts=tuple(parts)), frozenset(able)


def end(head: Head, sessions: tuple[int, ...]) -> Head:
    """Those attempts are over: there is no replica to which they can do anything."""
    attempts = tuple(
        Attempt("over") if session in sessions else attempt for session, attempt in enumerate(head.attempts)
    )
    return head._replace(attempts=attempts)


def end_one(column: ModelColumn, sessions: tuple[int, ...]) -> ModelColumn:
    parts = column.parts
    for session in sessions:
        parts = replaced(parts, session, Gone())
    return column._replace(parts=parts)


def _settled(part: Part, fence: int, session: int) -> Part:
    """The part of an attempt that will not engage (any more) when its session cannot speak to the replica now."""
    if isinstance(part, Cleaning):
        useless = fence != session or (part.stage.startswith("joined") and not part.source)
        return Cleaning("out") if useless and part.stage != "out" else part
    if isinstance(part, Engaged) and fence > session:
        return part._replace(broken=True)
    if isinstance(part, Late) and fence > session:
        return Late(part.standing)
    return part


def _is_able(attempt: Attempt, part: Part, reachable: bool, faults: bool) -> bool:
    if attempt.phase == "over":
        return True
    if isinstance(part, Cleaning):
        return part.stage in ("truncate", "copy")
    if isinstance(part, Fencing):
        return (reachable or faults) and part.wanted
    if isinstance(part, Late):
        return reachable or faults
    return isinstance(part, Engaged) and not part.broken
