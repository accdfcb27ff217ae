"""What the library writes for itself is in the log, and no application is given it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import polonaise
from polonaise import blocking, testing
from polonaise.errors import OwnTransaction
from polonaise.terms import BodyForm, ChangeKind, LockMode, PartitionId, Transaction, TransactionId
from rigs.clients import World
from rigs.waiting import wait_until


class Strict:
    """A view that decodes every body, as views do, and fails on one that is none of its application's."""

    def __init__(self) -> None:
        self.mark: TransactionId = -1
        self.numbers: list[int] = []
        self.failures: list[Exception] = []
        self.fail_once_on: set[TransactionId] = set()

    def high_water_mark(self, partition: PartitionId) -> TransactionId:
        return self.mark

    def apply(self, tx: Transaction) -> None:
        number = int(tx.data)
        if tx.id in self.fail_once_on:
            self.fail_once_on.remove(tx.id)
            raise RuntimeError("not yet")
        self.numbers.append(number)
        self.mark = tx.id

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> None:
        self.failures.append(error)


class StrictRuns(Strict):
    def apply_run(self, run: Sequence[Transaction]) -> TransactionId:
        for tx in run:
            self.apply(tx)
        return self.mark


@pytest.mark.parametrize("make", [Strict, StrictRuns])
@pytest.mark.parametrize("form", BodyForm)
async def test_a_view_is_not_given_that_a_producer_was_opened(make: type[Strict], form: BodyForm) -> None:
    view = make()
    async with testing.log(view=view, bodies=form, header_filter=(1, 1) if form is BodyForm.FILTERED else None) as log:
        for number in range(3):
            producer = await log.producer(f"billing {number}")
            await producer.append(0, b"%d" % number, header=number)
        end = (await log.producer("the last")).epoch
        assert end == 1
        mark = await log.high_water_mark()
        assert mark == 6
        await log.wait_applied(mark, timeout=5)
        assert (view.numbers, view.failures) == ([0, 1, 2], [])
        assert log.applied() == 6


@pytest.mark.parametrize("make", [Strict, StrictRuns])
async def test_a_view_that_starts_late_is_given_the_applications_alone(make: type[Strict]) -> None:
    async with testing.log() as log:
        await log.producer("a")
        await (await log.producer("b")).append(0, b"0")
        await log.producer("c")
        view = make()
        async with log.cluster.connect(view=view) as late:
            await late.wait_applied(3, timeout=5)
            assert (view.numbers, view.failures, view.mark) == ([0], [], 2)
            await log.append(b"1")
            await late.wait_applied(4, timeout=5)
            assert view.numbers == [0, 1]


@pytest.mark.parametrize("make", [Strict, StrictRuns])
async def test_a_failure_behind_it_is_no_reason_to_begin_anew(world: World, make: type[Strict]) -> None:
    view = make()
    client = await world.client(view=view)
    await client.append(b"0")
    await client.producer("billing")
    view.fail_once_on = {2}
    await client.append(b"1")
    await client.wait_applied(2, timeout=5)
    assert (view.numbers, len(view.failures)) == ([0, 1], 1)
    assert len(world.server.heard.mounts) == 1, "the view's mark lies before the log's own, and it has lost nothing"


async def test_a_view_whose_mark_really_went_back_is_given_everything_from_there(world: World) -> None:
    view = Strict()
    client = await world.client(view=view)
    for number in range(3):
        await client.append(b"%d" % number)
    await client.producer("billing")
    await client.wait_applied(3, timeout=5)
    view.mark, view.numbers = 0, [0]
    view.fail_once_on = {4}
    await client.append(b"3")
    await wait_until(lambda: view.numbers == [0, 1, 2, 3])


async def test_readers_are_not_given_it() -> None:
    class Numbers:
        def encode(self, value: int) -> bytes:
            return b"%d" % value

        def decode(self, data: bytes) -> int:
            return int(data)

    async with testing.log(serializer=Numbers()) as log:
        await (await log.producer("billing")).append(0, 7)
        assert [(tx.id, log.decode(tx)) async for tx in log.read(0)] == [(1, 7)]
        assert [tx.id async for tx in log.read_time(0, since=1)] == [1]
        assert [tx.id async for tx in log.read(0, until=0)] == []
        assert [tx.id for tx in log.transactions()] == [1]
        assert (await log.transaction(1)).data == b"7"
        with pytest.raises(OwnTransaction, match="own"):
            await log.transaction(0)
        (first, *_) = [batch async for batch in log.read_batches(0)]
        assert first.has_own
        (own,) = first.transactions(own=True)
        assert (own.own, own.request_id.generation) == (True, first.generation)


def test_threads_are_not_given_it(tmp_path: Path) -> None:
    view = Strict()
    with blocking.connect(f"embedded:{tmp_path / 'log'}", view=view) as log:
        log.producer("billing").append(0, b"7")
        log.wait_applied(1, timeout=10)
        assert (view.numbers, view.failures) == ([7], [])
        assert [tx.id for tx in log.read(0)] == [1]
        with pytest.raises(OwnTransaction):
            log.transaction(0)


async def test_an_application_cannot_mark_its_own_so(world: World) -> None:
    """Neither headers nor registers nor empty bodies make a transaction the library's."""
    client = await world.client()
    lowest = await client.append(b"", header=-(2**31), changes=[polonaise.Change.set(b"producers", b"")])
    await client.append(b"", header=0, locks=[polonaise.Lock("a", 1, LockMode.WRITE)])
    assert lowest.id == 0
    assert [(tx.id, tx.own) async for tx in client.read(0)] == [(0, False), (1, False)]
    with pytest.raises(polonaise.PolonaiseError):
        client.append(b"", changes=[polonaise.Change(ChangeKind.OWN, b"")])
