"""Check what a decoder can make: columns that no body could fill, before a job starts, and values that do not fit.

A fraction to its whole part, true to 1.0, a moment to its date, a time without a zone to UTC, a number to microseconds,
a text to a list of its letters: here it is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from itertools import chain
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

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
    """Raise `BadOption` if one of these columns, which hold maps, also holds a date, time, decimal or binary. A column
    with a map is decoded row by row, where nothing is converted, and JSON has no such values."""
    for field in fields:
        for is_kind in (pa.types.is_temporal, pa.types.is_decimal, pa.types.is_binary):
            if holds(field.type, is_kind):
                raise BadOption(
                    f"decoderSchema: {field.name} holds a map, and is {field.type}: JSON has no dates, times, decimals "
                    "and binaries, which are not converted in such a column: write string for them"
                )


def check_nulls(schema: pa.Schema, can_hold: bool) -> None:
    """Raise `BadOption` for NOT NULL inside a column, which can't be checked, and for all NOT NULL without `can_hold`.
    With `onUndecodable=column` none can hold, as all columns are null for an undecodable body."""
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


_FLOAT_END: Final = float(2**128 - 2**103)
"""The smallest number that rounds to infinity as a 32-bit float."""
_INFINITE: Final = float("inf")


class Repeated(dict[str, Any]):
    """An object or map in which keys were repeated: `names` holds these keys."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.names = {key for key, count in Counter(key for key, _ in pairs).items() if count > 1}


def object_of(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of an object's pairs, for readers of JSON and MessagePack; a `Repeated` if a key appears twice."""
    made = dict(pairs)
    return made if len(made) == len(pairs) else Repeated(pairs)


def check_rows(rows: Sequence[Mapping[str, Any]], fields: Iterable[pa.Field], *, infinite: bool) -> None:
    """Raise `ValueError` if a row does not fit these fields unconverted. `infinite`: their format has infinity."""
    repeated: set[str] = set()
    if Repeated in set(map(type, rows)):
        repeated = {name for row in rows if isinstance(row, Repeated) for name in row.names}
    for field in fields:
        if field.name in repeated:
            raise ValueError(f"the key {field.name} is repeated in one object of the body")
        try:
            _check(field.type, [row.get(field.name) for row in rows], infinite)
        except ValueError as error:
            raise ValueError(f"{field.name}: {error}") from None


def _check(kind: pa.DataType, values: Sequence[Any], infinite: bool) -> None:
    values = [value for value in values if value is not None]
    rule = next((rule for rule in _RULES if rule.is_kind(kind)), None)
    if rule is None:
        return
    _check_types(values, rule.wanted, rule.but, rule.words)
    if rule.check is not None:
        rule.check(kind, values, infinite)


def _check_types(values: Sequence[Any], wanted: tuple[type, ...], but: tuple[type, ...], words: str) -> None:
    for given in set(map(type, values)):
        if not issubclass(given, wanted) or issubclass(given, but):
            raise ValueError(f"a value of type {given.__name__} is not {words}")


def _check_float(kind: pa.DataType, values: Sequence[Any], infinite: bool) -> None:
    if not infinite and (_INFINITE in values or -_INFINITE in values):
        raise ValueError(f"a number is too large for {kind}")
    if pa.types.is_float32(kind) and any(_FLOAT_END <= abs(value) < _INFINITE for value in values):
        raise ValueError(f"a number is too large for {kind}")


def _check_moment(kind: pa.DataType, values: Sequence[Any], infinite: bool) -> None:
    if any((value.utcoffset() is None) is not (kind.tz is None) for value in values):
        raise ValueError("a time without its zone" if kind.tz else "a time with a zone")


def _check_list(kind: pa.DataType, values: Sequence[Any], infinite: bool) -> None:
    _check(kind.value_type, list(chain.from_iterable(values)), infinite)


def _check_struct(kind: pa.DataType, values: Sequence[Any], infinite: bool) -> None:
    check_rows(values, fields_inside(kind), infinite=infinite)


def _check_map(kind: pa.DataType, values: Sequence[Any], infinite: bool) -> None:
    """Check maps, given as mappings or as pairs of keys and values."""
    pairs = list(chain.from_iterable(map(_pairs, values)))
    keys = [key for key, _ in pairs]
    if pa.types.is_string(kind.key_type):
        _check_types(keys, (str,), (), "a text")
    _check(kind.key_type, keys, infinite)
    _check(kind.item_type, [value for _, value in pairs], infinite)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the pairs of a map. Raises `ValueError` for a repeated key."""
    if isinstance(value, Repeated):
        raise ValueError("a key appears twice")
    if type(value) is dict or isinstance(value, Mapping):
        return value.items()
    if len({key for key, _ in value}) < len(value):
        raise ValueError("a key appears twice")
    return value  # type: ignore[no-any-return]


class _Rule(NamedTuple):
    """The Python types whose values fit a kind of column: those in `wanted`, except for those in `but`."""

    is_kind: Callable[[pa.DataType], bool]
    wanted: tuple[type, ...]
    words: str
    but: tuple[type, ...] = ()
    check: Callable[[pa.DataType, Sequence[Any], bool], None] | None = None


_RULES: Final = (
    _Rule(pa.types.is_integer, (Integral,), "a whole number", but=(bool,)),
    _Rule(pa.types.is_floating, (Real,), "a number", but=(bool,), check=_check_float),
    _Rule(pa.types.is_date, (date,), "a date without a time", but=(datetime,)),
    _Rule(pa.types.is_timestamp, (datetime,), "a date with a time", check=_check_moment),
    _Rule(pa.types.is_time, (time,), "a time"),
    _Rule(pa.types.is_duration, (timedelta,), "a duration"),
    _Rule(pa.types.is_map, (Mapping, list, tuple), "a map", check=_check_map),
    _Rule(pa.types.is_list, (Iterable,), "a list", but=(str, bytes, bytearray, memoryview, Mapping), check=_check_list),
    _Rule(pa.types.is_struct, (Mapping,), "an object with named fields", check=_check_struct),
)
"""The rule for each kind of type. Texts, bytes, booleans and decimals need none: Arrow refuses what does not fit them,
and takes a text for its bytes in UTF-8, such bytes for a text, and whole numbers for decimals, which loses nothing."""
