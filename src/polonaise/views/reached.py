"""What a view's database has to hold, at least: one that has stepped back is not read before it has caught up."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from typing import Final, cast

from sqlalchemy import Connection, func, select
from sqlalchemy.sql import Select

from polonaise.client.running import IN_CONTEXT
from polonaise.errors import ViewUnavailable
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.views.databaseerrors import OwnRefused, database_errors, first_line, trouble_in
from polonaise.views.dialects import DIGITS, POSTGRESQL, SQLITE
from polonaise.views.marks import Marks, checked_mark

_DONE_AGAIN: Final = (
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
        self._had: set[PartitionId] = set()
        self.told = False
        self.told_epoch = False
        self.behind: frozenset[PartitionId] = frozenset()
        """The partitions that were below their marks when the database was last read."""

    def note(self, partition: PartitionId, mark: TransactionId) -> None:
        """Note the mark before the client is told it. Safe to be called by several threads."""
        self.found(partition, mark)
        # One thread at a time has the partition.
        if mark > self._marks.get(partition, NO_TRANSACTION):
            self._marks[partition] = mark

    def found(self, partition: PartitionId, mark: TransactionId) -> None:
        """Note a mark that a worker is told, who may refuse it: for reads counts what it applies."""
        self.told = True
        if mark > NO_TRANSACTION:
            self._had.add(partition)

    def had(self, partition: PartitionId) -> bool:
        """Whether a client or a worker was told that something of the partition is applied."""
        return partition in self._had

    @property
    def had_any(self) -> bool:
        return bool(self._had)

    def forget(self) -> None:
        """Forget all marks: another client, or another log, begins anew."""
        self._marks = {}
        self._had = set()
        self.told = self.told_epoch = False
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
        self.behind = self.behind - marks.keys() | below.keys()
        if below:
            partition, mark = next(iter(below.items()))
            raise ViewUnavailable(
                f"the database has stepped back: partition {partition} was applied up to {mark}, and table "
                f"{self._table.fullname} says {found.get(partition, NO_TRANSACTION)}: {_DONE_AGAIN}"
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
