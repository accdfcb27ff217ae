"""The test driver: an application's test has a real client, and the faults that it asked for, no others."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

import polonaise
from polonaise import testing
from polonaise.errors import (
    AppendFailed,
    AppendUnknown,
    BadOption,
    BeyondLog,
    ExpectationFailed,
    PolonaiseError,
    ProducerDiffers,
    ProducerFenced,
    ProducerSequence,
    UnknownPartition,
)
from polonaise.terms import FailureReason
from rigs.waiting import nothing_happens_for, time_passes


class Sums:
    """A view: a sum for each account, and everything it was given."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}
        self.sums: dict[str, int] = {}
        self.applied: list[bytes] = []
        self.failures = 0

    def high_water_mark(self, partition: int) -> int:
        return self.marks.get(partition, -1)

    def apply(self, tx: polonaise.Transaction) -> None:
        account, amount = tx.data.decode().split()
        self.sums[account] = self.sums.get(account, 0) + int(amount)
        self.marks[tx.partition] = tx.id
        self.applied.append(tx.data)

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self.failures += 1

    def withdraw(self, tx: polonaise.Draft, account: int, amount: int) -> None:
        tx.write_lock("account", account)
        if self.sums.get(str(account), 0) < amount:
            return tx.abandon("insufficient funds")
        return tx.append(f"{account} {-amount}".encode())


def bodies(log: testing.MemoryLog, partition: int = 0) -> list[bytes]:
    return [tx.data for tx in log.transactions(partition)]


# ------------------------------------------------------------------ without faults


async def test_what_an_application_does_with_a_log() -> None:
    view = Sums()
    async with testing.log(view=view) as log:
        await (await log.append(b"1 100")).applied()
        receipt = await log.run(view.withdraw, 1, 30)
        await receipt.applied()
        assert view.sums == {"1": 70}
        with pytest.raises(PolonaiseError, match="insufficient"):
            await log.run(view.withdraw, 1, 71)
        assert [tx.data async for tx in log.read(0)] == bodies(log) == [b"1 100", b"1 -30"]
        assert (await log.transaction(1)).data == b"1 -30"
        with pytest.raises(BeyondLog):
            await log.transaction(2)
        assert await log.high_water_mark() == await log.flush() == 1
        assert (await log.health())["partitions"]["0"]["committed"] == 1


async def test_clients_of_one_cluster_meet_real_conflicts() -> None:
    mine, theirs = Sums(), Sums()
    async with testing.log(view=mine) as log, log.cluster.connect(view=theirs) as other:
        await (await log.append(b"1 100")).applied()
        await other.wait_applied(0)
        both = await asyncio.gather(
            log.submit(mine.withdraw, 1, 70).outcome(), other.submit(theirs.withdraw, 1, 70).outcome()
        )
        kinds = sorted(outcome.kind.name for outcome in both)
        assert kinds == ["ABANDONED", "COMMITTED"], "the second one ran again, on the new balance"
        assert len(bodies(log)) == 2


async def test_registers_are_listed_through_every_page_and_without_what_was_deleted() -> None:
    async with testing.log() as log:
        keys = [b"seat/%d" % number for number in range(4_500)]
        await log.append(b"many", changes=[polonaise.Change.set(key, b"free") for key in keys])
        await log.append(b"one", changes=[polonaise.Change.delete(keys[7]), polonaise.Change.set(keys[8], b"taken")])
        await log.producer("billing")
        listed = await log.list_registers()
        assert listed == log.registers()
        assert list(listed) == sorted([*keys[:7], *keys[8:], b"producer/billing"])
        for key in (keys[0], keys[7], keys[8], keys[-1], b"producer/billing"):
            assert listed.get(key) == await log.register(key)
        for found in await asyncio.gather(*(log.list_registers(b"seat/1") for _ in range(20))):
            assert list(found) == [key for key in sorted(keys) if key.startswith(b"seat/1")], "the others wait"


async def test_partitions_are_apart_and_a_mistaken_one_is_refused() -> None:
    async with testing.log(partitions=3) as log:
        await log.append(b"one", 1)
        assert [bodies(log, partition) for partition in range(3)] == [[], [b"one"], []]
        for ask in (lambda: log.transactions(3), lambda: log.registers(-1), lambda: log.faults.suspend_feed(3)):
            with pytest.raises(UnknownPartition):
                ask()
    with pytest.raises(BadOption):
        async with testing.log(partitions=0):
            pass


async def test_commit_times_are_the_same_in_every_run_and_can_be_sought() -> None:
    async with testing.log() as log:
        for number in range(3):
            await log.append(b"%d" % number)
        times = [tx.commit_time_us for tx in log.transactions()]
        assert times == [946_684_800_001_000, 946_684_800_002_000, 946_684_800_003_000]
        since = datetime.fromtimestamp(times[1] / 1e6, UTC)
        assert [tx.data async for tx in log.read_time(since=since)] == [b"1", b"2"]


# ------------------------------------------------------------------ faults


async def test_an_append_that_fails_is_not_in_the_log_and_a_context_runs_again() -> None:
    async with testing.log() as log:
        log.faults.fail_next_append()
        with pytest.raises(AppendFailed):
            await log.append(b"lost")
        log.faults.fail_next_append()
        log.faults.fail_next_append(FailureReason.DEADLINE)
        runs = 0

        def context(tx: polonaise.Draft) -> None:
            nonlocal runs
            runs += 1
            tx.append(b"kept")

        await log.run(context)
        assert (runs, bodies(log)) == (3, [b"kept"])


async def test_one_append_of_those_that_go_out_together_fails() -> None:
    async with testing.log() as log:
        await log.ready()
        log.faults.fail_next_append()
        receipts = [log.append(b"%d" % number) for number in range(3)]
        await log.flush()
        assert [receipt.committed for receipt in receipts] == [False, True, True]
        assert bodies(log) == [b"1", b"2"]


async def test_a_group_fails_as_a_whole() -> None:
    async with testing.log() as log:
        log.faults.fail_next_append(FailureReason.EXPECTATION_FAILED)

        def pair(tx: polonaise.Draft) -> None:
            tx.append(b"a")
            tx.append(b"b")
            tx.set(b"k", b"v")

        with pytest.raises(ExpectationFailed):
            await log.run(pair)
        assert (bodies(log), log.registers()) == ([], {})
        await log.run(pair)
        assert (bodies(log), log.registers()) == ([b"a", b"b"], {b"k": b"v"})


async def test_a_producer_that_fails_is_told_its_own_numbers() -> None:
    async with testing.log() as log:
        await log.append(b"another's")
        producer = await log.producer("billing")
        for number in range(3):
            await producer.append(number, b"%d" % number)
        log.faults.fail_next_append(FailureReason.PRODUCER_GAP)
        with pytest.raises(ProducerSequence, match=r"the last is 2$"):
            await producer.append(3, b"3")
        log.faults.fail_next_append(FailureReason.PRODUCER_FENCED)
        with pytest.raises(ProducerFenced, match=f"is in epoch {producer.epoch + 1}:"):
            await producer.append(3, b"3")


async def test_a_producer_that_differs_is_told_the_transaction_of_the_first_time() -> None:
    async with testing.log() as log:
        producer = await log.producer("billing")
        ids = [await producer.append(number, b"%d" % number) for number in range(2)]
        await log.append(b"another's")
        # A number that is new was appended before only by the word of the test: its last one is told.
        for number, earlier in ((0, ids[0]), (2, ids[1])):
            log.faults.fail_next_append(FailureReason.PRODUCER_DIFFERS)
            with pytest.raises(ProducerDiffers, match=f"as transaction {earlier}:"):
                await producer.append(number, b"%d" % number)


async def test_what_is_no_failure_can_not_be_asked_for() -> None:
    async with testing.log() as log:
        for reason in (FailureReason.DUPLICATE, FailureReason.GENERATION):
            with pytest.raises(BadOption):
                log.faults.fail_next_append(reason)
        with pytest.raises(BadOption):
            log.faults.rate(1.0)
        with pytest.raises(BadOption):
            log.faults.delay(-1)


async def test_a_lock_that_fails_hits_the_next_append_with_a_lock() -> None:
    async with testing.log() as log:
        log.faults.fail_next_lock()
        await log.append(b"no lock")
        runs = 0

        def context(tx: polonaise.Draft) -> None:
            nonlocal runs
            runs += 1
            tx.write_lock("x", 1)
            tx.append(b"locked")

        await log.run(context)
        assert (runs, bodies(log)) == (2, [b"no lock", b"locked"])


async def test_a_rate_of_faults_fails_the_same_appends_each_time() -> None:
    async def failed() -> list[bool]:
        async with testing.log() as log:
            log.faults.rate(0.3, seed=7)
            receipts = [log.append(b"%d" % number) for number in range(100)]
            await log.flush()
            log.faults.rate(0)
            await log.append(b"whole again")
            return [receipt.committed for receipt in receipts]

    first = await failed()
    assert first == await failed()
    assert 50 < sum(first) < 90


async def test_contexts_commit_once_each_under_a_rate_of_faults() -> None:
    view = Sums()
    async with testing.log(view=view) as log:
        log.faults.rate(0.4, seed=1)

        def deposit(tx: polonaise.Draft, number: int) -> None:
            tx.write_lock("account", number % 3)
            tx.append(b"%d 1" % (number % 3))

        await asyncio.gather(*[log.run(deposit, number) for number in range(60)])
        assert len(bodies(log)) == 60
        await log.wait_applied(59)
        assert view.sums == {"0": 20, "1": 20, "2": 20}


async def test_a_delay_holds_decisions_up_in_their_order() -> None:
    async with testing.log() as log:
        await log.ready()
        log.faults.delay(0.05)
        began_s = time.monotonic()
        receipts = [log.append(b"%d" % number) for number in range(3)]
        await time_passes(0.01)
        log.faults.delay(0)
        receipts.append(log.append(b"3"))
        await log.flush()
        assert time.monotonic() - began_s >= 0.05
        assert [receipt.id for receipt in receipts] == [0, 1, 2, 3]


async def test_a_delayed_flush_whose_connection_is_lost_is_made_again() -> None:
    """The loop's exception handler was given what the owner refuses it with."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with testing.log() as log:
        await log.ready()
        log.faults.delay(0.03)
        flushing = asyncio.ensure_future(log.flush())
        await time_passes(0.01)
        log.faults.lose_connection()
        log.faults.delay(0)
        assert await asyncio.wait_for(flushing, 5) == -1
        await time_passes(0.03)
    assert not told


async def test_a_suspended_feed_hides_what_is_committed() -> None:
    view = Sums()
    async with testing.log(partitions=2, view=view) as log:
        await log.ready(0)
        await log.ready(1)
        log.faults.suspend_feed(0)
        held, told = log.append(b"1 1", 0), log.append(b"2 2", 1)
        await told.applied()
        assert bodies(log, 0) == [b"1 1"]
        assert not held.done
        assert view.applied == [b"2 2"]
        log.faults.resume_feed(0)
        await held.applied(2)
        assert view.sums == {"1": 1, "2": 2}


async def test_lost_connections_are_made_again_and_nothing_is_doubled() -> None:
    view = Sums()
    async with testing.log(view=view) as log:
        for number in range(20):
            log.faults.lose_connection()
            await (await log.run(lambda tx, n=number: tx.append(b"1 %d" % n), timeout=5)).applied()
        assert view.applied == bodies(log) == [b"1 %d" % number for number in range(20)]


async def test_a_server_that_is_not_reachable_until_told() -> None:
    async with testing.log() as log:
        await log.append(b"before")
        log.faults.lose_connection(reachable=False)
        await time_passes(0.01)
        receipt = log.append(b"after")
        await nothing_happens_for(0.02)
        assert not receipt.done
        log.faults.reconnect()
        await receipt
        assert bodies(log) == [b"before", b"after"]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_fate_that_is_unknown_is_found_out_later(committed: bool) -> None:
    async with testing.log() as log:
        await log.append(b"0")
        log.faults.unknown_next_append(committed=committed)
        with pytest.raises(AppendUnknown) as unknown:
            await log.run(lambda tx: tx.append(b"?"), timeout=0.05)
        receipt = unknown.value.receipt
        assert not receipt.done
        assert bodies(log) == [b"0", b"?"][: 1 + committed]
        log.faults.reconnect()
        # One that is not in the log is sent again.
        assert (await receipt).id == 1
        assert bodies(log) == [b"0", b"?"]


async def test_an_unknown_fate_leaves_a_suspended_feed_suspended() -> None:
    async with testing.log() as log:
        await log.ready()
        log.faults.suspend_feed()
        log.faults.unknown_next_append()
        receipt = log.append(b"?")
        await time_passes(0.02)
        log.faults.reconnect()
        await nothing_happens_for(0.05)
        assert bodies(log) == [b"?"]
        assert not receipt.done
        log.faults.resume_feed()
        assert (await receipt).id == 0


async def test_a_log_that_is_closed_with_an_unknown_fate_says_so() -> None:
    async with testing.log() as log:
        await log.ready()
        log.faults.unknown_next_append()
        receipt = log.append(b"?")
        await time_passes(0.01)
    with pytest.raises(AppendUnknown):
        await receipt


async def test_a_view_that_fails_is_given_the_same_again() -> None:
    class Weak(Sums):
        def apply(self, tx: polonaise.Transaction) -> None:
            if not self.failures:
                raise RuntimeError("weak")
            super().apply(tx)

    view = Weak()
    async with testing.log(view=view) as log:
        await (await log.append(b"1 1")).applied()
        assert (view.failures, view.applied) == (1, [b"1 1"])
