"""Runs the real publishing code one step at a time: every request to the log or the store may go wrong.

A *schedule* says what happens at each step: the attempt under way goes on, or another one does; it is killed; its
append's answer is lost (and the append lands later, or never); the driver is started again, with another split, while
the old one still lives. `check_all` makes all of them with at most so many deviations from "nothing goes wrong".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np

from polonaise.client.protocol.draft import Change, Expectation, Limits
from polonaise.client.protocol.group import Group
from polonaise.errors import AppendUnknown, Closed, ExpectationFailed, NotFound, PolonaiseError
from polonaise.fragments.store import Listed
from polonaise.spark import staging
from polonaise.spark.protocol.plans import Plan, Staged, plans_of
from polonaise.spark.publishing import Publication, RealPublicationPort
from polonaise.spark.rows import RowColumns
from polonaise.spark.staging import Stage, discard
from polonaise.terms import ExpectationKind

APP = "app"
LIMITS = Limits(group_count_max=2)
"""Limits of two rows for each group, so that few rows make a chain of groups."""
STEPS_MAX = 400

Rows = dict[int, list[bytes]]
"""Bodies by partition."""


def piece(bodies: Sequence[bytes]) -> RowColumns:
    return RowColumns(
        np.zeros(len(bodies), np.int32),
        np.array([crc32(body) for body in bodies], np.uint32),
        np.array([len(body) for body in bodies], np.int64),
        memoryview(b"".join(bodies)),
        None,
    )


def staged_by(tasks: Sequence[Rows], objects: dict[str, bytes], *, inline: bool = False) -> list[Staged]:
    """Stage the rows of these tasks, and put their objects into `objects`. Return what was staged."""
    found = []
    for number, rows in enumerate(tasks):
        stage = Stage(number, objects.__setitem__, 1_000_000 if inline else 0, LIMITS)
        for partition, bodies in rows.items():
            stage.add(partition, piece(bodies))
        found.append(stage.finish())
    return found


class Step:
    """A request that a coroutine waits for: the scheduler carries it out and hands back the result."""

    def __init__(self, do: Callable[[], Any], *, append: bool = False) -> None:
        self.do = do
        self.append = append

    def __await__(self) -> Iterator[Any]:
        return (yield self)


@dataclass
class World:
    """The log and the store at present."""

    rows: dict[int, list[bytes]] = field(default_factory=dict)
    registers: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    in_flight: list[Callable[[], None]] = field(default_factory=list)
    """Appends whose senders got no answer; each may land once, at any later time."""

    def append(
        self, partition: int, group: Group, expectations: Sequence[Expectation], changes: Sequence[Change]
    ) -> None:
        for kind, key, value in expectations:
            held = self.registers.get((partition, key))
            holds = held is None if kind == ExpectationKind.ABSENT else held == value
            if not holds:
                raise ExpectationFailed(f"{key!r}")
        for change in changes:
            self.registers[partition, change.key] = change.value
        raw, ends = bytes(group.data), list(group.data_ends)
        self.rows.setdefault(partition, []).extend(
            raw[start:stop] for start, stop in zip([0, *ends], ends, strict=False)
        )


class SteppedStore:
    """An object store in which each request is a step."""

    def __init__(self, world: World) -> None:
        self._objects = world.objects

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        held: bytes = await Step(lambda: self._objects.setdefault(path, data))
        return held is data

    async def get(self, path: str) -> bytes:
        return await Step(lambda: self._found(path))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await Step(lambda: self._found(path)[offset : offset + length])

    async def list(self, prefix: str = "") -> list[Listed]:
        return await Step(
            lambda: [Listed(path, len(data)) for path, data in sorted(self._objects.items()) if path.startswith(prefix)]
        )

    async def delete(self, path: str) -> None:
        await Step(lambda: self._objects.pop(path, None))

    def _found(self, path: str) -> bytes:
        if path not in self._objects:
            raise NotFound(path)
        return self._objects[path]


class SteppedPort(RealPublicationPort):
    """The real port on a log in memory, without tasks and clocks."""

    def __init__(self, world: World) -> None:
        super().__init__(None, SteppedStore(world), 1_000.0)  # type: ignore[arg-type]
        self._world = world
        self._now_s = 0.0

    async def register(self, key: bytes, partition: int) -> bytes | None:
        return await Step(lambda: self._world.registers.get((partition, key)))

    async def append(
        self, partition: int, group: Group, expectations: Sequence[Expectation], changes: Sequence[Change]
    ) -> None:
        await Step(lambda: self._world.append(partition, group, expectations, changes), append=True)

    async def groups(self, plan: Plan, start: int) -> AsyncGenerator[Group, None]:
        for refs in plan.groups[start:]:
            yield await self._group(plan, refs)

    async def pause(self, seconds: float) -> None:
        self._now_s += 1.0

    def chance(self) -> float:
        return 1.0

    def now_s(self) -> float:
        return self._now_s


PortOf = Callable[[World], SteppedPort]


async def aborted(store: SteppedStore, staged: Sequence[Staged]) -> None:
    """Do what the sink's `abort` does: nothing."""


async def attempt(world: World, port: SteppedPort, batch: int, staged: Sequence[Staged]) -> None:
    """Do as `publish` does, with one partition after the other; on failure `abort`, as Spark does."""
    store = SteppedStore(world)
    try:
        used = [name for task in staged for name in task.objects]
        plans = plans_of(APP, batch, staged, LIMITS)
        for plan in plans:
            publication = Publication(port, plan, len(plans), 1_000.0)
            await publication.run()
            used += publication.used
    except PolonaiseError:
        await aborted(store, staged)
        raise
    await discard(store, used, 1_000.0)


@dataclass
class Driver:
    """One life of the driver: one attempt, run step by step."""

    life: Coroutine[Any, Any, None]
    waits_for: Step | None = None
    over: bool = False
    failed: bool = False

    def send(self, value: Any = None, error: Exception | None = None) -> None:
        try:
            self.waits_for = self.life.throw(error) if error is not None else self.life.send(value)
        except StopIteration:
            self.over = True
        except PolonaiseError:
            self.over = self.failed = True

    def step(self) -> None:
        assert self.waits_for is not None
        try:
            found = self.waits_for.do()
        except PolonaiseError as error:
            self.send(error=error)
        else:
            self.send(found)

    def kill(self) -> None:
        with suppress(Killed):
            self.life.throw(Killed())
        self.over = self.failed = True


class Killed(BaseException):
    """Raised in the code of a killed driver, which makes no more requests."""


Choose = Callable[[int], int]
"""Chooses one of so many possibilities by its index; at index 0 nothing goes wrong."""


@dataclass
class Scenario:
    """Batches to be published in their order, and for each the splits into tasks that its attempts have."""

    batches: Sequence[Sequence[Sequence[Rows]]]
    inline: bool = False

    def orders(self, partition: int) -> list[list[bytes]]:
        """Return the correct contents of a partition: each batch once, whole, in the order of one of its splits."""
        found: list[list[bytes]] = [[]]
        for splits in self.batches:
            each = [[body for task in tasks for body in task.get(partition, [])] for tasks in splits]
            found = [before + rows for before in found for rows in each]
        return found

    def play(self, choose: Choose, port_of: PortOf = SteppedPort) -> World:
        """Play one schedule to its end. Whatever goes wrong, each batch is tried until an attempt succeeds."""
        names = count()
        with (
            patch.object(staging, "_new_name", lambda: f"20260101T000000Z-{next(names):04d}"),
            patch.object(staging, "within", _without_clock),
        ):
            play = Play(self, choose, port_of)
            try:
                for batch in range(len(self.batches)):
                    play.publish(batch)
                play.end()
            finally:
                play.kill_all()
        return play.world

    def check(self, world: World) -> None:
        """Check that the log has each row once, batch after batch."""
        for partition in {partition for splits in self.batches for rows in splits[0] for partition in rows}:
            assert world.rows.get(partition, []) in self.orders(partition), (partition, world.rows)


async def _without_clock(_: float, asked: Awaitable[Any]) -> Any:
    return await asked


class Play:
    """One schedule under way."""

    def __init__(self, scenario: Scenario, choose: Choose, port_of: PortOf) -> None:
        self.world = World()
        self._scenario = scenario
        self._choose = choose
        self._port_of = port_of
        self._lives: list[Driver] = []
        self._steps = 0

    def publish(self, batch: int) -> None:
        self._start(batch)
        while not (self._current.over and not self._current.failed):
            if self._current.over:
                self._start(batch)
            if self._running.over:
                self._running = self._current
            options = self._options(batch)
            options[self._choose(len(options))]()
            self._steps += 1
            assert self._steps < STEPS_MAX, "it does not come to an end"

    def end(self) -> None:
        """Let late appends land, and drivers that were thought dead run to their end."""
        for life in self._lives:
            while self.world.in_flight:
                self._deliver(0)
            while not life.over:
                life.step()

    def kill_all(self) -> None:
        for life in self._lives:
            if not life.over:
                life.kill()

    def _start(self, batch: int) -> None:
        splits = self._scenario.batches[batch]
        tasks = splits[len(self._lives) % len(splits)]
        staged = staged_by(tasks, self.world.objects, inline=self._scenario.inline)
        self._current = self._running = Driver(attempt(self.world, self._port_of(self.world), batch, staged))
        self._lives.append(self._current)
        self._current.send()

    def _options(self, batch: int) -> list[Callable[[], None]]:
        running = self._running
        options: list[Callable[[], None]] = [running.step]
        if running.waits_for is not None and running.waits_for.append:
            options += [self._lose, self._lose_answer]
        options += [self._fail, self._current.kill, lambda: self._start(batch)]
        options += [partial(self._turn_to, life) for life in self._lives if not life.over and life is not running]
        options += [partial(self._deliver, place) for place in range(len(self.world.in_flight))]
        return options

    def _turn_to(self, life: Driver) -> None:
        self._running = life
        life.step()

    def _lose(self) -> None:
        step = self._running.waits_for
        assert step is not None
        self.world.in_flight.append(step.do)
        self._running.send(error=AppendUnknown("lost"))

    def _lose_answer(self) -> None:
        self._lose()
        self._deliver(-1)

    def _fail(self) -> None:
        """Fail the driver's request with an error after which it gives up; an append under way may still land."""
        step = self._running.waits_for
        if step is not None and step.append:
            self.world.in_flight.append(step.do)
        self._running.send(error=Closed("failed"))

    def _deliver(self, place: int) -> None:
        try:
            self.world.in_flight.pop(place)()
        except ExpectationFailed:
            return


class Course:
    """The choices of one schedule: those of `path`, and then always that nothing goes wrong."""

    def __init__(self, path: Sequence[int], deviations: int) -> None:
        self._path = path
        self._left = deviations
        self.taken: list[int] = []
        self.possible: list[int] = []

    def choose(self, count: int) -> int:
        place = len(self.taken)
        choice = self._path[place] if place < len(self._path) else 0
        self.possible.append(count if self._left else 1)
        self._left -= choice > 0
        self.taken.append(choice)
        return choice

    def next_path(self) -> list[int] | None:
        """Return the path of the schedule after this one; None after the last."""
        taken, possible = self.taken, self.possible
        while taken and taken[-1] + 1 >= possible[-1]:
            taken.pop()
            possible.pop()
        return [*taken[:-1], taken[-1] + 1] if taken else None


def check_all(scenario: Scenario, deviations: int, port_of: PortOf = SteppedPort) -> int:
    """Play and check every schedule with at most `deviations` mishaps. Return the number of schedules."""
    played = 0
    path: list[int] | None = []
    while path is not None:
        course = Course(path, deviations)
        scenario.check(scenario.play(course.choose, port_of))
        played += 1
        path = course.next_path()
    return played
