"""Make columns of bodies: by JSON, MessagePack, Avro, Protocol Buffers, or a function of the user's.

JSON is decoded a batch at a time, except for columns with maps; these, and the other formats, row by row. `pip install
'polonaise[decoders]'` brings the formats' libraries. A body is undecodable if it does not read as the columns' types,
or lacks a column that is NOT NULL. A field that is missing is null, and one that no column asks for is ignored.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from polonaise.errors import BadOption, ExtraMissing, fault
from polonaise.redaction import redacted_text
from polonaise.spark.jsonbodies import JsonBodies, check_body, decode_object
from polonaise.spark.options import OnUndecodable, ReadOptions
from polonaise.spark.rowvalues import check_json_maps, check_nulls, check_rows, holds, object_of
from polonaise.spark.schemas import CORRUPT, DECODED, REASON, Projection

DecodeRow: TypeAlias = Callable[[bytes], Mapping[str, Any]]
"""Makes a mapping of column names to values from one body. May raise anything for a body that it can't read."""


class _Bodies(NamedTuple):
    indexes: Sequence[int]
    """In the batch, ascending."""
    bodies: Sequence[bytes]
    rows: Sequence[Mapping[str, Any]]
    """What the row decoder made of each body; empty without one."""

    def cut(self, begin: int, end: int) -> _Bodies:
        return _Bodies(self.indexes[begin:end], self.bodies[begin:end], self.rows[begin:end])


class Decoded(NamedTuple):
    """The rows of a batch that the query is to have, and the columns that were made of their bodies."""

    batch: pa.RecordBatch
    columns: Mapping[str, pa.Array]


_Part: TypeAlias = tuple[Sequence[int], pa.RecordBatch]
"""Indexes of bodies in their batch, and the columns that were made of them."""

_log = logging.getLogger("polonaise.spark")

_FEW: Final = 8
"""Number of bodies, one of them undecodable, up to which they are decoded one by one: halving further costs more."""


class Decoder:
    """Decodes bodies to those of the decoder's columns that one query wants. Raises `BadOption` for options or columns
    with which bodies can't be decoded as asked, and `ExtraMissing` if the decoder's library is not installed."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        self._name = options.decoder or ""
        self._on_undecodable = options.on_undecodable
        self._fails = options.on_undecodable is OnUndecodable.FAIL
        self._extra = projection.extra
        self._schema = to_arrow_schema(projection.decoded, timezone="UTC")
        check_nulls(self._schema, can_hold=self._on_undecodable is not OnUndecodable.COLUMN)
        is_json = self._name == "json"
        self._by_row = pa.schema([field for field in self._schema if not is_json or holds(field.type, pa.types.is_map)])
        """The columns that are made row by row; for JSON, those that Arrow's reader can't make."""
        self._row = None if is_json and not self._by_row.names else row_decoder(options)
        self._json = JsonBodies([field for field in self._schema if field not in self._by_row]) if is_json else None
        if is_json:
            check_json_maps(self._by_row)

    def decoded(self, batch: pa.RecordBatch) -> Decoded:
        """Decode a batch's bodies. Raises `body_undecodable` for the first bad one, with `onUndecodable=fail`."""
        bodies = batch.column("data").to_pylist()
        bad: dict[int, str] = {}
        parts = self._parts(self._read(bodies, bad), bad)
        if bad and self._fails:
            self._raise(batch, min(bad), bad[min(bad)])
        if self._on_undecodable is OnUndecodable.ONLY:
            return self._only(batch, bad)
        table = pa.Table.from_batches([part for _, part in parts], self._schema).combine_chunks()
        good = [index for part, _ in parts for index in part] if bad else range(len(bodies))
        if bad and self._on_undecodable is OnUndecodable.SKIP:
            _tell_left_out(batch, bad)
            batch = batch.take(pa.array(good, pa.int64()))
        elif bad:
            table = table.take(_rows_of(len(bodies), good))
        columns = {name: table.column(name).combine_chunks() for name in self._schema.names}
        if CORRUPT in self._extra:
            columns[CORRUPT] = pa.array([body if at in bad else None for at, body in enumerate(bodies)], pa.binary())
        if REASON in self._extra:
            columns[REASON] = pa.array([bad.get(at) for at in range(len(bodies))], pa.string())
        return Decoded(batch, columns)

    def _only(self, batch: pa.RecordBatch, bad: Mapping[int, str]) -> Decoded:
        bad_indexes = sorted(bad)
        columns = {
            REASON: pa.array([bad[index] for index in bad_indexes], pa.string()),
            DECODED: pa.nulls(len(bad_indexes), pa.struct(list(self._schema))),
        }
        return Decoded(batch.take(pa.array(bad_indexes, pa.int64())), columns)

    def _raise(self, batch: pa.RecordBatch, row: int, why: str) -> NoReturn:
        transaction, partition = batch.column("transaction_id")[row], batch.column("partition")[row]
        wanted = ", ".join(f"{field.name} {field.type}" for field in self._schema)
        raise fault(
            "body_undecodable",
            f"transaction {transaction} of partition {partition} does not decode by {self._name!r} to {wanted}: {why}; "
            "with onUndecodable=skip such bodies are left out, and views keep them in a table of their own with "
            "onUndecodable=table",
        )

    def _read(self, bodies: Sequence[bytes], bad: dict[int, str]) -> _Bodies:
        """Run the row decoder, if any, on each body; return those that it can read, and give `bad` the reasons of the
        others. With `onUndecodable=fail` the first bad one ends the work, here and below."""
        if self._row is None:
            return _Bodies(range(len(bodies)), bodies, ())
        rows: list[Mapping[str, Any]] = []
        for index, body in enumerate(bodies):
            try:
                row = self._row(body)
                if type(row) is not dict and not isinstance(row, Mapping):
                    made = type(row).__name__
                    raise ValueError(f"the decoder made {made} of a body: an object with named fields is needed")
                rows.append(row)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a decoder raises: these bytes can't be read
                bad[index] = _in_one_line(error)
                if self._fails:
                    break
        indexes = [index for index in range(len(rows) + len(bad)) if index not in bad] if bad else range(len(bodies))
        return _Bodies(indexes, [bodies[index] for index in indexes], rows)

    def _parts(self, chosen: _Bodies, bad: dict[int, str]) -> list[_Part]:
        """Decode these bodies. For each undecodable one `bad` gets the reason, by the body's index in the batch."""
        try:
            return [(chosen.indexes, self._decode(chosen))]
        except Exception:  # noqa: BLE001 - one of the bodies is bad, and is looked for below
            return self._halved(self._without_bad_json(chosen, bad), bad)

    def _without_bad_json(self, chosen: _Bodies, bad: dict[int, str]) -> _Bodies:
        """Return the bodies without those that are clearly no JSON: this check is cheaper than halving."""
        if self._json is None:
            return chosen
        kept: list[int] = []
        for at, body in enumerate(chosen.bodies):
            try:
                check_body(body)
                kept.append(at)
            except Exception as error:  # noqa: BLE001 - as in `_part`, where bodies are decoded
                bad[chosen.indexes[at]] = _in_one_line(error)
                if self._fails:
                    break
        rows = [chosen.rows[at] for at in kept] if chosen.rows else ()
        return _Bodies([chosen.indexes[at] for at in kept], [chosen.bodies[at] for at in kept], rows)

    def _halved(self, chosen: _Bodies, bad: dict[int, str]) -> list[_Part]:
        """Divide bodies that do not decode together, until it is known which of them do not decode alone."""
        count = len(chosen.indexes)
        step = 1 if count <= _FEW else (count + 1) // 2
        return [part for begin in range(0, count, step) for part in self._part(chosen.cut(begin, begin + step), bad)]

    def _part(self, chosen: _Bodies, bad: dict[int, str]) -> list[_Part]:
        first = chosen.indexes[0]
        if self._fails and any(index < first for index in bad):
            return []  # the error will name the earlier one, and nothing of this batch is returned
        try:
            return [(chosen.indexes, self._decode(chosen))]
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises: these bytes can't be read
            if len(chosen.indexes) == 1:
                bad[first] = _in_one_line(error)
                return []
        return self._halved(chosen, bad)

    def _decode(self, chosen: _Bodies) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        if self._json is not None:
            columns |= self._json.columns(chosen.bodies)
        if self._row is not None:
            columns |= self._row_columns(chosen.rows)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        for name, column in zip(self._schema.names, batch.columns, strict=True):
            if column.null_count and not self._schema.field(name).nullable:
                raise ValueError(f"{name} is NOT NULL, and is missing")
        return batch

    def _row_columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
        check_rows(rows, self._by_row, infinite=self._json is None)
        batch = pa.RecordBatch.from_pylist(rows, schema=self._by_row)
        return {name: batch.column(name) for name in self._by_row.names}


def _tell_left_out(batch: pa.RecordBatch, bad: Mapping[int, str]) -> None:
    first = min(bad)
    _log.warning(
        "%d of %d bodies of partition %s do not decode and are left out, the first of them transaction %s: %s",
        len(bad), batch.num_rows, batch.column("partition")[first], batch.column("transaction_id")[first], bad[first],
    )  # fmt: skip


def _rows_of(count: int, indexes: Sequence[int]) -> pa.Array:
    """Return for each of `count` rows its index among `indexes`, or null."""
    return pc.index_in(pa.array(range(count), pa.int64()), value_set=pa.array(indexes, pa.int64()))


def _in_one_line(error: BaseException) -> str:
    text = redacted_text(
        " ".join((str(error) if isinstance(error, Exception) else repr(error)).split()), characters_max=200
    )
    # It quotes the body: a table of letters may refuse a NUL in it, and nothing takes half a surrogate.
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return shown or type(error).__name__


# ------------------------------------------------------------------ row by row


def row_decoder(options: ReadOptions) -> DecodeRow:
    """Return the function that decodes one body. Raises `BadOption` for a decoder that is unknown or lacks an option,
    `ExtraMissing` for one whose library is missing."""
    name, decoder_options = options.decoder or "", options.decoder_options
    # JSON is decoded row by row for maps only: Arrow's reader makes all other columns.
    known: dict[str, Callable[[Mapping[str, str]], DecodeRow]] = {
        "json": lambda _: decode_object,
        "msgpack": _msgpack_rows,
        "avro": _avro_rows,
        "protobuf": _protobuf_rows,
    }
    if name in known:
        return known[name](decoder_options)
    usage = f"write {', '.join(known)} or module:function"
    decode: DecodeRow = imported("decoder", name, usage)
    if not callable(decode):
        raise BadOption(f"decoder={name!r} is no function: {usage}")
    return decode


def _msgpack_rows(_: Mapping[str, str]) -> DecodeRow:
    msgpack = _library("msgpack")
    return lambda body: msgpack.unpackb(body, timestamp=3, object_pairs_hook=object_of)


def _avro_rows(options: Mapping[str, str]) -> DecodeRow:
    """Return a decoder by the writers' Avro schema: `decoder.schema` is its JSON, `decoder.schemafile` a file of it."""
    fastavro = _library("fastavro")
    try:
        written = json.loads(options.get("schema") or Path(options["schemafile"]).read_text())
        parsed = fastavro.parse_schema(written)
    except KeyError:
        raise BadOption("decoder=avro without a schema: give decoder.schema (JSON) or decoder.schemaFile") from None
    except (OSError, ValueError, fastavro.schema.SchemaParseException) as error:
        raise BadOption(f"decoder.schema or decoder.schemaFile holds no Avro schema: {error}") from error

    def decode(body: bytes) -> Mapping[str, Any]:
        source = io.BytesIO(body)
        found = fastavro.schemaless_reader(source, parsed)
        if source.read(1):
            raise ValueError("there are bytes after the record")
        return found  # type: ignore[no-any-return]

    return decode


def _protobuf_rows(options: Mapping[str, str]) -> DecodeRow:
    """Return a decoder by `decoder.message`: the message's class, `module:Name`, as `protoc` makes it."""
    _library("google.protobuf")
    if "message" not in options:
        raise BadOption(
            "decoder=protobuf without a message: give decoder.message, module:Name of the class that protoc made"
        )
    message = imported("decoder.message", options["message"], "write module:Name")
    if not hasattr(message, "FromString"):
        raise BadOption(
            f"decoder.message={options['message']!r} is no Protocol Buffers message: write module:Name of a class that "
            "protoc made"
        )
    return lambda body: _fields(message.FromString(body))


def _fields(message: Any) -> dict[str, Any]:
    """Return a message as a mapping. A field with presence that was not set is null, not its default."""
    return {
        field.name: None
        if field.has_presence and not message.HasField(field.name)
        else _plain(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _plain(field: Any, value: Any) -> Any:
    """Return a value as Arrow takes it: messages as mappings, repeated fields as lists, maps as pairs."""
    if field.message_type is None:
        return value if isinstance(value, int | float | str | bytes | bool) else list(value)
    if field.message_type.GetOptions().map_entry:
        value_field = field.message_type.fields_by_name["value"]
        return [(key, _plain(value_field, each)) for key, each in value.items()]
    return _fields(value) if hasattr(value, "DESCRIPTOR") else [_fields(item) for item in value]


def imported(option: str, path: str, usage: str) -> Any:
    """Return what an option names as `module:name` or `module.name`. Raises `BadOption`, which ends with `usage`."""
    module, colon, name = path.partition(":")
    if not colon:
        module, _, name = path.rpartition(".")
    if not module or not name:
        raise BadOption(f"{option}={path!r} is not known: {usage}")
    try:
        imported_object: Any = importlib.import_module(module)
        for part in name.split("."):
            imported_object = getattr(imported_object, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadOption(f"{option}={path!r} can't be imported here: {error}; {usage}") from error
    return imported_object


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExtraMissing(f"this decoder needs {name}: pip install 'polonaise[decoders]'") from error
