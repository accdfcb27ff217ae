"""The databases of a campaign: files of SQLite's, or a server as others configure it, which is killed like the rest."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from polonaise_proving.stages.databaseservers import DatabaseServer

KINDS: Final = ("sqlite", "postgresql", "mariadb", "pooled")


class Databases:
    """Databases by name, made when they are first asked for. Use as a context manager: the server ends with it."""

    def __init__(self, kind: str, directory: Path) -> None:
        """Take one of `KINDS`; `directory` is where files of SQLite's are."""
        self.kind = kind
        self._directory = directory
        self._server: DatabaseServer | None = _server_of(kind)
        self._urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._server is not None:
            self._server.start()
        if self.kind == "mariadb" and self._server is not None:
            # Killed in its first life, it does not start again: the files that it has made there are not on disk yet.
            self._server.stop()
            self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def can_crash(self) -> bool:
        return self._server is not None

    def url(self, name: str) -> str:
        if name not in self._urls:
            file = f"sqlite:///{self._directory / name}.sqlite"
            self._urls[name] = file if self._server is None else self._server.database()
        return self._urls[name]

    def crash(self) -> None:
        """End the server without giving it time; what it has committed is on its disk."""
        assert self._server is not None
        self._server.stop(signal.SIGKILL if self.kind == "mariadb" else signal.SIGQUIT)

    def start_again(self) -> None:
        assert self._server is not None
        self._server.start()


def _server_of(kind: str) -> DatabaseServer | None:
    if kind == "sqlite":
        return None
    from polonaise_proving.stages.databaseservers import (  # not for campaigns that need none
        UNUSUAL,
        MariaDB,
        PostgreSQL,
    )

    return MariaDB(UNUSUAL) if kind == "mariadb" else PostgreSQL(pooled=kind == "pooled")
