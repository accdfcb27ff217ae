"""SQL views: tables kept from the log in a SQL database, each transaction applied exactly once."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from sqlalchemy import Connection, Engine, MetaData, Table
from sqlalchemy.engine import URL

from polonaise.client.protocol.oncekeys import OnceRecord
from polonaise.errors import BadOption, ViewUnavailable, ViewUnfit, WorkerFenced
from polonaise.terms import OwnKind, PartitionId, Transaction, TransactionId
from polonaise.views.claimedtables import ClaimedTables
from polonaise.views.database import Database
from polonaise.views.databaseerrors import OwnRefused, database_errors, not_refused, translated, trouble_in
from polonaise.views.dialects import check_names
from polonaise.views.fitness import check_tables, create_tables, unfit_for_now
from polonaise.views.lostmarks import LostMarks, Reached, check_kept, check_rows_kept
from polonaise.views.marks import CLAIM, Fences, Marks, OnceKept, first_row, group_number
from polonaise.views.retrying import Portion
from polonaise.views.worker import Worker, end_all
from polonaise.views.writerconnection import WriterConnection, check_undone

T = TypeVar("T")

_WHOSE: Final = "the view"


class SqlView:
    """A view in a SQL database. Subclass it, name the tables, and write how a transaction changes them::

        class Balances(polonaise.SqlView):
            metadata = schema

            def apply(self, tx, db):
                payment = decode(tx.data)
                db.execute(accounts.update().where(...).values(balance=accounts.c.balance + payment.amount))

        async with polonaise.connect(address, view=Balances("postgresql+psycopg://bank")) as log: ...

    What `apply` does is committed in one SQL transaction with the partition's high-water mark: each transaction counts
    once per database, whatever dies when, and however many processes keep the same database up to date. `apply` and
    `apply_many` run in a thread of the view's: partitions at the same time on PostgreSQL and MariaDB (one thread each,
    up to `workers_max`), all on one thread on SQLite, which has one writer. They may be run again when the database
    ended their transaction (deadlocks are tried again, also if they catch the error), so they must change the database
    and nothing else.

    - `engine`: a SQLAlchemy engine, which stays the application's, or a URL.
    - `create`: whether missing tables (of `metadata`, marks and keys) are made. Existing tables are checked, and
      `ViewUnfit` says what is wrong with them. Beside the marks, `<marks_table>_given` remembers which partitions were
      given one: a mark that was lost while rows are there is refused, because everything would be applied again.
    - `marks_table`: the table of high-water marks. Views that share a database without sharing their tables need one
      each.
    - `workers_max`, `readers_max`: how many threads apply, and how many serve `read`.
    - `busy_s`: how many seconds SQLite waits for another process's write at a time.
    - `close_s_max`: how many seconds `close` waits for a database that does not answer.

    A view belongs to the process that uses it first: after a fork each process makes its own (`Forked`). Raises
    `BadOption` for an engine that a view can't be kept with, and if `apply` or `apply_many` is a coroutine function.
    """

    metadata: ClassVar[MetaData | None] = None
    """The view's tables. The schema of this `MetaData`, if any, is also that of the tables of marks and of keys."""
    isolation_level: ClassVar[str | None] = None
    """The isolation level for applying; None for the engine's own. Where `apply` *reads* rows that other partitions
    change and writes what follows from them, `"SERIALIZABLE"` keeps that right (and retries)."""

    once_table: ClassVar[str | None] = None
    """The table in which the keys of `log.once` are kept, such as `"polonaise_once"`; None keeps none. Every process
    that keeps the same database has to name the same table."""
    takes_own: ClassVar[bool] = True
    """Whether the client hands over own transactions too: the mark passes over them, and `apply_many` gets none."""

    def __init__(
        self,
        engine: Engine | URL | str,
        *,
        create: bool = True,
        marks_table: str = "polonaise_marks",
        workers_max: int = 16,
        readers_max: int = 4,
        busy_s: float = 5.0,
        close_s_max: float = 10.0,
    ) -> None:
        for method in (self.apply, self.apply_many):
            if inspect.iscoroutinefunction(method):
                raise BadOption(
                    f"{method.__qualname__} is a coroutine function, and runs in a thread: write a plain function"
                )
        self._database = Database(engine, self.isolation_level, busy_s)
        self._create = create
        self._marks = Marks(marks_table, self.metadata.schema if self.metadata is not None else None)
        self._reached = Reached(self._marks)
        self._fences = Fences(f"{marks_table}_fence", self._marks.table.schema)
        self._once = None if self.once_table is None else OnceKept(self.once_table, self._marks.table.schema)
        tables = self.metadata.sorted_tables if self.metadata is not None else []
        keys = None if self._once is None else self._once.table
        self._claimed = ClaimedTables("the view", f"{marks_table}_given", self._marks, tables, keys)
        self._lost = LostMarks(self._marks, tables, self._claimed)
        if create:
            beside = [self._lost.table.name, self._fences.table.name, self.once_table or ""]
            check_names(self._database.kind, [self._marks.table.name, *beside])
        self._worker_count = 1 if self._database.has_one_writer else max(1, workers_max)
        self._readers_max = readers_max
        self._close_s_max = close_s_max
        self._workers: dict[int, Worker] = {}
        self._portions: dict[PartitionId, Portion] = {}
        self._readers: ThreadPoolExecutor | None = None
        self._preparing = threading.Lock()
        self._prepared = False
        self._fences_prepared = False
        self._cluster = ""

    # ------------------------------------------------------------------ for the application to say

    def apply(self, tx: Transaction, db: Connection) -> None:
        """Change the tables as `tx` demands, through `db`, without ending its SQL transaction.

        An exception rolls everything back and, unless the database itself is the trouble, is reported to `failed`; the
        transaction is tried again after a pause. Only its own partition waits.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has to define how a transaction is applied: write apply, or apply_many"
        )

    def apply_many(self, transactions: Sequence[Transaction], db: Connection) -> None:
        """Change the tables as all of these transactions of one partition demand, in this order.

        The default calls `apply` for each. Override it to do several with one statement, which is many times as fast
        while catching up. If it raises, and the database itself is not the trouble, they come again one by one.
        """
        for tx in transactions:
            check_undone(db)
            self.apply(tx, db)

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None:
        """Learn that `error`, which the client has logged, keeps a transaction from being applied. Does nothing."""

    # ------------------------------------------------------------------ reading

    def reading(self) -> AbstractContextManager[Connection]:
        """Read the view: `with view.reading() as db: db.execute(select(…))`.

        All reads within see one state of the database, which is fixed at the beginning. In a transaction context that
        makes the locks right: the client high-water mark is taken before the context runs, and whatever is newer is a
        conflict. So never carry a connection, or rows, from outside into a context, and read from this database and not
        from a replica of it. A state that lacks what was applied, of a database that was restored or is a standby that
        was behind, is refused (`ViewUnavailable`) until the log has brought it up to date. Writes are rolled back.

        Blocks its thread: right for SQLite, and for a context that is a plain function; a coroutine asks a database
        server through `read`. Raises `ViewUnavailable` when there is no connection, or when the database goes away
        meanwhile or ends the transaction because of others, and `Forked` in a child of the process that has used the
        view.
        """
        return self._reading(self._reached.now())

    def _reading(self, marks: Mapping[PartitionId, TransactionId]) -> AbstractContextManager[Connection]:
        if not marks:  # no client follows the log with it
            return self._database.reading()
        return self._database.reading(lambda db: self._reached.check(db, marks))

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        """Return the result of `function(db, *args)`, run in a thread with a connection as `reading` yields it.

        Raises what `reading` and the function do. Example::

            rows = await view.read(lambda db: db.execute(select(accounts)).all())
        """
        # In a forked child the parent's reader threads do not exist: without this, the call would wait for ever.
        self._database.check_process()
        if self._readers is None:
            self._readers = ThreadPoolExecutor(self._readers_max, thread_name_prefix="polonaise-view-reader")

        marks = self._reached.now()  # here, because the thread does not know of a context that calls this

        def call() -> T:
            with self._reading(marks) as db:
                return function(db, *args)

        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    @property
    def marks(self) -> Table:
        """The table of high-water marks (`partition`, `high_water_mark`, `cluster`): for migrations and audits."""
        return self._marks.table

    @property
    def keeps_once(self) -> bool:
        """Whether `log.once` can look keys up here."""
        return self._once is not None

    async def once(self, partition: PartitionId, key: str) -> tuple[TransactionId, OnceRecord] | None:
        """Return the id of the first transaction under a key of `log.once`, and the key's record; None if unused. Only
        for a view that `keeps_once`. Raises what `read` does."""
        kept = self._once
        assert kept is not None

        def find(db: Connection) -> tuple[TransactionId, OnceRecord] | None:
            with not_refused("log.once"):
                return kept.found(db, partition, key)

        return await self.read(find)

    # ------------------------------------------------------------------ preparing

    def prepare(self) -> None:
        """Make missing tables (with `create`) and check all of them, unless that was done already; blocks.

        The view does so by itself before it first reads a mark, and again after its database was not available. Raises
        `ViewUnfit`, which names tables and columns, `ViewUnavailable`, and `Forked` in a child of the process that has
        used the view.
        """
        with translated(), not_refused(_WHOSE):
            writer = self._database.writer()
            try:
                self._prepare(writer)
            finally:
                writer.close()

    def _prepare(self, writer: WriterConnection) -> None:
        with self._preparing:
            if self._prepared:
                return
            with self._unfit_for_now():
                self._prepare_tables(writer)
            self._prepared = True

    def _prepare_tables(self, writer: WriterConnection) -> None:
        tables = list(self.metadata.sorted_tables) if self.metadata is not None else []
        once = [self._once.table] if self._once is not None else []
        own = [self._marks.table, *once]
        # It had all of them when it told its client a mark: one that is gone since has gone with its rows.
        begins = not self._reached.told
        create = self._create and begins
        with writer.transaction() as db:
            if begins:
                self._claimed.check_own(db)
            if create:
                check_rows_kept(db, self._marks, [*tables, *once])
                self._lost.check_marks_kept(db)
            if begins:
                self._claimed.check_kept(db, create=create)
                self._claimed.check_keys(db)
        if create:
            create_tables(writer, [*tables, *own])
        with writer.transaction() as db:
            if self._reached.told:
                check_kept(db, [*own, *tables])
            check_tables(db, tables, own)
        self._lost.prepare(writer, create=create)

    def _unfit_for_now(self) -> AbstractContextManager[None]:
        """Raise `ViewUnavailable` for what is unfit, once the view has told its client a mark."""
        return unfit_for_now("the view", began=self._reached.told)

    def _prepare_fences(self, writer: WriterConnection) -> None:
        """Make and check the table of epochs, which only a view of a worker group has."""
        self._prepare(writer)
        with self._preparing:
            if self._fences_prepared:
                return
            had = self._reached.told_epoch
            if self._create and not had:
                create_tables(writer, [self._fences.table])
            with writer.transaction() as db, self._unfit_for_now():
                if had:
                    check_kept(db, [self._fences.table])
                check_tables(db, [], [self._fences.table])
            self._fences_prepared = True

    # ------------------------------------------------------------------ what the client calls

    def belongs_to(self, log_key: bytes) -> None:
        """Set the log that is applied from now on, by its key (`Log.log_key`), which tells topics apart, too.
        `high_water_mark` then raises `ViewUnfit` for a database that holds the marks of another log."""
        self._cluster = log_key.hex()
        self._reached.forget()
        self._lost.forget()

    async def high_water_mark(self, partition: PartitionId) -> TransactionId:
        """Return the last id of the partition that is applied in the database; -1 for none."""
        return await self._do(partition, self._prepare, self._told_mark, partition)

    async def stepped_back(
        self, positions: Mapping[PartitionId, TransactionId] | None = None
    ) -> Collection[PartitionId]:
        """Return the partitions of which the database has less than it had; a client asks now and then. A worker gives
        the `positions` up to which its partitions are applied. Raises `ViewUnavailable` for a database that is away."""
        marks = self._reached.now() if positions is None else positions
        if marks and self._workers:
            try:
                await self._do(next(iter(marks)), self._prepare, self._look, marks)
            except ViewUnavailable:
                if not self._reached.behind & marks.keys():
                    raise
        return self._reached.behind & marks.keys()

    async def apply_run(self, run: Sequence[Transaction]) -> TransactionId:
        """Apply a run of one partition in one SQL transaction, unless another process has. Returns the mark reached,
        within the run if the database takes less than all of it at a time."""
        return await self._apply_some(run, None)

    async def claim(
        self, partition: PartitionId, group: str, present: Callable[[], Awaitable[Collection[str]]]
    ) -> None:
        """Have the epochs belong to this worker group, before it takes the partition over. Raises `ViewUnfit` if they
        belong to another one that is `present`, by name."""
        number, ended = group_number(group), None
        while (found := await self._do(partition, self._prepare_fences, self._claim, number, ended)) != number:
            names = {group_number(name): name for name in await present()}
            if found in names:
                raise ViewUnfit(
                    f"worker group {names[found]} is there, and works with these tables, as "
                    f"{self._fences.table.fullname} says: two groups would take each partition from each other again "
                    "and again. End its workers, and this group goes on by itself; or give this group a view with "
                    "tables of its own, and with a marks_table of its own"
                )
            ended = found

    async def take_over(self, partition: PartitionId) -> tuple[TransactionId, int]:
        """Fence the workers that had the partition before. Return the mark, and the epoch to apply under."""
        return await self._do(partition, self._prepare_fences, self._take_over, partition)

    async def apply_run_under(self, epoch: int, run: Sequence[Transaction]) -> TransactionId:
        """Apply a run as `apply_run` does, under an epoch of its partition. Raises `WorkerFenced`, with nothing
        changed, if another worker has taken the partition over."""
        return await self._apply_some(run, epoch)

    async def close(self) -> None:
        """End the threads and close the connections, after what is being applied is done. The view can be used again.
        Waits at most `close_s_max` seconds, and not for calls of `read`. Does nothing in a child of the process that
        has used the view."""
        if self._database.is_parents:
            return
        workers, self._workers = list(self._workers.values()), {}
        await end_all(workers, self._close_s_max)
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown(wait=False)
        self._prepared = self._fences_prepared = False
        self._reached.forget()
        self._lost.forget()
        self._database.close()

    async def _do(
        self, partition: PartitionId, prepare: Callable[[WriterConnection], None], work: Callable[..., T], *args: Any
    ) -> T:

        def own(writer: WriterConnection) -> T:
            with not_refused(_WHOSE):
                return self._done(writer, prepare, work, *args)

        return await self._worker_of(partition).do(own)

    def _done(
        self, writer: WriterConnection, prepare: Callable[[WriterConnection], None], work: Callable[..., T], *args: Any
    ) -> T:
        """Return the result of the work, for which `prepare` makes and checks the tables. An error that is no trouble
        of the database's may come of tables that are gone or others by now: what is wrong with them is raised in its
        place, with each try, so that the client tells that steadily."""
        try:
            with not_refused(_WHOSE):
                prepare(writer)
            return work(writer, *args)
        except (*database_errors(), TypeError, OwnRefused) as error:  # type: ignore[misc]
            if trouble_in(error) is None and writer.usable:
                self._look_again()
                with not_refused(_WHOSE):
                    prepare(writer)
            raise

    async def _apply_some(self, run: Sequence[Transaction], epoch: int | None) -> TransactionId:
        partition = run[0].partition
        portion = self._portions.setdefault(partition, Portion())
        worker = self._worker_of(partition)
        prepare = self._prepare if epoch is None else self._prepare_fences
        return await worker.do_some(
            run, portion, lambda writer, some: self._done(writer, prepare, self._apply, some, epoch)
        )

    def _worker_of(self, partition: PartitionId) -> Worker:
        self._database.check_process()
        number = partition % self._worker_count
        if number not in self._workers:
            self._workers[number] = Worker(self._database, f"polonaise-view-{number}", self._look_again)
        return self._workers[number]

    def _look_again(self) -> None:
        """Have the tables looked at again before anything is read or applied: the database may be another one."""
        with self._preparing:  # else a thread that looks at them just now, at the one before, would count
            self._prepared = self._fences_prepared = False

    def _look(self, writer: WriterConnection, marks: Mapping[PartitionId, TransactionId]) -> None:
        try:
            self._reached.check(writer.db, marks)  # on SQLite without waiting for its other writers
        finally:
            writer.db.rollback()

    def _told_mark(self, writer: WriterConnection, partition: PartitionId) -> TransactionId:
        mark = self._read_mark(writer, partition)
        self._reached.note(partition, mark)
        return mark

    def _read_mark(self, writer: WriterConnection, partition: PartitionId) -> TransactionId:
        """Return the partition's mark, after writing its first row if it has none."""
        marks, read = self._marks, partial(self._marks.read, cluster=self._cluster)
        is_empty = False
        with writer.transaction() as db:
            mark = read(db, partition)
            if mark is None:
                with self._unfit_for_now():
                    had, had_any = self._reached.had(partition), self._reached.had_any
                    is_empty = self._lost.check_new(db, partition, self._cluster, had=had, had_any=had_any)
        if mark is not None:
            self._lost.met(writer, partition)
            return mark
        if is_empty:
            self._lost.begin_anew(writer, partition)

        def add(db: Connection, partition: PartitionId) -> None:
            marks.add(db, partition, self._cluster)
            self._lost.remember(db, partition)

        mark = first_row(writer, marks.table, partition, add, read)
        self._lost.met(writer, partition)
        return mark

    def _claim(self, writer: WriterConnection, number: int, ended: int | None) -> int:
        """Claim the epochs for a group if nobody has, or the `ended` one has. Return the number of who has them."""
        with writer.transaction() as db:
            if ended is not None:
                self._fences.replace_claim(db, ended, number)
            found = self._fences.read(db, CLAIM)
        if found is not None:
            return found
        return first_row(writer, self._fences.table, CLAIM, partial(self._fences.add, epoch=number), self._fences.read)

    def _take_over(self, writer: WriterConnection, partition: PartitionId) -> tuple[TransactionId, int]:
        while True:
            with writer.transaction() as db:
                epoch = self._fences.take_over(db, partition)
                mark = self._marks.read(db, partition, self._cluster)
            if epoch is not None and mark is not None:
                self._lost.met(writer, partition)
                self._reached.found(partition, mark)
                self._reached.told_epoch = True
                return mark, epoch
            if epoch is None:
                first_row(writer, self._fences.table, partition, self._fences.add, self._fences.read)
            self._read_mark(writer, partition)

    def _apply(self, writer: WriterConnection, run: Sequence[Transaction], epoch: int | None) -> TransactionId:
        if self._apply_whole(writer, run, epoch):
            self._reached.note(run[0].partition, run[-1].id)
            return run[-1].id
        with not_refused(_WHOSE):
            mark = self._read_mark(writer, run[0].partition)
        # A worker may refuse it; a client goes by it.
        (self._reached.note if epoch is None else self._reached.found)(run[0].partition, mark)
        return mark

    def _apply_whole(self, writer: WriterConnection, run: Sequence[Transaction], epoch: int | None) -> bool:
        """Apply the run and move the mark in one SQL transaction; return False if the mark is elsewhere."""
        partition, before, after = run[0].partition, run[0].id - 1, run[-1].id
        with writer.transaction(guarded=True) as db:
            with not_refused(_WHOSE):
                if epoch is not None and not self._fences.hold(db, partition, epoch):
                    raise WorkerFenced(
                        f"partition {partition} was taken over from this worker, which had epoch {epoch}: it goes on "
                        "there"
                    )
                # The mark first: its row is locked from then on, so that of several processes only one applies the
                # run. Until the end it says that the run is under way: should application code commit a part of it,
                # and this process die, the next one sees that.
                if not self._marks.begin(db, partition, before, after, self._cluster):
                    return False
                writer.last_step = lambda: self._finish(db, partition, after)
            transactions = [tx for tx in run if not tx.own]
            if transactions:
                self.apply_many(transactions, db)
            with not_refused(_WHOSE):
                if self._once is not None:
                    self._once.keep_all(db, run)
                elif any(tx.own and tx.header == OwnKind.ONCE for tx in run):
                    with self._unfit_for_now():
                        self._claimed.check_keys(db, prepared=True)
        return True

    def _finish(self, db: Connection, partition: PartitionId, after: TransactionId) -> None:
        with not_refused(_WHOSE):
            self._marks.finish(db, partition, after)
