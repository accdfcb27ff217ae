"""Columns made of bodies: by JSON, MessagePack, Avro, Protocol Buffers, or a function of the user's.

JSON is decoded a batch at a time. The others go row by row through their own libraries, which `pip install
'polonaise[decoders]'` brings. A body that does not read as the columns' types, or lacks one that is NOT NULL, is
undecodable; a field that is not there is null, and one that no column asks for is passed over.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema

from polonaise.errors import BadOption, BodyUndecodable, ExtraMissing
from polonaise.spark.options import ReadOptions
from polonaise.spark.schemas import CORRUPT, Projection

DecodeRow: TypeAlias = Callable[[bytes], Mapping[str, Any]]
"""Makes the values of one transaction's columns of its body; raises whatever it likes for a body that it can't read."""


class Decoder:
    """Decodes the columns that one query wants of those that its decoder adds.

    Raises `BadOption` and `ExtraMissing` for what can't be decoded whatever the bodies are.
    """

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        self._name = options.decoder or ""
        self._fails = options.fail_on_decode_error
        self._wants_corrupt = projection.corrupt
        self._schema = to_arrow_schema(projection.decoded, timezone="UTC")
        _check_nulls(self._schema, self._fails)
        self._by_row = [field for field in self._schema if self._name != "json" or _holds(field.type, pa.types.is_map)]
        """Columns that are made row by row: of JSON those that Arrow's reader does not make."""
        self._row = row_decoder(options) if self._by_row else None
        if self._name == "json":
            _check_maps(self._by_row)

    def decoded(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns, each as long as the batch. Raises `BodyUndecodable`, or tells such bodies in `_corrupt`."""
        bodies = batch.column("data")
        bad: dict[int, Exception] = {}
        parts = self._parts(bodies, 0, bad)
        if bad and self._fails:
            row, why = next(iter(bad.items()))
            transaction, partition = batch.column("transaction_id")[row], batch.column("partition")[row]
            wanted = ", ".join(f"{field.name} {field.type}" for field in self._schema)
            raise BodyUndecodable(
                f"transaction {transaction} of partition {partition} does not decode by {self._name!r} to "
                f"{wanted}: {_in_one_line(why)}; with failOnDecodeError=false such bodies "
                f"go to the column {CORRUPT}"
            )
        whole = pa.Table.from_batches(parts, self._schema).combine_chunks()
        columns = {name: whole.column(name).combine_chunks() for name in self._schema.names}
        if self._wants_corrupt:
            columns[CORRUPT] = _only(bodies, bad)
        return columns

    def _parts(self, bodies: pa.Array, first: int, bad: dict[int, Exception]) -> list[pa.RecordBatch]:
        """The rows of these bodies; a part that does not decode is halved until it is known which body it is."""
        if not len(bodies) or (bad and self._fails):
            return []
        try:
            return [self._decode(bodies)]
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises: these bytes can't be read
            if len(bodies) == 1:
                bad[first] = error
                return [self._nothing(1)]
        middle = len(bodies) // 2
        return self._parts(bodies[:middle], first, bad) + self._parts(bodies[middle:], first + middle, bad)

    def _decode(self, bodies: pa.Array) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        if self._name == "json":
            columns |= _decode_json(bodies, [field for field in self._schema if field not in self._by_row])
        if self._row is not None:
            columns |= _decode_rows(self._row, bodies, pa.schema(self._by_row))
        found = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        for name, column in zip(self._schema.names, found.columns, strict=True):
            if column.null_count and not self._schema.field(name).nullable:
                raise ValueError(f"{name} is NOT NULL, and is not there")
        return found

    def _nothing(self, rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in self._schema], schema=self._schema)


def _check_maps(fields: Sequence[pa.Field]) -> None:
    """JSON has no times and dates, and inside of maps nobody reads texts as such."""
    for field in fields:
        for what in (pa.types.is_temporal, pa.types.is_decimal, pa.types.is_binary):
            if _holds(field.type, what):
                raise BadOption(f"decoderSchema: {field.name} is a map with {field.type} inside: read it as a string")


def _decode_rows(decode: DecodeRow, bodies: pa.Array, schema: pa.Schema) -> dict[str, pa.Array]:
    rows = [decode(body) for body in bodies.to_pylist()]
    if not all(isinstance(row, Mapping) for row in rows):
        raise ValueError("a body that is no object with named fields")
    _check_whole(rows, schema)
    made = pa.RecordBatch.from_pylist(rows, schema=schema)
    return {name: made.column(name) for name in schema.names}


def _check_whole(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Arrow takes the whole part of a number for a column of integers, which nobody has asked for."""
    for field in schema:
        if _holds(field.type, pa.types.is_integer) and not all(
            _is_whole(field.type, row.get(field.name)) for row in rows
        ):
            raise ValueError(f"{field.name} holds a number that is not whole")


def _is_whole(kind: pa.DataType, value: Any) -> bool:
    if pa.types.is_integer(kind):
        return not isinstance(value, float | Decimal)
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return all(_is_whole(field.type, value.get(field.name)) for field in _inside(kind))
    if pa.types.is_map(kind) and value is not None:
        pairs = value.items() if isinstance(value, Mapping) else value
        return all(_is_whole(kind.item_type, each) for _, each in pairs)
    if pa.types.is_list(kind) and value is not None:
        return all(_is_whole(kind.value_type, each) for each in value)
    return True


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _check_nulls(schema: pa.Schema, fails: bool) -> None:
    """NOT NULL is a promise that bodies must keep: refused where it can't be checked, or can't hold."""
    for field in schema:
        if not field.nullable and not fails:
            raise BadOption(
                f"decoderSchema: {field.name} is NOT NULL, and null for a body that does not decode with "
                "failOnDecodeError=false: leave out one of them"
            )
        if _requires_inside(field.type):
            raise BadOption(f"decoderSchema: NOT NULL inside {field.name} is not checked: say it of whole columns only")


def _inside(kind: pa.DataType) -> list[pa.Field]:
    """The fields that a type consists of, without a map's key, which is never null."""
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.field(place) for place in range(kind.num_fields)]


def _requires_inside(kind: pa.DataType) -> bool:
    return any(not field.nullable or _requires_inside(field.type) for field in _inside(kind))


def _holds(kind: pa.DataType, what: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is, or has inside, one of which this is true."""
    return what(kind) or any(_holds(field.type, what) for field in _inside(kind))


def _only(bodies: pa.Array, rows: Collection[int]) -> pa.Array:
    """These bodies, and null for the others."""
    held: list[bytes | None] = [None] * len(bodies)
    for row in rows:
        held[row] = bodies[row].as_py()
    return pa.array(held, pa.binary())


# ------------------------------------------------------------------ JSON, a batch at a time

_ANOTHER: Final = re.compile(rb"}\s*,")
"""An object with something behind it; only then it has to be made sure that this is a part of the body's own object."""


def _decode_json(bodies: pa.Array, fields: Sequence[pa.Field]) -> dict[str, pa.Array]:
    """Raises for a batch of which one body is not one JSON object whose fields read as these types.

    Each body becomes the field of an object of its own: so two bodies can't be read as one object, and one that holds
    two is told by the number of rows.
    """
    listed = bodies.to_pylist()
    if any(body.lstrip()[:1] != b"{" for body in listed):
        raise ValueError("a body that is no JSON object")
    joined = b'{"":' + b'}\n{"":'.join(listed) + b"}"
    str(joined, "utf-8")
    if _ANOTHER.search(joined):
        for body in listed:
            if _ANOTHER.search(body):
                json.loads(body)
    parse = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema([("", pa.struct([_as_json_has_it(field) for field in fields]))]),
        unexpected_field_behavior="ignore",
    )
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(joined) + 1)
    found = pyarrow.json.read_json(io.BytesIO(joined), read_options=read, parse_options=parse)
    if found.num_rows != len(listed):
        raise ValueError("a body that holds more than one object")
    whole = found.column(0).combine_chunks()
    return {field.name: whole.field(place).cast(field.type) for place, field in enumerate(fields)}


def _as_json_has_it(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _json_type(field.type))


def _json_type(kind: pa.DataType) -> pa.DataType:
    """Arrow reads dates as numbers only, and people write them as texts: as times they are read."""
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_struct(kind):
        return pa.struct([_as_json_has_it(field) for field in _inside(kind)])
    if pa.types.is_list(kind):
        return pa.list_(_json_type(kind.value_type))
    return kind


# ------------------------------------------------------------------ row by row


def row_decoder(options: ReadOptions) -> DecodeRow:
    """The function that decodes one body. Raises `BadOption`, `ExtraMissing`: call it before a job starts, too."""
    name, said = options.decoder or "", options.decoder_options
    known = {"json": _json_rows, "msgpack": _msgpack_rows, "avro": _avro_rows, "protobuf": _protobuf_rows}
    if name in known:
        return known[name](said)
    usage = f"write {', '.join(known)} or module:function"
    found = _imported("decoder", name, usage)
    if not callable(found):
        raise BadOption(f"decoder={name!r} is no function: {usage}")
    decode: DecodeRow = found
    return decode


def _json_rows(_: Mapping[str, str]) -> DecodeRow:
    """For columns that Arrow's reader of JSON does not make: maps."""
    return json.loads


def _msgpack_rows(_: Mapping[str, str]) -> DecodeRow:
    msgpack = _library("msgpack")
    return lambda body: msgpack.unpackb(body, timestamp=3)


def _avro_rows(said: Mapping[str, str]) -> DecodeRow:
    """`decoder.schema` is the writers' Avro schema as JSON, `decoder.schemafile` a file that holds it."""
    fastavro = _library("fastavro")
    try:
        written = json.loads(said.get("schema") or Path(said["schemafile"]).read_text())
        parsed = fastavro.parse_schema(written)
    except KeyError:
        raise BadOption("decoder=avro of which schema? Say decoder.schema (JSON) or decoder.schemaFile") from None
    except (OSError, ValueError, fastavro.schema.SchemaParseException) as error:
        raise BadOption(f"the Avro schema does not read: {error}") from error

    def decode(body: bytes) -> Mapping[str, Any]:
        source = io.BytesIO(body)
        found = fastavro.schemaless_reader(source, parsed)
        if source.read(1):
            raise ValueError("bytes behind the record")
        return found  # type: ignore[no-any-return]

    return decode


def _protobuf_rows(said: Mapping[str, str]) -> DecodeRow:
    """`decoder.message` is the message's class, `module:Name`, as `protoc` has made it."""
    _library("google.protobuf")
    if "message" not in said:
        raise BadOption("decoder=protobuf of which message? Say decoder.message, module:Name of the class protoc made")
    message = _imported("decoder.message", said["message"], "write module:Name")
    if not hasattr(message, "FromString"):
        raise BadOption(f"decoder.message={said['message']!r} is no Protocol Buffers message")

    def decode(body: bytes) -> Mapping[str, Any]:
        found = message.FromString(body)
        return _fields(found)

    return decode


def _fields(message: Any) -> dict[str, Any]:
    """A message as a mapping. A field that was not set and can tell so is null, not its default."""
    return {
        field.name: None
        if field.has_presence and not message.HasField(field.name)
        else _plain(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _plain(field: Any, value: Any) -> Any:
    """A field's value as Arrow takes it: messages as mappings, repeated fields as lists, maps as pairs."""
    if field.message_type is None:
        return value if isinstance(value, int | float | str | bytes | bool) else list(value)
    if field.message_type.GetOptions().map_entry:
        held = field.message_type.fields_by_name["value"]
        return [(key, _plain(held, each)) for key, each in value.items()]
    return _fields(value) if hasattr(value, "DESCRIPTOR") else [_fields(item) for item in value]


def _imported(option: str, path: str, usage: str) -> Any:
    module, colon, name = path.partition(":")
    if not colon:
        module, _, name = path.rpartition(".")
    if not module or not name:
        raise BadOption(f"{option}={path!r} is not known: {usage}")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadOption(f"{option}={path!r} can't be imported here: {error}; {usage}") from error
    return found


_BROUGHT: Final = "pip install 'polonaise[decoders]'"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExtraMissing(f"this decoder needs {name}: {_BROUGHT}") from error
