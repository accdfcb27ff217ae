"""Notices marks that were lost: without them a view would begin as new, and apply a second time what it has."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, cast

from sqlalchemy import Connection, Table, bindparam, func, literal, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.sql import Select

from polonaise.client.running import IN_CONTEXT
from polonaise.errors import ViewUnavailable, ViewUnfit
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.views.claimedtables import ClaimedTables
from polonaise.views.databaseerrors import OwnRefused, database_errors, first_line, trouble_in
from polonaise.views.dialects import DIGITS, POSTGRESQL, SQLITE
from polonaise.views.fitness import check_tables, has_table
from polonaise.views.marks import Marks, checked_mark
from polonaise.views.writerconnection import WriterConnection

_log = logging.getLogger("polonaise.views")

AGAIN: Final = "and the log brings everything again"


def holds_rows(db: Connection, table: Table) -> bool:
    return db.execute(select(literal(1)).select_from(table).limit(1)).first() is not None


def held_in(db: Connection, tables: Iterable[Table]) -> str:
    """Return the name of a table that holds rows, or may not be looked at; empty if none does."""
    for table in tables:
        try:
            with db.begin_nested():
                if has_table(db, table) and holds_rows(db, table):
                    return table.fullname
        except DBAPIError as error:
            if trouble_in(error) is not None:
                raise
            return table.fullname
    return ""


class LostMarks(ClaimedTables):
    """Remembers which partitions of a view were given a mark, too. One without a mark has lost it, unless the view's
    tables are empty: then everything was emptied together, and the view begins anew, which is noted there, too."""

    remembers = True

    def __init__(self, whose: str, name: str, marks: Marks, tables: Sequence[Table], keys: Table | None = None) -> None:
        super().__init__(whose, name, marks, tables, keys)
        self._kept = tables
        self.reached = Reached(marks)
        self._select = select(self.table.c.partition).where(self.table.c.partition == bindparam("at"))
        self._remembered: set[PartitionId] = set()
        self._begun: dict[PartitionId, int | None] = {}
        """By partition whose mark was met, the beginning of the view's tables that was known then."""
        self._warning = threading.Lock()
        self._has_warned = False
        """Whether it was warned of rows that nothing tells of, which several threads may meet at once."""

    def prepare(self, writer: WriterConnection, *, create: bool) -> None:
        self._remembered.clear()
        super().prepare(writer, create=create)

    def check_marks_kept(self, db: Connection) -> None:
        """Raise `ViewUnfit` if the table of the marks is gone, partitions had marks, and the view's tables hold rows.
        Before tables are made: a new one of that name would be in the way of a backup, or of whoever renamed it."""
        marks, given = self.marks.table, self.table
        if has_table(db, marks) or not has_table(db, given):
            return
        check_tables(db, [], [given])
        if not self._has_any(db):
            return
        held = held_in(db, self._kept)
        # The marks last: another process may have made them, and applied rows, since they were found to be missing.
        if (held or not self._kept) and not has_table(db, marks):
            raise ViewUnfit(
                f"table {marks.fullname} is gone, which says what was applied, while {held or 'the view'} holds it: "
                "beginning anew would apply it a second time. Put it back, or restore all of the view's tables from a "
                f"backup of one moment; or empty them and {given.fullname}, {AGAIN}"
            )

    def check_new(self, db: Connection, partition: PartitionId) -> bool:
        """Raise `ViewUnfit` if a partition without a mark had one, while the view's tables hold rows.

        It had if the table says so; or if this process knows it, unless everything was emptied together since. So it
        may have if the process knows of any that had one while no mark at all is there. Where nobody knows of any, a
        warning tells that there are rows. Returns whether everything is empty now, so that `begin_anew_for` is to
        be called.
        """
        had = self.reached.had
        had_it = self.there and self._has(db, partition)
        had_it = had_it or (partition in had and not self._began_since(db, partition))
        if not had_it and not (had and self._knows_nothing(db)):
            self._begun.pop(partition, None)
            self._tell_rows(db)
            return False
        held = held_in(db, self._kept)
        if self._kept and not held:
            return self.there and all(mark == NO_TRANSACTION for mark in self.marks.all(db).values())
        # The mark last: another process may have written it, and applied rows, since it was found to be missing.
        if self.marks.read(db, partition) is None and (had_it or self._knows_nothing(db)):
            # Where nobody can write, or tell, that everything is empty, this process goes by what it knows.
            again = "" if self._kept and self.there else ", start this process again"
            marks = self.marks.table.fullname
            lost = f"partition {partition} had a high-water mark in table {marks} and has none"
            if not had_it:
                lost = f"partitions had high-water marks in table {marks} and none has one"
            raise ViewUnfit(
                f"{lost}, while {held or 'the view'} holds what was applied: beginning anew would apply it a second "
                "time. Restore all of the view's tables from a backup of one moment; or empty them, "
                f"{marks} and {self.table.fullname} in one transaction{again}, {AGAIN}"
            )
        return False

    def _tell_rows(self, db: Connection) -> None:
        """Warn, once, if the view's tables hold rows and nothing tells of what: as if its tables of marks were lost.
        Rightly so, if the application has put them there before its first start."""
        if self._has_warned or not self._knows_nothing(db) or not (held := held_in(db, self._kept)):
            return
        # Again after the rows: another process may have written marks, and applied rows, meanwhile.
        if not self._knows_nothing(db):
            return
        with self._warning:
            is_first, self._has_warned = not self._has_warned, True
        if is_first:
            what = (
                "table %s holds rows, and neither %s nor %s says of what: all of the log is applied to them. If this "
                "view made them, that is a second time: end it, and restore all of its tables from a backup of one "
                "moment"
            )
            _log.warning(what, held, self.marks.table.fullname, self.table.fullname)

    def _knows_nothing(self, db: Connection) -> bool:
        """Whether no partition has a mark, and none is remembered to have had one."""
        marks = self.marks.table
        return not (holds_rows(db, marks) or (self.there and self._has_any(db)))

    def _began_since(self, db: Connection, partition: PartitionId) -> bool:
        """Whether everything was found empty since the partition's mark was met, by this process or another one."""
        if not self.there:
            return False
        known = self._begun.get(partition, self.beginning)
        found = self.look(db)
        return found is not None and found != known

    def begin_anew_for(self, writer: WriterConnection, partition: PartitionId) -> None:
        self._begun.pop(partition, None)
        self.begin_anew(writer)

    def met(self, writer: WriterConnection, partition: PartitionId) -> None:
        """Remember that the partition has a mark, which may be an earlier version's, or written by hand."""
        self._begun.setdefault(partition, self.beginning)
        if self.there and partition not in self._remembered:
            with contextlib.suppress(IntegrityError), writer.transaction() as db:
                self.remember(db, partition)
            self._remembered.add(partition)

    def forget(self) -> None:
        """Forget the partitions: another client, or another log, begins anew."""
        self.reached.forget()
        self._begun = {}
        self._has_warned = False

    def remember(self, db: Connection, partition: PartitionId) -> None:
        """Remember that the partition has a mark, in the transaction that gives it one."""
        if self.there and not self._has(db, partition):
            db.execute(self.table.insert(), {"partition": partition})

    def _has_any(self, db: Connection) -> bool:
        return db.execute(select(self.table).where(self.table.c.partition >= 0).limit(1)).first() is not None

    def _has(self, db: Connection, partition: PartitionId) -> bool:
        return db.execute(self._select, {"at": partition}).one_or_none() is not None


_DONEAGAIN: Final = (
    "it was restored or replaced, or is a server that was behind. It is brought up to date from the log, and can be "
    "read again then; what keeps it from that, if anything, is in Log.trouble, or in the health of its worker group"
)


class Reached:
    """The highest mark of each partition that a view has told its client, and whether a state of the database has it.

    A context's locks are judged at the mark that the client had when the context began, so it may never read a state
    below that: it would miss changes that are no conflict to its locks. Marks only rise here, also when the database
    has stepped back: contexts that began before may still be running.
    """

    def __init__(self, marks: Marks) -> None:
        self._table = marks.table
        self._marks: dict[PartitionId, TransactionId] = {}
        self._text = ""
        self.had: set[PartitionId] = set()
        """The partitions of which a client or a worker was told that something is applied."""
        self.behind: frozenset[PartitionId] = frozenset()
        """The partitions that were below their marks when the database was last read."""
        self._behind_changes = threading.Lock()

    def note(self, partition: PartitionId, mark: TransactionId) -> None:
        """Note the mark before the client is told it. Safe to be called by several threads."""
        self.found(partition, mark)
        # One thread at a time has the partition.
        if mark > self._marks.get(partition, NO_TRANSACTION):
            self._marks[partition] = mark

    def found(self, partition: PartitionId, mark: TransactionId) -> None:
        """Note a mark that a worker is told, who may refuse it: for reads counts what it applies."""
        if mark > NO_TRANSACTION:
            self.had.add(partition)

    def forget(self) -> None:
        self._marks = {}
        self.had = set()
        with self._behind_changes:
            self.behind = frozenset()

    def now(self) -> Mapping[PartitionId, TransactionId]:
        """Return the marks as they are now; a state that is fixed after this has to have them. In a context only the
        mark of its partition, at which its locks are judged."""
        partition = IN_CONTEXT.get()
        if partition is None or not self._marks:
            return self._marks.copy()
        return {partition: self._marks.get(partition, NO_TRANSACTION)}

    def check(self, db: Connection, marks: Mapping[PartitionId, TransactionId]) -> None:
        """Fix the state that this transaction reads, of which this is the first statement, and check that it has these.
        Raises `ViewUnavailable` if it does not."""
        found = self._found(db, marks)
        below = {at: mark for at, mark in marks.items() if found.get(at, NO_TRANSACTION) < mark}
        with self._behind_changes:  # threads that read may find others behind at the same moment
            self.behind = self.behind - marks.keys() | below.keys()
        if below:
            partition, mark = next(iter(below.items()))
            raise ViewUnavailable(
                f"the database has stepped back: partition {partition} was applied up to {mark}, and table "
                f"{self._table.fullname} says {found.get(partition, NO_TRANSACTION)}: {_DONEAGAIN}"
            )

    def _found(self, db: Connection, wanted: Collection[PartitionId]) -> dict[PartitionId, TransactionId]:
        """Return the marks in the database, of the wanted partitions at least: with each read, so in the shortest
        way."""
        statement = self._statement(db)
        if len(wanted) == 1:
            (partition,) = wanted
            statement += f" WHERE {db.dialect.identifier_preparer.quote('partition')} = {partition:d}"
        try:
            if db.dialect.name == SQLITE:
                driver = cast(sqlite3.Connection, db.connection.dbapi_connection)
                found = dict(driver.execute(statement).fetchall())
            else:
                found = {row[0]: row[1] for row in db.exec_driver_sql(statement)}
        except database_errors() as error:
            if trouble_in(error) is not None:
                raise
            raise OwnRefused(
                f"table {self._table.fullname}, which says what was applied, can't be read: {first_line(error)}"
            ) from error
        return {partition: checked_mark(self._table, partition, mark) for partition, mark in found.items()}

    def _statement(self, db: Connection) -> str:
        if not self._text:
            columns = self._table.c
            statement: Select[tuple[int, int]] = select(columns.partition, columns.high_water_mark)
            if db.dialect.name == POSTGRESQL:
                # On the way, so that it takes no trip of its own: see `read_whole_floats`.
                statement = statement.add_columns(func.set_config(*DIGITS, True))
            self._text = str(statement.compile(db.engine, compile_kwargs={"literal_binds": True}))
        return self._text
