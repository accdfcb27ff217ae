"""The bank: its checks find what is wrong, and the whole of it runs on real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from polonaise.cli.exitstatus import ExitStatus
from polonaise.host.tls import VARIABLES
from polonaise_proving.demo import run as demo
from polonaise_proving.demo.bank import Accounts
from polonaise_proving.demo.checks import DayFindings, DemoVerdict, Folded, SparkFindings, verdicts
from polonaise_proving.demo.payments import Payment, make_payments
from polonaise_proving.record.history import Contents
from rigs.programs import output_of, run_polonaise

CHECKS = 10
"""Of made-up payments; a bank's own have one more, and overdrafts."""
CHECKS_ON_SPARK = 3


class Kept:
    """A bank after a day on which nothing went wrong, to plant differences in, or which refused what it should not."""

    def __init__(self, refuses: Callable[[Payment], bool] = lambda payment: False) -> None:
        self.book = make_payments(300, seed=5)
        self.folded = Folded(last=799)
        self.folded.history.judged = 800
        for account, balance in self.book.opening.items():
            self.folded.change(account, balance)
        self.seen = DayFindings(
            made=set(),
            refused=set(),
            view={},
            view_payments=Counter(),
            rebuilt={},
            rebuilt_payments=Counter(),
            folded=self.folded,
            replicas={f"storage-{number}": Contents(0, 799, "abc") for number in range(3)},
            storage_nodes=3,
        )
        for payment in self.book.payments:
            covered = not payment.source or self.folded.balances[payment.source] >= payment.amount
            if not covered or refuses(payment):
                self.seen.refused.add(payment.id)
            else:
                self.make(payment)
        self.look()

    def make(self, payment: Payment) -> None:
        seen = self.seen
        seen.made.add(payment.id)
        self.folded.payments[payment.id] += 1
        for account in payment.accounts:
            self.folded.change(account, payment.change(account))
        self.look()

    def look(self) -> None:
        seen = self.seen
        seen.view, seen.rebuilt = dict(self.folded.balances), dict(self.folded.balances)
        seen.view_payments, seen.rebuilt_payments = Counter(self.folded.payments), Counter(self.folded.payments)

    def failed(self) -> list[str]:
        results: list[DemoVerdict] = verdicts(self.book, self.seen)
        assert len(results) == CHECKS
        return [result.what for result in results if not result.holds]


ONCE = "every payment that was made is in the log once, and no other"
FATES = "every payment was made or refused"
REFUSED = "only payments that were not covered were refused"
REBUILT = "the view equals a second one, rebuilt from the log alone"
FOLD = "the view equals the fold of the log"
PAYMENTS = "both views and the log hold the same payments"
INPUT = "the view equals the input"
OVERDRAWN = "no account was ever overdrawn"
SERIALIZABLE = "the log is serializable, by its own evidence"
REPLICAS = "the storage nodes hold the same batches, byte for byte"


def test_a_day_on_which_nothing_went_wrong_passes_every_check() -> None:
    assert Kept().failed() == []


@pytest.mark.parametrize(
    "refuses",
    [lambda payment: True, lambda payment: payment.kind == "salary"],
    ids=["every payment", "every salary"],
)
def test_money_that_is_wrongly_refused_is_found(refuses: Callable[[Payment], bool]) -> None:
    assert Kept(refuses).failed() == [REFUSED]


def test_one_payment_that_was_always_covered_and_refused_is_found() -> None:
    right = Kept()
    lowest_of = right.folded.lowest_of
    covered = next(p for p in right.book.payments if p.source and p.amount and lowest_of[p.source] >= p.amount)
    assert Kept(lambda payment: payment.id == covered.id).failed() == [REFUSED]


def test_a_bank_that_allows_overdrafts_refuses_nothing() -> None:
    kept = Kept()
    kept.book.refuses_overdrafts = False
    assert [result.what for result in verdicts(kept.book, kept.seen) if not result.holds] == [REFUSED]


def one_more(kept: Kept) -> None:
    kept.make(next(payment for payment in kept.book.payments if payment.id in kept.seen.made))


def made_and_refused(kept: Kept) -> None:
    kept.seen.refused.pop()
    kept.seen.refused.add(min(kept.seen.made))


def replicas_of(*held: Contents) -> Callable[[Kept], None]:
    return lambda kept: vars(kept.seen).update(replicas={f"storage-{n}": each for n, each in enumerate(held)})


def grown(kept: Kept) -> None:
    kept.folded.last, kept.folded.history.judged = 800, 801


HELD = Contents(0, 799, "abc")


@pytest.mark.parametrize(
    ("planted", "failed"),
    [
        pytest.param(lambda kept: kept.seen.view.update({7: kept.seen.view[7] + 1}), [REBUILT, FOLD, INPUT], id="0.01"),
        pytest.param(lambda kept: kept.seen.rebuilt.pop(7), [REBUILT], id="rebuilt view lacks an account"),
        pytest.param(lambda kept: kept.seen.view.update({10**6: 0}), [REBUILT, FOLD, INPUT], id="account of nothing"),
        pytest.param(lambda kept: kept.seen.view_payments.update([min(kept.seen.made)]), [PAYMENTS], id="counted"),
        pytest.param(one_more, [ONCE, INPUT], id="twice in the log"),
        pytest.param(lambda kept: kept.folded.payments.pop(min(kept.seen.made)), [ONCE, PAYMENTS], id="lost"),
        pytest.param(lambda kept: kept.folded.payments.update([10**6]), [ONCE, PAYMENTS], id="made by nobody"),
        pytest.param(lambda kept: kept.seen.refused.pop(), [FATES], id="without a fate"),
        pytest.param(made_and_refused, [REFUSED, FATES], id="made and refused"),
        pytest.param(lambda kept: kept.folded.lowest_of.update({7: -1}), [OVERDRAWN], id="overdrawn"),
        pytest.param(lambda kept: vars(kept.folded.history).update(unjudged=1), [SERIALIZABLE], id="stale"),
        pytest.param(lambda kept: vars(kept.folded.history).update(judged=0), [SERIALIZABLE], id="none judged"),
        pytest.param(lambda kept: vars(kept.folded.history).update(judged=799), [SERIALIZABLE], id="one not judged"),
        pytest.param(replicas_of(HELD, Contents(0, 799, "abd"), HELD), [REPLICAS], id="other bytes"),
        pytest.param(replicas_of(HELD, Contents(0, 798, "abc"), HELD), [REPLICAS], id="one less"),
        pytest.param(replicas_of(HELD, HELD), [REPLICAS], id="a node not looked at"),
        pytest.param(replicas_of(), [REPLICAS], id="no node looked at"),
        pytest.param(grown, [REPLICAS], id="all lack the same"),
    ],
)
def test_what_went_wrong_is_found_by_the_checks_for_it(planted: Callable[[Kept], object], failed: list[str]) -> None:
    kept = Kept()
    planted(kept)
    assert set(kept.failed()) == set(failed)


def test_an_account_of_nothing_is_not_a_missing_one() -> None:
    kept = Kept()
    kept.seen.view[10**6] = 0
    details = [result.detail for result in verdicts(kept.book, kept.seen) if not result.holds]
    assert details == ["account 1000000: 0 and none"] * 3


def test_the_lowest_balance_is_one_that_there_was() -> None:
    kept = Kept(lambda payment: True)
    assert kept.folded.lowest == 50_000, "no payment was made: it is what the accounts were opened with"
    assert Folded().lowest is None
    kept.folded.balances.clear()
    kept.folded.lowest_of.clear()
    assert OVERDRAWN in kept.failed(), "no account was ever opened"


def test_a_balance_that_is_not_the_banks_is_found() -> None:
    kept = Kept()
    kept.book.bank_balances = {account: kept.folded.balances[account] for account in kept.book.payments_of}
    kept.book.bank_balances[7] += 10 * kept.book.payments_of[7] + 1
    assert [result.what for result in verdicts(kept.book, kept.seen) if not result.holds] == [
        "every final balance is the bank's own, to 0.10 per payment"
    ]
    kept.book.bank_balances = {10**6: 0}
    assert not verdicts(kept.book, kept.seen)[-1].holds, "an account that the bank has and we do not"


# ---------------------------------------------------------------------- the whole of it


async def without_spark(*_: object) -> SparkFindings:
    return SparkFindings(lacking="no Java here")


@pytest.mark.slow
def test_the_demo_runs_kills_a_node_and_every_check_holds(tmp_path: Path) -> None:
    day = tmp_path / "day"
    ended = run_polonaise(
        "demo", "bank", "--generate", 3000, "--output", day, within_s=300, environment={"COLUMNS": "160"}
    )
    said = output_of(ended)
    assert said.count("│ holds │") == CHECKS + CHECKS_ON_SPARK
    assert "FAILS" not in said
    assert "The bank on the log" in (day / "report.html").read_text()
    assert "3,000 on " in ended.stdout
    assert "storage 0 (process" in ended.stdout
    assert ended.stdout.count("with -9 after") == 2, "a teller, and a storage node"
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_demo_that_is_done_at_once_says_that_no_teller_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "DOWN_S", 0.0)
    said = StringIO()
    monkeypatch.setattr(demo, "_run_spark_jobs", without_spark)
    console = Console(file=said, width=160)
    assert asyncio.run(demo.run_bank(make_payments(1), 1, console, tmp_path / "day"))
    assert "no teller: all was done before" in said.getvalue()


@pytest.mark.slow
def test_the_demo_of_somebody_who_has_a_cluster_with_tls_runs_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, str(tmp_path / "of another cluster"))
    monkeypatch.setattr(demo, "_run_spark_jobs", without_spark)
    assert asyncio.run(demo.run_bank(make_payments(1), 1, Console(file=StringIO()), tmp_path / "day"))
    assert all(variable in os.environ for variable in VARIABLES.values())


@pytest.mark.slow
def test_a_planted_difference_fails_the_demo_and_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A view that forgets a hundredth of each account: the log is right, and the verdict is not."""
    from polonaise.cli import main

    class Forgetful(Accounts):
        def balances(self) -> dict[int, int]:
            return {account: balance - 1 for account, balance in super().balances().items()}

    monkeypatch.setattr(demo, "Accounts", Forgetful)
    monkeypatch.setattr(demo, "_run_spark_jobs", without_spark)
    monkeypatch.setenv("COLUMNS", "160")
    argv = ["polonaise", "demo", "bank", "--generate", "300", "--output", str(tmp_path / "day")]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitStatus.FAILED
    failing = [line for line in capsys.readouterr().out.splitlines() if "FAILS" in line]
    assert [what for what in (FOLD, INPUT) if any(what in line for line in failing)] == [FOLD, INPUT]
    assert len(failing) == 2


@pytest.mark.slow
def test_bad_rows_are_named_by_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from polonaise.cli import main

    path = tmp_path / "payments.csv"
    rows = [
        "1,7,1993-01-05,credit,cash,100,100,",
        "3,7,1993-01-05,cre[/foo]dit,cash,1,1,",
        "oops",
        "2,7,1993-01-06,debit,cash,150,-50,",
    ]
    path.write_text("trans_id,account_id,date,direction,operation,amount,balance,purpose\n" + "\n".join(rows) + "\n")
    monkeypatch.setattr(demo, "_run_spark_jobs", without_spark)
    monkeypatch.setenv("COLUMNS", "160")
    argv = ["polonaise", "demo", "bank", "--payments", str(path), "--output", str(tmp_path / "day")]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert not ended.value.code, said.out + said.err
    assert "not used: line 3: direction 'cre[/foo]dit' is neither" in said.out, "what a file says is no markup"
    assert "not used: line 4" in said.out
    assert "every final balance is the bank's own" in said.out
