"""Tables of marks, and what remembers them, beside those of a view or a target: all of them are made and checked here.

Whoever keeps such tables calls what is here, and not the checks of each kind: their order matters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from sqlalchemy import Connection, MetaData, Table

from polonaise.errors import ViewUnavailable, ViewUnfit, WorkerFenced
from polonaise.terms import OwnKind, PartitionId, Transaction, TransactionId
from polonaise.views.claimedtables import ClaimedTables
from polonaise.views.databaseerrors import not_refused
from polonaise.views.fitness import check_tables, create_tables
from polonaise.views.lostmarks import LostMarks, Reached, check_kept, check_rows_kept
from polonaise.views.marks import CLAIM, Fences, Marks, OnceKept, first_row
from polonaise.views.writerconnection import WriterConnection


class TablesBeside:
    """The application's tables, that of their marks, and that of claims, which remembers what marks are of: makes what
    is missing, and checks all of it, until work begins with them. From then on it makes none: one that is gone has gone
    with its rows, and may be put back."""

    def __init__(
        self,
        whose: str,
        metadata: MetaData | None,
        marks: Marks,
        claims: str,
        *,
        create: bool,
        others: Sequence[Table] = (),
        keys: Table | None = None,
    ) -> None:
        """`whose` tables they are is said in messages ("the view"), `metadata` has the application's, and `claims` is
        the name of the table of claims. `others` are further tables that all of them need; `keys` is that of the keys
        of `log.once`. `create` says whether missing ones are made."""
        self.marks = marks
        self.began = False
        """Whether somebody was told what is applied: the tables were all there, and fit, then."""
        self._whose = whose
        self._metadata = metadata
        self._create = create
        self._keys = [] if keys is None else [keys]
        self._own = [marks.table, *self._keys, *others]
        self._claimed = ClaimedTables(whose, claims, marks, self.tables, keys)
        self._preparing = threading.Lock()
        self._is_prepared = False

    @property
    def tables(self) -> list[Table]:
        """The application's tables; none if it does not name them."""
        return self._metadata.sorted_tables if self._metadata is not None else []

    @property
    def names(self) -> list[str]:
        """The names of Polonaise's own tables."""
        return [each.name for each in [*self._own, self._claimed.table]]

    def prepare(self, writer: WriterConnection, *, again: bool = False) -> None:
        """Make the tables that are missing, and check all of them, unless that was done already; with `again`, in any
        case. Raises `ViewUnfit`, and once work has begun, `ViewUnavailable`."""
        with self._preparing:
            if again or not self._is_prepared:
                with self._unfit_for_now():
                    self._prepare(writer, begins=not self.began)
                self._is_prepared = True

    def look_again(self) -> None:
        """Have the tables looked at again before anything is read or applied: the database may be another one."""
        with self._preparing:  # else a thread that looks at them just now, at the one before, would count
            self._is_prepared = False

    def _prepare(self, writer: WriterConnection, *, begins: bool) -> None:
        create = self._create and begins
        if begins:
            with writer.transaction() as db:
                self._check_before(db, create=create)
        if create:
            create_tables(writer, [*self.tables, *self._own])
        with writer.transaction() as db:
            if not begins:
                self._check_under_way(db)
            check_tables(db, self.tables, self._own)
        if begins:
            self._claimed.prepare(writer, create=create)

    def _check_before(self, db: Connection, *, create: bool) -> None:
        """Raise `ViewUnfit` for tables that were lost, before any is made: a new one of that name would be in the way
        of a backup, or of whoever renamed it."""
        # First: whoever has given a view the marks of another one would be told to drop these.
        self._claimed.check_own(db)
        if create:
            check_rows_kept(db, self.marks, [*self.tables, *self._keys])
            self._check_marks_kept(db)
        self._claimed.check_kept(db, create=create)

    def _check_marks_kept(self, db: Connection) -> None:
        """Raise `ViewUnfit` if all marks are gone beside their rows. A target knows that by its fence."""

    def _check_under_way(self, db: Connection) -> None:
        check_kept(db, [*self.tables, *self._own], self._whose)

    @contextmanager
    def _unfit_for_now(self) -> Iterator[None]:
        """Raise `ViewUnavailable` for tables that are unfit once work has begun with them: they were fit then. They may
        be met while somebody restores or renames them, one by one: so it is tried again until they are fit."""
        began = self.began
        try:
            yield
        except ViewUnfit as error:
            if not began:
                raise
            raise ViewUnavailable(f"{self._whose}'s tables are not as they were: {error.text}") from error


class ViewTables(TablesBeside):
    """The tables of a view, with those of the keys of `log.once` and of a worker group's epochs, and what of their
    marks was told. Each method is whole SQL transactions, or says whose transaction it is called in."""

    def __init__(self, metadata: MetaData | None, marks_table: str, once_table: str | None, *, create: bool) -> None:
        schema = metadata.schema if metadata is not None else None
        self.once = None if once_table is None else OnceKept(once_table, schema)
        super().__init__(
            "the view",
            metadata,
            Marks(marks_table, schema),
            f"{marks_table}_given",
            create=create,
            keys=None if self.once is None else self.once.table,
        )
        self.fences = Fences(f"{marks_table}_fence", schema)
        self.reached = Reached(self.marks)
        self._lost = LostMarks(self.marks, self.tables, self._claimed, self.reached)
        self._epochs_prepared = False
        self._told_epoch = False

    @property
    def names(self) -> list[str]:
        return [each.name for each in [self.marks.table, self._claimed.table, self.fences.table, *self._keys]]

    def prepare_epochs(self, writer: WriterConnection) -> None:
        """Prepare the tables, and that of epochs, which only a view of a worker group has."""
        self.prepare(writer)
        with self._preparing:
            if self._epochs_prepared:
                return
            had = self._told_epoch
            if self._create and not had:
                create_tables(writer, [self.fences.table])
            with writer.transaction() as db, self._unfit_for_now():
                if had:
                    check_kept(db, [self.fences.table], self._whose)
                check_tables(db, [], [self.fences.table])
            self._epochs_prepared = True

    def _prepare(self, writer: WriterConnection, *, begins: bool) -> None:
        self._epochs_prepared = False
        self._lost.look_again()
        super()._prepare(writer, begins=begins)
        if not begins:
            self._claimed.prepare(writer, create=False)  # partitions are remembered in it, also under way

    def _check_before(self, db: Connection, *, create: bool) -> None:
        super()._check_before(db, create=create)
        self._claimed.check_keys(db)

    def _check_marks_kept(self, db: Connection) -> None:
        self._lost.check_marks_kept(db)

    def _check_under_way(self, db: Connection) -> None:
        check_kept(db, [*self._own, *self.tables], self._whose)

    def belongs_to(self, cluster: str) -> None:
        """Have the marks be those of this log, by its key in hexadecimal, and forget what was told of another one."""
        self.marks.cluster = cluster
        self.forget()

    def forget(self) -> None:
        """Forget what was told: another client, or another log, begins anew."""
        self.began = self._told_epoch = False
        self.reached.forget()
        self._lost.forget()

    def close(self) -> None:
        """Forget what was told, and that the tables were looked at; waits for nobody who looks at them just now."""
        self._is_prepared = False
        self.forget()

    def tell_mark(self, writer: WriterConnection, partition: PartitionId, *, to_worker: bool = False) -> TransactionId:
        """Return the partition's mark, which a client goes by, or a worker, who may refuse it: -1 for a new one."""
        mark = self._first_mark(writer, partition)
        self.began = True
        (self.reached.found if to_worker else self.reached.note)(partition, mark)
        return mark

    def moved(self, partition: PartitionId, mark: TransactionId) -> None:
        """Note that a transaction is committed in which the mark was moved."""
        self.began = True
        self.reached.note(partition, mark)

    def _first_mark(self, writer: WriterConnection, partition: PartitionId) -> TransactionId:
        """Return the partition's mark, after writing its first row if it has none."""
        is_empty = False
        with writer.transaction() as db:
            mark = self.marks.read(db, partition)
            if mark is None:
                with self._unfit_for_now():
                    is_empty = self._lost.check_new(db, partition)
        if is_empty:
            self._lost.begin_anew(writer, partition)
        if mark is None:
            mark = first_row(writer, self.marks.table, partition, self._add_mark, self.marks.read)
        self._lost.met(writer, partition)
        return mark

    def _add_mark(self, db: Connection, partition: PartitionId) -> None:
        self.marks.add(db, partition)
        self._lost.remember(db, partition)

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
                self._lost.met(writer, partition)
                self.reached.found(partition, mark)
                self.began = self._told_epoch = True
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
            with self._unfit_for_now():
                self._claimed.check_keys(db, prepared=True)
