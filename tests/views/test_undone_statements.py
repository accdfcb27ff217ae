"""A statement that waited for a lock too long is done in the end, also if `apply` caught its error and went on.

MariaDB undoes that statement alone, and `begin_nested()` undoes no more on any database: committed with the mark, the
others would be all that is ever done, and what a view holds would hang on who had held a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import OperationalError

from polonaise.player.protocol.entries import RoutedEntry
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.terms import Transaction
from polonaise.views.databaseerrors import Trouble, database_errors, trouble_in
from polonaise_proving.stages.databaseservers import MariaDB, engine_at
from rigs.bankview import Bank, accounts, check_fold, closed_after, journal, open_accounts, schema, transactions
from rigs.deliverycalls import batch_of, stream
from rigs.lacking import lacking


@pytest.fixture(scope="module")
def usual_mariadb() -> Iterator[MariaDB]:
    """A MariaDB as it comes: the one of other tests is told to end the transaction on a lock timeout."""
    if MariaDB.program() is None:
        lacking("no `mariadbd` on this machine: Debian's package mariadb-server-core has it")
    with contextlib.closing(MariaDB()) as server:
        server.start()
        yield server


@pytest.fixture
def mariadb_url(usual_mariadb: MariaDB) -> str:
    return usual_mariadb.database()


READS: dict[str, Callable[[Bank], Any]] = {
    "a view": lambda view: view.apply_run(transactions(2)),
    "a worker's view": lambda view: _under_an_epoch(view),
}


async def _under_an_epoch(view: Bank) -> int:
    _, epoch = await view.take_over(0)
    return await view.apply_run_under(epoch, transactions(2))


class Locked:
    """Another writer, which has locked account 0 until somebody has waited for it in vain.

    From before the waiting transaction on: later, MariaDB would say that the row has changed, and end the transaction.
    """

    def __init__(self, url: str, held: contextlib.ExitStack) -> None:
        self._is_postgresql = url.startswith("postgresql")
        self._held = held
        self.times = 0
        other = held.enter_context(held.enter_context(engine_at(url)).connect())
        other.execute(accounts.update().where(accounts.c.account == 0).values(balance=accounts.c.balance + 0))

    def meets(self, db: Connection, change: Callable[[], None]) -> None:
        """Make a change, the first time while it is locked."""
        self.times += 1
        if self.times == 1:
            db.execute(
                text("SET LOCAL lock_timeout = 1" if self._is_postgresql else "SET innodb_lock_wait_timeout = 0")
            )
        try:
            change()
        finally:
            self._held.close()


@contextlib.contextmanager
def by_hand(db: Connection) -> Iterator[None]:
    """A savepoint that only the driver knows of."""
    with contextlib.closing(db.connection.cursor()) as cursor:
        cursor.execute("SAVEPOINT mine")
        try:
            yield
        except BaseException:
            cursor.execute("ROLLBACK TO SAVEPOINT mine")
            raise


@contextlib.contextmanager
def after_a_look(db: Connection) -> Iterator[None]:
    """With MariaDB, SQLAlchemy tells nobody of errors any more once it has looked at a table."""
    inspect(db).has_table("nothing")
    with db.begin_nested():
        yield


CATCHES: dict[str, Callable[[Connection], AbstractContextManager[Any]]] = {
    "outright": lambda _: contextlib.nullcontext(),
    "around begin_nested": Connection.begin_nested,
    "around a savepoint by hand": by_hand,
    "after a look at tables": after_a_look,
}
"""Where `apply` catches an error: around what."""
GOES_ON = pytest.mark.parametrize("raises", [False, True], ids=["and goes on", "and raises an error of its own"])


class CatchingBank(Bank):
    """A bank whose `apply` catches what the database tells it, and goes on, or raises an error of its own."""

    meets: Callable[[Connection, Callable[[], None]], None]
    raises = False
    around = staticmethod(CATCHES["outright"])
    caught = 0

    def apply(self, tx: Transaction, db: Connection) -> None:
        apply = super().apply
        try:
            with self.around(db):
                self.meets(db, lambda: apply(tx, db))
        except database_errors():
            self.caught += 1
            if self.raises:
                raise ValueError("the balance is not what it should be") from None


async def applied_over_a_lock(
    url: str, how: str = "a view", kind: type[CatchingBank] = CatchingBank, **said: Any
) -> CatchingBank:
    """Apply two transactions, the first of which waits for a lock in vain."""
    open_accounts(url)
    view = kind(url)
    for name, value in said.items():
        setattr(view, name, value)
    with contextlib.ExitStack() as held:
        locked = Locked(url, held)
        view.meets = locked.meets
        try:
            await view.high_water_mark(0)
            assert await READS[how](view) == 1
        finally:
            await view.close()
    assert view.caught
    return view


@pytest.mark.exhaustive  # of ways to catch one
@GOES_ON
@pytest.mark.parametrize("around", CATCHES)
@pytest.mark.parametrize("how", READS)
async def test_a_lock_timeout_that_apply_caught_is_tried_again(
    server_url: str, how: str, around: str, raises: bool
) -> None:
    view = await applied_over_a_lock(server_url, how, raises=raises, around=CATCHES[around])
    assert view.failures == []
    check_fold(server_url, {0: 2})


def executed(cursor: Any, statement: str) -> None:
    cursor.execute(statement)


def streamed(cursor: Any, statement: str) -> None:
    list(cursor.stream(f"{statement} RETURNING account"))


def copied(cursor: Any, statement: str) -> None:
    with cursor.copy(f"COPY ({statement} RETURNING account) TO STDOUT") as copy:
        list(copy)


async def applied_past_sqlalchemy(url: str, send: Callable[[Any, str], None] = executed) -> None:
    """As `applied_over_a_lock`, with the driver's cursor alone."""
    open_accounts(url)
    view = CatchingBank(url)
    with contextlib.ExitStack() as held:
        locked = Locked(url, held)

        def meets(db: Connection, change: Callable[[], None]) -> None:
            def raw() -> None:
                with contextlib.closing(db.connection.cursor()) as cursor:
                    send(cursor, "UPDATE accounts SET balance = balance WHERE account = 0")

            locked.meets(db, raw)
            change()

        view.meets, view.around = meets, CATCHES["around a savepoint by hand"]
        try:
            await view.high_water_mark(0)
            assert await view.apply_run(transactions(2)) == 1
        finally:
            await view.close()
    assert view.caught == 1


async def test_a_lock_timeout_past_sqlalchemy_is_tried_again(server_url: str) -> None:
    await applied_past_sqlalchemy(server_url)
    check_fold(server_url, {0: 2})


@pytest.mark.parametrize("send", [streamed, copied])
async def test_a_lock_timeout_in_what_psycopg_streams_or_copies_is_tried_again(
    postgresql_url: str, send: Callable[[Any, str], None]
) -> None:
    await applied_past_sqlalchemy(postgresql_url, send)
    check_fold(postgresql_url, {0: 2})


def in_a_savepoint(db: Connection) -> None:
    with db.begin_nested():
        pass


def from_the_server(db: Connection) -> None:
    db.execute(select(accounts), execution_options={"stream_results": True})


def past_sqlalchemy(db: Connection, send: Callable[[Any, str], None] = executed) -> None:
    with contextlib.closing(db.connection.cursor()) as cursor:
        send(cursor, "UPDATE accounts SET balance = balance WHERE account = 1")


FURTHER: dict[str, Callable[[Connection], Any]] = {
    "a statement": lambda db: db.execute(select(accounts)),
    "a savepoint": in_a_savepoint,
    "a cursor of the server's": from_the_server,
    "a statement past SQLAlchemy": past_sqlalchemy,
}
"""What `apply` may send after it has caught an error."""


class StubbornBank(CatchingBank):
    """A bank whose `apply` catches what it is told, sends something again and again, and catches that, too."""

    further: Callable[[Connection], Any]

    def __init__(self, *args: Any, **said: Any) -> None:
        super().__init__(*args, **said)
        self.told: list[Exception] = []
        self.begun: list[int] = []

    def apply(self, tx: Transaction, db: Connection) -> None:
        self.begun.append(tx.id)
        before = self.caught
        super().apply(tx, db)
        for _ in range(3 * (self.caught - before)):
            try:
                self.further(db)
            except database_errors() as error:
                self.told.append(error)

    def check(self, kind: Trouble) -> None:
        assert [trouble_in(each) for each in self.told] == 3 * [kind]
        assert len({id(each) for each in self.told}) == 1, "it is the database's own, and was sent nothing"
        assert self.begun == [0, 0, 1], "what follows in the run is not begun before it is tried again"


@pytest.mark.exhaustive  # of ways to send one
@pytest.mark.parametrize("further", FURTHER)
@pytest.mark.parametrize("around", CATCHES)
@pytest.mark.parametrize("how", READS)
async def test_after_a_lock_timeout_that_apply_caught_no_statement_is_sent(
    server_url: str, how: str, around: str, further: str
) -> None:
    """Locks that the run holds are in the way of others until it is rolled back, and so are those of others in its."""
    said = {"around": CATCHES[around], "further": FURTHER[further]}
    view = await applied_over_a_lock(server_url, how, StubbornBank, **said)
    assert isinstance(view, StubbornBank)
    view.check(Trouble.PASSING)
    check_fold(server_url, {0: 2})


@pytest.mark.parametrize("send", [streamed, copied])
async def test_after_an_error_that_apply_caught_nothing_is_streamed_or_copied(
    postgresql_url: str, send: Callable[[Any, str], None]
) -> None:
    said = {"around": CATCHES["around begin_nested"], "further": lambda db: past_sqlalchemy(db, send)}
    view = await applied_over_a_lock(postgresql_url, "a view", StubbornBank, **said)
    assert isinstance(view, StubbornBank)
    view.check(Trouble.PASSING)


class CrossingBank(Bank):
    """A bank that begins with a deadlock of its two partitions, and catches what the database says of each change."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.told: list[Exception] = []
        self._met = threading.Barrier(2)
        self._crossed: set[int] = set()

    def apply(self, tx: Transaction, db: Connection) -> None:
        for account in (tx.partition, 1 - tx.partition):
            try:
                with db.begin_nested():
                    mine = accounts.c.account == account
                    db.execute(accounts.update().where(mine).values(balance=accounts.c.balance + 1))
            except OperationalError as error:
                self.told.append(error)
            if tx.partition not in self._crossed:
                self._crossed.add(tx.partition)
                self._met.wait(60)


@pytest.mark.slow
async def test_partitions_whose_deadlock_is_caught_do_not_run_into_each_other_again(server_url: str) -> None:
    open_accounts(server_url, partitions=2)
    async with closed_after(CrossingBank(server_url)) as view:
        for partition in (0, 1):
            await view.high_water_mark(partition)
        runs = [transactions(30, partition=partition) for partition in (0, 1)]
        assert await asyncio.gather(*map(view.apply_run, runs)) == [29, 29]
    assert [trouble_in(each) for each in view.told[:1]] == [Trouble.PASSING]
    assert len({id(each) for each in view.told}) < 5, "each deadlock takes as long as the database waits for it"
    with engine_at(server_url) as engine, engine.connect() as db:
        balances = dict(map(tuple, db.execute(select(accounts.c.account, accounts.c.balance))))
    assert (balances[0], balances[1]) == (60, 60)


SLOW = {
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 1000000) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(5)",
    "mariadb": "SET STATEMENT max_statement_time = 0.05 FOR SELECT SLEEP(5)",
}


def takes_too_long(db: Connection) -> None:
    """Execute a statement that the database ends for the time that it takes."""
    kind = db.dialect.name
    if kind == "postgresql":
        db.execute(text("SET LOCAL statement_timeout = '50ms'"))
    driver: Any = db.connection.dbapi_connection
    try:
        if kind == "sqlite":
            driver.set_progress_handler(lambda: 1, 1_000)
        db.execute(text(SLOW[kind]))
    finally:
        if kind == "sqlite":
            driver.set_progress_handler(None, 0)


@pytest.mark.parametrize("around", ["outright", "around begin_nested"])
async def test_a_statement_that_took_too_long_is_done_in_the_end(url: str, around: str) -> None:
    """Sent with less of the run, as after any limit: it may be the whole that takes long."""
    open_accounts(url)
    view = CatchingBank(url)
    slow = [True]

    def meets(db: Connection, change: Callable[[], None]) -> None:
        if slow and slow.pop():
            takes_too_long(db)
        change()

    view.meets, view.around = meets, CATCHES[around]
    try:
        mark = -1
        while mark < 1:
            mark = await view.apply_run(transactions(2)[mark + 1 :])
    finally:
        await view.close()
    assert view.caught
    assert view.failures == []
    check_fold(url, {0: 2})


async def test_after_a_statement_that_took_too_long_no_other_is_sent(url: str) -> None:
    open_accounts(url)
    view = StubbornBank(url)

    def meets(db: Connection, change: Callable[[], None]) -> None:
        if not view.caught:
            takes_too_long(db)
        change()

    view.meets, view.around, view.further = meets, CATCHES["around begin_nested"], FURTHER["a statement"]
    try:
        mark = -1
        while mark < 1:
            mark = await view.apply_run(transactions(2)[mark + 1 :])
    finally:
        await view.close()
    view.check(Trouble.DRIVEN)
    check_fold(url, {0: 2})


@pytest.mark.parametrize("around", ["around begin_nested", "around a savepoint by hand"])
async def test_a_constraint_s_error_that_apply_caught_around_a_savepoint_is_its_own_business(
    url: str, around: str
) -> None:
    """It comes each time: what is tried and left undone is the same in every database."""
    open_accounts(url)
    view = CatchingBank(url)

    def meets(db: Connection, change: Callable[[], None]) -> None:
        change()
        if view.runs[-1:] and view.caught < 1:
            db.execute(accounts.insert(), {"account": 0, "balance": 1})

    view.meets, view.around = meets, CATCHES[around]
    try:
        assert await view.apply_run(transactions(2)) == 1
    finally:
        await view.close()
    assert view.caught == 1
    with engine_at(url) as engine, engine.connect() as db:
        assert db.execute(select(journal.c.id)).scalars().all() == [1]


@GOES_ON
@pytest.mark.parametrize("around", CATCHES)
async def test_a_lock_timeout_that_a_target_caught_is_tried_again(server_url: str, around: str, raises: bool) -> None:
    open_accounts(server_url)
    held = contextlib.ExitStack()
    locked = Locked(server_url, held)

    class Deposits(SqlDeliveryTarget):
        metadata = schema
        begun: ClassVar[list[int]] = []

        def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
            self.begun.append(entry.id)
            mine = accounts.c.account == 0
            deposit = accounts.update().where(mine).values(balance=accounts.c.balance + 1)
            try:
                with CATCHES[around](db):
                    locked.meets(db, lambda: db.execute(deposit) and None)
            except database_errors():
                if raises:
                    raise ValueError("the balance is not what it should be") from None

    target = Deposits(server_url)
    try:
        session = await stream(target)
        applied = await session.take(batch_of(-1, ("a", "b"), 0))
    finally:
        held.close()
        await target.close()
    assert (applied.last, applied.refusal) == (1, "")
    assert Deposits.begun == [0, 0, 1], "after the error no other entry is begun before all is tried again"
    with engine_at(server_url) as engine, engine.connect() as db:
        assert db.execute(select(accounts.c.balance).where(accounts.c.account == 0)).scalar_one() == 2
