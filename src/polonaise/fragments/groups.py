"""Row groups of a fragment by themselves: what is in them, where they lie, and their batches made again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow.parquet as pq

from polonaise.errors import FragmentDamaged
from polonaise.fragments.arrow import SCHEMA
from polonaise.fragments.format import Footer, batches_of_group, readable, row_group
from polonaise.fragments.ranges import Range
from polonaise.terms import TransactionId

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def first_of_group(metadata: Any, number: int) -> TransactionId:
    """Return the first id in a row group, by the file's metadata. Raises `FragmentDamaged` if that does not tell."""
    return int(_statistics(metadata, number, "transaction_id").min)


def last_time_us_of_group(metadata: Any, number: int) -> int:
    """Return the commit time (microseconds UTC) of a row group's last batch, by the file's metadata, likewise."""
    return int((_statistics(metadata, number, "timestamp").max - _EPOCH) // timedelta(microseconds=1))


def _statistics(metadata: Any, number: int, column: str) -> Any:
    if metadata.schema.to_arrow_schema().remove_metadata() != SCHEMA:
        raise FragmentDamaged("the file's columns are not those of a fragment")
    statistics = metadata.row_group(number).column(SCHEMA.get_field_index(column)).statistics
    if statistics is None or not statistics.has_min_max:
        raise FragmentDamaged(f"row group {number} has no statistics of {column}")
    return statistics


def chunk_of_group(metadata: Any, number: int, column: str) -> Range:
    """Return the range of the file in which a column of a row group lies."""
    chunk = metadata.row_group(number).column(SCHEMA.get_field_index(column))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return Range(start, start + chunk.total_compressed_size)


def parts_for_group(metadata: Any, number: int) -> list[Range]:
    """Return the ranges of the file that `group_batches` reads for a row group."""
    chunks = [chunk_of_group(metadata, number, column) for column in SCHEMA.names]
    parts = [Range(min(chunk.start for chunk in chunks), max(chunk.stop for chunk in chunks))]
    if number:
        parts.append(chunk_of_group(metadata, number - 1, "batch_crc32"))
    return parts


def group_batches(source: Any, metadata: Any, number: int) -> list[bytes]:
    """Return the batches of one row group, made again. Of `source` only the `parts_for_group` are read. Raises
    `FragmentDamaged` for bytes that can't be read, or a batch that does not have the CRC that it had."""
    footer = Footer.decode(metadata.metadata or {})
    with readable(f"row group {number}"):
        file = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
        crc = footer.previous_crc
        if number:  # each batch carries the CRC of the one before it
            before = file.read_row_group(number - 1, columns=["batch_crc32"], use_threads=False)
            crc = before.column(0)[-1].as_py()
    return list(batches_of_group(row_group(file, number), footer.partition, first_of_group(metadata, number), crc))


# ------------------------------------------------------------------ where batches end

_OF_ENDS: Final = ("batch_first", "batch_crc32")
"""The columns that say where batches end; they take little space."""


def groups_of(firsts: list[TransactionId], ids: Iterable[TransactionId]) -> dict[int, list[TransactionId]]:
    """Return these ids of a fragment by the row groups that hold them; `firsts` are the groups' first ids."""
    groups: dict[int, list[TransactionId]] = {}
    for id in ids:
        groups.setdefault(bisect_right(firsts, id) - 1, []).append(id)
    return groups


def parts_for_ends(metadata: Any, number: int) -> list[Range]:
    """Return the ranges of the file that `ends_in_group` reads for a row group."""
    return [chunk_of_group(metadata, number, column) for column in _OF_ENDS]


def ends_in_group(
    source: Any, metadata: Any, number: int, ids: Iterable[TransactionId]
) -> Mapping[TransactionId, int | None]:
    """Return the CRC of the batch that ends at each of these ids of a row group; None where no batch ends. Of `source`
    only the `parts_for_ends` are read. Raises `FragmentDamaged` for bytes that can't be read."""
    with readable(f"row group {number}"):
        file = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
        # One by one: columns that lie close together are read as one range, with what lies between them.
        tables = [file.read_row_group(number, columns=[name], use_threads=False) for name in _OF_ENDS]
        batches, crcs = (table.column(0).to_numpy() for table in tables)
    first = first_of_group(metadata, number)
    ends: dict[TransactionId, int | None] = {}
    for id in ids:
        row = id - first
        if not 0 <= row < len(batches):
            raise FragmentDamaged(f"row group {number} lacks id {id}, which is between its first id and the next one's")
        # A row group holds whole batches, so its last row ends one.
        is_end = row + 1 == len(batches) or batches[row + 1] != batches[row]
        ends[id] = int(crcs[row]) if is_end else None
    return ends
