"""The job audit: what was planted in a table, or in a copy of the log, is found and named."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import polonaise
from polonaise.errors import BadOption, ClientAhead, NotFound, ViewUnfit
from polonaise.fragments.store import open_store
from polonaise.pipelines.audit import audit_table
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.logaudit import audit_log
from polonaise.pipelines.source import Until
from polonaise.pipelines.views import update
from rigs.databases import execute
from rigs.fragments import batches_of, named_fragment
from rigs.restoring import archived
from rigs.storagefiles import flip
from rigs.tableviews import COUNT, balances, bank_log, changes, expected_balances, more

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polonaise.blocking.log import Log

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audited") / "log"


@pytest.fixture(scope="module")
def log(directory: Path) -> Iterator[Log]:
    with bank_log(directory) as log:
        yield log


@pytest.fixture
def address(directory: Path, log: Log) -> str:
    return f"embedded:{directory}"


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "pooled"])
def table(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession, address: str) -> str:
    """A database with the table of balances, up to date."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'bank.db'}"
    else:
        url = str(request.getfixturevalue(f"{request.param}_url"))
    update(spark, address, balances, url)
    return url


@pytest.mark.exhaustive  # of kinds of tables
def test_a_table_that_is_the_fold_of_the_log_is_well(spark: SparkSession, address: str, table: str) -> None:
    report = audit_table(spark, address, balances, table)
    assert report.well
    assert (report.marks, report.behind) == ({0: COUNT - 1, 1: COUNT - 1}, 0)
    assert (report.found.rows, report.found.rows_expected) == (7, 7)
    total = sum(row[1] for row in expected_balances(COUNT, COUNT))
    assert report.found.sums["balance"] == (total, total)


@pytest.mark.exhaustive  # of kinds of tables
def test_a_cent_too_much_a_dropped_row_and_an_extra_one_are_found_and_named(
    spark: SparkSession, address: str, table: str
) -> None:
    right = {account: balance for account, balance, *_ in expected_balances(COUNT, COUNT)}
    execute(
        table,
        "UPDATE balances SET balance = balance + 1 WHERE account = 3",
        "DELETE FROM balances WHERE account = 5",
        "INSERT INTO balances VALUES (77, 10, 1, 1)",
    )
    report = audit_table(spark, address, balances, table)
    assert not report.well
    assert report.found.totals == {"different": 1, "extra": 1, "missing": 1}
    assert [str(each) for each in report.found.differences] == [
        f"different: account 3: balance is {right[3] + 1} instead of {right[3]}",
        "missing: account 5: 0 rows instead of 1",
        "extra: account 77: 1 row instead of 0",
    ]
    there, expected = report.found.sums["balance"]
    assert there == expected + 1 - right[5] + 10


def test_a_doubled_row_is_found_and_named(spark: SparkSession, address: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    update(spark, address, changes, url)
    execute(url, 'INSERT INTO changes SELECT * FROM changes WHERE "partition" = 1 AND transaction_id = 42')
    found = audit_table(spark, address, changes, url).found
    assert found.totals == {"repeated": 1}
    (named,) = found.differences
    assert (named.rows, named.rows_expected) == (2, 1)
    assert (named.key["partition"], named.key["transaction_id"]) == (1, 42)
    assert (found.rows, found.rows_expected) == (2 * COUNT + 1, 2 * COUNT)


@pytest.mark.exhaustive("polonaise.pipelines")  # of kinds of tables
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_difference_in_a_lake_table_is_found_and_named(
    spark: SparkSession, address: str, tmp_path: Path, kind: str
) -> None:
    table = f"{kind}:{tmp_path / 'lake'}"
    update(spark, address, balances, table)
    assert audit_table(spark, address, balances, table).well
    _plant_in_lake(kind, tmp_path / "lake")
    found = audit_table(spark, address, balances, table).found
    assert found.totals == {"different": 1, "missing": 1, "repeated": 1}
    assert [(each.kind, each.key["account"]) for each in found.differences] == [
        ("different", 1), ("missing", 2), ("repeated", 4),
    ]  # fmt: skip


def _plant_in_lake(kind: str, directory: Path) -> None:
    if kind == "parquet":
        version = (directory / "current").resolve()
        files = list(version.glob("*.parquet"))
        rows = pa.concat_tables([pq.read_table(file) for file in files])
        for file in [*files, *version.glob(".*.crc")]:
            file.unlink()
        pq.write_table(_planted(rows), version / "part-0.parquet")
        return
    import deltalake

    rows = deltalake.DeltaTable(str(directory)).to_pyarrow_table()
    deltalake.write_deltalake(str(directory), _planted(rows), mode="overwrite")


def _planted(rows: pa.Table) -> pa.Table:
    """A cent more in account 1, account 2 dropped, account 4 twice."""
    cent = pa.array([int(account == 1) for account in rows["account"].to_pylist()], pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("balance"), "balance", pc.add(rows["balance"], cent))
    kept = rows.filter(pc.not_equal(rows["account"], 2))
    return pa.concat_tables([kept, rows.filter(pc.equal(rows["account"], 4))])


def test_somebody_elses_directory_is_audited_and_nothing_is_made_in_it(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    lake, everything = tmp_path / "lake", Until(ids={0: COUNT - 1, 1: COUNT - 1})
    lake.mkdir()
    names = ("account", "balance", "changes", "largest")
    rows = pa.table(dict(zip(names, zip(*expected_balances(COUNT, COUNT), strict=True), strict=True)))
    with pytest.raises(ViewUnfit, match=f"no table in {lake}: Spark finds no Parquet files there"):
        audit_table(spark, address, balances, f"parquet:{lake}", until=everything)
    assert list(lake.iterdir()) == []
    pq.write_table(rows, lake / "rows.parquet")
    assert audit_table(spark, address, balances, f"parquet:{lake}", until=everything).well
    with pytest.raises(ViewUnfit, match=f"no view's table in {lake}"):
        audit_table(spark, address, balances, f"parquet:{lake}")
    assert [file.name for file in lake.iterdir()] == ["rows.parquet"]


@pytest.mark.exhaustive  # of kinds of tables
def test_only_so_many_are_named_and_all_are_counted(spark: SparkSession, address: str, table: str) -> None:
    execute(table, "UPDATE balances SET changes = 0")
    found = audit_table(spark, address, balances, table, named_max=2).found
    assert found.totals == {"different": 7}
    assert [each.key["account"] for each in found.differences] == [0, 1]


def test_a_table_that_lags_is_compared_up_to_where_it_is(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    with bank_log(tmp_path / "log", 20) as own:
        update(spark, f"embedded:{tmp_path / 'log'}", balances, url)
        more(own, 20, 5)
        report = audit_table(spark, f"embedded:{tmp_path / 'log'}", balances, url)
    assert report.well
    assert (report.marks, report.behind) == ({0: 19, 1: 19}, 10)


def test_an_applications_own_table_is_audited_by_its_own_marks(
    spark: SparkSession, log: Log, address: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    rows = ", ".join(f"({account}, {balance})" for account, balance, *_ in expected_balances(40, 30))
    execute(
        url,
        "CREATE TABLE accounts (account INTEGER, balance BIGINT, note TEXT)",
        f"INSERT INTO accounts (account, balance) VALUES {rows}",
        "CREATE TABLE polonaise_marks (partition INTEGER PRIMARY KEY, high_water_mark BIGINT, cluster VARCHAR(32))",
        f"INSERT INTO polonaise_marks VALUES (0, 39, '{log.cluster_key.hex()}'), (1, 29, '')",
    )
    accounts = TableView(
        "accounts", "SELECT account, amount AS balance FROM {log}", ["account"], {"balance": "sum"}, balances.read
    )
    assert audit_table(spark, address, accounts, url, marks_table="polonaise_marks").well
    assert audit_table(spark, address, accounts, url, until=Until(ids={0: 39, 1: 29})).well
    assert not audit_table(spark, address, accounts, url, until=Until(ids={0: 40, 1: 29})).well
    with pytest.raises(ViewUnfit, match="no table accounts_marks of high-water marks"):
        audit_table(spark, address, accounts, url)
    with pytest.raises(BadOption, match="give one of them"):
        audit_table(spark, address, accounts, url, marks_table="m", until=Until(ids={0: 39, 1: 29}))
    execute(url, "UPDATE polonaise_marks SET high_water_mark = 500 WHERE partition = 0")
    with pytest.raises(ClientAhead):
        audit_table(spark, address, accounts, url, marks_table="polonaise_marks")
    execute(url, "UPDATE accounts SET balance = 'much' WHERE account = 1")
    with pytest.raises(ViewUnfit, match="column balance holds values that are not int64, such as 'much'"):
        audit_table(spark, address, accounts, url, marks_table="polonaise_marks")


# ------------------------------------------------------------------ the log itself


@pytest.fixture
def copied(log: Log, address: str, directory: Path, tmp_path: Path) -> Path:
    """A store with the whole log in several fragments."""

    async def write() -> None:
        async with polonaise.connect(address) as reading:
            await archived(reading, open_store(str(tmp_path / "store")), fragment_bytes=2_000)

    asyncio.run(write())
    return tmp_path / "store"


def test_every_copy_of_a_whole_log_is_the_same(
    spark: SparkSession, log: Log, address: str, directory: Path, copied: Path
) -> None:
    report = audit_log(spark, address, fragments=str(copied), storage=[str(directory / "storage-0")])
    assert report.troubles == []
    for partition in report.partitions:
        assert partition.committed == COUNT - 1
        served, archived, stored = partition.copies
        assert served.digest == archived.digest == stored.digest
        assert served.transactions == archived.transactions == stored.transactions == COUNT


def test_a_lost_and_a_damaged_fragment_are_named(spark: SparkSession, address: str, copied: Path) -> None:
    of_zero, of_one = (sorted((copied / str(partition)).glob("*.parquet")) for partition in (0, 1))
    assert min(len(of_zero), len(of_one)) > 2
    of_zero[1].unlink()
    flip(of_one[1], 400)
    report = audit_log(spark, address, fragments=str(copied))
    assert not report.well
    lost, damaged = report.partitions
    first = int(of_zero[1].name[:20])
    assert any(f"no good fragment holds {first} to" in each for each in lost.troubles)
    assert any(of_one[1].name in each for each in damaged.troubles)
    assert [each.troubles for each in (lost.copies[0], damaged.copies[0])] == [(), ()], "the servers' copy is well"


def test_fragments_of_another_history_are_a_fork(spark: SparkSession, log: Log, address: str, tmp_path: Path) -> None:
    rows = [(1, 1, number, 0, b"another history", -1, []) for number in range(30)]
    name, raw = named_fragment(batches_of([(rows, 1, 1, 1, False, False)], partition=0), log.cluster_key)
    (tmp_path / "store" / "0").mkdir(parents=True)
    (tmp_path / "store" / name.path).write_bytes(raw)
    report = audit_log(spark, address, fragments=str(tmp_path / "store"))
    assert report.troubles == [
        f"partition 0, fragments in {tmp_path / 'store'}: the batch from 0 is another one than the servers': a fork"
    ]


def test_a_store_that_is_not_there_or_holds_nothing_is_refused(
    spark: SparkSession, log: Log, address: str, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="typo"):
        audit_log(spark, address, fragments=str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadOption, match="empty holds no fragments"):
        audit_log(spark, address, fragments=str(tmp_path / "empty"))


def test_a_damaged_replica_is_named(
    spark: SparkSession, log: Log, address: str, directory: Path, tmp_path: Path
) -> None:
    replica = shutil.copytree(directory / "storage-0", tmp_path / "replica")
    (segment,) = (replica / "1").glob("*.seq")
    flip(segment, segment.stat().st_size // 2)
    report = audit_log(spark, address, storage=[str(replica)])
    (trouble,) = report.troubles
    assert trouble.startswith(f"partition 1, storage node {replica}: {segment}:")
    copy = report.partitions[1].copies[1]
    assert 0 < copy.last < COUNT - 1, "what is before the damage is well"
    assert copy.behind == COUNT - 1 - copy.last
    with pytest.raises(NotFound):
        audit_log(spark, address, storage=[str(tmp_path / "nowhere")])
