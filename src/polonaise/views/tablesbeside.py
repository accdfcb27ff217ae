"""Tables of marks, and of what remembers them, beside those of a view, a target or a pipeline.

Who keeps such tables calls what is here, and not the checks of each kind: the order of these matters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias

from sqlalchemy import Connection, MetaData, Table

from polonaise.errors import ViewUnavailable, ViewUnfit, WorkerFenced
from polonaise.terms import NO_TRANSACTION, OwnKind, PartitionId, Transaction, TransactionId
from polonaise.views.claimedtables import ClaimedTables
from polonaise.views.columntypes import check_types, deletion
from polonaise.views.databaseerrors import not_refused
from polonaise.views.fitness import check_key, check_key_texts, check_spelling, check_tables, create_tables, has_table
from polonaise.views.lostmarks import AGAIN, LostMarks, holds_rows
from polonaise.views.marks import (
    CLAIM,
    DefinitionKept,
    Fences,
    LeftOut,
    Marks,
    OnceKept,
    dead_letters,
    first_row,
    refused_rows,
)
from polonaise.views.writerconnection import WriterConnection

_LOOKS_S_MAX: Final = 10.0
"""For how many seconds a thread waits for another one that looks at the tables."""


def check_rows_kept(db: Connection, marks: Marks, tables: Sequence[Table], beside: Sequence[Table] = ()) -> None:
    """Raise `ViewUnfit` if none of these tables is there, and the marks say that something was applied to them. To
    begin anew, those `beside` the marks have to go, too."""
    table = marks.table
    if not tables or not has_table(db, table) or any(has_table(db, each) for each in tables):
        return
    check_tables(db, [], [table])
    if any(mark > NO_TRANSACTION for mark in marks.all(db).values()):
        memory = " and ".join(each.fullname for each in [table, *beside])
        raise ViewUnfit(
            f"none of the tables {', '.join(each.fullname for each in tables)} is there, and {table.fullname} says "
            f"that something was applied to them: restore them from a backup; or drop {memory}, too, {AGAIN}"
        )


def check_kept(db: Connection, tables: Sequence[Table], whose: str) -> None:
    """Raise `ViewUnfit` if one of these tables of a view's or a target's, which were there, is gone."""
    gone = [table.fullname for table in tables if not has_table(db, table)]
    was, now, them = ("was", "is", "it") if len(gone) == 1 else ("were", "are", "them")
    if gone:
        raise ViewUnfit(
            f"{' and '.join(gone)} {was} there and {now} gone, and {now} not made again by this process: put {them} "
            f"back, or restore all of {whose}'s tables from a backup of one moment. To begin anew from the log, drop "
            "or empty all of them, and start this process again"
        )


def tables_of(metadata: MetaData | None) -> list[Table]:
    """Return the application's tables; none if it does not name them."""
    return metadata.sorted_tables if metadata is not None else []


class TablesBeside:
    """The application's tables, that of their marks, and that of claims, which remembers what marks are of: makes what
    is missing, and checks all of it, until work begins with them. From then on it makes none: one that is gone has gone
    with its rows, and may be put back."""

    def __init__(
        self, metadata: MetaData | None, claimed: ClaimedTables, *, create: bool, others: Sequence[Table] = ()
    ) -> None:
        """`metadata` has the application's tables, which are `claimed`; `others` are Polonaise's own, beside those that
        `claimed` knows. `create` says whether missing ones are made."""
        self.marks = claimed.marks
        self._began = False
        self._whose = claimed.whose
        self._metadata = metadata
        self._create = create
        self._claimed = claimed
        self._keys = [] if claimed.keys is None else [claimed.keys]
        self._own = [self.marks.table, *self._keys, *others]
        self._preparing = threading.Lock()
        self._prepared: set[Table] = set()
        """The tables that were looked at and found fit. That of marks stands for all but those that only some need."""

    @property
    def began(self) -> bool:
        """Whether somebody was told what is applied: the tables were all there, and fit, then. Other threads may tell
        it at any time: whoever decides several things by it reads it once."""
        return self._began

    def note_told(self) -> None:
        """Note that somebody is told what is applied, so that work begins."""
        self._began = True

    @property
    def tables(self) -> list[Table]:
        return tables_of(self._metadata)

    @property
    def names(self) -> list[str]:
        """The names of Polonaise's own tables."""
        return [each.name for each in [*self._own, self._claimed.table]]

    def prepare(self, writer: WriterConnection, *, again: bool = False) -> None:
        """Make the tables that are missing, and check all of them, unless that was done already; with `again`, in any
        case. Raises `ViewUnfit`, and once work has begun, `ViewUnavailable`, as also while another thread that does so
        gets no answer; `OwnRefused` as `not_refused`."""
        if not again and self.marks.table in self._prepared:
            return
        with not_refused(self._whose), self._looking() as prepared:
            if again or self.marks.table not in prepared:
                began = self.began
                with self._unfit_for_now(began):
                    self._prepare(writer, begins=not began)
                prepared.add(self.marks.table)

    def look_again(self) -> None:
        """Have the tables looked at again before anything is read or applied: the database may be another one. Waits
        for nobody."""
        # Another set: what a thread finds that looks at them just now, at the one before, does not count.
        self._prepared = set()

    @contextmanager
    def _looking(self) -> Iterator[set[Table]]:
        """Let one thread at a time make and check tables. Yields the set to which it adds what it finds fit. Raises
        `ViewUnavailable` if the one before it takes too long."""
        if not self._preparing.acquire(timeout=_LOOKS_S_MAX):
            # The same text each time: who hears it again and again logs it once.
            raise ViewUnavailable(
                f"another thread of this process looks at {self._whose}'s tables ({self.marks.table.fullname} and "
                f"others), and has had no answer from the database for {_LOOKS_S_MAX:g} seconds: see whether the "
                "database answers, and what holds locks on these tables. It is tried again"
            )
        try:
            yield self._prepared
        finally:
            self._preparing.release()

    def _prepare(self, writer: WriterConnection, *, begins: bool) -> None:
        create = self._create and begins
        if begins:
            with writer.transaction() as db:
                self._check_before(db, create=create)
        if create:
            create_tables(writer, [*self.tables, *self._own])
        with writer.transaction() as db:
            if not begins:
                check_kept(db, [*self.tables, *self._own], self._whose)
            check_tables(db, self.tables, self._own)
        if begins or self._claimed.remembers:
            self._claimed.prepare(writer, create=create)

    def _check_before(self, db: Connection, *, create: bool) -> None:
        """Raise `ViewUnfit` for tables that were lost, before any is made: a new one of that name would be in the way
        of a backup, or of whoever renamed it."""
        # First: whoever has given a view the marks of another one would be told to drop these.
        self._claimed.check_own(db)
        if create:
            check_rows_kept(db, self.marks, [*self.tables, *self._keys])
            self._claimed.check_marks_kept(db)
        self._claimed.check_kept(db, create=create)

    @contextmanager
    def _unfit_for_now(self, began: bool) -> Iterator[None]:
        """Raise `ViewUnavailable` for tables that are unfit, if work has begun with them: they were fit then. They may
        be met while somebody restores or renames them, one by one: so it is tried again until they are fit."""
        try:
            yield
        except ViewUnfit as error:
            if not began:
                raise
            raise ViewUnavailable(f"{self._whose}'s tables are not as they were: {error.text}") from error


class ViewTables(TablesBeside):
    """The tables of a view, with those of the keys of `log.once` and of a worker group's epochs, and what of their
    marks was told, from when the view is opened until it is closed. Each method is whole SQL transactions, or says
    whose transaction it is called in."""

    _claimed: LostMarks

    def __init__(self, metadata: MetaData | None, marks_table: str, once_table: str | None, *, create: bool) -> None:
        schema = metadata.schema if metadata is not None else None
        self.once = None if once_table is None else OnceKept(once_table, schema)
        keys = None if self.once is None else self.once.table
        marks = Marks(marks_table, schema)
        claimed = LostMarks("the view", f"{marks_table}_given", marks, tables_of(metadata), keys)
        super().__init__(metadata, claimed, create=create)
        self.fences = Fences(f"{marks_table}_fence", schema)
        self.reached = self._claimed.reached
        self._told_epoch = False

    @property
    def names(self) -> list[str]:
        return [each.name for each in [self.marks.table, self._claimed.table, self.fences.table, *self._keys]]

    def prepare_epochs(self, writer: WriterConnection) -> None:
        """Prepare the tables, and that of epochs, which only a view of a worker group has."""
        self.prepare(writer)
        epochs = self.fences.table
        if epochs in self._prepared:
            return
        with not_refused(self._whose), self._looking() as prepared:
            if epochs in prepared:
                return
            # Not whether work has begun: a client, which has no epochs, may have begun it.
            had = self._told_epoch
            if self._create and not had:
                create_tables(writer, [epochs])
            with writer.transaction() as db, self._unfit_for_now(had):
                if had:
                    check_kept(db, [epochs], self._whose)
                check_tables(db, [], [epochs])
            prepared.add(epochs)

    def _check_before(self, db: Connection, *, create: bool) -> None:
        super()._check_before(db, create=create)
        self._claimed.check_keys(db)

    def belongs_to(self, cluster: str) -> None:
        """Have the marks be those of this log, by its key in hexadecimal, and forget what was told: another client, or
        another log, begins anew."""
        self.marks.cluster = cluster
        self._began = self._told_epoch = False
        self._claimed.forget()

    def tell_mark(self, writer: WriterConnection, partition: PartitionId, *, to_worker: bool = False) -> TransactionId:
        """Return the partition's mark, which a client goes by, or a worker, who may refuse it: -1 for a new one."""
        mark = self._first_mark(writer, partition)
        self.note_told()
        (self.reached.found if to_worker else self.reached.note)(partition, mark)
        return mark

    def moved(self, partition: PartitionId, mark: TransactionId) -> None:
        """Note that a transaction is committed in which the mark was moved."""
        self.note_told()
        self.reached.note(partition, mark)

    def _first_mark(self, writer: WriterConnection, partition: PartitionId) -> TransactionId:
        """Return the partition's mark, after writing its first row if it has none."""
        is_empty = False
        with writer.transaction() as db:
            mark = self.marks.read(db, partition)
            if mark is None:
                with self._unfit_for_now(self.began):
                    is_empty = self._claimed.check_new(db, partition)
        if is_empty:
            self._claimed.begin_anew_for(writer, partition)
        if mark is None:
            mark = first_row(writer, self.marks.table, partition, self._add_mark, self.marks.read)
        self._claimed.met(writer, partition)
        return mark

    def _add_mark(self, db: Connection, partition: PartitionId) -> None:
        self.marks.add(db, partition)
        self._claimed.remember(db, partition)

    def claim(self, writer: WriterConnection, number: int, ended: int | None) -> int:
        """Claim the epochs for a group if nobody has, or the `ended` one has. Return the number of who has them."""
        with writer.transaction() as db:
            if ended is not None:
                self.fences.replace_claim(db, ended, number)
            found = self.fences.read(db, CLAIM)
        if found is not None:
            return found
        return first_row(writer, self.fences.table, CLAIM, partial(self.fences.add, epoch=number), self.fences.read)

    def take_over(self, writer: WriterConnection, partition: PartitionId) -> tuple[TransactionId, int]:
        """Raise the partition's epoch, which fences who had it before. Return the mark behind that, and the epoch."""
        while True:
            with writer.transaction() as db:
                epoch = self.fences.take_over(db, partition)
                mark = self.marks.read(db, partition)
            if epoch is not None and mark is not None:
                self._claimed.met(writer, partition)
                self.reached.found(partition, mark)
                self.note_told()
                self._told_epoch = True
                return mark, epoch
            if epoch is None:
                first_row(writer, self.fences.table, partition, self.fences.add, self.fences.read)
            self._first_mark(writer, partition)

    def begin(self, db: Connection, run: Sequence[Transaction], epoch: int | None) -> bool:
        """Begin the run's own transaction: move the mark, which `finish` ends; return False if it is elsewhere. Raises
        `WorkerFenced` if the partition has another epoch than that of the worker, if it is one."""
        partition = run[0].partition
        if epoch is not None and not self.fences.hold(db, partition, epoch):
            raise WorkerFenced(
                f"partition {partition} was taken over from this worker, which had epoch {epoch}: it goes on there"
            )
        # The mark first: its row is locked from then on, so that of several processes only one applies the run. Until
        # the end it says that the run is under way: should application code commit a part of it, and this process die,
        # the next one sees that.
        return self.marks.begin(db, partition, run[0].id - 1, run[-1].id)

    def finish(self, db: Connection, run: Sequence[Transaction]) -> None:
        """End what `begin` began, as the last statement of its transaction."""
        with not_refused(self._whose):
            self.marks.finish(db, run[0].partition, run[-1].id)

    def keep_keys(self, db: Connection, run: Sequence[Transaction]) -> None:
        """Keep the keys of `log.once` that are in the run, in its transaction. Raises `ViewUnfit`, or as `prepare`, if
        this view keeps none while they are kept in this database."""
        if self.once is not None:
            self.once.keep_all(db, run)
        elif any(tx.own and tx.header == OwnKind.ONCE for tx in run):
            with self._unfit_for_now(self.began):
                self._claimed.check_keys(db, prepared=True)


MarkMap: TypeAlias = Mapping[PartitionId, TransactionId]
"""By partition: the last id whose rows are in a table; -1 for none."""


class PipelineTables:
    """A table whose rows a pipeline makes, and those beside it: of its marks, of the definition by which its rows were
    made, and of what was left out. Each method is called within a transaction, by a caller who tries it again."""

    def __init__(self, table: Table, marks: Marks, definition: str, types: Mapping[str, str]) -> None:
        """`types` are those of the columns in the view, by name, as Spark writes them."""
        self.kept = DefinitionKept(f"{table.name}_definition")
        self.letters = dead_letters(table.name)
        self.refused = refused_rows(table.name)
        self.needed = [table, marks.table, self.kept.table]
        """Those without which nothing is written."""
        self._table = table
        self._marks = marks
        self._definition = definition
        self._types = types
        self._remembered: set[PartitionId] = set()
        """Partitions whose rows the table of the definition says are there."""

    @property
    def names(self) -> list[str]:
        return [each.name for each in [*self.needed, self.letters.table, self.refused.table]]

    def check_before(self, db: Connection) -> None:
        """Raise `ViewUnfit` if the table is gone: made anew beside its marks, it would lack what was added before."""
        self._remembered.clear()
        check_rows_kept(db, self._marks, [self._table], [self.kept.table])

    def check(self, db: Connection) -> None:
        """Raise `ViewUnfit` unless the tables that are needed are fit, and the rows are those of the marks."""
        own = self.needed[1:]
        check_spelling(db, self.needed)
        check_tables(db, [self._table], own)
        check_key_texts(db, self._table)
        check_key(db, self._table)
        self._check_rows_made(db)
        check_types(db, self._table, self._types, " and ".join(each.name for each in own))

    def check_marks_kept(self, db: Connection) -> None:
        """Raise `ViewUnfit` if marks are lost, or nobody knows who made the rows; see `MarkedTable`."""
        self._check_rows_made(db)
        # The marks last: whoever makes the table writes its first marks before its definition.
        if (self.kept.read(db) is not None and not self._marks.all(db)) or self.kept.lost(db, self._marks):
            raise self._marks_lost()

    def check_left_out_kept(self, db: Connection, left_out: LeftOut) -> None:
        """Raise `ViewUnfit` if a table of what was left out is gone: made anew, it would lack what came before."""
        # The table last: another process may make it, and commit that it did, meanwhile.
        if self.kept.was_made(db, left_out.number) and not has_table(db, left_out.table):
            raise ViewUnfit(
                f"table {left_out.table.fullname} was there and is gone: made anew, it would lack what was left out "
                "before. Put it back, or rebuild the view (polonaise pipeline views --rebuild), which brings all of it "
                f"again. To go on with an empty one: {deletion(db, self.kept.table.c.number, [left_out.number])}"
            )

    def move(self, db: Connection, before: MarkMap, after: MarkMap, *, replaces: bool) -> bool:
        """Move the marks in the transaction that writes the rows; if it `replaces` them, empty the tables, too. Return
        False, for the transaction to be rolled back, if the marks are elsewhere, or the rows were made otherwise."""
        # In one order everywhere, so that two processes do not wait for each other's rows.
        for partition in sorted(after):
            if not self._marks.move(db, partition, before.get(partition, -1), after[partition]):
                return False
        held = _held(after)
        new = held - _held(before)
        if replaces:
            db.execute(self._table.delete())
            self.letters.clear(db)
            self.refused.clear(db)
            self.kept.replace(db, self._definition)
            self.kept.remember(db, held)
        elif not self.kept.agrees(db, self._definition, new=not _held(before)):
            return False
        # Those that an earlier version has added are remembered as they are met.
        elif unknown := new | (held - self._remembered):
            known = self.kept.partitions(db)
            if new & known:
                raise self._marks_lost()
            self.kept.remember(db, unknown - known)
        return True

    def committed(self, after: MarkMap) -> None:
        self._remembered |= _held(after)

    def _check_rows_made(self, db: Connection) -> None:
        """Raise `ViewUnfit` if the table holds rows, and neither a mark nor a definition says who made them. They are
        another application's, or the view's own without what belongs to them."""

        def is_made() -> bool:
            return self.kept.read(db) is not None or bool(_held(self._marks.all(db)))

        # Again after the rows: another process may have made the first ones meanwhile.
        if is_made() or not holds_rows(db, self._table) or is_made():
            return
        marks, kept = self._marks.table.fullname, self.kept.table.fullname
        raise ViewUnfit(
            f"table {self._table.fullname} holds rows, and neither {marks} nor {kept} says that its view made them. If "
            "they are another application's, give the view another name, or another database; if they are the view's, "
            f"restore the three tables from a backup of one moment, or empty this one, {AGAIN}"
        )

    def _marks_lost(self) -> ViewUnfit:
        return ViewUnfit(
            f"table {self._marks.table.fullname} has lost marks, so what table {self._table.name} holds is not known; "
            f"adding to it would count that twice. Restore both, and {self.kept.table.name}, from a backup of one "
            "moment, or rebuild the view (polonaise pipeline views --rebuild)"
        )


def _held(marks: MarkMap) -> set[PartitionId]:
    """Return the partitions of which something is in the table."""
    return {each for each, mark in marks.items() if mark > NO_TRANSACTION}
