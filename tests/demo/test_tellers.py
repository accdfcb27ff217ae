"""Tellers: what is left to do is done by the next process, and one that can't work says why."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.errors import Abandoned, AppendFailed, AppendUnknown, LockConflict
from polonaise.node.local import LocalCluster
from polonaise_proving.demo.bank import PARTITION, PAYMENT, Accounts, transfer
from polonaise_proving.demo.payments import Payment, make_payments
from polonaise_proving.demo.run import Bank
from polonaise_proving.demo.teller import Job, OrderedPayments, Teller, TellerProcess, TellerReport, shares
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.stages.processes import Program
from rigs.waiting import time_passes


def test_all_payments_of_an_account_are_one_tellers_in_their_order() -> None:
    payments = make_payments(500).payments
    shared = shares(payments, 3)
    assert sorted(payment.id for share in shared for payment in share) == [payment.id for payment in payments]
    for share in shared:
        assert [payment.id for payment in share] == sorted(payment.id for payment in share)
    tellers_of = {p.accounts[0]: {n for n, share in enumerate(shared) if p in share} for p in payments}
    assert {len(tellers) for tellers in tellers_of.values()} == {1}


async def test_a_payment_waits_for_the_earlier_ones_of_both_its_accounts() -> None:
    a, b, c, d = (
        Payment(number, source, target, 1, "", "")
        for number, source, target in [(1, 7, 8), (2, 9, 0), (3, 9, 8), (4, 8, 7)]
    )
    order = OrderedPayments([a, b, c, d])
    assert [await order.next(), await order.next()] == [a, b]
    waiting = asyncio.ensure_future(order.next())
    await asyncio.sleep(0)
    order.done(a)
    await asyncio.sleep(0)
    assert not waiting.done(), "3 waits for 2, too, and 4 for 3"
    order.done(b)
    assert await waiting == c
    order.done(c)
    assert await order.next() == d
    order.done(d)
    assert [await order.next(), await order.next()] == [None, None]
    assert await OrderedPayments([]).next() is None


def test_a_job_and_a_report_are_read_as_they_were_written(tmp_path: Path) -> None:
    job = Job("file:/c", "sqlite:///v", 8, True, make_payments(5).payments)
    job.write(tmp_path / "job")
    assert Job.read(tmp_path / "job") == job
    news = TellerReport([1], [2], [3], 5, 1, [0.5])
    assert TellerReport.decode(news.encode()) == news


async def test_a_payment_that_was_made_is_not_made_again(tmp_path: Path) -> None:
    """Neither by a teller whose view knows it, nor by one whose view does not know it yet."""
    payment = Payment(7, 0, 1, 500, "salary", "1993-01-01")
    address = f"embedded:{tmp_path / 'log'}"
    first, second = Accounts(f"sqlite:///{tmp_path / '1.db'}"), Accounts(f"sqlite:///{tmp_path / '2.db'}")
    async with polonaise.connect(address, view=first) as one, polonaise.connect(address, view=second) as two:
        await one.run(transfer, first, payment, True, partition=PARTITION, timeout=30)
        for log, view in ((two, second), (one, first)):
            with pytest.raises(Abandoned, match="made already"):
                await log.run(transfer, view, payment, True, partition=PARTITION, timeout=30)
        headers = [tx.header async for tx in one.read(PARTITION)]
    assert headers == [PAYMENT]


async def test_only_what_is_abandoned_for_lack_of_money_is_booked_as_refused(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    view = Accounts(f"sqlite:///{tmp_path / 'view.db'}")
    job = Job(address, "", 1, True, [Payment(7, 1, 0, 500, "cash", "1993-01-01")])
    async with polonaise.connect(address, view=view) as log:
        with pytest.raises(ExceptionGroup) as failed:
            await Teller(log, view, job).work()
    assert failed.group_contains(Abandoned, match="its source is not opened yet")


class UnknownAtFirst:
    """A log on which the fate of the first append is learnt only after the deadline of `run`."""

    def __init__(self, fate: Exception | None) -> None:
        self.fate = fate
        self.runs = 0

    def __await__(self) -> Generator[Any, None, UnknownAtFirst]:
        yield from asyncio.sleep(0).__await__()
        if self.fate is not None:
            raise self.fate
        return self

    async def run(self, *_: object, **__: object) -> UnknownAtFirst:
        self.runs += 1
        if self.runs == 1:
            raise AppendUnknown("not decided", self)
        return self

    async def applied(self, timeout: float) -> None: ...


@pytest.mark.parametrize(("fate", "runs"), [(None, 1), (AppendFailed("lost"), 2), (LockConflict("stale", 3), 2)])
async def test_a_payment_whose_append_turns_out_to_have_failed_is_made_again(fate: Exception | None, runs: int) -> None:
    log: Any = UnknownAtFirst(fate)
    view: Any = None
    teller = Teller(log, view, Job("", "", 1, True, []))
    await teller._make(Payment(7, 1, 0, 500, "cash", "1993-01-01"))
    assert log.runs == runs
    assert (teller._news.made, teller._news.unknown) == ([7], 1)


async def test_a_payment_whose_fate_nobody_can_find_out_ends_the_teller() -> None:
    log: Any = UnknownAtFirst(AppendUnknown("closed", None))
    view: Any = None
    with pytest.raises(AppendUnknown, match="closed"):
        await Teller(log, view, Job("", "", 1, True, []))._make(Payment(7, 1, 0, 500, "cash", "1993-01-01"))


@pytest.mark.parametrize(("program", "status"), [("ends", 0), ("stays", -signal.SIGKILL)])
def test_a_program_that_does_not_end_with_its_input_is_killed(
    program: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends.py").write_text("import os, sys; os.close(1); sys.stdin.read()")
    (tmp_path / "stays.py").write_text("import time; time.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = Program(program, tmp_path / "log", command=[program], speaks=True, environment=environment)
    process.start()
    ended: list[int] = []
    monkeypatch.setattr(process, "wait_ended", lambda *within_s: ended.append(Program.wait_ended(process, *within_s)))
    process.end(5.0 if program == "ends" else 0.05)
    assert ended == [status]
    assert not process.alive


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    with LocalCluster(tmp_path / "cluster") as cluster:
        bank = Bank(cluster, make_payments(2_000), 2, tmp_path)
        await bank.open_accounts()
        yield bank


@pytest.mark.slow
async def test_a_teller_that_is_killed_again_and_again_makes_each_payment_once(bank: Bank) -> None:
    killed = 0

    async def kill() -> None:
        nonlocal killed
        while killed < 3:
            await time_passes(0.3)
            killed += bank.tellers[0].kill()

    killer = asyncio.ensure_future(kill())
    await asyncio.gather(*(teller.work() for teller in bank.tellers))
    killer.cancel()
    seen = await bank.findings()
    assert killed
    assert max(seen.folded.payments.values()) == 1
    assert seen.made == set(seen.folded.payments)
    assert len(seen.made) + len(seen.refused) == 2_000


@pytest.mark.slow
async def test_a_teller_that_ends_before_its_work_is_done_says_what_it_printed(tmp_path: Path) -> None:
    job = Job("file:/nowhere", f"sqlite:///{tmp_path / 'view.db'}", 1, True, make_payments(3).payments)
    with pytest.raises(GaveUp, match=r"3 payments left(.|\n)*not_initialized"):
        await TellerProcess("teller-0", job, tmp_path, lambda news: None).work()
