"""Tables that marks are of: one that is lost alone is missed, a new one is told, and keys have one table for all."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, event

import polonaise
from polonaise import testing
from polonaise.errors import ViewUnavailable, ViewUnfit
from polonaise.terms import OwnKind
from polonaise.views.sql import SqlView
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, accounts, body, check_fold, counted, journal, transactions
from rigs.databases import execute
from rigs.waiting import wait_until


class OnceBank(Bank):
    once_table = "polonaise_once"


class OtherKeys(Bank):
    once_table = "other_keys"


class Grown(Bank):
    """A later version of `Bank`, with a table more."""

    metadata = MetaData()
    extra = Table("extra", metadata, Column("id", Integer, primary_key=True, autoincrement=False))


class Renamed(Bank):
    """A later version of `Bank`, which has renamed a table."""

    metadata = MetaData()


for each in (accounts, journal):
    each.to_metadata(Grown.metadata)
    each.to_metadata(Renamed.metadata, name={"journal": "entries"}.get(each.name, each.name))


def pay(tx: polonaise.Draft, number: int) -> dict[str, int]:
    tx.append(body(number))
    return {"paid": number}


def way_out(error: BaseException) -> str:
    """Return the statement at the end of an error, which says that a loss is meant."""
    (found,) = re.findall(r"(DELETE FROM .*)$", str(error))
    return str(found)


async def begun(url: str, views: Callable[..., Any], kind: type[SqlView] = Bank) -> None:
    view = views(url, kind)
    assert await view.high_water_mark(0) == -1
    await view.high_water_mark(1)
    assert await view.apply_run(transactions(4)) == 3
    await view.close()


async def test_a_table_that_is_gone_alone_is_not_made_anew(url: str, views: Callable[..., Any]) -> None:
    """It would lack what was applied before, and the marks would go on."""
    await begun(url, views)
    execute(url, "DROP TABLE journal")
    for create in (True, True, False):
        with pytest.raises(
            ViewUnfit, match=r"table journal was there and is gone, and polonaise_marks .*it would"
        ) as e:
            await views(url, create=create).high_water_mark(0)
    execute(url, way_out(e.value))
    assert await views(url).high_water_mark(0) == 3
    assert await views(url).apply_run(transactions(1, first=4)) == 4
    assert counted(url, journal) == 1


async def test_tables_that_are_dropped_with_their_marks_are_made_anew(url: str, views: Callable[..., Any]) -> None:
    await begun(url, views)
    execute(url, "DROP TABLE journal", "DELETE FROM accounts", "DROP TABLE polonaise_marks")
    again = views(url)
    assert await again.high_water_mark(0) == -1
    assert await again.apply_run(transactions(4)) == 3


async def test_a_table_of_a_later_version_is_told_with_where_it_begins(
    url: str, views: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    await begun(url, views)
    assert await views(url, Grown).high_water_mark(0) == 3
    (told,) = [each for each in caplog.messages if "is new" in each]
    assert told.startswith(
        "table extra is new, and lacks what was applied before: it gets rows of partition 0 from id 4"
    )
    caplog.clear()
    assert await views(url, Grown).high_water_mark(0) == 3
    assert not caplog.messages
    execute(url, "DROP TABLE extra")
    with pytest.raises(ViewUnfit, match="table extra was there and is gone"):
        await views(url, Grown).high_water_mark(0)
    assert await views(url).high_water_mark(0) == 3, "which does not name it"


async def test_a_table_that_the_application_has_renamed_is_taken(
    url: str, views: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    await begun(url, views)
    execute(url, "ALTER TABLE journal RENAME TO entries")
    assert await views(url, Renamed).high_water_mark(0) == 3
    assert not caplog.messages
    with pytest.raises(ViewUnfit, match="table journal was there and is gone"):
        await views(url).high_water_mark(0)


async def test_tables_without_claims_of_an_earlier_version_are_claimed(url: str, views: Callable[..., Any]) -> None:
    await begun(url, views, OnceBank)
    execute(url, "DROP TABLE polonaise_marks_given")
    assert await views(url, OnceBank).high_water_mark(0) == 3
    for name in ("polonaise_once", "journal"):
        execute(url, f"DROP TABLE {name}")
        with pytest.raises(ViewUnfit, match=f"table {name} was there and is gone"):
            await views(url, OnceBank).high_water_mark(0)


# ------------------------------------------------------------------ everything emptied under way

EVERYTHING = ("accounts", "journal", "polonaise_marks", "polonaise_marks_given")


def empty(url: str, *names: str) -> None:
    execute(url, *(f"DELETE FROM {name}" for name in names))


async def fill(view: Bank, partition: int, count: int) -> None:
    """Give the view the partition's first so many transactions, from where it is."""
    mark = await view.high_water_mark(partition)
    if run := transactions(count, partition=partition)[mark + 1 :]:
        assert await view.apply_run(run) == count - 1


@pytest.mark.slow
@pytest.mark.parametrize("names", [EVERYTHING, EVERYTHING[:3]], ids=["all", "all but the partitions"])
async def test_partitions_that_find_rows_of_others_after_all_was_emptied_begin_anew_too(
    url: str, views: Callable[..., Any], names: tuple[str, ...]
) -> None:
    """One of them is busy and begins at once; others come when it has rows: of this process, or of another one."""
    first, second = views(url), views(url)
    for again in range(2):
        for partition in range(4):
            for view in (first, second):
                await fill(view, partition, 3 + again)
        empty(url, *names)
        await fill(first, 0, 4 + again)
    for view, partition in ((first, 1), (second, 2), (first, 3), (second, 3), (second, 0)):
        await fill(view, partition, 5)
    check_fold(url, dict.fromkeys(range(4), 5))
    empty(url, "polonaise_marks", "polonaise_marks_given")
    for view in (first, second):
        with pytest.raises(ViewUnavailable, match=r"partition 1 had a high-water mark .* in one transaction, and the"):
            await view.high_water_mark(1)


async def test_a_table_is_missed_after_all_was_emptied_under_way(url: str, views: Callable[..., Any]) -> None:
    view = views(url, OnceBank)
    await fill(view, 0, 3)
    empty(url, *EVERYTHING, "polonaise_once")
    await fill(view, 0, 4)
    with pytest.raises(ViewUnfit, match="polonaise_once keeps the keys"):
        await views(url).high_water_mark(0)
    execute(url, "DROP TABLE journal")
    with pytest.raises(ViewUnfit, match="table journal was there and is gone"):
        await views(url, OnceBank).high_water_mark(0)


async def test_marks_that_are_lost_after_all_was_emptied_under_way_are_refused(
    url: str, views: Callable[..., Any]
) -> None:
    """A view that has remembered its partition before remembers it again, where that was emptied, too."""
    view = views(url)
    await fill(view, 0, 3)
    empty(url, *EVERYTHING)
    await fill(view, 0, 4)
    empty(url, "polonaise_marks")
    with pytest.raises(ViewUnfit, match=r"partition 0 had a high-water mark .* while (accounts|journal) holds"):
        await fill(views(url), 0, 4)
    assert counted(url, journal) == 4


class Unnamed(Bank):
    """Does not say which tables it changes."""

    metadata = None


async def test_a_view_that_names_no_tables_says_that_it_has_to_be_started_again(
    url: str, views: Callable[..., Any]
) -> None:
    await begun(url, views)
    view = views(url, Unnamed)
    assert await view.high_water_mark(0) == 3
    empty(url, *EVERYTHING)
    with pytest.raises(ViewUnavailable, match="in one transaction, start this process again, and the log"):
        await view.high_water_mark(0)
    assert await views(url, Unnamed).high_water_mark(0) == -1


# ------------------------------------------------------------------ keys of `log.once`


async def test_nothing_is_done_again_because_the_table_of_the_keys_is_gone(url: str) -> None:
    async with testing.log(view=OnceBank(url)) as log:
        first = await log.once("order 1", pay, 1, timeout=10)
        await log.wait_applied(1, timeout=10)
        execute(url, "DROP TABLE polonaise_once")
        for _ in range(2):
            with pytest.raises(
                ViewUnfit, match=r"table polonaise_once was there and is gone.*would be done again"
            ) as e:
                async with log.cluster.connect(view=OnceBank(url)) as again:
                    await again.once("order 1", pay, 1, timeout=10)
        execute(url, way_out(e.value))
        async with log.cluster.connect(view=OnceBank(url)) as again:
            assert await again.once("order 1", pay, 1, timeout=10) != first, "without these keys, as was said"


@pytest.mark.parametrize("other", [Bank, OtherKeys])
async def test_a_process_that_would_lose_keys_is_refused(
    url: str, views: Callable[..., Any], other: type[Bank]
) -> None:
    await begun(url, views, OnceBank)
    for create in (True, False):
        with pytest.raises(
            ViewUnfit, match=r"table polonaise_once keeps the keys of log\.once.* Set once_table to"
        ) as e:
            await views(url, other, create=create).high_water_mark(0)
    assert await views(url, OnceBank).high_water_mark(0) == 3
    execute(url, way_out(e.value))
    assert await views(url, other).high_water_mark(0) == 3


async def test_a_process_that_began_before_there_were_keys_applies_none(url: str) -> None:
    """As while a new version of an application is rolled out: it waits until one that knows the table has."""
    old = Bank(url)
    async with testing.log(view=old) as log:
        await log.append(body(0))
        await log.wait_applied(0, timeout=10)
        apply = OnceBank.apply_many

        async with log.cluster.connect(view=OnceBank(url)) as new:
            with pytest.MonkeyPatch.context() as patched:
                may_apply = threading.Event()

                def slow(self: OnceBank, *given: Any) -> None:
                    if not may_apply.is_set():
                        raise ViewUnavailable("not yet")
                    apply(self, *given)

                patched.setattr(OnceBank, "apply_many", slow)
                doing = asyncio.create_task(new.once("order 1", pay, 1, timeout=20))
                await wait_until(lambda: "polonaise_once keeps the keys" in str(log.trouble(0)))
                may_apply.set()
                first = await doing
            await log.wait_applied(2, timeout=10)
            assert log.trouble(0) is None
            assert await new.once("order 1", pay, 1, timeout=10) == first._replace(repeated=True)
    assert counted(url, journal) == 2


async def test_a_key_costs_a_view_without_keys_one_statement(url: str, views: Callable[..., Any]) -> None:
    said: list[str] = []
    with engine_at(url) as engine:
        event.listen(engine, "before_cursor_execute", lambda *about: said.append(about[2]))
        view = views(engine)
        await view.high_water_mark(0)
        await view.apply_run(transactions(2))
        said.clear()
        await view.apply_run(transactions(1, first=2))
        without = len(said)
        key = transactions(1, first=4)[0]._replace(header=int(OwnKind.ONCE), client_id=-1, generation=-1)
        await view.apply_run([*transactions(1, first=3), key])
        assert len(said) - without == without + 1, said[without:]
        await view.close()
