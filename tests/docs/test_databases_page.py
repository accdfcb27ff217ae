"""The limits that docs/databases.md tells are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from polonaise.views.tables import Field, Shape, key_room

PAGE = Path(__file__).parents[2].joinpath("docs", "databases.md").read_text()


@pytest.mark.parametrize(("kind", "column"), [("mariadb", "string"), ("mariadb", "binary"), ("postgresql", "string")])
def test_limits_of_keys_are_those_of_the_code(kind: str, column: str) -> None:
    room = key_room(Shape("t", (Field("k", column),), ("k",)), kind)
    told = [f"{room.characters} characters"] if kind == "mariadb" and column == "string" else []
    told += [f"{room.bytes:,} bytes"] if column == "binary" else []
    told += [f"PostgreSQL | {room.total_bytes:,} bytes"] if room.total_bytes else []
    assert told
    assert all(each in PAGE for each in told), told
    assert key_room(Shape("t", (Field("k", column),), ("k",)), "sqlite") == (None, None, None), "none of its own"
