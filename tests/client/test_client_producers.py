"""Groups in columns, idempotent producers, and what the library writes for itself."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

import polonaise
from polonaise import blocking, testing
from polonaise.client.log import Log
from polonaise.client.producer import Producer
from polonaise.client.protocol.draft import Change, Expectation, Limits
from polonaise.client.protocol.group import Group
from polonaise.client.protocol.locks import Lock
from polonaise.errors import (
    AppendFailed,
    AppendUnknown,
    BadOption,
    BodyTooLarge,
    Closed,
    DeadlineExceeded,
    ExpectationFailed,
    LockConflict,
    Overloaded,
    OwnTransaction,
    ProducerDiffers,
    ProducerFenced,
    ProducerSequence,
    Retry,
    TooManyLocks,
)
from polonaise.terms import BodyForm, ChangeKind, FailureReason, LockMode, PartitionId, Transaction, TransactionId
from polonaise.wire.appends import ReceivedAppends
from polonaise.wire.messages import Append
from rigs.clients import World
from rigs.fakeserver import FakeLog, FakeMount
from rigs.waiting import time_passes, wait_until


async def test_a_group_commits_as_one_and_its_receipt_names_all_ids(client: Log) -> None:
    receipt = await client.append_group(Group.of([b"a", b"", b"ccc"], [1, -2, 3]))
    assert (list(receipt.ids), receipt.count) == ([0, 1, 2], 3)
    assert [(tx.header, tx.data) async for tx in client.read()] == [(1, b"a"), (-2, b""), (3, b"ccc")]


async def test_groups_and_single_appends_keep_the_order_in_which_they_were_asked_for(world: World, client: Log) -> None:
    receipts = [
        client.append(b"1"),
        client.append_group(Group.of([b"2", b"3"])),
        client.append_group(Group.of([b"4"])),
        client.append(b"5"),
    ]
    assert [(await receipt).id for receipt in receipts] == [0, 1, 3, 4]
    assert world.log.bodies() == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_group_whose_expectation_fails_is_not_in_the_log_at_all(world: World, client: Log) -> None:
    await client.append_group(
        Group.of([b"a", b"b"]), expectations=[Expectation.absent(b"k")], changes=[Change.set(b"k", b"1")]
    )
    with pytest.raises(ExpectationFailed):
        await client.append_group(Group.of([b"c", b"d"]), expectations=[Expectation.absent(b"k")])
    assert await client.register(b"k") == b"1"
    assert world.log.bodies() == [b"a", b"b"]


async def test_a_group_in_flight_behind_one_that_fails_fails_by_its_expectation(world: World, client: Log) -> None:
    """So a chain may be sent without waiting for each of its groups: nothing of it comes after a hole."""
    chain = [
        client.append_group(
            Group.of([b"n"]),
            expectations=[Expectation.equals(b"k", b"%d" % step)],
            changes=[Change.set(b"k", b"%d" % (step + 1))],
        )
        for step in range(3)
    ]
    for receipt in chain:
        with pytest.raises(ExpectationFailed):
            await receipt
    assert world.log.bodies() == []


async def test_each_transaction_of_a_group_carries_its_own_locks(client: Log) -> None:
    locks = [[Lock("account", 7, LockMode.APPEND)], [], [Lock("account", 8), Lock("account", 9)]]
    await client.append_group(Group.of([b"a", b"b", b"c"], locks=locks))
    for number, conflict in ((7, 0), (9, 2)):
        with pytest.raises(LockConflict) as raised:
            await client.append(b"x", high_water_mark=-1, locks=[Lock("account", number)])
        assert raised.value.conflict == conflict


async def test_a_group_that_the_owner_passes_over_has_failed(world: World, client: Log) -> None:
    await client.append(b"first")
    world.server.lose = True
    receipt = client.append_group(Group.of([b"a", b"b"]))
    with pytest.raises(AppendFailed):
        await receipt
    assert world.log.bodies() == [b"first"]


async def test_a_group_that_waits_unsent_when_the_client_closes_was_never_sent(client: Log) -> None:
    await client.append(b"first")
    receipt = client.append_group(Group.of([b"a", b"b"]))
    await client.close()
    with pytest.raises(Closed):
        await receipt


async def test_too_much_outstanding_refuses_a_group(world: World) -> None:
    client = await world.ready_client(settings={"outstanding_count_max": 3})
    first = client.append_group(Group.of([b"a", b"b", b"c"]))
    with pytest.raises(Overloaded):
        client.append_group(Group.of([b"d"]))
    await first
    await wait_until(lambda: world.log.bodies() == [b"a", b"b", b"c"])


async def test_a_group_past_the_limits_is_refused_before_anything_is_sent(world: World) -> None:
    limits = Limits(body_bytes_max=4, locks_max=1, group_count_max=2, group_bytes_max=6)
    client: Log = await world.client(settings={"limits": limits})
    for group, error in (
        (Group.of([]), BadOption),
        (Group.of([b"a"] * 3), BodyTooLarge),
        (Group.of([b"aaaa", b"bbb"]), BodyTooLarge),
        (Group.of([b"aaaaa"]), BodyTooLarge),
        (Group.of([b"a"], locks=[[Lock("l", 1), Lock("l", 2)]]), TooManyLocks),
        (Group.of([b"a", b"b"], locks=[[Lock("l", 1)], []]), BodyTooLarge),
    ):
        with pytest.raises(error):
            client.append_group(group)
    with pytest.raises(BadOption, match="Group"):
        client.append_group([b"a"])  # type: ignore[arg-type]
    assert world.log.bodies() == []


@pytest.mark.slow
async def test_more_locks_than_a_server_takes_at_once_are_refused_before_anything_is_sent() -> None:
    """The server refuses such a frame whole, and nobody can append it again."""
    thousand = [Lock("l", number) for number in range(1_000)]
    async with testing.log() as log:
        with pytest.raises(BodyTooLarge, match="split it"):
            log.append_group(Group.of([b""] * 1_001, locks=[thousand] * 1_001))
        assert (await log.append_group(Group.of([b""] * 900, locks=[thousand] * 900))).last_id == 899


def test_columns_that_do_not_fit_together_are_no_group() -> None:
    one = array("I", [1]).tobytes()
    for columns in (
        (one, one, one, b""),
        (one, b"", one, b"a"),
        (one[:3], one, one, b"a"),
        (one * 2, one * 2, array("I", [2, 1]).tobytes(), b"a"),
        (one, one, one, b"a", one, b"", b""),
    ):
        with pytest.raises(BadOption):
            Group(*columns)


@pytest.mark.parametrize("locks", [{"lock_hashes": bytes(8), "lock_modes": b"\2"}, {"lock_modes": b"\2"}])
def test_locks_without_their_ends_are_no_group(locks: dict[str, bytes]) -> None:
    one = array("I", [1]).tobytes()
    with pytest.raises(BadOption, match="no lock_ends"):
        Group(one, one, one, b"a", **locks)


def test_bodies_headers_and_locks_are_as_many_as_each_other() -> None:
    with pytest.raises(BadOption, match="headers"):
        Group.of([b"a"], [1, 2])
    with pytest.raises(BadOption, match="locks"):
        Group.of([b"a"], locks=[[], []])
    with pytest.raises(BadOption, match="bodies"):
        Group.of(b"abc")  # type: ignore[arg-type]


@pytest.fixture
async def producer(client: Log) -> Producer:
    return await client.producer("billing")


async def test_numbers_are_appended_in_order(world: World, producer: Producer) -> None:
    assert (producer.epoch, producer.last_sequence) == (1, -1)
    assert [await producer.append(number, b"%d" % number) for number in range(3)] == [1, 2, 3]
    assert producer.last_sequence == 2
    assert world.log.bodies() == [b"0", b"1", b"2"]


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
