"""The log for threads: what it does, whom it serves at the same time, and where code of the application runs."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from polonaise import blocking, testing
from polonaise.blocking import background
from polonaise.client.protocol.draft import Draft, Expectation
from polonaise.client.running import OutcomeKind
from polonaise.errors import (
    Abandoned,
    AppendExpired,
    AppendFailed,
    AppendUnknown,
    BadOption,
    BeyondLog,
    Closed,
    DeadlineExceeded,
    ExpectationFailed,
    NotInitialized,
    PolonaiseError,
    ProducerFenced,
)
from polonaise.terms import FailureReason, Transaction

pytestmark = pytest.mark.slow


class Sums:
    """A view with plain methods, which remembers the threads that called it."""

    def __init__(self) -> None:
        self.mark = -1
        self.sums: dict[str, int] = {}
        self.threads: set[str] = set()
        self.on_apply: Callable[[Transaction], object] | None = None
        self.failures: list[Exception] = []

    def high_water_mark(self, partition: int) -> int:
        return self.mark

    def apply(self, tx: Transaction) -> None:
        self.threads.add(threading.current_thread().name)
        if self.on_apply is not None:
            self.on_apply(tx)
        account, amount = tx.data.decode().split()
        self.sums[account] = self.sums.get(account, 0) + int(amount)
        self.mark = tx.id

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self.failures.append(error)
        self.on_apply = None


@pytest.fixture
def view() -> Sums:
    return Sums()


@pytest.fixture
def log(view: Sums) -> Iterator[testing.BlockingMemoryLog]:
    with testing.blocking_log(view=view) as log:
        yield log


def deposit(tx: Draft, account: int, amount: int) -> None:
    tx.append(b"%d %d" % (account, amount))


# ------------------------------------------------------------------ what it does


def test_contexts_receipts_and_views(log: testing.BlockingMemoryLog, view: Sums) -> None:
    def withdraw(tx: Draft, account: int, amount: int) -> None:
        tx.write_lock("account", account)
        if view.sums.get(str(account), 0) < amount:
            return tx.abandon("insufficient funds")
        return tx.append(b"%d %d" % (account, -amount))

    log.append(b"1 100").applied(5)
    receipt = log.run(withdraw, 1, 30, timeout=5)
    assert (receipt.committed, receipt.done, receipt.id, list(receipt.ids), receipt.error) == (True, True, 1, [1], None)
    receipt.applied(5)
    assert view.sums == {"1": 70}
    with pytest.raises(Abandoned):
        log.run(withdraw, 1, 71)
    assert log.applied() == log.high_water_mark() == log.flush() == 1
    assert log.partition_count == 1
    assert log.client_id > 0
    assert log.trouble(0) is None


def test_a_receipt_is_waited_for_with_and_without_a_deadline(log: testing.BlockingMemoryLog) -> None:
    log.ready(timeout=5)
    log.faults.suspend_feed()
    receipt = log.append(b"1 1")
    assert not receipt.wait(0.01)
    with pytest.raises(DeadlineExceeded):
        receipt.result(0.01)
    with pytest.raises(DeadlineExceeded):
        receipt.applied(0.01)
    log.faults.resume_feed()
    assert receipt.result(5) is receipt
    assert receipt.wait()


@pytest.mark.parametrize("timeout", ["5", -1, float("nan"), True])
def test_an_invalid_timeout_of_a_receipt_is_refused(log: testing.BlockingMemoryLog, timeout: Any) -> None:
    receipt, submission = log.append(b"1 1").result(5), log.submit(deposit, 1, 1)
    for wait in (receipt.wait, receipt.result, receipt.applied, submission.result, submission.outcome):
        with pytest.raises(BadOption, match="timeout="):
            wait(timeout)


def test_a_receipt_of_what_failed(log: testing.BlockingMemoryLog) -> None:
    log.faults.fail_next_append()
    receipt = log.append(b"1 1")
    assert receipt.wait(5)
    assert isinstance(receipt.error, AppendFailed)
    with pytest.raises(AppendFailed):
        receipt.result()
    with pytest.raises(ExpectationFailed):
        log.append(b"1 1", expectations=[Expectation.present(b"k")]).result(5)


def test_submissions(log: testing.BlockingMemoryLog) -> None:
    submissions = [log.submit(deposit, 1, 1) for _ in range(20)]
    assert sorted(submission.result(5).id for submission in submissions) == list(range(20))
    assert submissions[0].done
    assert submissions[0].outcome().kind is OutcomeKind.COMMITTED
    refused = log.submit(lambda tx: tx.abandon("no"))
    assert refused.outcome(5).kind is OutcomeKind.ABANDONED
    with pytest.raises(Abandoned):
        refused.result()
    log.faults.suspend_feed()
    waiting = log.submit(deposit, 1, 1)
    with pytest.raises(DeadlineExceeded):
        waiting.result(0.01)
    waiting.cancel()
    assert waiting.outcome(5).kind is OutcomeKind.RAISED


def test_an_unknown_fate_can_be_waited_for_by_threads(log: testing.BlockingMemoryLog) -> None:
    log.ready()
    log.faults.unknown_next_append()
    with pytest.raises(AppendUnknown) as unknown:
        log.run(deposit, 1, 1, timeout=0.05)
    assert isinstance(unknown.value.receipt, blocking.Receipt)
    log.faults.reconnect()
    assert unknown.value.receipt.result(5).id == 0


def test_registers_producers_and_requests(log: testing.BlockingMemoryLog) -> None:
    log.run(lambda tx: (tx.set(b"k", b"v"), tx.append(b"1 1")))
    assert log.register(b"k") == log.registers()[b"k"] == b"v"
    producer = log.producer("billing")
    assert log.list_registers() == log.registers()
    assert log.list_registers(b"k", timeout=5) == {b"k": b"v"}
    assert (producer.name, producer.epoch, producer.last_sequence) == ("billing", 1, -1)
    assert producer.append(0, b"1 1") == producer.append(0, b"1 1", timeout=5)
    log.producer("billing")
    with pytest.raises(ProducerFenced):
        producer.append(1, b"1 1")
    assert log.transaction(0).data == b"1 1"
    with pytest.raises(BeyondLog):
        log.transaction(99)
    assert log.health()["partitions"]["0"]["ready"]
    assert log.decode(log.transaction(0)) == b"1 1"


# ------------------------------------------------------------------ reading


def test_reading_is_a_plain_iterator(log: testing.BlockingMemoryLog) -> None:
    receipts = [log.append(b"1 %d" % number) for number in range(3_000)]
    receipts[-1].result(10)
    assert [tx.id for tx in log.read(0)] == list(range(3_000))
    assert [tx.id for tx in log.read(0, after=9, until=12)] == [10, 11, 12]
    assert sum(batch.count for batch in log.read_batches(0)) == 3_000
    since = log.transactions()[-1].commit_time_us
    assert next(log.read_time(0, since=since)).commit_time_us == since
    assert list(log.read(0, after=2_999)) == []


def test_reading_ahead_is_bounded(log: testing.BlockingMemoryLog) -> None:
    for _ in range(6):
        log.append(b"1 1".ljust(1_000_000)).result(5)
    with log.read(0) as reading:
        next(reading)
        assert len(reading._pump._ready) <= 2


def test_following_waits_and_is_left_by_close_break_and_the_garbage_collector(log: testing.BlockingMemoryLog) -> None:
    log.append(b"1 0").result(5)
    reading = log.read(0, follow=True)
    assert next(reading).id == 0
    threading.Timer(0.02, lambda: log.append(b"1 1")).start()
    assert next(reading).id == 1
    reading.close()
    assert list(reading) == []
    with log.read(0, follow=True) as other:
        for _ in other:
            break
    pump = other._pump
    for _ in log.read(0, follow=True):
        break
    gc.collect()
    log.flush()
    assert pump._task.done()


def test_a_reading_whose_deadline_passed_raises_again_or_goes_on(log: testing.BlockingMemoryLog) -> None:
    for number in range(3):
        log.append(b"1 %d" % number).result(5)
    log.faults.lose_connection(reachable=False)
    reading = log.read(0, timeout=0.05)
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            next(reading)
    log.faults.reconnect()
    assert [tx.id for tx in reading] == [0, 1, 2]


def test_a_reading_whose_wait_was_interrupted_loses_nothing(
    log: testing.BlockingMemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3_000):
        receipt = log.append(b"1 %d" % number)
    receipt.result(10)
    reading = log.read(0)
    call = background.Background.call
    calls = 0

    def interrupted(self: background.Background, make: Callable[[], Any]) -> Any:
        """Ctrl-C in the very moment in which what it waited for is there."""
        nonlocal calls
        found = call(self, make)
        calls += 1
        if calls % 2:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(background.Background, "call", interrupted)
    found: list[int] = []
    while True:
        try:
            found.append(next(reading).id)
        except KeyboardInterrupt:
            pass
        except StopIteration:
            break
    assert found == list(range(3_000))
    assert calls >= 6


def test_what_was_cancelled_by_itself_is_not_told_as_a_closed_log(log: testing.BlockingMemoryLog) -> None:
    async def ask(_: object) -> None:
        task = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    with pytest.raises(asyncio.CancelledError):
        log.call(ask)
    assert log.append(b"1 1").result(10).id == 0


# ------------------------------------------------------------------ threads


def test_many_threads_use_one_log(log: testing.BlockingMemoryLog, view: Sums) -> None:
    def increment(tx: Draft, account: int) -> None:
        tx.write_lock("account", account)
        tx.append(b"%d 1" % account)

    def work(worker: int) -> None:
        for _ in range(25):
            log.run(increment, worker % 2, timeout=30).applied(30)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert view.sums == {"0": 100, "1": 100}
    assert len(view.threads) == 1


def test_where_code_of_the_application_runs(log: testing.BlockingMemoryLog, view: Sums) -> None:
    ran: list[str] = []

    def context(tx: Draft) -> None:
        ran.append(threading.current_thread().name)
        tx.append(b"1 1")

    log.run(context).applied()
    log.submit(context).result(5).applied()
    assert ran[0] == threading.current_thread().name
    assert ran[1] in view.threads


def test_a_context_may_wait_for_the_log_in_its_own_thread(log: testing.BlockingMemoryLog) -> None:
    def context(tx: Draft) -> None:
        tx.append(b"1 %d" % (log.high_water_mark() + 1))

    log.append(b"1 1").result()
    assert log.run(context).id == 1
    assert log.transaction(1).data == b"1 1"


def test_a_context_that_raises_or_takes_too_long(log: testing.BlockingMemoryLog) -> None:
    def broken(tx: Draft) -> None:
        raise KeyError("broken")

    def stops(tx: Draft) -> None:
        raise StopIteration

    def slow(tx: Draft) -> None:
        threading.Event().wait(0.1)
        tx.append(b"1 1")

    with pytest.raises(KeyError):
        log.run(broken)
    with pytest.raises(RuntimeError, match="StopIteration"):
        log.run(stops)
    with pytest.raises(AppendExpired):
        log.run(slow, timeout=0.02)
    assert log.transactions() == []


def test_coroutines_are_refused(log: testing.BlockingMemoryLog) -> None:
    async def context(tx: Draft) -> None: ...

    class Callable:
        async def __call__(self, tx: Draft) -> None: ...

    def generating(tx: Draft) -> Iterator[None]:
        tx.append(b"1 1")  # would never run
        yield

    for wrong in (context, Callable(), generating, None):
        with pytest.raises(BadOption, match="plain function"):
            log.run(wrong)
        with pytest.raises(BadOption, match="plain function"):
            log.submit(wrong)


def test_a_context_that_returns_what_never_ran_is_refused(log: testing.BlockingMemoryLog) -> None:
    async def later(tx: Draft) -> None:
        tx.append(b"1 1")

    def generating(tx: Draft) -> Iterator[None]:
        yield tx.append(b"1 1")

    def returns_it(tx: Draft) -> Any:
        tx.append(b"1 1")
        return later(tx)

    for context, returned in (
        (lambda tx: asyncio.sleep(0), "coroutine"),
        (lambda tx: later(tx), "coroutine"),
        (lambda tx: generating(tx), "generator"),
        (returns_it, "coroutine"),
    ):
        for run in (log.run, lambda given: log.submit(given).result()):
            with pytest.raises(BadOption, match=f"the context returned a {returned}: .* is a plain function"):
                run(context)
    assert log.transactions() == []


@pytest.mark.parametrize(
    "wait",
    [
        lambda log: log.high_water_mark(),
        lambda log: log.run(deposit, 1, 1),
        lambda log: log.append(b"1 1").result(),
        lambda log: next(log.read(0)),
        lambda log: log.close(),
        lambda log: log.submit(deposit, 1, 1).result(),
    ],
)
def test_waiting_in_the_background_thread_is_refused(
    log: testing.BlockingMemoryLog, view: Sums, wait: Callable[[blocking.Log], object]
) -> None:
    view.on_apply = lambda tx: wait(log)
    log.append(b"1 1").applied(5)
    (failure,) = view.failures
    assert isinstance(failure, PolonaiseError)
    assert failure.code == "wrong_thread"
    assert "background thread" in str(failure)


def test_what_does_not_wait_is_allowed_there(log: testing.BlockingMemoryLog, view: Sums) -> None:
    told: list[object] = []

    def on_apply(tx: Transaction) -> None:
        view.on_apply = None
        told.extend([log.applied(), log.decode(tx), log.append(b"2 2")])

    view.on_apply = on_apply
    log.append(b"1 1").applied(5)
    assert told[:2] == [-1, b"1 1"]
    assert isinstance(told[2], blocking.Receipt)
    told[2].applied(5)
    assert view.sums == {"1": 1, "2": 2}


def test_faults_of_a_context_run_it_again_in_its_thread(log: testing.BlockingMemoryLog) -> None:
    log.faults.fail_next_append()
    log.faults.fail_next_append(FailureReason.INSUFFICIENT_REPLICAS)
    ran: list[int] = []

    def context(tx: Draft) -> None:
        ran.append(threading.get_ident())
        tx.append(b"1 1")

    log.run(context)
    assert ran == [threading.get_ident()] * 3


def test_a_log_that_cannot_be_opened_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(NotInitialized):
        blocking.connect("file:./there-is-none")
    with pytest.raises(BadOption):
        blocking.connect("nonsense")
    assert threading.active_count() == before


def test_after_close_everything_is_refused(log: testing.BlockingMemoryLog) -> None:
    receipt = log.append(b"1 1").result()
    log.close()
    log.close()
    for use in (log.flush, log.applied, lambda: log.append(b"1 1"), lambda: list(log.read(0))):
        with pytest.raises(Closed):
            use()
    assert receipt.result() is receipt, "what is known stays known"


def test_the_receipt_has_what_the_context_returned(tmp_path: Path) -> None:
    def context(tx: Draft, number: int) -> int:
        tx.append(b"%d" % number)
        return 2 * number

    with blocking.connect(f"embedded:{tmp_path / 'log'}") as log:
        assert log.run(context, 21).value == 42
        assert log.submit(context, 4).result().value == 8
        assert log.append(b"x").result().value is None
