"""Databases for the views' tests alone; the usual ones are in the common ones."""

from __future__ import annotations

import pytest

from polonaise_proving.stages.databaseservers import MariaDB, PostgreSQL


@pytest.fixture(params=["LATIN1", pytest.param("latin1", marks=pytest.mark.slow)])
def narrow_url(request: pytest.FixtureRequest) -> str:
    """A new, empty database whose encoding holds few letters: one of PostgreSQL, and one of MariaDB."""
    if request.param == "LATIN1":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        return postgresql.database("TEMPLATE template0 ENCODING 'LATIN1'")
    mariadb: MariaDB = request.getfixturevalue("mariadb")
    return mariadb.database("CHARACTER SET latin1")
