"""Notices marks that were lost: without them a view would begin as new, and apply a second time what it has."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Column, Connection, Integer, Table, bindparam, inspect, literal, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from polonaise.errors import ViewUnfit
from polonaise.terms import NO_TRANSACTION, PartitionId
from polonaise.views.columns import transactional_table
from polonaise.views.databaseerrors import Trouble, first_line, trouble_in
from polonaise.views.fitness import check_tables, create_tables
from polonaise.views.marks import DefinitionKept, Marks
from polonaise.views.writerconnection import WriterConnection

_log = logging.getLogger("polonaise.views")

_AGAIN: Final = "and the log brings everything again"


def check_rows_kept(db: Connection, marks: Marks, tables: Sequence[Table]) -> None:
    """Raise `ViewUnfit` if none of these tables is there, and the marks say that something was applied to them."""
    inspector, table = inspect(db), marks.table
    if not tables or not inspector.has_table(table.name, schema=table.schema):
        return
    if any(inspector.has_table(each.name, schema=each.schema) for each in tables):
        return
    check_tables(db, [], [table])
    if any(mark > NO_TRANSACTION for mark in marks.all(db).values()):
        raise ViewUnfit(
            f"none of the tables {', '.join(each.fullname for each in tables)} is there, and {table.fullname} says "
            f"that something was applied to them: restore them from a backup; or drop {table.fullname}, too, {_AGAIN}"
        )


def check_rows_made(db: Connection, table: Table, marks: Marks, kept: DefinitionKept) -> None:
    """Raise `ViewUnfit` if the table of a pipeline holds rows, and neither a mark nor a definition says who made them.

    They are another application's, or the view's own without what belongs to them.
    """

    def is_made() -> bool:
        return kept.read(db) is not None or any(mark > NO_TRANSACTION for mark in marks.all(db).values())

    # Again after the rows: another process may have made the first ones meanwhile.
    if is_made() or not holds_rows(db, table) or is_made():
        return
    raise ViewUnfit(
        f"table {table.fullname} holds rows, and neither {marks.table.fullname} nor {kept.table.fullname} says that "
        "its view made them. If they are another application's, give the view another name, or another database; if "
        "they are the view's, restore the three tables from a backup of one moment, or empty this one, "
        f"{_AGAIN}"
    )


def holds_rows(db: Connection, table: Table) -> bool:
    """Whether the table has a row."""
    return db.execute(select(literal(1)).select_from(table).limit(1)).first() is not None


class LostMarks:
    """Remembers, in a table beside that of the marks, which partitions were given one.

    A partition in it that has no mark has lost it, unless the view's tables are empty: then everything was emptied
    together, and the view begins anew. Where the table is missing and may not be made, nothing is noticed.
    """

    def __init__(self, marks: Marks, tables: Sequence[Table]) -> None:
        """`tables` are those that the view keeps; none if it does not name them."""
        self._marks = marks
        self._tables = tables
        self.table = transactional_table(
            f"{marks.table.name}_given",
            Column("partition", Integer, primary_key=True, autoincrement=False),
            schema=marks.table.schema,
        )
        self._select = select(self.table.c.partition).where(self.table.c.partition == bindparam("at"))
        self._there = False
        self._remembered: set[PartitionId] = set()

    def prepare(self, writer: WriterConnection, *, create: bool) -> None:
        """Look whether the table is there, and check it; with `create`, make it if it is missing.

        Raises `ViewUnfit` for one of another shape.
        """
        self._remembered.clear()
        if create:
            try:
                create_tables(writer, [self.table])
            except DBAPIError as error:
                if trouble_in(error) not in (None, Trouble.PASSING):
                    raise
                what = "table %s can't be made, so a loss of high-water marks would not be noticed: %s"
                _log.warning(what, self.table.fullname, first_line(error))
        with writer.transaction() as db:
            self._there = inspect(db).has_table(self.table.name, schema=self.table.schema)
            if self._there:
                check_tables(db, [], [self.table])

    def check_new(self, db: Connection, partition: PartitionId, cluster: str) -> None:
        """Raise `ViewUnfit` if a partition without a mark had one, while the view's tables hold rows."""
        if not self._there or not self._has(db, partition):
            return
        held = next((table.fullname for table in self._tables if holds_rows(db, table)), "")
        if self._tables and not held:
            return
        # The mark last: another process may have written it, and applied rows, since it was found to be missing.
        if self._marks.read(db, partition, cluster) is None:
            raise ViewUnfit(
                f"partition {partition} had a high-water mark in table {self._marks.table.fullname} and has none, "
                f"while {held or 'the view'} holds what was applied: beginning anew would apply it a second time. "
                "Restore all of the view's tables from a backup of one moment; or empty them, "
                f"{self._marks.table.fullname} and {self.table.fullname}, {_AGAIN}"
            )

    def remember(self, db: Connection, partition: PartitionId) -> None:
        """Remember that the partition has a mark, in the transaction that gives it one."""
        if self._there and not self._has(db, partition):
            db.execute(self.table.insert(), {"partition": partition})

    def remember_found(self, writer: WriterConnection, partition: PartitionId) -> None:
        """Remember a mark that was found: one of an earlier version, or one that was written by hand."""
        if self._there and partition not in self._remembered:
            with contextlib.suppress(IntegrityError), writer.transaction() as db:
                self.remember(db, partition)
            self._remembered.add(partition)

    def _has(self, db: Connection, partition: PartitionId) -> bool:
        return db.execute(self._select, {"at": partition}).one_or_none() is not None
