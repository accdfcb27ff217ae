"""Tell database errors that may pass by themselves from all others: by their codes, never by the words of a message."""

from __future__ import annotations

import contextlib
import enum
import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from polonaise.errors import ViewUnavailable
from polonaise.redaction import redacted


class Trouble(enum.Enum):
    """A failure of a SQL transaction that is not the application's fault."""

    CONFLICT = "conflict"
    """Two transactions stood in each other's way, and the database ended this one: try it again after a short pause."""
    UNAVAILABLE = "unavailable"
    """The database is away, starting, full or not writable: try again after a while."""


_CONFLICT_STATES = frozenset({"40001", "40P01", "55P03"})
"""SQLSTATEs of conflicts: serialization failure, deadlock, lock not available (`lock_timeout`)."""
_UNAVAILABLE_CLASSES = ("08", "53", "57P", "58")
"""Beginnings of SQLSTATEs: connection, insufficient resources, operator intervention (not 57014, a cancelled query),
system error."""
_UNAVAILABLE_STATES = frozenset({"25006"})
"""SQLSTATEs of a read-only database, such as a standby until it is promoted."""

_CONFLICT_NUMBERS = frozenset({1213, 1205, 1020})
"""MariaDB's numbers of conflicts: deadlock, lock wait timeout, record has changed since last read (snapshot
isolation)."""
_UNAVAILABLE_NUMBERS = frozenset({3, 1021, 1026, 1040, 1053, 1114, 1203, 1290, 1792, 1836, 1927})
"""MariaDB's numbers of errors that pass by themselves or are an operator's to mend.

Cannot write, disk full, error writing, too many connections, shutting down, table full, too many connections of this
user, read-only (three ways), connection was killed.
"""

_CONFLICT_RESULTS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_UNAVAILABLE_RESULTS = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM}
)


def trouble_in(error: BaseException) -> Trouble | None:
    """Return the trouble behind an error, or behind one of the errors that caused it; None for any other error.

    The causes count because the application's code may have wrapped the database's error.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        trouble = None
        if isinstance(link, DBAPIError):
            trouble = _trouble_of(link)
        elif isinstance(link, sqlite3.Error):
            trouble = _trouble_of_sqlite(link)
        if trouble is not None:
            return trouble
        link = link.__cause__ or link.__context__
    return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise `ViewUnavailable` in place of any database error that may pass. A context manager."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        if trouble_in(error) is None:
            raise
        raise ViewUnavailable(f"the database is not available, try again: {redacted(first_line(error))}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of the database's own message, without the statement and values that SQLAlchemy adds."""
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]


def _trouble_of(error: DBAPIError) -> Trouble | None:
    """Return the `Trouble` that a lost connection or the database's error code means; None for any other error."""
    if error.connection_invalidated:
        return Trouble.UNAVAILABLE
    original = error.orig
    if isinstance(original, sqlite3.Error):
        return _trouble_of_sqlite(original)
    state = getattr(original, "sqlstate", None)
    if isinstance(state, str):
        unavailable = state.startswith(_UNAVAILABLE_CLASSES) or state in _UNAVAILABLE_STATES
        return _chosen(state in _CONFLICT_STATES, unavailable)
    number = original.args[0] if original is not None and original.args else None
    if isinstance(number, int):
        # Numbers from 2000 on are the driver's own: it has lost, or never had, its connection.
        return _chosen(number in _CONFLICT_NUMBERS, number in _UNAVAILABLE_NUMBERS or 2000 <= number < 2100)
    return None


def _trouble_of_sqlite(error: sqlite3.Error) -> Trouble | None:
    """Return the `Trouble` that SQLite's result code means; None for any other error."""
    # The low byte is the result; higher ones refine it (SQLITE_BUSY_SNAPSHOT and so on). The driver's own errors have
    # no code.
    result = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return _chosen(result in _CONFLICT_RESULTS, result in _UNAVAILABLE_RESULTS)


def _chosen(conflict: bool, unavailable: bool) -> Trouble | None:
    if conflict:
        return Trouble.CONFLICT
    return Trouble.UNAVAILABLE if unavailable else None
