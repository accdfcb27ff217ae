"""The log in memory is no other log: its client is told what a cluster tells; docs/testing.md tells the truth."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise import testing
from polonaise.client.log import Log
from polonaise.client.protocol.draft import Change, Draft, Expectation
from polonaise.client.protocol.locks import Lock
from polonaise.errors import LockConflict, PolonaiseError
from polonaise.host.real import RealClock
from polonaise.log.registers import TOTAL_BYTES_MAX
from polonaise.terms import NO_SESSION, FailureReason, LockMode
from polonaise.testing import Faults, memoryserver
from polonaise.testing.memoryserver import MemoryPartition, MemoryReplica, _value_of
from polonaise.wire.appends import AppendColumns, ReceivedAppends
from polonaise.wire.messages import Batches, ReadBatches
from rigs.log import PARTITION, Maker
from rigs.programs import output_of, run_python
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


async def test_registers_that_are_full_are_told_with_their_bound() -> None:
    columns = AppendColumns()
    columns.add(1, -1, 0, b"", 0)
    message = columns.message(1)
    message.payload = [b""]
    served = MemoryPartition(0, RealClock())
    assert _value_of(FailureReason.REGISTERS_FULL, served, ReceivedAppends(message)) == TOTAL_BYTES_MAX


async def test_batches_are_answered_up_to_the_last_one_that_ends_where_it_is_asked() -> None:
    replica = MemoryReplica()
    replica.batches = made = Maker().batches(3, count=2)
    for last, count in ((3, 2), (4, 2), (1, 1), (5, 3)):
        answer = await replica.ask_bulk(ReadBatches(NO_SESSION, 0, last, 1 << 20, 1, 0), PARTITION)
        assert isinstance(answer, Batches)
        assert answer.committed == last
        assert b"".join(bytes(part) for part in answer.payload) == b"".join(bytes(each.view) for each in made[:count])


CHECKPOINT = 10


async def test_a_log_goes_on_after_its_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memoryserver, "_SETTINGS", replace(memoryserver._SETTINGS, checkpoint_transactions=CHECKPOINT))
    async with testing.log() as log, asyncio.timeout(20):
        for number in range(4 * CHECKPOINT):
            change = polonaise.Change.set(b"number", b"%d" % number)
            receipt = await log.append(b"%d" % number, changes=[change], locks=[polonaise.Lock("it", number)])
            assert receipt.id == number
            assert await log.register(b"number") == b"%d" % number
        await asyncio.gather(*(log.append(b"at once") for _ in range(4 * CHECKPOINT)))
        await log.append_group(polonaise.Group.of([b"together"] * 3 * CHECKPOINT))
        bodies = [tx.data async for tx in log.read()]
    count = 4 * CHECKPOINT
    assert bodies == [*(b"%d" % number for number in range(count)), *[b"at once"] * count, *[b"together"] * 30]


DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.mark.slow
def test_the_example_passes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "test_example.py").write_text(example)
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    command += ["-o", "asyncio_default_fixture_loop_scope=function", "--rootdir", tmp_path, "-W", "error", tmp_path]
    assert "5 passed" in output_of(run_python(*command, within_s=120, cwd=tmp_path))


def test_every_fault_is_in_the_table() -> None:
    told = DOCUMENT.read_text()
    for name, _ in inspect.getmembers(Faults, inspect.isfunction):
        if not name.startswith("_"):
            assert f"{name}" in told.split("## What can go wrong")[1]
