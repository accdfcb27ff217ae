"""The files of a SQLite database: whether those that a connection has open are still the ones in their places.

A connection goes on with its files when they are removed or replaced: what it commits then is in no directory.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL

from polonaise.errors import ViewUnavailable

_OPEN: Final = "polonaise_file"
"""Where a pool's record of a connection keeps what `_note` knows of it."""
_NONE: Final = (0, 0)
_JOURNALS: Final = ("-wal", "-shm")
"""How the names of the files end that SQLite keeps beside the database's while anybody has it open."""


class HeldFiles:
    """Which files a connection has open."""

    def __init__(self, driver: Any, place: str) -> None:
        """`place` is that of the database's file, without links; empty for one in memory."""
        self._driver = driver
        self.place = place
        self.identity = _identity(place)
        self.journals: dict[str, tuple[int, int]] = {}
        """The files beside it, by the ends of their names, as far as the connection has opened any."""
        self._is_kept = False

    def note_journals(self) -> None:
        """Note the files beside the database's, now that the connection has read: it has opened them by then."""
        if self.place and len(self.journals) < len(_JOURNALS):
            found = {end: _identity(self.place + end) for end in _JOURNALS}
            self.journals = {end: identity for end, identity in found.items() if identity is not _NONE}

    def has_lost_journals(self) -> bool:
        return any(_identity(self.place + end) != identity for end, identity in self.journals.items())

    def may_be_closed(self) -> bool:
        """Return whether the connection may be closed; if not, it stays open until the process has ended. It may not
        where only the files beside the database's are gone: SQLite would write what is in its journal into the
        database's file, which may have been restored meanwhile."""
        if not self._is_kept and _identity(self.place) == self.identity and self.has_lost_journals():
            self._is_kept = True
            # Past the end of the interpreter, which would close it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._driver))
        return not self._is_kept


_open: Final[WeakSet[HeldFiles]] = WeakSet()
_open_lock: Final = threading.Lock()


class SqliteFile:
    """The place of a SQLite database. Opened once, the file has to stay there, and is not made again."""

    def __init__(self, engine: Engine, place: URL | None) -> None:
        """Take an engine, and the URL that it was made of just now; None if its directory is not known for sure."""
        event.listen(engine, "connect", _note)
        event.listen(engine, "close", _closing)
        file = None if place is None else place.database
        self._given = os.path.abspath(file) if file and not file.startswith((":", "file:")) else ""
        self._place = ""
        self._lost: HeldFiles | None = None
        """A connection whose files beside the database's were gone, when that was last looked at."""

    def opened(self, db: Connection) -> bool:
        """Return whether the connection has the file open that is in its place; if so, it is expected there from now. A
        connection that was made before the engine was given to us may have any file open."""
        opened = opened_by(db)
        self._place = self._given or ("" if opened is None else opened.place)
        return not self.is_elsewhere(db)

    def note_journals(self, db: Connection) -> None:
        if (opened := opened_by(db)) is not None:
            opened.note_journals()

    def is_elsewhere(self, db: Connection) -> bool:
        """Return whether another file than the connection's is in its place, or none; costs three `stat`."""
        opened = opened_by(db)
        if opened is None:
            return True
        if opened.place and _identity(self._given or opened.place) != opened.identity:
            return True
        if not opened.has_lost_journals():
            return False
        self._lost = opened
        with _open_lock:
            others = list(_open)
        for each in others:
            each.may_be_closed()  # for those that nobody closes before the process ends
        return True

    def check_there(self) -> None:
        """Raise `ViewUnavailable` if the file was opened before, and is gone: connecting would make an empty one.
        Likewise if it is there without the files beside it: what is committed would be written twice, or be lost."""
        if self._place and _identity(self._place) is _NONE:
            raise ViewUnavailable(
                f"the database's file {self._place} was removed, or can't be reached, while it was in use: nothing is "
                "read and applied until it is back. To begin anew without it, start this process again"
            )
        if self._lost is not None:
            if _identity(self._place) == self._lost.identity and self._lost.has_lost_journals():
                files = " or ".join(self._lost.place + end for end in self._lost.journals)
                raise ViewUnavailable(
                    f"{files} was removed or replaced while the database was in use: nothing is read and applied any "
                    "more, because what is in it is not in the database's file. Start again each process that has the "
                    "database open; the log brings what its file lacks"
                )
            self._lost = None

    def forget(self) -> None:
        self._place = ""
        self._lost = None


def opened_by(db: Connection) -> HeldFiles | None:
    """Return what the connection has open; None for one that was made before its engine was given to us."""
    return db.info.get(_OPEN)


def _identity(place: str) -> tuple[int, int]:
    try:
        status = os.stat(place)
    except OSError:
        return _NONE
    return status.st_dev, status.st_ino


def _note(driver: Any, record: Any) -> None:
    place = driver.execute("PRAGMA database_list").fetchone()[2]  # empty for one in memory
    record.info[_OPEN] = opened = HeldFiles(driver, place)
    with _open_lock:
        _open.add(opened)


def _closing(driver: Any, record: Any) -> None:
    """Have the pool close another connection in the place of one that is to be kept."""
    opened = record.info.get(_OPEN)
    if opened is not None and not opened.may_be_closed():
        record.dbapi_connection = sqlite3.connect(":memory:")
