"""A target in a SQL database: entries are applied in the SQL transaction that keeps their id."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeVar

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, String, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

from polonaise.errors import BadOption, ViewUnfit, invariant
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, Judge
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.redaction import redacted
from polonaise.terms import NO_TRANSACTION, PartitionId
from polonaise.views.database import Database, WriterConnection, transactional_table
from polonaise.views.databaseerrors import first_line, trouble_in
from polonaise.views.fitness import check_tables, create_tables
from polonaise.views.marks import Marks
from polonaise.views.worker import Worker, end_all

T = TypeVar("T")

_FIRST_TRIES: Final = 3
_REASON_CHARACTERS_MAX: Final = 500
"""The most characters of an error that the player is told."""
_ONLY: Final = 0
"""The key of the only row in the table of the fence."""


class SqlDeliveryTarget:
    """A target in a SQL database. Subclass it, name the tables, and write how an entry changes them::

        class Accounts(polonaise.player.SqlDeliveryTarget):
            metadata = schema

            def apply_entry(self, partition, entry, db):
                payment = decode(entry.payload)
                db.execute(accounts.update().where(...).values(balance=accounts.c.balance + payment.amount))

    What `apply_entry` does is committed in one SQL transaction with the id of the entry: each entry counts once,
    whatever dies when. It runs in a thread of the target's: partitions at the same time on PostgreSQL and MariaDB (up
    to `workers_max` threads), all on one thread on SQLite. It may run again when the database ended its transaction,
    so it must change the database and nothing else. An exception refuses the entry: the player is told, and sends it
    again after a pause; entries of other partitions go on.

    - `engine`: a SQLAlchemy engine, which stays the application's, or a URL.
    - `create`: whether missing tables (of `metadata`, ids and fence) are made. Existing tables are checked.
    - `name`: the beginning of the names of the two tables of the target's memory, `<name>_ids` and `<name>_fence`.
      Targets of several players in one database need a name each.
    - `workers_max`: how many threads apply.
    - `busy_s`: how many seconds SQLite waits for another process's write at a time.
    - `close_s_max`: how many seconds `close` waits for a database that does not answer.

    Raises `BadOption` for an engine that can't be used, and if a method that runs in a thread is a coroutine function.
    """

    metadata: ClassVar[MetaData | None] = None
    """The target's tables. The schema of this `MetaData`, if any, is also that of the tables of ids and fence."""
    isolation_level: ClassVar[str | None] = None
    """The isolation level for applying; None for the engine's own. As for `SqlView`."""

    def __init__(
        self,
        engine: Engine | URL | str,
        *,
        create: bool = True,
        name: str = "polonaise_delivery",
        workers_max: int = 8,
        busy_s: float = 5.0,
        close_s_max: float = 10.0,
    ) -> None:
        for method in (self.apply_entry, self.apply_entries):
            if inspect.iscoroutinefunction(method):
                raise BadOption(
                    f"{method.__qualname__} is a coroutine function, and runs in a thread: write a plain function"
                )
        schema = self.metadata.schema if self.metadata is not None else None
        self._database = Database(engine, self.isolation_level, busy_s)
        self._create = create
        self._ids = Marks(f"{name}_ids", schema)
        self._fence = _FenceKept(f"{name}_fence", schema)
        self._worker_count = 1 if self._database.has_one_writer else max(1, workers_max)
        self._close_s_max = close_s_max
        self._workers: dict[int, Worker] = {}

    # ------------------------------------------------------------------ for the application to say

    def apply_entry(self, partition: PartitionId, entry: RoutedEntry, db: Connection) -> None:
        """Change the tables as `entry` demands, through `db`, without ending its SQL transaction.

        An exception refuses the entry, unless the database itself is the trouble.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has to define how an entry is applied: write apply_entry, or apply_entries"
        )

    def apply_entries(self, partition: PartitionId, entries: Sequence[RoutedEntry], db: Connection) -> None:
        """Change the tables as all of these entries of one partition demand, in this order.

        The default calls `apply_entry` for each. If it raises, and the database itself is not the trouble, the same
        entries come again one by one.
        """
        for entry in entries:
            self.apply_entry(partition, entry, db)

    # ------------------------------------------------------------------ what a stream calls

    async def accept(self, offered: Fence, log_key: bytes) -> Acceptance:
        """Accept a stream; see `DeliveryTarget`. Makes and checks the tables first, unless that was done.

        Raises `ViewUnfit` for tables that are not what they should be, and for those of another log; `ViewUnavailable`.
        """
        return await self._do(0, self._accept, offered, log_key.hex())

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Apply a batch; see `DeliveryTarget`."""
        return await self._do(batch.partition, self._apply, batch, judge)

    async def close(self) -> None:
        """End the threads and close the connections, after what is being applied is done."""
        if self._database.is_parents:
            return
        workers, self._workers = list(self._workers.values()), {}
        await end_all(workers, self._close_s_max)
        self._database.close()

    async def _do(self, partition: PartitionId, work: Callable[..., T], *args: Any) -> T:
        """Run the work in the thread of the partition; threads may serve several partitions."""
        self._database.check_process()
        number = partition % self._worker_count
        worker = self._workers.get(number)
        if worker is None:
            worker = self._workers[number] = Worker(self._database, f"polonaise-delivery-{number}")
        return await worker.do(work, *args)

    # ------------------------------------------------------------------ SQL transactions

    def _accept(self, writer: WriterConnection, offered: Fence, cluster: str) -> Acceptance:
        # With each stream: the database that comes back may be another one.
        self._prepare(writer)
        for tries_left in reversed(range(_FIRST_TRIES)):
            try:
                return self._keep_if_above(writer, offered, cluster)
            except IntegrityError:
                # Another process keeps the first fence just now: the next time it is read.
                if not tries_left:
                    raise
        raise AssertionError

    def _keep_if_above(self, writer: WriterConnection, offered: Fence, cluster: str) -> Acceptance:
        with writer.transaction(synced=True) as db:
            # The row is locked: what an older stream applies is committed before, and it applies nothing after.
            kept = self._fence.read(db, alone=True, cluster=cluster)
            if not Reception.accepts(kept, offered):
                return Acceptance(False, kept, {})
            self._fence.keep(db, offered, cluster, first=kept == NO_FENCE)
            return Acceptance(True, offered, self._ids.all(db))

    def _prepare(self, writer: WriterConnection) -> None:
        """Make the tables that are missing, and check all."""
        tables = [*(self.metadata.sorted_tables if self.metadata is not None else []), self._fence.table]
        if self._create:
            create_tables(writer, [*tables, self._ids.table])
        with writer.transaction() as db:
            check_tables(db, tables, self._ids.table)

    def _apply(self, writer: WriterConnection, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        try:
            return self._apply_together(writer, batch, judge)
        except Exception as error:
            if trouble_in(error) is not None:
                raise
            if len(batch.entries) > 1:
                # One of them can't be applied, and nothing is applied so far: find out which one it is.
                return self._apply_singly(writer, batch, judge)
            return _refused(batch, error)

    def _apply_singly(self, writer: WriterConnection, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Apply the entries in a SQL transaction each, as far as they can be applied."""
        previous = batch.previous
        for entry in batch.entries:
            single = DeliveryBatch(batch.partition, previous, [entry])
            try:
                applied = self._apply_together(writer, single, judge)
            except Exception as error:
                if trouble_in(error) is not None:
                    raise
                return _refused(single, error)
            if applied.verdict is not Verdict.APPLY:
                break
            previous = entry.id
        return applied

    def _apply_together(self, writer: WriterConnection, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Apply the batch in one SQL transaction, if that is what `judge` says to do."""
        partition = batch.partition
        with writer.transaction() as db:
            # Locked as a reader does: a later stream is accepted only when this transaction has ended.
            kept = self._fence.read(db, alone=False)
            kept_id = self._ids.read(db, partition, "")
            last = NO_TRANSACTION if kept_id is None else kept_id
            verdict = judge(kept, last, batch)
            if verdict is not Verdict.APPLY:
                return AppliedBatch(verdict, last, kept)
            if kept_id is None:
                self._ids.add(db, partition, "")
            invariant(self._ids.move(db, partition, last, batch.last), f"the id of partition {partition} has moved")
            entries = [entry for entry in batch.entries if entry.payload is not None]
            if entries:
                self.apply_entries(partition, entries, db)
            return AppliedBatch(verdict, batch.last, kept)


def _refused(batch: DeliveryBatch, error: Exception) -> AppliedBatch:
    """Return what the player is told of a single entry that can't be applied."""
    reason = f"{type(error).__name__}: {redacted(first_line(error))}"
    return AppliedBatch(Verdict.APPLY, batch.previous, NO_FENCE, reason[:_REASON_CHARACTERS_MAX])


class _FenceKept:
    """The fence of the last stream that the target has accepted, in a table with one row, and the log it came from."""

    def __init__(self, name: str, schema: str | None) -> None:
        self.table = transactional_table(
            name,
            Column("number", Integer, primary_key=True, autoincrement=False),
            Column("epoch", BigInteger, nullable=False),
            Column("term", BigInteger, nullable=False),
            Column("cluster", String(32), nullable=False),
            schema=schema,
        )
        self._select = select(self.table.c.epoch, self.table.c.term, self.table.c.cluster)

    def read(self, db: Connection, *, alone: bool, cluster: str = "") -> Fence:
        """Return the fence, and keep others from changing it until the transaction ends; with `alone`, from reading it.

        `NO_FENCE` if none is kept. Raises `ViewUnfit` if it came from another log than `cluster`, unless that is empty.
        """
        row = db.execute(self._select.with_for_update(read=not alone)).one_or_none()
        if row is None:
            return NO_FENCE
        if cluster and row.cluster != cluster:
            raise ViewUnfit(
                f"table {self.table.fullname} says that the target is served from another log, {row.cluster}; this log "
                f"is {cluster}. Give the target a database of its own, or another name; or drop its tables, these "
                "included, and everything is delivered again"
            )
        return Fence(row.epoch, row.term)

    def keep(self, db: Connection, fence: Fence, cluster: str, *, first: bool) -> None:
        """Keep this fence; `first` says that none is kept so far.

        Raises SQLAlchemy's `IntegrityError` if another process keeps a first one at the same time.
        """
        values = {"epoch": fence.epoch, "term": fence.term, "cluster": cluster}
        if first:
            db.execute(self.table.insert(), {"number": _ONLY, **values})
        else:
            db.execute(update(self.table).values(values))
