"""Compares the columns that a table has with what is written to them, so that no value is rounded, cut or bent there.

Taken are types that are known to hold every value as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf, log10
from typing import Final

from sqlalchemy import BigInteger, Connection, Integer, LargeBinary, String, Table, text

from polonaise.errors import ViewUnfit
from polonaise.views.dialects import MARIADB, POSTGRESQL, SQLITE, folded

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
