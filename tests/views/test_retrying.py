"""Work that a database ends because of other transactions: how often it is repeated, and after which pauses."""

from __future__ import annotations

import sqlite3
import time
from typing import Any, cast

import pytest
from sqlalchemy.exc import DBAPIError

from polonaise.errors import ViewUnavailable
from polonaise.views.retrying import _TRIES, RetryingWriter


class Held:
    """A database whose one connection is always usable."""

    usable = True

    def writer(self) -> Held:
        return self


def in_the_way(_: object) -> None:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    raise error


def test_nothing_is_waited_for_after_the_last_attempt() -> None:
    pauses: list[float] = []
    with pytest.raises(ViewUnavailable, match=f"{_TRIES} times in a row"):
        RetryingWriter(cast(Any, Held()), pauses.append, lost=pytest.fail).do(in_the_way)
    assert len(pauses) == _TRIES - 1


class Restarted(Held):
    """A database that ends the first connection as soon as it is used."""

    def __init__(self) -> None:
        self.given: list[Ended] = []

    def writer(self) -> Any:
        self.given.append(Ended())
        return self.given[-1]


class Ended:
    """A connection that was committed on before."""

    fresh = False
    usable = True

    def close(self) -> None:
        self.usable = False


def test_that_a_connection_was_lost_is_told_before_another_one_is_used() -> None:
    database, told = Restarted(), list[str]()
    writer = RetryingWriter(cast(Any, database), time.sleep, lambda: told.append("lost"))

    def work(connection: Any) -> str:
        if connection is database.given[0]:
            connection.usable = False
            error = sqlite3.OperationalError("interrupted")
            error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
            raise DBAPIError("SELECT 1", None, error, connection_invalidated=True)
        return "done after " + " ".join(told)

    assert writer.do(work) == "done after lost"
