"""The bank: its checks find what is wrong, and the whole of it runs on real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from polonaise.demo import run as demo
from polonaise.demo.bank import PAYMENT, Balances
from polonaise.demo.checks import Audit, Verdict, verdicts
from polonaise.demo.payments import Book, Payment, make_payments
from polonaise.terms import Transaction

CHECKS = 6
"""Of made-up payments; a bank's own have one more, and overdrafts."""


class Kept:
    """A bank after a day on which nothing went wrong, to plant differences in."""

    def __init__(self) -> None:
        self.book = make_payments(300, seed=5)
        self.view = Balances(self.book.opening)
        self.made: set[int] = set()
        self.refused: set[int] = set()
        self.found = Audit(dict(self.book.opening))
        for payment in self.book.payments:
            if payment.source and self.view.of(payment.source) < payment.amount:
                self.refused.add(payment.id)
            else:
                self.make(payment)

    def make(self, payment: Payment) -> None:
        self.made.add(payment.id)
        self.view.apply(Transaction(0, len(self.made), PAYMENT, payment.encode(), 0, 1, 1, 1))
        self.found.payments[payment.id] += 1
        for account in payment.accounts:
            self.found.balances[account] += payment.change(account)

    def failed(self) -> list[str]:
        results: list[Verdict] = verdicts(self.book, self.found, self.view, self.made, self.refused)
        assert len(results) == CHECKS
        return [result.what for result in results if not result.holds]


def test_a_day_on_which_nothing_went_wrong_passes_every_check() -> None:
    assert Kept().failed() == []


def test_a_view_that_is_off_by_a_hundredth_is_found() -> None:
    kept = Kept()
    kept.view._balances[7] += 1
    assert kept.failed() == ["the view equals the fold of the log"]


def test_a_payment_twice_in_the_log_is_found() -> None:
    kept = Kept()
    kept.make(next(payment for payment in kept.book.payments if payment.id in kept.made))
    assert "every payment that was made is in the log once, and no other" in kept.failed()
    assert "the fold of the log equals the input" in kept.failed()


def test_a_lost_payment_is_found() -> None:
    kept = Kept()
    del kept.found.payments[min(kept.made)]
    assert kept.failed() == ["every payment that was made is in the log once, and no other"]


def test_a_payment_that_nobody_made_is_found() -> None:
    kept = Kept()
    kept.found.payments = Counter({**kept.found.payments, 10**6: 1})
    assert kept.failed() == ["every payment that was made is in the log once, and no other"]


def test_a_payment_without_a_fate_is_found() -> None:
    kept = Kept()
    kept.refused.pop()
    assert kept.failed() == ["every payment was made or refused"]


def test_an_overdrawn_account_is_found() -> None:
    kept = Kept()
    kept.view.lowest = -1
    assert kept.failed() == ["no account was ever overdrawn"]


def test_a_stale_transaction_in_the_log_is_found() -> None:
    kept = Kept()
    kept.found.history.unjudged = 1
    assert kept.failed() == ["the log is serializable, by its own evidence"]


def test_a_balance_that_is_not_the_banks_is_found() -> None:
    kept = Kept()
    kept.book.bank_balances = {account: kept.found.balances[account] for account in kept.book.payments_of}
    kept.book.bank_balances[7] += 10 * kept.book.payments_of[7] + 1
    results = verdicts(kept.book, kept.found, kept.view, kept.made, kept.refused)
    assert [result.what for result in results if not result.holds] == [
        "every final balance is the bank's own, to 0.10 per payment"
    ]


# ---------------------------------------------------------------------- the whole of it


@pytest.mark.slow
def test_the_demo_runs_kills_a_node_and_every_check_holds() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "polonaise.cli", "demo", "bank", "--generate", "3000"],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("holds") == CHECKS
    assert "FAILS" not in ended.stdout
    assert "3,000 on " in ended.stdout
    assert "with -9 after" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_planted_difference_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that forgets a hundredth of the first payment: the log is right, and the verdict is not."""

    class Forgetful(Balances):
        def apply(self, tx: Transaction) -> None:
            first = not self._marks
            super().apply(tx)
            if first:
                account = Payment.decode(tx.data).accounts[0]
                self._balances[account] -= 1

    monkeypatch.setattr(demo, "Balances", Forgetful)
    said = StringIO()
    assert not asyncio.run(demo.run_bank(make_payments(300), 8, Console(file=said, width=160)))
    failing = [line for line in said.getvalue().splitlines() if "FAILS" in line]
    assert len(failing) == 1
    assert "the view equals the fold of the log" in failing[0]


@pytest.mark.slow
def test_a_demo_whose_checks_fail_ends_with_another_status_than_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from polonaise.cli import main

    async def fails(book: Book, tellers: int, console: Console) -> bool:
        return False

    monkeypatch.setattr(demo, "run_bank", fails)
    monkeypatch.setattr(sys, "argv", ["polonaise", "demo", "bank", "--generate", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1


@pytest.mark.slow
def test_bad_rows_are_named_by_the_demo(tmp_path: Path) -> None:
    path = tmp_path / "payments.csv"
    rows = ["1,7,1993-01-05,credit,cash,100,100,", "oops", "2,7,1993-01-06,debit,cash,150,-50,"]
    path.write_text("trans_id,account_id,date,direction,operation,amount,balance,purpose\n" + "\n".join(rows) + "\n")
    ended = subprocess.run(
        [sys.executable, "-m", "polonaise.cli", "demo", "bank", "--payments", str(path)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "not used: line 3" in ended.stdout
    assert "every final balance is the bank's own" in ended.stdout
