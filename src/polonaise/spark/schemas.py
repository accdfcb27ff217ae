"""The columns of a query, and how each is made of the log's columns; only those that a query names are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from polonaise.errors import BadOption
from polonaise.spark.options import STORAGE, OnUndecodable, ReadOptions
from polonaise.spark.rowvalues import check_types

CORRUPT: Final = "_corrupt"
"""Column of the bodies that the decoder could not read, with `onUndecodable=column`."""
REASON: Final = "_reason"
"""Column of the reason why a body could not be decoded, with `onUndecodable=column` or `only`."""
DECODED: Final = "_decoded"
"""Column that says what bodies have to decode to, with `onUndecodable=only`: a struct of the decoder's columns, null in
every row, which carries their types, as only Spark can parse them."""


class Column(NamedTuple):
    """A column of the source: its type in DDL, the log's columns that it is made of, and the function that makes it."""

    ddl: str
    needs: tuple[str, ...]
    """Names of columns of `fragments.arrow.SCHEMA`, or `STANDING`."""
    make: Callable[..., pa.Array]
    """Makes this column of those that `needs` names, given in that order."""


def _as_it_is(column: pa.Array) -> pa.Array:
    return column


def _request(client_id: pa.Array, generation: pa.Array, sequence: pa.Array) -> pa.Array:
    columns = {"client_id": client_id, "generation": generation, "sequence": sequence}
    return pa.RecordBatch.from_pydict(columns).to_struct_array()


def _nothing(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda column: pa.nulls(len(column), kind)


def _log_append_time(column: pa.Array) -> pa.Array:
    """Return a column of 1 in every row: Kafka's code for a timestamp that the log has given and not the producer."""
    return pa.repeat(pa.scalar(1, pa.int32()), len(column))


COLUMNS: Final[Mapping[str, Column]] = {
    "partition": Column("int", ("partition",), _as_it_is),
    "transaction_id": Column("bigint", ("transaction_id",), _as_it_is),
    "timestamp": Column("timestamp", ("timestamp",), _as_it_is),
    "header": Column("int", ("header",), _as_it_is),
    "data": Column("binary", ("data",), _as_it_is),
    "request": Column(
        "struct<client_id:int,generation:int,sequence:bigint>", ("client_id", "generation", "sequence"), _request
    ),
}
"""The columns of the source, as `docs/spark.md` lists them."""

KAFKA_COLUMNS: Final[Mapping[str, Column]] = {
    "key": Column("binary", ("partition",), _nothing(pa.binary())),
    "value": Column("binary", ("data",), _as_it_is),
    "topic": Column("string", ("partition",), _nothing(pa.string())),
    "partition": Column("int", ("partition",), _as_it_is),
    "offset": Column("bigint", ("transaction_id",), _as_it_is),
    "timestamp": Column("timestamp", ("timestamp",), _as_it_is),
    "timestampType": Column("int", ("partition",), _log_append_time),
}
"""The columns of Spark's Kafka source. `key` and `topic` are null: the query's address says whose the rows are."""

STANDING: Final = "standing"
"""Column of a row's standing, in the words of `storage.protocol.standing`, when one replica is read."""


def columns_of(options: ReadOptions) -> Mapping[str, Column]:
    """Return the columns that the log itself has for a query with these options, without a decoder's."""
    columns = KAFKA_COLUMNS if options.kafka_columns else COLUMNS
    if not options.cluster.startswith(STORAGE):
        return columns
    return {**columns, STANDING: Column("string", (STANDING,), _as_it_is)}


def ddl_of(options: ReadOptions) -> str:
    """Return all columns of a query as DDL. Raises `BadOption` for a decoder without `decoderSchema`."""
    fields = [f"`{name}` {column.ddl}" for name, column in columns_of(options).items()]
    if options.decoder is not None:
        if options.decoder_schema is None:
            raise BadOption(
                f"decoder={options.decoder!r} without decoderSchema: name its columns, such as 'id long, name string'"
            )
        if options.on_undecodable is OnUndecodable.ONLY:
            fields += [f"`{REASON}` string", f"`{DECODED}` struct<{options.decoder_schema}>"]
        else:
            fields.append(options.decoder_schema)
        if options.on_undecodable is OnUndecodable.COLUMN:
            fields += [f"`{CORRUPT}` binary", f"`{REASON}` string"]
    return ", ".join(fields)


_EXTRA: Final[Mapping[OnUndecodable, tuple[str, ...]]] = {
    OnUndecodable.COLUMN: (CORRUPT, REASON),
    OnUndecodable.ONLY: (REASON, DECODED),
}


class Projection:
    """The columns that one query wants, in its order, from the log and from the decoder. Raises `BadOption` for a
    column that does not exist, is asked for under another type, is there twice, or that the decoder can't make; for no
    columns, and with `onUndecodable=only` for a schema without `_decoded`."""

    def __init__(self, options: ReadOptions, wanted: StructType) -> None:
        known = columns_of(options)
        _check_names(wanted.names, known)
        self._columns = known
        self._from_log = [name for name in wanted.names if name in known]
        extra = _EXTRA.get(options.on_undecodable, ())
        self.extra = frozenset(name for name in wanted.names if name in extra)
        """Names of the wanted columns that only `onUndecodable` brings: among `CORRUPT`, `REASON` and `DECODED`."""
        self.decoded = StructType([field for field in wanted.fields if field.name not in {*known, *extra}])
        if DECODED in self.extra:
            self.decoded = _struct(wanted[DECODED].dataType)
            """The columns that bodies have to decode to."""
        elif options.on_undecodable is OnUndecodable.ONLY:
            raise BadOption(
                f"onUndecodable=only without the column {DECODED}, which says what bodies have to decode to: name it, "
                "or leave the schema out"
            )
        self.decodes = bool(self.decoded.fields or self.extra)
        if options.decoder is None and self.decodes:
            name = next(name for name in wanted.names if name not in known)
            raise BadOption(f"there is no column {name!r}: there are {', '.join(known)}; a decoder can add others")
        only = options.on_undecodable is OnUndecodable.ONLY
        for name in wanted.names:
            if name not in known and name not in extra and (only or name == CORRUPT):
                instead = "onUndecodable=column" if name == CORRUPT else f"it into {DECODED}"
                mode = options.on_undecodable.value
                raise BadOption(f"onUndecodable={mode} has no column {name}: leave it out, or write {instead}")
        for name in self._from_log:
            _check_type(name, known[name], wanted[name].dataType)
        if options.decoder is not None:
            check_types(options.decoder, self.decoded)
        self.schema = to_arrow_schema(wanted, timezone="UTC")

    @property
    def needs(self) -> tuple[str, ...]:
        """The log's columns that have to be read, and `STANDING` if that is wanted."""
        needed = {each: None for name in self._from_log for each in self._columns[name].needs}
        if self.decodes:
            # An undecodable body is reported by its partition and id.
            needed |= dict.fromkeys(("data", "partition", "transaction_id"))
        # At least one column, so that the batches say how many rows there are.
        return tuple(needed) or ("partition",)

    def batch(self, columns: pa.RecordBatch, decoded: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Make the query's columns from a batch of the log's columns and the decoded ones."""
        arrays: list[pa.Array] = []
        for name in self.schema.names:
            column = self._columns.get(name)
            made = decoded[name] if column is None else column.make(*(columns.column(each) for each in column.needs))
            arrays.append(made)
        return pa.RecordBatch.from_arrays(
            [_typed(array, field) for array, field in zip(arrays, self.schema, strict=True)], schema=self.schema
        )


def _struct(kind: DataType) -> StructType:
    if not isinstance(kind, StructType):
        raise BadOption(f"the column {DECODED} is a struct of the decoder's columns, and not {kind.simpleString()}")
    return kind


def _check_names(names: Sequence[str], known: Mapping[str, Column]) -> None:
    """Raise `BadOption` for no names, a repeated name, or one of the log's own in another case."""
    if not names:
        raise BadOption("a query of no columns: name at least one column, or leave the schema out")
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise BadOption(f"the column {name} appears twice: the log's own are {', '.join(known)}; rename the other")
        if name not in known and name.lower() in {each.lower() for each in known}:
            raise BadOption(f"there is no column {name}: write {next(k for k in known if k.lower() == name.lower())}")
        seen.add(name.lower())


def _typed(array: pa.Array, field: pa.Field) -> pa.Array:
    return array if array.type.equals(field.type) else array.cast(field.type)


def _check_type(name: str, column: Column, wanted: DataType) -> None:
    if wanted.simpleString() != column.ddl:
        raise BadOption(f"the column {name} is {column.ddl}, and the schema has it as {wanted.simpleString()}")
