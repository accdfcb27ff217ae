"""Remembers which tables marks are of, and so notices one of them that is gone, or another view that has them.

A table that was lost alone would be made anew, empty, while the marks go on: it would lack what was applied before.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import ClassVar, Final

from sqlalchemy import Column, Connection, Integer, Table, inspect, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from polonaise.errors import ViewUnfit
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.views.columntypes import OTHER_NAME, deletion, transactional_table
from polonaise.views.databaseerrors import Trouble, first_line, trouble_in
from polonaise.views.fitness import check_tables, create_tables, has_table
from polonaise.views.marks import Marks
from polonaise.views.writerconnection import WriterConnection

_log = logging.getLogger("polonaise.views")

_CLAIMED: Final = -1
"""The number of no partition, which the first view writes to whom the marks belong: of two at once, one does."""
_CLAIM_TRIES: Final = 5
_KEYS_FROM: Final = -2 - 2**30
"""The highest number that stands for a table of keys; those of other tables are above."""
_BEGUN_FROM: Final = _KEYS_FROM - 2**29
"""The highest number that stands for a beginning of the view's tables."""
_TOLD_MAX: Final = 10
"""The most partitions that a warning names."""


class ClaimedTables:
    """The tables that marks are of, by negative numbers in a table beside the marks. Its numbers from 0 on are
    partitions, which `LostMarks` remembers there. Without that table nothing is noticed."""

    remembers: ClassVar[bool] = False
    """Whether partitions are remembered, with each first mark."""

    def __init__(self, whose: str, name: str, marks: Marks, tables: Sequence[Table], keys: Table | None = None) -> None:
        """`tables` are those that are kept, none if they are not named; `keys` is that of the keys of `log.once`.
        `whose` says in messages who keeps them ("the view")."""
        self.whose = whose
        self.marks = marks
        self._tables = {_number_of(each.name): each for each in tables}
        self._keys = {} if keys is None else {_number_of_keys(keys.name): keys}
        self.keys = keys
        self.table = transactional_table(
            name, Column("partition", Integer, primary_key=True, autoincrement=False), schema=marks.table.schema
        )
        self.there = False
        """Whether the table was there when it was prepared."""
        self.beginning: int | None = None
        """The last known beginning: a number, made at random when all was found empty; None before the first time."""

    def prepare(self, writer: WriterConnection, *, create: bool) -> None:
        """Look whether the table is there, and check it; with `create`, make it if it is missing. Claim the tables.
        Raises `ViewUnfit` for one of another shape, and if the marks are of other tables, which are there."""
        if create:
            try:
                create_tables(writer, [self.table])
            except DBAPIError as error:
                if trouble_in(error) not in (None, Trouble.PASSING):
                    raise
                what = "table %s can't be made, so a loss of high-water marks would not be noticed: %s"
                _log.warning(what, self.table.fullname, first_line(error))
        with writer.transaction() as db:
            self.there = has_table(db, self.table)
            if self.there:
                check_tables(db, [], [self.table])
                self.beginning = self._beginning_in(self._read(db))
        if self.there and (self._tables or self._keys):
            self._claim(writer)

    def check_marks_kept(self, db: Connection) -> None:
        """Raise `ViewUnfit` if the table of marks is gone beside its rows: here never, as a target has its fence."""

    def check_own(self, db: Connection) -> None:
        """Raise `ViewUnfit` if the marks are of other tables, which are there. Called first when a view begins."""
        if others := self._others_in(self._claimed(db)):
            self._check_dropped(db, others)

    def _others_in(self, claimed: set[int]) -> set[int]:
        """Return the numbers of the claimed tables, if these are other ones than are kept here."""
        others = {each for each in claimed if _KEYS_FROM < each < _CLAIMED}
        return others if self._tables and not self._tables.keys() & others else set()

    def check_kept(self, db: Connection, *, create: bool) -> None:
        """Raise `ViewUnfit` if a table that was claimed is gone, and the marks say that something was applied to it.
        One that was never claimed is a later version's: with `create` a warning tells from which ids on it has rows. To
        be called before tables are made."""
        if not self._missing(db) or not has_table(db, self.marks.table):
            return
        check_tables(db, [], [self.marks.table])
        marks = {at: mark for at, mark in self.marks.all(db).items() if at >= 0 and mark > NO_TRANSACTION}
        if not marks:
            return
        claimed = self._claimed(db)
        # The tables last: another process may have made them, and applied rows, since they were found to be missing.
        missing = self._missing(db)
        for number, table in missing.items():
            if number in claimed:
                raise ViewUnfit(self._gone(db, number, table))
        if missing and create:
            self._tell_new(missing.values(), marks)

    def look(self, db: Connection) -> int | None:
        """Return the beginning that is in the table, if any: another process may have made it."""
        found = self._beginning_in(self._read(db))
        self.beginning = self.beginning if found is None else found
        return found

    def begin_anew(self, writer: WriterConnection) -> None:
        """Note that all was found empty, and begins anew: forget partitions without a mark, claim the tables again."""
        number, marks = self.table.c.partition, self.marks.table.c.partition
        beginning = _BEGUN_FROM - secrets.randbelow(2**29 - 1)
        # Of several partitions that find it empty at once, one writes it.
        with contextlib.suppress(IntegrityError), writer.transaction() as db:
            db.execute(self.table.delete().where(number >= 0, number.not_in(select(marks))))
            db.execute(self.table.delete().where(number <= _BEGUN_FROM))
            rows = {_CLAIMED, *self._tables, *self._keys, beginning} - self._read(db)
            db.execute(self.table.insert(), [{"partition": each} for each in sorted(rows)])
            self.beginning = beginning

    @staticmethod
    def _beginning_in(numbers: Iterable[int]) -> int | None:
        return min((each for each in numbers if each <= _BEGUN_FROM), default=None)

    def check_keys(self, db: Connection, *, prepared: bool = False) -> None:
        """Raise `ViewUnfit` if the keys of `log.once` are kept in a table that is not this view's. A key in what this
        view applies would be in no table, and what was done under it would be done again. With `prepared`, the table
        that tells it was looked at before."""
        claimed = self._read(db) if prepared and self.there else self._claimed(db)
        kept = {each for each in claimed if _BEGUN_FROM < each <= _KEYS_FROM} - self._keys.keys()
        if not kept:
            return
        there = inspect(db).get_table_names(self.table.schema)
        names = [each for each in there if _number_of_keys(each) in kept]
        kept_in = f"table {', '.join(names)} keeps" if names else "a table that is gone kept"
        mine = f", and not {', '.join(each.fullname for each in self._keys.values())}" if self._keys else ""
        raise ViewUnfit(
            f"{kept_in} the keys of log.once{mine}: keys that this process applies would be missing there. Set "
            f"once_table to {names[0] if names else 'its name'} in the class of the view, as every process that keeps "
            f"this database has to; or if these keys are not needed any more: {self._forget(db, kept)}"
        )

    def _missing(self, db: Connection) -> Mapping[int, Table]:
        return {at: each for at, each in (self._tables | self._keys).items() if not has_table(db, each)}

    def _gone(self, db: Connection, number: int, table: Table) -> str:
        keys = number in self._keys
        loss = "what was done under the keys of log.once in it would be done again" if keys else "it would lack that"
        return (
            f"table {table.fullname} was there and is gone, and {self.marks.table.fullname} says that something was "
            f"applied to it: made anew, {loss}. Put it back, or restore all of {self.whose}'s tables from a backup of "
            f"one moment; or drop all of them, {self.marks.table.fullname} and what is beside it, and the log brings "
            f"everything again. To begin {'without these keys' if keys else 'with an empty one'} here: "
            f"{self._forget(db, [number])}"
        )

    def _tell_new(self, tables: Iterable[Table], marks: Mapping[PartitionId, TransactionId]) -> None:
        begins = [f"{at} from id {marks[at] + 1} on" for at in sorted(marks)[:_TOLD_MAX]]
        more = f" and {len(marks) - _TOLD_MAX} more" if len(marks) > _TOLD_MAX else ""
        what = (
            "table %s is new, and lacks what was applied before: it gets rows of partition %s. Nor does it get "
            "what processes apply that do not know it. To have all of it there, end all processes, drop all of %s's "
            "tables, %s and what is beside it, and the log brings everything again"
        )
        names = ", ".join(each.fullname for each in tables)
        _log.warning(what, names, ", ".join(begins) + more, self.whose, self.marks.table.fullname)

    def _forget(self, db: Connection, numbers: Iterable[int]) -> str:
        return deletion(db, self.table.c.partition, numbers)

    def _claimed(self, db: Connection) -> set[int]:
        if not has_table(db, self.table):
            return set()
        check_tables(db, [], [self.table])
        return self._read(db)

    def _read(self, db: Connection) -> set[int]:
        number = self.table.c.partition
        return set(db.execute(select(number).where(number < 0)).scalars())

    def _claim(self, writer: WriterConnection) -> None:
        """Remember which tables these marks are of. Raises `ViewUnfit` if they are of others, which are there."""
        mine = {*self._tables, *self._keys}
        for _ in range(_CLAIM_TRIES):
            try:
                with writer.transaction() as db:
                    kept = self._read(db)
                    if mine <= kept:
                        return
                    if others := self._others_in(kept):
                        self._check_dropped(db, others)
                        over = {_CLAIMED, *others}
                        db.execute(self.table.delete().where(self.table.c.partition.in_(over)))
                        kept -= over
                    db.execute(self.table.insert(), [{"partition": each} for each in sorted({_CLAIMED, *mine} - kept)])
                    return
            except IntegrityError:
                continue  # another process writes them just now
            except DBAPIError as error:
                if trouble_in(error) is not None:
                    raise
                what = "table %s takes no rows, so marks of another view would not be noticed: %s"
                _log.warning(what, self.table.fullname, first_line(error))
                return

    def _check_dropped(self, db: Connection, kept: set[int]) -> None:
        others = [each for each in inspect(db).get_table_names(self.table.schema) if _number_of(each) in kept]
        if others:
            another = f"another {self.whose.removeprefix('the ')}"
            raise ViewUnfit(
                f"table {self.marks.table.fullname} holds the marks of {another}, which keeps {', '.join(others)} "
                f"and not {', '.join(table.fullname for table in self._tables.values())}: {OTHER_NAME}. On some "
                "databases names that differ only in case are the same"
            )


def _number_of(name: str) -> int:
    """Return the negative number that stands for a table's name, whatever its case: some databases make it lower."""
    return -2 - (_hash(name) >> 2)


def _number_of_keys(name: str) -> int:
    return _KEYS_FROM - (_hash(name) >> 3)


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.lower().encode(), digest_size=4).digest())
