"""The file of a SQLite database: whether the one that a connection has open is still the one in its place.

A connection goes on with its file when that is removed or replaced: what it commits then is in no directory.
"""

from __future__ import annotations

import os
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL

from polonaise.errors import ViewUnavailable

_OPEN: Final = "polonaise_file"
"""Where a pool's record of a connection keeps what `_note` knows of it."""
_NONE: Final = (0, 0)
"""The identity of a file that is not there."""


class SqliteFile:
    """The place of a SQLite database. Opened once, the file has to stay there, and is not made again."""

    def __init__(self, engine: Engine, place: URL | None) -> None:
        """Take an engine, and the URL that it was made of just now; None if its directory is not known for sure."""
        event.listen(engine, "connect", _note)
        file = None if place is None else place.database
        self._given = os.path.abspath(file) if file and not file.startswith((":", "file:")) else ""
        self._place = ""

    def opened(self, db: Connection) -> bool:
        """Return whether the connection has the file open that is in its place; if so, it is expected there from now.

        A connection that was made before the engine was given to us may have any file open.
        """
        self._place = self._given or db.info.get(_OPEN, ("",))[0]
        return not self.is_elsewhere(db)

    def is_elsewhere(self, db: Connection) -> bool:
        """Return whether another file than the connection's is in its place, or none; costs one `stat`."""
        place, identity = db.info.get(_OPEN, ("", None))
        return identity is None or (bool(place) and _identity(self._given or place) != identity)

    def check_there(self) -> None:
        """Raise `ViewUnavailable` if the file was opened before, and is gone: connecting would make an empty one."""
        if self._place and _identity(self._place) is _NONE:
            raise ViewUnavailable(
                f"the database's file {self._place} was removed, or can't be reached, while it was in use: nothing is "
                "read and applied until it is back. To begin anew without it, start this process again"
            )

    def forget(self) -> None:
        """Expect the file no more: the next one may be another."""
        self._place = ""


def _identity(place: str) -> tuple[int, int]:
    """Return what tells the file in this place from others; `_NONE` if there is none."""
    try:
        status = os.stat(place)
    except OSError:
        return _NONE
    return status.st_dev, status.st_ino


def _note(driver: Any, record: Any) -> None:
    """Note which file a new connection has open."""
    place = driver.execute("PRAGMA database_list").fetchone()[2]  # empty for one in memory
    record.info[_OPEN] = (place, _identity(place))
