"""The job archive: write what is committed and not archived yet as fragments, about one in each of Spark's tasks.

`polonaise.admin.archive` does the same without Spark, by the same plan and the same writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polonaise
from polonaise.admin.archive import batch_left_out, batches_of, check_may_begin, missing_in, own_fragments_of
from polonaise.admin.logs import time_by
from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import BadOption, BeyondLog
from polonaise.fragments.mark import is_marked, unmarked
from polonaise.fragments.objects import ArchivedFragment, fragments_of, write_fragments
from polonaise.fragments.protocol.coverage import FRAGMENT_BYTES, Span, archived_up_to, spans_to_write
from polonaise.fragments.store import ObstoreStore, open_store, unmade_on_failure
from polonaise.node.addresses import absolute_store, check_no_topic
from polonaise.pipelines.job import full_address, open_log, tasks_address
from polonaise.pipelines.runs import JobProgress, Silence
from polonaise.pipelines.tasks import run_tasks
from polonaise.redaction import redacted_address, redacted_repr
from polonaise.spark import clusters
from polonaise.spark.options import microseconds
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polonaise.blocking.log import Log
    from polonaise.fragments.protocol.names import FragmentName
    from polonaise.pipelines.deltaarchive import Registered

_TIMEOUT_S: Final = 60.0
"""Seconds that a request to the log may take, by default."""


@dataclass(frozen=True)
class HowToArchive:
    """Options of the job: what to archive, and up to where."""

    partitions: str = "all"
    """Partitions of the log itself to archive, none of topics: `all`, `3` or `0-6,9`."""
    fragment_bytes: int = FRAGMENT_BYTES
    """Bytes of batches in a fragment, before Parquet makes them smaller; most have half of this or more. A task holds
    one or two fragments in memory."""
    rest: bool = False
    """Whether to archive also what does not fill a fragment yet."""
    until: Mapping[PartitionId, TransactionId] | None = None
    """The last id to archive of each partition, for exactly those that are archived; None for no limit. A batch that
    ends above it is left out whole."""
    until_time: datetime | timedelta | None = None
    """Archive what was committed at this time or before, or so long ago by a server's clock, besides own transactions
    before the next one of an application. Needs a time zone. None for no limit."""
    delta: bool = False
    """Whether to keep the fragments also as a Delta table, with a version for each run that adds some."""
    timeout_s: float = _TIMEOUT_S
    """Seconds that each request to the log may take."""


class ArchivedPartition(NamedTuple):
    """The result of a run for one partition."""

    partition: PartitionId
    limit: TransactionId
    """The last id that was to be archived: by `until` or `until_time`, or else the committed high-water mark."""
    last: TransactionId
    """The id up to which everything is in fragments after the run; -1 for nothing."""
    fragments: int
    """Number of fragments that this run wrote, or found as the same objects."""
    transactions: int
    """In these fragments."""
    bytes: int
    """Size of these fragments in the store, in bytes."""
    batch_left_out: Span | None = None
    """The batch that was left out whole because it begins at or below the id in `until` and ends above that id."""
    missing: tuple[Span, ...] = ()
    """Ids that were in no fragment before this run, although later ids were. The run has archived them."""

    def fields(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "missing": [span._asdict() for span in self.missing],
            "batch_left_out": None if self.batch_left_out is None else self.batch_left_out._asdict(),
        }


@redacted_repr
@dataclass(frozen=True)
class ArchiveReport:
    """The result of a run. `well` is always true: a fault is raised."""

    store: str
    partitions: tuple[ArchivedPartition, ...]
    fragments: tuple[ArchivedFragment, ...]
    """The fragments that this run wrote, or found in the store, each verified; by partition and id."""
    delta: Registered | None = None
    """The state of the Delta table; None unless the run was to keep one."""
    well: ClassVar = True

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "store": redacted_address(self.store),
            "partitions": [each.fields() for each in self.partitions],
            "fragments": [{"path": each.fragment.path, "bytes": each.bytes} for each in self.fragments],
        }
        if self.delta is not None:
            version, added, overlapping = self.delta
            left_out = [name.path for name in overlapping]
            fields["delta"] = {"version": version, "added": added, "overlapping": left_out}
        return fields


def archive(
    spark: SparkSession,
    address: str,
    store: str,
    how: HowToArchive | None = None,
    *,
    progress: JobProgress | None = None,
) -> ArchiveReport:
    """Archive what is committed and not in the store yet; `progress` counts tasks, most of which write one fragment.

    May be killed at any time and run again, also by several at once, and beside `polonaise archive run`: what is
    written twice is the same object, or overlaps.

    Raises `BadOption` and `UnknownPartition` for invalid options, `BadOption` for the address of a topic, whose
    partitions only `polonaise archive run` archives, `BeyondLog` for an `until` that is not committed, `NotInitialized`
    for an embedded log that does not exist, `ExtraMissing` for `delta` without delta-rs, what `check_may_begin` and
    `own_fragments_of` raise, such as for a store of another log, and what reading, Spark and the store raise.
    """
    how, progress, url = how or HowToArchive(), progress or Silence(), absolute_store(store)
    if how.delta:
        from polonaise.pipelines.deltaarchive import register  # raises `ExtraMissing`, before anything is written
    if how.until is not None and how.until_time is not None:
        raise BadOption("until and until_time are both given: give one of them")
    address = full_address(address)
    with open_log(address) as log:
        fragment_store = clusters.store_at(url, make=True)
        with unmade_on_failure(fragment_store):
            limits, before = _begun(log, fragment_store, how)
        tasks = [
            each for number in limits for each in _plan(log, url, address, number, limits[number], before[number], how)
        ]
        written = [each for some in run_tasks(spark, _write, tasks, progress, "fragments") for each in some]
        after = {number: clusters.wait(partial(fragments_of, fragment_store, number)) for number in limits}
        left_out = {
            number: log.call(partial(batch_left_out, store=fragment_store, partition=number, until=last))
            for number, last in (how.until or {}).items()
        }
    everything = {name: size for fragments in after.values() for name, size in fragments.items()}
    return ArchiveReport(
        url,
        tuple(
            _summary(number, limits[number], after[number], written)._replace(
                batch_left_out=left_out.get(number), missing=tuple(missing_in(before[number], limits[number]))
            )
            for number in sorted(limits)
        ),
        tuple(sorted(written)),
        register(url, everything) if how.delta else None,
    )


def _begun(
    log: Log, store: ObstoreStore, how: HowToArchive
) -> tuple[dict[PartitionId, TransactionId], dict[PartitionId, dict[FragmentName, int]]]:
    """Return the last id to archive of each partition, and the fragments of each in the store, which is marked now."""
    check_no_topic(log.topic, "an archive")
    numbers = partitions_named(how.partitions, log.partition_count, log.topic)
    log.call(partial(check_may_begin, store=store, partition=numbers[0], timeout=how.timeout_s))
    limits = _limits(log, numbers, how)
    return limits, {number: log.call(partial(own_fragments_of, store=store, partition=number)) for number in limits}


def _summary(
    number: PartitionId, limit: TransactionId, fragments: Mapping[FragmentName, int], written: list[ArchivedFragment]
) -> ArchivedPartition:
    own = [each for each in written if each.fragment.partition == number]
    rows = sum(each.fragment.last - each.fragment.first + 1 for each in own)
    size = sum(each.bytes for each in own)
    return ArchivedPartition(number, limit, archived_up_to(fragments), len(own), rows, size)


# ------------------------------------------------------------------ what to write


@redacted_repr
class _ArchiveTask(NamedTuple):
    """The work of one task: write the batches that begin in the span and end within the limit."""

    address: str
    url: str
    partition: PartitionId
    span: Span
    limit: TransactionId
    fragment_bytes: int
    timeout_s: float


def _limits(log: Log, numbers: list[PartitionId], how: HowToArchive) -> dict[PartitionId, TransactionId]:
    if how.until is not None and set(how.until) != set(numbers):
        raise BadOption(
            f"until names partitions {sorted(how.until)}, but this job archives partitions {numbers}: give a last id "
            "for each of these, and for no other"
        )
    limits = {number: log.high_water_mark(number, timeout=how.timeout_s) for number in numbers}
    for number, committed in limits.items():
        if how.until is not None and how.until[number] > committed:
            raise BeyondLog(
                f"partition {number} is committed up to {committed}: nothing can be archived up to {how.until[number]}"
            )
    if how.until_time is not None:
        time = time_by(how.until_time, log.clock_ahead_s)  # a server's clock is known, because it has answered
        return {number: _last_at(log, number, limits[number], time, how.timeout_s) for number in numbers}
    return dict(how.until or limits)


def _last_at(
    log: Log, number: PartitionId, committed: TransactionId, time: datetime, timeout_s: float
) -> TransactionId:
    """Return the last id before the first application's transaction that was committed after `time`, or `committed`."""
    if time.tzinfo is None:
        raise BadOption(f"{time} has no time zone: give it one, such as datetime(…, tzinfo=UTC)")
    with log.read_time(number, since=microseconds(time) + 1, timeout=timeout_s) as transactions:
        later = next(iter(transactions), None)
    return committed if later is None else min(later.id - 1, committed)


def _plan(
    log: Log,
    url: str,
    address: str,
    number: PartitionId,
    limit: TransactionId,
    fragments: Mapping[FragmentName, int],
    how: HowToArchive,
) -> list[_ArchiveTask]:
    if limit == NO_TRANSACTION or not spans_to_write(fragments, limit):
        return []
    to_the_end = how.rest or how.until is not None or how.until_time is not None
    ids_max = _ids_per_fragment(log, number, Span(archived_up_to(fragments) + 1, limit), how)
    return [
        _ArchiveTask(tasks_address(address), url, number, span, limit, how.fragment_bytes, how.timeout_s)
        for span in spans_to_write(fragments, limit, ids_max=ids_max, rest=to_the_end)
    ]


def _ids_per_fragment(log: Log, number: PartitionId, new: Span, how: HowToArchive) -> int:
    """Return about how many ids make a fragment: a power of two, so that the next run cuts at the same ids."""
    rows = size = 0
    for at in {new.first, (new.first + new.last) // 2, new.last}:
        with log.read_batches(number, after=at - 1, until=at, timeout=how.timeout_s) as batches:
            batch = next(iter(batches))
        rows, size = rows + batch.count, size + batch.length
    ids = max(how.fragment_bytes * rows // size, 1)
    return 1 << (ids.bit_length() - 1)


# ------------------------------------------------------------------ in a task


def _write(task: _ArchiveTask) -> list[ArchivedFragment]:
    """Write the fragments of a span: one, or several if its transactions are larger than the sampled ones."""
    return asyncio.run(_written(task))


async def _written(task: _ArchiveTask) -> list[ArchivedFragment]:
    store = open_store(task.url, make=False)
    async with polonaise.connect(task.address) as log:
        # On this worker the directory may not be mounted.
        if not await is_marked(store, log.cluster_key):
            raise unmarked(store)
        reading = batches_of(log, task.partition, task.span, task.limit, task.timeout_s)
        async with aclosing(reading) as batches:
            writing = write_fragments(store, log.cluster_key, batches, fragment_bytes=task.fragment_bytes)
            async with aclosing(writing) as written:
                return [each async for each in written]


if __name__ == "__main__":
    from polonaise.pipelines.runs import main

    main("archive")
