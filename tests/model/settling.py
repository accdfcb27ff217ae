"""Forgetting what can have no effect any more, so that states that differ only in it are one.

An attempt that was overtaken can reach a replica only while that replica's fence is not above its session, and a
fence falls only with its disk.
"""

from __future__ import annotations

from .cluster import Columns
from .states import Attempt, Cleaning, Engaged, Fencing, Gone, Head, Late, Seat, replaced


def settle(head: Head, columns: Columns) -> tuple[Head, Columns]:
    faults = bool(head.left.disks) or any(column.image is not None for column in columns)
    for session, attempt in enumerate(head.attempts):
        current = head.claimed and session == len(head.attempts) - 1
        if attempt.phase == "over" or current:
            continue
        seats = [_settled(column.seats[session], column.replica.fence, session) for column in columns]
        if _is_over(attempt, seats, columns, session, faults):
            seats = [Gone() for _ in columns]
            attempt = Attempt("over")
        if any(seat is not column.seats[session] for seat, column in zip(seats, columns, strict=True)):
            head = head._replace(attempts=(*head.attempts[:session], attempt, *head.attempts[session + 1 :]))
            columns = tuple(
                column._replace(seats=replaced(column.seats, session, seat))
                for column, seat in zip(columns, seats, strict=True)
            )
    return head, columns


def _settled(seat: Seat, fence: int, session: int) -> Seat:
    """A seat of an attempt that will not engage (any more) when its session cannot speak to the replica now."""
    if isinstance(seat, Cleaning):
        useless = fence != session or (seat.stage.startswith("joined") and not seat.source)
        return Cleaning("out") if useless and seat.stage != "out" else seat
    if isinstance(seat, Engaged) and fence > session and not seat.broken:
        return seat._replace(broken=True)
    if isinstance(seat, Late) and fence > session and (seat.straggler != "none" or seat.catch_up != "none"):
        return Late(seat.standing)
    return seat


def _is_over(attempt: Attempt, seats: list[Seat], columns: Columns, session: int, faults: bool) -> bool:
    """Whether an attempt that was overtaken can change no replica any more."""
    if attempt.phase == "cleaning":
        return not any(isinstance(seat, Cleaning) and seat.stage in ("truncate", "copy") for seat in seats)
    if faults:
        return False
    return not any(
        (isinstance(seat, Engaged) and not seat.broken)
        or (column.replica.fence <= session and (isinstance(seat, Late) or _wanted(seat)))
        for seat, column in zip(seats, columns, strict=True)
    )


def _wanted(seat: Seat) -> bool:
    return isinstance(seat, Fencing) and (seat.standing.member or seat.standing.coming)
