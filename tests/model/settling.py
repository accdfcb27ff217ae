"""Forgetting what can have no effect any more, so that states that differ only in it are one.

An attempt that was overtaken can reach a replica only while that replica's fence is not above its session, and a
fence falls only with its disk.
"""

from __future__ import annotations

from .states import Attempt, Cleaning, Column, Engaged, Fencing, Gone, Head, Late, Seat, replaced


def settle_one(head: Head, column: Column) -> tuple[Column, frozenset[int]]:
    """The column without what is void, and the sessions that may yet do something to this replica."""
    able: set[int] = set()
    seats = list(column.seats)
    for session, attempt in enumerate(head.attempts):
        current = head.claimed and session == len(head.attempts) - 1
        if not current:
            seats[session] = _settled(seats[session], column.replica.fence, session)
        if current or _is_able(attempt, seats[session], column.replica.fence <= session, head.left.fences_may_fall):
            able.add(session)
    return column._replace(seats=tuple(seats)), frozenset(able)


def end(head: Head, sessions: tuple[int, ...]) -> Head:
    """Those attempts are over: there is no replica to which they can do anything."""
    attempts = tuple(
        Attempt("over") if session in sessions else attempt for session, attempt in enumerate(head.attempts)
    )
    return head._replace(attempts=attempts)


def end_one(column: Column, sessions: tuple[int, ...]) -> Column:
    seats = column.seats
    for session in sessions:
        seats = replaced(seats, session, Gone())
    return column._replace(seats=seats)


def _settled(seat: Seat, fence: int, session: int) -> Seat:
    """A seat of an attempt that will not engage (any more) when its session cannot speak to the replica now."""
    if isinstance(seat, Cleaning):
        useless = fence != session or (seat.stage.startswith("joined") and not seat.source)
        return Cleaning("out") if useless and seat.stage != "out" else seat
    if isinstance(seat, Engaged) and fence > session:
        return seat._replace(broken=True)
    if isinstance(seat, Late) and fence > session:
        return Late(seat.standing)
    return seat


def _is_able(attempt: Attempt, seat: Seat, reachable: bool, faults: bool) -> bool:
    if attempt.phase == "over":
        return True
    if isinstance(seat, Cleaning):
        return seat.stage in ("truncate", "copy")
    if isinstance(seat, Fencing):
        return (reachable or faults) and seat.wanted
    if isinstance(seat, Late):
        return reachable or faults
    return isinstance(seat, Engaged) and not seat.broken
