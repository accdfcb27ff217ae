"""The log as views and audits read it: ranges of ids as DataFrames, from servers and fragments, or fragments alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from polonaise.errors import BadOption, BeyondLog, ClientAhead
from polonaise.fragments.objects import footer_of
from polonaise.pipelines.logs import full_address, open_log, tasks_address
from polonaise.spark import clusters, query
from polonaise.spark.options import FRAGMENTS, absolute, microseconds, read_options
from polonaise.spark.queryhistory import QueryHistory
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Marks = Mapping[PartitionId, TransactionId]
"""For each partition, the last id that counts; -1 for none."""

_WAIT_S: Final = 1.0
_STORE_WAIT_S: Final = 5.0
"""Seconds between two looks at a store of fragments, which does not tell when it grows."""


@dataclass(frozen=True)
class Until:
    """The end of what a job reads of the log; by default everything that is committed when it begins."""

    ids: Marks | None = None
    """Everything up to these ids, one of each partition."""
    time: datetime | None = None
    """Everything that was committed up to this time, which needs a time zone."""

    def __post_init__(self) -> None:
        if self.ids is not None and self.time is not None:
            raise BadOption("up to ids, or up to a time: say one of them")
        if self.time is not None and self.time.tzinfo is None:
            raise BadOption(f"{self.time} has no time zone: say which, such as datetime(…, tzinfo=UTC)")


EVERYTHING: Final = Until()


class LogSource:
    """One log, or store of fragments, as a source. Made by `open_source`."""

    def __init__(self, address: str, fragments: str | None, cluster: str) -> None:
        self._given = {"cluster": address} | ({} if fragments is None else {"fragments": fragments})
        self.cluster = cluster
        """The cluster key in hexadecimal."""

    def marks(self, read: Mapping[str, str], until: Until = EVERYTHING) -> dict[PartitionId, TransactionId]:
        """Return the last id of each partition that a query with these options of the source reads, up to `until`.

        Raises `BadOption` for ids of other partitions than the query's, `BeyondLog` for ids that are not committed.
        """
        options = read_options({**self._given, **read})
        if until.time is not None:
            options = replace(options, ending_time_us=microseconds(until.time + timedelta(microseconds=1)))
        found = {partition: span.last for partition, span in QueryHistory(options).wanted().items()}
        if until.ids is None:
            return found
        if set(until.ids) != set(found):
            raise BadOption(f"ids of partitions {sorted(until.ids)}, and {sorted(found)} are read: name one of each")
        for partition, id in until.ids.items():
            if not NO_TRANSACTION <= id <= found[partition]:
                raise BeyondLog(f"partition {partition} is committed up to {found[partition]}: there is no {id}")
        return dict(until.ids)

    def check_not_ahead(self, view: str, marks: Marks, read: Mapping[str, str]) -> None:
        """Raise `ClientAhead` for a view's table that holds more than is committed now."""
        committed = self.marks(read)
        for partition, mark in marks.items():
            if mark > committed.get(partition, mark):
                raise ClientAhead(
                    f"the table of view {view} is made up to {mark} of partition {partition}, and the log there ends "
                    f"at {committed[partition]}: it is of another log, or the log was restored from a backup; compare "
                    "them, then rebuild the table"
                )

    def frame(self, spark: SparkSession, read: Mapping[str, str], after: Marks, upto: Marks) -> DataFrame:
        """Return the transactions above `after` and up to `upto`, of the partitions of `upto`."""
        starts = {str(partition): after.get(partition, NO_TRANSACTION) + 1 for partition in upto}
        ends = {str(partition): id + 1 for partition, id in upto.items()}
        options = {
            **read,
            **{name: value for name, value in self._given.items() if name != "cluster"},
            "partitions": ",".join(map(str, sorted(upto))),
            "startingTransactions": json.dumps(starts),
            "endingTransactions": json.dumps(ends),
        }
        return query.read(spark, self._given["cluster"], **options)

    def wait_beyond(self, marks: Marks) -> None:
        """Return when there is more than `marks`, and from time to time: there may be a new partition."""
        history = QueryHistory(read_options(self._given))
        if history.log is None:
            time.sleep(_STORE_WAIT_S)
        else:
            history.wait_beyond({partition: id + 1 for partition, id in marks.items()}, _WAIT_S)


def check_address(address: str) -> None:
    """Check a log's address without opening it. Raises what `full_address` raises."""
    if not address.startswith(FRAGMENTS):
        full_address(address)


@contextmanager
def open_source(address: str, fragments: str | None = None) -> Iterator[LogSource]:
    """Open the log at an address (`embedded:PATH`, `file:PATH`), with or without a store of its fragments, or a store
    alone (`fragments:URL`).

    An embedded log that nobody hosts is hosted here meanwhile. Raises what `connect` raises.
    """
    if address.startswith(FRAGMENTS):
        if fragments is not None:
            raise BadOption("the store of fragments is said twice: once in the address, fragments:URL")
        url = absolute(address.removeprefix(FRAGMENTS))
        yield LogSource(FRAGMENTS + url, None, _cluster_of(url))
        return
    full = full_address(address)
    with open_log(full) as log:
        yield LogSource(tasks_address(full), None if fragments is None else absolute(fragments), log.cluster_key.hex())


def _cluster_of(url: str) -> str:
    store = clusters.store_at(url)
    history = QueryHistory(read_options({"cluster": FRAGMENTS + url}))
    name, size = next(iter(history.fragments(history.partitions[0]).items()))
    return clusters.wait(lambda: footer_of(store, name, size)).cluster_key.hex()
