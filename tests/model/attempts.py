"""Steps in which one replica takes part: an attempt's requests to it, and what happens to its disk.

A request is one atomic step. It may never be made (its message is lost, its owner dead) or be made at any later time
(its owner was paused), since every step is only ever possible, never due. An answer that is lost shows as a next step
that is not taken; where an attempt goes on without it, in `cluster`, it chooses which answers it has got.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from . import storage
from .asked import Asked
from .bounds import Bounds
from .states import Attempt, Cleaning, Column, Engaged, Fencing, Gone, Head, Late, Replica, letter, replaced
from .storage import Storage


class Step(NamedTuple):
    """One transition of one replica; its name stands for {0} in `words`."""

    words: str
    head: Head
    column: Column
    stores: int | None = None
    """The session whose commits it may move."""
    settles: bool = False
    """Some attempt may be unable to do anything any more."""


def steps(asked: Asked, nodes: Storage, bounds: Bounds, head: Head, column: Column) -> Iterator[Step]:
    for session, attempt in enumerate(head.attempts):
        seat = column.seats[session]
        if isinstance(seat, Fencing):
            yield from _fence(nodes, head, column, session, seat)
        elif isinstance(seat, Cleaning):
            yield from _clean(nodes, head, column, session, attempt, seat)
        elif isinstance(seat, Engaged):
            yield from _write(nodes, bounds, head, column, session, attempt, seat)
        elif isinstance(seat, Late):
            yield from _straggle(nodes, head, column, session, attempt, seat)
            if bounds.catch_up:
                yield from _catch_up(asked, nodes, head, column, session, attempt, seat)
    yield from _suffer(head, column)


def _fence(nodes: Storage, head: Head, column: Column, session: int, seat: Fencing) -> Iterator[Step]:
    """Steps 2 and 3. One that answered before its connection broke may be asked again: the answer was lost."""
    if not seat.wanted or not (seat.told is None or seat.broken):
        return
    fenced = nodes.fence(column.replica, session)
    if fenced is not None:
        replica, told = fenced
        after = column._replace(
            replica=replica, seats=replaced(column.seats, session, seat._replace(told=told, broken=False))
        )
        yield Step(f"session {session} fences {{0}}, which tells {_told(replica)}", head, after, settles=True)


def _clean(
    nodes: Storage, head: Head, column: Column, session: int, attempt: Attempt, seat: Cleaning
) -> Iterator[Step]:
    """Step 5, but for the copying."""
    if seat.stage == "truncate":
        replica = nodes.truncate(column.replica, session, seat.mark)
        if replica is not None:
            words = f"session {session} cuts {{0}} above {seat.mark}: {_log(replica)} is left"
            yield Step(words, head, _with(column, session, replica, seat._replace(stage="copy", mark=-1)))
    elif seat.stage == "copy":
        replica = nodes.join(column.replica, session, attempt.log)
        if replica is not None:
            words = f"{{0}} joins session {session} at {_log(replica)}"
            yield Step(words, head, _with(column, session, replica, seat._replace(stage="joined")))


def _write(
    nodes: Storage, bounds: Bounds, head: Head, column: Column, session: int, attempt: Attempt, seat: Engaged
) -> Iterator[Step]:
    """Step 7: the mark is confirmed, then batches are stored. Without crashes, storing is writing and syncing."""
    replica = column.replica
    if seat.broken:
        return
    if not seat.progress:
        mark = len(attempt.log) - 1
        confirmed = nodes.confirm(replica, session, mark)
        if confirmed is not None:
            words = f"session {session} confirms {mark} to {{0}}"
            yield Step(words, head, _with(column, session, confirmed, Engaged(1)))
        return
    batch = letter(session)
    if replica.unsynced and replica.joined == session:
        after = Engaged(seat.progress + replica.unsynced)
        words = f"{{0}} syncs {_log(replica)} and acknowledges it to session {session}"
        yield Step(words, head, _with(column, session, storage.sync(replica), after), stores=session)
    if len(replica.log) >= bounds.batches:
        return
    stored = nodes.store(replica, session, attempt.log + batch * (seat.progress + replica.unsynced))
    if stored is not None and (bounds.crashes or bounds.failures):
        words = f"{{0}} writes batch {len(replica.log)} of session {session}, unsynced"
        yield Step(words, head, _with(column, session, stored, seat))
    elif stored is not None:
        words = f"{{0}} stores batch {len(replica.log)} of session {session}, synced, and acknowledges it"
        after = Engaged(seat.progress + 1)
        yield Step(words, head, _with(column, session, storage.sync(stored), after), stores=session)


def _straggle(nodes: Storage, head: Head, column: Column, session: int, attempt: Attempt, seat: Late) -> Iterator[Step]:
    """Requests of the cleaning that arrive when the owner has long gone on without this replica."""
    replica: Replica | None
    if seat.straggler == "truncate":
        replica = nodes.truncate(column.replica, session, seat.straggler_mark)
        if replica is not None:
            words = f"session {session}'s old truncation to {seat.straggler_mark} reaches {{0}}"
            yield Step(words, head, _with(column, session, replica, seat._replace(straggler="copy", straggler_mark=-1)))
    elif seat.straggler == "copy":
        replica = nodes.copy(column.replica, session, attempt.log)
        if replica is not None:
            words = f"session {session}'s old copy of {len(replica.log) - 1} reaches {{0}}"
            yield Step(words, head, _with(column, session, replica, seat))
        replica = nodes.join(column.replica, session, attempt.log)
        if replica is not None:
            words = f"session {session}'s old join reaches {{0}}, which is not engaged"
            yield Step(words, head, _with(column, session, replica, seat._replace(straggler="none")))


def _catch_up(
    asked: Asked, nodes: Storage, head: Head, column: Column, session: int, attempt: Attempt, seat: Late
) -> Iterator[Step]:
    """`server.catchup`, but for the copying."""
    fenced = nodes.fence(column.replica, session)
    if fenced is not None:
        replica, told = fenced
        mark = asked.clean_to(seat.standing, told, len(attempt.log) - 1)
        cut = len(told.log) - 1 > mark or told.lost is not None
        after = seat._replace(catch_up="truncate" if cut else "copy", mark=mark if cut else -1)
        words = f"session {session} asks {{0}} to catch it up; it tells {_told(replica)}"
        yield Step(words, head, _with(column, session, replica, after), settles=True)
    if seat.catch_up == "truncate":
        truncated = nodes.truncate(column.replica, session, seat.mark)
        if truncated is not None:
            words = f"session {session} cuts {{0}} above {seat.mark} to catch it up: {_log(truncated)} is left"
            yield Step(words, head, _with(column, session, truncated, seat._replace(catch_up="copy", mark=-1)))
    elif seat.catch_up == "confirm":
        confirmed = nodes.confirm(column.replica, session, seat.mark)
        if confirmed is not None:
            words = f"session {session} confirms {seat.mark} to {{0}}, which is catching up"
            yield Step(words, head, _with(column, session, confirmed, seat._replace(catch_up="copy", mark=-1)))


def _suffer(head: Head, column: Column) -> Iterator[Step]:
    """What befalls a disk. A crash that loses nothing only breaks connections, which is a request never made."""
    replica, left = column.replica, head.left
    if left.crashes and replica.unsynced:
        after = _struck(column, storage.crash(replica))
        words = f"{{0}} crashes and loses {replica.unsynced} unsynced: {_log(after.replica)} is left"
        yield Step(words, head._replace(left=left._replace(crashes=left.crashes - 1)), after)
    if left.failures and replica.unsynced:
        spent = head._replace(left=left._replace(failures=left.failures - 1))
        failed = storage.failed_sync(replica)
        words = f"{{0}} can't sync {replica.unsynced}: {_log(failed)} is left"
        yield Step(words, spent, _unjoined(column, failed), settles=True)
        words = f"{{0}} can't sync {replica.unsynced} and dies before it has noted that; it reads back {_log(replica)}"
        yield Step(words, spent, _struck(column, storage.sync(replica)), settles=True)
    if left.rots:
        spent = head._replace(left=left._replace(rots=left.rots - 1))
        for last in range(-1, storage.last_synced(replica)):
            rotten = storage.rot(replica, last)
            words = f"{{0}} finds its log damaged when it {{}}: it may have lost above {last}"
            yield Step(words.replace("{}", "starts"), spent, _struck(column, rotten), settles=True)
            yield Step(words.replace("{}", "reads"), spent, column._replace(replica=rotten), settles=True)
    if left.wipes and replica != storage.wiped():
        spent = head._replace(left=left._replace(wipes=left.wipes - 1))
        yield Step("{0} comes back with an empty disk", spent, _struck(column, storage.wiped()), settles=True)
    if left.snapshots and column.image is None and replica.joined >= 0:
        spent = head._replace(left=left._replace(snapshots=left.snapshots - 1, images=left.images + 1))
        yield Step("an image of {0}'s disk is taken", spent, column._replace(image=storage.crash(replica)))
    if column.image is not None and column.image.joined < column.standing.session:
        after = _struck(column, column.image)._replace(image=None)
        spent = head._replace(left=left._replace(images=left.images - 1))
        yield Step(f"{{0}}'s old image is put back: {_told(after.replica)}", spent, after, settles=True)


def _struck(column: Column, replica: Replica) -> Column:
    """The node has restarted with this on its disk: no connection to it is left."""
    return column._replace(replica=replica, seats=tuple(_broken(seat) for seat in column.seats))


def _unjoined(column: Column, replica: Replica) -> Column:
    """The node goes on, and has no part any more in the session that it was writing in."""
    seats = tuple(_broken(seat) if isinstance(seat, Engaged) else seat for seat in column.seats)
    return column._replace(replica=replica, seats=seats)


def _broken(seat: Fencing | Cleaning | Engaged | Late | Gone) -> Fencing | Cleaning | Engaged | Late | Gone:
    if isinstance(seat, Fencing):
        return seat._replace(broken=seat.told is not None)
    if isinstance(seat, Cleaning):
        return Cleaning("joined-broken" if seat.stage.startswith("joined") else "out")
    if isinstance(seat, Engaged):
        return seat._replace(broken=True)
    if isinstance(seat, Late):
        return Late(seat.standing)
    return seat


def _with(column: Column, session: int, replica: Replica, seat: Cleaning | Engaged | Late) -> Column:
    return column._replace(replica=replica, seats=replaced(column.seats, session, seat))


def _log(replica: Replica) -> str:
    return f"“{replica.log}”"


def _told(replica: Replica) -> str:
    loss = "" if replica.lost is None else f", may have lost above {replica.lost}"
    return f"joined {replica.joined}, confirmed {replica.confirmed}, log {_log(replica)}{loss}"
