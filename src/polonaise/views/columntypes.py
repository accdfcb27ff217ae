"""Compares the columns that a table has with what is written to them, so that no value is rounded, cut or bent there.

Taken are types that are known to hold every value as it is.

Columns and tables that Polonaise makes itself have the same values, and the same order, on every database. Left to
their defaults, a table of MariaDB may hold few letters, take `é` for `e` and `x` with a blank for `x`, and one of
PostgreSQL may order texts as a language does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import inf, log10
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
    text,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

from polonaise.errors import ViewUnfit
from polonaise.views.dialects import MARIADB, POSTGRESQL, SQLITE, folded

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


DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
OTHER_NAME: Final = (
    "choose another name (marks_table of a SqlView, name of a SqlDeliveryTarget, or of a pipeline's view)"
)
ALTER_OWN: Final = f"alter it, or if it is another application's, {OTHER_NAME}"
"""`OTHER_NAME`, `ALTER_OWN`: what to do for one of Polonaise's own tables that is in the way, or of another shape."""

_NUMBERS: Final = re.compile(r"\((.*)\)")
_BITS: Final[Mapping[str, int]] = {
    "tinyint": 7, "smallint": 15, "mediumint": 23, "int": 31, "integer": 31, "bigint": 63, "real": 24, "double": 53,
    "double precision": 53,
}  # fmt: skip
"""The bits of the greatest whole number up to which a type has all of them; MariaDB's `float` shows six digits only."""
_WHOLE: Final = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint")
_DECIMALS: Final = ("numeric", "decimal")
_FLOATS: Final = ("real", "double", "double precision")
_TEXTS: Final[Mapping[str, float]] = {
    "character varying": inf, "longtext": inf, "mediumtext": inf, "varchar": inf, "text": inf, "tinytext": 63,
}  # fmt: skip
_BINARIES: Final[Mapping[str, float]] = {
    "bytea": inf, "longblob": inf, "mediumblob": inf, "varbinary": inf, "blob": 2**16 - 1, "tinyblob": 2**8 - 1,
}  # fmt: skip
"""`_TEXTS`, `_BINARIES`: how many letters or bytes a column holds, unless its type says so."""
_MARIADB_TEXT: Final = 2**14 - 1
"""The letters, of four bytes each, in a `text` of MariaDB's."""
_MOMENTS: Final = ("datetime", "timestamp without time zone", "timestamp with time zone")
"""MariaDB's `timestamp` is not among them: it has few years, and may make the present of a null."""
_MICROSECONDS: Final = 6
_AFFINITIES: Final = (
    ("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB"), ("REAL", "REAL"),
    ("FLOA", "REAL"), ("DOUB", "REAL"),
)  # fmt: skip
"""What makes the affinity of SQLite's columns: the first of these that is in the type, as it was declared."""
_KEPT_BY_SQLITE: Final = {
    "INTEGER": "boolean tinyint smallint int bigint float double",
    "REAL": "tinyint smallint int float double",
    "NUMERIC": "boolean tinyint smallint int bigint float double binary date timestamp timestamp_ntz",
    "TEXT": "string binary date timestamp timestamp_ntz",
    "BLOB": "boolean tinyint smallint int bigint float double string binary date timestamp timestamp_ntz",
}
"""By affinity: the values that are kept as they are. `STRING` and `JSON` have NUMERIC, and make 7 of '007'."""
_OWN: Final = ((BigInteger, "bigint"), (Integer, "int"), (String, "string"), (LargeBinary, "binary"))

_MARIADB_COLUMNS = text(
    "SELECT column_name AS name, column_type AS type, extra LIKE '% generated%' OR extra LIKE '%on update%' AS made "
    "FROM information_schema.columns WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
_COLUMNS: Final = {
    SQLITE: text("SELECT name, type, hidden IN (2, 3) AS made FROM pragma_table_xinfo(:name, :schema)"),
    POSTGRESQL: text(
        "SELECT attname AS name, format_type(atttypid, atttypmod) AS type, "
        "attgenerated <> '' OR attidentity = 'a' AS made FROM pg_attribute "
        "WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped"
    ),
    **dict.fromkeys(MARIADB, _MARIADB_COLUMNS),
}
"""By kind of database: the columns of a table, with their types, and whether the database itself changes them. The
inspector knows some types only as others, or not at all."""


def catalogued(db: Connection, table: Table) -> dict[str, str | None]:
    """Return the name and the schema by which the database's catalogue is asked for a table."""
    if db.dialect.name == POSTGRESQL:
        # In a statement a % is doubled for the driver; here the name is a value.
        return {"name": db.dialect.identifier_preparer.format_table(table).replace("%%", "%")}
    return {"name": table.name, "schema": table.schema}


def check_types(db: Connection, table: Table, types: Mapping[str, str], beside: str) -> None:
    """Raise `ViewUnfit` if a column of the existing table can't hold all values that its type in the view has. `types`
    names these, by column, as Spark writes them; `beside` the tables that belong to this one."""
    wrong = [
        f"column {name} is {found} in the table and {types[name]} in the view"
        for name, found in _unfit(db, table, types)
    ]
    if wrong:
        raise ViewUnfit(
            f"table {table.fullname} can't hold what its view makes: {', '.join(wrong)}; alter the table, or if it may "
            f"be made anew from the log, drop it together with {beside}, and run this again"
        )


def check_own_types(db: Connection, table: Table) -> None:
    """Raise `ViewUnfit` if a column of one of Polonaise's own tables can't hold all that is written to it."""
    types = {
        column.name: next((name for kind, name in _OWN if isinstance(column.type, kind)), "timestamp")
        for column in table.columns
    }
    wrong = [
        f"column {name} is {found} and has to hold each {table.c[name].type.compile(db.dialect)}"
        for name, found in _unfit(db, table, types, own=True)
    ]
    if wrong:
        raise ViewUnfit(f"table {table.fullname} is of another shape: {', '.join(wrong)}; {ALTER_OWN}")


def _unfit(db: Connection, table: Table, types: Mapping[str, str], *, own: bool = False) -> list[tuple[str, str]]:
    """Return the columns that do not hold their types, with what they are. `own` tables have whole numbers alone."""
    kind = db.dialect.name
    found = {folded(kind, row.name): row for row in db.execute(_COLUMNS[kind], catalogued(db, table))}
    unfit = []
    for name, needed in types.items():
        column = found.get(folded(kind, name))
        if column is None:  # it was there a moment ago, by the inspector
            unfit.append((name, "missing"))
            continue
        type_ = column.type or "without a type"
        room = getattr(table.c[name].type.dialect_impl(db.dialect), "length", None) or inf
        if column.made:
            unfit.append((name, f"{type_}, which the database itself sets (generated, identity or ON UPDATE),"))
        elif not _holds(column.type, needed, room, kind, own=own):
            unfit.append((name, type_))
    return unfit


def _holds(found: str, needed: str, room: float, kind: str, *, own: bool) -> bool:
    """Whether a column of the type `found` keeps all values of the type `needed` as they are, up to `room` letters."""
    if kind == SQLITE:
        affinity = _affinity(found)
        return needed in _KEPT_BY_SQLITE[affinity].split() and not (own and affinity == "REAL")
    name = _NUMBERS.sub("", found)
    told = _NUMBERS.search(found)
    numbers = [int(number) for number in re.findall(r"-?\d+", told[1])] if told is not None else []
    if needed in ("string", "binary"):
        there = (_TEXTS if needed == "string" else _BINARIES).get(name, 0)
        there = _MARIADB_TEXT if (kind in MARIADB and name == "text") else there
        return min(there, *numbers, inf) >= room
    if needed == "date":
        return name == "date" or name in _MOMENTS
    if needed.startswith("timestamp"):
        digits = numbers[0] if numbers else 0 if kind in MARIADB else _MICROSECONDS
        return name in _MOMENTS and digits >= _MICROSECONDS
    if needed == "boolean":
        return name == "boolean" or (kind in MARIADB and name in _WHOLE)
    return (name in _WHOLE or not own) and _holds_number(name, numbers, needed)


def _affinity(declared: str) -> str:
    """Return how a column of SQLite's treats values, by its type as it was declared."""
    made = next((affinity for word, affinity in _AFFINITIES if word in declared.upper()), "NUMERIC")
    return made if declared else "BLOB"


def _holds_number(name: str, numbers: list[int], needed: str) -> bool:
    is_plain = name in _WHOLE or not numbers  # MariaDB rounds to the digits of a `double(10,2)`
    if needed in ("float", "double"):
        return name in _FLOATS and is_plain and (name != "real" or needed == "float")
    decimal = DECIMAL.fullmatch(needed)
    whole, fraction = (
        (_BITS[needed] * log10(2), 0) if decimal is None else (int(decimal[1]) - int(decimal[2]), int(decimal[2]))
    )
    if name in _DECIMALS:
        precision, scale = numbers or (inf, inf)
        return fraction <= scale and (whole <= precision - scale or not numbers)
    return name in _BITS and is_plain and fraction == 0 and whole <= _BITS[name] * log10(2)
