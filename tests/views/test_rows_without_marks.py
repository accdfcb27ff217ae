"""A view whose tables hold rows of which no mark tells: all of the log is applied to them, and a warning says so."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from polonaise.errors import ViewUnavailable
from polonaise.views.lostmarks import LostMarks
from polonaise.views.sql import SqlView
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, accounts, check_fold, transactions
from rigs.databases import execute

OWN = ["polonaise_marks", "polonaise_marks_given"]
"""A view's own tables."""


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


LOSSES = [f"{marks}, {given}" for marks in ("DROP TABLE", "DELETE FROM") for given in ("DROP TABLE", "DELETE FROM")]
"""What happens to the table of marks, and to the one beside it."""


def lose_own(url: str, loss: str) -> None:
    execute(url, *(f"{how} {name}" for how, name in zip(loss.split(", "), OWN, strict=True)))


def told_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


TOLD_OF_ROWS = re.compile(
    r"table (accounts|journal) holds rows, and neither polonaise_marks nor polonaise_marks_given says of what: all of "
)


@pytest.mark.parametrize("loss", LOSSES)
async def test_rows_without_what_a_views_own_tables_say_are_told(
    url: str, view: Bank, views: Callable[..., Bank], caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    """They may be there rightly: an application that opens accounts before its first start."""
    await view.apply_run(transactions(4))
    lose_own(url, loss)
    for again in (views(url), views(url)):
        for partition in (0, 1):
            assert await again.high_water_mark(partition) == -1
    (told,) = told_of(caplog)  # the second view finds marks
    assert TOLD_OF_ROWS.match(told)


async def test_planted_if_only_tables_that_are_gone_were_noticed_nothing_tells_of_rows(
    url: str,
    view: Bank,
    views: Callable[..., Bank],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LostMarks, "_knows_nothing", lambda *_: False)
    await view.apply_run(transactions(4))
    lose_own(url, "DELETE FROM, DELETE FROM")
    assert await views(url).high_water_mark(0) == -1
    with pytest.raises(AssertionError):
        assert told_of(caplog)


async def test_rows_beside_tables_of_marks_that_were_made_by_hand_are_told_once(
    url: str, views: Callable[..., Bank], caplog: pytest.LogCaptureFixture
) -> None:
    views(url).prepare()
    with engine_at(url) as engine, engine.begin() as db:
        db.execute(accounts.insert(), {"account": 0, "balance": 0})
    first = views(url, create=False)
    assert list(await asyncio.gather(*(first.high_water_mark(partition) for partition in range(4)))) == [-1] * 4
    (told,) = told_of(caplog)
    assert told.startswith("table accounts holds rows")
    caplog.clear()
    again = views(url, create=False)
    for partition in range(5):
        assert await again.high_water_mark(partition) == -1
    assert await again.apply_run(transactions(2)) == 1
    assert told_of(caplog) == []


async def test_a_view_that_begins_beside_empty_tables_tells_nothing(
    url: str, views: Callable[..., Bank], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        view = views(url)
        for partition in range(4):
            assert await view.high_water_mark(partition) in (-1, 1)
            await view.apply_run(transactions(2, partition=partition))
        await view.close()
    assert told_of(caplog) == []


async def test_a_partition_that_a_process_had_not_is_not_begun_if_no_mark_at_all_is_there_any_more(
    url: str, view: Bank, views: Callable[..., Bank]
) -> None:
    """As when a worker takes over what another one had, which met its marks, and has died."""
    other = views(url)
    assert await other.high_water_mark(1) == -1
    assert await other.apply_run(transactions(2, partition=1)) == 1
    await view.apply_run(transactions(2))
    execute(url, *(f"DELETE FROM {name}" for name in OWN))
    for _ in range(2):
        with pytest.raises(ViewUnavailable, match=r"partitions had .*_marks and none has one, while \w+ holds what"):
            await view.high_water_mark(1)
    assert await views(url).high_water_mark(1) == -1, "one that begins is told of it, and begins"


async def test_a_partition_that_a_process_had_not_may_be_the_first_to_find_that_all_was_emptied(
    url: str, view: Bank, views: Callable[..., Bank]
) -> None:
    await view.apply_run(transactions(2))
    execute(url, *(f"DELETE FROM {name}" for name in (*OWN, "accounts", "journal")))
    assert await view.high_water_mark(1) == -1
    assert await view.apply_run(transactions(2, partition=1)) == 1
    assert await view.high_water_mark(0) == -1
    assert await view.apply_run(transactions(2)) == 1
    check_fold(url, {0: 2, 1: 2})
