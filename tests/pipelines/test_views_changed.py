"""A view that was changed: its table is left alone until it is made anew, whatever keeps it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polonaise.errors import ViewUnfit
from polonaise.pipelines.audit import audit_table
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.targetaddress import open_target
from polonaise.pipelines.targets import NewRows, Target
from polonaise.pipelines.views import follow, rebuild, update
from rigs.tableviews import READ, bank_log, more

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polonaise.blocking.log import Log

pytestmark = pytest.mark.slow

FEW = 10

changes = TableView("changes", "SELECT partition, transaction_id, account, amount FROM {log}", read=READ)
balances = TableView(
    "balances",
    "SELECT account, sum(amount) AS balance FROM {log} GROUP BY account",
    key=["account"],
    merge={"balance": "sum"},
    read=READ,
)
OTHER_TYPE = replace(
    changes, query="SELECT partition, transaction_id, cast(account AS string) AS account, amount FROM {log}"
)
MORE_COLUMNS = replace(changes, query="SELECT partition, transaction_id, account, amount, header FROM {log}")
OTHER_FORMULA = replace(balances, query=balances.query.replace("sum(amount)", "sum(amount * 100)"))
OTHER_FILTER = replace(changes, query=changes.query + " WHERE amount > 0")
MORE_KEYED_COLUMNS = replace(
    balances,
    query="SELECT account, sum(amount) AS balance, count(*) AS n FROM {log} GROUP BY account",
    merge={"balance": "sum", "n": "sum"},
)
CHANGED = [
    pytest.param(changes, OTHER_TYPE, "column account is int in the table and string in the view", id="other type"),
    pytest.param(changes, MORE_COLUMNS, "the view has a column header that the table lacks", id="more columns"),
    pytest.param(changes, OTHER_FILTER, "made by another query, key, merge or read of its view", id="other filter"),
    pytest.param(balances, OTHER_FORMULA, "made by another query, key, merge or read of its view", id="other formula"),
    pytest.param(balances, MORE_KEYED_COLUMNS, "the view has a column n that the table lacks", id="keyed, more"),
]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with bank_log(tmp_path / "log", FEW) as log:
        yield log


def opened(spark: SparkSession, table: str, view: TableView, log: Log) -> Target:
    return open_target(spark, table, view, log.cluster_key.hex())


def refused(spark: SparkSession, address: str, view: TableView, table: str, told: str) -> str:
    with pytest.raises(ViewUnfit, match=told) as error:
        update(spark, address, view, table)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.exhaustive("polonaise.pipelines", "polonaise.views")  # of changes
@pytest.mark.parametrize("table", ["parquet", "delta"], indirect=True)
@pytest.mark.parametrize(("view", "changed", "told"), CHANGED)
def test_files_of_another_definition_are_left_alone_until_they_are_made_anew(
    spark: SparkSession, log: Log, address: str, table: str, view: TableView, changed: TableView, told: str
) -> None:
    update(spark, address, view, table)
    more(log, FEW, 2)
    assert "rebuild it (rebuild(...) in Python, --rebuild on the command line)" in refused(
        spark, address, changed, table, told
    )
    assert audit_table(spark, address, view, table).behind == 4, "nothing was written"
    assert update(spark, address, view, table).transactions == 4, "the definition of before goes on"
    assert "--rebuild" in refused(spark, address, changed, table, told), "also when there is nothing new"
    rebuild(spark, address, changed, table)
    more(log, FEW + 2, 1)
    assert update(spark, address, changed, table).transactions == 2
    assert audit_table(spark, address, changed, table).well
    refused(spark, address, view, table, "can't be brought up to date")


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_a_delta_table_with_times_goes_on_and_says_what_differs(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    times = replace(changes, query="SELECT timestamp, array(timestamp) AS both, amount FROM {log}")
    update(spark, address, times, table)
    more(log, FEW, 1)
    later = replace(times, query=times.query + " WHERE amount > 0")
    refused(spark, address, later, table, "made by another query")
    as_text = replace(times, query=times.query.replace("array(timestamp)", "string(timestamp)"))
    refused(spark, address, as_text, table, r"column both is array<timestamp\w*> in the table and string in the view")
    assert update(spark, address, times, table).transactions == 2


@pytest.mark.parametrize("table", ["sqlite"], indirect=True)
def test_a_database_keeps_the_definition_and_its_table_keeps_its_columns(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    update(spark, address, balances, table)
    more(log, FEW, 2)
    assert "--rebuild" in refused(spark, address, OTHER_FORMULA, table, "made by another query")
    assert update(spark, address, balances, table).transactions == 4
    rebuild(spark, address, OTHER_FORMULA, table)
    more(log, FEW + 2, 1)
    assert update(spark, address, OTHER_FORMULA, table).transactions == 2
    assert audit_table(spark, address, OTHER_FORMULA, table).well
    drop = "has a column n that the table lacks; drop the tables balances, balances_marks and balances_definition"
    refused(spark, address, MORE_KEYED_COLUMNS, table, drop)
    with pytest.raises(ViewUnfit, match=drop):
        rebuild(spark, address, MORE_KEYED_COLUMNS, table)
    keyed_by_both = replace(OTHER_FORMULA, key=["account", "balance"], merge={})
    with pytest.raises(ViewUnfit, match=r"the key is \(account\) in the table and \(account, balance\) in the view"):
        rebuild(spark, address, keyed_by_both, table)
    assert audit_table(spark, address, OTHER_FORMULA, table).well, "nothing of that was written"


def test_whoever_looked_before_another_definition_was_there_changes_nothing(
    spark: SparkSession, log: Log, address: str, table: str
) -> None:
    commits = follow(spark, address, balances, table)
    next(commits)
    rebuild(spark, address, OTHER_FORMULA, table)  # the marks are the same then
    more(log, FEW, 1)
    with pytest.raises(ViewUnfit, match="made by another query"):
        next(commits)
    assert update(spark, address, OTHER_FORMULA, table).transactions == 2
    assert audit_table(spark, address, OTHER_FORMULA, table).well


def test_a_merge_that_comes_with_another_definition_is_no_merge(spark: SparkSession, log: Log, table: str) -> None:
    rows = spark.createDataFrame([(1, 1)], "account int, balance bigint")
    with (
        closing(opened(spark, table, balances, log)) as ours,
        closing(opened(spark, table, OTHER_FORMULA, log)) as theirs,
    ):
        for target in (ours, theirs):
            target.prepare(rows.schema)
            target.check()
        assert ours.merge(NewRows(rows), {}, {0: 3})
        assert not theirs.merge(NewRows(rows), {0: 3}, {0: 4})
        assert theirs.marks() == {0: 3}
        assert theirs.replace(NewRows(rows), {0: 3}, {0: 3})
        assert not ours.merge(NewRows(rows), {0: 3}, {0: 4})
        with ours.state() as held:
            assert (held.marks, [tuple(row) for row in held.rows.collect()]) == ({0: 3}, [(1, 1)])


def forget_definition(table: str, directory: Path) -> None:
    """As a table was that was made before definitions were kept."""
    if table.startswith("sqlite:"):
        with closing(sqlite3.connect(directory / "views.db")) as db, db:
            db.execute("DELETE FROM balances_definition")
    elif table.startswith("parquet:"):
        about = directory / "table" / "current" / "_polonaise.json"
        kept = json.loads(about.read_text())
        assert kept["columns"] == {"account": "int", "balance": "bigint"}
        about.write_text(json.dumps({name: kept[name] for name in ("view", "cluster", "high_water_marks")}))
    else:
        (version,) = (directory / "table" / "_delta_log").glob("*.json")
        lines = version.read_text().splitlines(keepends=True)
        version.write_text("".join(line for line in lines if "/definition" not in line))


def test_a_table_that_does_not_say_its_definition_is_made_anew(
    spark: SparkSession, log: Log, address: str, tmp_path: Path, table: str
) -> None:
    update(spark, address, balances, table)
    forget_definition(table, tmp_path)
    refused(spark, address, balances, table, "does not name the definition of its view.*--rebuild")
    assert audit_table(spark, address, balances, table).well, "an audit needs its marks only"
    rebuild(spark, address, balances, table)
    more(log, FEW, 1)
    assert update(spark, address, balances, table).transactions == 2


@pytest.mark.parametrize(("kind", "there"), [("parquet", "delta"), ("delta", "parquet")])
def test_a_new_table_is_not_made_among_the_files_of_something_else(
    spark: SparkSession, address: str, tmp_path: Path, kind: str, there: str
) -> None:
    rebuild(spark, address, balances, f"{there}:{tmp_path / 'table'}")
    store = tmp_path / "store"
    store.mkdir()
    (store / "_cluster.json").touch()
    for directory in (tmp_path / "table", store):
        before = sorted(directory.rglob("*"))
        for work in (rebuild, update):
            with pytest.raises(ViewUnfit, match="choose a new or empty directory"):
                work(spark, address, changes, f"{kind}:{directory}")
        assert sorted(directory.rglob("*")) == before
