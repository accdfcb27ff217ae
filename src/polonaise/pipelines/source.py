"""The log of a view or its audit: opened with or without its fragments, or fragments alone; and up to where to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from polonaise.errors import BadOption
from polonaise.node.addresses import absolute_store
from polonaise.pipelines.job import full_address, open_log, tasks_address
from polonaise.redaction import redacted_repr
from polonaise.spark.options import FRAGMENTS, read_options
from polonaise.spark.queryhistory import QueryHistory
from polonaise.terms import PartitionId, TransactionId

Marks = Mapping[PartitionId, TransactionId]
"""For each partition, the last id that is in a table or is to be read; -1 for none."""


@dataclass(frozen=True)
class Until:
    """The end of what a job reads of the log; by default everything that is committed when it begins. Raises
    `BadOption` for both ids and a time, and for a time without a zone."""

    ids: Marks | None = None
    """The last id to read of each partition that the job reads; None for no such limit."""
    time: datetime | timedelta | None = None
    """The commit time up to which transactions are read, itself included, with its zone; or how long ago that is, by
    the clock of a server or, of a store alone, of this machine. None for no limit."""

    def __post_init__(self) -> None:
        if self.ids is not None and self.time is not None:
            raise BadOption("Until has both ids and a time: give one of them")
        if isinstance(self.time, datetime) and self.time.tzinfo is None:
            raise BadOption(f"{self.time} has no time zone: give it one, such as datetime(…, tzinfo=UTC)")


EVERYTHING: Final = Until()


@redacted_repr
class LogSource(NamedTuple):
    """One log, or store of fragments. Made by `open_source`."""

    address: str
    """The value of the option `cluster` of queries that tasks run."""
    options: Mapping[str, str]
    """Other options of these queries: the key that the log has to have, and the store of fragments beside a log."""
    cluster: str
    """The log's key in hexadecimal (`Log.log_key`); for a store alone, the cluster's."""


def check_address(address: str) -> None:
    """Check a log's address without opening it. Raises what `full_address` raises."""
    if not address.startswith(FRAGMENTS):
        full_address(address)


@contextmanager
def open_source(address: str, fragments: str | None = None) -> Iterator[LogSource]:
    """Open a log, with or without a store of its fragments, or such a store alone (`fragments:URL`). An embedded log
    that nobody hosts is hosted here meanwhile. Raises what `full_address` and `connect` raise, `BadOption` for a store
    that is given twice, and for a store alone `NotFound` if it does not exist, `BadOption` if it is empty, and what
    reading its first footer raises."""
    if address.startswith(FRAGMENTS):
        if fragments is not None:
            raise BadOption("the store of fragments is given twice: the address fragments:URL names it, too")
        url = absolute_store(address.removeprefix(FRAGMENTS))
        key = _cluster_of(url)
        yield LogSource(FRAGMENTS + url, {"logKey": key}, key)
        return
    full = full_address(address)
    with open_log(full) as log:
        key = log.log_key.hex()
        store = {} if fragments is None else {"fragments": absolute_store(fragments)}
        yield LogSource(tasks_address(full), {"logKey": key, **store}, key)


def _cluster_of(url: str) -> str:
    history = QueryHistory(read_options({"cluster": FRAGMENTS + url}))
    if history.cluster_key is None:
        raise BadOption(f"{history.store} holds no fragments: mount what belongs there, or correct its address")
    return history.cluster_key.hex()
