"""A log of changes of accounts, and the expected contents of its views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polonaise.blocking
from polonaise.blocking.log import Log
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.targetaddress import open_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

READ = {"decoder": "json", "decoderSchema": "account int, amount bigint"}

balances = TableView(
    "balances",
    "SELECT account, sum(amount) AS balance, count(*) AS changes, max(amount) AS largest FROM {log} GROUP BY account",
    key=["account"],
    merge={"balance": "sum", "changes": "sum", "largest": "max"},
    read=READ,
)
changes = TableView("changes", lambda log: log.select("partition", "transaction_id", "account", "amount"), read=READ)

_COLUMNS = {
    "balances": "account int, balance bigint, changes bigint, largest bigint",
    "changes": "partition int, transaction_id bigint, account int, amount bigint",
}

ACCOUNTS = 7
COUNT = 100
"""The number of transactions of each partition."""
PARTITIONS = 2


def body(partition: int, id: int) -> tuple[int, int]:
    """Return the (account, amount) of a transaction."""
    return (id + partition) % ACCOUNTS, (id * 37) % 101 - 50


@contextmanager
def bank_log(directory: Path, count: int = COUNT) -> Iterator[Log]:
    """Yield a log with so many transactions in each partition, a few per batch. More can be appended meanwhile."""
    with polonaise.blocking.connect(f"embedded:{directory}?partitions={PARTITIONS}") as log:
        more(log, 0, count)
        yield log


def more(log: Log, first: int, count: int) -> None:
    """Append transactions `first` to `first + count - 1` of each partition."""
    for partition in range(PARTITIONS):
        for id in range(first, first + count):
            account, amount = body(partition, id)
            receipt = log.append(json.dumps({"account": account, "amount": amount}).encode(), partition)
            if id % 16 == 0:
                receipt.result(timeout=30)
        log.flush(partition, timeout=30)


def expected_balances(*counts: int) -> list[tuple[int, int, int, int]]:
    """Return the contents of `balances` after the first so many transactions of each partition."""
    found: dict[int, list[int]] = {}
    for partition, count in enumerate(counts):
        for account, amount in (body(partition, id) for id in range(count)):
            found.setdefault(account, []).append(amount)
    return sorted((account, sum(amounts), len(amounts), max(amounts)) for account, amounts in found.items())


def expected_changes(*counts: int) -> list[tuple[int, int, int, int]]:
    return [(partition, id, *body(partition, id)) for partition, count in enumerate(counts) for id in range(count)]


def schema_of(spark: SparkSession, view: TableView) -> StructType:
    """Return the columns of `balances` or `changes`."""
    return spark.createDataFrame([], _COLUMNS[view.name]).schema


def rows_in(spark: SparkSession, table: str, view: TableView, log: Log) -> list[tuple[Any, ...]]:
    with closing(open_target(spark, table, view, log.cluster_key.hex())) as target:
        target.prepare(schema_of(spark, view))
        with target.state() as held:
            return sorted(map(tuple, held.rows.collect()))
