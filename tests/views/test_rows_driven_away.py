"""Rows that a database can't take at once: statements get smaller, down to one row, which is then named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from polonaise.errors import ViewFailed
from polonaise.views.tables import Chunks, Field, MarkedTable, Shape, snapshot
from rigs.databases import execute, small_packets_of
from rigs.waiting import block_for

pytestmark = pytest.mark.slow

BODIES = Shape("bodies", (Field("id", "bigint"), Field("data", "string")), ("id",), {"data": "max"})
LOG = "aa" * 16


@pytest.fixture
def small_packets(mariadb_url: str) -> Iterator[str]:
    with small_packets_of(mariadb_url):
        yield mariadb_url


def bodies(*sizes: int, first: int = 0) -> Chunks:
    """All rows in one chunk, each with a text of so many letters."""
    return lambda: [[{"id": first + id, "data": "x" * size} for id, size in enumerate(sizes)]]


def letters(*sizes: int) -> Chunks:
    made = {"partition": 0, "timestamp": datetime(2026, 1, 1, tzinfo=UTC), "header": 0, "reason": "bad"}
    return lambda: [[{**made, "transaction_id": id, "data": b"x" * size} for id, size in enumerate(sizes)]]


@contextlib.contextmanager
def opened(url: str) -> Iterator[MarkedTable]:
    with contextlib.closing(MarkedTable(url, BODIES, LOG, "as they are")) as table:
        table.prepare()
        yield table


def ids(url: str) -> list[int]:
    with snapshot(url, BODIES.fields, "bodies", marks_table=None) as (_, parts):
        return sorted(row[0] for part in parts for row in part)


def test_rows_that_are_too_large_for_one_statement_are_written_by_several(small_packets: str) -> None:
    with opened(small_packets) as table:
        assert table.merge(bodies(*[60_000] * 20), {}, {0: 19}, letters(*[60_000] * 20))
        assert table.merge(bodies(*[100_000] * 20, first=20), {0: 19}, {0: 39})
        assert ids(small_packets) == list(range(40))
        assert table.replace(bodies(*[100_000] * 20), {0: 39}, {0: 19}, letters(*[100_000] * 20))
        assert (ids(small_packets), table.marks()) == (list(range(20)), {0: 19})


def test_a_row_that_is_too_large_is_named_and_nothing_is_changed(small_packets: str) -> None:
    with opened(small_packets) as table:
        assert table.merge(bodies(1), {}, {0: 0})
        with pytest.raises(ViewFailed, match=r"table bodies: the row with id 3 alone drives the database away"):
            table.merge(bodies(1, 1, 100_000, 300_000, 1), {0: 0}, {0: 5})
        named = r"table bodies_undecodable: the row with partition 0, transaction_id 2 alone"
        with pytest.raises(ViewFailed, match=named):
            table.merge(bodies(1), {0: 0}, {0: 5}, letters(1, 1, 200_000))
        assert (ids(small_packets), table.marks()) == ([0], {0: 0})
        assert table.merge(bodies(1, first=9), {0: 0}, {0: 5}), "and it goes on"


def test_rows_that_take_too_long_for_one_statement_are_written_by_several(mariadb_url: str) -> None:
    with opened(mariadb_url) as table, limited(mariadb_url, "max_statement_time", 0.5):
        slow = "CREATE TRIGGER slow BEFORE INSERT ON bodies FOR EACH ROW SET @waited = (SELECT SLEEP(0.05))"
        execute(mariadb_url, slow)
        table._writer.close()
        assert table.merge(bodies(*[1] * 40), {}, {0: 39})
    assert ids(mariadb_url) == list(range(40))


def slow_to_come(rows: Chunks, seconds: float) -> Chunks:
    """Chunks that a busy Spark makes."""

    def chunks() -> Iterator[list[dict[str, Any]]]:
        block_for(seconds)
        yield from rows()

    return chunks


def test_rows_that_are_slow_to_come_do_not_let_mariadb_end_the_transaction(mariadb_url: str) -> None:
    with opened(mariadb_url) as table, limited(mariadb_url, "idle_transaction_timeout", 1):
        table._writer.close()
        assert table.merge(slow_to_come(bodies(1, 1), 2.0), {}, {0: 1}, slow_to_come(letters(1), 2.0))
    assert ids(mariadb_url) == [0, 1]


def test_rows_that_are_slow_to_come_do_not_let_postgresql_end_the_transaction(postgresql_url: str) -> None:
    name = postgresql_url.partition("?")[0].rpartition("/")[2]
    execute(postgresql_url, f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '500ms'")
    with opened(postgresql_url) as table:
        assert table.merge(slow_to_come(bodies(1, 1), 1.0), {}, {0: 1}, slow_to_come(letters(1), 1.0))
    assert ids(postgresql_url) == [0, 1]


@contextlib.contextmanager
def limited(url: str, limit: str, seconds: float) -> Iterator[None]:
    execute(url, f"SET GLOBAL {limit} = {seconds}")
    try:
        yield
    finally:
        execute(url, f"SET GLOBAL {limit} = 0")
