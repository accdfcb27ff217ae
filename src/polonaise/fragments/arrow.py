"""Batches as Arrow columns: the schema of a fragment, and the conversion of the columns that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from polonaise.errors import BadOption
from polonaise.log.batch import Batch, EvidenceColumns

LOCK: Final = np.dtype([("hash", "<u8"), ("mode", "u1")])
"""The layout of one lock in the column `locks`: 9 bytes, one lock after the other."""
_BYTES_MAX: Final = 2**31 - 1
"""The most bytes of bodies in one column: its offsets have 32 bits."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of these columns, in this order. Raises `BadOption` unless all are of `SCHEMA`, each once."""
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown or not columns or len(set(columns)) < len(columns):
        mistake = (
            f"unknown column {', '.join(unknown)}" if unknown else f"invalid columns {', '.join(columns) or '(none)'}"
        )
        raise BadOption(f"{mistake}: name some of {', '.join(SCHEMA.names)}, each once")
    return pa.schema([SCHEMA.field(name) for name in columns])


def bytes_of(column: pa.Array) -> tuple[memoryview, Any]:
    """Return the bytes of a binary column, and the offsets at which its values begin and end. Nulls are empty."""
    _, offsets, data = column.buffers()
    return memoryview(b"" if data is None else data), np.frombuffer(offsets, "<i4", len(column) + 1, 4 * column.offset)


def columns_of(batches: Sequence[Batch], columns: Sequence[str]) -> pa.RecordBatch:
    """Return the transactions of these batches, in their order, as these columns of `SCHEMA`. The batches must carry
    data and have been parsed with their CRCs checked. Raises `BadOption` for columns that `schema_of` refuses, and for
    a column `data` of 2 GiB or more: convert fewer batches at a time."""
    schema = schema_of(columns)
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=schema)
    rows = _BatchRows(batches)
    return pa.RecordBatch.from_arrays([_COLUMNS[name].make(rows) for name in columns], schema=schema)


class _BatchRows:
    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.counts = np.array([batch.count for batch in batches])
        self.total = int(self.counts.sum())

    def starts(self) -> Any:
        return np.cumsum(self.counts) - self.counts

    def joined(self, attribute: str, kind: str) -> Any:
        """Return a column that each batch has as bytes, by its name there, as one array of numpy type `kind`."""
        return np.frombuffer(b"".join([getattr(batch, attribute) for batch in self.batches]), kind)


def _binary(ends: Any, data: bytes, valid: Any = None) -> pa.Array:
    """Return a binary column of values that lie one after the other in `data`, up to `ends`; null where not `valid`."""
    offsets = np.zeros(len(ends) + 1, "<i4")
    offsets[1:] = ends
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(ends), [bits, pa.py_buffer(offsets), pa.py_buffer(data)])


def _ids(rows: _BatchRows) -> pa.Array:
    firsts = np.array([batch.first for batch in rows.batches], "<i8")
    return pa.array(np.arange(rows.total, dtype="<i8") + np.repeat(firsts - rows.starts(), rows.counts))


def _data(rows: _BatchRows) -> pa.Array:
    sizes = np.array([batch.data_bytes for batch in rows.batches])
    if int(sizes.sum()) > _BYTES_MAX:
        raise BadOption(f"{sizes.sum()} bytes of bodies do not fit into one column of Arrow: convert fewer batches")
    ends = rows.joined("data_ends", "<u4")
    before = np.repeat(np.cumsum(sizes) - sizes, rows.counts)
    return _binary(ends + before, b"".join([batch.data for batch in rows.batches]))


def _registers(rows: _BatchRows) -> pa.Array:
    """Return the register changes of each batch in its first row, null in the others."""
    sizes = np.array([batch.registers_bytes for batch in rows.batches])
    if not sizes.any():
        return pa.nulls(rows.total, pa.binary())
    first_rows = rows.starts()
    lengths, valid = np.zeros(rows.total, "<i8"), np.zeros(rows.total, bool)
    lengths[first_rows], valid[first_rows] = sizes, sizes > 0
    return _binary(np.cumsum(lengths), b"".join([batch.registers for batch in rows.batches]), valid)


def _judged_by(rows: _BatchRows, kind: pa.DataType, column_of: Callable[[EvidenceColumns], pa.Array]) -> pa.Array:
    """Return a column made of the batches' evidence of serializability; null in the rows of batches without it."""
    evidence = [batch.evidence() for batch in rows.batches]
    if not any(evidence):
        return pa.nulls(rows.total, kind)
    return pa.concat_arrays(
        [
            pa.nulls(batch.count, kind) if columns is None else column_of(columns)
            for batch, columns in zip(rows.batches, evidence, strict=True)
        ]
    )


def _marks_of(evidence: EvidenceColumns) -> pa.Array:
    return pa.array(np.frombuffer(evidence.client_high_water_marks, "<i8"))


def _locks_of(evidence: EvidenceColumns) -> pa.Array:
    locks = np.empty(len(evidence.lock_hashes), LOCK)
    locks["hash"] = np.frombuffer(evidence.lock_hashes, "<u8")
    locks["mode"] = np.frombuffer(evidence.lock_modes, "u1")
    return _binary(np.frombuffer(evidence.lock_ends, "<u4").astype("<i8") * LOCK.itemsize, locks.tobytes())


class _Column(NamedTuple):
    kind: pa.DataType
    make: Callable[[_BatchRows], pa.Array]
    nullable: bool = False


def _of_batches(kind: pa.DataType, attribute: str) -> _Column:
    """Return the column in which an attribute of each batch stands in all of the batch's rows."""

    def make(rows: _BatchRows) -> pa.Array:
        values = np.array([getattr(batch, attribute) for batch in rows.batches], f"<i{kind.bit_width // 8}")
        return pa.array(np.repeat(values, rows.counts)).view(kind)

    return _Column(kind, make)


def _of_rows(kind: pa.DataType, attribute: str, stored: str) -> _Column:
    """Return the column that batches have under this name, with numbers of numpy type `stored`."""
    return _Column(
        kind, lambda rows: pa.array(rows.joined(attribute, stored).astype(f"<i{kind.bit_width // 8}", copy=False))
    )


_COLUMNS: Final = {
    "partition": _of_batches(pa.int32(), "partition"),
    "transaction_id": _Column(pa.int64(), _ids),
    "timestamp": _of_batches(pa.timestamp("us", tz="UTC"), "commit_time_us"),
    "header": _of_rows(pa.int32(), "headers", "<i4"),
    "data": _Column(pa.binary(), _data),
    "crc32": _of_rows(pa.int64(), "data_crcs", "<u4"),
    "client_id": _of_rows(pa.int32(), "client_ids", "<i4"),
    "generation": _of_rows(pa.int32(), "generations", "<i4"),
    "sequence": _of_rows(pa.int64(), "sequences", "<i8"),
    "session_id": _of_batches(pa.int64(), "session"),
    "batch_first": _of_batches(pa.int64(), "first"),
    "batch_generation": _of_batches(pa.int32(), "generation"),
    "batch_crc32": _of_batches(pa.int64(), "crc"),
    "batch_registers": _Column(pa.binary(), _registers, nullable=True),
    "client_high_water_mark": _Column(pa.int64(), lambda rows: _judged_by(rows, pa.int64(), _marks_of), nullable=True),
    "locks": _Column(pa.binary(), lambda rows: _judged_by(rows, pa.binary(), _locks_of), nullable=True),
}
SCHEMA: Final = pa.schema([pa.field(name, each.kind, each.nullable) for name, each in _COLUMNS.items()])
"""The columns of a fragment. `crc32` is of `data`; `timestamp` is the commit time of the batch."""
