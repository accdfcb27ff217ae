"""Tables of Polonaise's own that are found where it would make them, and rows of which no mark tells."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, make_url, text

from polonaise.errors import ViewUnavailable, ViewUnfit
from polonaise.player.protocol.entries import Fence
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.views.tables import Chunks, Field, MarkedTable, Shape
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, accounts, check_fold, transactions
from rigs.databases import execute
from rigs.deliverycalls import SOURCE, StreamCalls, batch_of

SUMS = Shape("sums", (Field("k", "int"), Field("x", "bigint")), ("k",), {"x": "sum"})


def one(k: int, x: object) -> Chunks:
    return lambda: [[{"k": k, "x": x}]]


def count(url: str) -> object:
    with engine_at(url) as engine, engine.connect() as db:
        return db.execute(text("SELECT count(*) FROM sums")).scalar_one()


MARKS = "`partition` INT NOT NULL, high_water_mark BIGINT NOT NULL, cluster VARCHAR(32) NOT NULL DEFAULT ''"
FENCE = "`partition` INT NOT NULL, epoch BIGINT NOT NULL, changes BIGINT NOT NULL"
KEY = ", PRIMARY KEY (`partition`)"
NO_KEY = r"exactly \(partition\), and no other one; it has no such key"
TWICE = "one row of different keys, by its unique key over"
OWN_UNFIT = [
    ("marks", f"{MARKS}, PRIMARY KEY (`partition`, cluster)", NO_KEY),
    ("marks", f"{MARKS}, UNIQUE (cluster) {KEY}", f"{TWICE} cluster"),
    ("marks", f"{MARKS}, note INT NOT NULL {KEY}", "column note is not declared and has to be given"),
    ("marks", f"{MARKS.replace('BIGINT', 'REAL')} {KEY}", "column high_water_mark is "),
    ("marks_given", "`partition` INT", NO_KEY),
    ("marks_given", "n INT PRIMARY KEY", "column partition is missing"),
    ("marks_fence", FENCE, NO_KEY),
    ("marks_fence", f"{FENCE.replace('changes', 'other')} {KEY}", "column changes is missing"),
]
OWN_NARROW = [
    ("marks", f"{MARKS.replace('BIGINT', 'INT')} {KEY}", "column high_water_mark is int.* each BIGINT"),
    ("marks", f"{MARKS.replace('BIGINT', 'NUMERIC(30)')} {KEY}", "column high_water_mark is .* each BIGINT"),
    ("marks", f"{MARKS.replace('` INT', '` SMALLINT')} {KEY}", "column partition is smallint.* each INTEGER"),
    (
        "marks",
        f"{MARKS.replace('(32)', '(31)')} {KEY}",
        r"column cluster is .*\(31\) and has to hold each VARCHAR\(32\)",
    ),
    ("marks", f"{MARKS.replace('VARCHAR', 'CHAR')} {KEY}", r"column cluster is char.*\(32\)"),
    ("marks_given", "`partition` SMALLINT PRIMARY KEY", "column partition is smallint"),
    ("marks_fence", f"{FENCE.replace('epoch BIGINT', 'epoch INT')} {KEY}", "column epoch is int"),
]
OWN_OF_MARIADB = [
    ("marks", f"{MARKS.replace('BIGINT', 'BIGINT UNSIGNED')} {KEY}", "column high_water_mark is bigint.* unsigned"),
    ("marks", f"{MARKS.replace('` INT', '` INT UNSIGNED')} {KEY}", "column partition is int.* unsigned"),
]
OWN_FIT = [
    ("marks", f"{MARKS} {KEY}"),
    ("marks", f"{MARKS.replace('VARCHAR(32)', 'VARCHAR(200)')}, note INT {KEY}"),
    ("marks_given", "`partition` BIGINT PRIMARY KEY"),
    ("marks_fence", f"{FENCE} {KEY}"),
]
NUMBERED = {
    "sqlite": ("INTEGER PRIMARY KEY", "INTEGER PRIMARY KEY AUTOINCREMENT"),
    "postgresql": ("BIGSERIAL PRIMARY KEY", "INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    "mariadb": ("INT AUTO_INCREMENT PRIMARY KEY",),
}


def make_own(url: str, name: str, columns: str) -> None:
    """Make this table of a view without tables beside it."""
    for each in ("marks", "marks_given", "marks_fence"):
        execute(url, f"DROP TABLE IF EXISTS polonaise_{each}")
    statement = f"CREATE TABLE polonaise_{name} ({columns}){' ROW_FORMAT=DYNAMIC' if 'mariadb' in url else ''}"
    execute(url, statement.replace("`", '"') if "postgresql" in url else statement)


@pytest.mark.slow
async def test_a_table_of_marks_or_epochs_that_is_of_another_shape_is_named_with_what_is_wrong(url: str) -> None:
    unfit = [*OWN_UNFIT, *(OWN_NARROW if "sqlite" not in url else []), *(OWN_OF_MARIADB if "mariadb" in url else [])]
    for name, columns, words in unfit:
        make_own(url, name, columns)
        view = Bank(url)
        with pytest.raises(
            ViewUnfit, match=rf"table polonaise_{name} is of another shape: .*{words}.*alter it, or .*marks_table"
        ):
            await view.take_over(0)
        await view.close()
    numbered = NUMBERED[make_url(url).get_backend_name()]
    by_number = [("marks", f"number {kind}, {MARKS}, UNIQUE (`partition`)") for kind in numbered]
    for name, columns in [*OWN_FIT, *by_number]:
        make_own(url, name, columns)
        view = Bank(url)
        assert await view.take_over(0) == (-1, 1)
        await view.close()


def test_a_table_beside_a_pipeline_s_that_is_of_another_shape_is_named(url: str) -> None:
    letters = one(1, 1)
    for name, columns in (
        ("sums_marks", "n INT"),
        ("sums_definition", "number INT, definition TEXT"),
        ("sums_undecodable", "n INT"),
        ("sums_refused", "n INT"),
    ):
        execute(url, f"DROP TABLE IF EXISTS {name}", f"CREATE TABLE {name} ({columns})")
        table = MarkedTable(url, SUMS, "aa" * 16, "d")
        with pytest.raises(ViewUnfit, match=f"table {name} is of another shape: .* choose another name"):
            table.merge(one(1, 1), {}, {0: 0}, letters, letters)
        table.close()
        execute(url, f"DROP TABLE {name}")
    assert count(url) == 0


async def test_a_target_s_tables_that_are_of_another_shape_are_named(url: str) -> None:
    for name, columns in (("ids", "n INT"), ("fence", "number INT PRIMARY KEY"), ("ids", MARKS)):
        target = SqlDeliveryTarget(url, name="given")
        made = f"CREATE TABLE given_{name} ({columns})"
        execute(url, f"DROP TABLE IF EXISTS given_{name}", made.replace("`", '"') if "postgresql" in url else made)
        with pytest.raises(ViewUnfit, match=f"table given_{name} is of another shape: "):
            await target.accept(Fence(1, 1), SOURCE)
        await target.close()
        execute(url, f"DROP TABLE given_{name}")


REFUSES = {
    "sqlite": "CREATE TRIGGER refuse BEFORE INSERT ON {0} BEGIN SELECT RAISE(ABORT, 'not here'); END",
    "postgresql": 'ALTER TABLE {0} ADD CHECK ("{1}" <> {2})',
    "mariadb": "ALTER TABLE {0} ADD CHECK ({1} <> {2})",
}


def refuse(url: str, table: str, column: str) -> None:
    """Have the database refuse the first rows of a table, as it refuses a key that is there."""
    first = -1 if column == "high_water_mark" else 0
    quoted = f"`{column}`" if "mariadb" in url else column
    execute(url, REFUSES[make_url(url).get_backend_name()].format(table, quoted, first))


@pytest.mark.parametrize(("table", "column"), [("sums_marks", "high_water_mark"), ("sums_definition", "number")])
def test_a_pipeline_s_first_row_that_a_constraint_refuses_ends_the_run(url: str, table: str, column: str) -> None:
    with contextlib.closing(MarkedTable(url, SUMS, "aa" * 16, "d")) as target:
        target.prepare()
        refuse(url, table, column)
        with pytest.raises(ViewUnfit, match=rf"{table} does not keep the row of .*remove it; or choose another name"):
            target.merge(one(1, 1), {}, {0: 0})
    assert count(url) == 0


@pytest.mark.parametrize("table", ["polonaise_marks", "polonaise_marks_fence"])
async def test_a_worker_s_first_row_that_a_constraint_refuses_is_told(url: str, table: str) -> None:
    view = Bank(url)
    await view.take_over(2)
    refuse(url, table, "partition")
    with pytest.raises(ViewUnfit, match=f"{table} does not keep the row of partition 0 "):
        await asyncio.wait_for(view.take_over(0), 10)
    await view.close()


BENT = {
    "sqlite": [
        "CREATE TRIGGER bend AFTER INSERT ON polonaise_marks "
        "BEGIN UPDATE polonaise_marks SET partition = partition + 1 WHERE partition = NEW.partition; END"
    ],
    "postgresql": ["CREATE RULE bend AS ON INSERT TO polonaise_marks DO INSTEAD NOTHING"],
    "mariadb": [
        "CREATE TRIGGER bend BEFORE INSERT ON polonaise_marks FOR EACH ROW SET NEW.partition = NEW.partition + 1"
    ],
}


@pytest.mark.parametrize(("table", "column"), [("given_fence", "number"), ("given_ids", "partition")])
async def test_a_target_s_first_row_that_a_constraint_refuses_is_told(url: str, table: str, column: str) -> None:
    target, begun = SqlDeliveryTarget(url, name="given"), SqlDeliveryTarget(url, name="given")
    session = StreamCalls(target, Fence(1, 1))
    await session.greet(SOURCE)
    if table == "given_ids":
        await session.take(batch_of(-1, (None,), 2))
        refuse(url, table, column)
        with pytest.raises(ViewUnfit, match=f"{table} does not keep the row of partition 0 "):
            await session.take(batch_of(-1, (None,), 0))
    else:
        execute(url, "DELETE FROM given_fence", "DELETE FROM given_ids")
        refuse(url, table, column)
        with pytest.raises(ViewUnfit, match=f"{table} does not keep the row of the first fence "):
            await begun.accept(Fence(1, 1), SOURCE)
    await target.close()
    await begun.close()


async def test_a_mark_that_the_database_does_not_keep_as_it_was_written_is_told(url: str) -> None:
    view = Bank(url)
    view.prepare()
    kind = make_url(url).get_backend_name()
    execute(url, *BENT["mariadb" if kind == "mysql" else kind])
    for _ in range(2):
        with pytest.raises(ViewUnfit, match=r"polonaise_marks does not keep the row of partition 0 .*remove it"):
            await view.high_water_mark(0)
    await view.close()
    with engine_at(url) as engine, engine.connect() as db:
        assert not db.execute(text("SELECT * FROM polonaise_marks")).all(), "what was bent is rolled back"


async def test_an_epoch_that_the_database_does_not_keep_as_it_was_written_is_told(url: str) -> None:
    view = Bank(url)
    await view.take_over(0)
    kind = make_url(url).get_backend_name()
    execute(url, *(line.replace("_marks", "_marks_fence") for line in BENT["mariadb" if kind == "mysql" else kind]))
    with pytest.raises(ViewUnfit, match=r"polonaise_marks_fence does not keep the row of partition 1 "):
        await asyncio.wait_for(view.take_over(1), 10)
    await view.close()


async def test_a_mark_that_is_removed_right_after_it_was_written_is_told(url: str) -> None:
    with engine_at(url) as engine:
        view = Bank(engine)
        view.prepare()
        seen: list[str] = []

        def remove(*_: Any) -> None:
            if not seen:
                seen.append("removed")
                execute(url, "DELETE FROM polonaise_marks", "DELETE FROM polonaise_marks_given")

        def remove_before_it_is_read_again(*given: Any) -> None:
            statement = " ".join(given[2].split())
            if statement.startswith("INSERT INTO polonaise_marks_given"):
                event.listen(engine, "begin", remove)

        event.listen(engine, "before_cursor_execute", remove_before_it_is_read_again)
        with pytest.raises(ViewUnfit, match=r"partition 0 .*it was removed meanwhile"):
            await view.high_water_mark(0)
        assert await view.high_water_mark(0) == -1
        await view.close()


OWN = ["polonaise_marks", "polonaise_marks_given"]
"""A view's own tables."""


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
