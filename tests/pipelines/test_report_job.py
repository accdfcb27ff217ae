"""The job report: its tables say what the log holds, and its page tells of it."""

from __future__ import annotations

import json
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

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


def test_fragments_alone_and_a_range_of_ids_are_enough(spark: SparkSession, address: str, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    archive(spark, address, store, HowToArchive(rest=True))
    how = HowToReport(options={"startingTransactions": '{"0": 10}', "endingTransactions": '{"0": 30}'}, period="hour")
    found = report(spark, f"fragments:{store}", str(tmp_path / "out"), how)
    assert found.spans == {0: (10, 29)}
    assert sum(row["transactions"] for row in rows(tmp_path / "out", "periods")) == 20


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
