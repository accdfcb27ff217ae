"""The batch: the unit of appending, replication, recovery, truncation and feeding.

A batch is columnar, little-endian and self-contained; the same bytes are the replication message, the contents of a
segment, and the feed. Layout (`docs/formats.md` has it with offsets)::

    header, 64 bytes
      0 magic "PLNB"          4 crc32 of bytes 8..length     8 length of the whole batch   12 version u16 · flags u16
     16 partition u32        20 count u32                   24 first transaction id i64   32 session id i64
     40 commit time µs i64   48 generation u32              52 bytes of data u32
     56 bytes of registers section u32                      60 crc32 of the previous batch of the partition, 0 for none
    columns, each `count` long and padded to 8 bytes
      client id i32 · generation i32 · sequence i64 · header i32 · data crc32 u32 · end of data u32 (cumulative)
      (a generation below 0 is the complement of one, and marks a transaction as the library's own)
    data       every transaction's bytes, one after the other, padded to 8
    registers  changes of registers made by this batch, padded to 8 (flag 1)
    evidence   what each transaction was judged by (flag 2):
      client high-water mark i64[count] · end of locks u32[count] (cumulative) · lock hash u64[…] · lock mode u8[…]

Parsing copies nothing: a `Batch` is a view of the bytes it was parsed from.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from polonaise.checksum import crc32
from polonaise.errors import BatchDamaged, DataDamaged
from polonaise.terms import ClientId, Generation, PartitionId, SessionId, Transaction, TransactionId

MAGIC: Final = b"PLNB"
VERSION: Final = 1
FLAG_REGISTERS: Final = 1
FLAG_EVIDENCE: Final = 2
FLAG_WITHOUT_DATA: Final = 4
"""Marks a batch that was stripped to its columns for a lazy feed; never stored. It has a CRC of its own, and that of
the whole batch at offset 56."""
_FLAGS: Final = FLAG_REGISTERS | FLAG_EVIDENCE | FLAG_WITHOUT_DATA

HEADER: Final = struct.Struct("<4sIIHHIIqqqIIII")
HEADER_BYTES: Final = HEADER.size
_COLUMN_TYPES: Final[tuple[Literal["i", "q", "I"], ...]] = ("i", "i", "q", "i", "I", "I")
"""The columns' types, in the letters of `struct`."""

Bytes = bytes | bytearray | memoryview


def padded(length: int) -> int:
    """Return `length` rounded up to the next multiple of 8."""
    return (length + 7) & ~7


def _columns_bytes(count: int) -> int:
    return 8 * count + 5 * padded(4 * count)


@dataclass(init=False, repr=False, eq=False, slots=True)
class Batch:
    """A view of one batch's bytes. Columns have one entry per transaction.

    Made by `parse`, which has checked the structure and (unless told otherwise) the CRC.
    """

    view: memoryview
    """The bytes of the batch, or of its copy without data."""
    length: int
    """The length of `view` in bytes."""
    crc: int
    """The CRC of the whole batch, also in a copy without data."""
    flags: int
    """The `FLAG_…` bits of the header, which say what sections the batch has."""
    partition: PartitionId
    """The partition that the batch belongs to."""
    count: int
    """The number of transactions."""
    first: TransactionId
    """The id of the first transaction."""
    session: SessionId
    """The session of the owner that made the batch."""
    commit_time_us: int
    """When the owner made the batch, in microseconds since 1970 (UTC); never less than the time of the batch before."""
    generation: Generation
    """The generation of the owner."""
    data_bytes: int
    """The size of all bodies together, in bytes; the same in a copy without data."""
    registers_bytes: int
    """The size of the section with changed registers, in bytes; 0 without one, and in a copy without data."""
    previous_crc: int
    """The CRC of the batch before this one; 0 for the first batch of a partition."""

    def __init__(self, view: memoryview) -> None:
        """Private: a batch is made with `parse`. Only reads the header, which must be whole."""
        (
            _,
            self.crc,
            self.length,
            _,
            self.flags,
            self.partition,
            self.count,
            self.first,
            self.session,
            self.commit_time_us,
            self.generation,
            self.data_bytes,
            self.registers_bytes,
            self.previous_crc,
        ) = HEADER.unpack_from(view)
        # `crc` always names the whole batch, as its successor does.
        if self.flags & FLAG_WITHOUT_DATA:
            self.crc, self.registers_bytes = self.registers_bytes, 0
        self.view = view

    @classmethod
    def parse(cls, buffer: Bytes, offset: int = 0, *, verify: bool = True) -> Batch:
        """Return the batch that begins at `offset` of `buffer`. `verify=False` leaves the CRC unchecked, not the
        structure.

        Raises `BatchDamaged` for anything that is not a whole, consistent batch with the right CRC.
        """
        view = memoryview(buffer)[offset:]
        if len(view) < HEADER_BYTES:
            raise BatchDamaged(f"{len(view)} bytes are too short for a batch")
        if bytes(view[:4]) != MAGIC:
            raise BatchDamaged("the bytes are no batch: they do not begin with its magic number")
        length, version = struct.unpack_from("<IH", view, 8)
        if version != VERSION:
            raise BatchDamaged(f"batch format {version}; this version reads format {VERSION}")
        if not HEADER_BYTES <= length <= len(view):
            raise BatchDamaged(f"the batch claims {length} bytes, and {len(view)} are there")
        batch = cls(view[:length])
        batch._check_structure()
        if verify and crc32(batch.view[8:]) != int.from_bytes(batch.view[4:8], "little"):
            raise BatchDamaged(f"CRC of the batch that starts at {batch.first} does not fit")
        return batch

    def _check_structure(self) -> None:
        count = self.count
        if self.flags & ~_FLAGS:
            raise BatchDamaged(f"unknown batch flags {self.flags:#x}")
        if count < 1 or self.first < 0 or self.first + count > 2**63 - 1:
            raise BatchDamaged(
                f"the batch claims {count} transactions from id {self.first} on; a batch has at least one, and ids are "
                "0 to 2^63 - 2"
            )
        columns = HEADER_BYTES + _columns_bytes(count)
        if columns > self.length:
            raise BatchDamaged(f"{count} transactions do not fit into {self.length} bytes")
        if self.flags & FLAG_WITHOUT_DATA:
            if self.length != columns:
                raise BatchDamaged("a batch that is flagged as one without data has data")
            return
        evidence_start = columns + padded(self.data_bytes) + padded(self.registers_bytes)
        if evidence_start > self.length or (evidence_start != self.length and not self.flags & FLAG_EVIDENCE):
            raise BatchDamaged(f"the sections take {evidence_start} bytes in a batch of {self.length}")
        ends = self.data_ends
        if ends[count - 1] != self.data_bytes:
            raise BatchDamaged("the data column does not end where the data ends")
        if self.flags & FLAG_EVIDENCE:
            self._check_evidence(evidence_start)

    def _check_evidence(self, start: int) -> None:
        count = self.count
        fixed = start + 8 * count + padded(4 * count)
        if fixed > self.length:
            raise BatchDamaged("the evidence section is cut short")
        locks = struct.unpack_from("<I", self.view, start + 8 * count + 4 * (count - 1))[0]
        if fixed + 8 * locks + padded(locks) != self.length:
            raise BatchDamaged(f"evidence of {locks} locks does not fill the batch")

    @property
    def last(self) -> TransactionId:
        """The id of the batch's last transaction."""
        return self.first + self.count - 1

    def _column(self, position: int) -> memoryview:
        """Return the column with this position (0 client id … 5 end of data)."""
        kind, wide, narrow = _COLUMN_TYPES[position], 8 * self.count, 4 * self.count
        start = HEADER_BYTES + position * padded(narrow)
        if position > 2:  # the sequences before it are wide
            start += wide - padded(narrow)
        return self.view[start : start + (wide if kind == "q" else narrow)].cast(kind)

    @property
    def client_ids(self) -> memoryview:
        """The client id of each transaction's request."""
        return self._column(0)

    @property
    def generations(self) -> memoryview:
        """The generation of each transaction's request; below 0, its bitwise complement, for an own transaction."""
        return self._column(1)

    @property
    def sequences(self) -> memoryview:
        """The sequence number of each transaction's request."""
        return self._column(2)

    @property
    def headers(self) -> memoryview:
        """The header of each transaction."""
        return self._column(3)

    @property
    def data_crcs(self) -> memoryview:
        """The CRC-32 of each transaction's data."""
        return self._column(4)

    @property
    def data_ends(self) -> memoryview:
        """The offset in `data` after the last byte of each transaction's data."""
        return self._column(5)

    @property
    def has_data(self) -> bool:
        """Whether the batch has its data: False for one that was stripped for a lazy feed."""
        return not self.flags & FLAG_WITHOUT_DATA

    @property
    def data(self) -> memoryview:
        """All bodies, one after the other; empty in a copy without data."""
        start = HEADER_BYTES + _columns_bytes(self.count)
        return self.view[start : start + self.data_bytes]

    @property
    def registers(self) -> memoryview:
        """The encoded register changes, which `log.registers` reads; empty for none, and in a copy without data."""
        start = HEADER_BYTES + _columns_bytes(self.count) + padded(self.data_bytes)
        return self.view[start : start + self.registers_bytes]

    def body(self, transaction: TransactionId) -> bytes:
        """Return the data of one transaction of this batch. Raises `DataDamaged` if its CRC does not fit."""
        index = transaction - self.first
        ends = self.data_ends
        body = bytes(self.data[ends[index - 1] if index else 0 : ends[index]])
        if crc32(body) != self.data_crcs[index]:
            raise DataDamaged(
                f"the data of transaction {transaction} of partition {self.partition} does not fit its CRC"
            )
        return body

    @property
    def has_own(self) -> bool:
        """Whether any transaction of the batch is the library's own."""
        return min(self.generations) < 0

    def transactions(self, after: TransactionId = -1, *, own: bool = False) -> Iterator[Transaction]:
        """Yield the transactions with ids above `after`, each body checked against its own CRC (`DataDamaged`).

        With `own`, those of the library itself as well.
        """
        data = bytes(self.data)
        partition, time_us = self.partition, self.commit_time_us
        clients, generations = self.client_ids.tolist(), self.generations.tolist()
        sequences, headers = self.sequences.tolist(), self.headers.tolist()
        crcs, ends = self.data_crcs.tolist(), self.data_ends.tolist()
        first = self.first
        skip = min(max(0, after + 1 - first), self.count)
        start = ends[skip - 1] if skip else 0
        omits_own = not own and self.has_own
        for index in range(skip, self.count):
            body = data[start : ends[index]]
            start = ends[index]
            if crc32(body) != crcs[index]:
                raise DataDamaged(
                    f"the data of transaction {first + index} of partition {partition} does not fit its CRC"
                )
            if omits_own and generations[index] < 0:
                continue
            yield Transaction(
                partition,
                first + index,
                headers[index],
                body,
                time_us,
                clients[index],
                generations[index],
                sequences[index],
            )

    def without_data(self) -> bytes:
        """Return the header and columns alone, as bytes, for a lazy feed."""
        if self.flags & FLAG_WITHOUT_DATA:
            return bytes(self.view)
        flags = self.flags | FLAG_WITHOUT_DATA
        end = HEADER_BYTES + _columns_bytes(self.count)
        bare = bytearray(self.view[:end])
        struct.pack_into("<IHH", bare, 8, end, VERSION, flags)
        struct.pack_into("<I", bare, 56, self.crc)
        struct.pack_into("<I", bare, 4, crc32(memoryview(bare)[8:]))
        return bytes(bare)

    def evidence(self) -> EvidenceColumns | None:
        """Return what the transactions were judged by; None if no evidence was kept, or the data was stripped."""
        if not self.flags & FLAG_EVIDENCE or self.flags & FLAG_WITHOUT_DATA:
            return None
        start = HEADER_BYTES + _columns_bytes(self.count) + padded(self.data_bytes) + padded(self.registers_bytes)
        count = self.count
        marks = self.view[start : start + 8 * count].cast("q")
        start += 8 * count
        ends = self.view[start : start + 4 * count].cast("I")
        start += padded(4 * count)
        locks = ends[count - 1]
        hashes = self.view[start : start + 8 * locks].cast("Q")
        modes = self.view[start + 8 * locks : start + 9 * locks]
        return EvidenceColumns(marks, ends, hashes, modes)


class EvidenceColumns(NamedTuple):
    """A batch's evidence section: enough to check serializability from the log alone."""

    client_high_water_marks: memoryview
    lock_ends: memoryview
    lock_hashes: memoryview
    lock_modes: memoryview

    def locks(self, index: int) -> list[tuple[int, int]]:
        """Return the (hash, mode) pairs of the transaction at this position in the batch."""
        start = self.lock_ends[index - 1] if index else 0
        end = self.lock_ends[index]
        return list(zip(self.lock_hashes[start:end], self.lock_modes[start:end], strict=True))


@dataclass(eq=False, slots=True)
class Columns:
    """The transactions of a batch that is being formed, column by column; `seal` turns them into the batch's bytes.

    `data` holds views of the frames' or the fragment's bytes, so that no body is copied before `seal`. The owner fills
    the evidence columns for transactions of clients only if evidence is kept.
    """

    client_ids: array[int] = field(default_factory=lambda: array("i"))
    generations: array[int] = field(default_factory=lambda: array("i"))
    sequences: array[int] = field(default_factory=lambda: array("q"))
    headers: array[int] = field(default_factory=lambda: array("i"))
    data_crcs: array[int] = field(default_factory=lambda: array("I"))
    data_ends: array[int] = field(default_factory=lambda: array("I"))
    data: list[Bytes] = field(default_factory=list)
    data_bytes: int = 0
    client_high_water_marks: array[int] = field(default_factory=lambda: array("q"))
    lock_ends: array[int] = field(default_factory=lambda: array("I"))
    lock_hashes: array[int] = field(default_factory=lambda: array("Q"))
    lock_modes: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.sequences)

    def add(
        self,
        client_id: ClientId,
        generation: Generation,
        sequence: int,
        header: int,
        data: Bytes,
        data_crc: int | None = None,
        *,
        client_high_water_mark: TransactionId = -1,
        locks: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add one transaction. The owner does so for its own ones only: it takes those of clients over in columns."""
        self.client_ids.append(client_id)
        self.generations.append(generation)
        self.sequences.append(sequence)
        self.headers.append(header)
        self.data_crcs.append(crc32(data) if data_crc is None else data_crc)
        self.data.append(data)
        self.data_bytes += len(data)
        self.data_ends.append(self.data_bytes)
        self.client_high_water_marks.append(client_high_water_mark)
        for lock_hash, mode in locks:
            self.lock_hashes.append(lock_hash)
            self.lock_modes.append(mode)
        self.lock_ends.append(len(self.lock_hashes))


def _pad(length: int) -> bytes:
    return bytes(padded(length) - length)


def seal(
    columns: Columns,
    *,
    partition: PartitionId,
    first: TransactionId,
    session: SessionId,
    generation: Generation,
    commit_time_us: int,
    previous_crc: int,
    registers: Bytes = b"",
    evidence: bool = False,
) -> bytes:
    """Return the bytes of a batch of these transactions, of which there must be at least one.

    `registers` is the encoded section of register changes. With `evidence`, what the transactions were judged by is
    kept.
    """
    count = len(columns)
    narrow = _pad(4 * count)
    parts: list[Bytes] = [
        columns.client_ids.tobytes(), narrow,
        columns.generations.tobytes(), narrow,
        columns.sequences.tobytes(),
        columns.headers.tobytes(), narrow,
        columns.data_crcs.tobytes(), narrow,
        columns.data_ends.tobytes(), narrow,
        *columns.data, _pad(columns.data_bytes),
        registers, _pad(len(registers)),
    ]  # fmt: skip
    flags = FLAG_REGISTERS if len(registers) else 0
    if evidence:
        flags |= FLAG_EVIDENCE
        parts += [
            columns.client_high_water_marks.tobytes(),
            columns.lock_ends.tobytes(), narrow,
            columns.lock_hashes.tobytes(),
            columns.lock_modes, _pad(len(columns.lock_modes)),
        ]  # fmt: skip
    body = b"".join(parts)
    head = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        head, 0, MAGIC, 0, HEADER_BYTES + len(body), VERSION, flags, partition, count, first, session,
        commit_time_us, generation, columns.data_bytes, len(registers), previous_crc,
    )  # fmt: skip
    crc = crc32(body, crc32(memoryview(head)[8:]))
    struct.pack_into("<I", head, 4, crc)
    return bytes(head) + body


def split(buffer: Bytes) -> list[Batch]:
    """Return the batches that lie one after the other in `buffer`. Raises `BatchDamaged` unless they fill it, whole."""
    batches: list[Batch] = []
    view = memoryview(buffer)
    offset, end = 0, len(view)
    while offset < end:
        batch = Batch.parse(view, offset)
        batches.append(batch)
        offset += batch.length
    return batches
