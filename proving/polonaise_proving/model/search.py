"""The walk through all states, breadth first, and the shortest way to one in which a promise is broken."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from polonaise_proving.model import attempts, cluster, settling
from polonaise_proving.model.asked import Asked
from polonaise_proving.model.bounds import ModelBounds
from polonaise_proving.model.cluster import Columns
from polonaise_proving.model.decisions import Decisions
from polonaise_proving.model.promises import Quiet, Seen, check_confirmed, seen
from polonaise_proving.model.states import NAMES, Head, ModelColumn
from polonaise_proving.model.storage import Storage
from polonaise_proving.model.walk import Broken

_BITS = 24
_MASK = (1 << _BITS) - 1

T = TypeVar("T", bound=Hashable)


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
        return self._heads[settling.end(self._heads.values[head], sessions)]

    def _end_one(self, column: int, sessions: tuple[int, ...]) -> int:
        return self._columns[settling.end_one(self._columns.values[column], sessions)]

    def _settle_one(self, head: int, column: int) -> tuple[int, frozenset[int]]:
        value, able = settling.settle_one(self._heads.values[head], self._columns.values[column])
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
