"""The walk through all states, breadth first, and the shortest way to one in which a promise is broken.

Some promises are checked where a step would break them (`cluster`: no two contents at one id, no commit beside another
session's, no engagement below what is published; `asked`: nothing that was confirmed is cut, no older generation comes
back). Here are those that a state has by itself: above all that from here the log can go on whole, shown by trying.

What can have no effect any more is forgotten, so that states that differ only in it are one: an attempt that was
overtaken can reach a replica only while that replica's fence is not above its session, and a fence falls only with its
disk.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from polonaise.terms import NO_SESSION
from polonaise_proving.model import attempts, cluster
from polonaise_proving.model.asked import Asked
from polonaise_proving.model.bounds import ModelBounds
from polonaise_proving.model.cluster import Columns, subsets
from polonaise_proving.model.decisions import Decisions
from polonaise_proving.model.states import (
    NAMES,
    Attempt,
    Cleaning,
    Engaged,
    Fencing,
    Gone,
    Head,
    Late,
    ModelColumn,
    ModelReplica,
    ModelStanding,
    ModelTold,
    Part,
    replaced,
)
from polonaise_proving.model.storage import Storage
from polonaise_proving.model.walk import Broken

_BITS = 24
_MASK = (1 << _BITS) - 1

T = TypeVar("T", bound=Hashable)


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


class Seen(NamedTuple):
    """Of one replica, what an attempt meets that starts now and is disturbed by nobody."""

    standing: ModelStanding
    replica: ModelReplica


def seen(column: ModelColumn) -> Seen:
    return Seen(column.standing, column.replica._replace(fence=NO_SESSION, unsynced=0))


def check_confirmed(published: str, column: ModelColumn) -> None:
    """A confirmed mark tells of the log only, and of what is in it for ever."""
    confirmed, log = column.replica.confirmed, column.replica.log
    if confirmed >= len(published) or not published.startswith(log[: confirmed + 1]):
        raise Broken(f"{{0}} holds “{log}”, confirmed up to {confirmed}, and “{published}” is the log")


class Quiet:
    """Attempts without any more faults, from a state: with each set of replicas that may be there.

    Whatever such an attempt decides must have all that was published; and with an undamaged majority there it has to
    get through.
    """

    def __init__(self, asked: Asked, nodes: Storage) -> None:
        self._asked = asked
        self._nodes = nodes

    def check(self, published: str, session: int, replicas: tuple[Seen, ...]) -> None:
        standings = tuple(each.standing for each in replicas)
        fenced = [self._fenced(each, session) for each in replicas]
        wanted = self._asked.participants(standings)
        if unasked := {place for place, standing in enumerate(standings) if standing.coming} - wanted:
            raise Broken(f"the next session never makes the change: it does not fence {{{min(unasked)}}}")
        for up in subsets(list(range(len(replicas)))):
            there = tuple(place for place in up if place in wanted)
            tolds = tuple(fenced[place][1] if place in there else None for place in range(len(replicas)))
            decision = self._asked.decide(standings, session, tolds)
            who = "having heard " + (", ".join(f"{{{place}}}" for place in there) or "nobody")
            healthy = [place for place in up if _is_healthy(replicas[place])]
            if isinstance(decision, str):
                raise Broken(f"the next session, {who}, stops for ever: {decision}")
            if decision is None:
                if _is_majority(standings, healthy):
                    raise Broken(f"the next session, {who}, waits although an undamaged majority is there")
                continue
            log, sources = decision
            if not log.startswith(published):
                raise Broken(f"the next session, {who}, decides “{log}”, and “{published}” is in the log for ever")
            whole = [self._clean(standings[each], *fenced[each], session, log, f"{who}, {{{each}}}") for each in there]
            if log and not sources & {place for place, uncut in zip(there, whole, strict=True) if uncut}:
                raise Broken(f"the next session, {who}, cuts the last copy of “{log}”")
            if _is_majority(standings, list(up)) and not self._asked.may_engage(standings, frozenset(there)):
                raise Broken(f"the next session, {who}, may not engage, with a majority clean")

    def _fenced(self, seen: Seen, session: int) -> tuple[ModelReplica, ModelTold]:
        fenced = self._nodes.fence(seen.replica, session)
        if fenced is None:
            raise Broken(f"a replica refuses the newest session {session}")
        return fenced

    def _clean(
        self, standing: ModelStanding, replica: ModelReplica, told: ModelTold, session: int, log: str, who: str
    ) -> bool:
        """Bring a replica to exactly `log`, as the cleaning does; whether none of it had to be cut from it."""
        mark = self._asked.clean_to(standing, told, len(log) - 1)
        if not log.startswith(told.log[: mark + 1]):
            raise Broken(f"the next session, {who} holds “{told.log}”, taken for clean up to {mark}")
        cleaned: ModelReplica | None = replica
        if len(told.log) - 1 > mark or told.lost is not None:
            cleaned = self._nodes.truncate(replica, session, mark)
        while cleaned is not None and len(cleaned.log) < len(log):
            cleaned = self._nodes.copy(cleaned, session, log)
        joined = None if cleaned is None else self._nodes.join(cleaned, session, log)
        if joined is None or joined.lost is not None:
            raise Broken(f"the next session, {who} can never take part again: it tells {told}")
        return mark >= len(log) - 1


def _is_healthy(seen: Seen) -> bool:
    """Nothing ever befell its disk, for all that can be known."""
    standing, replica = seen
    return replica.lost is None and (standing.session == NO_SESSION or replica.joined >= standing.session)


def _is_majority(standings: tuple[ModelStanding, ...], places: list[int]) -> bool:
    """Of the members, and of those to be."""
    for members in ([each.member for each in standings], [each.coming for each in standings]):
        if 2 * sum(members[place] for place in places) <= sum(members) and any(members):
            return False
    return True


@dataclass(frozen=True)
class Counterexample:
    """A broken promise, and the steps to it in words."""

    promise: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{number:3}  {words}" for number, words in enumerate(self.steps, 1)]
        return "\n".join([*lines, f"     BROKEN: {self.promise}"])


@dataclass(frozen=True)
class ModelResult:
    """What an exploration has shown."""

    bounds: ModelBounds
    states: int
    transitions: int
    depth: int
    seconds: float
    complete: bool
    """Every state within the bounds was reached; otherwise a counterexample or the limit ended it."""
    counterexample: Counterexample | None

    def __str__(self) -> str:
        what = "holds" if self.complete else "BROKEN" if self.counterexample else "not finished"
        return (
            f"{what}: {self.bounds}: {self.states:,} states, {self.transitions:,} transitions, "
            f"{self.depth} steps deep, {self.seconds:.1f} s ({self.states / max(self.seconds, 1e-9):,.0f} states/s)"
        )


class _Numbers(Generic[T]):
    """A number for each value: a state is then one integer, and what concerns one column is worked out once."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def __getitem__(self, value: T) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


_Local: TypeAlias = tuple[str, int, int, int | None, bool]
"""An `attempts.AttemptStep`, head and column as numbers."""


class _Move(NamedTuple):
    """One transition as numbers, the columns still in the places they had before it."""

    words: str
    place: int | None
    """The replica that `words` calls {0}; None when they name all by their places."""
    head: int
    columns: list[int]


class Search:
    """One exploration. Use it once."""

    def __init__(self, decisions: Decisions, bounds: ModelBounds, *, forgetting: bool = True) -> None:
        """Without `forgetting`, states are told apart also by what can have no effect any more."""
        self._bounds = bounds
        self._forgetting = forgetting
        self._asked = Asked(decisions)
        self._nodes = Storage(decisions.replica)
        self._quiet = Quiet(self._asked, self._nodes)
        self._heads: _Numbers[Head] = _Numbers()
        self._columns: _Numbers[ModelColumn] = _Numbers()
        self._seen: _Numbers[Seen] = _Numbers()
        self._checked: dict[tuple[str, int], int] = {}
        self._fine: set[tuple[Hashable, ...]] = set()
        self._all = list(range(bounds.sessions))
        self._steps_of_one = cache(self._work_out_steps)
        self._settled = cache(self._settle_one)
        self._ended_head = cache(self._end)
        self._ended_column = cache(self._end_one)
        self._came_from: dict[int, int] = {}
        self._transitions = 0

    def run(self, states_max: int | None = None) -> ModelResult:
        """Until every state was visited, a promise is broken, or `states_max` were found."""
        began = time.monotonic()
        first = self._pack(*self._numbered(*cluster.beginning(self._asked, self._bounds)))
        self._came_from[first] = first
        frontier, depth = [first], 0
        counterexample: Counterexample | None = None
        try:
            while frontier and (states_max is None or len(self._came_from) < states_max):
                frontier = self._beyond(frontier)
                depth += 1
        except _Broken as broken:
            counterexample = self._explain(broken)
        return ModelResult(
            self._bounds,
            states=len(self._came_from),
            transitions=self._transitions,
            depth=depth,
            seconds=time.monotonic() - began,
            complete=counterexample is None and not frontier,
            counterexample=counterexample,
        )

    def _beyond(self, frontier: list[int]) -> list[int]:
        """The states one step further that were not known."""
        known = self._came_from
        following: list[int] = []
        for state in frontier:
            try:
                for move in self._moves(state):
                    self._transitions += 1
                    after = self._pack(move.head, move.columns)
                    if after not in known:
                        known[after] = state
                        self._check(after)
                        following.append(after)
            except Broken as violation:
                raise _Broken(state, str(violation)) from None
        return following

    def disks_seen(self) -> set[Hashable]:
        """Everything that was found to be possible on the disks and in the coordinator, whoever is at it."""
        seen: set[Hashable] = set()
        for state in self._came_from:
            number, numbers = self._unpack(state)
            head = self._heads.values[number]
            columns = [self._columns.values[each] for each in numbers]
            # Sorted by what they say: that the columns are in order does not put these parts of them in order.
            disks = sorted(repr((column.replica, column.standing)) for column in columns)
            seen.add((head.published, len(head.attempts), head.left, *disks))
        return seen

    # ------------------------------------------------------------------ states as integers

    def _numbered(self, head: Head, columns: Columns) -> tuple[int, list[int]]:
        return self._heads[head], [self._columns[column] for column in columns]

    def _pack(self, head: int, columns: list[int]) -> int:
        """Canonical: the replicas in the order of their columns' numbers."""
        packed = head
        for number in sorted(columns):
            packed = packed << _BITS | number
        return packed

    def _unpack(self, state: int) -> tuple[int, list[int]]:
        columns = []
        for _ in range(self._bounds.replicas):
            columns.append(state & _MASK)
            state >>= _BITS
        columns.reverse()
        return state, columns

    # ------------------------------------------------------------------ transitions

    def _moves(self, state: int) -> Iterator[_Move]:
        head, numbers = self._unpack(state)
        for place, number in enumerate(numbers):
            if place and number == numbers[place - 1]:
                continue
            for words, after_head, after_column, stores, settles in self._steps_of_one(head, number):
                columns = [*numbers]
                columns[place] = after_column
                if stores is not None:
                    after_head = self._publish(after_head, columns, stores, words, place)
                if settles:
                    after_head, columns = self._settle(after_head, columns)
                yield _Move(words, place, after_head, columns)
        values = tuple([self._columns.values[number] for number in numbers])
        for step in cluster.steps(self._asked, self._nodes, self._bounds, self._heads.values[head], values):
            after = self._numbered(step.head, step.columns)
            yield _Move(step.words, None, *(self._settle(*after) if step.settles else after))

    def _work_out_steps(self, head: int, column: int) -> list[_Local]:
        return [
            (step.words, self._heads[step.head], self._columns[step.column], step.stores, step.settles)
            for step in attempts.steps(
                self._asked, self._nodes, self._bounds, self._heads.values[head], self._columns.values[column]
            )
        ]

    def _publish(self, head: int, columns: list[int], session: int, words: str, place: int) -> int:
        values = [self._columns.values[number] for number in columns]
        parts = [value.parts[session] for value in values]
        engaged = max(value.standing.session for value in values)
        try:
            return self._heads[cluster.publish(self._asked, self._heads.values[head], session, engaged, parts)]
        except Broken as violation:
            raise Broken(f"{words.format(f'{{{place}}}')}: {violation}") from None

    def _settle(self, head: int, columns: list[int]) -> tuple[int, list[int]]:
        if not self._forgetting:
            return head, columns
        settled: list[int] = []
        over = self._all[: len(self._heads.values[head].attempts)]
        for number in columns:
            after, able = self._settled(head, number)
            settled.append(after)
            over = [session for session in over if session not in able]
        if not over:
            return head, settled
        sessions = tuple(over)
        return self._ended_head(head, sessions), [self._ended_column(number, sessions) for number in settled]

    def _end(self, head: int, sessions: tuple[int, ...]) -> int:
        return self._heads[end(self._heads.values[head], sessions)]

    def _end_one(self, column: int, sessions: tuple[int, ...]) -> int:
        return self._columns[end_one(self._columns.values[column], sessions)]

    def _settle_one(self, head: int, column: int) -> tuple[int, frozenset[int]]:
        value, able = settle_one(self._heads.values[head], self._columns.values[column])
        return self._columns[value], able

    # ------------------------------------------------------------------ promises

    def _check(self, state: int) -> None:
        number, numbers = self._unpack(state)
        head = self._heads.values[number]
        views: list[int] = []
        for place, each in enumerate(numbers):
            if (view := self._checked.get((head.published, each))) is None:
                view = self._check_one(state, head.published, place, self._columns.values[each])
                self._checked[head.published, each] = view
            views.append(view)
        order = sorted(range(len(views)), key=views.__getitem__)
        whole = (head.published, len(head.attempts), *[views[place] for place in order])
        if whole not in self._fine:
            self._fine.add(whole)
            replicas = tuple(self._seen.values[views[place]] for place in order)
            try:
                self._quiet.check(head.published, len(head.attempts), replicas)
            except Broken as violation:
                raise _Broken(state, str(violation).format(*(f"{{{place}}}" for place in order))) from None

    def _check_one(self, state: int, published: str, place: int, column: ModelColumn) -> int:
        """The number under which the replica is `seen`."""
        try:
            check_confirmed(published, column)
        except Broken as violation:
            raise _Broken(state, str(violation).format(f"{{{place}}}")) from None
        return self._seen[seen(column)]

    # ------------------------------------------------------------------ the way to a broken promise

    def _explain(self, broken: _Broken) -> Counterexample:
        """Replicas change places as states are made canonical; here each keeps the name it began with."""
        path = [broken.state]
        while (before := self._came_from[path[-1]]) != path[-1]:
            path.append(before)
        path.reverse()
        names = list(NAMES)
        words: list[str] = []
        for state, after in pairwise(path):
            move = next(move for move in self._moves(state) if self._pack(move.head, move.columns) == after)
            words.append(move.words.format(*(names if move.place is None else [names[move.place]])))
            order = sorted(range(len(move.columns)), key=move.columns.__getitem__)
            names = [names[place] for place in order]
        return Counterexample(broken.promise.format(*names), tuple(words))


class _Broken(Exception):
    """A promise is broken in, or by a step from, `state`; {0}, {1}, … in it are the replicas in their places."""

    def __init__(self, state: int, promise: str) -> None:
        super().__init__(promise)
        self.state = state
        self.promise = promise
