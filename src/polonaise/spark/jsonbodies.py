"""Decode JSON bodies, a batch at a time, by Arrow's reader made strict.

Arrow takes NaN and Infinity for numbers, reads a time with or without a zone, and makes infinity of a number too large
for a float. So times and dates are read as texts and then converted, and the rest is checked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from polonaise.spark.rowvalues import fields_inside, holds, object_of

_ANOTHER: Final = re.compile(rb"}\s*,")
"""The end of an object and a comma: only behind these may Arrow take another object for a field of the one around."""
_NANOSECONDS: Final = re.compile(r"(\.[0-9]{6})[0-9]{1,3}(?![0-9])")
"""The fraction of a second with seven to nine digits; its group has six."""
_NO_NUMBERS: Final = (b"NaN", b"Inf")
"""The beginnings of NaN and Infinity, which are not JSON. Inside of texts they are harmless."""


class JsonBodies:
    """Makes columns of bodies, each of which has to be one JSON object."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields
        self._parse = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([("", pa.struct([_as_json_has_it(field) for field in fields]))]),
            unexpected_field_behavior="ignore",
        )

    def columns(self, bodies: Sequence[bytes]) -> dict[str, pa.Array]:
        """Decode bodies to columns, by name. Raises `ValueError` or an error of Arrow's if a body is not one JSON
        object whose fields fit the columns' types. Each body is wrapped in an object of its own, so that two can't be
        read as one."""
        if {body[:1] for body in bodies} != {b"{"} and any(body.lstrip()[:1] != b"{" for body in bodies):
            raise ValueError("a body that is no JSON object")
        joined = b'{"":' + b'}\n{"":'.join(bodies) + b"}"
        str(joined, "utf-8")
        if _is_unsure(joined):
            for body in bodies:
                check_body(body)
        read_options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(joined) + 1)
        table = pyarrow.json.open_json(
            pa.BufferReader(joined), read_options=read_options, parse_options=self._parse
        ).read_all()
        if table.num_rows != len(bodies):
            raise ValueError("a body that holds more than one object")
        objects = table.column(0).combine_chunks()
        return {field.name: _typed(objects.field(index), field) for index, field in enumerate(self._fields)}


def check_body(body: bytes) -> None:
    """Raise `ValueError` for a body that is clearly no JSON object: a quick look, unless Arrow might misread it."""
    if body.lstrip()[:1] != b"{":
        raise ValueError("a body that is no JSON object")
    text = str(body, "utf-8")
    if _is_unsure(body):
        _STRICT.decode(text)


def _is_unsure(text: bytes) -> bool:
    """Whether Arrow might accept text that is not JSON, or read several objects as one."""
    # To search for one letter is many times as fast as for a word, and most bodies do not have it.
    return _ANOTHER.search(text) is not None or any(word[:1] in text and word in text for word in _NO_NUMBERS)


def decode_object(body: bytes) -> Any:
    """Decode one body, for columns that Arrow's reader can't make: maps."""
    return _STRICT.decode(str(body, "utf-8"))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_STRICT: Final = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=object_of)


def _typed(column: pa.Array, field: pa.Field) -> pa.Array:
    if holds(field.type, pa.types.is_float32) and _overflows(column):
        raise ValueError(f"{field.name} holds a number that is too large for a float")
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid:
        if not holds(field.type, pa.types.is_timestamp):
            raise
        return pa.array([_with_times(each, field.type) for each in column.to_pylist()], field.type)


def _with_times(value: Any, kind: pa.DataType) -> Any:
    """Return a value with times and dates made of its texts. Nanoseconds are cut: Spark's have microseconds."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return pa.scalar(_NANOSECONDS.sub(r"\1", value)).cast(kind).as_py()
    if pa.types.is_temporal(kind):
        return pa.scalar(value).cast(kind).as_py()
    if pa.types.is_struct(kind):
        return {field.name: _with_times(value[field.name], field.type) for field in fields_inside(kind)}
    if pa.types.is_list(kind):
        return [_with_times(each, kind.value_type) for each in value]
    return value


def _overflows(column: pa.Array) -> bool:
    """Whether a column holds an infinite 32-bit float: JSON has no infinity, so the number was too large."""
    if pa.types.is_float32(column.type):
        return pc.any(pc.is_inf(column)).as_py() is True
    if pa.types.is_struct(column.type):
        return any(_overflows(child) for child in column.flatten())
    return pa.types.is_list(column.type) and _overflows(column.flatten())


def _as_json_has_it(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _json_type(field.type))


def _json_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to read: text for dates and times, which Arrow converts more strictly once they are a column."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([_as_json_has_it(field) for field in fields_inside(kind)])
    if pa.types.is_list(kind):
        return pa.list_(_json_type(kind.value_type))
    return kind
