"""The log in memory is no other log: what a client is told there it is told by a whole (simulated) cluster too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise import testing
from polonaise.client.log import Log
from polonaise.client.protocol.draft import Change, Draft, Expectation
from polonaise.client.protocol.locks import Lock
from polonaise.errors import LockConflict, PolonaiseError
from polonaise.terms import LockMode
from rigs.town import Town

Told = list[Any]
Story = Callable[[Log, Told], Awaitable[None]]


async def outcome(told: Told, what: Awaitable[Any]) -> None:
    """Note the id, or the fault with all that it says."""
    try:
        found = await what
    except PolonaiseError as error:
        told.append((error.code, error.text, error.conflict if isinstance(error, LockConflict) else None))
    else:
        told.append(getattr(found, "ids", found))


async def locks(log: Log, told: Told) -> None:
    modes = [(LockMode(mode), mark) for mode in LockMode for mark in (-1, 0, 1)]
    await log.append(b"first", 0)
    await log.append(b"second", 0, locks=[Lock("account", 1)])
    for number, (mode, mark) in enumerate(modes):
        lock = Lock("account", 1, mode)
        await outcome(told, log.append(b"%d" % number, 0, high_water_mark=mark, locks=[lock]))
    await outcome(told, log.append(b"other", 0, high_water_mark=0, locks=[Lock("account", 2)]))


async def registers(log: Log, told: Told) -> None:
    key, value = b"k", b"v"
    for expectation in (Expectation.absent(key), Expectation.absent(key), Expectation.present(key)):
        await outcome(told, log.append(b"x", 0, expectations=[expectation], changes=[Change.set(key, value)]))
    for wrong in (Expectation.equals(key, b"w"), Expectation.position(7), Expectation.position(2)):
        await outcome(told, log.append(b"x", 0, expectations=[wrong], changes=[Change.delete(key)]))
    await outcome(told, log.register(key, 0))
    await outcome(told, log.list_registers(partition=0))
    await outcome(told, log.append(b"x", 0, changes=[Change.set(b"seat/%d" % number, b"") for number in range(3)]))
    await outcome(told, log.list_registers(b"seat/", 0))
    full = [Change.set(b"%d" % number, bytes(65_536)) for number in range(17)]
    await outcome(told, log.append(b"x", 0, changes=full))


async def groups(log: Log, told: Told) -> None:
    def group(tx: Draft) -> None:
        for number in range(3):
            tx.append(b"%d" % number, header=number)
        tx.write_lock("account", 1)
        tx.set(b"k", b"%d" % tx.high_water_mark)

    await outcome(told, log.run(group, partition=0))
    await outcome(told, log.append(b"stale", 0, high_water_mark=1, locks=[Lock("account", 1)]))
    await outcome(told, log.run(group, partition=0))
    await outcome(told, log.run(lambda tx: tx.abandon("no"), partition=0))
    await outcome(told, log.run(lambda tx: None, partition=0))
    await outcome(told, log.register(b"k", 0))


async def producers(log: Log, told: Told) -> None:
    first = await log.producer("billing", partition=0)
    for number in (0, 1, 1, 0, 2):
        await outcome(told, first.append(number, b"%d" % number))
    await outcome(told, first.append(9, b"gap"))
    second = await log.producer("billing", partition=0)
    await outcome(told, second.append(2, b"2"))
    await outcome(told, first.append(3, b"fenced"))
    told.append((first.epoch, second.epoch, second.last_sequence))


async def reading(log: Log, told: Told) -> None:
    for number in range(20):
        await log.append(b"%d" % number, 0, header=number % 3)
    for after, until in ((-1, None), (4, 9), (18, None), (19, None), (30, None)):
        told.append([(tx.id, tx.header, tx.data) async for tx in log.read(0, after=after, until=until)])
    for id in (-1, 0, 19, 20):
        await outcome(told, log.transaction(id, 0))
    told[-3:-1] = [tx._replace(commit_time_us=0, client_id=0, sequence=0) for tx in told[-3:-1]]
    await outcome(told, log.high_water_mark(0))
    await outcome(told, log.flush(0))


@pytest.mark.parametrize("story", [locks, registers, groups, producers, reading], ids=lambda story: story.__name__)
def test_a_client_is_told_the_same(story: Story) -> None:
    async def in_a_cluster(town: Town) -> tuple[Told, list[bytes]]:
        told: Told = []
        await town.application("writer", lambda log: story(log, told))
        return told, await town.log()

    async def in_memory() -> tuple[Told, list[bytes]]:
        told: Told = []
        async with testing.log() as log:
            await story(log, told)
            return told, [tx.data for tx in log.transactions()]

    assert asyncio.run(in_memory()) == Town(1).run(in_a_cluster)


@pytest.mark.parametrize("seed", range(5))
async def test_a_producer_lands_each_number_once_under_faults(seed: int) -> None:
    async with testing.log() as log:
        log.faults.rate(0.3, seed)
        producer = await log.producer("billing")
        for number in range(30):
            if number % 10 == 5:
                log.faults.lose_connection()
            await producer.append(number, b"%d" % number, timeout=10)
        bodies = [tx.data for tx in log.transactions() if tx.data]
        assert bodies == [b"%d" % number for number in range(30)]
