"""Steps that look at more than one replica: claim, decide, copy, engage, and changes of the membership."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple, TypeAlias

from polonaise.terms import NO_TRANSACTION

from .asked import NOT_ENGAGED, Asked
from .bounds import Bounds
from .states import (
    Attempt,
    Budget,
    Cleaning,
    Column,
    Engaged,
    Fencing,
    Gone,
    Head,
    Late,
    Replica,
    Seat,
    Standing,
    Told,
    letter,
    replaced,
)
from .storage import Storage
from .walk import Violation

Columns: TypeAlias = tuple[Column, ...]


class Step(NamedTuple):
    """One transition; {0}, {1}, … in `words` stand for the replicas in their places."""

    words: str
    head: Head
    columns: Columns
    settles: bool = False


def beginning(asked: Asked, bounds: Bounds) -> tuple[Head, Columns]:
    left = Budget(bounds.rots, bounds.wipes, bounds.snapshots, 0, bounds.crashes, bounds.failures, bounds.edits)
    standings = [Standing(place < bounds.members, False) for place in range(bounds.replicas)]
    if bounds.fresh:
        return Head("", (), False, left), tuple(Column(Replica(), standing, None, ()) for standing in standings)
    members = frozenset(range(bounds.members))
    engaged = asked.engage(tuple(standings), 0, members, NO_TRANSACTION)
    columns = [
        Column(Replica(fence=0, joined=0), standing, None, (Engaged(1),))
        if standing.member
        else Column(Replica(), standing, None, (Gone(),))
        for standing in engaged
    ]
    return Head("", (Attempt("writing"),), False, left), tuple(columns)


def steps(asked: Asked, nodes: Storage, bounds: Bounds, head: Head, columns: Columns) -> Iterator[Step]:
    if len(head.attempts) < bounds.sessions:
        yield _claim(asked, head, columns)
    for session, attempt in enumerate(head.attempts):
        current = head.claimed and session == len(head.attempts) - 1
        seats = [column.seats[session] for column in columns]
        if attempt.phase == "fencing":
            yield from _decide(asked, head, columns, session, current, seats)
        elif attempt.phase == "cleaning":
            yield from _copy(nodes, head, columns, session, current, seats)
            if current:
                yield from _engage(asked, head, columns, session, seats)
        elif attempt.phase == "writing" and bounds.catch_up:
            yield from _catch_up(asked, nodes, head, columns, session, seats)
    if head.left.edits:
        yield from _edit(asked, head, columns)


def _claim(asked: Asked, head: Head, columns: Columns) -> Step:
    """Step 1. A claim that fails, or whose result stays unknown, is a session in which nobody does anything."""
    session = len(head.attempts)
    standings = tuple(column.standing for column in columns)
    asked.claim(standings, session)
    fenced = asked.participants(standings)
    claimed = tuple(
        column._replace(seats=(*column.seats, Fencing(column.standing, place in fenced)))
        for place, column in enumerate(columns)
    )
    after = head._replace(attempts=(*head.attempts, Attempt("fencing")), claimed=True)
    return Step(f"an owner claims session {session}", after, claimed, settles=True)


def _decide(
    asked: Asked, head: Head, columns: Columns, session: int, current: bool, seats: list[Seat]
) -> Iterator[Step]:
    """Step 4, with any of the answers: the others were lost, or come too late."""
    for words, log, cleaning in asked.kept(_decisions, asked, session, tuple(seats)):
        if log is None:
            if current:
                raise Violation(words)
            continue
        after = tuple(
            column._replace(seats=replaced(column.seats, session, seat))
            for column, seat in zip(columns, cleaning, strict=True)
        )
        attempts = (*head.attempts[:session], Attempt("cleaning", log), *head.attempts[session + 1 :])
        yield Step(words, head._replace(attempts=attempts), after, settles=not current)


def _decisions(asked: Asked, session: int, seats: tuple[Seat, ...]) -> list[tuple[str, str | None, list[Seat]]]:
    """What an attempt may decide: in words, the log (None if it stops for ever), and how it goes on with each."""
    fencing = [seat for seat in seats if isinstance(seat, Fencing)]
    standings = tuple(seat.standing for seat in fencing)
    possible: list[tuple[str, str | None, list[Seat]]] = []
    for some in subsets([place for place, seat in enumerate(fencing) if seat.told is not None]):
        tolds = tuple(seat.told if place in some else None for place, seat in enumerate(fencing))
        decision = asked.decide(standings, session, tolds)
        if isinstance(decision, str):
            possible.append((f"session {session}, having heard {_names(some)}, stops for ever: {decision}", None, []))
        elif decision is not None:
            log, sources = decision
            cleaning: list[Seat] = [
                _to_clean(asked, seat, log, place in sources, told)
                for place, (seat, told) in enumerate(zip(fencing, tolds, strict=True))
            ]
            possible.append((f"session {session} decides “{log}”, having heard {_names(some)}", log, cleaning))
    return possible


def _to_clean(asked: Asked, seat: Fencing, log: str, source: bool, heard: Told | None) -> Cleaning:
    if heard is None or seat.broken:
        return Cleaning("out")
    mark = asked.clean_to(seat.standing, heard, len(log) - 1)
    if len(heard.log) - 1 > mark or heard.lost is not None:
        return Cleaning("truncate", mark, source)
    return Cleaning("copy", source=source)


def _copy(
    nodes: Storage, head: Head, columns: Columns, session: int, current: bool, seats: list[Seat]
) -> Iterator[Step]:
    """One batch from a source to a replica that is being cleaned."""
    sources = [
        place
        for place, seat in enumerate(seats)
        if isinstance(seat, Cleaning) and seat.source and nodes.may_read(columns[place].replica, session)
    ]
    log = head.attempts[session].log
    for place, seat in enumerate(seats):
        if isinstance(seat, Cleaning) and seat.stage == "copy":
            if current and not log.startswith(columns[place].replica.log):
                raise Violation(f"the copy of {{{place}}} is taken for clean and is not that of “{log}”")
            for source in sources:
                if source != place:
                    yield from _copied(nodes, head, columns, session, place, source, seat, log)


def _catch_up(
    asked: Asked, nodes: Storage, head: Head, columns: Columns, session: int, seats: list[Seat]
) -> Iterator[Step]:
    """One committed batch from an engaged replica to a late one."""
    wanting = [place for place, seat in enumerate(seats) if isinstance(seat, Late) and seat.catch_up == "copy"]
    if not wanting:
        return
    log = committed(asked, head, session, seats)
    for place in wanting:
        seat = seats[place]
        assert isinstance(seat, Late)
        held = columns[place].replica.log
        if session == len(head.attempts) - 1 and columns[place].replica.fence == session and not log.startswith(held):
            raise Violation(f"{{{place}}} catches up from “{held}”, and “{log}” is committed")
        after = seat._replace(catch_up="confirm", mark=len(held))
        for source, other in enumerate(seats):
            if isinstance(other, Engaged) and not other.broken and nodes.may_read(columns[source].replica, session):
                yield from _copied(nodes, head, columns, session, place, source, after, log)


def _copied(
    nodes: Storage, head: Head, columns: Columns, session: int, place: int, source: int, seat: Seat, log: str
) -> Iterator[Step]:
    """The next batch below the end of `log`, from source to place."""
    held = columns[source].replica.log[: len(log)]
    replica = nodes.copy(columns[place].replica, session, held)
    if replica is not None:
        after = columns[place]._replace(replica=replica, seats=replaced(columns[place].seats, session, seat))
        words = f"session {session} copies {len(replica.log) - 1} from {{{source}}} to {{{place}}}: “{replica.log}”"
        yield Step(words, head, (*columns[:place], after, *columns[place + 1 :]))


def _engage(asked: Asked, head: Head, columns: Columns, session: int, seats: list[Seat]) -> Iterator[Step]:
    """Step 6, with any of those that have joined: the answers of the others were lost.

    That the result may stay unknown needs no step of its own. The owner reads the value again until it is its own
    (which is this step) or another's (which is this step, and none by this owner after it).
    """
    log = head.attempts[session].log
    standings = tuple(column.standing for column in columns)
    joined = [place for place, seat in enumerate(seats) if _stage(seat).startswith("joined")]
    for some in subsets(joined):
        clean = frozenset(some)
        if not asked.may_engage(standings, clean):
            continue
        if not log.startswith(head.published):
            raise Violation(f"session {session} engages with “{log}”, and “{head.published}” is in the log for ever")
        for place in clean:
            replica = columns[place].replica
            befallen = replica.lost is not None or _stage(seats[place]) == "joined-broken"
            if replica.log != log and not befallen:
                raise Violation(f"{{{place}}} is engaged with “{replica.log}” instead of “{log}”")
        engaged = asked.engage(standings, session, clean, len(log) - 1)
        after = tuple(
            column._replace(
                standing=standing,
                seats=replaced(column.seats, session, _to_write(seats[place], standing, place in clean)),
            )
            for place, (column, standing) in enumerate(zip(columns, engaged, strict=True))
        )
        attempts = (*head.attempts[:session], Attempt("writing", log), *head.attempts[session + 1 :])
        words = f"session {session} is engaged at “{log}” on {_names(some)}"
        yield Step(words, head._replace(attempts=attempts, claimed=False, published=log), after)


def _stage(seat: Seat) -> str:
    return seat.stage if isinstance(seat, Cleaning) else ""


def _to_write(seat: Seat, standing: Standing, clean: bool) -> Seat:
    assert isinstance(seat, Cleaning)
    if not standing.member and not standing.coming:
        return Gone()
    if clean:
        return Engaged(broken=seat.stage == "joined-broken")
    if seat.stage in ("truncate", "copy"):
        return Late(standing, seat.stage, seat.mark)
    return Late(standing)


def _edit(asked: Asked, head: Head, columns: Columns) -> Iterator[Step]:
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
            each._replace(standing=come, seats=_noticed(head, each.seats, come))
            for each, come in zip(columns, edited, strict=True)
        )
        yield Step(f"an operator {deed}", after, changed, settles=True)
        if pending:
            return


def _noticed(head: Head, seats: tuple[Seat, ...], standing: Standing) -> tuple[Seat, ...]:
    """The owner that writes sees a copy that is to be added, and begins to catch it up: it is no member for that."""
    session = len(seats) - 1
    if head.attempts[session].phase != "writing" or standing.member or not standing.coming:
        return seats
    return replaced(seats, session, Late(standing))


def committed(asked: Asked, head: Head, session: int, seats: Iterable[Seat]) -> str:
    """The log up to what this session's owner can know to be committed."""
    progress = tuple(
        sorted(
            (seat.progress if isinstance(seat, Engaged) else NOT_ENGAGED)
            for seat in seats
            if isinstance(seat, Engaged) or (isinstance(seat, Late) and seat.standing.member)
        )
    )
    return head.attempts[session].log + letter(session) * asked.committed(progress)


def publish(asked: Asked, head: Head, session: int, engaged: int, seats: Iterable[Seat]) -> Head:
    """What the log is once this session's commits are known; `engaged` is the session that the coordinator names.

    A commit counts from the moment in which its last acknowledgement can arrive: every promise about it must hold then.
    """
    log = committed(asked, head, session, seats)
    if head.published.startswith(log):
        return head
    if not log.startswith(head.published):
        raise Violation(f"session {session} commits “{log}”, and “{head.published}” is in the log for ever")
    if engaged != session:
        raise Violation(f"session {session} commits “{log}” while session {engaged} is engaged")
    return head._replace(published=log)


def subsets(places: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(places) + 1):
        yield from combinations(places, count)


def _names(places: tuple[int, ...]) -> str:
    return ", ".join(f"{{{place}}}" for place in places) or "nobody"
