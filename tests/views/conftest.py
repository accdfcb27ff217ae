"""Databases for the views' tests: SQLite files and a MariaDB; PostgreSQL is in the common ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.databases import MariaDB, PostgreSQL
from rigs.lacking import lacking


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    if MariaDB.program() is None:
        lacking("no `mariadbd` on this machine: Debian's package mariadb-server-core has it")
    server = MariaDB()
    server.start()
    yield server
    server.close()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'view.db'}"


@pytest.fixture
def postgresql_url(postgresql: PostgreSQL) -> str:
    return postgresql.database()


@pytest.fixture
def mariadb_url(mariadb: MariaDB) -> str:
    return mariadb.database()


_MARIADB = pytest.param("mariadb", marks=pytest.mark.slow)
"""Among the slow tests: two servers of databases take longer to start than all quick tests of views."""


@pytest.fixture(params=["sqlite", "postgresql", _MARIADB])
def url(request: pytest.FixtureRequest) -> str:
    """A new, empty database of each kind in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["postgresql", _MARIADB])
def server_url(request: pytest.FixtureRequest) -> str:
    """As `url`, of those that are servers."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["LATIN1", pytest.param("latin1", marks=pytest.mark.slow)])
def narrow_url(request: pytest.FixtureRequest) -> str:
    """A new, empty database whose encoding holds few letters: one of PostgreSQL, and one of MariaDB."""
    if request.param == "LATIN1":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        return postgresql.database("TEMPLATE template0 ENCODING 'LATIN1'")
    mariadb: MariaDB = request.getfixturevalue("mariadb")
    return mariadb.database("CHARACTER SET latin1")
