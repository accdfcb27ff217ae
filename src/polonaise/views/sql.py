"""SQL views: tables kept from the log in a SQL database, each transaction applied exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, MetaData, Table
from sqlalchemy.engine import URL

from polonaise.client.protocol.oncekeys import OnceRecord
from polonaise.errors import ViewUnavailable, ViewUnfit
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.views.database import Database
from polonaise.views.databaseerrors import OwnRefused, database_errors, not_refused, translated, trouble_in
from polonaise.views.dialects import check_names
from polonaise.views.lostmarks import Reached
from polonaise.views.marks import group_number
from polonaise.views.tablesbeside import ViewTables
from polonaise.views.worker import Workers, check_plain
from polonaise.views.writerconnection import WriterConnection, check_undone

T = TypeVar("T")

_WHOSE: Final = "the view"

_Prepare: TypeAlias = Callable[[ViewTables, WriterConnection], None]


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
        check_plain(self.apply, self.apply_many)
        self._database = Database(engine, self.isolation_level, busy_s)
        self._new_tables = partial(ViewTables, self.metadata, marks_table, self.once_table, create=create)
        self._new_workers = partial(Workers, self._database, "polonaise-view", workers_max, close_s_max)
        self._beside, self._workers = self._opened()
        if create:
            check_names(self._database.kind, self._beside.names)
        self._readers_max = readers_max
        self._readers: ThreadPoolExecutor | None = None

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
        return self._reading(self._beside.reached, self._beside.reached.now())

    def _reading(
        self, reached: Reached, marks: Mapping[PartitionId, TransactionId]
    ) -> AbstractContextManager[Connection]:
        if not marks:  # no client follows the log with it
            return self._database.reading()
        return self._database.reading(lambda db: reached.check(db, marks))

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        """Return the result of `function(db, *args)`, run in a thread with a connection as `reading` yields it.

        Raises what `reading` and the function do. Example::

            rows = await view.read(lambda db: db.execute(select(accounts)).all())
        """
        # In a forked child the parent's reader threads do not exist: without this, the call would wait for ever.
        self._database.check_process()
        if self._readers is None:
            self._readers = ThreadPoolExecutor(self._readers_max, thread_name_prefix="polonaise-view-reader")

        reached = self._beside.reached
        marks = reached.now()  # here, because the thread does not know of a context that calls this

        def call() -> T:
            with self._reading(reached, marks) as db:
                return function(db, *args)

        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    @property
    def marks(self) -> Table:
        """The table of high-water marks (`partition`, `high_water_mark`, `cluster`): for migrations and audits."""
        return self._beside.marks.table

    @property
    def keeps_once(self) -> bool:
        """Whether `log.once` can look keys up here."""
        return self._beside.once is not None

    async def once(self, partition: PartitionId, key: str) -> tuple[TransactionId, OnceRecord] | None:
        """Return the id of the first transaction under a key of `log.once`, and the key's record; None if unused. Only
        for a view that `keeps_once`. Raises what `read` does."""
        kept = self._beside.once
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
                self._beside.prepare(writer)
            finally:
                writer.close()

    # ------------------------------------------------------------------ what the client calls

    def belongs_to(self, log_key: bytes) -> None:
        """Set the log that is applied from now on, by its key (`Log.log_key`), which tells topics apart, too.
        `high_water_mark` then raises `ViewUnfit` for a database that holds the marks of another log."""
        self._beside.belongs_to(log_key.hex())

    async def high_water_mark(self, partition: PartitionId) -> TransactionId:
        """Return the last id of the partition that is applied in the database; -1 for none."""
        return await self._do(partition, ViewTables.prepare, ViewTables.tell_mark, partition)

    async def stepped_back(
        self, positions: Mapping[PartitionId, TransactionId] | None = None
    ) -> Collection[PartitionId]:
        """Return the partitions of which the database has less than it had; a client asks now and then. A worker gives
        the `positions` up to which its partitions are applied. Raises `ViewUnavailable` for a database that is away."""
        reached = self._beside.reached
        marks = reached.now() if positions is None else positions
        if marks and self._workers:
            try:
                await self._do(self._workers.at_hand(), ViewTables.prepare, _look, marks)
            except ViewUnavailable:
                if not reached.behind & marks.keys():
                    raise
        return reached.behind & marks.keys()

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
        while (
            found := await self._do(partition, ViewTables.prepare_epochs, ViewTables.claim, number, ended)
        ) != number:
            names = {group_number(name): name for name in await present()}
            if found in names:
                epochs = self._beside.fences.table.fullname
                raise ViewUnfit(
                    f"worker group {names[found]} is there, and works with these tables, as "
                    f"{epochs} says: two groups would take each partition from each other again "
                    "and again. End its workers, and this group goes on by itself; or give this group a view with "
                    "tables of its own, and with a marks_table of its own"
                )
            ended = found

    async def take_over(self, partition: PartitionId) -> tuple[TransactionId, int]:
        """Fence the workers that had the partition before. Return the mark, and the epoch to apply under."""
        return await self._do(partition, ViewTables.prepare_epochs, ViewTables.take_over, partition)

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
        workers, cluster = self._workers, self._beside.marks.cluster
        # What a thread that is left behind learns later, it notes in the ones of before, where nobody asks for it.
        self._beside, self._workers = self._opened()
        self._beside.marks.cluster = cluster
        await workers.end()
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown(wait=False)
        self._database.close()

    def _opened(self) -> tuple[ViewTables, Workers]:
        """Return the tables, of which nothing is known so far, and the threads for the time until the view is
        closed."""
        beside = self._new_tables()
        return beside, self._new_workers(beside.look_again)

    async def _do(self, partition: PartitionId, prepare: _Prepare, work: Callable[..., T], *args: Any) -> T:
        """Return the result of `work(beside, writer, *args)`, done in the partition's thread. Here and below, `beside`
        is what the view had when it was asked for the work: it may have been closed since."""
        beside = self._beside

        def own(writer: WriterConnection) -> T:
            with not_refused(_WHOSE):
                return _done(beside, writer, prepare, work, *args)

        return await self._workers.do(partition, own)

    async def _apply_some(self, run: Sequence[Transaction], epoch: int | None) -> TransactionId:
        beside, prepare = self._beside, ViewTables.prepare if epoch is None else ViewTables.prepare_epochs
        return await self._workers.do_some(
            run[0].partition, run, lambda writer, some: _done(beside, writer, prepare, self._apply, some, epoch)
        )

    def _apply(
        self, beside: ViewTables, writer: WriterConnection, run: Sequence[Transaction], epoch: int | None
    ) -> TransactionId:
        if self._apply_whole(beside, writer, run, epoch):
            beside.moved(run[0].partition, run[-1].id)
            return run[-1].id
        with not_refused(_WHOSE):
            return beside.tell_mark(writer, run[0].partition, to_worker=epoch is not None)

    def _apply_whole(
        self, beside: ViewTables, writer: WriterConnection, run: Sequence[Transaction], epoch: int | None
    ) -> bool:
        """Apply the run and move the mark in one SQL transaction; return False if the mark is elsewhere."""
        with writer.transaction(guarded=True) as db:
            with not_refused(_WHOSE):
                if not beside.begin(db, run, epoch):
                    return False
                writer.last_step = lambda: beside.finish(db, run)
            transactions = [tx for tx in run if not tx.own]
            if transactions:
                self.apply_many(transactions, db)
            with not_refused(_WHOSE):
                beside.keep_keys(db, run)
        return True


def _done(beside: ViewTables, writer: WriterConnection, prepare: _Prepare, work: Callable[..., T], *args: Any) -> T:
    """Return the result of the work, for which `prepare` makes and checks the tables. An error that is no trouble
    of the database's may come of tables that are gone or others by now: what is wrong with them is raised in its
    place, with each try, so that the client tells that steadily."""
    try:
        prepare(beside, writer)
        return work(beside, writer, *args)
    except (*database_errors(), TypeError, OwnRefused) as error:  # type: ignore[misc]
        if trouble_in(error) is None and writer.usable:
            beside.look_again()
            prepare(beside, writer)
        raise


def _look(beside: ViewTables, writer: WriterConnection, marks: Mapping[PartitionId, TransactionId]) -> None:
    try:
        beside.reached.check(writer.db, marks)  # on SQLite without waiting for its other writers
    finally:
        writer.db.rollback()
