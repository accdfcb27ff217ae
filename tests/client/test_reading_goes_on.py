"""A wait that was given up: a reading goes on or raises again, and who has waited is told for what."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import polonaise
from polonaise import Batch, Group, testing
from polonaise.client.log import Log
from polonaise.client.protocol.draft import Draft
from polonaise.coordination.values import Assignment, Versioned
from polonaise.errors import (
    AppendExpired,
    AppendUnknown,
    BatchDamaged,
    DataDamaged,
    DeadlineExceeded,
    LogForked,
    OutOfOrder,
    PolonaiseError,
    ViewUnavailable,
)
from polonaise.log.batch import Columns
from polonaise.terms import BodyForm, Transaction
from rigs.clients import Memo, World
from rigs.raising import check_small, raised
from rigs.waiting import nothing_happens_for, time_passes, wait_until

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


SHORT_S = 0.03


async def told(client: Log) -> list[str]:
    """What each kind of waiting ends with."""
    waits = (
        client.ready(timeout=SHORT_S),
        client.flush(timeout=SHORT_S),
        client.run(lambda tx: tx.append(b""), timeout=SHORT_S),
        client.wait_applied(0, timeout=SHORT_S),
        client.append(b"").applied(SHORT_S),
        client.producer("p", timeout=SHORT_S),
    )
    texts = []
    for wait in waits:
        with pytest.raises((DeadlineExceeded, AppendExpired)) as raised:
            await wait
        texts.append(raised.value.text)
    return texts


async def test_while_nobody_owns_the_partition(world: World) -> None:
    world.coordinator._assignment = Versioned(2, Assignment())
    client = await world.client()
    for text in await told(client):
        assert "a server that owns it: none does" in text
        assert "polonaise server run" in text
    with pytest.raises(DeadlineExceeded, match="none does"):
        await client.high_water_mark(timeout=SHORT_S)


async def test_while_the_owner_cannot_be_reached(world: World) -> None:
    world.server.crash()
    client = await world.client(view=Memo())
    for text in (await told(client))[:-1]:
        assert f"its owner, {world.server.address}" in text
        assert "nobody listens on" in text


async def test_while_the_owner_does_not_answer_a_mount(world: World) -> None:
    world.server.silent_mounts = True
    client = await world.client(view=Memo(), settings={"mount_s_max": 5.0})
    await wait_until(lambda: world.server.heard.mounts)
    for text in (await told(client))[:-1]:
        assert f"an answer of {world.server.address} to its mount" in text


@pytest.mark.slow
async def test_a_mount_that_took_too_long_is_given_longer_the_next_time(world: World) -> None:
    """What was read for it from slow disks would else come too late each time."""
    world.server.silent_mounts = True
    client = await world.client(view=Memo(), settings={"mount_s_max": 0.02})
    await wait_until(lambda: "did not answer a mount within 0.16 s" in str(client.trouble(0)))


@pytest.mark.slow
async def test_a_request_that_took_too_long_is_given_longer_the_next_time(world: World) -> None:
    """Bodies that are read from slow disks would else come too late each time, and the view would stay for good."""
    world.server.fetch_s = 0.15
    view = Memo()
    client = await world.client(view=view, bodies=BodyForm.LAZY, settings={"request_s_max": 0.06})
    await client.append(b"slow").applied(5)
    asked = len(world.server.heard.fetches)
    assert asked > 1, "what is tested has happened"
    # Where one answer took long, the next one is waited for as long at once: asking again is more work for the disks.
    await client.append(b"as slow").applied(5)
    assert len(world.server.heard.fetches) == asked + 1
    assert view.bodies == [b"slow", b"as slow"]


async def test_while_the_owner_is_not_ready(world: World) -> None:
    world.server.not_ready = 10**6
    client = await world.client(view=Memo(), settings={"retry_s_max": 0.002})
    await wait_until(lambda: client.trouble(0))
    for text in (await told(client))[:-1]:
        assert "told so" in text


async def test_while_the_view_does_not_tell_its_mark(world: World) -> None:
    class Silent(Memo):
        async def high_water_mark(self, partition: int) -> int:  # type: ignore[override]
            await asyncio.Event().wait()
            raise AssertionError

    client = await world.client(view=Silent())
    for text in (await told(client))[:-1]:
        assert "the view to tell its high-water mark" in text


async def test_while_the_appends_before_are_undecided(world: World) -> None:
    world.server.hold = True
    client = await world.ready_client(settings={"outstanding_count_max": 2})
    client.append(b"one"), client.append(b"two")
    with pytest.raises(DeadlineExceeded, match=r"2 appends \(6 bytes\) are undecided"):
        await client.ready(timeout=SHORT_S)


async def test_a_receipt_whose_append_is_not_decided(world: World) -> None:
    world.server.hold = True
    client = await world.ready_client()
    receipt = client.append(b"held")
    with pytest.raises(DeadlineExceeded, match=r"not decided after 0.03 s.*await the receipt again"):
        await receipt.applied(SHORT_S)
    world.server.release()
    await receipt.applied(5)


async def test_a_receipt_whose_transaction_the_view_has_not_applied(world: World, view: Memo) -> None:
    view.gate = asyncio.Event()
    client = await world.client(view=view)
    receipt = await client.append(b"paid")
    with pytest.raises(DeadlineExceeded, match=r"committed as 0, .* applied up to -1") as raised:
        await receipt.applied(SHORT_S)
    assert isinstance(raised.value, PolonaiseError)
    view.gate.set()
    await receipt.applied(5)


class Runs(Memo):
    """As `Memo`, in runs."""

    async def apply_run(self, run: Sequence[Transaction]) -> int:
        for tx in run:
            await self.apply(tx)
        return run[-1].id


@pytest.mark.parametrize(("kind", "which"), [(Memo, "transaction 1"), (Runs, "transactions 1 to 2")])
async def test_a_view_that_does_not_come_back_from_applying_is_told(
    world: World, kind: type[Memo], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = kind()
    client = await world.client(view=view)
    await client.append(b"well").applied(5)
    view.gate = asyncio.Event()
    client.append(b"hangs")
    receipt = client.append(b"with it")
    with pytest.raises(DeadlineExceeded, match=rf"applied up to 0; the view has been applying {which} for 0(\.\d+)? s"):
        await receipt.applied(SHORT_S)
    assert client.trouble(0) is None, "it may just be busy"
    monkeypatch.setattr("polonaise.client.condition._SLOW_S", 0.0)
    trouble = client.trouble(0)
    assert isinstance(trouble, ViewUnavailable)
    assert f"partition 0: the view has been applying {which} for 0" in trouble.text
    view.gate.set()
    await receipt.applied(5)
    assert client.trouble(0) is None
    with pytest.raises(DeadlineExceeded, match=r"applied up to 2$"):
        await client.wait_applied(9, timeout=SHORT_S)


@pytest.mark.slow
async def test_a_context_that_always_conflicts() -> None:
    async with testing.log() as log:

        async def context(tx: Draft) -> None:
            tx.write_lock("account", 1)
            tx.append(b"x")
            log.faults.fail_next_lock()
            # so that the time is over within the context, and not while an append is under way
            await time_passes(0.1)

        with pytest.raises(AppendExpired, match=r"and nothing will be: .* refused, \d+ times") as raised:
            await log.run(context, timeout=0.35)
        found = re.search(
            r"the context ran, and its append was refused, (\d+) times, (\d+) of them for conflicts of its locks, "
            r"the last for what transaction -?\d+ or one before it may have changed: lock less",
            raised.value.text,
        )
        assert found
        assert found[1] == found[2]


@pytest.mark.slow
async def test_a_context_whose_appends_fail_for_other_reasons() -> None:
    async with testing.log() as log:

        def context(tx: Draft) -> None:
            tx.append(b"x")
            log.faults.fail_next_append()

        async def run() -> None:
            # A deadline that passes while an append is on its way tells nothing of this: once more.
            with contextlib.suppress(AppendUnknown):
                await log.run(context, timeout=0.3)
            await log.run(context, timeout=0.3)

        with pytest.raises(AppendExpired, match=r"refused, \d+ times$"):
            await run()
