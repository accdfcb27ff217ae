"""A SQL view behind a client, when things go wrong: with the log, with the database, with a transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, Table, func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from polonaise.client import view as client_view
from polonaise.errors import AppendExpired, ClientAhead, DeadlineExceeded, ViewFailed, ViewUnavailable, ViewUnfit
from polonaise.terms import Transaction, TransactionId
from polonaise_proving.stages.databaseservers import PostgreSQL, engine_at
from rigs.bankview import ACCOUNTS, Bank, accounts, body, check_fold, journal, open_accounts, put_back, transactions
from rigs.clients import World
from rigs.databases import execute
from rigs.waiting import nothing_happens_for, time_passes, wait_until

pytestmark = pytest.mark.slow

WAIT_S = 20.0
OWN = ["polonaise_marks", "polonaise_marks_given"]
"""A view's own tables."""


@pytest.fixture
async def world() -> Any:
    world = World(2)
    yield world
    await world.close()


def fill(world: World, partition: int, count: int, *, each: bool = False) -> None:
    log = world.logs[partition]
    log.fill(*[body(number) for number in range(log.mark + 1, log.mark + 1 + count)], each=each)
    world.server.feed_all(partition)


def last_in(table: Table, url: str) -> TransactionId:
    with engine_at(url) as engine, engine.connect() as db:
        return db.execute(select(func.max(table.c.id))).scalar_one()


async def test_catching_up_is_done_in_runs_and_live_ones_come_alone(world: World, url: str) -> None:
    fill(world, 0, 300, each=True)
    view = Bank(url)
    client = await world.client(view=view)
    await client.wait_applied(299, 0, timeout=WAIT_S)
    assert len(view.runs) < 100
    fill(world, 0, 1)
    await client.wait_applied(300, 0, timeout=WAIT_S)
    assert view.runs[-1] == (0, 300, 300)
    await client.close()
    check_fold(url, {0: 301, 1: 0})


async def test_a_poison_transaction_is_named_and_stops_its_partition_alone(world: World, url: str) -> None:
    open_accounts(url, 2)
    fill(world, 0, 20)
    fill(world, 1, 20)
    view = Bank(url)
    view.poison = {(0, 7)}
    client = await world.client(view=view)
    await client.wait_applied(19, 1, timeout=WAIT_S)
    await wait_until(lambda: len(view.failures) >= 2, WAIT_S)
    assert client.applied(0) == 6
    assert set(view.failures) == {(0, 7, "no stomach for 7")}
    assert isinstance(client.trouble(0), ViewFailed)
    assert client.trouble(1) is None
    fill(world, 1, 5)
    await client.wait_applied(24, 1, timeout=WAIT_S)
    check_fold(url, {0: 7, 1: 25})
    view.poison.clear()
    await client.wait_applied(19, 0, timeout=WAIT_S)
    assert client.trouble(0) is None
    check_fold(url, {0: 20, 1: 25})


async def test_a_context_reads_its_own_commits(world: World, url: str) -> None:
    view = Bank(url)
    client = await world.client(view=view)

    def withdraw(tx: Any, account: int) -> None:
        tx.write_lock("account", account)
        with view.reading() as db:
            balance = db.execute(select(accounts.c.balance).where(accounts.c.account == account)).scalar() or 0
        tx.append(b"%d %d" % (account, balance + 1))

    for _ in range(4):
        receipt = await client.run(withdraw, 3, partition=0, timeout=WAIT_S)
        await receipt.applied()
    with view.reading() as db:
        assert db.execute(select(journal.c.amount).order_by(journal.c.id)).scalars().all() == [1, 2, 4, 8]


async def test_who_gives_up_waiting_for_a_mount_is_told_that_the_views_database_is_away(world: World) -> None:
    client = await world.client(view=Bank("postgresql+psycopg://bank@127.0.0.1:1/bank"))
    await wait_until(lambda: isinstance(client.trouble(0), ViewUnavailable), WAIT_S)
    with pytest.raises(DeadlineExceeded, match="can't connect"):
        await client.ready(0, timeout=0.1)
    with pytest.raises(AppendExpired, match="can't connect"):
        await client.run(lambda tx: tx.append(b"x"), partition=0, timeout=0.1)


@pytest.mark.parametrize("more", [0, 1, 20], ids=["nothing more", "one more", "a run"])
async def test_a_view_whose_own_tables_are_gone_says_so_steadily(
    world: World, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, more: int
) -> None:
    """Not in turns with the database's own words, whether it is looked at now and then, asked, or applied to."""
    monkeypatch.setattr(client_view, "_LOOK_S", 0.2)
    open_accounts(url, 2)
    view = Bank(url)
    client = await world.client(view=view)
    fill(world, 0, 10)
    await client.wait_applied(9, 0, timeout=WAIT_S)
    execute(url, *(f"ALTER TABLE {name} RENAME TO aside_{name}" for name in OWN))
    if more:
        fill(world, 0, more)
    told: list[str] = []
    await wait_until(lambda: client.trouble(0) is not None, WAIT_S)

    def tell() -> bool:
        told.append(str(client.trouble(0)))
        return len(told) > 300

    await wait_until(tell)
    assert set(told) == {told[0]}
    assert "[view_unavailable] " in told[0]
    assert "polonaise_marks" in told[0]
    assert "was there and is gone" in told[0]
    assert not [record for record in caplog.records if record.exc_info]
    assert sum("waits for its view" in record.getMessage() for record in caplog.records) <= 2, "once for each partition"
    assert not view.failures
    execute(url, *(f"ALTER TABLE aside_{name} RENAME TO {name}" for name in OWN))
    fill(world, 0, 1)
    await client.wait_applied(10 + more, 0, timeout=WAIT_S)
    await wait_until(lambda: client.trouble(0) is None, WAIT_S)
    check_fold(url, {0: 11 + more, 1: 0})


async def test_a_database_that_goes_away_is_waited_for(world: World) -> None:
    server = PostgreSQL()
    try:
        server.start()
        url = server.database()
        open_accounts(url, 2)
        view = Bank(url)
        client = await world.client(view=view)
        fill(world, 0, 10)
        await client.wait_applied(9, 0, timeout=WAIT_S)
        server.stop()
        fill(world, 0, 10)
        fill(world, 1, 10)
        await wait_until(lambda: isinstance(client.trouble(0), ViewUnavailable), WAIT_S)
        assert not view.failures
        server.start()
        await client.wait_applied(19, 0, timeout=WAIT_S)
        await client.wait_applied(9, 1, timeout=WAIT_S)
        assert client.trouble(0) is None
        assert not view.failures
        check_fold(url, {0: 20, 1: 10})
        await client.close()
    finally:
        server.close()


async def test_a_connection_that_is_cut_in_the_middle_of_a_run_is_no_failure(world: World, server_url: str) -> None:
    class Cut(Bank):
        left = 2

        def apply_many(self, run: Sequence[Transaction], db: Connection) -> None:
            super().apply_many(run, db)
            if run[-1].id >= 5 and self.left:
                self.left -= 1
                me = "SELECT pg_terminate_backend(pg_backend_pid())"
                db.execute(text(me if "postgresql" in server_url else "KILL CONNECTION_ID()"))

    view = Cut(server_url)
    fill(world, 0, 10)
    client = await world.client(view=view)
    await client.wait_applied(9, 0, timeout=WAIT_S)
    assert not view.failures
    assert not view.left
    await client.close()
    check_fold(server_url, {0: 10, 1: 0})


async def test_deadlocks_are_tried_again_and_not_reported(server_url: str) -> None:
    """Two partitions that take the same two rows in opposite order, each waiting until the other has its first."""
    open_accounts(server_url, 2)
    met = asyncio.Event()
    loop = asyncio.get_running_loop()
    inside: set[int] = set()

    class Crossing(Bank):
        attempts = 0

        def apply_many(self, run: Sequence[Transaction], db: Connection) -> None:
            self.attempts += 1
            partition = run[0].partition
            rows = [run[0].id % ACCOUNTS, (run[0].id + 1) % ACCOUNTS]
            for account in rows if partition else reversed(rows):
                db.execute(accounts.update().where(accounts.c.account == account).values(balance=accounts.c.balance))
                inside.add(partition)
                if len(inside) == 2:
                    loop.call_soon_threadsafe(met.set)
                asyncio.run_coroutine_threadsafe(met.wait(), loop).result(WAIT_S)
            super().apply_many(run, db)

    view = Crossing(server_url)
    for partition in (0, 1):
        await view.high_water_mark(partition)
    done = await asyncio.gather(*(view.apply_run(transactions(2, partition=partition)) for partition in (0, 1)))
    assert done == [1, 1]
    assert view.attempts > 2, "one of the two was a victim"
    await view.close()
    check_fold(server_url, {0: 2, 1: 2})


async def test_writers_of_sqlite_wait_for_each_other(sqlite_url: str) -> None:
    view = Bank(sqlite_url, busy_s=0.01)
    await view.high_water_mark(0)
    with engine_at(sqlite_url) as engine, engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        applying = asyncio.create_task(view.apply_run(transactions(3)))
        await nothing_happens_for(0.05)
        assert not applying.done()
        other.rollback()
        assert await applying == 2
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(ViewUnavailable, match="other transactions stand in the way"):
            await view.apply_run(transactions(3, first=3))
        other.rollback()
    await view.close()
    check_fold(sqlite_url, {0: 3})


@pytest.mark.parametrize("count", [10, 0], ids=["with the next transaction", "while nothing is appended"])
async def test_a_database_restored_from_an_older_backup_catches_up(world: World, url: str, count: int) -> None:
    fill(world, 0, 30)
    view = Bank(url)
    client = await world.client(view=view)
    await client.wait_applied(29, 0, timeout=WAIT_S)
    put_back(url, 9)
    if count:
        fill(world, 0, count)
    await wait_until(lambda: last_in(journal, url) == 29 + count, WAIT_S)
    await wait_until(lambda: client.applied(0) == 29 + count and client.trouble(0) is None, WAIT_S)
    await client.close()
    check_fold(url, {0: 30 + count, 1: 0})


async def test_no_context_decides_on_a_database_that_has_stepped_back(world: World, url: str) -> None:
    fill(world, 0, 10)
    view = Bank(url)
    client = await world.client(view=view)
    await client.wait_applied(9, 0, timeout=WAIT_S)
    view.poison = {(0, 7)}  # so that it stays behind

    async def context(tx: Any) -> None:
        execute(url, "UPDATE polonaise_marks SET high_water_mark = 4 WHERE high_water_mark = 9")
        execute(url, "DELETE FROM journal WHERE id > 4")
        await wait_until(lambda: client.applied(0) == 6, WAIT_S)
        # The client has noticed, but this context has its mark from before.
        await view.read(lambda db: db.execute(select(journal)).all())
        tx.append(b"0 1")

    with pytest.raises(ViewUnavailable, match=r"stepped back: .* up to 9, and .* says 6"):
        await client.run(context, partition=0, timeout=WAIT_S)
    await wait_until(lambda: isinstance(client.trouble(0), ViewFailed), WAIT_S)

    def elsewhere(tx: Any) -> None:
        with view.reading() as db:
            db.execute(select(accounts)).all()
        tx.append(b"1 1")

    # A context needs what its own partition had, and nothing of the others: so it pays for one mark only.
    await client.run(elsewhere, partition=1, timeout=WAIT_S)
    with pytest.raises(ViewUnavailable, match="stepped back"), view.reading():
        pass
    view.poison.clear()
    await client.wait_applied(9, 0, timeout=WAIT_S)
    assert len(await view.read(lambda db: db.execute(select(journal).where(journal.c.partition == 0)).all())) == 10


async def test_a_view_whose_tables_are_restored_one_by_one_goes_on_by_itself(world: World, url: str) -> None:
    fill(world, 0, 10)
    client = await world.client(view=Bank(url))
    await client.wait_applied(9, 0, timeout=WAIT_S)
    asides = {"polonaise_marks": "the_marks", "journal": "the_rows"}
    for name, aside in asides.items():
        execute(url, f"ALTER TABLE {name} RENAME TO {aside}")
        await wait_until(lambda: isinstance(client.trouble(0), ViewUnavailable), WAIT_S)
        await time_passes(0.2)  # so that it has tried again, and made nothing
    for name, aside in asides.items():
        execute(url, f"ALTER TABLE {aside} RENAME TO {name}")
    await wait_until(lambda: client.trouble(0) is None, WAIT_S)
    fill(world, 0, 1)
    await client.wait_applied(10, 0, timeout=WAIT_S)
    await client.close()
    check_fold(url, {0: 11, 1: 0})


async def test_a_database_that_is_ahead_of_the_log_is_refused(world: World, url: str) -> None:
    fill(world, 0, 10)
    view = Bank(url)
    await view.high_water_mark(0)
    await view.apply_run(transactions(15))
    client = await world.client(view=view)
    with pytest.raises(ClientAhead, match="the database is of another log"):
        await client.ready(0, timeout=WAIT_S)
    await client.ready(1, timeout=WAIT_S)


async def test_a_database_that_comes_to_be_ahead_of_the_log_is_refused_with_the_next_transaction(
    world: World, url: str
) -> None:
    fill(world, 0, 10)
    client = await world.client(view=Bank(url))
    await client.wait_applied(9, 0, timeout=WAIT_S)
    execute(url, "UPDATE polonaise_marks SET high_water_mark = 100000")
    fill(world, 0, 1)
    with pytest.raises(ClientAhead, match=r"ids up to 100000 are .* the log ended at 10: the database is of"):
        await client.wait_applied(10, 0, timeout=WAIT_S)
    assert isinstance(client.trouble(0), ClientAhead)
    assert client.applied(0) == 9
    assert client.trouble(1) is None


async def test_unfit_tables_stop_the_client_with_their_names(world: World, url: str) -> None:
    execute(url, "CREATE TABLE accounts (account INTEGER PRIMARY KEY)")
    client = await world.client(view=Bank(url))
    with pytest.raises(ViewUnfit, match="column balance is missing"):
        await client.ready(0, timeout=WAIT_S)


async def test_closing_does_not_wait_for_a_slow_transaction_without_end(world: World, sqlite_url: str) -> None:
    closed, applied = threading.Event(), threading.Event()

    class Slow(Bank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            closed.wait(WAIT_S)
            applied.set()

    view = Slow(sqlite_url, close_s_max=0.05)
    fill(world, 0, 1)
    client = await world.client(view=view)
    await wait_until(lambda: view.runs)
    await client.close()
    assert not applied.is_set(), "closing has waited for it"
    closed.set()
    assert await asyncio.to_thread(applied.wait, WAIT_S)


KILLS = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL CONNECTION {}"}
WHO = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}


async def test_a_database_that_goes_away_while_it_is_read_is_told_as_one_that_is_away(server_url: str) -> None:
    view = Bank(server_url)
    await view.high_water_mark(0)
    kind = make_url(server_url).get_backend_name()

    def look(db: Connection) -> int:
        who = db.execute(text(WHO[kind])).scalar_one()
        with engine_at(server_url) as engine, engine.connect() as other:
            other.execute(text(KILLS[kind].format(who)))
        return int(db.execute(select(func.count()).select_from(journal)).scalar_one())

    with pytest.raises(ViewUnavailable, match="the database is not available, try again"):
        await view.read(look)
    with pytest.raises(ViewUnavailable), view.reading() as db:
        look(db)
    assert await view.read(lambda db: db.execute(select(func.count()).select_from(journal)).scalar_one()) == 0
    await view.close()


async def test_what_a_reader_does_wrong_is_its_own(sqlite_url: str) -> None:
    view = Bank(sqlite_url)
    await view.high_water_mark(0)
    with pytest.raises(OperationalError, match="no such table"):
        await view.read(lambda db: db.execute(text("SELECT * FROM no_such_table")))
    with pytest.raises(KeyError):
        await view.read(lambda db: {}["k"])
    await view.close()
