"""A thread that stands still at its database holds up no other one, and tells nothing to who uses the view after it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, select
from sqlalchemy.exc import OperationalError

from polonaise.errors import ViewUnavailable, ViewUnfit
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.views import tablesbeside
from polonaise.views.database import Database
from polonaise.views.lostmarks import Reached
from polonaise.views.marks import Marks
from polonaise.views.tablesbeside import ViewTables
from rigs.bankview import Bank, counted, journal, put_back, transactions
from rigs.databases import change, execute
from rigs.waiting import PATIENCE_S, block_until, wait_until


class Stop:
    """A call at whose end the first thread that makes it stands still."""

    def __init__(self, patched: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self.ended = threading.Event(), threading.Event()
        call, first = getattr(owner, name), threading.Lock()

        def stopping(*given: Any, **named: Any) -> Any:
            result = call(*given, **named)
            if first.acquire(blocking=False):
                self.reached.set()
                self.ended.wait(PATIENCE_S)
            return result

        patched.setattr(owner, name, stopping)


@pytest.fixture
def stop_after() -> Iterator[Callable[[Any, str], Stop]]:
    stops: list[Stop] = []
    with pytest.MonkeyPatch.context() as patched:

        def make(owner: Any, name: str) -> Stop:
            stops.append(Stop(patched, owner, name))
            return stops[-1]

        yield make
        for stop in stops:
            stop.ended.set()


async def test_a_thread_that_stands_still_while_it_looks_at_the_tables_is_told_by_those_that_wait_for_it(
    sqlite_url: str, views: Callable[..., Bank], stop_after: Callable[[Any, str], Stop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tablesbeside, "_LOOKS_S_MAX", 0.05, raising=False)
    view, stop = views(sqlite_url), stop_after(tablesbeside, "create_tables")
    standing = asyncio.create_task(asyncio.to_thread(view.prepare))
    await wait_until(stop.reached.is_set)
    with pytest.raises(
        ViewUnavailable, match=r"another thread .* looks at the view's tables .*polonaise_marks .*see whe"
    ):
        await asyncio.wait_for(view.high_water_mark(0), 10)
    stop.ended.set()
    await standing
    assert await view.high_water_mark(0) == -1


async def test_a_lost_connection_is_told_while_another_thread_stands_still_and_counts_for_what_that_one_finds(
    sqlite_url: str, views: Callable[..., Bank], stop_after: Callable[[Any, str], Stop]
) -> None:
    view, stop = views(sqlite_url), stop_after(tablesbeside, "check_tables")
    standing = asyncio.create_task(asyncio.to_thread(view.prepare))
    await wait_until(stop.reached.is_set)
    away = sqlite3.OperationalError("unable to open database file")
    away.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    with pytest.MonkeyPatch.context() as patched:

        def writer(_: Database) -> Any:
            raise OperationalError("connecting", None, away)

        patched.setattr(Database, "writer", writer)
        with pytest.raises(OperationalError):
            await asyncio.wait_for(view.high_water_mark(0), 10)
    stop.ended.set()
    await standing
    # What comes back may be another database than the one that was looked at.
    execute(sqlite_url, "DROP TABLE journal", "CREATE TABLE journal (id INTEGER PRIMARY KEY)")
    with pytest.raises(ViewUnfit, match="table journal is of another shape"):
        await view.high_water_mark(0)


async def test_what_a_thread_learns_that_was_left_behind_is_not_known_to_the_view_that_is_used_again(
    sqlite_url: str, views: Callable[..., Bank], stop_after: Callable[[Any, str], Stop]
) -> None:
    before = views(sqlite_url)
    await before.high_water_mark(0)
    await before.apply_run(transactions(4))
    view, stop = views(sqlite_url, close_s_max=0.05), stop_after(Marks, "read")
    left_behind = asyncio.create_task(view.high_water_mark(0))
    await wait_until(stop.reached.is_set)
    await view.close()
    stop.ended.set()
    assert await left_behind == 3
    put_back(sqlite_url, 1)
    assert await view.stepped_back() == frozenset()
    with view.reading() as db:
        assert len(db.execute(select(journal)).all()) == 2
    await before.close()
    for table in ("accounts", "journal", "polonaise_marks", "polonaise_marks_given"):
        execute(sqlite_url, f"DROP TABLE {table}")
    assert await view.high_water_mark(0) == -1, "of tables that were there it knows nothing, and makes them"


async def test_a_view_whose_thread_was_left_behind_while_it_looked_at_the_tables_can_be_used_again(
    sqlite_url: str, views: Callable[..., Bank], stop_after: Callable[[Any, str], Stop]
) -> None:
    view, stop = views(sqlite_url, close_s_max=0.05), stop_after(tablesbeside, "create_tables")
    left_behind = asyncio.create_task(view.high_water_mark(0))
    await wait_until(stop.reached.is_set)
    await view.close()
    assert await asyncio.wait_for(view.high_water_mark(0), 10) == -1
    assert await view.apply_run(transactions(3)) == 2
    stop.ended.set()
    assert await left_behind == 2
    assert await view.apply_run(transactions(3, first=3)) == 5
    assert counted(sqlite_url, journal) == 6


async def test_a_view_that_is_told_what_is_applied_while_it_looks_at_its_tables_makes_them(
    sqlite_url: str, views: Callable[..., Bank]
) -> None:
    """Once work has begun, tables that are missing are said to be gone: each look is before that or after it."""
    reads: list[None] = []

    def began(_: ViewTables) -> bool:
        reads.append(None)
        return len(reads) > 1

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ViewTables, "began", property(began, lambda *_: None), raising=False)
        views(sqlite_url).prepare()
    assert counted(sqlite_url, journal) == 0


class Hanging(Bank):
    """Applies no more than one transaction of partition 0 until it may."""

    def __init__(self, engine: Any, **options: Any) -> None:
        super().__init__(engine, **options)
        self.may, self.hangs = threading.Event(), threading.Event()

    def apply(self, tx: Transaction, db: Connection) -> None:
        if tx.partition == 0 and tx.id > 0:
            self.hangs.set()
            self.may.wait(PATIENCE_S)
        super().apply(tx, db)


async def test_a_database_that_has_stepped_back_is_noticed_while_one_partition_hangs(
    server_url: str, views: Callable[..., Hanging]
) -> None:
    view = views(server_url, Hanging)
    for partition in range(3):
        await view.high_water_mark(partition)
    assert await view.apply_run(transactions(1)) == 0
    hanging = asyncio.create_task(view.apply_run(transactions(1, first=1)))
    try:
        await wait_until(view.hangs.is_set)
        assert await view.apply_run(transactions(3, partition=1)) == 2
        change(server_url, "UPDATE polonaise_marks SET high_water_mark = 0 WHERE {} = 1", "partition")
        assert await asyncio.wait_for(view.stepped_back(), 10) == {1}
    finally:
        view.may.set()
        await hanging


async def test_partitions_that_two_threads_find_to_be_behind_at_once_are_both_known() -> None:
    reached = Reached(Marks("marks"))

    def find_behind(marks: dict[PartitionId, TransactionId]) -> None:
        with pytest.raises(ViewUnavailable, match="has stepped back"):
            reached.check(None, marks)  # type: ignore[arg-type]

    other = threading.Thread(target=find_behind, args=({1: 7},))

    class Interrupted(dict[PartitionId, TransactionId]):
        """Has another thread do the same as soon as it is looked at for what changes: it ends, or waits."""

        def keys(self) -> Any:
            if other.ident is None:
                other.start()
                block_until(lambda: not other.is_alive() or reached._behind_changes.locked())
            return super().keys()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reached, "_found", lambda *_: {})
        find_behind(Interrupted({0: 7}))
        other.join(PATIENCE_S)
    assert reached.behind == {0, 1}
