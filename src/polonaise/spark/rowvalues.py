"""Check values that were decoded row by row, before Arrow makes columns of them and silently converts what does not
fit.

A fraction to its whole part, true to 1.0, a moment to its date, a time without a zone to UTC, a number to microseconds,
a text to a list of its letters: here it is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from itertools import chain
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

import pyarrow as pa

from polonaise.spark.decodable import fields_inside

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
