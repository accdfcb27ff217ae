"""Compares the columns that a table has with what a view makes for them, so that no value is rounded or cut there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf, log10
from typing import Any, Final

from sqlalchemy import (
    CHAR,
    JSON,
    BigInteger,
    Boolean,
    Connection,
    Date,
    DateTime,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInteger,
    String,
    Table,
    Text,
    Time,
    Uuid,
    inspect,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import BLOB, TypeEngine

from polonaise.errors import ViewUnfit
from polonaise.views.dialects import MARIADB, SQLITE

DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_BITS: Final[Mapping[str, int]] = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_TIMES: Final = ("timestamp", "timestamp_ntz")
_MICROSECONDS: Final = 6
_BENDING: Final = (
    (Boolean, Date, DateTime, Time, JSON),
    (CHAR, Date, DateTime, Time, Uuid, mysql.YEAR, postgresql.JSONB, postgresql.MONEY),
)
"""Types that make others of texts, on SQLite (numbers), and of texts and numbers, on the others."""


def check_types(db: Connection, table: Table, types: Mapping[str, str], beside: str) -> None:
    """Raise `ViewUnfit` if a column of the existing table can't hold all values that its type in the view has.

    `types` names these, by column, as Spark writes them; `beside` the tables that belong to this one. What a column
    holds beyond that does no harm, and types that are not known here are left to the database.
    """
    own = {column.name: column.type.dialect_impl(db.dialect) for column in table.columns}
    wrong = [
        f"column {name} is {found['type'].compile(db.dialect)} in the table and {types[name]} in the view"
        for found in inspect(db).get_columns(table.name, schema=table.schema)
        if (name := found["name"]) in types and not _holds(found["type"], types[name], own[name], db.dialect.name)
    ]
    if wrong:
        raise ViewUnfit(
            f"table {table.fullname} can't hold what its view makes: {', '.join(wrong)}; alter the table, or if it may "
            f"be made anew from the log, drop it together with {beside}, and run this again"
        )


def _holds(found: TypeEngine[Any], needed: str, own: TypeEngine[Any], kind: str) -> bool:
    """Whether a column of the type `found` holds all values of the type `needed`, for which `own` would be made."""
    is_number = isinstance(found, Integer | Numeric | Float)
    exact = _exact(needed)
    needs_number = exact is not None or needed in ("float", "double")
    if needed in ("string", "binary", "date", *_TIMES) and is_number:
        return False  # SQLite makes 7 of '007' there
    if isinstance(found, _BENDING[kind != SQLITE]) and (needed == "string" or (kind != SQLITE and needs_number)):
        return False
    if needed in ("string", "binary"):
        return kind == SQLITE or _length(found, kind) >= _length(own, kind)
    if needed in _TIMES:
        return kind == SQLITE or (not isinstance(found, Date | Time) and _fraction_digits(found, kind) >= _MICROSECONDS)
    if needs_number:
        return not isinstance(found, String) and (not is_number or _holds_number(found, exact, needed, kind))
    return not (needed == "date" and isinstance(found, Time) and kind != SQLITE)


def _holds_number(found: TypeEngine[Any], exact: tuple[float, int] | None, needed: str, kind: str) -> bool:
    if kind == SQLITE:
        # Its columns hold numbers of all kinds as they are, but for those of floating-point numbers.
        return not isinstance(found, Float) or needed != "bigint"
    if exact is None:
        # MariaDB rounds to the digits of a `double(10,2)`.
        wide = isinstance(found, Double) or needed == "float"
        return isinstance(found, Float) and wide and getattr(found, "scale", None) is None
    whole, fraction = _digits(found)
    return whole >= exact[0] and fraction >= exact[1]


def _exact(needed: str) -> tuple[float, int] | None:
    """Return the digits before and behind the point that a type has; None for one that is no exact number."""
    decimal = DECIMAL.fullmatch(needed)
    if decimal is not None:
        return int(decimal[1]) - int(decimal[2]), int(decimal[2])
    return (_BITS[needed] * log10(2), 0) if needed in _BITS else None


def _digits(found: TypeEngine[Any]) -> tuple[float, float]:
    """Return the digits before and behind the point with which a column holds every number."""
    if isinstance(found, Float):  # first: it is a `Numeric` in some versions of SQLAlchemy
        return (53 if isinstance(found, Double) else 24) * log10(2), 0
    if isinstance(found, Numeric):
        return (inf, inf) if found.precision is None else (found.precision - (found.scale or 0), found.scale or 0)
    narrow = {mysql.TINYINT: 7, SmallInteger: 15, mysql.MEDIUMINT: 23, BigInteger: 63}
    return next((bits for each, bits in narrow.items() if isinstance(found, each)), 31) * log10(2), 0


def _length(found: TypeEngine[Any], kind: str) -> float:
    """Return how many letters or bytes a column holds, at least."""
    if isinstance(found, mysql.TINYTEXT | mysql.TINYBLOB):
        return 2**8 - 1
    if kind in MARIADB and isinstance(found, Text | BLOB):
        return 2**16 - 1
    return getattr(found, "length", None) or inf


def _fraction_digits(found: TypeEngine[Any], kind: str) -> int:
    """Return the digits of a second that a column of times holds."""
    if kind in MARIADB:
        return int(getattr(found, "fsp", _MICROSECONDS) or 0)
    precision = getattr(found, "precision", None)
    return _MICROSECONDS if precision is None else int(precision)
