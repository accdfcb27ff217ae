"""Tables that a pipeline writes: rows and marks together or not at all, on each kind of database."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from polonaise.errors import BadOption, NotFound, ViewFailed, ViewUnfit
from polonaise.views.tables import Chunks, Field, MarkedTable, Shape, snapshot
from rigs.databases import execute

BALANCES = Shape(
    "balances",
    (Field("account", "int"), Field("balance", "bigint"), Field("least", "bigint"), Field("most", "bigint")),
    key=("account",),
    merge={"balance": "sum", "least": "min", "most": "max"},
)
PAYMENTS = Shape("payments", (Field("id", "bigint"), Field("kind", "string"), Field("at", "timestamp")))
LOG = "aa" * 16


def rows(*made: tuple[Any, ...], shape: Shape = BALANCES) -> Chunks:
    """Each row in a chunk of its own."""
    names = [field.name for field in shape.fields]
    return lambda: [[dict(zip(names, row, strict=True))] for row in made]


def change(account: int, amount: int | None) -> tuple[Any, ...]:
    return (account, amount, amount, amount)


def found(url: str, shape: Shape = BALANCES, marks_table: str | None = None) -> list[tuple[Any, ...]]:
    with snapshot(url, shape.fields, shape.name, marks_table=marks_table) as (_, parts):
        return sorted(itertools.chain.from_iterable(parts))


def prepared(url: str, shape: Shape = BALANCES, cluster: str = LOG, definition: str = "sums") -> MarkedTable:
    table = MarkedTable(url, shape, cluster, definition)
    table.prepare()
    return table


@pytest.fixture
def opened() -> Iterator[Callable[..., MarkedTable]]:
    """Like `prepared`; closes the tables at the end."""
    with contextlib.ExitStack() as tables:
        yield lambda *args, **how: tables.enter_context(contextlib.closing(prepared(*args, **how)))


def test_rows_of_one_key_become_one(url: str, opened: Callable[..., MarkedTable]) -> None:
    table = opened(url)
    assert table.marks() == {}
    assert table.merge(rows(change(1, 100), change(2, 7)), {}, {0: 9, 1: 4})
    assert table.merge(rows(change(1, -30), change(3, None)), {0: 9, 1: 4}, {0: 12})
    assert table.merge(rows(change(3, 5), change(1, None)), {0: 12}, {0: 13})
    assert table.marks() == {0: 13, 1: 4}
    assert found(url) == [(1, 70, -30, 100), (2, 7, 7, 7), (3, 5, 5, 5)]


def test_marks_that_were_lost_are_noticed_and_made_anew(url: str, opened: Callable[..., MarkedTable]) -> None:
    table = opened(url)
    table.check_marks_kept()
    assert table.merge(rows(change(1, 100)), {}, {0: 9})
    table.check_marks_kept()
    execute(url, "DELETE FROM balances_marks")
    with pytest.raises(ViewUnfit, match=r"balances_marks has lost marks.*count that twice.*--rebuild"):
        opened(url).check_marks_kept()
    assert table.replace(rows(change(1, 100)), {}, {0: 9})
    table.check_marks_kept()


def test_tables_that_another_process_makes_at_the_same_time_are_found(server_url: str) -> None:
    """In SQLite nobody can: a writer holds the lock of the whole database."""
    made: list[str] = []

    def make_it_first(statement: str) -> None:
        """Make the table that is about to be made, as a quicker process does."""
        words = statement.split()
        if words[:2] == ["CREATE", "TABLE"] and words[2] not in made:
            made.append(words[2])
            execute(server_url, statement)

    engine = create_engine(server_url)
    event.listen(engine, "before_cursor_execute", lambda *given: make_it_first(given[2]))
    table = MarkedTable(engine, BALANCES, LOG, "sums")
    with contextlib.closing(table):
        table.prepare()
        assert table.merge(rows(change(1, 100)), {}, {0: 9}, letters=rows())
    engine.dispose()
    assert made[0] == "balances"
    assert set(made) == {"balances", "balances_marks", "balances_definition", "balances_undecodable"}
    assert found(server_url) == [(1, 100, 100, 100)]


def test_a_change_that_is_there_already_is_not_applied_again(url: str, opened: Callable[..., MarkedTable]) -> None:
    table, late = opened(url), opened(url)
    assert table.merge(rows(change(1, 100)), {}, {0: 9, 1: 3})
    assert not late.merge(rows(change(1, 100)), {}, {0: 9, 1: 3}), "a zombie that comes with the same batch"
    assert not late.merge(rows(change(1, 100)), {1: 3, 0: 5}, {0: 9, 1: 5}), "one partition is elsewhere"
    assert not late.replace(rows(change(1, 1)), {0: 5}, {0: 9})
    assert table.marks() == {0: 9, 1: 3}
    assert found(url) == [(1, 100, 100, 100)]


def test_a_rebuild_replaces_rows_and_marks_in_one_step(url: str, opened: Callable[..., MarkedTable]) -> None:
    table = opened(url)
    assert table.merge(rows(change(1, 100), change(2, 5)), {}, {0: 9, 1: 7})
    assert table.replace(rows(change(1, 60)), {0: 9, 1: 7}, {0: 4})
    assert table.marks() == {0: 4, 1: -1}, "back to an earlier id; what is not read begins anew"
    assert found(url) == [(1, 60, 60, 60)]


def test_without_a_key_rows_are_added(url: str, opened: Callable[..., MarkedTable]) -> None:
    table = opened(url, PAYMENTS)
    at = datetime(2026, 1, 31, 12, 30, 0, 123456, UTC)
    assert table.merge(rows((1, "fee", at), (2, None, None), shape=PAYMENTS), {}, {0: 1})
    assert table.merge(rows((1, "fee", at), shape=PAYMENTS), {0: 1}, {0: 2})
    read = [(id, kind, at and at.replace(tzinfo=UTC)) for id, kind, at in found(url, PAYMENTS) if id == 1]
    assert read == [(1, "fee", at)] * 2


def test_rows_are_added_only_to_those_that_were_made_the_same_way(url: str, opened: Callable[..., MarkedTable]) -> None:
    sums, other = opened(url), opened(url, definition="hundredths")
    assert sums.definition() is None
    assert sums.merge(rows(change(1, 100)), {}, {0: 9})
    assert not other.merge(rows(change(2, 100)), {0: 9}, {0: 10})
    assert not other.merge(rows(change(2, 100)), {}, {1: 3}), "it has looked before the other one has written"
    assert (other.definition(), sums.marks().get(1, -1)) == ("sums", -1)
    assert sums.merge(rows(change(1, 1)), {0: 9}, {0: 10})
    assert found(url) == [(1, 101, 1, 100)]
    assert other.replace(rows(change(1, 10_100)), {0: 10}, {0: 10})
    assert not sums.merge(rows(change(1, 1)), {0: 10}, {0: 11}), "the same marks, and other rows"
    assert other.merge(rows(change(1, 100)), {0: 10}, {0: 11})
    assert found(url) == [(1, 10_200, 100, 10_100)]


def test_a_table_that_has_rows_and_does_not_say_how_they_were_made_is_only_replaced(
    sqlite_url: str, opened: Callable[..., MarkedTable]
) -> None:
    table = opened(sqlite_url)
    assert table.merge(rows(change(1, 100)), {}, {0: 9})
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as db:
        db.execute("DELETE FROM balances_definition")
    assert not table.merge(rows(change(1, 1)), {0: 9}, {0: 10})
    assert found(sqlite_url) == [(1, 100, 100, 100)]
    assert table.replace(rows(change(1, 101)), {0: 9}, {0: 10})
    assert table.merge(rows(change(1, 1)), {0: 10}, {0: 11})


def test_rows_and_marks_are_read_as_of_one_moment(server_url: str, opened: Callable[..., MarkedTable]) -> None:
    table = opened(server_url)
    table.merge(rows(change(1, 100), change(2, 1)), {}, {0: 9})
    with snapshot(server_url, BALANCES.fields, "balances", marks_table="balances_marks", cluster=LOG) as (marks, parts):
        assert table.merge(rows(change(1, 1)), {0: 9}, {0: 10})
        assert marks == {0: 9}
        assert sorted(itertools.chain.from_iterable(parts))[0] == (1, 100, 100, 100)


def test_what_the_database_refuses_changes_nothing(url: str, opened: Callable[..., MarkedTable]) -> None:
    table = opened(url)
    with pytest.raises(ViewFailed, match=r"table balances refuses the rows"):
        table.merge(rows(change(1, 5), (None, 1, 1, 1)), {}, {0: 9})
    assert table.marks().get(0, -1) == -1
    assert found(url) == []


def test_an_error_of_the_database_says_what_was_being_done(url: str, opened: Callable[..., MarkedTable]) -> None:
    table = opened(url)
    table.merge(rows(change(1, 5)), {}, {0: 9})
    execute(url, "DROP TABLE balances")
    with pytest.raises(ViewFailed, match=r"table balances: writing rows and marks fails: "):
        table.merge(rows(change(1, 5)), {0: 9}, {0: 10})
    execute(url, "DROP TABLE balances_marks")
    with pytest.raises(ViewFailed, match=r"table balances: reading its marks fails: "):
        table.marks()


def test_a_table_that_can_not_be_made_is_not_told_as_refusing_rows(sqlite_url: str) -> None:
    execute(sqlite_url, "CREATE TABLE other (id INTEGER)", "CREATE INDEX balances_marks ON other (id)")
    table = MarkedTable(sqlite_url, BALANCES, LOG, "sums")
    with pytest.raises(ViewFailed, match=r"table balances: making it and the tables beside it fails: .*already"):
        table.prepare()
    table.close()


def test_a_file_that_is_not_there_is_not_made_by_who_only_reads(tmp_path: Path) -> None:
    file = tmp_path / "typo.db"
    with pytest.raises(NotFound, match=r"no SQLite file .*typo\.db"):
        found(f"sqlite:///{file}")
    assert not file.exists()


def test_a_partition_s_first_row_is_tried_again_while_others_stand_in_its_way(sqlite_url: str) -> None:
    engine = create_engine(sqlite_url)
    ended: list[str] = []

    def end_the_first_two(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("INSERT INTO balances_marks") and len(ended) < 2:
            ended.append(statement)
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise busy

    event.listen(engine, "before_cursor_execute", end_the_first_two)
    table = MarkedTable(engine, BALANCES, LOG, "sums")
    table.prepare()
    assert table.merge(rows(change(1, 100)), {}, {0: 9})
    assert len(ended) == 2
    assert table.marks() == {0: 9}
    assert found(sqlite_url) == [(1, 100, 100, 100)]
    table.close()
    engine.dispose()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, opened: Callable[..., MarkedTable]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes, and no database\n" * 100)
    url = f"sqlite:///{file}"
    with pytest.raises(ViewUnfit, match="is no SQLite database"):
        opened(url)
    with pytest.raises(ViewUnfit, match="is no SQLite database"):
        found(url)


def test_a_table_that_becomes_that_of_another_log_takes_nothing_more(
    url: str, opened: Callable[..., MarkedTable]
) -> None:
    """As when the database of another log is put in its place under way."""
    table = opened(url)
    assert table.merge(rows(change(1, 1)), {}, {0: 0})
    execute(url, f"UPDATE balances_marks SET cluster = '{'bb' * 16}'")
    for put in (table.merge, table.replace):
        assert not put(rows(change(1, 1)), {0: 0}, {0: 1})
    with pytest.raises(ViewUnfit, match="marks of another log"):
        table.marks()


def test_tables_that_do_not_fit_are_refused(sqlite_url: str, opened: Callable[..., MarkedTable]) -> None:
    opened(sqlite_url).merge(rows(change(1, 1)), {}, {0: 0})
    with pytest.raises(ViewUnfit, match="marks of another log"):
        opened(sqlite_url, cluster="bb" * 16).marks()
    with pytest.raises(ViewUnfit, match="column more is missing"):
        opened(sqlite_url, BALANCES._replace(fields=(*BALANCES.fields, Field("more", "int"))))
    tables = "its tables are balances, balances_definition, balances_marks"
    with pytest.raises(ViewUnfit, match=f"no table elsewhere in .*: {tables}"):
        found(sqlite_url, BALANCES._replace(name="elsewhere"))
    with pytest.raises(ViewUnfit, match="no table nothing of high-water marks"):
        found(sqlite_url, marks_table="nothing")
    with pytest.raises(BadOption, match=r"struct<a:int>, which SQL has no type for"):
        MarkedTable(sqlite_url, Shape("t", (Field("a", "struct<a:int>"),)), LOG, "sums")
    with pytest.raises(BadOption, match="SQLite keeps as a floating-point number"):
        MarkedTable(sqlite_url, Shape("t", (Field("a", "decimal(10,2)"),)), LOG, "sums")


# ------------------------------------------------------------------ killed

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["polonaise.views.tables", "sqlalchemy.dialects.sqlite", "psycopg"])
BATCHES = 3


def apply_all(url: str, kill_at: int) -> None:
    """Bring a table up to date from its marks, three batches over two partitions; die at the `kill_at`-th point."""
    points = itertools.count(1)

    def reach(*_: Any) -> None:
        if next(points) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = create_engine(url)
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, name, reach)
    table = MarkedTable(engine, BALANCES, LOG, "sums")
    marks = table.marks()
    for batch in range(marks.get(0, -1) + 1, BATCHES):
        after = {0: batch, 1: 10 * batch}
        assert table.merge(rows(change(1, 1), change(batch, 10)), marks, after)
        marks = after
    table.close()
    engine.dispose()


def killed_and_run_again(url: str, kill_at: int) -> bool:
    """Whether it was killed before it was done."""
    prepared(url).close()
    process = context.Process(target=apply_all, args=(url, kill_at))
    process.start()
    process.join(60)
    apply_all(url, 0)
    with snapshot(url, BALANCES.fields, "balances", marks_table="balances_marks", cluster=LOG) as (marks, parts):
        assert marks == {0: 2, 1: 20}
        balances = {account: balance for account, balance, *_ in itertools.chain.from_iterable(parts)}
    assert balances == {0: 10, 1: 13, 2: 10}, f"killed at {kill_at}: each batch once"
    return process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_between_any_two_statements_each_batch_is_applied_once(tmp_path: Path) -> None:
    for kill_at in itertools.count(1):
        if not killed_and_run_again(f"sqlite:///{tmp_path}/{kill_at}.db", kill_at):
            break
    assert kill_at > 20, "it was killed at each of its statements"


@pytest.mark.slow
def test_a_killed_writer_loses_and_repeats_nothing_on_postgresql(postgresql: Any) -> None:
    for kill_at in range(3, 39, 4):
        killed_and_run_again(postgresql.database(), kill_at)


def test_sum_is_exact_beyond_what_a_float_holds(sqlite_url: str, opened: Callable[..., MarkedTable]) -> None:
    table = opened(sqlite_url)
    table.merge(rows(change(1, 2**60 + 1)), {}, {0: 0})
    table.merge(rows(change(1, 1)), {0: 0}, {0: 1})
    with create_engine(sqlite_url).connect() as db:
        assert db.execute(text("SELECT balance FROM balances")).scalar_one() == 2**60 + 2
        db.engine.dispose()


SUMS = Shape(
    "sums",
    (Field("account", "string"), Field("wei", "bigint"), Field("rate", "double")),
    ("account",),
    {"wei": "sum", "rate": "sum"},
)
BIG = 4 * 10**18 + 1


@pytest.mark.parametrize(
    ("given", "why"),
    [({"wei": BIG}, "wei would be 8000000000000000002 .* beyond bigint"), ({"rate": 1e308}, "rate would be 1.*308.*")],
)
def test_a_sum_that_does_not_fit_is_refused_by_key_and_column_and_the_table_stays_as_it_was(
    url: str, given: dict[str, float], why: str
) -> None:
    """SQLite would make a floating-point number, or infinity, of it."""
    other = {"account": "other", "wei": 1, "rate": 0.5}

    def chunks() -> list[list[dict[str, Any]]]:
        many = [{**other, "account": f"{number}"} for number in range(100)]
        return [[other, *many[:50], {"account": "a", "wei": 1, "rate": 1.0, **given}, *many[50:]]]

    with contextlib.closing(MarkedTable(url, SUMS, LOG, "sums")) as table:
        table.prepare()
        assert table.merge(chunks, {}, {0: 0})
        if "wei" in given:
            assert table.merge(chunks, {0: 0}, {0: 1})
        marks, rows = table.marks(), found(url, SUMS)
        with pytest.raises(ViewFailed, match=rf"table sums refuses the row with account 'a': {why}"):
            table.merge(chunks, marks, {0: 9})
        assert (table.marks(), found(url, SUMS)) == (marks, rows)
        assert table.merge(lambda: [[{"account": "a", "wei": -BIG, "rate": -1e308}]], marks, {0: 9})


def test_a_key_that_the_database_does_not_even_look_for_is_named(
    postgresql_url: str, opened: Callable[..., MarkedTable]
) -> None:
    table = opened(postgresql_url, SUMS)
    with pytest.raises(ViewFailed, match=r"table sums refuses the row with account 'a\\x00b': .*NUL"):
        table.merge(rows(("a", 1, 0.5), ("a\0b", 1, 0.5), shape=SUMS), {}, {0: 0})


def test_keys_of_several_texts_and_of_binaries_are_made_and_told_apart(url: str) -> None:
    names = [f"part_{number}" for number in range(6)]
    fields = [Field("id", "bigint"), *(Field(name, "binary" if name == "part_5" else "string") for name in names)]
    shape = Shape("keys", (*fields, Field("n", "bigint")), ("id", *names), {"n": "sum"})
    row = {"id": 1, **dict.fromkeys(names, "x"), "part_5": b"x", "n": 1}
    others = [row, {**row, "part_4": "x "}, {**row, "part_5": b"x "}, {**row, "part_5": b"x\0"}, {**row, "part_0": ""}]
    with contextlib.closing(MarkedTable(url, shape, LOG, "keys")) as table:
        table.prepare()
        for mark in (0, 1):
            assert table.merge(lambda: [others], {0: 0} if mark else {}, {0: mark})
    assert [each[-1] for each in found(url, shape)] == [2] * len(others)
