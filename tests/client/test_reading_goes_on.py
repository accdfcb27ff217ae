"""A reading whose wait was given up, or that raised, goes on or raises again: it never seems to have ended."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import polonaise
from polonaise import Batch, Group, testing
from polonaise.errors import BatchDamaged, DataDamaged, DeadlineExceeded, LogForked, OutOfOrder, PolonaiseError
from polonaise.log.batch import Columns
from rigs.clients import World
from rigs.raising import check_small, raised
from rigs.waiting import nothing_happens_for, wait_until

pytestmark = pytest.mark.slow

COUNT = 6_000

READINGS: dict[str, Callable[..., Any]] = {
    "read": lambda log, **options: log.read(0, **options),
    "read_time": lambda log, **options: log.read_time(0, since=1, **options),
    "read_batches": lambda log, **options: log.read_batches(0, **options),
}
every_reading = pytest.mark.parametrize("name", READINGS)


def ids(item: Any) -> list[int]:
    return [tx.id for tx in item.transactions()] if isinstance(item, Batch) else [item.id]


async def into(found: list[int], reading: Any) -> None:
    """Read on to the end."""
    async for item in reading:
        found += ids(item)


async def steps(task: asyncio.Task[Any], count: int) -> None:
    """Give it so many turns of the loop."""
    for _ in range(count):
        if task.done():
            return
        await asyncio.sleep(0)


async def given_up_often(reading: Any, chance: random.Random) -> tuple[list[int], int]:
    """All that it brings, and how often a wait for the next was cancelled."""
    found: list[int] = []
    cancelled = 0
    while True:
        task = asyncio.ensure_future(anext(reading))
        if chance.random() < 0.3:
            await steps(task, chance.choice([0, 0, 1, 2, 5, 20]))
            cancelled += task.cancel()
        try:
            found += ids(await task)
        except asyncio.CancelledError:
            pass
        except StopAsyncIteration:
            return found, cancelled


def batches(chance: random.Random) -> Iterator[list[bytes]]:
    """The bodies of all transactions, in batches of any sizes."""
    left = COUNT
    while left:
        size = min(left, chance.randrange(1, 50))
        yield [b"x"] * size
        left -= size


@asynccontextmanager
async def in_memory(world: World, chance: random.Random) -> AsyncIterator[polonaise.Log]:
    async with testing.log() as log:
        for bodies in batches(chance):
            await log.append_group(Group.of(bodies))
        yield log


@asynccontextmanager
async def of_a_server(world: World, chance: random.Random) -> AsyncIterator[polonaise.Log]:
    for bodies in batches(chance):
        world.log.fill(*bodies)
    yield await world.client(settings={"read_bytes": chance.choice([1, 5_000]), "reads_ahead": chance.randrange(1, 4)})


@every_reading
@pytest.mark.parametrize("log_of", [in_memory, of_a_server])
@pytest.mark.parametrize("seed", range(3))
async def test_waits_that_are_cancelled_at_any_moment_lose_nothing(
    world: World, log_of: Any, name: str, seed: int
) -> None:
    chance = random.Random(seed)
    async with log_of(world, chance) as log:
        found, cancelled = await given_up_often(READINGS[name](log), chance)
    assert found == list(range(COUNT))
    assert cancelled >= 20


@every_reading
@pytest.mark.parametrize("patience_s", [0, 0.02])
async def test_a_reading_that_follows_goes_on_after_a_wait_that_was_given_up(name: str, patience_s: float) -> None:
    async with testing.log() as log:
        reading = aiter(READINGS[name](log, follow=True))
        for number in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reading), patience_s)
            await log.append(b"%d" % number)
            assert ids(await asyncio.wait_for(anext(reading), 5)) == [number]
        await reading.aclose()


@every_reading
async def test_a_reading_whose_deadline_passed_goes_on_when_there_is_an_answer(world: World, name: str) -> None:
    for number in range(100):
        world.log.fill(b"%d" % number)
    client = await world.client(settings={"read_bytes": 1, "reads_ahead": 1})
    reading = READINGS[name](client, timeout=0.05)
    found: list[int] = []
    for crashes_at in (0, 10, 50, 90):
        while len(found) < crashes_at:
            with suppress(DeadlineExceeded):  # the machine may be busy
                found += ids(await anext(reading))
        world.server.crash()
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                await into(found, reading)
        world.server.restart()
    ended = False
    while not ended:
        with suppress(DeadlineExceeded):
            await into(found, reading)
            ended = True
    assert found == list(range(100))


def damage(world: World) -> None:
    world.server.damage = lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])


def gap(world: World) -> None:
    del world.log.batches[4]


def fork(world: World) -> None:
    world.log.batches[-1].crc ^= 1
    world.log.fill(b"here")
    world.log.batches[-2].crc ^= 1


def damaged_body(world: World) -> None:
    columns = Columns()
    columns.add(1, 1, 100, 0, b"whole")
    columns.add(1, 1, 101, 0, b"damaged", data_crc=1)
    columns.add(1, 1, 102, 0, b"whole, too")
    world.log.commit(columns)


@pytest.mark.parametrize(
    ("name", "harm", "raises"),
    [
        *[(name, damage, BatchDamaged) for name in READINGS],
        *[(name, gap, OutOfOrder) for name in READINGS],
        *[(name, fork, LogForked) for name in READINGS],
        ("read", damaged_body, DataDamaged),
        ("read_time", damaged_body, DataDamaged),
    ],
)
async def test_what_will_not_pass_is_raised_again_and_does_not_grow(
    world: World, name: str, harm: Callable[[World], None], raises: type[PolonaiseError]
) -> None:
    for number in range(10):
        world.log.fill(*[b"%d" % number] * 10)
    harm(world)
    client = await world.client()
    reading = READINGS[name](client)
    found: list[int] = []
    with pytest.raises(raises) as first:
        await into(found, reading)
    last = await raised(lambda: anext(reading), 1_000)
    assert type(last) is raises
    assert str(last) == str(first.value)
    check_small(last)
    assert found == list(range(len(found)))
    assert len(asyncio.all_tasks()) <= 2 + len(world.host.tasks), "nothing is asked for any more"
    await reading.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(reading)


@every_reading
async def test_two_tasks_may_not_wait_for_the_same_reading(name: str) -> None:
    async with testing.log() as log:
        reading = READINGS[name](log, follow=True)
        first = asyncio.ensure_future(anext(reading))
        await nothing_happens_for(0.01)
        with pytest.raises(RuntimeError):
            await anext(reading)
        await log.append(b"x")
        assert ids(await first) == [0]
        await reading.aclose()


@every_reading
async def test_a_reading_that_is_closed_has_ended_for_who_waits_for_it(name: str) -> None:
    async with testing.log() as log:
        for follow in (True, False):
            reading = READINGS[name](log, follow=follow)
            first = asyncio.ensure_future(anext(reading))
            await nothing_happens_for(0.01 if follow else 0)
            await reading.aclose()
            with pytest.raises(StopAsyncIteration):
                await first
            with pytest.raises(StopAsyncIteration):
                await anext(reading)


@every_reading
async def test_a_reading_that_is_left_leaves_no_request_behind(name: str) -> None:
    def asking() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if "Requests.ask" in repr(task)]

    async with testing.log() as log:
        await log.append(b"x")
        reading = READINGS[name](log, follow=True)
        async for _ in reading:
            break
        await wait_until(lambda: len(asking()) == 1, "it asks for what comes next")
        del reading
        gc.collect()
        await wait_until(lambda: asking() == [])
