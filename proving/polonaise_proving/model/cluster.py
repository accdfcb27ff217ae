"""Steps that look at more than one replica: claim, decide, copy, engage, and changes of the membership."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple, TypeAlias

from polonaise.terms import NO_TRANSACTION
from polonaise_proving.model.asked import NOT_ENGAGED, Asked
from polonaise_proving.model.bounds import ModelBounds
from polonaise_proving.model.states import (
    Attempt,
    Cleaning,
    Engaged,
    Fencing,
    Gone,
    Head,
    Late,
    ModelBudget,
    ModelColumn,
    ModelReplica,
    ModelStanding,
    ModelTold,
    Part,
    letter,
    replaced,
)
from polonaise_proving.model.storage import Storage
from polonaise_proving.model.walk import Broken

Columns: TypeAlias = tuple[ModelColumn, ...]


class ClusterStep(NamedTuple):
    """One transition; {0}, {1}, … in `words` stand for the replicas in their places."""

    words: str
    head: Head
    columns: Columns
    settles: bool = False


def beginning(asked: Asked, bounds: ModelBounds) -> tuple[Head, Columns]:
    left = ModelBudget(bounds.rots, bounds.wipes, bounds.snapshots, 0, bounds.crashes, bounds.failures, bounds.edits)
    standings = [ModelStanding(place < bounds.members, False) for place in range(bounds.replicas)]
    if bounds.fresh:
        return Head("", (), False, left), tuple(
            ModelColumn(ModelReplica(), standing, None, ()) for standing in standings
        )
    members = frozenset(range(bounds.members))
    engaged = asked.engage(tuple(standings), 0, members, NO_TRANSACTION)
    columns = [
        ModelColumn(ModelReplica(fence=0, joined=0), standing, None, (Engaged(1),))
        if standing.member
        else ModelColumn(ModelReplica(), standing, None, (Gone(),))
        for standing in engaged
    ]
    return Head("", (Attempt("writing"),), False, left), tuple(columns)


def steps(asked: Asked, nodes: Storage, bounds: ModelBounds, head: Head, columns: Columns) -> Iterator[ClusterStep]:
    if len(head.attempts) < bounds.sessions:
        yield _claim(asked, head, columns)
    for session, attempt in enumerate(head.attempts):
        current = head.claimed and session == len(head.attempts) - 1
        parts = [column.parts[session] for column in columns]
        if attempt.phase == "fencing":
            yield from _decide(asked, head, columns, session, current, parts)
        elif attempt.phase == "cleaning":
            yield from _copy(nodes, head, columns, session, current, parts)
            if current:
                yield from _engage(asked, head, columns, session, parts)
        elif attempt.phase == "writing" and bounds.catch_up:
            yield from _catch_up(asked, nodes, head, columns, session, parts)
    if head.left.edits:
        yield from _edit(asked, head, columns)


def _claim(asked: Asked, head: Head, columns: Columns) -> ClusterStep:
    """Step 1. A claim that fails, or whose result stays unknown, is a session in which nobody does anything."""
    session = len(head.attempts)
    standings = tuple(column.standing for column in columns)
    asked.claim(standings, session)
    fenced = asked.participants(standings)
    claimed = tuple(
        column._replace(parts=(*column.parts, Fencing(column.standing, place in fenced)))
        for place, column in enumerate(columns)
    )
    after = head._replace(attempts=(*head.attempts, Attempt("fencing")), claimed=True)
    return ClusterStep(f"an owner claims session {session}", after, claimed, settles=True)


def _decide(
    asked: Asked, head: Head, columns: Columns, session: int, current: bool, parts: list[Part]
) -> Iterator[ClusterStep]:
    """Step 4, with any of the answers: the others were lost, or come too late."""
    for words, log, cleaning in asked.kept(_decisions, asked, session, tuple(parts)):
        if log is None:
            if current:
                raise Broken(words)
            continue
        after = tuple(
            column._replace(parts=replaced(column.parts, session, part))
            for column, part in zip(columns, cleaning, strict=True)
        )
        attempts = (*head.attempts[:session], Attempt("cleaning", log), *head.attempts[session + 1 :])
        yield ClusterStep(words, head._replace(attempts=attempts), after, settles=not current)


def _decisions(asked: Asked, session: int, parts: tuple[Part, ...]) -> list[tuple[str, str | None, list[Part]]]:
    """What an attempt may decide: in words, the log (None if it stops for ever), and how it goes on with each."""
    fencing = [part for part in parts if isinstance(part, Fencing)]
    standings = tuple(part.standing for part in fencing)
    possible: list[tuple[str, str | None, list[Part]]] = []
    for some in subsets([place for place, part in enumerate(fencing) if part.told is not None]):
        tolds = tuple(part.told if place in some else None for place, part in enumerate(fencing))
        decision = asked.decide(standings, session, tolds)
        if isinstance(decision, str):
            possible.append((f"session {session}, having heard {_names(some)}, stops for ever: {decision}", None, []))
        elif decision is not None:
            log, sources = decision
            cleaning: list[Part] = [
                _to_clean(asked, part, log, place in sources, told)
                for place, (part, told) in enumerate(zip(fencing, tolds, strict=True))
            ]
            possible.append((f"session {session} decides “{log}”, having heard {_names(some)}", log, cleaning))
    return possible


def _to_clean(asked: Asked, part: Fencing, log: str, source: bool, heard: ModelTold | None) -> Cleaning:
    if heard is None or part.broken:
        return Cleaning("out")
    mark = asked.clean_to(part.standing, heard, len(log) - 1)
    if len(heard.log) - 1 > mark or heard.lost is not None:
        return Cleaning("truncate", mark, source)
    return Cleaning("copy", source=source)


def _copy(
    nodes: Storage, head: Head, columns: Columns, session: int, current: bool, parts: list[Part]
) -> Iterator[ClusterStep]:
    """One batch from a source to a replica that is being cleaned."""
    sources = [
        place
        for place, part in enumerate(parts)
        if isinstance(part, Cleaning) and part.source and nodes.may_read(columns[place].replica, session)
    ]
    log = head.attempts[session].log
    for place, part in enumerate(parts):
        if isinstance(part, Cleaning) and part.stage == "copy":
            if current and not log.startswith(columns[place].replica.log):
                raise Broken(f"the copy of {{{place}}} is taken for clean and is not that of “{log}”")
            for source in sources:
                if source != place:
                    yield from _copied(nodes, head, columns, session, place, source, part, log)


def _catch_up(
    asked: Asked, nodes: Storage, head: Head, columns: Columns, session: int, parts: list[Part]
) -> Iterator[ClusterStep]:
    """One committed batch from an engaged replica to a late one."""
    wanting = [place for place, part in enumerate(parts) if isinstance(part, Late) and part.catch_up == "copy"]
    if not wanting:
        return
    log = committed(asked, head, session, parts)
    for place in wanting:
        part = parts[place]
        assert isinstance(part, Late)
        held = columns[place].replica.log
        if session == len(head.attempts) - 1 and columns[place].replica.fence == session and not log.startswith(held):
            raise Broken(f"{{{place}}} catches up from “{held}”, and “{log}” is committed")
        after = part._replace(catch_up="confirm", mark=len(held))
        for source, other in enumerate(parts):
            if isinstance(other, Engaged) and not other.broken and nodes.may_read(columns[source].replica, session):
                yield from _copied(nodes, head, columns, session, place, source, after, log)


def _copied(
    nodes: Storage, head: Head, columns: Columns, session: int, place: int, source: int, part: Part, log: str
) -> Iterator[ClusterStep]:
    """The next batch below the end of `log`, from source to place."""
    held = columns[source].replica.log[: len(log)]
    replica = nodes.copy(columns[place].replica, session, held)
    if replica is not None:
        after = columns[place]._replace(replica=replica, parts=replaced(columns[place].parts, session, part))
        words = f"session {session} copies {len(replica.log) - 1} from {{{source}}} to {{{place}}}: “{replica.log}”"
        yield ClusterStep(words, head, (*columns[:place], after, *columns[place + 1 :]))


def _engage(asked: Asked, head: Head, columns: Columns, session: int, parts: list[Part]) -> Iterator[ClusterStep]:
    """Step 6, with any of those that have joined: the answers of the others were lost.

    That the result may stay unknown needs no step of its own. The owner reads the value again until it is its own
    (which is this step) or another's (which is this step, and none by this owner after it).
    """
    log = head.attempts[session].log
    standings = tuple(column.standing for column in columns)
    joined = [place for place, part in enumerate(parts) if _stage(part).startswith("joined")]
    for some in subsets(joined):
        clean = frozenset(some)
        if not asked.may_engage(standings, clean):
            continue
        if not log.startswith(head.published):
            raise Broken(f"session {session} engages with “{log}”, and “{head.published}” is in the log for ever")
        for place in clean:
            replica = columns[place].replica
            befallen = replica.lost is not None or _stage(parts[place]) == "joined-broken"
            if replica.log != log and not befallen:
                raise Broken(f"{{{place}}} is engaged with “{replica.log}” instead of “{log}”")
        engaged = asked.engage(standings, session, clean, len(log) - 1)
        after = tuple(
            column._replace(
                standing=standing,
                parts=replaced(column.parts, session, _to_write(parts[place], standing, place in clean)),
            )
            for place, (column, standing) in enumerate(zip(columns, engaged, strict=True))
        )
        attempts = (*head.attempts[:session], Attempt("writing", log), *head.attempts[session + 1 :])
        words = f"session {session} is engaged at “{log}” on {_names(some)}"
        yield ClusterStep(words, head._replace(attempts=attempts, claimed=False, published=log), after)


def _stage(part: Part) -> str:
    return part.stage if isinstance(part, Cleaning) else ""


def _to_write(part: Part, standing: ModelStanding, clean: bool) -> Part:
    assert isinstance(part, Cleaning)
    if not standing.member and not standing.coming:
        return Gone()
    if clean:
        return Engaged(broken=part.stage == "joined-broken")
    if part.stage in ("truncate", "copy"):
        return Late(standing, part.stage, part.mark)
    return Late(standing)


def _edit(asked: Asked, head: Head, columns: Columns) -> Iterator[ClusterStep]:
    """An operator adds or removes one replica, which is pending until an engagement makes it; or cancels that.

    Another operator's edit is another such step. One that was made up from an older value is none: its compare-and-set
    fails, and so does the engagement of a session that was claimed before an edit.
    """
    after = head._replace(left=head.left._replace(edits=head.left.edits - 1), claimed=False)
    standings = tuple(column.standing for column in columns)
    pending = any(standing.coming for standing in standings)
    for place, column in enumerate(columns):
        edited = asked.edited(standings, place)
        if edited is None:
            continue
        deed = "cancels the change" if pending else f"{'removes' if column.standing.member else 'adds'} {{{place}}}"
        changed = tuple(
            each._replace(standing=come, parts=_noticed(head, each.parts, come))
            for each, come in zip(columns, edited, strict=True)
        )
        yield ClusterStep(f"an operator {deed}", after, changed, settles=True)
        if pending:
            return


def _noticed(head: Head, parts: tuple[Part, ...], standing: ModelStanding) -> tuple[Part, ...]:
    """The owner that writes sees a copy that is to be added, and begins to catch it up: it is no member for that."""
    session = len(parts) - 1
    if head.attempts[session].phase != "writing" or standing.member or not standing.coming:
        return parts
    return replaced(parts, session, Late(standing))


def committed(asked: Asked, head: Head, session: int, parts: Iterable[Part]) -> str:
    """The log up to what this session's owner can know to be committed."""
    progress = tuple(
        sorted(
            (part.progress if isinstance(part, Engaged) else NOT_ENGAGED)
            for part in parts
            if isinstance(part, Engaged) or (isinstance(part, Late) and part.standing.member)
        )
    )
    return head.attempts[session].log + letter(session) * asked.committed(progress)


def publish(asked: Asked, head: Head, session: int, engaged: int, parts: Iterable[Part]) -> Head:
    """What the log is once this session's commits are known; `engaged` is the session that the coordinator names.

    A commit counts from the moment in which its last acknowledgement can arrive: every promise about it must hold then.
    """
    log = committed(asked, head, session, parts)
    if head.published.startswith(log):
        return head
    if not log.startswith(head.published):
        raise Broken(f"session {session} commits “{log}”, and “{head.published}” is in the log for ever")
    if engaged != session:
        raise Broken(f"session {session} commits “{log}” while session {engaged} is engaged")
    return head._replace(published=log)


def subsets(places: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(places) + 1):
        yield from combinations(places, count)


def _names(places: tuple[int, ...]) -> str:
    return ", ".join(f"{{{place}}}" for place in places) or "nobody"
