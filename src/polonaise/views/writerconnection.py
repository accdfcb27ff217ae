"""A connection to write with: whole SQL transactions, which nobody ends but this module, and none unnoticed."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from polonaise.errors import BadOption
from polonaise.views.databaseerrors import (
    MadeReadOnly,
    Trouble,
    database_errors,
    first_line,
    has_failed_before,
    not_refused,
    trouble_in,
)
from polonaise.views.dialects import MARIADB, POSTGRESQL, SQLITE
from polonaise.views.sqlitefile import opened_by

_WRITER: Final = "polonaise_writer"
"""The execution option by which an engine's error finds the `WriterConnection` that it happened on."""
_WHOLE: Final = "polonaise_whole"
"""The savepoint that is there as long as the transaction that began with it."""

_COMMENTS: Final = r"^(?:\s|;|/\*.*?\*/|--[^\n]*\n)*"
_COMMENTS_MARIADB: Final = r"^(?:\s|;|/\*M?!\d*|/\*.*?\*/|--[^\n]*\n|#[^\n]*\n)*"
"""What may stand before a statement. MariaDB executes what is in a comment that begins with `/*!` or `/*M!`."""
_ENDS: Final = re.compile(
    _COMMENTS + r"(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b)|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that end a transaction in PostgreSQL."""
_ENDS_MARIADB: Final = re.compile(
    _COMMENTS_MARIADB
    + r"(?:COMMIT|ROLLBACK(?!\s+(?:WORK\s+)?TO\b)|BEGIN(?!\s+NOT\s+ATOMIC\b)|START|XA|SET\s[^;]*\bautocommit|"
    r"SET\s+STATEMENT\s[^;'\"]*\sFOR\s+COMMIT|LOCK|UNLOCK|ALTER|"
    r"CREATE(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b)|DROP(?!\s+TEMPORARY\b)|RENAME|TRUNCATE|GRANT|REVOKE|ANALYZE|"
    r"OPTIMIZE|REPAIR|CHECK|CACHE|FLUSH|RESET|INSTALL|UNINSTALL)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that end a transaction in MariaDB: those that change tables, users or the server commit it unasked."""
_LEAVES: Final = re.compile(_COMMENTS_MARIADB + r"(?:ROLLBACK|RELEASE)\b", re.IGNORECASE | re.DOTALL)
"""Statements with which a savepoint ends, in each database."""

_MAY_NOT_END: Final = (
    "`apply` may not end its SQL transaction, which is committed together with the high-water mark: "
    "remove commit() and rollback(); begin_nested() is allowed"
)
_MAY_NOT_COMMIT: Final = (
    f"{_MAY_NOT_END}. MariaDB commits it, too, on a statement that changes tables, users or the server"
)
_HAS_ENDED: Final = (
    f"{_MAY_NOT_END}; OR ROLLBACK and RAISE(ROLLBACK) end it as well, but ABORT does not; so may an error that was "
    "caught outside of begin_nested()"
)
_MADE_READ_ONLY: Final = (
    "`apply` may not make its SQL transaction read-only, in which the high-water mark is written, too: remove what "
    "does so"
)

_NOTING: Final[WeakSet[Engine]] = WeakSet()
"""The engines whose errors are noted."""


class WriterConnection:
    """A connection to write with, for one thread. Its SQL transactions are begun and ended by this class alone."""

    def __init__(self, db: Connection) -> None:
        self.db = db
        self.last_step: Callable[[], None] | None = None
        """What a guarded transaction does once it is known to be whole, just before it is committed."""
        self._ours = True
        self._meddled = False
        self._swallowed: Exception | None = None
        """The error of this transaction that `apply` may have caught."""
        self._undone: Exception | None = None
        """The error of this transaction with which others, or the database itself, have kept a statement from its work.
        Within `begin_nested()`, too: another time that work would be done. Each further statement raises it, until the
        transaction is rolled back and tried again: others wait for its locks."""
        self._ended_by: Exception | None = None
        """The error with which SQLite has rolled this transaction back."""
        db.execution_options(**{_WRITER: self})
        event.listen(db, "commit", self._check_end)
        event.listen(db, "rollback", self._check_end)
        driver = db.connection.dbapi_connection
        self._driver: Any = driver
        self._opened = opened_by(db)
        self._sqlite = cast(sqlite3.Connection, driver) if db.dialect.name == SQLITE else None
        if self._sqlite is not None:
            # SQLAlchemy sees only what goes through its own methods. SQLite itself knows of every other way, and of
            # statements that roll back on their own (INSERT OR ROLLBACK, a trigger's RAISE): what came after one would
            # be committed without the mark.
            self._sqlite.set_authorizer(self._authorize)
        else:
            self._watch(driver)
        # For statements of cursors that are not watched as well, such as those that the server keeps.
        event.listen(db, "before_cursor_execute", self._check_open)

    @property
    def usable(self) -> bool:
        """Whether the connection can still be used: application code may have dropped the driver's
        (`db.connection.invalidate()`)."""
        return not (self.db.closed or self.db.invalidated) and self.db.connection.dbapi_connection is self._driver

    @contextlib.contextmanager
    def transaction(self, *, guarded: bool = False, synced: bool = False) -> Iterator[Connection]:
        """Yield the connection in a transaction: committed at the end, rolled back when something is raised.

        The mark and what it stands for are committed together. With `guarded`, for the application's code, one that has
        ended meanwhile is not committed: raises `BadOption` if that code ended it, and the database's error if that
        code caught one with which the database ended it. With `synced` the commit survives a loss of power on SQLite,
        too.
        """
        if self._sqlite is not None and synced:
            self._sqlite.execute("PRAGMA synchronous = FULL")
            try:
                with self.transaction(guarded=guarded):
                    yield self.db
            finally:
                self._sqlite.execute("PRAGMA synchronous = NORMAL")
            return
        db, transaction = self.db, self.db.begin()
        self._swallowed = self._undone = self._ended_by = None
        self.last_step = None
        try:
            with not_refused("each SQL transaction"):
                # Unless the application's handler of `begin` events has begun one. Python's driver would begin one only
                # before the first change, so earlier reads would not belong to it.
                if self._sqlite is not None and not self._sqlite.in_transaction:
                    db.exec_driver_sql("BEGIN IMMEDIATE")
                if guarded:
                    # Looking at MariaDB's tables sets it, and leaves it so: errors would not be noted.
                    db.execution_options(skip_user_error_events=False)
                    db.exec_driver_sql(f"SAVEPOINT {_WHOLE}")
            self._ours = not guarded
            try:
                yield db
                self._check_still_open()
            finally:
                self._ours = True
            if guarded:
                self._check_whole()
            if self.last_step is not None:
                # Not earlier: what application code has committed must not look as if all of it were there.
                self.last_step()
            transaction.commit()
        except BaseException as error:
            reason = self._reason(error) if guarded else None
            if guarded and reason is None:
                self._look_whether_ended(error)
            self._roll_back()
            if reason is not None:
                raise reason from error
            raise

    def _roll_back(self) -> None:
        if self._meddled:
            # SQLAlchemy may believe a transaction to be over that is not: only closing rolls it back for sure.
            self.close()
        with contextlib.suppress(*database_errors()):
            # A connection that can't even roll back is lost; the database rolls back by itself.
            self.db.rollback()
            if self._sqlite is not None and self.usable and self._sqlite.in_transaction:
                # A COMMIT that fails leaves it open, and SQLAlchemy takes it for ended.
                self._sqlite.rollback()

    # ------------------------------------------------------------------ ends that are noticed

    def _check_whole(self) -> None:
        """Raise unless the transaction is the one that began with the savepoint, and can be committed. MariaDB and
        SQLite undo only the statement that waited for a lock too long, was interrupted, or found no space, and all
        databases only what the application's own savepoint holds: they would commit the rest with the mark."""
        if self._undone is not None:
            raise self._undone
        try:
            self.db.exec_driver_sql(f"RELEASE SAVEPOINT {_WHOLE}")
        except DBAPIError as error:
            if trouble_in(error) is not None:
                raise
            if self._swallowed is not None and self._swallowed is not error:
                raise self._swallowed from error
            self._meddled = True
            raise BadOption(_HAS_ENDED) from error

    def _reason(self, error: BaseException) -> Exception | None:
        """Return the error that is to be raised in the place of `error`; None if that says all."""
        ending = self._ending(error)
        cause = ending or error
        # Where there is a last step, the transaction has taken the mark before.
        if self.last_step is None or trouble_in(cause) is not Trouble.READ_ONLY or not isinstance(error, Exception):
            return ending
        self._meddled = True  # what made it so may be a setting of the connection
        return MadeReadOnly(f"{_MADE_READ_ONLY}: {first_line(cause)}")

    def _ending(self, error: BaseException) -> Exception | None:
        """Return the error with which the database has ended the transaction, if `error` only followed from it."""
        if self._ended_by is not None:
            return self._ended_by if isinstance(error, Exception) and error is not self._ended_by else None
        caught = self._swallowed
        if caught is None or caught is error or trouble_in(caught) is None or trouble_in(error) is not None:
            return None
        if not isinstance(error, Exception) or self._meddled:
            return None
        if self._undone is not None:
            return self._undone
        try:
            self.db.exec_driver_sql(f"RELEASE SAVEPOINT {_WHOLE}")
        except SQLAlchemyError:
            return caught
        return None  # `apply` had caught it, and the transaction was whole: this error is another matter

    def _look_whether_ended(self, error: BaseException) -> None:
        """Find out whether the application has ended the transaction before it has raised the error."""
        troubled = trouble_in(error) is not None or (self._swallowed is not None and trouble_in(self._swallowed))
        if troubled or self._sqlite is not None or self._meddled or not self.usable:
            return
        try:
            self.db.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_WHOLE}")
        except SQLAlchemyError as gone:
            self._meddled = isinstance(gone, DBAPIError) and trouble_in(gone) is None

    def note(self, error: Exception) -> None:
        """Keep the database's error, which the application's code may catch: SQLAlchemy's in the place of the driver's.
        The driver's own is all that is seen of what goes past SQLAlchemy."""
        if self._ours or has_failed_before(error):
            return
        trouble, driver_s = trouble_in(error), getattr(error, "orig", error)
        # What `apply` itself has made read-only in a savepoint is its own business, as a constraint is.
        is_its_own = trouble is Trouble.READ_ONLY and self.db.in_nested_transaction()
        if trouble is not None and not is_its_own and (self._undone is None or self._undone is driver_s):
            self._undone = error
        if trouble is not None or self._swallowed is driver_s or trouble_in(self._swallowed) is None:
            self._swallowed = error

    def _check_end(self, _: Connection) -> None:
        if not self._ours:
            self._meddled = True
            raise BadOption(_MAY_NOT_END)

    def _check_open(self, _: Connection, __: object, statement: str, *___: object) -> None:
        """Raise before a statement if the transaction can't be committed: `BadOption` if it has ended, as far as
        known."""
        if not self._ours:
            if self._sqlite is not None:
                self._check_still_open()
            self.check_undone(statement)

    def check_undone(self, statement: object = "", cursor: object = None) -> None:
        """Raise the noted error that keeps the transaction from being committed, before this statement of `apply`'s.
        Going on would keep locks that others wait for, and run into others again and again. The end of a savepoint
        passes: the code that caught the error may be on its way out of it."""
        if self._undone is not None and not (self._ours or _LEAVES.match(_text(statement, cursor))):
            # Without the places where it was raised before: `apply` may catch it for each of many statements.
            raise self._undone.with_traceback(None)

    def _check_still_open(self) -> None:
        """Raise if the transaction has ended, as far as is known without asking: `BadOption` if `apply` ended it. If
        SQLite did, on an error that `apply` caught, such as that of a full disk, that error is raised again."""
        if not self._meddled and self._sqlite is not None and not self._sqlite.in_transaction:
            self._meddled = True
            if self._swallowed is not None and trouble_in(self._swallowed) is not None:
                self._ended_by = self._swallowed
        if self._ended_by is not None:
            raise self._ended_by
        if self._meddled:
            raise BadOption(_HAS_ENDED)

    # ------------------------------------------------------------------ ends that are refused

    def _authorize(self, action: int, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION and not self._ours else sqlite3.SQLITE_OK

    def _watch(self, driver: Any) -> None:
        """Refuse the application's own ends of a transaction before they reach the server, also past SQLAlchemy."""
        for name in ("commit", "rollback", "begin", "autocommit"):
            method = getattr(driver, name, None)
            if callable(method):
                setattr(driver, name, self._refusing(method, lambda *_: True, _MAY_NOT_END))
        if self.db.dialect.name in MARIADB:
            # Each statement goes through this method of the driver's, whoever sends it.
            driver.query = self._refusing(driver.query, _ends_on_mariadb, _MAY_NOT_COMMIT)
        elif self.db.dialect.name == POSTGRESQL:
            driver.cursor_factory = self._refusing_cursor(driver.cursor_factory)

    def _refusing(self, method: Callable[..., Any], refused: Callable[..., bool], why: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # Meddled with, the transaction is lost already: SQLAlchemy rolls it back while it closes the connection.
            if not (self._ours or self._meddled) and refused(*args):
                raise BadOption(why)
            self.check_undone(*args[:1])
            with self._noting():
                return method(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except database_errors() as error:
            self.note(error)
            raise

    def _refusing_cursor(self, kind: Any) -> Any:
        """Return a class of psycopg's cursors that refuses statements which end the transaction, and notes errors."""
        writer = self

        class RefusingCursor(kind):  # type: ignore[misc]
            def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
                self._check(query)
                with writer._noting():
                    return super().execute(query, *args, **kwargs)

            def executemany(self, query: Any, *args: Any, **kwargs: Any) -> Any:
                self._check(query)
                with writer._noting():
                    return super().executemany(query, *args, **kwargs)

            def stream(self, query: Any, *args: Any, **kwargs: Any) -> Any:
                self._check(query)
                with writer._noting():
                    yield from super().stream(query, *args, **kwargs)

            @contextlib.contextmanager
            def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
                self._check(statement)
                with writer._noting(), super().copy(statement, *args, **kwargs) as copy:
                    yield copy

            def _check(self, query: Any) -> None:
                if not (writer._ours or writer._meddled) and _ENDS.match(_text(query, self)):
                    raise BadOption(_MAY_NOT_END)
                writer.check_undone(query, self)

        return RefusingCursor

    def close(self) -> None:
        self._ours = True
        if self._opened is not None and not self._opened.may_be_closed():
            return
        with contextlib.suppress(*database_errors()):
            self.db.close()
        # SQLAlchemy may not have closed the driver's connection, which would then hold its locks until the garbage is
        # collected.
        with contextlib.suppress(Exception):
            if self._sqlite is not None:
                self._sqlite.set_authorizer(None)
            self._driver.close()


def note_errors(engine: Engine) -> None:
    """Have the errors of an engine noted by the `WriterConnection` that they happen on."""
    # SQLAlchemy's own `contains` goes by ids, which an engine may have from one that is gone.
    if engine not in _NOTING:
        _NOTING.add(engine)
        # First: another handler may raise an error in the place of the database's, and later ones are not called then.
        event.listen(engine, "handle_error", _note, insert=True)


def _note(context: ExceptionContext) -> None:
    if context.connection is None or not isinstance(context.sqlalchemy_exception, DBAPIError):
        return
    writer = context.connection.get_execution_options().get(_WRITER)
    if writer is not None:
        writer.note(context.sqlalchemy_exception)


def check_undone(db: Connection) -> None:
    """Raise the error that keeps the transaction of this connection from being committed, if `apply` has caught one."""
    writer = db.get_execution_options().get(_WRITER)
    if writer is not None:
        writer.check_undone()


def _ends_on_mariadb(statement: str | bytes, *_: object) -> bool:
    return _ENDS_MARIADB.match(_text(statement if isinstance(statement, str) else statement[:1000])) is not None


def _text(statement: Any, cursor: object = None) -> str:
    """Return a statement as text; `cursor` is the one it is sent with, where psycopg may compose it."""
    text = statement.as_string(cursor) if hasattr(statement, "as_string") else statement
    return text if isinstance(text, str) else bytes(text).decode(errors="replace")
