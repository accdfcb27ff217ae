"""The sink: `write` stages rows in each task, and `commit`, in the driver, publishes them to the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from polonaise.client.protocol.draft import Limits
from polonaise.errors import BadOption, PolonaiseError
from polonaise.node.addresses import absolute_store, split_topic
from polonaise.spark import clusters, publishing, staging
from polonaise.spark.agreedcount import agreed_count
from polonaise.spark.options import WriteOptions
from polonaise.spark.protocol.plans import Staged
from polonaise.spark.protocol.sinkprogress import BATCH_WRITES, Origin, register_key
from polonaise.spark.rows import NO_ROWS, RowDigest, SinkColumns, divided, sink_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

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
        """Check a write in the driver, before any job starts, and return its settings.

        Connects to the log, and makes the staging directory if it is missing. Raises `BadOption`, `bad_columns`, and
        what `clusters.log_at` and `clusters.store_at` raise.
        """
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
        """Stage all rows of a task, and return its message to the driver.

        Raises what `rows.divided`, the staging store and, in a write to a topic, `_count` raise.
        """
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
        topic.

        Raises `BadOption` where Spark does not tell which batch of a stream this is, and what `agreed_count` raises.
        """
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
