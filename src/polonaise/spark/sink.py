"""The sink: `write` stages rows in each task, and `commit`, in the driver, publishes them to the log.

A topic may grow between two attempts at one batch, and divided by another number, some rows would be doubled, and
others lost. So the number of partitions by which a batch is divided is agreed in the log: in a named write to a topic,
unless rows name their partitions, the first task that has rows writes the number into a register of partition 0, and
every other task, of any attempt, takes that one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from polonaise.client.log import Log, partitions_of
from polonaise.client.partitions import append_own
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Change, Expectation, Limits
from polonaise.errors import AppendUnknown, BadOption, DeadlineExceeded, ExpectationFailed, PolonaiseError, Retry, fault
from polonaise.node.addresses import absolute_store, split_topic
from polonaise.redaction import redacted
from polonaise.spark import clusters, publishing, staging
from polonaise.spark.options import WriteOptions
from polonaise.spark.protocol.plans import Staged
from polonaise.spark.protocol.sinkprogress import BATCH_WRITES, Origin, register_key
from polonaise.spark.rows import NO_ROWS, RowDigest, SinkColumns, divided, sink_columns
from polonaise.terms import OwnKind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


PARTITION: Final = 0
"""The partition whose register holds what is agreed: each log, and each topic, has it from the beginning."""
_PREFIX: Final = b"spark/\0partitions/"
"""The beginning of the register's key. The zero byte tells it from an application's register, `spark/<txnAppId>`."""
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0
_LAST: Final = struct.Struct("<q")
_RUN: Final = struct.Struct("<qI")
_RUNS_MAX: Final = 64
"""The most numbers of partitions that are remembered. Batches before the oldest one's first are divided by it, too."""


class AgreedCounts(NamedTuple):
    """The decoded value of the register: by which number of partitions an application's batches are divided."""

    last: int
    """The latest batch for which the number of partitions was agreed; -1 for none."""
    runs: tuple[tuple[int, int], ...]
    """A batch, and the number of partitions from that batch on; ascending."""

    def of(self, batch: int) -> int:
        """Return by how many partitions a batch up to `last` is divided."""
        return next((count for first, count in reversed(self.runs) if first <= batch), self.runs[0][1])

    def with_batch(self, batch: int, count: int) -> AgreedCounts:
        """Return what is agreed once `batch`, which is above `last`, is divided by `count` partitions."""
        runs = self.runs if self.runs and self.runs[-1][1] == count else (*self.runs, (batch, count))
        return AgreedCounts(batch, runs[-_RUNS_MAX:])

    def pack(self) -> bytes:
        return _LAST.pack(self.last) + b"".join(_RUN.pack(*run) for run in self.runs)

    @classmethod
    def parse(cls, value: bytes, app: str) -> AgreedCounts:
        """Decode the register's value. Raises `sink_state_damaged` for bytes that no sink has written."""
        try:
            counts = cls(_LAST.unpack_from(value)[0], tuple(_RUN.iter_unpack(value[_LAST.size :])))
        except struct.error:
            counts = cls(-1, ())
        if not counts.runs or any(count < 1 for _, count in counts.runs):
            raise fault(
                "sink_state_damaged",
                f"the register of partition {PARTITION} that says how the batches of {app!r} are divided holds "
                f"{redacted(repr(value), 40)}, which no sink of this version has written; choose another txnAppId",
            )
        return counts


def counts_key(app: str) -> bytes:
    """Return the key of the register for an application."""
    return _PREFIX + sha256(app.encode()).digest()[:16].hex().encode()


async def agreed_count(log: Log, app: str, batch: int, timeout_s: float) -> int:
    """Return by how many partitions this batch of an application is divided; agree on the present number if none is.
    Raises `sink_state_damaged`, errors of the log that trying again can't mend, and `DeadlineExceeded`."""
    key = counts_key(app)
    backoff = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                value = await log.register(key, PARTITION, timeout=timeout_s)
                counts = AgreedCounts(-1, ()) if value is None else AgreedCounts.parse(value, app)
                if batch <= counts.last:
                    return counts.of(batch)
                expected = Expectation.absent(key) if value is None else Expectation.equals(key, value)
                change = Change.set(key, counts.with_batch(batch, log.partition_count).pack())
                try:
                    await log.ready(PARTITION)
                    partitions = partitions_of(log)
                    await append_own(partitions, PARTITION, OwnKind.BATCH, expectations=[expected], changes=[change])
                except (ExpectationFailed, AppendUnknown):
                    pass  # another task's number, or this one: the register says which has prevailed
                except PolonaiseError as error:
                    if error.retry is Retry.NEVER:
                        raise
                    await asyncio.sleep(backoff.pause_s(random.random()))
    except TimeoutError:
        raise DeadlineExceeded(
            f"by how many partitions batch {batch} of {app!r} is divided was not agreed within {timeout_s:g} s: see "
            f"what holds up partition {PARTITION}, and run the batch again"
        ) from None


_log = logging.getLogger("polonaise.spark")

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_latest: dict[tuple[str, str, str], int] = {}
"""Latest batch that this process has published, by cluster, stream and query, unless the log may hold a later one."""
_swept: set[str] = set()
"""Staging stores whose leftovers this process has collected, or has tried to."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver."""

    staged: Staged
    app: str | None
    """Id of the stream's query, which names the application if the options do not; None where Spark tells of none."""
    digest: RowDigest = NO_ROWS


@dataclass(frozen=True)
class Sink:
    """The settings of a write, for tasks and driver. Spark pickles them, so they are plain values only."""

    options: WriteOptions
    columns: SinkColumns
    partition_count: int
    staging: str
    """URL of the staging store."""
    is_stream: bool = False

    @classmethod
    def opened(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> Sink:
        """Check a write in the driver, before any job starts, and return its settings. Connects to the log, and makes
        the staging directory if it is missing. Raises `BadOption`, `bad_columns`, and what `clusters.log_at` and
        `clusters.store_at` raise."""
        if overwrite:
            raise BadOption("a log is never overwritten: write with mode('append'), and streams in output mode append")
        if options.app_id is not None:
            register_key(options.app_id)
        columns = sink_columns(schema, options.partition_by)
        partition_count = clusters.log_at(options.cluster, options.tls).partition_count
        where = absolute_store(options.staging) if options.staging is not None else staging.staging_of(options.cluster)
        clusters.store_at(where, make=True)
        return cls(options, columns, partition_count, where)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Stage all rows of a task, and return its message to the driver. Raises what `rows.divided`, the staging store
        and, in a write to a topic, `_count` raise."""
        context = TaskContext.get()
        store, limits = clusters.store_at(self.staging, make=True), Limits()

        def put(path: str, data: bytes) -> None:
            clusters.wait(lambda: staging.within(self.options.timeout_s, store.put_if_absent(path, data)))

        stage = staging.Stage(
            context.partitionId() if context is not None else 0, put, self.options.inline_bytes_max, limits
        )
        count: int | None = None
        digest = NO_ROWS
        for batch in batches:
            if count is None:  # only a task that has rows needs it
                count = self._count(context)
            for partition, piece in divided(batch, self.columns, count, limits):
                stage.add(partition, piece)
                digest = digest.with_rows(piece)
        return Written(stage.finish(), context.getLocalProperty(_QUERY_ID) if context is not None else None, digest)

    def _count(self, context: TaskContext | None) -> int:
        """Return the number of partitions by which this attempt at a batch divides rows: agreed in the log, for a
        topic. Raises `BadOption` where Spark does not tell which batch of a stream this is, and what `agreed_count`
        raises."""
        options = self.options
        if not split_topic(options.cluster)[1] or self.columns.partition:
            return self.partition_count
        app, batch = options.app_id, options.app_version
        if self.is_stream:
            told = context.getLocalProperty(_BATCH_ID) if context is not None else None
            app = app or (context.getLocalProperty(_QUERY_ID) if context is not None else None)
            if told is None or app is None:
                raise BadOption(
                    "Spark does not tell the batch's number here, without which a topic that grows can't be written to "
                    "exactly once: give each row a column partition"
                )
            batch = int(told)
        if app is None or batch is None:
            return self.partition_count  # a write that may repeat rows in any case
        name, number = app, batch
        log = clusters.log_at(options.cluster, options.tls)
        return log.call(lambda opened: agreed_count(opened, name, number, options.timeout_s))

    def publish(self, messages: Sequence[Any], app: str | None, batch: int, *, in_order: bool) -> None:
        """Publish a batch from the driver. See `publishing.publish`."""
        store, patience_s = clusters.store_at(self.staging, make=True), self.options.timeout_s
        log = clusters.log_at(self.options.cluster, self.options.tls)
        written = [message for message in messages if isinstance(message, Written)]  # None for other tasks
        query = next((each.app for each in written if each.app is not None), "") if in_order else BATCH_WRITES
        origin = Origin(query, str(reduce(RowDigest.and_then, (each.digest for each in written), NO_ROWS)))
        stream = (self.options.cluster, app, query) if in_order and app is not None else None
        # Forgotten while this batch is under way: after a failure the next one looks at all partitions again.
        before = _latest.pop(stream, None) if stream is not None else None
        is_next = before is not None and batch > before
        is_latest = log.call(
            lambda opened: publishing.publish(
                opened,
                store,
                app,
                batch,
                [each.staged for each in written],
                patience_s,
                in_order=in_order,
                is_next=is_next,
                origin=origin,
            )
        )
        if stream is not None and is_latest:
            _latest[stream] = batch
        if self.staging not in _swept:
            _swept.add(self.staging)
            try:
                log.call(lambda opened: staging.within(patience_s, publishing.collect_leftovers(opened, store)))
            except PolonaiseError as error:
                _log.warning("leftovers in %s are not collected: %s", self.staging, error)


class BatchSink(DataSourceArrowWriter):
    """The writer of `df.write.format("polonaise")`: exactly once under (`txnAppId`, `txnVersion`), if given."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        options = self._sink.options
        self._sink.publish(messages, options.app_id, options.app_version or 0, in_order=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: a commit whose answer was lost, or is still on its way, needs the staged rows."""


class StreamSink(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("polonaise")`: exactly once under (`txnAppId` or query id, batch id)."""

    def __init__(self, sink: Sink) -> None:
        self._sink = replace(sink, is_stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if any(message is not None for message in messages):  # a batch without tasks has no rows
            self._sink.publish(messages, self._app(messages), batchId, in_order=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing, as `BatchSink.abort`."""

    def _app(self, messages: Sequence[WriterCommitMessage | None]) -> str:
        if self._sink.options.app_id is not None:
            return self._sink.options.app_id
        for message in messages:
            if isinstance(message, Written) and message.app is not None:
                return message.app
        raise BadOption("Spark does not tell the query's id here: name the stream with .option('txnAppId', …)")
