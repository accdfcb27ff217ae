"""Spark's part after the day: archives the log, makes tables and a report, and audits the tellers' database by the log.

    python -m polonaise_proving.demo.sparkjobs LOG DATABASE DIRECTORY

Reads the log's last id and its balances, as `checks.fold` found them, from a line of standard input, and writes its
results to standard output, both as JSON. If its input ends before that, it ends at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from polonaise.errors import JavaMissing
from polonaise.pipelines.archive import HowToArchive, archive
from polonaise.pipelines.audit import AuditReport, audit_table
from polonaise.pipelines.job import job_session
from polonaise.pipelines.page import ReportPage
from polonaise.pipelines.page import ReportVerdict as Shown
from polonaise.pipelines.parquettarget import CURRENT
from polonaise.pipelines.report import HowToReport, report
from polonaise.pipelines.views import rebuild
from polonaise.spark.options import FRAGMENTS
from polonaise_proving.demo.bank import PARTITION
from polonaise_proving.demo.checks import DemoVerdict, SparkFindings
from polonaise_proving.demo.report import bank
from polonaise_proving.demo.views import accounts, balances, by_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polonaise.pipelines.snapshots import Snapshot


def tell_history(log: str, database: str, last: int, folded: Mapping[int, int], directory: Path) -> SparkFindings:
    """Archive the log, make the bank's tables from the archive, audit the tellers' database, and write the report.

    All that is written is in `directory` afterwards. `last` and `folded` are the log's last id and its balances, found
    without Spark. Raises what the jobs raise; `JavaMissing` before anything is done.
    """
    store = str(directory / "fragments")
    with job_session(None, "bank", {}) as spark:
        archived = archive(spark, log, store, HowToArchive(rest=True))
        archived_partition = archived.partitions[PARTITION]
        for view in (balances, by_kind):
            rebuild(spark, FRAGMENTS + store, view, f"parquet:{directory / view.name}")
        audit = audit_table(spark, log, accounts, database, marks_table="polonaise_marks")
        verdicts = [
            DemoVerdict(
                "the archive holds the whole log",
                archived_partition.last == last,
                f"up to {archived_partition.last:,} of {last:,} in {len(archived.fragments)} fragments",
            ),
            _same_balances(directory, folded),
            _audited(audit),
        ]
        page = _report(spark, FRAGMENTS + store, directory, verdicts)
    return SparkFindings(verdicts, str(page.absolute()))


def _same_balances(directory: Path, folded: Mapping[int, int]) -> DemoVerdict:
    """Compare the balances that Spark wrote, read here without Spark, with the fold, which was made without Spark."""
    table = pq.read_table(directory / balances.name / CURRENT, columns=["account", "balance"])
    spark_balances = dict(zip(table["account"].to_pylist(), table["balance"].to_pylist(), strict=True))
    different = sorted(a for a in spark_balances.keys() | folded.keys() if spark_balances.get(a) != folded.get(a))
    shown = ", ".join(f"account {a}: {spark_balances.get(a)} and {folded.get(a)}" for a in different[:3])
    return DemoVerdict(
        "the balances that Spark made of the archive equal the fold of the log",
        not different and table.num_rows == len(folded),
        shown or f"{table.num_rows:,} accounts, to the hundredth",
    )


def _audited(audit: AuditReport) -> DemoVerdict:
    comparison = audit.found
    named = "; ".join(map(str, comparison.differences[:3]))
    return DemoVerdict(
        "the tellers' database passes the audit against the log",
        audit.well and audit.behind == 0,
        named or f"{comparison.rows:,} accounts up to transaction {max(audit.marks.values()):,}, {audit.behind} behind",
    )


def _report(spark: SparkSession, cluster: str, directory: Path, verdicts: list[DemoVerdict]) -> Path:
    def sections(snapshot: Snapshot, page: ReportPage) -> Mapping[str, object]:
        page.section("Checks").verdicts([Shown(each.what, each.holds, each.detail) for each in verdicts])
        return bank(snapshot, page)

    how = HowToReport(title="The bank on the log", sections=sections)
    return report(spark, cluster, str(directory), how).page


def _end_with_input() -> None:
    """Wait for the end of standard input, and end this process: its parent is gone, and nobody waits for results."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    log, database, directory = sys.argv[1:]
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    balances = {int(account): balance for account, balance in request["balances"].items()}
    try:
        results = tell_history(log, database, request["last"], balances, Path(directory))
    except JavaMissing as error:
        results = SparkFindings(lacking=str(error))
    print(results.encode())  # noqa: T201 - to the process that has started this one


if __name__ == "__main__":
    main()
