"""Columns made of bodies: by JSON, MessagePack, Avro, Protocol Buffers, or a function of the user's.

JSON is decoded a batch at a time. The others go row by row through their own libraries, which `pip install
'polonaise[decoders]'` brings. A body that does not read as the columns' types is undecodable, whichever it is.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Mapping
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
    """Decodes the columns that one query wants of those that its decoder adds."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        self._name = options.decoder or ""
        self._fails = options.fail_on_decode_error
        self._wants_corrupt = projection.corrupt
        self._schema = to_arrow_schema(projection.decoded, timezone="UTC")
        self._row = None if self._name == "json" else row_decoder(options)

    def decoded(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns, each as long as the batch. Raises `BodyUndecodable`, or tells such bodies in `_corrupt`."""
        bodies = batch.column("data")
        bad: list[int] = []
        parts = self._parts(bodies, 0, bad)
        if bad and self._fails:
            raise BodyUndecodable(
                f"{self._named(batch, bad[0])} does not decode as {self._name} to {self._schema.to_string()}: with "
                f"failOnDecodeError=false such bodies go to the column {CORRUPT} ({len(bad)} of {len(bodies)} here)"
            )
        (whole,) = pa.Table.from_batches(parts, self._schema).combine_chunks().to_batches() or [self._nothing(0)]
        columns = {name: whole.column(name) for name in self._schema.names}
        if self._wants_corrupt:
            columns[CORRUPT] = _only(bodies, bad)
        return columns

    def _named(self, batch: pa.RecordBatch, row: int) -> str:
        names = batch.schema.names
        places = [
            f"{name} {batch.column(name)[row].as_py()}" for name in ("partition", "transaction_id") if name in names
        ]
        return " ".join(places) or f"a body that begins with {batch.column('data')[row].as_py()[:40]!r}"

    def _parts(self, bodies: pa.Array, first: int, bad: list[int]) -> list[pa.RecordBatch]:
        """The rows of these bodies; a part that does not decode is halved until it is known which body it is."""
        if not len(bodies):
            return []
        try:
            return [self._decode(bodies)]
        except Exception:  # noqa: BLE001 - whatever a decoder raises: these bytes can't be read
            if len(bodies) == 1:
                bad.append(first)
                return [self._nothing(1)]
        middle = len(bodies) // 2
        return self._parts(bodies[:middle], first, bad) + self._parts(bodies[middle:], first + middle, bad)

    def _decode(self, bodies: pa.Array) -> pa.RecordBatch:
        if self._row is None:
            return _decode_json(bodies, self._schema)
        return pa.RecordBatch.from_pylist([dict(self._row(body)) for body in bodies.to_pylist()], schema=self._schema)

    def _nothing(self, rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in self._schema], schema=self._schema)


def _only(bodies: pa.Array, rows: list[int]) -> pa.Array:
    """These bodies, and null for the others."""
    held: list[bytes | None] = [None] * len(bodies)
    for row in rows:
        held[row] = bodies[row].as_py()
    return pa.array(held, pa.binary())


def _decode_json(bodies: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """Raises for a batch of which one body is not one JSON object whose fields read as these types."""
    listed = bodies.to_pylist()
    joined = b"\n".join(listed)
    several_lines = joined.count(b"\n") != len(listed) - 1
    if several_lines and len(listed) > 1:
        raise ValueError("bodies of several lines are decoded one by one")
    if any(not body or body.isspace() for body in listed):
        raise ValueError("an empty body is no JSON object")
    parse = pyarrow.json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=several_lines
    )
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=len(joined) + 1)
    found = pyarrow.json.read_json(io.BytesIO(joined), read_options=read, parse_options=parse)
    if found.num_rows != len(listed):
        raise ValueError("a body holds another number of objects than one")
    (batch,) = found.select(schema.names).cast(schema).combine_chunks().to_batches()
    return batch


# ------------------------------------------------------------------ row by row


def row_decoder(options: ReadOptions) -> DecodeRow:
    """The function that decodes one body. Raises `BadOption`, `ExtraMissing`: call it before a job starts, too."""
    name, said = options.decoder or "", options.decoder_options
    known = {"json": _json_rows, "msgpack": _msgpack_rows, "avro": _avro_rows, "protobuf": _protobuf_rows}
    if name in known:
        return known[name](said)
    found = _imported("decoder", name)
    if not callable(found):
        raise BadOption(f"decoder={name!r} is no function: write json, msgpack, avro, protobuf or module:function")
    decode: DecodeRow = found
    return decode


def _json_rows(_: Mapping[str, str]) -> DecodeRow:
    return json.loads


def _msgpack_rows(_: Mapping[str, str]) -> DecodeRow:
    msgpack = _library("msgpack")
    return lambda body: msgpack.unpackb(body)


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
    message = _imported("decoder.message", said["message"])
    if not hasattr(message, "FromString"):
        raise BadOption(f"decoder.message={said['message']!r} is no Protocol Buffers message")

    def decode(body: bytes) -> Mapping[str, Any]:
        found = message.FromString(body)
        return {field.name: _plain(field, getattr(found, field.name)) for field in found.DESCRIPTOR.fields}

    return decode


def _plain(field: Any, value: Any) -> Any:
    """A message's field as Arrow takes it: messages as mappings, repeated ones as lists."""
    if field.message_type is None:
        return value if isinstance(value, int | float | str | bytes | bool) else list(value)
    if field.message_type.GetOptions().map_entry:
        return list(value.items())
    if hasattr(value, "DESCRIPTOR"):
        return {each.name: _plain(each, getattr(value, each.name)) for each in value.DESCRIPTOR.fields}
    return [{each.name: _plain(each, getattr(item, each.name)) for each in item.DESCRIPTOR.fields} for item in value]


def _imported(option: str, path: str) -> Any:
    module, colon, name = path.partition(":")
    if not colon:
        module, _, name = path.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadOption(f"{option}={path!r} can't be imported here: {error}; write module:name") from error
    return found


_BROUGHT: Final = "pip install 'polonaise[decoders]'"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExtraMissing(f"this decoder needs {name}: {_BROUGHT}") from error
