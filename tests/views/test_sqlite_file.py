"""A SQLite file that is removed or replaced while it is in use: nothing more goes to the one that is not there."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.pool import NullPool, QueuePool

from polonaise.errors import ViewUnavailable
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, check_fold, journal, transactions
from rigs.programs import run_python

TESTS = Path(__file__).parents[1]
MakeEngine = Callable[[str], Engine | str]


@pytest.fixture(params=["an address", "an engine", "an engine without a pool", "an engine whose file is not named"])
def made_of(request: pytest.FixtureRequest) -> Iterator[MakeEngine]:
    """How a view is given its database."""
    engines: list[Engine] = []

    def make(url: str) -> Engine | str:
        if request.param == "an address":
            return url
        file = url.removeprefix("sqlite:///")
        if request.param == "an engine":
            engines.append(create_engine(url))
        elif request.param == "an engine without a pool":
            engines.append(create_engine(url, poolclass=NullPool))
        else:
            unnamed: dict[str, Any] = {"creator": lambda: sqlite3.connect(file, check_same_thread=False)}
            engines.append(create_engine("sqlite://", poolclass=QueuePool, **unnamed))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "view.db"


def copied(file: Path) -> Path:
    """Make a backup of the database, and return it."""
    copy = file.with_name("backup.db")
    source, target = sqlite3.connect(file), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    return copy


def moved(file: Path, to: Path) -> None:
    """Move a database, with what belongs to it, into the place of another one."""
    for end in ("-wal", "-shm", ""):
        Path(f"{to}{end}").unlink(missing_ok=True)
        if Path(f"{file}{end}").exists():
            os.replace(f"{file}{end}", f"{to}{end}")


def rows_of(db: Connection) -> int:
    return db.execute(select(func.count()).select_from(journal)).scalar_one()


async def test_nothing_is_applied_or_read_while_the_file_is_gone(file: Path, made_of: MakeEngine) -> None:
    url = f"sqlite:///{file}"
    view = Bank(made_of(url))
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    assert await view.read(rows_of) == 3
    moved(file, file.with_name("aside.db"))
    for _ in range(2):
        for step in (
            lambda: view.apply_run(transactions(1, first=3)),
            lambda: view.read(rows_of),
            lambda: view.high_water_mark(0),
            lambda: view.stepped_back(),
        ):
            with pytest.raises(ViewUnavailable, match=f"file {file} was removed"):
                await step()
    assert not file.exists()
    moved(file.with_name("aside.db"), file)
    assert await view.apply_run(transactions(1, first=3)) == 3
    await view.close()
    check_fold(url, {0: 4})


async def test_a_file_that_was_replaced_is_the_database_from_then_on(file: Path, made_of: MakeEngine) -> None:
    url = f"sqlite:///{file}"
    view = Bank(made_of(url))
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    backup = copied(file)
    await view.apply_run(transactions(2, first=3))
    both = threading.Barrier(2)

    def read_with_another(db: Connection) -> int:
        both.wait(10)
        return rows_of(db)

    def reading() -> int:
        with view.reading() as db:
            return read_with_another(db)

    with ThreadPoolExecutor(2) as readers:
        assert [each.result() for each in [readers.submit(reading), readers.submit(reading)]] == [5, 5]
        moved(backup, file)
        # One of two at a time would have a connection from before.
        for each in [readers.submit(reading), readers.submit(reading)]:
            with pytest.raises(ViewUnavailable, match="stepped back"):
                each.result()
    assert await view.apply_run(transactions(1, first=5)) == 2, "the database in place says where it stands"
    assert await view.apply_run(transactions(3, first=3)) == 5
    assert await view.read(rows_of) == 6
    await view.close()
    check_fold(url, {0: 6})


@pytest.mark.parametrize("restored", [True, False])
async def test_a_database_whose_journal_was_taken_away_is_used_no_more_by_this_process(
    file: Path, made_of: MakeEngine, *, restored: bool
) -> None:
    """Its file alone lacks what is in the journal, and what it would be given as connections close fits nothing."""
    url = f"sqlite:///{file}"
    view = Bank(made_of(url))
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    backup = copied(file)
    await view.apply_run(transactions(40, first=3))
    assert await view.read(rows_of) == 43
    for end in ("-wal", "-shm"):
        Path(f"{file}{end}").unlink()
    if restored:
        file.write_bytes(backup.read_bytes())
    for _ in range(2):
        for step in (
            lambda: view.apply_run(transactions(1, first=43)),
            lambda: view.read(rows_of),
            lambda: view.high_water_mark(0),
            lambda: view.stepped_back(),
        ):
            with pytest.raises(ViewUnavailable, match=f"{file}-wal or {file}-shm was removed .* each process"):
                await step()
    before = file.read_bytes()
    await view.close()
    assert file.read_bytes() == before, "nothing of the journal is written into a file that may have been restored"
    if restored:
        check_in_another_process(url, 3)


@pytest.mark.slow
async def test_a_journal_that_is_put_back_is_used_on(file: Path, made_of: MakeEngine) -> None:
    url = f"sqlite:///{file}"
    view = Bank(made_of(url))
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    assert await view.read(rows_of) == 3
    for end in ("-wal", "-shm"):
        Path(f"{file}{end}").rename(f"{file}{end}.aside")
    with pytest.raises(ViewUnavailable, match="was removed or replaced while the database was in use"):
        await view.apply_run(transactions(1, first=3))
    with pytest.raises(ViewUnavailable, match="was removed or replaced while the database was in use"):
        await view.read(rows_of)
    for end in ("-wal", "-shm"):
        Path(f"{file}{end}.aside").rename(f"{file}{end}")
    assert await view.apply_run(transactions(1, first=3)) == 3
    assert await view.read(rows_of) == 4
    await view.close()
    check_in_another_process(url, 4)


def check_in_another_process(url: str, count: int) -> None:
    """Check what a process finds that has not had the database open."""
    call = f"from rigs.bankview import check_fold; check_fold({url!r}, {{0: {count}}})"
    done = run_python("-c", call, environment={"PYTHONPATH": str(TESTS)})
    assert done.returncode == 0, done.stderr


async def test_a_link_to_the_file_that_is_turned_to_another_one_counts_as_replaced(file: Path) -> None:
    link = file.with_name("link.db")
    link.symlink_to(file)
    view = Bank(f"sqlite:///{link}")
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    other = copied(file)
    link.unlink()
    link.symlink_to(other)
    await view.apply_run(transactions(1, first=3))
    await view.close()
    check_fold(f"sqlite:///{other}", {0: 4})


async def test_connections_that_the_application_had_before_are_not_trusted(file: Path) -> None:
    url = f"sqlite:///{file}"
    view = Bank(url)
    await view.high_water_mark(0)
    await view.apply_run(transactions(3))
    await view.close()
    with engine_at(url) as engine:
        with engine.connect() as db:
            assert rows_of(db) == 3
        backup = copied(file)
        moved(backup, file)
        view = Bank(engine)
        assert await view.high_water_mark(0) == 2
        await view.apply_run(transactions(1, first=3))
        assert await view.read(rows_of) == 4
        await view.close()
    check_fold(url, {0: 4})
