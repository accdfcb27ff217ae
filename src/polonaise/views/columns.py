"""Columns and tables that Polonaise makes itself: the same values, and the same order, on every database.

Left to their defaults, a table of MariaDB may hold few letters, take `é` for `e` and `x` with a blank for `x`, and one
of PostgreSQL may order texts as a language does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Column, Connection, DateTime, LargeBinary, MetaData, String, Table, Text, event
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

from polonaise.views.dialects import MARIADB, POSTGRESQL

POSTGRESQL_BYTES: Final = "C"
"""The collation that compares by bytes, in each database of PostgreSQL."""
_MARIADB_BYTES: Final = "utf8mb4_nopad_bin"
_MYSQL_BYTES: Final = "utf8mb4_0900_bin"
"""The collation of MariaDB and that of MySQL which compare by bytes: `utf8mb4_bin` passes over blanks at the end."""

LONG_TEXT: Final[TypeEngine[Any]] = (
    Text()
    .with_variant(mysql.LONGTEXT(), *MARIADB)
    .with_variant(postgresql.TEXT(collation=POSTGRESQL_BYTES), POSTGRESQL)
)
LONG_BINARY: Final = LargeBinary().with_variant(mysql.LONGBLOB(), *MARIADB)
TIMESTAMP: Final = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *MARIADB)
"""`LONG_TEXT`, `LONG_BINARY` and `TIMESTAMP`: column types for every supported database. Without the variants MariaDB
would limit texts and bytes to 64 KiB, and drop the microseconds of times."""


def short_text(characters_max: int) -> TypeEngine[Any]:
    """Return the type of a text that may be part of a key, compared by its bytes. MariaDB takes keys of up to 3,072
    bytes, and counts four for each letter."""
    return String(characters_max).with_variant(
        postgresql.VARCHAR(characters_max, collation=POSTGRESQL_BYTES), POSTGRESQL
    )


def deletion(db: Connection, column: Column[Any], numbers: Iterable[int]) -> str:
    """Return the statement, for people to run, that deletes the rows with these numbers in the column."""
    names = db.dialect.identifier_preparer
    given = ", ".join(map(str, sorted(numbers)))
    text = f"DELETE FROM {names.format_table(column.table)} WHERE {names.quote(column.name)} IN ({given})"
    return text.replace("%%", "%")  # doubled for drivers, which take a single one for the place of a value


def transactional_table(name: str, *columns: Column[Any], schema: str | None = None) -> Table:
    """Return a table that rolls back with its transaction, holds all of Unicode, and compares texts by their bytes."""
    options = {"engine": "InnoDB", "charset": "utf8mb4", "row_format": "DYNAMIC"}
    by_kind: dict[str, Any] = {f"{kind}_{option}": value for kind in MARIADB for option, value in options.items()}
    table = Table(name, MetaData(schema=schema), *columns, **by_kind)
    event.listen(table, "before_create", _set_collation)
    return table


def _set_collation(table: Table, db: Connection, **_: object) -> None:
    """Set the table's collation just before it is made: MariaDB and MySQL name it differently."""
    # Known once a connection was made: an address of either name may lead to either server.
    collation = _MARIADB_BYTES if getattr(db.dialect, "is_mariadb", False) else _MYSQL_BYTES
    for kind in MARIADB:
        table.kwargs[f"{kind}_collate"] = collation
