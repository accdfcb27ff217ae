"""Check which columns a decoder can make: one that no body could fill is refused before a job starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import types

from polonaise.errors import BadOption

_ALL: Final[Mapping[type[types.DataType], str]] = {
    types.BooleanType: "boolean",
    types.ByteType: "byte",
    types.ShortType: "short",
    types.IntegerType: "int",
    types.LongType: "long",
    types.FloatType: "float",
    types.DoubleType: "double",
    types.DecimalType: "decimal",
    types.StringType: "string",
    types.BinaryType: "binary",
    types.DateType: "date",
    types.TimestampType: "timestamp",
    types.TimestampNTZType: "timestamp_ntz",
    types.TimeType: "time",
    types.DayTimeIntervalType: "interval day to second",
    types.ArrayType: "array",
    types.StructType: "struct",
    types.MapType: "map",
}
"""The types that decoders make, with their names in DDL."""

_LACKS: Final[Mapping[str, frozenset[type[types.DataType]]]] = {
    "json": frozenset({types.TimeType, types.DayTimeIntervalType}),
    "msgpack": frozenset({types.DateType, types.TimestampNTZType, types.TimeType, types.DayTimeIntervalType}),
    "avro": frozenset({types.DayTimeIntervalType}),
    "protobuf": frozenset(
        {types.DateType, types.TimestampType, types.TimestampNTZType, types.TimeType, types.DayTimeIntervalType}
    ),
}
"""By decoder, the types that it makes no columns of; all others are in the format, or made without loss."""

_KEYS_ARE_TEXTS: Final = frozenset({"json", "msgpack", "avro"})


def check_types(decoder: str, wanted: types.StructType) -> None:
    """Raise `BadOption` for a column that no body could fill: of a type that `decoder` does not make, or such a map."""
    possible = {kind: name for kind, name in _ALL.items() if kind not in _LACKS.get(decoder, ())}
    for field in wanted.fields:
        for kind in _kinds(field.dataType):
            if type(kind) not in possible:
                raise BadOption(
                    f"decoderSchema: {field.name} {_is_or_holds(field, kind)}, which decoder={decoder} does not make: "
                    f"read it as another type, such as string; there are {', '.join(possible.values())}"
                )
            if (
                isinstance(kind, types.MapType)
                and decoder in _KEYS_ARE_TEXTS
                and not isinstance(kind.keyType, types.StringType)
            ):
                raise BadOption(
                    f"decoderSchema: {field.name} {_is_or_holds(field, kind)}, and with decoder={decoder} the keys of "
                    "a map are texts: write map<string,…>"
                )


def _is_or_holds(field: types.StructField, kind: types.DataType) -> str:
    return f"{'is' if kind is field.dataType else 'holds'} {kind.simpleString()}"


def _kinds(kind: types.DataType) -> Iterator[types.DataType]:
    yield kind
    if isinstance(kind, types.ArrayType):
        yield from _kinds(kind.elementType)
    elif isinstance(kind, types.MapType):
        yield from _kinds(kind.keyType)
        yield from _kinds(kind.valueType)
    elif isinstance(kind, types.StructType):
        for field in kind.fields:
            yield from _kinds(field.dataType)


def check_json_maps(fields: Sequence[pa.Field]) -> None:
    """Raise `BadOption` if one of these columns, which hold maps, also holds a date, time, decimal or binary.

    A column with a map is decoded row by row, where nothing is converted, and JSON has no such values.
    """
    for field in fields:
        for is_kind in (pa.types.is_temporal, pa.types.is_decimal, pa.types.is_binary):
            if holds(field.type, is_kind):
                raise BadOption(
                    f"decoderSchema: {field.name} holds a map, and is {field.type}: JSON has no dates, times, decimals "
                    "and binaries, which are not converted in such a column: write string for them"
                )


def check_nulls(schema: pa.Schema, can_hold: bool) -> None:
    """Raise `BadOption` for NOT NULL inside a column, which can't be checked, and for all NOT NULL without `can_hold`.

    With `onUndecodable=column` none can hold, as all columns are null for an undecodable body.
    """
    for field in schema:
        if not field.nullable and not can_hold:
            raise BadOption(
                f"decoderSchema: {field.name} is NOT NULL, but onUndecodable=column (failOnDecodeError=false) makes it "
                "null for a body that does not decode: leave out NOT NULL, or choose another onUndecodable"
            )
        if _requires_inside(field.type):
            raise BadOption(
                f"decoderSchema: NOT NULL inside {field.name} can't be checked: write NOT NULL for whole columns only"
            )


def fields_inside(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside a type, without a map's key, which is never null."""
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.field(index) for index in range(kind.num_fields)]


def _requires_inside(kind: pa.DataType) -> bool:
    return any(not field.nullable or _requires_inside(field.type) for field in fields_inside(kind))


def holds(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether `is_kind` is true of a type or of any type inside it, but for the keys of maps."""
    return is_kind(kind) or any(holds(field.type, is_kind) for field in fields_inside(kind))
