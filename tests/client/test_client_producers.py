"""Idempotent producers: a number is in the log once, whoever repeats it, and only the latest opener writes."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.client.log import Log
from polonaise.client.producer import Producer
from polonaise.client.protocol.locks import Lock
from polonaise.errors import (
    AppendUnknown,
    BadOption,
    DeadlineExceeded,
    LockConflict,
    ProducerDiffers,
    ProducerFenced,
    ProducerSequence,
    Retry,
)
from polonaise.terms import FailureReason
from polonaise.wire.appends import ReceivedAppends
from polonaise.wire.messages import Append
from rigs.clients import World
from rigs.fakeserver import FakeLog, FakeMount
from rigs.waiting import time_passes, wait_until


@pytest.fixture
async def producer(client: Log) -> Producer:
    return await client.producer("billing")


async def test_numbers_are_appended_in_order(world: World, producer: Producer) -> None:
    assert (producer.epoch, producer.last_sequence) == (1, -1)
    assert [await producer.append(number, b"%d" % number) for number in range(3)] == [1, 2, 3]
    assert producer.last_sequence == 2
    assert world.log.bodies() == [b"0", b"1", b"2"]


async def test_a_repetition_is_answered_with_the_first_id_and_appends_nothing(world: World, producer: Producer) -> None:
    first = await producer.append(0, b"0")
    await producer.append(1, b"1")
    assert await producer.append(0, b"0") == first
    assert world.log.bodies() == [b"0", b"1"]


async def test_another_body_under_the_same_number_is_told(world: World, producer: Producer) -> None:
    first = await producer.append(0, b"pay 5")
    with pytest.raises(ProducerDiffers, match="another body or header") as raised:
        await producer.append(0, b"pay 6")
    assert (raised.value.code, raised.value.retry, raised.value.first) == ("producer_differs", Retry.NEVER, first)
    with pytest.raises(ProducerDiffers):
        await producer.append(0, b"pay 5", header=1)
    for number in range(1, 16):
        await producer.append(number, b"%d" % number)
    with pytest.raises(ProducerDiffers):
        await producer.append(0, b"pay 6")
    again = await (await world.client()).producer("billing")
    with pytest.raises(ProducerDiffers):
        await again.append(0, b"")
    assert await again.append(0, b"pay 5") == first
    assert world.log.bodies() == [b"pay 5", *[b"%d" % number for number in range(1, 16)]]


async def test_after_a_restart_the_producer_goes_on_where_it_was(world: World) -> None:
    before = await (await world.client()).producer("billing")
    first = await before.append(0, b"0")
    after = await (await world.client()).producer("billing")
    assert (after.epoch, after.last_sequence) == (2, 0)
    assert await after.append(0, b"0") == first
    assert await after.append(1, b"1") == first + 2


async def test_a_second_opener_fences_the_first(world: World) -> None:
    old = await (await world.client()).producer("billing")
    await old.append(0, b"0")
    new = await (await world.client()).producer("billing")
    with pytest.raises(ProducerFenced):
        await old.append(1, b"old")
    await new.append(1, b"new")
    assert b"old" not in world.log.bodies()


async def test_a_producers_append_carries_locks(client: Log, producer: Producer) -> None:
    id = await producer.append(0, b"0", locks=[Lock("account", 1)])
    with pytest.raises(LockConflict):
        await client.append(b"stale", high_water_mark=id - 1, locks=[Lock("account", 1)])
    await client.append(b"fresh", high_water_mark=id, locks=[Lock("account", 1)])


async def test_producers_of_different_names_do_not_meet(world: World, client: Log) -> None:
    a, b = await client.producer("a"), await client.producer("b")
    assert await a.append(0, b"a") < await b.append(0, b"b")
    assert world.log.bodies()[-2:] == [b"a", b"b"]


async def test_of_producers_opened_at_the_same_time_one_remains(world: World) -> None:
    clients = [await world.client() for _ in range(5)]
    producers = await asyncio.gather(*[client.producer("billing") for client in clients])
    assert sorted(producer.epoch for producer in producers) == [1, 2, 3, 4, 5]
    results = await asyncio.gather(*[p.append(0, b"x") for p in producers], return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, ProducerFenced) for result in results) == 4


async def test_a_skipped_number_is_refused(world: World) -> None:
    producer = await (await world.client()).producer("billing")
    with pytest.raises(ProducerSequence):
        await producer.append(1, b"1")
    with pytest.raises(BadOption):
        await producer.append(-1, b"")


async def test_numbers_sent_together_arrive_in_order_through_broken_connections(world: World, client: Log) -> None:
    producer = await client.producer("billing")

    async def breaker() -> None:
        while True:
            await time_passes(0.003)
            world.server.break_connections()

    breaking = asyncio.ensure_future(breaker())
    given = await asyncio.gather(*[producer.append(number, b"%d" % number) for number in range(100)])
    breaking.cancel()
    assert given == sorted(given)
    assert world.log.bodies() == [b"%d" % number for number in range(100)]


async def test_an_undecided_append_is_unknown_and_can_be_repeated(world: World) -> None:
    client = await world.client(settings={"idle_flush_s": 30})
    producer = await client.producer("billing")
    world.server.hold = True
    with pytest.raises(AppendUnknown):
        await producer.append(0, b"0", timeout=0.02)
    await wait_until(lambda: world.server.held)
    world.server.release()
    assert await producer.append(0, b"0") == 1
    assert world.log.bodies() == [b"0"]


@pytest.mark.parametrize("name", ["", "x" * 2_000])
async def test_a_name_that_is_no_key_is_refused(world: World, name: str) -> None:
    with pytest.raises(BadOption):
        await (await world.client()).producer(name)


async def test_opening_has_a_deadline(world: World, client: Log) -> None:
    world.server.crash()
    with pytest.raises(DeadlineExceeded):
        await client.producer("billing", timeout=0.05)


async def test_numbers_after_one_that_failed_wait_until_it_was_sent_again(world: World, producer: Producer) -> None:

    def session_ends(mount: FakeMount, log: FakeLog, message: Append) -> bool:
        world.server.on_append = None
        first, *others = ReceivedAppends(message).sequences.tolist()
        rows = [(first, -1, FailureReason.SESSION_ENDED)]
        world.server.tell(mount, log, rows + [(sequence, -1, FailureReason.PRODUCER_GAP) for sequence in others])
        return True

    world.server.on_append = session_ends
    assert await asyncio.gather(*[producer.append(number, b"%d" % number) for number in range(4)]) == [1, 2, 3, 4]
    assert world.log.bodies() == [b"0", b"1", b"2", b"3"]
