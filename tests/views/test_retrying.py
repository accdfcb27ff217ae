"""Work that a database ends because of other transactions: how often it is repeated, and after which pauses."""

from __future__ import annotations

import sqlite3
from typing import Any, cast

import pytest

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
        RetryingWriter(cast(Any, Held()), pauses.append).do(in_the_way)
    assert len(pauses) == _TRIES - 1
