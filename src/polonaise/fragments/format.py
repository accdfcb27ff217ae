"""A fragment's bytes: whole batches of one partition as a Parquet file that any reader can read, and back, exactly.

A row is a transaction. Beside what applications want of it there is what makes the batches again, byte for byte: which
batch a row was in and its CRC, the register changes that a batch made (in its first row), and the evidence where the
log keeps it. The footer says whose log it is, which ids, and the CRC of the batch before the first one. Parquet's own
compression makes little of columns that hardly change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from polonaise.errors import BatchDamaged, FragmentDamaged, UnsupportedFormat, WrongClusterKey
from polonaise.log.batch import Batch, Columns, seal
from polonaise.terms import PartitionId, TransactionId

FORMAT: Final = b"1"
GROUP_ROWS: Final = 131_072
GROUP_BYTES: Final = 64 * 1024 * 1024
"""A row group that has grown to this is ended, after a whole batch: it is what readers hold in memory at a time, and
the finest that they can leave out."""

_KEY: Final = b"polonaise."
_NAMES: Final = ("format", "cluster_key", "partition", "first", "last", "previous_crc", "last_crc", "batches")

SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("transaction_id", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("header", pa.int32(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
        pa.field("crc32", pa.int64(), nullable=False),
        pa.field("client_id", pa.int32(), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("session_id", pa.int64(), nullable=False),
        pa.field("batch_first", pa.int64(), nullable=False),
        pa.field("batch_generation", pa.int32(), nullable=False),
        pa.field("batch_crc32", pa.int64(), nullable=False),
        pa.field("batch_registers", pa.binary()),
        pa.field("client_high_water_mark", pa.int64()),
        pa.field("locks", pa.binary()),
    ]
)
"""What a fragment's columns are. `crc32` is of `data`; `timestamp` the commit time of the batch."""

_TRAILER: Final = struct.Struct("<I4s")
_LOCK: Final = np.dtype([("hash", "<u8"), ("mode", "u1")])


class Footer(NamedTuple):
    """What a fragment says of itself."""

    cluster_key: bytes
    partition: PartitionId
    first: TransactionId
    last: TransactionId
    previous_crc: int
    """CRC of the batch before its first one; 0 for none."""
    last_crc: int
    """CRC of its last batch. Each batch carries that of the one before, so this one speaks for all up to it."""
    batches: int

    def encode(self) -> dict[bytes, bytes]:
        values = [FORMAT, self.cluster_key.hex().encode(), *(str(value).encode() for value in self[1:])]
        return {_KEY + name.encode(): value for name, value in zip(_NAMES, values, strict=True)}

    @classmethod
    def decode(cls, metadata: dict[bytes, bytes]) -> Footer:
        """Raises `FragmentDamaged` for a file that is no fragment, `UnsupportedFormat`."""
        try:
            values = [metadata[_KEY + name.encode()] for name in _NAMES]
        except KeyError:
            raise FragmentDamaged("a Parquet file, but no fragment: its footer says nothing of a log") from None
        if values[0] != FORMAT:
            raise UnsupportedFormat(f"fragment format {values[0]!r}; this version reads format {FORMAT.decode()}")
        try:
            return cls(bytes.fromhex(values[1].decode()), *(int(value) for value in values[2:]))
        except ValueError as error:
            raise FragmentDamaged(f"the footer of a fragment does not read: {error}") from None


# ------------------------------------------------------------------ writing


class Writer:
    """Makes one fragment of consecutive batches of one partition: `add` them, then take `finish`."""

    def __init__(self, cluster_key: bytes) -> None:
        self._cluster_key = cluster_key
        self._sink = pa.BufferOutputStream()
        self._parquet: Any = None
        self._pending: list[Batch] = []
        self._pending_rows = self._pending_bytes = 0
        self._first: Batch | None = None
        self._last: Batch | None = None
        self._batches = 0

    def add(self, batch: Batch) -> None:
        """The next batch, which was parsed with its CRC. Raises `BatchDamaged` unless it follows the one before."""
        last = self._last
        if last is not None and (
            batch.first != last.last + 1 or batch.previous_crc != last.crc or batch.partition != last.partition
        ):
            raise BatchDamaged(f"the batch from {batch.first} does not follow {last.last}")
        self._first, self._last = self._first or batch, batch
        self._batches += 1
        self._pending.append(batch)
        self._pending_rows += batch.count
        self._pending_bytes += batch.length
        if self._pending_rows >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._write_pending()

    def finish(self) -> tuple[Footer, pa.Buffer]:
        """The footer and the fragment's bytes. At least one batch must have been added."""
        first, last = self._first, self._last
        if first is None or last is None:
            raise BatchDamaged("a fragment of no batches")
        self._write_pending()
        footer = Footer(
            self._cluster_key, first.partition, first.first, last.last, first.previous_crc, last.crc, self._batches
        )
        self._parquet.add_key_value_metadata(footer.encode())
        self._parquet.close()
        return footer, self._sink.getvalue()

    def _write_pending(self) -> None:
        if not self._pending:
            return
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(
                self._sink, SCHEMA, compression="zstd", write_statistics=True, use_dictionary=_DICTIONARIES
            )
        self._parquet.write_table(table_of(self._pending), row_group_size=self._pending_rows)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


_DICTIONARIES: Final = [
    "partition", "timestamp", "header", "client_id", "generation", "session_id",
    "batch_first", "batch_generation", "batch_crc32",
]  # fmt: skip
"""What hardly changes from row to row."""


def table_of(batches: Sequence[Batch]) -> pa.Table:
    """Consecutive batches of one partition as a table of `SCHEMA`, column by column."""
    counts = np.array([batch.count for batch in batches])
    total = int(counts.sum())

    def per_batch(values: list[int], kind: str) -> Any:
        return np.repeat(np.array(values, kind), counts)

    def joined(columns: list[memoryview], kind: str) -> Any:
        return np.frombuffer(b"".join(columns), kind)

    data = b"".join([batch.data for batch in batches])
    starts = np.cumsum([0, *(batch.data_bytes for batch in batches)])[:-1]
    ends = joined([batch.data_ends for batch in batches], "<u4").astype("<i8") + np.repeat(starts, counts)
    offsets = np.concatenate(([0], ends)).astype("<i4")
    marks, locks = _evidence_columns(batches)
    columns = [
        per_batch([batch.partition for batch in batches], "<i4"),
        np.arange(batches[0].first, batches[0].first + total, dtype="<i8"),
        pa.array(per_batch([batch.commit_time_us for batch in batches], "<i8")).cast(SCHEMA.field("timestamp").type),
        joined([batch.headers for batch in batches], "<i4"),
        pa.Array.from_buffers(pa.binary(), total, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]),
        joined([batch.data_crcs for batch in batches], "<u4").astype("<i8"),
        joined([batch.client_ids for batch in batches], "<i4"),
        joined([batch.generations for batch in batches], "<i4"),
        joined([batch.sequences for batch in batches], "<i8"),
        per_batch([batch.session for batch in batches], "<i8"),
        per_batch([batch.first for batch in batches], "<i8"),
        per_batch([batch.generation for batch in batches], "<i4"),
        per_batch([batch.crc for batch in batches], "<i8"),
        _registers_column(batches, counts, total),
        marks,
        locks,
    ]
    return pa.table([pa.array(column) for column in columns], schema=SCHEMA)


def _registers_column(batches: Sequence[Batch], counts: Any, total: int) -> pa.Array:
    """The register changes of each batch in its first row, null in the others."""
    if not any(batch.registers_bytes for batch in batches):
        return pa.nulls(total, pa.binary())
    rows: list[bytes | None] = [None] * total
    for batch, row in zip(batches, (np.cumsum(counts) - counts).tolist(), strict=True):
        if batch.registers_bytes:
            rows[row] = bytes(batch.registers)
    return pa.array(rows, pa.binary())


def _evidence_columns(batches: Sequence[Batch]) -> tuple[pa.Array, pa.Array]:
    """Client high-water marks, and locks: hash u64 and mode u8 of each. Null where the log keeps no evidence."""
    marks: list[pa.Array] = []
    locks: list[pa.Array] = []
    for batch in batches:
        evidence = batch.evidence()
        if evidence is None:
            marks.append(pa.nulls(batch.count, pa.int64()))
            locks.append(pa.nulls(batch.count, pa.binary()))
            continue
        marks.append(pa.array(np.frombuffer(evidence.client_high_water_marks, "<i8")))
        held = np.empty(len(evidence.lock_hashes), _LOCK)
        held["hash"] = np.frombuffer(evidence.lock_hashes, "<u8")
        held["mode"] = np.frombuffer(evidence.lock_modes, "u1")
        ends = np.frombuffer(evidence.lock_ends, "<u4").astype("<i4") * _LOCK.itemsize
        offsets = np.concatenate((np.zeros(1, "<i4"), ends)).astype("<i4")
        locks.append(
            pa.Array.from_buffers(
                pa.binary(), batch.count, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(held.tobytes())]
            )
        )
    return pa.concat_arrays(marks), pa.concat_arrays(locks)


# ------------------------------------------------------------------ reading


def open_fragment(source: Any, cluster_key: bytes | None = None) -> tuple[Footer, Any]:
    """The footer, and the Parquet file: of bytes, or of a file's path.

    Whoever can compare a fragment's digest with its name does so before: that finds every damage, this only some.

    Raises `FragmentDamaged`, `UnsupportedFormat`, and `WrongClusterKey` for a fragment of another log than this one.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(source) if isinstance(source, bytes) else source)
        footer = Footer.decode(file.metadata.metadata or {})
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FragmentDamaged(f"not a Parquet file that can be read: {str(error).splitlines()[0]}") from error
    if cluster_key is not None and footer.cluster_key != cluster_key:
        raise WrongClusterKey("a fragment of another cluster: check the address of the store")
    return footer, file


def footer_in(end: bytes) -> Footer | None:
    """The footer, of the last bytes of a fragment; None when these do not hold all of it. Raises as `open_fragment`."""
    if len(end) < _TRAILER.size:
        return None
    length, magic = _TRAILER.unpack_from(end, len(end) - _TRAILER.size)
    if magic != b"PAR1":
        raise FragmentDamaged("not a Parquet file: it ends with something else")
    return open_fragment(end)[0] if length + _TRAILER.size <= len(end) else None


def batches_in(source: Any, cluster_key: bytes | None = None) -> Iterator[bytes]:
    """The fragment's batches, as they were on the servers' disks, byte for byte. A row group is in memory at a time.

    Raises as `open_fragment`, and `FragmentDamaged` when a batch can't be made again with the CRC that it had.
    """
    footer, file = open_fragment(source, cluster_key)
    crc, following = footer.previous_crc, footer.first
    for number in range(file.metadata.num_row_groups):
        for raw in _batches_of(_row_group(file, number), footer.partition, following, crc):
            batch = Batch.parse(raw, verify=False)
            crc, following = batch.crc, batch.last + 1
            yield raw
    if (crc, following - 1) != (footer.last_crc, footer.last):
        raise FragmentDamaged(f"a fragment that ends with {following - 1} instead of {footer.last}")


def batches_of_group(
    file: Any, number: int, partition: PartitionId, first: TransactionId, previous_crc: int
) -> list[bytes]:
    """The batches of one row group, which begins with `first` after the batch of this CRC. Raises as `batches_in`."""
    return list(_batches_of(_row_group(file, number), partition, first, previous_crc))


def _row_group(file: Any, number: int) -> pa.RecordBatch:
    try:
        table = file.read_row_group(number)
        if table.schema.remove_metadata() != SCHEMA:
            raise FragmentDamaged(f"its columns are not those of a fragment: {table.schema.names}")
        (group,) = table.combine_chunks().to_batches()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FragmentDamaged(f"row group {number} can't be read: {str(error).splitlines()[0]}") from error
    return group


def _batches_of(
    group: pa.RecordBatch, partition: PartitionId, following: TransactionId, previous_crc: int
) -> Iterator[bytes]:
    """The batches of one row group, which holds whole ones."""
    firsts = _numbers(group, "batch_first")
    starts = np.concatenate(([0], np.flatnonzero(firsts[1:] != firsts[:-1]) + 1, [len(firsts)])).tolist()
    narrow = {name: _numbers(group, name).astype("<i4") for name in ("client_id", "generation", "header")}
    sequences = _numbers(group, "sequence").astype("<i8")
    crcs = _numbers(group, "crc32").astype("<u4")
    data, data_offsets = _bytes(group, "data")
    judged = group.column("client_high_water_mark")
    has_evidence = judged.is_valid().to_numpy(zero_copy_only=False)
    marks = judged.fill_null(-1).to_numpy(zero_copy_only=False)
    locks, lock_offsets = _bytes(group, "locks")
    times = pa.compute.cast(group.column("timestamp"), pa.int64())
    for start, stop in pairwise(starts):
        columns = Columns()
        columns.client_ids.frombytes(narrow["client_id"][start:stop].tobytes())
        columns.generations.frombytes(narrow["generation"][start:stop].tobytes())
        columns.sequences.frombytes(sequences[start:stop].tobytes())
        columns.headers.frombytes(narrow["header"][start:stop].tobytes())
        columns.data_crcs.frombytes(crcs[start:stop].tobytes())
        first_byte = int(data_offsets[start])
        columns.data_ends.frombytes((data_offsets[start + 1 : stop + 1] - first_byte).astype("<u4").tobytes())
        columns.data.append(data[first_byte : int(data_offsets[stop])])
        columns.data_bytes = int(data_offsets[stop]) - first_byte
        evidence = bool(has_evidence[start])
        if evidence:
            first_lock = int(lock_offsets[start])
            held = np.frombuffer(locks[first_lock : int(lock_offsets[stop])], _LOCK)
            columns.client_high_water_marks.frombytes(marks[start:stop].tobytes())
            ends = (lock_offsets[start + 1 : stop + 1] - first_lock) // _LOCK.itemsize
            columns.lock_ends.frombytes(ends.astype("<u4").tobytes())
            columns.lock_hashes.frombytes(held["hash"].tobytes())
            columns.lock_modes += held["mode"].tobytes()
        raw = seal(
            columns,
            partition=partition,
            first=following,
            session=group.column("session_id")[start].as_py(),
            generation=group.column("batch_generation")[start].as_py(),
            commit_time_us=times[start].as_py(),
            previous_crc=previous_crc,
            registers=group.column("batch_registers")[start].as_py() or b"",
            evidence=evidence,
        )
        crc = int.from_bytes(raw[4:8], "little")
        if crc != group.column("batch_crc32")[start].as_py() or firsts[start] != following:
            raise FragmentDamaged(f"the batch from {following} can't be made again as it was")
        yield raw
        following, previous_crc = following + stop - start, crc


def _numbers(group: pa.RecordBatch, name: str) -> Any:
    return group.column(name).to_numpy(zero_copy_only=False)


def _bytes(group: pa.RecordBatch, name: str) -> tuple[memoryview, Any]:
    """The bytes of a column of bodies, and the offsets of each in them; null is empty."""
    column = group.column(name)
    _, offsets, data = column.buffers()
    held = memoryview(data) if data is not None else memoryview(b"")
    start = column.offset
    return held, np.frombuffer(offsets, "<i4")[start : start + len(column) + 1]
