"""After the day: the log becomes an archive, tables and a report on Spark, and the tellers' view is audited by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from polonaise.demo.bank import PARTITION
from polonaise.demo.checks import Seen, Verdict
from polonaise.demo.report import bank
from polonaise.demo.views import accounts, balances, by_kind
from polonaise.pipelines.archive import HowToArchive, archive
from polonaise.pipelines.audit import AuditReport, audit_table
from polonaise.pipelines.page import Page
from polonaise.pipelines.page import Verdict as Shown
from polonaise.pipelines.parquet import CURRENT
from polonaise.pipelines.report import HowToReport, report
from polonaise.pipelines.sessions import job_session
from polonaise.pipelines.views import rebuild
from polonaise.spark.options import FRAGMENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polonaise.pipelines.snapshots import Snapshot


@dataclass(frozen=True)
class History:
    """What Spark has made of the log, and where it is."""

    directory: Path
    page: Path
    verdicts: list[Verdict]


def tell_history(log: str, database: str, seen: Seen, directory: Path) -> History:
    """Archive the log, make the bank's tables of the archive, audit the tellers' database, and write the report.

    All of it lies in `directory` afterwards. Raises what the jobs raise; `JavaMissing` before anything is done.
    """
    store = str(directory / "fragments")
    with job_session(None, "bank", {}) as spark:
        archived = archive(spark, log, store, HowToArchive(rest=True))
        held = archived.partitions[PARTITION]
        for view in (balances, by_kind):
            rebuild(spark, FRAGMENTS + store, view, f"parquet:{directory / view.name}")
        audit = audit_table(spark, log, accounts, database, marks_table="polonaise_marks")
        verdicts = [
            Verdict(
                "the archive holds the whole log",
                held.last == seen.folded.last,
                f"up to {held.last:,} of {seen.folded.last:,} in {len(archived.fragments)} fragments",
            ),
            _same_balances(directory, seen.folded.balances),
            _audited(audit),
        ]
        page = _report(spark, FRAGMENTS + store, directory, verdicts)
    return History(directory, page, verdicts)


def _same_balances(directory: Path, folded: Mapping[int, int]) -> Verdict:
    """The table that Spark wrote, read without Spark, against the fold that knows neither."""
    table = pq.read_table(directory / balances.name / CURRENT, columns=["account", "balance"])
    made = dict(zip(table["account"].to_pylist(), table["balance"].to_pylist(), strict=True))
    different = sorted(a for a in made.keys() | folded.keys() if made.get(a) != folded.get(a))
    shown = ", ".join(f"account {a}: {made.get(a)} and {folded.get(a)}" for a in different[:3])
    return Verdict(
        "the balances that Spark made of the archive equal the fold of the log",
        not different and table.num_rows == len(folded),
        shown or f"{table.num_rows:,} accounts, to the hundredth",
    )


def _audited(audit: AuditReport) -> Verdict:
    found = audit.found
    named = "; ".join(map(str, found.differences[:3]))
    return Verdict(
        "the tellers' database passes the audit against the log",
        audit.well and audit.behind == 0,
        named or f"{found.rows:,} accounts up to transaction {max(audit.marks.values()):,}, {audit.behind} behind",
    )


def _report(spark: SparkSession, cluster: str, directory: Path, verdicts: list[Verdict]) -> Path:
    def sections(snapshot: Snapshot, page: Page) -> Mapping[str, object]:
        page.section("Checks").verdicts([Shown(each.what, each.holds, each.detail) for each in verdicts])
        return bank(snapshot, page)

    how = HowToReport(title="The bank on the log", sections=sections)
    return report(spark, cluster, str(directory), how).page
