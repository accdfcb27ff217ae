"""Work that a database ends because of other transactions: how often it is repeated, and after which pauses."""

from __future__ import annotations

import sqlite3
import time
from typing import Any, cast

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from polonaise.errors import Closed, ViewUnavailable, ViewUnfit
from polonaise.views import retrying
from polonaise.views.retrying import _TAKEN, _TRIES, DrivenAway, Portion, RetryingWriter


class Held:
    """A database whose one connection is always usable."""

    usable = True

    def is_elsewhere(self, _: Any) -> bool:
        return False

    def writer(self) -> Held:
        return self


def in_the_way(_: object) -> None:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    raise error


def test_nothing_is_waited_for_after_the_last_attempt() -> None:
    pauses: list[float] = []
    with pytest.raises(ViewUnavailable, match="again and again"):
        RetryingWriter(cast(Any, Held()), pauses.append, lost=pytest.fail).do(in_the_way)
    assert len(pauses) == _TRIES - 1


@pytest.mark.parametrize("seconds", [0.0, 600.0])
def test_what_other_transactions_keep_from_being_done_for_long_is_told_before_all_is_tried(seconds: float) -> None:
    tries: list[object] = []

    def work(connection: object) -> None:
        tries.append(connection)
        in_the_way(connection)

    writer = RetryingWriter(cast(Any, Held()), lambda _: None, pytest.fail, tried_s_max=seconds)
    with pytest.raises(ViewUnavailable, match=r"again and again.*database is locked"):
        writer.do(work)
    assert len(tries) == (1 if seconds == 0.0 else _TRIES)


class Restarted(Held):
    """A database that ends the first connection as soon as it is used."""

    def __init__(self) -> None:
        self.given: list[Ended] = []

    def is_elsewhere(self, _: Any) -> bool:
        return False

    def writer(self) -> Any:
        self.given.append(Ended())
        return self.given[-1]


class Ended:
    """A connection that the database can end."""

    usable = True

    def close(self) -> None:
        self.usable = False


def test_that_a_connection_was_lost_is_told_before_another_one_is_used() -> None:
    database, told = Restarted(), list[str]()
    writer = RetryingWriter(cast(Any, database), time.sleep, lambda: told.append("lost"))

    def work(connection: Any) -> str:
        if connection is database.given[0]:
            driven_away(connection)
        return "done after " + " ".join(told)

    writer.do(id)
    assert writer.do(work) == "done after lost"


def driven_away(connection: Any, *, lost: bool = True) -> None:
    connection.usable = not lost
    error = sqlite3.OperationalError("interrupted")
    error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
    raise DBAPIError("SELECT 1", None, error, connection_invalidated=lost)


def test_a_connection_counts_as_closed_while_it_was_idle_only_if_it_was_there_before() -> None:
    database = Restarted()
    writer = RetryingWriter(cast(Any, database), time.sleep, lambda: None)
    for expected in (1, 2):
        with pytest.raises(DrivenAway, match="interrupted"):
            writer.do(driven_away)
        assert len(database.given) == expected, "opened for this work"
    writer.do(id)
    with pytest.raises(DrivenAway, match="interrupted"):
        writer.do(driven_away)
    assert len(database.given) == 4, "and once more for the one that was there before"


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "at-a-limit"])
def test_what_drives_the_database_away_is_not_repeated_after_the_end(lost: bool) -> None:
    tried: list[int] = []

    def work(connection: Any, some: Any) -> None:
        tried.append(len(some))
        driven_away(connection, lost=lost)

    def ended(_: float) -> None:
        raise Closed("ended")

    writer = RetryingWriter(cast(Any, Restarted()), ended, lambda: None)
    writer.do(id)
    with pytest.raises(Closed):
        writer.do_some(range(8), Portion(), work)
    assert tried == [8]


def test_why_less_of_a_run_is_tried_is_told_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def work(connection: Any, some: Any) -> int:
        tried.append(len(some))
        if len(some) > 2:
            driven_away(connection)
        return len(some)

    writer, portion = RetryingWriter(cast(Any, Restarted()), time.sleep, lambda: None), Portion()
    monkeypatch.setattr(retrying, "_UNTOLD_S_MAX", -1.0)
    for _ in range(2):
        with pytest.raises(DrivenAway, match="interrupted"):
            writer.do_some(range(8), portion, work)
    assert writer.do_some(range(8), portion, work) == 2
    assert tried == [8, 4, 2]


class Taken:
    """Work that meets rows of the same key as its own, each in one attempt, and wraps what the database says."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tried: list[int] = []

    def __call__(self, _: Any, some: Any) -> int:
        self.tried.append(len(some))
        if len(self.tried) > self.rows:
            return len(some)
        error = psycopg.errors.UniqueViolation("a row of this key is there")
        error.sqlstate = "23505"
        raise LookupError("no account") from DBAPIError("INSERT", None, error)


def done_alone(work: Any, of: int = 1) -> int:
    return RetryingWriter(cast(Any, Held()), lambda _: None, lambda: None).do_some(range(of), Portion(), work)


def test_one_alone_is_tried_again_when_another_transaction_has_written_a_row_of_its_key() -> None:
    assert done_alone(work := Taken(3)) == 1
    assert work.tried == [1, 1, 1, 1]


def test_one_alone_that_meets_a_row_of_its_key_each_time_is_told_as_at_fault() -> None:
    work = Taken(1000)
    with pytest.raises(LookupError, match="no account"):
        done_alone(work)
    assert len(work.tried) == _TAKEN


def test_a_run_that_meets_a_row_of_its_key_is_not_repeated_whole() -> None:
    work = Taken(1)
    with pytest.raises(LookupError):
        done_alone(work, 8)
    assert work.tried == [8]


def test_what_the_library_says_of_a_row_that_is_there_is_told_at_once() -> None:
    tried: list[object] = []

    def work(connection: object, some: object) -> None:
        tried.append(some)
        try:
            Taken(1)(connection, range(1))
        except LookupError as error:
            raise ViewUnfit("another program writes this table") from error

    with pytest.raises(ViewUnfit):
        done_alone(work)
    assert len(tried) == 1
