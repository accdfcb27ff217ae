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
from polonaise.demo.bank import Accounts
from polonaise.demo.checks import Folded, Held, Seen, Verdict, verdicts
from polonaise.demo.payments import Book, Payment, make_payments

CHECKS = 9
"""Of made-up payments; a bank's own have one more, and overdrafts."""


class Kept:
    """A bank after a day on which nothing went wrong, to plant differences in."""

    def __init__(self) -> None:
        self.book = make_payments(300, seed=5)
        self.folded = Folded(dict(self.book.opening), last=799)
        self.seen = Seen(
            made=set(),
            refused=set(),
            view={},
            view_payments=Counter(),
            rebuilt={},
            rebuilt_payments=Counter(),
            folded=self.folded,
            replicas={f"storage-{number}": Held(799, "abc") for number in range(3)},
        )
        for payment in self.book.payments:
            if payment.source and self.folded.balances[payment.source] < payment.amount:
                self.seen.refused.add(payment.id)
            else:
                self.make(payment)

    def make(self, payment: Payment) -> None:
        seen = self.seen
        seen.made.add(payment.id)
        self.folded.payments[payment.id] += 1
        for account in payment.accounts:
            self.folded.balances[account] += payment.change(account)
        seen.view, seen.rebuilt = dict(self.folded.balances), dict(self.folded.balances)
        seen.view_payments, seen.rebuilt_payments = Counter(self.folded.payments), Counter(self.folded.payments)

    def failed(self) -> list[str]:
        results: list[Verdict] = verdicts(self.book, self.seen)
        assert len(results) == CHECKS
        return [result.what for result in results if not result.holds]


ONCE = "every payment that was made is in the log once, and no other"
FATES = "every payment was made or refused"
REBUILT = "the view equals a second one, rebuilt from the log alone"
FOLD = "the view equals the fold of the log"
PAYMENTS = "both views and the log hold the same payments"
INPUT = "the view equals the input"


def test_a_day_on_which_nothing_went_wrong_passes_every_check() -> None:
    assert Kept().failed() == []


def test_a_view_that_is_off_by_a_hundredth_is_found() -> None:
    kept = Kept()
    kept.seen.view[7] += 1
    assert kept.failed() == [REBUILT, FOLD, INPUT]


def test_a_rebuilt_view_that_differs_is_found() -> None:
    kept = Kept()
    del kept.seen.rebuilt[7]
    assert kept.failed() == [REBUILT]


def test_a_payment_that_a_view_counts_twice_is_found_though_the_balances_fit() -> None:
    kept = Kept()
    kept.seen.view_payments[min(kept.seen.made)] += 1
    assert kept.failed() == [PAYMENTS]


def test_a_payment_twice_in_the_log_is_found() -> None:
    kept = Kept()
    kept.make(next(payment for payment in kept.book.payments if payment.id in kept.seen.made))
    assert kept.failed() == [ONCE, INPUT]


def test_a_lost_payment_is_found() -> None:
    kept = Kept()
    del kept.folded.payments[min(kept.seen.made)]
    assert kept.failed() == [ONCE, PAYMENTS]


def test_a_payment_that_nobody_made_is_found() -> None:
    kept = Kept()
    kept.folded.payments[10**6] = 1
    assert kept.failed() == [ONCE, PAYMENTS]


def test_a_payment_without_a_fate_is_found() -> None:
    kept = Kept()
    kept.seen.refused.pop()
    assert kept.failed() == [FATES]


def test_a_payment_that_was_made_and_refused_is_found() -> None:
    kept = Kept()
    kept.seen.refused.pop()
    kept.seen.refused.add(min(kept.seen.made))
    assert kept.failed() == [FATES]


def test_an_overdrawn_account_is_found() -> None:
    kept = Kept()
    kept.folded.lowest = -1
    assert kept.failed() == ["no account was ever overdrawn"]


def test_a_stale_transaction_in_the_log_is_found() -> None:
    kept = Kept()
    kept.folded.history.unjudged = 1
    assert kept.failed() == ["the log is serializable, by its own evidence"]


@pytest.mark.parametrize("held", [Held(799, "abd"), Held(798, "abc")])
def test_a_storage_node_that_holds_something_else_is_found(held: Held) -> None:
    kept = Kept()
    kept.seen.replicas["storage-1"] = held
    assert kept.failed() == ["the storage nodes hold the same batches, byte for byte"]


def test_storage_nodes_that_all_lack_the_same_are_found() -> None:
    kept = Kept()
    kept.folded.last = 800
    assert kept.failed() == ["the storage nodes hold the same batches, byte for byte"]


def test_a_balance_that_is_not_the_banks_is_found() -> None:
    kept = Kept()
    kept.book.bank_balances = {account: kept.folded.balances[account] for account in kept.book.payments_of}
    kept.book.bank_balances[7] += 10 * kept.book.payments_of[7] + 1
    assert [result.what for result in verdicts(kept.book, kept.seen) if not result.holds] == [
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
    assert "storage 0 (process" in ended.stdout
    assert ended.stdout.count("with -9 after") == 2, "a teller, and a storage node"
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_planted_difference_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that forgets a hundredth of each account: the log is right, and the verdict is not."""

    class Forgetful(Accounts):
        def balances(self) -> dict[int, int]:
            return {account: balance - 1 for account, balance in super().balances().items()}

    monkeypatch.setattr(demo, "Accounts", Forgetful)
    said = StringIO()
    assert not asyncio.run(demo.run_bank(make_payments(300), 2, Console(file=said, width=160)))
    failing = [line for line in said.getvalue().splitlines() if "FAILS" in line]
    assert [what for what in (FOLD, INPUT) if any(what in line for line in failing)] == [FOLD, INPUT]
    assert len(failing) == 2


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
