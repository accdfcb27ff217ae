"""A target in a SQL database: entries are applied in the SQL transaction that keeps their id."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, Final

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, Table, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from polonaise.applicationcode import OrdinaryErrors
from polonaise.errors import BadOption, Closed, PolonaiseError, ViewUnavailable, ViewUnfit, invariant
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, Judge
from polonaise.player.protocol.entries import (
    NAME_CHARACTERS_MAX,
    NO_FENCE,
    REASON_CHARACTERS_MAX,
    DeliveryBatch,
    Fence,
    RoutedEntry,
)
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.redaction import redacted, redacted_trace
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.views.claimedtables import ClaimedTables
from polonaise.views.columntypes import short_text, transactional_table
from polonaise.views.database import Database
from polonaise.views.databaseerrors import (
    OwnRefused,
    Trouble,
    database_errors,
    first_line,
    is_taken,
    not_refused,
    trouble_in,
)
from polonaise.views.dialects import check_names
from polonaise.views.lostmarks import held_in
from polonaise.views.marks import Marks, row_lost
from polonaise.views.tablesbeside import TablesBeside, tables_of
from polonaise.views.worker import Workers, check_plain
from polonaise.views.writerconnection import WriterConnection, check_undone

_log = logging.getLogger("polonaise.player")

_FIRST_TRIES: Final = 3
_ONLY: Final = 0
"""The key of the only row in the table of the fence."""
_FENCED: Final = -1
"""The number of no partition, under which the table of ids has a row from the first fence on, by which a loss of ids,
or of the fence, is noticed. In place of an id it has how many partitions have a row, less one."""


class SqlDeliveryTarget:
    """A target in a SQL database. Subclass it, name the tables, and write how an entry changes them::

        class Accounts(polonaise.player.SqlDeliveryTarget):
            metadata = schema

            def apply_entry(self, partition, entry, db):
                payment = decode(entry.payload)
                db.execute(accounts.update().where(...).values(balance=accounts.c.balance + payment.amount))

    What `apply_entry` does is committed in one SQL transaction with the id of the entry: each entry counts once,
    whatever dies when. It runs in a thread of the target's, and may run again when the database ended its transaction:
    so it must change the database and nothing else. An exception refuses the entry, which is sent again after a pause;
    entries of other partitions go on.

    - `engine`: a SQLAlchemy engine, which stays the application's, or a URL.
    - `create`: whether missing tables (of `metadata`, ids and fence) are made, until a stream is accepted. Existing
      tables are checked.
    - `name`: the beginning of the names of the two tables of the target's memory, `<name>_ids` and `<name>_fence`, and
      of `<name>_names`, which remembers the application's tables, so that one that is gone alone is not made anew.
      Targets that share a database need a name each. The memory belongs to one target of one player for one log, and
      says so (`ViewUnfit`) when another one is to be served.
    - `workers_max`: how many threads apply, each some of the partitions.
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
        check_plain(self.apply_entry, self.apply_entries)
        schema = self.metadata.schema if self.metadata is not None else None
        self._database = Database(engine, self.isolation_level, busy_s)
        self._ids = Marks(f"{name}_ids", schema)
        self._fence = _FenceKept(f"{name}_fence", schema)
        claimed = ClaimedTables("the target", f"{name}_names", self._ids, tables_of(self.metadata))
        self._beside = TablesBeside(self.metadata, claimed, create=create, others=[self._fence.table])
        check_names(self._database.kind, self._beside.names)
        self._workers = Workers(self._database, "polonaise-delivery", workers_max, close_s_max, self._beside.look_again)
        self._is_closed = False
        self._source: DeliverySource | None = None
        """Where the accepted stream comes from: the memory has to be of that, also under way."""
        self._refused: dict[PartitionId, tuple[TransactionId, str]] = {}
        """By partition, the entry that was refused last, and why."""

    # ------------------------------------------------------------------ for the application to say

    def apply_entry(self, partition: PartitionId, entry: RoutedEntry, db: Connection) -> None:
        """Change the tables as `entry` demands, through `db`, without ending its SQL transaction. An exception refuses
        the entry, unless the database itself is the trouble."""
        raise NotImplementedError(
            f"{type(self).__name__} has to define how an entry is applied: write apply_entry, or apply_entries"
        )

    def apply_entries(self, partition: PartitionId, entries: Sequence[RoutedEntry], db: Connection) -> None:
        """Change the tables as all of these entries of one partition demand, in this order. The default calls
        `apply_entry` for each. If it raises, and the database itself is not the trouble, they come again one by one."""
        for entry in entries:
            check_undone(db)
            self.apply_entry(partition, entry, db)

    # ------------------------------------------------------------------ what a stream calls

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        """Accept a stream; see `DeliveryTarget`. Makes and checks the tables first. Raises `ViewUnfit` for tables that
        are not what they should be, and for those of another source; `ViewUnavailable`."""

        def accept(writer: WriterConnection) -> Acceptance:
            with not_refused("the target"):
                return self._accept(writer, offered, source)

        self._check_open()
        return await self._workers.do(0, accept)

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Apply a batch; see `DeliveryTarget`. Raises what `accept` does: the next stream prepares the tables anew."""
        applied = await self._apply_all(batch, judge)
        if not applied.refusal or len(batch.entries) == 1:
            return applied
        # One of them can't be applied, and it and what follows is not applied so far: find out which one it is.
        previous = applied.last
        for entry in batch.entries:
            if entry.id > previous:
                applied = await self._apply_all(DeliveryBatch(batch.partition, previous, [entry]), judge)
                if applied.refusal or applied.verdict is not Verdict.APPLY:
                    break
                previous = entry.id
        return applied

    async def _apply_all(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Apply the batch in one SQL transaction, or in several if the database takes less of it at a time."""
        while True:
            partition, previous = batch.partition, batch.previous

            def work(writer: WriterConnection, some: Sequence[RoutedEntry]) -> AppliedBatch:
                return self._apply(writer, DeliveryBatch(partition, previous, list(some)), judge)  # noqa: B023

            try:
                self._check_open()
                applied = await self._workers.do_some(partition, batch.entries, work)
            except PolonaiseError:
                raise
            except Exception as error:
                if trouble_in(error) is not Trouble.DRIVEN and not is_taken(error):
                    raise
                # Tried alone, and several times: it is the entry that the database can't take.
                return self._refusal(DeliveryBatch(partition, previous, batch.entries[:1]), error)
            left = [entry for entry in batch.entries if entry.id > applied.last]
            if applied.refusal or applied.verdict is not Verdict.APPLY or not left:
                return applied
            batch = DeliveryBatch(partition, applied.last, left)

    async def close(self) -> None:
        """End the threads and close the connections, after what is being applied is done."""
        if self._database.is_parents:
            return
        self._is_closed = True
        await self._workers.end()
        self._database.close()

    def _check_open(self) -> None:
        self._database.check_process()
        if self._is_closed:
            raise Closed("the target was closed")

    # ------------------------------------------------------------------ SQL transactions

    def _accept(self, writer: WriterConnection, offered: Fence, source: DeliverySource) -> Acceptance:
        # With each stream: the database that comes back may be another one.
        self._beside.prepare(writer, again=True)
        for tries_left in reversed(range(_FIRST_TRIES)):
            try:
                return self._keep_if_above(writer, offered, source)
            except DBAPIError as error:
                if trouble_in(error) is not None:
                    raise
                # Another process may keep the first fence just now: the next time it is read.
                if not tries_left:
                    raise row_lost(self._fence.table, "the first fence", first_line(error)) from error
        raise AssertionError

    def _keep_if_above(self, writer: WriterConnection, offered: Fence, source: DeliverySource) -> Acceptance:
        # Before the fence is read, which another process may be keeping with the first ids just now.
        with writer.transaction() as db:
            ids_before = self._ids.all(db)
        held = ""
        if not ids_before:
            with writer.transaction() as db:
                held = held_in(db, self._beside.tables)
        with writer.transaction(synced=True) as db:
            # The row is locked: what an older stream applies is committed before, and it applies nothing after.
            kept = self._fence.read(db, alone=True, source=source)
            if not Reception.accepts(kept, offered):
                return Acceptance(False, kept, {})
            is_first = kept == NO_FENCE
            if is_first and ids_before:
                raise self._memory_lost(self._fence.table)
            if is_first and self._beside.began and (held or not self._beside.tables):
                raise self._memory_lost(self._ids.table, self._fence.table)
            self._fence.keep(db, offered, source, first=is_first)
            if is_first:
                self._ids.add(db, _FENCED)
        # In a transaction of their own: under REPEATABLE READ the first one sees the ids as they were when it began,
        # before it waited for what an older stream applied. Nothing of an older stream can be applied any more.
        with writer.transaction() as db:
            ids = self._ids_kept(db)
        self._beside.note_told()
        self._source = source
        if is_first and held:
            what = (
                "%s and %s are new, and table %s holds rows: the target gets everything from the beginning. If these "
                "rows were delivered to it, they come a second time: stop it, and restore its tables from a backup of "
                "one moment, or empty all of them together"
            )
            _log.warning(what, self._ids.table.fullname, self._fence.table.fullname, held)
        return Acceptance(True, offered, ids)

    def _ids_kept(self, db: Connection) -> dict[PartitionId, TransactionId]:
        """Return the ids by partition. Raises if one that was there is missing; else all of them are counted."""
        ids = self._ids.all(db)
        counted = ids.pop(_FENCED, None)
        highest = len(ids) - 1
        if (counted is None and (self._beside.began or not ids)) or (counted is not None and counted > highest):
            raise self._memory_lost(self._ids.table)
        # An earlier version did not count them, or had no such row.
        if counted is None:
            self._ids.add(db, _FENCED)
            counted = NO_TRANSACTION
        if counted < highest:
            self._ids.move(db, _FENCED, counted, highest)  # unless a later stream has done that
        return ids

    def _memory_lost(self, *tables: Table) -> PolonaiseError:
        """Return the error for a target of whose memory these tables have lost their rows."""
        lost = " and ".join(each.fullname for each in tables)
        named = ", ".join(each.fullname for each in self._beside.tables) or "the application's tables"
        text = (
            f"rows of {lost} are lost, so what the target has applied is not known; beginning anew "
            "would apply it a second time. Restore the target's tables from a backup of one moment; or, to have "
            f"everything delivered again, empty {named}, {self._ids.table.fullname} and {self._fence.table.fullname} "
            "together"
        )
        # A target that runs tries again: it may be met while somebody restores one table after the other.
        return ViewUnavailable(text) if self._beside.began else ViewUnfit(text)

    def _apply(self, writer: WriterConnection, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Apply the batch in one SQL transaction, if `judge` says so. If its entries can't be applied, nothing is
        changed, and the first one is told as refused. What is wrong with tables that are gone, or others by now, is
        raised."""
        self._beside.prepare(writer)
        partition = batch.partition
        refusal: Exception | None = None
        is_applied = False
        try:
            with writer.transaction(guarded=True) as db:
                kept, last, is_first = self._memory(db, partition)
                verdict = judge(kept, last, batch)
                if verdict is not Verdict.APPLY:
                    return AppliedBatch(verdict, last, kept)
                if is_first:
                    self._add_first(db, partition)
                # Until the end the id says that the batch is under way: see `Marks.begin`.
                begun = self._ids.begin(db, partition, last, batch.last)
                invariant(begun, f"the id of partition {partition} has moved")
                writer.last_step = lambda: self._ids.finish(db, partition, batch.last)
                entries = [entry for entry in batch.entries if entry.payload is not None]
                try:
                    if entries:
                        with OrdinaryErrors("apply_entries"):
                            self.apply_entries(partition, entries, db)
                except Exception as error:
                    refusal = error
                    raise
                is_applied = bool(entries)
                return AppliedBatch(verdict, batch.last, kept)
        except Exception as error:
            # The library tells an application that it has ended the transaction after the application's own code, and
            # the database checks a deferred constraint when it commits.
            late = isinstance(error, BadOption) or (is_applied and isinstance(error, database_errors()))
            if trouble_in(error) is not None:
                raise
            # Whatever the application has made of an error of the database's.
            if writer.usable:
                self._beside.prepare(writer, again=True)
            if not (error is refusal or late):
                raise
            if len(batch.entries) == 1 and is_taken(error):
                raise  # tried again before it counts as the entry's own: another partition may have written the row
            return self._refusal(batch, error)

    def _add_first(self, db: Connection, partition: PartitionId) -> None:
        """Write the partition's first id. Raises `ViewUnfit`: while the fence is held, no other process writes it."""
        # It may not be the first, and with this row the next stream would not notice that those of others are gone.
        self._ids_kept(db)
        ids = self._ids.table
        try:
            self._ids.add(db, partition)
            # By one, whatever it is by now: other partitions get their first ids at the same time.
            counted = ids.c.high_water_mark + 1
            db.execute(update(ids).where(ids.c.partition == _FENCED).values(high_water_mark=counted))
        except DBAPIError as error:
            if trouble_in(error) is not None:
                raise
            raise row_lost(self._ids.table, f"partition {partition}", first_line(error)) from error

    def _refusal(self, batch: DeliveryBatch, error: Exception) -> AppliedBatch:
        """Return the answer for a batch that can't be applied, and log it if it is of one entry."""
        partition, reason = batch.partition, f"{type(error).__name__}: {first_line(error)}"
        if len(batch.entries) == 1 and self._refused.get(partition) != (batch.last, reason):
            # Once: the same entry comes again and again.
            self._refused[partition] = batch.last, reason
            what = "entry %d of partition %d can't be applied:\n%s"
            _log.warning(what, batch.last, partition, redacted_trace(error))
        return AppliedBatch(Verdict.APPLY, batch.previous, NO_FENCE, redacted(reason, REASON_CHARACTERS_MAX))

    def _memory(self, db: Connection, partition: PartitionId) -> tuple[Fence, TransactionId, bool]:
        """Return the fence, the last id of the partition, and whether that has no row yet."""
        try:
            # Locked as a reader does: a later stream is accepted only when this transaction has ended.
            fence = self._fence.read(db, alone=False, source=self._source)
            kept_id = self._ids.read(db, partition)
        except DBAPIError as error:
            if trouble_in(error) is not None:
                raise
            # No entry is at fault.
            raise OwnRefused(f"the target's own tables can't be read: {first_line(error)}") from error
        return fence, NO_TRANSACTION if kept_id is None else kept_id, kept_id is None


class _FenceKept:
    """The fence of the last stream that the target has accepted, and where it came from, in a table with one row."""

    def __init__(self, name: str, schema: str | None) -> None:
        self.table = transactional_table(
            name,
            Column("number", Integer, primary_key=True, autoincrement=False),
            Column("epoch", BigInteger, nullable=False),
            Column("term", BigInteger, nullable=False),
            Column("cluster", short_text(32), nullable=False),
            Column("player", short_text(NAME_CHARACTERS_MAX), nullable=False),
            Column("target", short_text(NAME_CHARACTERS_MAX), nullable=False),
            schema=schema,
        )
        self._select = select(self.table)

    def read(self, db: Connection, *, alone: bool, source: DeliverySource | None) -> Fence:
        """Return the fence, and keep others from changing it until the transaction ends; with `alone`, from reading it.
        `NO_FENCE` if none is kept. Raises `ViewUnfit` if it came from another `source`, and for a row that no target
        has written."""
        row = db.execute(self._select.with_for_update(read=not alone)).one_or_none()
        if row is None:
            return NO_FENCE
        try:
            kept = DeliverySource(bytes.fromhex(row.cluster), row.player, row.target)
            fence = Fence(int(row.epoch), int(row.term))
        except ValueError as error:
            raise ViewUnfit(
                f"table {self.table.fullname} says what no target writes (cluster {row.cluster!r}, epoch "
                f"{row.epoch!r}, term {row.term!r}): another program has changed it. Restore the target's tables from "
                "a backup of one moment; or drop all of them, this one and the one of ids included, and everything is "
                "delivered again"
            ) from error
        if source is not None and source != kept:
            raise ViewUnfit(
                f"table {self.table.fullname} is of {kept.in_words}; to be served is {source.in_words}: see "
                "whether this is the right database. Give each target a database of its own, or a `name` of its own; a "
                "target that is to begin anew needs its tables dropped, these included"
            )
        return fence

    def keep(self, db: Connection, fence: Fence, source: DeliverySource, *, first: bool) -> None:
        """Keep this fence; `first` says that none is kept so far. Raises SQLAlchemy's `IntegrityError` if another
        process keeps a first one at the same time."""
        values = {"epoch": fence.epoch, "term": fence.term}
        if first:
            key = {"number": _ONLY, "cluster": source.log_key.hex(), "player": source.player, "target": source.target}
            db.execute(self.table.insert(), {**key, **values})
        else:
            db.execute(update(self.table).values(values))
