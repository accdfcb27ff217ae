"""A database as views use it: the settings that make PostgreSQL, MariaDB and SQLite keep a transaction whole."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from polonaise.errors import BadOption, Forked, NotFound, ViewUnavailable, ViewUnfit
from polonaise.redaction import redacted
from polonaise.views.databaseerrors import database_errors, first_line, not_refused, translated
from polonaise.views.dialects import MARIADB, SQLITE, database_url, engine_of, read_whole_floats, set_up, unchain
from polonaise.views.sqlitefile import SqliteFile
from polonaise.views.writerconnection import WriterConnection, note_errors

_SQLITE_HEADER: Final = b"SQLite format 3\0"
_SQLITE_DRIVERS: Final = ("sqlite", "sqlite+pysqlite")
"""The drivers that read plain files: others may encrypt the file, its header with it."""

_NO_DATABASE: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)

_HIDDEN_OPTION: Final = "its driver does not take an option that is hidden here; in a password, & is written as %26"
_SECRET_MIN: Final = 3
"""Characters from which on a text may be a part of a password; shorter ones are in any sentence."""
_SNAPSHOT_LEVELS: Final = ("REPEATABLE READ", "SERIALIZABLE")
"""The isolation levels under which all reads of a transaction see one state."""
_UNCHAINED: Final = "polonaise: unchained"
_LEAST_LEVEL: Final = "READ COMMITTED"
_BINLOG_REFUSES: Final = "SELECT @@log_bin AND @@SESSION.sql_log_bin AND @@SESSION.binlog_format = 'STATEMENT'"
"""Asks MariaDB whether it logs statements, which it can't of transactions at the least level."""


class Database:
    """A SQLAlchemy engine, with the settings that its kind of database needs. It belongs to the process that uses it
    first: in a forked child, the database's answers to one process would reach the other."""

    def __init__(
        self, engine: Engine | URL | str, isolation_level: str | None, busy_s: float, *, utc: bool = False
    ) -> None:
        """Take an engine, or make one for a URL. `isolation_level` is that of writers; None for the engine's own.
        SQLite waits `busy_s` seconds for another process's write. With `utc` times on the connections are in UTC; else
        in the server's zone."""
        self._utc = utc
        self._owned = not isinstance(engine, Engine)
        self.engine = engine_of(engine, utc=utc)
        note_errors(self.engine)
        self._isolation_level = isolation_level
        self._busy_ms = max(0, int(1000 * busy_s))
        self._pid: int | None = None
        """The process that uses the engine; None before the first use, so that a view may be made before a fork."""
        self.kind = self.engine.dialect.name
        self._file = SqliteFile(self.engine, self.engine.url if self._owned else None) if self.kind == SQLITE else None
        if isinstance(self.engine.pool, StaticPool | SingletonThreadPool):
            raise BadOption(
                "what is applied can't be kept in memory: its threads would not see the same tables. Give it a file"
            )

    @property
    def has_one_writer(self) -> bool:
        """Whether the database takes one writer at a time (SQLite), so that a second one would only wait."""
        return self.kind == SQLITE

    @property
    def is_parents(self) -> bool:
        """Whether the engine was used before this process was forked off."""
        return self._pid not in (None, os.getpid())

    def check_process(self) -> None:
        """Make the engine this process's own. Raises `Forked` if this process's parent used it before the fork."""
        if self.is_parents:
            raise Forked(
                "it was used before this process was forked off, and its connections to the database belong to the "
                "parent: make another, with an engine of its own, in each process, after the fork"
            )
        self._pid = os.getpid()

    def writer(self) -> WriterConnection:
        """Return a connection to apply with. Raises `ViewUnavailable` while none can be had, `ViewUnfit` for a file
        that is no SQLite database or can't have a write-ahead journal, and `Forked`."""
        db = self._connected()
        try:
            if self.kind != SQLITE:
                # Set even to what it is: an engine may be set to commit each statement by itself.
                level = self._isolation_level or db.get_isolation_level()
                # Or a mark might be read that is rolled back afterwards, and be taken for what is applied.
                level = _LEAST_LEVEL if level.upper().replace("_", " ") == "READ UNCOMMITTED" else level
                db.execution_options(isolation_level=level)
                if self.kind in MARIADB:
                    _check_binary_log(db, level)
            # The connection lives as long as its worker: the application's pool must neither wait for it nor get it
            # back with these settings.
            db.detach()
            if self.kind == SQLITE:
                self._set_up_sqlite(db)
            else:
                set_up(db.dialect, db.connection.dbapi_connection, utc=self._utc)
            db.rollback()
            return WriterConnection(db)
        except BaseException as error:
            with contextlib.suppress(*database_errors()):  # it may be lost
                db.close()
            if isinstance(error, database_errors()):
                raise self._not_connected(error, "set up") from error
            raise

    def _not_connected(self, error: Exception, doing: str) -> ViewUnavailable | ViewUnfit:
        original = getattr(error, "orig", None) or error
        if getattr(original, "sqlite_errorcode", 0) & 0xFF in _NO_DATABASE:
            return ViewUnfit(f"{_no_database(self.engine.url.database)} ({first_line(original)})")
        return ViewUnavailable(f"can't {doing} {redacted(self.engine.url)}: {redacted(original)}")

    def _set_up_sqlite(self, db: Connection) -> None:
        """Set SQLite up: readers never wait for the writer, writers wait up to `busy_s` seconds for each other.
        Transactions are begun here, not by Python's driver. Not every commit is synced: after a power loss the file is
        as after an earlier commit, with the marks of that, and the log brings the rest again. Raises `ViewUnfit`."""
        driver = _driver(db)
        driver.isolation_level = None
        driver.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
        (mode,) = driver.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ViewUnfit(
                f"SQLite's journal mode of {self.engine.url.database} is {mode} and can't be made WAL: "
                "put the file on a local file system"
            )
        driver.execute("PRAGMA synchronous = NORMAL")
        driver.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()  # opens the journal
        assert self._file is not None
        self._file.note_journals(db)

    @contextlib.contextmanager
    def reading(self, first: Callable[[Connection], None] = read_whole_floats) -> Iterator[Connection]:
        """Yield a connection within a new transaction, whose reads all see one state of the database. `first` is done
        first in it, and does what `read_whole_floats` does. Raises `ViewUnavailable` when no connection can be had, and
        when the database goes away, or ends the transaction because of others; `Forked` in a child process."""
        with translated(), self._connected() as db:
            with not_refused("who reads"):
                self._begin_reading(db)
                first(db)
            if self._file is not None:
                self._file.note_journals(db)
            yield db

    def _begin_reading(self, db: Connection) -> None:
        if self.kind == SQLITE:
            db.begin()
            # By the driver's own, which is quicker, unless the application's handler of `begin` events has begun.
            if not (driver := _driver(db)).in_transaction:
                driver.execute("BEGIN")
            return
        if not self._owned and not db.info.get(_UNCHAINED):
            unchain(db.dialect, db.connection.dbapi_connection)
            db.info[_UNCHAINED] = True
        # Set even to what the database's default is: an engine may be set to commit each statement by itself.
        default = self.engine.dialect.default_isolation_level
        level = default if default in _SNAPSHOT_LEVELS else _SNAPSHOT_LEVELS[0]
        db.execution_options(isolation_level=level)

    def _connected(self) -> Connection:
        """Return a connection of the engine. Raises `ViewUnavailable`, `ViewUnfit`, `Forked` and `BadOption`."""
        self.check_process()
        try:
            return self._connection()
        except (ProgrammingError, TypeError, ValueError, OSError, AttributeError, LookupError) as error:
            # The driver's own for an option that it does not know, or a file that it can't read; none of the network's.
            reason = self._shown_reason(redacted(getattr(error, "orig", error)))
            # What can't be encoded is kept by the error: it may be the password. So is what the reason does not show.
            cause = None if isinstance(error, UnicodeError) or reason == _HIDDEN_OPTION else error
        except database_errors() as error:
            raise self._not_connected(error, "connect to") from error
        # Outside of the block, or the error would be kept as the context.
        raise BadOption(
            f"can't connect to {redacted(self.engine.url)}: {reason}; correct the options of the URL, "
            "and the files that they name"
        ) from cause

    def _shown_reason(self, reason: str) -> str:
        """Return why the driver takes no such options; without its words if they have what the URL is shown without."""
        shown = redacted(self.engine.url)
        options = self.engine.url.normalized_query
        hidden = [name for name in options if f"{name}=" not in shown]
        hidden += [value for values in options.values() for value in values if f"={value}" not in shown]
        return _HIDDEN_OPTION if any(len(text) >= _SECRET_MIN and text in reason for text in hidden) else reason

    def _connection(self) -> Connection:
        while True:
            if self._file is not None:
                self._file.check_there()
            db = self.engine.connect()
            if self._file is None or self._file.opened(db):
                return db
            db.invalidate()  # the pool has had it open since before the file was replaced
            db.close()

    def is_elsewhere(self, writer: WriterConnection) -> bool:
        """Return whether the file that the writer has open was removed or replaced, which SQLite does not tell."""
        return self._file is not None and self._file.is_elsewhere(writer.db)

    def close(self) -> None:
        """Close the engine if it was made here; the application's engine, and a parent process's, stay open."""
        if self._file is not None:
            self._file.forget()
        if self._owned and not self.is_parents:
            self.engine.dispose()
            self._pid = None  # the next connections may be opened by a child


def _check_binary_log(db: Connection, level: str) -> None:
    """Raise `ViewUnfit` if MariaDB's binary log refuses every change at this isolation level of the connection."""
    if level.upper().replace("_", " ") == _LEAST_LEVEL and db.exec_driver_sql(_BINLOG_REFUSES).scalar():
        raise ViewUnfit(
            "MariaDB refuses changes at the isolation level READ COMMITTED while binlog_format is STATEMENT: set "
            "binlog_format to MIXED or ROW, or the view's isolation_level to REPEATABLE READ"
        )


def _driver(db: Connection) -> sqlite3.Connection:
    return cast(sqlite3.Connection, db.connection.dbapi_connection)


def check_file(url: URL | str, *, there: bool) -> None:
    """Check that a SQLite URL names a SQLite database; URLs of other databases pass. With `there` the file must exist
    (else `NotFound`), because connecting would make an empty one. Raises `ViewUnfit` for another kind of file, and
    `BadOption` for an invalid URL."""
    parsed = database_url(url)
    file = parsed.database
    if parsed.get_backend_name() != SQLITE or not file or file.startswith((":", "file:")):
        return
    if there and not Path(file).is_file():
        raise NotFound(
            f"no SQLite file {file}: correct the URL, sqlite:///PATH from here or sqlite:////PATH from the root"
        )
    if parsed.drivername in _SQLITE_DRIVERS and not _may_be_sqlite(Path(file)):
        raise ViewUnfit(_no_database(file))


def _may_be_sqlite(file: Path) -> bool:
    """Tell whether the file may be a SQLite database, as an empty one may. Of unreadable ones SQLite says why."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(_SQLITE_HEADER)) in (b"", _SQLITE_HEADER)
    except OSError:
        return True


def _no_database(file: str | None) -> str:
    return f"{file} is no SQLite database, or is damaged: correct the URL, or move that file out of the way"
