"""A fragment's bytes: whole batches of one partition as a Parquet file that any reader can read, and back, exactly.

A row is a transaction, with what makes the batches again, byte for byte: which batch it was in and its CRC, the
register changes that a batch made (in its first row), and the evidence where the log keeps it. The footer says whose
log it is, which ids it holds, and the CRC of the batch before the first one.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from polonaise.checksum import crc32
from polonaise.errors import BatchDamaged, FragmentDamaged, NotFound, UnsupportedFormat, WrongClusterKey
from polonaise.fragments.arrow import LOCK, SCHEMA, bytes_of, columns_of
from polonaise.fragments.ranges import FOOTER_BYTES
from polonaise.log.batch import Batch, Columns, seal
from polonaise.terms import PartitionId, TransactionId

FORMAT: Final = b"1"
GROUP_ROWS: Final = 131_072
GROUP_BYTES: Final = 64 * 1024 * 1024
"""The rows or bytes at which a row group is ended, after a whole batch: what readers hold in memory at a time."""

_KEY: Final = b"polonaise."
_NAMES: Final = ("format", "cluster_key", "partition", "first", "last", "previous_crc", "last_crc", "batches")

_TRAILER: Final = struct.Struct("<I4s")
CRC_KEY: Final = _KEY + b"footer_crc32"
NO_CRC: Final = b"00000000"
_CRC_FIELD: Final = CRC_KEY + b"\x18" + bytes([len(NO_CRC)])
"""The bytes before the CRC in the footer: the key, and how Thrift announces a text of this length."""


class Footer(NamedTuple):
    """The footer of a fragment: whose log it is of, and which ids it holds."""

    cluster_key: bytes
    partition: PartitionId
    first: TransactionId
    last: TransactionId
    previous_crc: int
    """The CRC of the batch before the fragment's first one; 0 if the log begins with the fragment."""
    last_crc: int
    """The CRC of the fragment's last batch, which proves all batches up to that one."""
    batches: int

    def encode(self) -> dict[bytes, bytes]:
        values = [FORMAT, self.cluster_key.hex().encode(), *(str(value).encode() for value in self[1:])]
        return {_KEY + name.encode(): value for name, value in zip(_NAMES, values, strict=True)}

    @classmethod
    def decode(cls, metadata: dict[bytes, bytes]) -> Footer:
        """Return the footer in Parquet metadata. Raises `UnsupportedFormat`, or `FragmentDamaged` if it is no
        fragment's."""
        try:
            values = [metadata[_KEY + name.encode()] for name in _NAMES]
        except KeyError:
            raise FragmentDamaged("a Parquet file, but not a fragment: its footer does not describe a log") from None
        if values[0] != FORMAT:
            raise UnsupportedFormat(
                f"fragment format {values[0].decode(errors='replace')!r}; this version of Polonaise reads format "
                f"{FORMAT.decode()}: run the version that wrote it, or a newer one"
            )
        try:
            return cls(bytes.fromhex(values[1].decode()), *(int(value) for value in values[2:]))
        except ValueError as error:
            raise FragmentDamaged(f"the footer of the fragment does not parse: {error}") from None


# ------------------------------------------------------------------ writing


class FragmentWriter:
    """Makes one fragment of consecutive batches of one partition: `add` them, then take `finish`."""

    def __init__(self, cluster_key: bytes) -> None:
        self._cluster_key = cluster_key
        self._sink = io.BytesIO()
        self._parquet: Any = None
        self._pending: list[Batch] = []
        self._pending_rows = self._pending_bytes = 0
        self._first: Batch | None = None
        self._last: Batch | None = None
        self._batches = 0

    def add(self, batch: Batch) -> None:
        """Add the next batch, which was parsed with its CRC. Raises `BatchDamaged` unless it follows the one before."""
        last = self._last
        if last is not None and (
            batch.first != last.last + 1 or batch.previous_crc != last.crc or batch.partition != last.partition
        ):
            raise BatchDamaged(
                f"the batch from {batch.first} does not follow {last.last}: it has another first id, previous CRC or "
                "partition"
            )
        self._first, self._last = self._first or batch, batch
        self._batches += 1
        self._pending.append(batch)
        self._pending_rows += batch.count
        self._pending_bytes += batch.length
        if self._pending_rows >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._write_pending()

    def finish(self) -> tuple[Footer, bytes]:
        """Return the footer and the fragment's bytes. Raises `BatchDamaged` when no batch was added."""
        first, last = self._first, self._last
        if first is None or last is None:
            raise BatchDamaged("there is no batch to make a fragment of: a fragment holds one batch or more")
        self._write_pending()
        footer = Footer(
            self._cluster_key, first.partition, first.first, last.last, first.previous_crc, last.crc, self._batches
        )
        self._parquet.add_key_value_metadata({**footer.encode(), CRC_KEY: NO_CRC})
        self._parquet.close()
        with self._sink.getbuffer() as written:
            seal_footer(written)
        return footer, self._sink.getvalue()

    def _write_pending(self) -> None:
        if not self._pending:
            return
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(
                self._sink,
                SCHEMA,
                compression="zstd",
                write_page_checksum=True,
                use_dictionary=_DICTIONARIES,
                write_statistics=_STATISTICS,
            )
        group = columns_of(self._pending, SCHEMA.names)
        self._parquet.write_table(pa.Table.from_batches([group]), row_group_size=self._pending_rows)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def seal_footer(raw: memoryview) -> None:
    """Write the CRC of a fragment's footer into the footer, over the zeros that it was computed with."""
    start = _footer_start(raw)
    footer = bytes(raw[start:])
    crc_start = start + footer.rfind(_CRC_FIELD) + len(_CRC_FIELD)
    raw[crc_start : crc_start + len(NO_CRC)] = b"%08x" % crc32(footer)


def _footer_start(raw: bytes | memoryview) -> int:
    """Return where the footer begins in bytes that end with it; below 0 if they hold only its end."""
    length, magic = _TRAILER.unpack_from(raw, len(raw) - _TRAILER.size)
    if magic != b"PAR1":
        raise FragmentDamaged("not a Parquet file: it does not end with PAR1")
    return len(raw) - _TRAILER.size - int(length)


_DICTIONARIES: Final = [
    "partition", "timestamp", "header", "client_id", "generation", "session_id",
    "batch_first", "batch_generation", "batch_crc32",
]  # fmt: skip
"""The columns that are written with dictionaries: those that hardly change from row to row."""
_STATISTICS: Final = ["partition", "transaction_id", "timestamp", "header"]
"""The columns whose smallest and largest values are written for each row group: those that readers search by."""


# ------------------------------------------------------------------ reading


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turn errors of pyarrow and the system about `what` into `FragmentDamaged`, and a missing file into `NotFound`."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{what} can't be read: {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FragmentDamaged(f"{what} can't be read: {(str(error).splitlines() or [''])[0]}") from error


def open_fragment(source: Any, cluster_key: bytes | None = None) -> tuple[Footer, Any]:
    """Return the footer and the Parquet file of a fragment in bytes, a local file's path, or a file-like object. The
    footer is checked against its CRC, each page when it is read. Raises `FragmentDamaged`, `UnsupportedFormat`,
    `NotFound`, and `WrongClusterKey` for a fragment of another log than `cluster_key`."""
    with readable("the fragment"):
        opened = _opened(source)
        _check_footer(opened)
        file = pq.ParquetFile(opened, page_checksum_verification=True)
        footer = Footer.decode(file.metadata.metadata or {})
    if cluster_key is not None and footer.cluster_key != cluster_key:
        raise WrongClusterKey("the fragment belongs to another cluster: check the address of the store")
    return footer, file


def _opened(source: Any) -> Any:
    if isinstance(source, bytes):
        return pa.BufferReader(source)
    return pa.memory_map(str(source)) if isinstance(source, str | Path) else pa.PythonFile(source, "r")


def _check_footer(file: Any) -> None:
    """Raise `FragmentDamaged` unless the footer fits its CRC: Parquet has checksums for pages only."""
    size = file.size()
    file.seek(max(0, size - FOOTER_BYTES))
    end = file.read()
    if len(end) < _TRAILER.size:
        raise FragmentDamaged(f"not a Parquet file: it has only {size} bytes")
    start = _footer_start(end)
    # A footer that is longer than the first read: read exactly that much.
    if start < 0:
        file.seek(max(0, size - FOOTER_BYTES + start))
        end = file.read()
        start = max(0, _footer_start(end))
    footer = bytearray(end[start:])
    crc_start = footer.rfind(_CRC_FIELD) + len(_CRC_FIELD)
    if crc_start < len(_CRC_FIELD):
        raise FragmentDamaged("a Parquet file, but not a fragment: its footer has no checksum of its own")
    crc = bytes(footer[crc_start : crc_start + len(NO_CRC)])
    footer[crc_start : crc_start + len(NO_CRC)] = NO_CRC
    if crc != b"%08x" % crc32(footer):
        raise FragmentDamaged("the CRC of its footer does not fit")


def opened_by(end: bytes) -> tuple[Footer, Any] | None:
    """Return the footer and Parquet's metadata in the last bytes of a fragment; None if these do not hold all of it."""
    if len(end) < _TRAILER.size or _footer_start(end) < 0:
        return None
    footer, file = open_fragment(end)
    return footer, file.metadata


def batches_in(source: Any, cluster_key: bytes | None = None) -> Iterator[bytes]:
    """Yield the fragment's batches, byte for byte as storage nodes kept them, with a row group in memory at a time.
    Raises what `open_fragment` does, and `FragmentDamaged` when a batch can't be made again with the CRC that it
    had."""
    footer, file = open_fragment(source, cluster_key)
    crc, following = footer.previous_crc, footer.first
    for number in range(file.metadata.num_row_groups):
        for raw in batches_of_group(row_group(file, number), footer.partition, following, crc):
            batch = Batch.parse(raw, verify=False)
            crc, following = batch.crc, batch.last + 1
            yield raw
    if (crc, following - 1) != (footer.last_crc, footer.last):
        raise FragmentDamaged(
            f"the last batch of the fragment ends with id {following - 1} and has CRC {crc:08x}, and the footer says "
            f"{footer.last} and {footer.last_crc:08x}"
        )


def row_group(file: Any, number: int) -> pa.RecordBatch:
    """Read a row group, by its index. Raises `FragmentDamaged` unless it has the columns of a fragment."""
    with readable(f"row group {number}"):
        table = file.read_row_group(number, use_threads=False)
        if table.schema.remove_metadata() != SCHEMA:
            raise FragmentDamaged(f"the file's columns are not those of a fragment: {table.schema.names}")
        (group,) = table.combine_chunks().to_batches()
    return group


def batches_of_group(
    group: pa.RecordBatch, partition: PartitionId, following: TransactionId, previous_crc: int
) -> Iterator[bytes]:
    """Yield the batches of one row group, byte for byte as they were. `following` is the group's first id,
    `previous_crc` the CRC of the batch before it. Raises `FragmentDamaged` when a batch can't be made again with the
    CRC that it had."""
    firsts = _numbers(group, "batch_first")
    starts = np.concatenate(([0], np.flatnonzero(firsts[1:] != firsts[:-1]) + 1, [len(firsts)])).tolist()
    narrow = {name: _numbers(group, name).astype("<i4") for name in ("client_id", "generation", "header")}
    sequences = _numbers(group, "sequence").astype("<i8")
    crcs = _numbers(group, "crc32").astype("<u4")
    data, data_offsets = bytes_of(group.column("data"))
    evidence_marks = group.column("client_high_water_mark")
    has_evidence = evidence_marks.is_valid().to_numpy(zero_copy_only=False)
    marks = evidence_marks.fill_null(-1).to_numpy(zero_copy_only=False)
    locks, lock_offsets = bytes_of(group.column("locks"))
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
            batch_locks = np.frombuffer(locks[first_lock : int(lock_offsets[stop])], LOCK)
            columns.client_high_water_marks.frombytes(marks[start:stop].tobytes())
            ends = (lock_offsets[start + 1 : stop + 1] - first_lock) // LOCK.itemsize
            columns.lock_ends.frombytes(ends.astype("<u4").tobytes())
            columns.lock_hashes.frombytes(batch_locks["hash"].tobytes())
            columns.lock_modes += batch_locks["mode"].tobytes()
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
