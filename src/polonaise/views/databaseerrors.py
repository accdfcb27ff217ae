"""Tell database errors that may pass by themselves from all others: by their codes, never by the words of a message.

`docs/databases.md` says what follows from them. Errors come from SQLAlchemy, and past it from the driver.
"""

from __future__ import annotations

import contextlib
import enum
import re
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from polonaise.errors import BadOption, PolonaiseError, ViewUnavailable
from polonaise.redaction import redacted_line


class Trouble(enum.Enum):
    """A failure of a SQL transaction that is not, or not for sure, the fault of what was to be done in it."""

    PASSING = "passing"
    """Others stood in the way, and the database ended this transaction: try it again after a short pause."""
    AWAY = "away"
    """The database is away, starting, full or not writable: try again after a while."""
    DRIVEN = "driven"
    """The connection was lost, or a limit of size, time or memory was reached, perhaps by what was sent: try less."""
    READ_ONLY = "read-only"
    """This transaction takes no changes: the database is away, such as a standby until it is promoted; or, if it took
    some before, what was done in it has made it so."""


class OwnRefused(ViewUnavailable):
    """The database refuses what the library itself asks it: to blame is neither application code nor a transaction."""


class MadeReadOnly(BadOption):
    """What `apply` did has made its transaction read-only: no trouble of the database's, though the cause looks so."""


_POSTGRESQL: Final[dict[str, Trouble]] = {
    "40001": Trouble.PASSING,  # serialization failure
    "40P01": Trouble.PASSING,  # deadlock
    "40003": Trouble.PASSING,  # whether a statement was completed is unknown
    "55P03": Trouble.PASSING,  # lock not available (`lock_timeout`)
    "55006": Trouble.PASSING,  # object in use
    "26000": Trouble.PASSING,  # a prepared statement that is not there, or there already: behind a pooler
    "42P05": Trouble.PASSING,
    "57014": Trouble.DRIVEN,  # canceled (`statement_timeout`)
    "25P03": Trouble.DRIVEN,  # `idle_in_transaction_session_timeout`
    "25P04": Trouble.DRIVEN,  # `transaction_timeout`
    "53200": Trouble.DRIVEN,  # out of memory, that of locks included
    "57P01": Trouble.DRIVEN,  # the connection was ended by an administrator
    "57P02": Trouble.DRIVEN,  # another connection crashed: perhaps by what this one sent
    "57P05": Trouble.DRIVEN,  # `idle_session_timeout`
    "25006": Trouble.AWAY,  # read-only: a standby, or another server that this one has asked
    "XX001": Trouble.AWAY,  # damaged data, and a damaged index
    "XX002": Trouble.AWAY,
}
_POSTGRESQL_CLASSES: Final = {
    "08": Trouble.DRIVEN,  # connection, and all that a pooler says
    "53": Trouble.AWAY,  # insufficient resources
    "57P": Trouble.AWAY,  # operator intervention
    "58": Trouble.AWAY,  # system error
}
"""What the beginning of a SQLSTATE means, if the whole of it is not in the table."""
_POSTGRESQL_TAKEN: Final = ("23505", "23P01")
"""A key that another row has, and a row that one excludes."""
_FAILED_BEFORE: Final = "25P02"
"""PostgreSQL's code for each statement in a transaction after an error."""
_POSTGRESQL_FUNCTIONS: Final = {
    "RevalidateCachedQuery": Trouble.PASSING,  # a table was altered after a statement was prepared
    "PreventCommandIfReadOnly": Trouble.READ_ONLY,
}
"""What an error means by the function of PostgreSQL's that raises it, where the SQLSTATE has several meanings."""

_MARIADB: Final[dict[int, Trouble]] = {
    **dict.fromkeys(
        # deadlock, lock wait timeout, record has changed since last read (snapshot isolation), table was altered,
        # global read lock, has to be prepared again, too many transactions, lock was aborted, lock is not available at
        # once, deadlock of user-level locks, rolled back by the group of servers, table is being altered
        (1213, 1205, 1020, 1412, 1223, 1615, 1637, 1689, 3572, 3058, 3101, 1684),
        Trouble.PASSING,
    ),
    **dict.fromkeys(
        # cannot write, disk full, error writing, too many connections, server not ready (Galera), shutting down, table
        # full, error during commit, too many connections of this user, limit of this user, read-only, binary log
        # can't be written; damaged tables and indexes
        (3, 1021, 1026, 1040, 1047, 1053, 1114, 1180, 1203, 1226, 1836, 1598, 1034, 1194, 1712),
        Trouble.AWAY,
    ),
    # packet too large, six errors of the network
    **dict.fromkeys((1153, 1156, 1157, 1158, 1159, 1160, 1161), Trouble.DRIVEN),
    # error of the storage engine, out of memory (three ways), table of locks is full, cache of a transaction is full
    **dict.fromkeys((1030, 1037, 1038, 1041, 1206, 1197), Trouble.DRIVEN),
    # query was interrupted, connection was killed, `max_statement_time`, `max_execution_time`, too large for the group
    # of servers, idle for too long
    **dict.fromkeys((1317, 1927, 1969, 3024, 3100, 4031), Trouble.DRIVEN),
    **dict.fromkeys((2002, 2003, 2005), Trouble.AWAY),  # the driver's own: nobody answers at this address
    1792: Trouble.READ_ONLY,
    0: Trouble.DRIVEN,  # the driver's own: its connection is closed
}
_MARIADB_TAKEN: Final = (1062, 1022, 1169, 1586, 1859)
"""A key that another row has."""
_OPTION_PREVENTS: Final = 1290
"""What an option of the server forbids. The message has the option's name, in each language."""
_READ_ONLY_OPTION: Final = re.compile(r"read[-_]only")
_MARIADB_LOST: Final = range(2000, 2100)
"""The driver's own: it has lost its connection."""

_SQLITE: Final[dict[int, Trouble]] = {
    **dict.fromkeys(
        (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_PROTOCOL), Trouble.PASSING
    ),
    **dict.fromkeys(
        (
            sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB,
        ),
        Trouble.AWAY,
    ),
    **dict.fromkeys((sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT), Trouble.DRIVEN),
}  # fmt: skip


_DRIVERS: Final = ("psycopg", "pymysql")


def database_errors() -> tuple[type[Exception], ...]:
    """Return the kinds of a database's errors, for an `except`: SQLAlchemy's, and those of the drivers in use.
    SQLAlchemy passes on a driver's error that comes from anything but a statement of its own."""
    return (SQLAlchemyError, sqlite3.Error, *_driver_errors())


def _driver_errors() -> tuple[type[Exception], ...]:
    loaded = (getattr(sys.modules.get(name), "Error", None) for name in _DRIVERS)
    return tuple(each for each in loaded if each is not None)


def trouble_in(error: BaseException | None) -> Trouble | None:
    """Return the trouble behind an error, or a cause of it, which application code may have wrapped; None for none."""
    for link in _links(error):
        trouble = None
        if isinstance(link, MadeReadOnly):
            return None
        if isinstance(link, DBAPIError):
            trouble = _trouble_of_driver(link.orig)
            if trouble is None and link.connection_invalidated:
                trouble = Trouble.DRIVEN
        elif isinstance(link, (sqlite3.Error, *_driver_errors())):
            trouble = _trouble_of_driver(link)
        if trouble is not None:
            return trouble
    return None


def is_taken(error: BaseException) -> bool:
    """Tell whether a row was refused for another one of the same key, which another transaction may have just written.
    Causes count as in `trouble_in`. Not of SQLite, which has one writer: there the row was there before."""
    if isinstance(error, PolonaiseError):
        return False  # the library's own, which says what to do
    for link in _links(error):
        original = link.orig if isinstance(link, DBAPIError) else link
        if isinstance(original, _driver_errors()):
            number = original.args[0] if original.args else None
            if getattr(original, "sqlstate", None) in _POSTGRESQL_TAKEN or number in _MARIADB_TAKEN:
                return True
    return False


def _links(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    link = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise `ViewUnavailable` in place of any database error that may pass. A context manager."""
    try:
        yield
    except database_errors() as error:
        if trouble_in(error) is None:
            raise
        raise ViewUnavailable(f"the database is not available, try again: {first_line(error)}") from error


@contextlib.contextmanager
def not_refused(whose: str) -> Iterator[None]:
    """Raise `OwnRefused` in place of any error of a database's that does not pass: `whose` own statements are within.
    To be put around all that the library asks for itself, and nothing that application code does. A context manager."""
    try:
        yield
    except (*database_errors(), TypeError) as error:  # type: ignore[misc]
        if trouble_in(error) is not None:
            raise
        raise OwnRefused(
            f"the database refuses what {whose} itself needs: {first_line(error)}. See whether rights on tables were "
            "taken away, those of Polonaise's own tables included, or what is in these was changed"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of the database's own message, redacted, without the statement that SQLAlchemy adds."""
    return redacted_line(getattr(error, "orig", None) or error)


def has_failed_before(error: Exception) -> bool:
    """Tell whether the database only says that the transaction has failed on an earlier error."""
    return getattr(getattr(error, "orig", error), "sqlstate", None) == _FAILED_BEFORE


def _trouble_of_driver(original: BaseException | None) -> Trouble | None:
    if isinstance(original, sqlite3.Error):
        return _trouble_of_sqlite(original)
    # MariaDB's numbers say more than its SQLSTATEs, of which newer drivers bring one, too.
    number = original.args[0] if original is not None and original.args else None
    return _trouble_of_mariadb(number, original) if isinstance(number, int) else _trouble_of_postgresql(original)


def _trouble_of_mariadb(number: int, original: object) -> Trouble | None:
    if number == _OPTION_PREVENTS and _READ_ONLY_OPTION.search(str(original)):
        return Trouble.AWAY
    return _MARIADB.get(number, Trouble.DRIVEN if number in _MARIADB_LOST else None)


def _trouble_of_postgresql(original: Any) -> Trouble | None:
    state = getattr(original, "sqlstate", None)
    if not isinstance(state, str):
        # The server has not said it, but the driver: it can't reach the server any more.
        operational = getattr(sys.modules.get("psycopg"), "OperationalError", None)
        return Trouble.DRIVEN if operational is not None and isinstance(original, operational) else None
    function = getattr(getattr(original, "diag", None), "source_function", None)
    if function in _POSTGRESQL_FUNCTIONS:
        return _POSTGRESQL_FUNCTIONS[function]
    classes = (trouble for beginning, trouble in _POSTGRESQL_CLASSES.items() if state.startswith(beginning))
    return _POSTGRESQL.get(state, next(classes, None))


def _trouble_of_sqlite(error: sqlite3.Error) -> Trouble | None:
    # The low byte is the result; higher ones refine it (SQLITE_BUSY_SNAPSHOT and so on): read-only because of the file,
    # for one. The driver's own errors have no code.
    code = getattr(error, "sqlite_errorcode", 0)
    return Trouble.READ_ONLY if code == sqlite3.SQLITE_READONLY else _SQLITE.get(code & 0xFF)
