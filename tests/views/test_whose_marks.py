"""Two views that name one table of marks, or what their database takes for one: the second is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, inspect

from polonaise.errors import ViewUnfit
from polonaise.terms import Transaction
from polonaise.views.sql import SqlView
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, transactions
from rigs.databases import execute

others = MetaData()
visits = Table("Visits", others, Column("id", Integer, primary_key=True, autoincrement=False))


class Visits(SqlView):
    """A view that has nothing in common with `Bank`."""

    metadata = others

    def apply(self, tx: Transaction, db: Connection) -> None:
        db.execute(visits.insert(), {"id": tx.id})


class Grown(Bank):
    """A later version of `Bank`, with a table more."""

    metadata = MetaData()


for each in [*Bank.metadata.sorted_tables, *others.sorted_tables]:  # type: ignore[union-attr]
    each.to_metadata(Grown.metadata)


async def test_a_view_with_the_marks_of_another_one_is_refused(url: str, views: Callable[..., Any]) -> None:
    await views(url, Bank).high_water_mark(0)
    for _ in range(2):
        with pytest.raises(ViewUnfit, match=r"polonaise_marks holds the marks of another view, which keeps .*journal"):
            await views(url, Visits).high_water_mark(0)
    assert await views(url, Bank).high_water_mark(0) == -1
    assert await views(url, Visits, marks_table="visits_marks").high_water_mark(0) == -1


@pytest.mark.slow
async def test_of_two_views_that_begin_with_the_same_marks_at_once_one_is_refused(
    url: str, views: Callable[..., Any]
) -> None:
    made = [views(url, kind) for kind in (Bank, Visits) * 3]
    found = await asyncio.gather(*(view.high_water_mark(0) for view in made), return_exceptions=True)
    refused = {type(view) for view, said in zip(made, found, strict=True) if isinstance(said, ViewUnfit)}
    served = {type(view) for view, said in zip(made, found, strict=True) if said == -1}
    assert len(refused) == len(served) == 1
    assert refused != served


@pytest.mark.slow
async def test_a_view_that_has_grown_or_is_of_an_earlier_version_keeps_its_marks(
    url: str, views: Callable[..., Any]
) -> None:
    bank = views(url, Bank)
    await bank.high_water_mark(0)
    await bank.apply_run(transactions(2))
    assert await views(url, Grown).high_water_mark(0) == 1
    assert await views(url, Bank).high_water_mark(0) == 1
    execute(url, "DELETE FROM polonaise_marks_given")
    assert await views(url, Grown).high_water_mark(0) == 1


async def test_a_view_that_is_given_another_ones_marks_is_not_told_to_drop_them(
    url: str, views: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    bank = views(url, Bank)
    await bank.high_water_mark(0)
    await bank.apply_run(transactions(2))
    with pytest.raises(ViewUnfit, match="another view, which keeps"):
        await views(url, Visits).high_water_mark(0)
    assert not caplog.records
    with engine_at(url) as engine:
        assert "visits" not in {name.lower() for name in inspect(engine).get_table_names()}, "nothing was made"


@pytest.mark.slow
async def test_a_view_takes_marks_over_whose_tables_were_dropped(url: str, views: Callable[..., Any]) -> None:
    await views(url, Bank).high_water_mark(0)
    execute(url, "DROP TABLE journal", "DROP TABLE accounts", "DELETE FROM polonaise_marks")
    assert await views(url, Visits).high_water_mark(0) == -1
    with pytest.raises(ViewUnfit, match=r"another view, which keeps [Vv]isits"):
        await views(url, Bank).high_water_mark(0)


@pytest.mark.parametrize("kind", [Bank, Visits])
async def test_marks_whose_names_differ_in_case_are_two_tables_or_refused(
    url: str, views: Callable[..., Any], kind: type[SqlView]
) -> None:
    await views(url, Bank, marks_table="Marks").high_water_mark(0)
    assert await views(url, Bank, marks_table="Marks").high_water_mark(0) == -1
    with engine_at(url) as engine, engine.connect() as db:
        is_told_apart = engine.dialect.name == "postgresql" or (
            engine.dialect.name != "sqlite" and db.exec_driver_sql("SELECT @@lower_case_table_names").scalar() == 0
        )
    if is_told_apart or kind is Bank:
        assert await views(url, kind, marks_table="marks").high_water_mark(0) == -1
    else:
        with pytest.raises(ViewUnfit, match="holds the marks of another view"):
            await views(url, kind, marks_table="marks").high_water_mark(0)


async def test_tables_made_in_another_case_are_taken_and_have_one_view(
    sqlite_url: str, views: Callable[..., Any]
) -> None:
    marks = "(partition INTEGER PRIMARY KEY, high_water_mark BIGINT NOT NULL, cluster TEXT NOT NULL DEFAULT '')"
    execute(sqlite_url, "CREATE TABLE VISITS (id INTEGER PRIMARY KEY)", f"CREATE TABLE POLONAISE_MARKS {marks}")
    for last in (1, 3):
        view = views(sqlite_url, Visits)
        assert await view.high_water_mark(0) == last - 2
        assert await view.apply_run(transactions(2, first=last - 1)) == last
    assert await views(sqlite_url, Bank, marks_table="bank_marks").high_water_mark(0) == -1
    for marks_table in ("polonaise_marks", "Polonaise_Marks", "POLONAISE_MARKS"):
        with pytest.raises(ViewUnfit, match="holds the marks of another view, which keeps VISITS"):
            await views(sqlite_url, Bank, marks_table=marks_table).high_water_mark(0)
