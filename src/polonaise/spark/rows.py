"""Check the Arrow batches of a DataFrame, and divide their rows among the log's partitions.

A row's partition is a function of the row and the number of partitions, never of its position or its task: a batch that
is written again may be divided into tasks in another way, and each partition must still get the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from polonaise.checksum import crc32
from polonaise.client.protocol.draft import HEADER_MAX, HEADER_MIN, Limits
from polonaise.client.protocol.locks import Lock
from polonaise.errors import BodyTooLarge, TooManyLocks, UnknownPartition, fault
from polonaise.fragments.arrow import bytes_of
from polonaise.terms import LockMode, PartitionId

Array = np.ndarray[Any, Any]

_INTEGERS: Final = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_BYTES: Final = (types.BinaryType, types.StringType)
_COLUMNS: Final = ("data", "header", "partition", "locks")


class SinkColumns(NamedTuple):
    """The optional columns that a DataFrame has. `data` is always there."""

    header: bool = False
    partition: bool = False
    locks: bool = False
    partition_by: str | None = None
    """Column whose hash decides the partition; None: `partition` decides, or else the hash of `data`."""
    names: tuple[str, ...] = ()
    """What the DataFrame's columns are called here, in their order; empty if they are called so there, too."""
    lock_names: tuple[str, str] = ("name", "id")
    """The names of the two fields of each of its locks."""


class RowColumns(NamedTuple):
    """Rows of one partition, as columns."""

    headers: Array
    crcs: Array
    """CRC-32 of each row's data."""
    lengths: Array
    """Bytes of each row's data."""
    data: memoryview
    """The data of all rows, one after the other."""
    locks: Sequence[bytes] | None
    """The encoded locks of each row; None if the DataFrame has no such column."""

    @property
    def weights(self) -> Array:
        """Bytes of each row that count towards a group's size."""
        if self.locks is None:
            return self.lengths
        return self.lengths + np.fromiter(map(len, self.locks), np.int64, len(self.locks))


class RowDigest(NamedTuple):
    """The digest of rows in any order: their number, and the sum of a hash of each."""

    rows: int = 0
    sum: int = 0

    def with_rows(self, rows: RowColumns) -> RowDigest:
        hashes = rows.crcs.astype(np.uint64) | (rows.lengths.astype(np.uint64) << np.uint64(32))
        hashes ^= rows.headers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift in (np.uint64(30), np.uint64(27)):
            hashes = (hashes ^ (hashes >> shift)) * np.uint64(0xBF58476D1CE4E5B9)
        return self.and_then(RowDigest(len(hashes), int(hashes.sum(dtype=np.uint64))))

    def and_then(self, more: RowDigest) -> RowDigest:
        return RowDigest(self.rows + more.rows, (self.sum + more.sum) % 2**64)

    def __str__(self) -> str:
        return f"{self.rows}-{self.sum:016x}"


NO_ROWS: Final = RowDigest()


def sink_columns(schema: types.StructType, partition_by: str | None) -> SinkColumns:
    """Return which columns a DataFrame has. Raises `bad_columns`, before any job starts. As in Spark, names that differ
    in case only are one. A DataFrame that has both was made with `spark.sql.caseSensitive`: then each name is taken as
    it is."""
    known = _COLUMNS if partition_by is None else (*_COLUMNS, partition_by)
    names = _resolved([field.name for field in schema.fields], known)
    column_types = {name: field.dataType for name, field in zip(names, schema.fields, strict=True)}
    if len(column_types) != len(schema.fields):
        raise fault("bad_columns", f"a column appears twice: {', '.join(field.name for field in schema.fields)}")
    if "data" not in column_types:
        raise fault(
            "bad_columns",
            f"no column data (there are {', '.join(column_types) or 'none'}): name the bodies data, as binary or "
            "string",
        )
    for name, kind in column_types.items():
        if name == partition_by and name not in _COLUMNS:
            _check(name, kind, (*_BYTES, *_INTEGERS), "binary, string or an integer: cast it")
        elif name not in _COLUMNS:
            close = get_close_matches(name.lower(), _COLUMNS, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_COLUMNS)}; select only those"
            raise fault("bad_columns", f"a log has no column {name!r}: {hint}")
    _check("data", column_types["data"], _BYTES, "binary or string: encode the row, for example with to_json")
    for name in ("header", "partition"):
        if name in column_types:
            _check(name, column_types[name], _INTEGERS, "an integer: cast it")
    if "locks" in column_types and not _are_locks(column_types["locks"]):
        raise fault(
            "bad_columns",
            f"locks is {column_types['locks'].simpleString()}: it has to be array<struct<name:string,id:bigint>>, or "
            "with the id as string, or as binary for UUIDs",
        )
    _check_partition_by(column_types, partition_by)
    return SinkColumns(
        "header" in column_types,
        "partition" in column_types,
        "locks" in column_types,
        partition_by,
        () if names == schema.names else tuple(names),
        _lock_names(column_types["locks"]) if "locks" in column_types else ("name", "id"),
    )


def _resolved(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return each name, or the one of `known` that it is but for its case, unless another column is called so."""
    by_case = {each.lower(): each for each in reversed(known)}
    counts = Counter(name.lower() for name in names)
    return [name if counts[name.lower()] > 1 else by_case.get(name.lower(), name) for name in names]


def _lock_names(kind: Any) -> tuple[str, str]:
    by_case = {name.lower(): name for name in kind.elementType.names}
    return by_case["name"], by_case["id"]


def _check(name: str, kind: types.DataType, wanted: tuple[type[types.DataType], ...], words: str) -> None:
    if not isinstance(kind, wanted):
        raise fault("bad_columns", f"{name} is {kind.simpleString()}: it has to be {words}")


def _check_partition_by(column_types: dict[str, types.DataType], partition_by: str | None) -> None:
    if partition_by is None:
        return
    if partition_by not in column_types:
        raise fault(
            "bad_columns", f"partitionBy={partition_by!r}: there is no such column; there are {', '.join(column_types)}"
        )
    if partition_by == "locks":
        raise fault(
            "bad_columns",
            "partitionBy='locks': each row has a list of locks: name another column, with one value in each row",
        )
    if "partition" in column_types:
        raise fault("bad_columns", "partitionBy and a column partition are both given: keep one of them")


def _are_locks(kind: types.DataType) -> bool:
    if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
        return False
    fields = {field.name.lower(): field.dataType for field in kind.elementType.fields}
    return (
        len(kind.elementType.fields) == 2
        and fields.keys() == {"name", "id"}
        and isinstance(fields["name"], types.StringType)
        and isinstance(fields["id"], (*_INTEGERS, *_BYTES))
    )


def divided(
    batch: pa.RecordBatch, columns: SinkColumns, partition_count: int, limits: Limits
) -> Iterator[tuple[PartitionId, RowColumns]]:
    """Yield each partition that rows of `batch` go to, with these rows in their order. Raises `bad_row`,
    `BodyTooLarge`, `TooManyLocks` or `UnknownPartition` before anything, if a row can't be appended."""
    count = batch.num_rows
    if not count:
        return
    if columns.names:
        batch = batch.rename_columns(list(columns.names))
    data = _binary(batch.column("data"))
    if data.null_count:
        raise fault(
            "bad_row", "a row has no data (null): filter such rows, or write an empty body with coalesce(data, '')"
        )
    raw, offsets = bytes_of(data)
    lengths = np.diff(offsets)
    if lengths.max() > limits.body_bytes_max:
        raise BodyTooLarge(
            f"a row with {lengths.max()} bytes of data; the limit is {limits.body_bytes_max}: store it elsewhere and "
            "append its address"
        )
    crcs = _crcs(raw, offsets)
    headers = _header(batch) if columns.header else np.zeros(count, np.int32)
    locks = _locks(batch.column("locks"), columns.lock_names, limits) if columns.locks else None
    partitions = _partitions(batch, columns, partition_count, crcs)
    # Stable: rows of one partition keep the order that the DataFrame has.
    order = np.argsort(partitions, kind="stable")
    stops = np.flatnonzero(np.diff(partitions[order])) + 1
    for start, stop in pairwise([0, *stops.tolist(), count]):
        indexes = order[start:stop]
        bodies = data if len(indexes) == count else data.take(pa.array(indexes))
        body_raw, body_offsets = bytes_of(bodies)
        yield (
            int(partitions[indexes[0]]),
            RowColumns(
                headers[indexes],
                crcs[indexes],
                lengths[indexes],
                body_raw[body_offsets[0] : body_offsets[-1]],
                None if locks is None else [locks[index] for index in indexes.tolist()],
            ),
        )


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _crcs(raw: memoryview, offsets: Array) -> Array:
    ends = offsets.tolist()
    return np.fromiter((crc32(raw[start:stop]) for start, stop in pairwise(ends)), np.uint32, len(ends) - 1)


def _integers(batch: pa.RecordBatch, name: str, without: str) -> Array:
    column = batch.column(name)
    if column.null_count:
        raise fault("bad_row", f"a row has no {name} (null): {without}")
    values: Array = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values


def _header(batch: pa.RecordBatch) -> Array:
    headers = _integers(batch, "header", "write coalesce(header, 0)")
    out_of_range = headers[(headers < HEADER_MIN) | (headers > HEADER_MAX)]
    if len(out_of_range):
        raise fault(
            "bad_row",
            f"header {out_of_range[0]}: a header is a signed integer of 32 bits; write {HEADER_MIN} to {HEADER_MAX}",
        )
    return headers.astype(np.int32)


def _partitions(batch: pa.RecordBatch, columns: SinkColumns, partition_count: int, crcs: Array) -> Array:
    if columns.partition:
        partitions = _integers(batch, "partition", "give every row a partition, or leave the column out")
        out_of_range = partitions[(partitions < 0) | (partitions >= partition_count)]
        if len(out_of_range):
            raise UnknownPartition(f"partition {out_of_range[0]}; this log has partitions 0 to {partition_count - 1}")
        return partitions
    # The checksum of `data` is needed anyway, and is a good enough hash: no second pass over the bytes.
    hashes = crcs if columns.partition_by in (None, "data") else _hashes(batch.column(columns.partition_by))
    return hashes.astype(np.int64) % partition_count


def _hashes(column: pa.Array) -> Array:
    """Return the CRC-32 of each value's bytes: an integer's are those of an int64, little-endian. That of null is 0."""
    if pa.types.is_integer(column.type):
        values = column.cast(pa.int64())
        raw = memoryview(pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype("<i8").tobytes())
        hashes = _crcs(raw, np.arange(0, 8 * len(column) + 1, 8))
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
        return hashes
    raw, offsets = bytes_of(pc.fill_null(_binary(column), b""))
    return _crcs(raw, offsets)


def _locks(column: pa.Array, names: tuple[str, str], limits: Limits) -> list[bytes]:
    """Return the encoded locks of each row, of mode APPEND: a sink has read no state that could be stale."""
    return [b"".join(_row_locks(row, names, limits)) for row in column.to_pylist()]


def _row_locks(row: list[dict[str, Any] | None] | None, names: tuple[str, str], limits: Limits) -> Iterator[bytes]:
    if row is not None and len(row) > limits.locks_max:
        raise TooManyLocks(f"a row with {len(row)} locks; the limit is {limits.locks_max}: lock coarser")
    for lock in row or ():
        name, id = (None, None) if lock is None else (lock[each] for each in names)
        if name is None or id is None:
            raise fault("bad_row", "a lock of a row is null, or has no name or id: filter such locks")
        yield Lock(name, _uuid(id) if isinstance(id, bytes) else id, LockMode.APPEND)


def _uuid(id: bytes) -> UUID:
    if len(id) != 16:
        raise fault(
            "bad_row",
            f"a lock of a row has an id of {len(id)} bytes: as binary it is a UUID of 16; write others as text",
        )
    return UUID(bytes=id)
