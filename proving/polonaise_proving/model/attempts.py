"""Steps in which one replica takes part: an attempt's requests to it, and what happens to its disk.

A request is one atomic step. It may never be made (its message is lost, its owner dead) or be made at any later time
(its owner was paused), since every step is only ever possible, never due. An answer that is lost shows as a next step
that is not taken; where an attempt goes on without it, in `cluster`, it chooses which answers it has got.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polonaise_proving.model import storage
from polonaise_proving.model.asked import Asked
from polonaise_proving.model.bounds import ModelBounds
from polonaise_proving.model.states import (
    Attempt,
    Cleaning,
    Engaged,
    Fencing,
    Gone,
    Head,
    Late,
    ModelColumn,
    ModelReplica,
    letter,
    replaced,
)
from polonaise_proving.model.storage import Storage


class AttemptStep(NamedTuple):
    """One transition of one replica; its name stands for {0} in `words`."""

    words: str
    head: Head
    column: ModelColumn
    stores: int | None = None
    """The session whose commits it may move."""
    settles: bool = False
    """Some attempt may be unable to do anything any more."""


def steps(asked: Asked, nodes: Storage, bounds: ModelBounds, head: Head, column: ModelColumn) -> Iterator[AttemptStep]:
    for session, attempt in enumerate(head.attempts):
        part = column.parts[session]
        if isinstance(part, Fencing):
            yield from _fence(nodes, head, column, session, part)
        elif isinstance(part, Cleaning):
            yield from _clean(nodes, head, column, session, attempt, part)
        elif isinstance(part, Engaged):
            yield from _write(nodes, bounds, head, column, session, attempt, part)
        elif isinstance(part, Late):
            yield from _straggle(nodes, head, column, session, attempt, part)
            if bounds.catch_up:
                yield from _catch_up(asked, nodes, head, column, session, attempt, part)
    yield from _suffer(head, column)


def _fence(nodes: Storage, head: Head, column: ModelColumn, session: int, part: Fencing) -> Iterator[AttemptStep]:
    """Steps 2 and 3. One that answered before its connection broke may be asked again: the answer was lost."""
    if not part.wanted or not (part.told is None or part.broken):
        return
    fenced = nodes.fence(column.replica, session)
    if fenced is not None:
        replica, told = fenced
        after = column._replace(
            replica=replica, parts=replaced(column.parts, session, part._replace(told=told, broken=False))
        )
        yield AttemptStep(f"session {session} fences {{0}}, which tells {_told(replica)}", head, after, settles=True)


def _clean(
    nodes: Storage, head: Head, column: ModelColumn, session: int, attempt: Attempt, part: Cleaning
) -> Iterator[AttemptStep]:
    """Step 5, but for the copying."""
    if part.stage == "truncate":
        replica = nodes.truncate(column.replica, session, part.mark)
        if replica is not None:
            words = f"session {session} cuts {{0}} above {part.mark}: {_log(replica)} is left"
            yield AttemptStep(words, head, _with(column, session, replica, part._replace(stage="copy", mark=-1)))
    elif part.stage == "copy":
        replica = nodes.join(column.replica, session, attempt.log)
        if replica is not None:
            words = f"{{0}} joins session {session} at {_log(replica)}"
            yield AttemptStep(words, head, _with(column, session, replica, part._replace(stage="joined")))


def _write(
    nodes: Storage, bounds: ModelBounds, head: Head, column: ModelColumn, session: int, attempt: Attempt, part: Engaged
) -> Iterator[AttemptStep]:
    """Step 7: the mark is confirmed, then batches are stored. Without crashes, storing is writing and syncing."""
    replica = column.replica
    if part.broken:
        return
    if not part.progress:
        mark = len(attempt.log) - 1
        confirmed = nodes.confirm(replica, session, mark)
        if confirmed is not None:
            words = f"session {session} confirms {mark} to {{0}}"
            yield AttemptStep(words, head, _with(column, session, confirmed, Engaged(1)))
        return
    batch = letter(session)
    if replica.unsynced and replica.joined == session:
        after = Engaged(part.progress + replica.unsynced)
        words = f"{{0}} syncs {_log(replica)} and acknowledges it to session {session}"
        yield AttemptStep(words, head, _with(column, session, storage.sync(replica), after), stores=session)
    if len(replica.log) >= bounds.batches:
        return
    stored = nodes.store(replica, session, attempt.log + batch * (part.progress + replica.unsynced))
    if stored is not None and (bounds.crashes or bounds.failures):
        words = f"{{0}} writes batch {len(replica.log)} of session {session}, unsynced"
        yield AttemptStep(words, head, _with(column, session, stored, part))
    elif stored is not None:
        words = f"{{0}} stores batch {len(replica.log)} of session {session}, synced, and acknowledges it"
        after = Engaged(part.progress + 1)
        yield AttemptStep(words, head, _with(column, session, storage.sync(stored), after), stores=session)


def _straggle(
    nodes: Storage, head: Head, column: ModelColumn, session: int, attempt: Attempt, part: Late
) -> Iterator[AttemptStep]:
    """Requests of the cleaning that arrive when the owner has long gone on without this replica."""
    replica: ModelReplica | None
    if part.straggler == "truncate":
        replica = nodes.truncate(column.replica, session, part.straggler_mark)
        if replica is not None:
            words = f"session {session}'s old truncation to {part.straggler_mark} reaches {{0}}"
            yield AttemptStep(
                words, head, _with(column, session, replica, part._replace(straggler="copy", straggler_mark=-1))
            )
    elif part.straggler == "copy":
        replica = nodes.copy(column.replica, session, attempt.log)
        if replica is not None:
            words = f"session {session}'s old copy of {len(replica.log) - 1} reaches {{0}}"
            yield AttemptStep(words, head, _with(column, session, replica, part))
        replica = nodes.join(column.replica, session, attempt.log)
        if replica is not None:
            words = f"session {session}'s old join reaches {{0}}, which is not engaged"
            yield AttemptStep(words, head, _with(column, session, replica, part._replace(straggler="none")))


def _catch_up(
    asked: Asked, nodes: Storage, head: Head, column: ModelColumn, session: int, attempt: Attempt, part: Late
) -> Iterator[AttemptStep]:
    """`server.catchup`, but for the copying."""
    fenced = nodes.fence(column.replica, session)
    if fenced is not None:
        replica, told = fenced
        mark = asked.clean_to(part.standing, told, len(attempt.log) - 1)
        cut = len(told.log) - 1 > mark or told.lost is not None
        after = part._replace(catch_up="truncate" if cut else "copy", mark=mark if cut else -1)
        words = f"session {session} asks {{0}} to catch it up; it tells {_told(replica)}"
        yield AttemptStep(words, head, _with(column, session, replica, after), settles=True)
    if part.catch_up == "truncate":
        truncated = nodes.truncate(column.replica, session, part.mark)
        if truncated is not None:
            words = f"session {session} cuts {{0}} above {part.mark} to catch it up: {_log(truncated)} is left"
            yield AttemptStep(words, head, _with(column, session, truncated, part._replace(catch_up="copy", mark=-1)))
    elif part.catch_up == "confirm":
        confirmed = nodes.confirm(column.replica, session, part.mark)
        if confirmed is not None:
            words = f"session {session} confirms {part.mark} to {{0}}, which is catching up"
            yield AttemptStep(words, head, _with(column, session, confirmed, part._replace(catch_up="copy", mark=-1)))


def _suffer(head: Head, column: ModelColumn) -> Iterator[AttemptStep]:
    """What befalls a disk. A crash that loses nothing only breaks connections, which is a request never made."""
    replica, left = column.replica, head.left
    if left.crashes and replica.unsynced:
        after = _struck(column, storage.crash(replica))
        words = f"{{0}} crashes and loses {replica.unsynced} unsynced: {_log(after.replica)} is left"
        yield AttemptStep(words, head._replace(left=left._replace(crashes=left.crashes - 1)), after)
    if left.failures and replica.unsynced:
        spent = head._replace(left=left._replace(failures=left.failures - 1))
        failed = storage.failed_sync(replica)
        words = f"{{0}} can't sync {replica.unsynced}: {_log(failed)} is left"
        yield AttemptStep(words, spent, _unjoined(column, failed), settles=True)
        words = f"{{0}} can't sync {replica.unsynced} and dies before it has noted that; it reads back {_log(replica)}"
        yield AttemptStep(words, spent, _struck(column, storage.sync(replica)), settles=True)
    if left.rots:
        spent = head._replace(left=left._replace(rots=left.rots - 1))
        for last in range(-1, storage.last_synced(replica)):
            rotten = storage.rot(replica, last)
            words = f"{{0}} finds its log damaged when it {{}}: it may have lost above {last}"
            yield AttemptStep(words.replace("{}", "starts"), spent, _struck(column, rotten), settles=True)
            yield AttemptStep(words.replace("{}", "reads"), spent, column._replace(replica=rotten), settles=True)
    if left.wipes and replica != storage.wiped():
        spent = head._replace(left=left._replace(wipes=left.wipes - 1))
        yield AttemptStep("{0} comes back with an empty disk", spent, _struck(column, storage.wiped()), settles=True)
    if left.snapshots and column.image is None and replica.joined >= 0:
        spent = head._replace(left=left._replace(snapshots=left.snapshots - 1, images=left.images + 1))
        yield AttemptStep("an image of {0}'s disk is taken", spent, column._replace(image=storage.crash(replica)))
    if column.image is not None and column.image.joined < column.standing.session:
        after = _struck(column, column.image)._replace(image=None)
        spent = head._replace(left=left._replace(images=left.images - 1))
        yield AttemptStep(f"{{0}}'s old image is put back: {_told(after.replica)}", spent, after, settles=True)


def _struck(column: ModelColumn, replica: ModelReplica) -> ModelColumn:
    """The node has restarted with this on its disk: no connection to it is left."""
    return column._replace(replica=replica, parts=tuple(_broken(part) for part in column.parts))


def _unjoined(column: ModelColumn, replica: ModelReplica) -> ModelColumn:
    """The node goes on, and has no part any more in the session that it was writing in."""
    parts = tuple(_broken(part) if isinstance(part, Engaged) else part for part in column.parts)
    return column._replace(replica=replica, parts=parts)


def _broken(part: Fencing | Cleaning | Engaged | Late | Gone) -> Fencing | Cleaning | Engaged | Late | Gone:
    if isinstance(part, Fencing):
        return part._replace(broken=part.told is not None)
    if isinstance(part, Cleaning):
        return Cleaning("joined-broken" if part.stage.startswith("joined") else "out")
    if isinstance(part, Engaged):
        return part._replace(broken=True)
    if isinstance(part, Late):
        return Late(part.standing)
    return part


def _with(column: ModelColumn, session: int, replica: ModelReplica, part: Cleaning | Engaged | Late) -> ModelColumn:
    return column._replace(replica=replica, parts=replaced(column.parts, session, part))


def _log(replica: ModelReplica) -> str:
    return f"“{replica.log}”"


def _told(replica: ModelReplica) -> str:
    loss = "" if replica.lost is None else f", may have lost above {replica.lost}"
    return f"joined {replica.joined}, confirmed {replica.confirmed}, log {_log(replica)}{loss}"
