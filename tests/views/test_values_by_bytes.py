"""Texts in tables that Polonaise makes: compared by their bytes on each database, whatever its defaults are."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from polonaise.errors import ViewFailed, ViewUnfit
from polonaise.views.letters import DeadLetters
from polonaise.views.tables import Field, MarkedTable, Shape, snapshot
from rigs.databases import engine_at, execute

NAMES = [
    "Alice",
    "ALICE",
    "alice",
    "Zoë",
    "Zoe",
    "Zoe\N{COMBINING DIAERESIS}",
    "x",
    "x ",
    "straße",
    "strasse",
    "😀",
    "𝒜",
]
OWNERS = Shape(
    "owners",
    (Field("name", "string"), Field("amount", "bigint"), Field("least", "string"), Field("most", "string")),
    key=("name",),
    merge={"amount": "sum", "least": "min", "most": "max"},
)
LOG = "aa" * 16


def made(url: str) -> MarkedTable:
    table = MarkedTable(url, OWNERS, LOG, "by name")
    table.prepare()
    return table


def held(url: str) -> list[tuple[object, ...]]:
    with snapshot(url, OWNERS.fields, OWNERS.name, marks_table=None) as (_, parts):
        return sorted(row for part in parts for row in part)


def test_texts_of_other_bytes_are_other_keys(url: str) -> None:
    with contextlib.closing(made(url)) as table:
        rows = [{"name": name, "amount": 1, "least": name, "most": name} for name in NAMES]
        for first in (0, 1):
            assert table.merge(lambda: [rows], {} if not first else {0: 0}, {0: first})
    assert held(url) == sorted((name, 2, name, name) for name in NAMES)


def test_least_and_most_are_those_by_bytes(url: str) -> None:
    ordered = sorted(NAMES, key=str.encode)
    with contextlib.closing(made(url)) as table:
        rows = [{"name": "all", "amount": 1, "least": name, "most": name} for name in NAMES]
        assert table.merge(lambda: [[row] for row in rows], {}, {0: 0})
    assert held(url) == [("all", len(NAMES), ordered[0], ordered[-1])]


@pytest.mark.slow
def test_what_is_too_long_for_a_key_is_refused_and_never_cut(mariadb_url: str) -> None:
    with contextlib.closing(made(mariadb_url)) as table:
        rows = [{"name": "x" * 256, "amount": 1, "least": "", "most": ""}]
        with pytest.raises(ViewFailed, match="Data too long"):
            table.merge(lambda: [rows], {}, {0: 0})
    assert held(mariadb_url) == []


@pytest.mark.slow
def test_a_table_whose_keys_are_compared_otherwise_is_refused(mariadb_url: str) -> None:
    columns = "name VARCHAR(255) PRIMARY KEY, amount BIGINT, least LONGTEXT, most LONGTEXT"
    execute(
        mariadb_url,
        f"CREATE TABLE owners ({columns}) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci ROW_FORMAT=DYNAMIC",
    )
    with pytest.raises(ViewUnfit, match=r"different keys for the same one, .* name \(utf8mb4_general_ci\): drop it"):
        made(mariadb_url)


@pytest.mark.slow
def test_letters_hold_reasons_and_bodies_of_all_kinds(mariadb_url: str) -> None:
    letters = DeadLetters("owners")
    data = bytes(range(256))
    letter = {
        "partition": 0, "transaction_id": 1, "timestamp": datetime(2025, 1, 2, tzinfo=UTC), "header": 0,
        "reason": "wrong: \\ 'é' 😀", "data": data,
    }  # fmt: skip
    with contextlib.closing(made(mariadb_url)) as table:
        assert table.merge(list, {}, {0: 0}, letters=lambda: [[letter]])
    with engine_at(mariadb_url) as engine, engine.connect() as db:
        row = db.execute(select(letters.table)).one()
    assert (row.reason, row.data, row.timestamp.replace(tzinfo=UTC)) == (letter["reason"], data, letter["timestamp"])
