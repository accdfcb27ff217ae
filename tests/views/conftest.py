"""Views that are closed at the end, and databases for their tests alone; the usual ones are in the common ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from polonaise.views.sql import SqlView
from polonaise_proving.stages.databaseservers import MariaDB, PostgreSQL
from rigs.bankview import Bank


@pytest.fixture(params=["LATIN1", pytest.param("latin1", marks=pytest.mark.slow)])
def narrow_url(request: pytest.FixtureRequest) -> str:
    """A new, empty database whose encoding holds few letters: one of PostgreSQL, and one of MariaDB."""
    if request.param == "LATIN1":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        return postgresql.database("TEMPLATE template0 ENCODING 'LATIN1'")
    mariadb: MariaDB = request.getfixturevalue("mariadb")
    return mariadb.database("CHARACTER SET latin1")


@pytest.fixture
async def views() -> AsyncIterator[Callable[..., Any]]:
    """Makes views, and closes them at the end."""
    made: list[SqlView] = []

    def make(url: Any, kind: type[SqlView] = Bank, **options: Any) -> SqlView:
        made.append(kind(url, **options))
        return made[-1]

    yield make
    for view in made:
        await view.close()


@pytest.fixture
async def view(url: str, views: Callable[..., Bank]) -> Bank:
    """A view that has made its tables in a database of each kind."""
    made = views(url)
    assert await made.high_water_mark(0) == -1
    return made
