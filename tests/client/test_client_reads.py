"""Reading without a view: dense, verified, while the next answer is on its way; and requests to the owner."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from polonaise.client.log import Log
from polonaise.errors import (
    BadOption,
    BeyondLog,
    Closed,
    DeadlineExceeded,
    ProtocolError,
    UnknownPartition,
)
from polonaise.log import registers
from polonaise.terms import Transaction
from polonaise.wire.messages import RegistersListed
from rigs.clients import World
from rigs.fakeserver import FakeServer
from rigs.waiting import nothing_happens_for, wait_until


async def ids(reading) -> list[int]:
    return [tx.id async for tx in reading]


def filled(world: World, batches: int = 10, each: int = 10) -> None:
    for number in range(batches):
        world.log.fill(*[b"%d" % (number * each + place) for place in range(each)])


@pytest.mark.parametrize(
    ("after", "until_id", "expected"),
    [
        (-1, None, range(100)),
        (41, None, range(42, 100)),
        (-1, 57, range(58)),
        (13, 17, range(14, 18)),
        (99, None, range(0)),
        (50, 50, range(0)),
        (-1, 1_000, range(100)),
    ],
)
async def test_a_range_is_read_in_order(world: World, after: int, until_id: int | None, expected: range) -> None:
    filled(world)
    client = await world.client(settings={"read_bytes": 700})
    read = [tx async for tx in client.read(after=after, until=until_id)]
    assert [tx.id for tx in read] == list(expected)
    assert [tx.data for tx in read] == [b"%d" % number for number in expected]


async def test_an_empty_partition_reads_as_nothing(client: Log) -> None:
    assert await ids(client.read()) == []


async def test_reading_a_range_gives_its_batches_whole_and_none_beyond_it(world: World, client: Log) -> None:
    filled(world)
    batches = [batch async for batch in client.read_batches(after=14, until=37)]
    assert [(batch.first, batch.last) for batch in batches] == [(10, 19), (20, 29), (30, 39)]
    assert [bytes(batch.view) for batch in batches] == [bytes(batch.view) for batch in world.log.batches[1:4]]


async def test_batches_can_be_read_without_their_bodies(world: World, client: Log) -> None:
    filled(world)
    batches = [batch async for batch in client.read_batches(with_data=False)]
    assert sum(batch.count for batch in batches) == 100
    assert not any(batch.has_data for batch in batches)


async def test_the_next_answers_are_asked_for_before_this_one_is_consumed(world: World) -> None:
    filled(world)
    client = await world.client(settings={"read_bytes": 1, "reads_ahead": 3})
    reader = client.read_batches()
    await anext(reader)
    await wait_until(lambda: len(world.server.heard.reads) == 4)
    await nothing_happens_for(0.01)
    assert len(world.server.heard.reads) == 4
    await reader.aclose()


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_the_sizes_each_transaction_is_read_once(world: World, seed: int) -> None:
    """Small batches and large ones: answers bring more or less than the parts that were asked for."""
    chance = random.Random(seed)
    expected: list[bytes] = []
    for _ in range(chance.randrange(1, 60)):
        size = chance.choice([0, 1, 50, 2_000])
        bodies = [bytes(chance.randrange(size + 1)) + b"%d" % len(expected) for _ in range(chance.randrange(1, 40))]
        world.log.fill(*bodies)
        expected += bodies
    settings = {"read_bytes": chance.choice([1, 300, 4_000, 100_000]), "reads_ahead": chance.randrange(1, 6)}
    client = await world.client(settings=settings)
    after = chance.randrange(-1, len(expected))
    stop = chance.randrange(after, len(expected) + 5)
    world.server.heard.sent.clear()
    read = [tx async for tx in client.read(after=after, until=max(stop, 0), timeout=5.0)]
    assert [tx.id for tx in read] == list(range(after + 1, min(stop + 1, len(expected))))
    assert [tx.data for tx in read] == expected[after + 1 : stop + 1]
    assert len(set(world.server.heard.sent)) == len(world.server.heard.sent), "no batch was sent twice"


@pytest.mark.parametrize("lags_at", [40, 90], ids=["in the middle", "in the last part"])
@pytest.mark.parametrize("ended", ["by its caller", "by its deadline"])
async def test_a_reader_whose_wait_for_a_late_replica_was_ended_goes_on_later(
    world: World, lags_at: int, ended: str
) -> None:
    filled(world)
    client = await world.client(settings={"read_bytes": 700, "reads_ahead": 30, "retry_s_min": 0.02})
    timeout, patience_s = (0.1, 10.0) if ended == "by its deadline" else (10.0, 0.15)
    reader = client.read_batches(timeout=timeout)
    world.server.lags_at = lags_at
    seen: list[int] = []

    async def read_on() -> None:
        while True:
            seen.append((await asyncio.wait_for(anext(reader), patience_s)).first)

    with pytest.raises((TimeoutError, DeadlineExceeded)):
        await read_on()
    assert seen == list(range(0, lags_at, 10))
    world.server.lags_at = 2**63
    seen += [batch.first async for batch in reader]
    assert seen == list(range(0, 100, 10))


async def test_a_read_that_does_not_follow_ends_at_what_was_committed_when_it_began(world: World) -> None:
    filled(world)
    client = await world.client(settings={"read_bytes": 1})
    read: list[int] = []
    async for tx in client.read():
        read.append(tx.id)
        if tx.id % 10 == 0:
            world.log.fill(b"later")
    assert read == list(range(100))


async def test_following_goes_on_with_what_is_appended(world: World, client: Log) -> None:
    seen: list[bytes] = []

    async def follow() -> None:
        async for tx in client.read(follow=True):
            seen.append(tx.data)

    following = asyncio.ensure_future(follow())
    for number in range(5):
        world.log.fill(b"%d" % number)
        await wait_until(lambda number=number: len(seen) == number + 1)
    following.cancel()
    assert seen == [b"%d" % number for number in range(5)]


async def test_a_read_goes_on_over_broken_connections_and_moves(world: World) -> None:
    filled(world)
    client = await world.client(settings={"read_bytes": 1})
    read: list[int] = []
    async for tx in client.read():
        read.append(tx.id)
        if tx.id in (5, 25):
            world.server.break_connections()
        if tx.id == 55:
            FakeServer(world.host, dict(world.logs), "server:2", generation=2)
            world.server.crash()
            world.coordinator.assign(0, "server:2", 2)
    assert read == list(range(100))


async def test_reading_from_a_time(world: World, client: Log) -> None:
    filled(world)
    since = world.log.batches[4].commit_time_us
    assert await ids(client.read_time(since=since)) == list(range(40, 100))
    assert await ids(client.read_time(since=since + 1)) == list(range(50, 100))
    aware = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since)
    assert await ids(client.read_time(since=aware)) == list(range(40, 100))
    assert await ids(client.read_time(since=0)) == list(range(100))


async def test_a_time_without_a_zone_is_refused(client: Log) -> None:
    with pytest.raises(BadOption):
        client.read_time(since=datetime(2024, 1, 1))  # noqa: DTZ001 - the point


async def test_single_transactions_marks_registers_and_health(world: World, client: Log) -> None:
    filled(world)
    world.log.registers[b"k"] = b"v"
    tx = await client.transaction(42)
    assert isinstance(tx, Transaction)
    assert (tx.id, tx.data) == (42, b"42")
    assert await client.high_water_mark() == 99
    assert await client.register(b"k") == b"v"
    assert await client.register(b"other") is None
    health = await client.health()
    assert health.pop("client").keys() == {"clock_ahead_s"}
    assert health == {"well": True}


async def test_registers_are_listed_as_each_of_them_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "PAGE_COUNT_MAX", 3)
    filled(world)
    world.log.registers.update({b"seat/%d" % number: b"%d" % number for number in (4, 2, 7, 0, 1)})
    world.log.registers.update({b"": b"empty", b"day": b"", b"\xff" * 1_024: b"last", b"producer/p": b"x"})
    client = await world.client()
    listed = await client.list_registers()
    assert list(listed) == sorted(world.log.registers)
    assert listed == {key: await client.register(key) for key in world.log.registers}
    assert list(await client.list_registers(b"seat/")) == [b"seat/%d" % number for number in (0, 1, 2, 4, 7)]
    assert await client.list_registers(b"nothing") == {}
    for wrong in ("seat/", b"k" * 1_025, 3):
        with pytest.raises(BadOption):
            await client.list_registers(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "listed",
    [
        RegistersListed(0, 1, b""),
        RegistersListed(0, 0, registers.encode([(b"a", b"below what was asked for")])),
        RegistersListed(0, 0, registers.encode([(b"s", b"without the prefix")])),
        RegistersListed(0, 0, registers.encode([(b"seat/1", None)])),
        RegistersListed(0, 0, b"no registers"),
    ],
)
async def test_a_listing_that_nobody_asked_for_is_refused(world: World, listed: RegistersListed, client: Log) -> None:
    world.server.listed = listed
    with pytest.raises(ProtocolError):
        await client.list_registers(b"seat/", timeout=1)


async def test_a_listing_that_never_ends_has_a_deadline(world: World, client: Log) -> None:
    world.server.listed = RegistersListed(0, 1, registers.encode([(b"\xff" * 1_024, b"again and again")]))
    with pytest.raises((DeadlineExceeded, ProtocolError)):
        await client.list_registers(timeout=0.05)


@pytest.mark.parametrize("beyond", [100, 10**12])
async def test_a_transaction_beyond_the_log_is_said_to_be(world: World, beyond: int, client: Log) -> None:
    filled(world)
    with pytest.raises(BeyondLog):
        await client.transaction(beyond)


@pytest.mark.slow
async def test_a_request_that_nobody_answers_has_a_deadline_and_says_why(world: World) -> None:
    world.server.crash()
    client = await world.client()
    for ask in (client.high_water_mark, client.list_registers):
        with pytest.raises(DeadlineExceeded, match="nobody listens"):
            await ask(timeout=0.5)
    with pytest.raises(DeadlineExceeded):
        await ids(client.read(timeout=0.5))


async def test_a_partition_without_an_owner_is_waited_for(two_partitions: World) -> None:
    world = two_partitions
    client = await world.client()
    world.coordinator._assignment.value.owners.pop(1)  # type: ignore[attr-defined]
    asking = asyncio.ensure_future(client.high_water_mark(1))
    await nothing_happens_for(0.01)
    assert not asking.done()
    world.coordinator.assign(1, world.server.address, 1)
    assert await asking == -1


async def test_an_unknown_partition_is_refused_everywhere(world: World, client: Log) -> None:
    for call in (
        lambda: client.append(b"x", 1),
        lambda: client.read(1),
        lambda: client.read_batches(-1),
        lambda: client.submit(lambda tx: None, partition=7),
    ):
        with pytest.raises(UnknownPartition):
            call()
    for coroutine in (
        client.run(lambda tx: None, partition=1),
        client.high_water_mark(1),
        client.flush(1),
        client.ready(1),
        client.transaction(0, 1),
        client.producer("billing", partition=1),
    ):
        with pytest.raises(UnknownPartition):
            await coroutine
    with pytest.raises(UnknownPartition):
        await world.client(partitions=[3])


async def test_which_partition_has_to_be_said_where_there_are_several(two_partitions: World) -> None:
    client = await two_partitions.client()
    with pytest.raises(BadOption):
        client.append(b"x")
    with pytest.raises(BadOption):
        await client.high_water_mark()


async def test_a_closed_client_reads_nothing(client: Log) -> None:
    await client.close()
    with pytest.raises(Closed):
        client.read()
    with pytest.raises(Closed):
        await client.high_water_mark()


async def test_marks_of_several_partitions_are_asked_for_at_the_same_time(world: World, client: Log) -> None:
    filled(world)
    assert await client.high_water_marks([0]) == {0: 99}
    assert await client.high_water_marks([]) == {}
    with pytest.raises(UnknownPartition):
        await client.high_water_marks([0, 99])


async def test_a_partition_named_twice_leaves_no_request_behind(two_partitions: World) -> None:
    world = two_partitions
    client = await world.client()
    assert await client.high_water_marks([0, 0]) == {0: -1}
    world.coordinator._assignment.value.owners.pop(1)  # type: ignore[attr-defined]
    before = asyncio.all_tasks()
    with pytest.raises(UnknownPartition):
        await client.high_water_marks([1, 1, 99])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_a_wait_for_no_partition_ends_at_once(client: Log) -> None:
    assert await client.wait_committed({}, timeout=60) == {}
    with pytest.raises(BadOption):
        await client.wait_committed({}, timeout=-1)


async def test_a_wait_for_an_unknown_partition_leaves_no_request_behind(client: Log) -> None:
    await client.high_water_mark(0)  # connects
    before = asyncio.all_tasks()
    with pytest.raises(UnknownPartition):
        await client.wait_committed({0: -1, 99: -1}, timeout=60)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
