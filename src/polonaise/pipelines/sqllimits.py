"""What a view's table in each kind of SQL database can't hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.types import (
    BinaryType,
    DateType,
    DoubleType,
    FloatType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from polonaise.pipelines.targetlimits import Limit, column_of
from polonaise.views.dialects import MARIADB, POSTGRESQL, SQLITE
from polonaise.views.tables import KeyRoom

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
"""The first microsecond of the year 1 and the last one of 9999: the years that Python and all databases have."""


def limits_of(kind: str, schema: StructType, key: Sequence[str], sums: Sequence[str], room: KeyRoom) -> list[Limit]:
    """Return what a table in this kind of database can't hold. Called while a session runs.

    `sums` names the columns that are added up, `room` says how long the texts of the key may be.
    """
    limits: list[Limit] = []
    for field in schema.fields:
        in_key = field.name in key
        found = _of_column(field, kind, in_key, field.name in sums, room)
        limits += [Limit(field.name, F.coalesce(refused, F.lit(False)), why, in_key) for refused, why in found]
    long = [
        field for field in schema.fields if field.name in key and isinstance(field.dataType, StringType | BinaryType)
    ]
    if long and room.total_bytes is not None:
        total = reduce(lambda one, other: one + other, (F.octet_length(column_of(field)) for field in long))
        why = f"makes the key longer than {room.total_bytes:,} bytes"
        limits.append(Limit(long[0].name, F.coalesce(total > room.total_bytes, F.lit(False)), why, True))
    return limits


def _of_column(
    field: StructField, kind: str, in_key: bool, is_sum: bool, room: KeyRoom
) -> Iterator[tuple[Column, str]]:
    value = column_of(field)
    if in_key:
        yield value.isNull(), "is null, and a column of the key"
    match field.dataType:
        case StringType():
            yield ~F.is_valid_utf8(value), "is no text in UTF-8"
            if kind == POSTGRESQL:
                yield F.contains(value, F.lit("\0")), "has a NUL, which no text of PostgreSQL has"
            if in_key and room.characters is not None:
                yield F.length(value) > room.characters, f"has more than {room.characters} letters, and is in the key"
        case BinaryType() if in_key and room.bytes is not None:
            yield F.octet_length(value) > room.bytes, f"has more than {room.bytes:,} bytes, and is in the key"
        case TimestampType():
            yield ~F.unix_micros(value).between(_FIRST_US, _LAST_US), "is before the year 1, or after 9999"
        case TimestampNTZType():
            first, last = (F.lit(each).cast("timestamp_ntz") for each in ("0001-01-01", "9999-12-31 23:59:59.999999"))
            yield (value < first) | (value > last), "is before the year 1, or after 9999"
        case DateType():
            first, last = (F.lit(each).cast("date") for each in ("0001-01-01", "9999-12-31"))
            yield (value < first) | (value > last), "is before the year 1, or after 9999"
        case DoubleType() | FloatType():
            if kind == SQLITE or kind in MARIADB:
                yield F.isnan(value), "is NaN, which the database has not"
            if kind in MARIADB or (kind == SQLITE and is_sum):
                yield F.abs(value) == float("inf"), "is infinite, which the database can't hold, or add up"
