"""The job report: its tables say what the log holds, its page tells of it, and the bank adds its own part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import polonaise
from polonaise.errors import BadOption, DiskFailed
from polonaise.pipelines.archive import HowToArchive, archive
from polonaise.pipelines.page import ReportPage
from polonaise.pipelines.report import HowToReport, report, sections_named
from polonaise.pipelines.snapshots import Snapshot
from polonaise_proving.demo.bank import OPENING, PAYMENT, encode_opening
from polonaise_proving.demo.payments import Book, Payment, make_payments, read_payments
from polonaise_proving.demo.report import bank, unusual_days
from rigs.demobank import balances_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


KINDS = ["fee", "salary", "salary", "cash", "salary"]
READ = {"decoder": "json", "decoderSchema": "account long, kind string"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log of two partitions: 0 holds 50 transactions of two headers, 1 nothing."""
    address = f"embedded:{tmp_path_factory.mktemp('report') / 'log'}?partitions=2"
    with polonaise.blocking.connect(address) as log:
        for number in range(50):
            body = json.dumps({"account": number % 7, "kind": KINDS[number % 5]}).encode()
            log.append(body, 0, header=number % 2).result(timeout=30)
    return address


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(directory / f"{name}.parquet").to_pylist()


@pytest.mark.slow
def test_the_tables_say_what_the_log_holds(spark: SparkSession, address: str, tmp_path: Path) -> None:
    found = report(
        spark, address, str(tmp_path), HowToReport(options=READ, period="day", keys=["kind", "account"], top=3)
    )
    (partition,) = rows(tmp_path, "partitions")
    with polonaise.blocking.connect(address) as log:
        bodies = [len(tx.data) for tx in log.read(0)]
    assert (partition["transactions"], partition["bytes"]) == (50, sum(bodies))
    assert (partition["first_id"], partition["last_id"], partition["clients"]) == (0, 49, 1)
    assert (found.transactions, found.bytes, found.spans) == (50, sum(bodies), {0: (0, 49), 1: (0, -1)})
    periods = rows(tmp_path, "periods")
    assert {row["header"] for row in periods} == {0, 1}
    assert sum(row["transactions"] for row in periods) == 50
    kinds = [row for row in rows(tmp_path, "top_values") if row["column"] == "kind"]
    assert [(row["value"], row["transactions"]) for row in kinds] == [("salary", 30), ("cash", 10), ("fee", 10)]
    page = found.page.read_text(encoding="utf-8")
    assert all(text in page for text in ("What the log holds", "salary", "Transactions per day"))


@pytest.mark.slow
def test_appends_that_were_refused_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    with polonaise.blocking.connect(address) as log:
        log.append(b"a", 0, changes=[polonaise.Change.set(b"k", b"1")]).result(timeout=30)
        for _ in range(3):
            refused = log.append(b"b", 0, expectations=[polonaise.Expectation.absent(b"k")])
            with pytest.raises(polonaise.PolonaiseError):
                refused.result(timeout=30)
        log.append(b"c", 0).result(timeout=30)
    report(spark, address, str(tmp_path / "out"))
    (partition,) = rows(tmp_path / "out", "partitions")
    assert (partition["transactions"], partition["refused"]) == (2, 3)
    page = tmp_path / "out" / "report.html"
    assert ">refused</th>" in page.read_text()
    report(spark, address, str(tmp_path / "out"), HowToReport(options={"Headers": "0"}))
    assert [row["refused"] for row in rows(tmp_path / "out", "partitions")] == [None]
    assert ">refused</th>" not in page.read_text()
    assert "Refused appends are not counted" in page.read_text()


@pytest.mark.slow
def test_fragments_alone_and_a_range_of_ids_are_enough(spark: SparkSession, address: str, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    archive(spark, address, store, HowToArchive(rest=True))
    how = HowToReport(options={"startingTransactions": '{"0": 10}', "endingTransactions": '{"0": 30}'}, period="hour")
    found = report(spark, f"fragments:{store}", str(tmp_path / "out"), how)
    assert found.spans == {0: (10, 29)}
    assert sum(row["transactions"] for row in rows(tmp_path / "out", "periods")) == 20


@pytest.mark.slow
def test_a_report_is_of_one_snapshot_and_an_application_adds_to_it(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    with polonaise.blocking.connect(address) as log:

        def sections(snapshot: Snapshot, page: ReportPage) -> dict[str, pa.Table]:
            before = snapshot.transactions
            log.append(b"late", 1).result(timeout=30)
            page.section("Our own").text("<not markup>")
            counted = snapshot.query("SELECT count(*) AS count FROM {log}")
            assert counted.to_pylist() == [{"count": before}]
            return {"ours": counted}

        found = report(spark, address, str(tmp_path), HowToReport(sections=sections))
    assert tmp_path / "ours.parquet" in found.tables
    assert "Our own" in found.page.read_text(encoding="utf-8")
    assert "&lt;not markup&gt;" in found.page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_invalid_arguments_are_refused(spark: SparkSession, address: str, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="second, minute, hour, day, month"):
        report(spark, address, str(tmp_path), HowToReport(period="fortnight"))
    with pytest.raises(BadOption, match="no column kind"):
        report(spark, address, str(tmp_path), HowToReport(keys=["kind"]))
    with pytest.raises(BadOption, match="module:function"):
        sections_named("polonaise_proving.demo:nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskFailed, match="can't be written"):
        report(spark, address, str(tmp_path / "file"))


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "bank-1993.csv"


def log_of(book: Book, address: str, payments: Sequence[Payment]) -> None:
    with polonaise.blocking.connect(address) as log:
        receipts = [log.append(encode_opening(*each), 0, header=OPENING) for each in book.opening.items()]
        for start in range(0, len(payments), 1_000):
            part = payments[start : start + 1_000]
            receipts += [log.append(payment.encode(), 0, header=PAYMENT) for payment in part]
            receipts[-1].result(timeout=60)


def table(directory: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(directory / f"{name}.parquet").to_pylist()


def last_balances(directory: Path) -> dict[int, int]:
    return {row["account"]: row["balance"] for row in table(directory, "balances")}


@pytest.mark.slow
def test_the_banks_report_is_the_fold_of_its_payments(spark: SparkSession, tmp_path: Path) -> None:
    book = make_payments(2_000, seed=5, accounts=60)
    log_of(book, f"embedded:{tmp_path / 'log'}", book.payments)
    found = report(spark, f"embedded:{tmp_path / 'log'}", str(tmp_path / "out"), HowToReport(sections=bank))
    expected = balances_of(book)
    touched = {account for payment in book.payments for account in payment.accounts}
    assert last_balances(tmp_path / "out") == {account: expected[account] for account in touched}
    months = table(tmp_path / "out", "payments_per_month")
    assert len({row["month"] for row in months}) == 12
    assert sum(row["amount"] for row in months) == sum(payment.amount for payment in book.payments)
    flows = {(row["from_bank"], row["to_bank"]): row["amount"] for row in table(tmp_path / "out", "flows")}
    salaries = [payment for payment in book.payments if payment.kind == "salary"]
    for other in ("AB", "CD", "EF", "GH"):
        assert flows[other, "this bank"] == sum(each.amount for each in salaries if each.bank == other)
    assert table(tmp_path / "out", "made_twice") == table(tmp_path / "out", "never_opened") == []
    page = found.page.read_text(encoding="utf-8")
    assert all(title in page for title in ("Volume per month", "Flows between banks", "Held on all accounts"))


@pytest.mark.slow
def test_what_is_out_of_the_ordinary_is_named(spark: SparkSession, tmp_path: Path) -> None:
    book = make_payments(300, seed=5, accounts=20)
    usual = [payment for payment in book.payments if payment.kind == "fee"]
    huge = Payment(10_001, 7, 0, 1_460 * 5_000, "fee", "1993-06-01")
    stranger = Payment(10_002, 0, 99, 100, "salary", "1993-06-01")
    payments = [*book.payments, huge, stranger, usual[0]]
    log_of(book, f"embedded:{tmp_path / 'log'}", payments)
    out = tmp_path / "out"
    found = report(spark, f"embedded:{tmp_path / 'log'}", str(out), HowToReport(sections=bank))
    assert [row["id"] for row in table(out, "unusual_payments")][:1] == [huge.id]
    assert [(row["id"], row["times"]) for row in table(out, "made_twice")] == [(usual[0].id, 2)]
    assert [row["account"] for row in table(out, "never_opened")] == [99]
    (lowest, *_) = table(out, "below_zero")
    assert (lowest["account"], lowest["lowest"]) == (7, min_balance(book, payments, 7))
    page = found.page.read_text(encoding="utf-8")
    assert f"payment {usual[0].id}" in page


def min_balance(book: Book, payments: Sequence[Payment], account: int) -> int:
    balance = lowest = book.opening[account]
    for payment in payments:
        if account in payment.accounts:
            balance += payment.change(account)
            lowest = min(lowest, balance)
    return lowest


@pytest.mark.slow
def test_the_real_bank_of_1993(spark: SparkSession, tmp_path: Path) -> None:
    if not REAL.exists():
        pytest.skip("the bank's file is not beside this repository")
    book = read_payments(REAL)
    log_of(book, f"embedded:{tmp_path / 'log'}", book.payments)
    report(spark, f"embedded:{tmp_path / 'log'}", str(tmp_path / "out"), HowToReport(sections=bank))
    balances = last_balances(tmp_path / "out")
    assert len(balances) == 1_111
    assert all(abs(balances[account] - told) <= 100 for account, told in book.bank_balances.items())
    assert {row["account"] for row in table(tmp_path / "out", "below_zero")} == {
        account for account in balances if min_balance(book, book.payments, account) < 0
    }
    assert len({row["to_bank"] for row in table(tmp_path / "out", "flows")}) > 10


def test_a_day_far_from_the_usual_is_told_and_a_quiet_year_has_none() -> None:
    days = [(date(2026, 1, 1) + timedelta(days=number), 100 + number % 7) for number in range(60)]
    assert unusual_days(days) == []
    days[30] = (days[30][0], 400)
    days[40] = (days[40][0], 3)
    assert [(day, count) for day, count, _ in unusual_days(days)] == [days[30], days[40]]
    growing = [(day, 10 * number) for number, (day, _) in enumerate(days)]
    assert unusual_days(growing) == unusual_days([]) == []
