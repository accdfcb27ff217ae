"""The columns of an append frame, which carries many transactions of one client in one message.

Columns, little-endian, each padded to 8 bytes (they travel in the head, the bodies are the payload)::

    sequence i64 · client high-water mark i64 · header i32 · data crc32 u32 · end of data u32 (cumulative)
    flag LOCKS       end of locks u32 (cumulative) · lock hash u64[…] · lock mode u8[…]
    flag GROUPS      end of group u8: 1 for the last transaction of a group (without the flag each is its own)
    flag OPERATIONS  length u32, then rows: index u32 · operation u8 · key length u16 · value length u32 · key · value

An operation is an expectation (`ExpectationKind`) or, from `CHANGE` on, a change (`ChangeKind`); it belongs to the
group of the transaction at `index`.
"""

from __future__ import annotations

import operator
import struct
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from polonaise.errors import ProtocolError
from polonaise.terms import ChangeKind, ExpectationKind, FailureReason, LockMode
from polonaise.wire.codec import Buffer
from polonaise.wire.messages import Append

LOCKS: Final = 1
GROUPS: Final = 2
OPERATIONS: Final = 4
CHANGE: Final = 16
"""From here on operations are changes: `CHANGE + ChangeKind`."""

OPERATIONS_MAX: Final = 65_536
"""The most operations in one frame: each becomes an object many times as large as its bytes on the wire."""

_FRAME_BYTES: Final = 1_024
"""About how much memory an append frame takes beside its columns and bodies."""

_OPERATION: Final = struct.Struct("<IBHI")
_FAILURE: Final = struct.Struct("<qqB")
_MODES: Final = bytes(LockMode)


def inbox_bytes(size: int) -> int:
    """Return how many bytes an append frame of `size` bytes (columns and bodies) counts against its mount's window."""
    return size + _FRAME_BYTES


class Operation(NamedTuple):
    """One expectation or change that belongs to an append."""

    position: int
    """The place of its transaction in the frame, from 0."""
    kind: int
    """An `ExpectationKind`, or `CHANGE` plus a `ChangeKind`."""
    key: bytes
    value: bytes


class FailedAppend(NamedTuple):
    """An append that is not in the log and never will be under this request id.

    Of a `DUPLICATE`, the producer's first sending is; one refused for its `GENERATION` is sent again under another.
    """

    sequence: int
    value: int
    """The number that goes with `reason` (`FailureReason` says which)."""
    reason: FailureReason


@dataclass(slots=True, eq=False)
class AppendColumns:
    """Collects the columns of one append frame: `add` fills them, `message` makes the frame's message."""

    sequences: array[int] = field(default_factory=partial(array, "q"))
    client_high_water_marks: array[int] = field(default_factory=partial(array, "q"))
    headers: array[int] = field(default_factory=partial(array, "i"))
    data_crcs: array[int] = field(default_factory=partial(array, "I"))
    data_ends: array[int] = field(default_factory=partial(array, "I"))
    lock_ends: array[int] = field(default_factory=partial(array, "I"))
    lock_hashes: array[int] = field(default_factory=partial(array, "Q"))
    lock_modes: bytearray = field(default_factory=bytearray)
    group_ends: bytearray = field(default_factory=bytearray)
    operations: list[Operation] = field(default_factory=list)
    data: list[Buffer] = field(default_factory=list)
    data_bytes: int = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def add(
        self,
        sequence: int,
        client_high_water_mark: int,
        header: int,
        data: Buffer,
        data_crc: int,
        locks: Sequence[tuple[int, int]] = (),
        *,
        ends_group: bool = True,
        operations: Sequence[tuple[int, bytes, bytes]] = (),
    ) -> None:
        """Add one transaction. `ends_group` is False for all transactions of a group but the last.

        `locks` are pairs of hash and `LockMode`, `operations` are triples of kind, key and value.
        """
        index = len(self.sequences)
        self.sequences.append(sequence)
        self.client_high_water_marks.append(client_high_water_mark)
        self.headers.append(header)
        self.data_crcs.append(data_crc)
        self.data_bytes += len(data)
        self.data_ends.append(self.data_bytes)
        self.data.append(data)
        for lock_hash, mode in locks:
            self.lock_hashes.append(lock_hash)
            self.lock_modes.append(mode)
        self.lock_ends.append(len(self.lock_hashes))
        self.group_ends.append(ends_group)
        for kind, key, value in operations:
            self.operations.append(Operation(index, kind, key, value))

    def message(self, generation: int, above: int = 0) -> Append:
        """Return the message with these columns, which end with the end of a group; `above` raises sequences."""
        count = len(self.sequences)
        narrow = bytes(-4 * count & 7)
        flags = 0
        parts: list[Buffer] = [
            (array("q", [above + each for each in self.sequences]) if above else self.sequences).tobytes(),
            self.client_high_water_marks.tobytes(),
            self.headers.tobytes(), narrow,
            self.data_crcs.tobytes(), narrow,
            self.data_ends.tobytes(), narrow,
        ]  # fmt: skip
        if self.lock_hashes:
            flags |= LOCKS
            parts += [
                self.lock_ends.tobytes(), narrow,
                self.lock_hashes.tobytes(),
                self.lock_modes, bytes(-len(self.lock_modes) & 7),
            ]  # fmt: skip
        if 0 in self.group_ends:
            flags |= GROUPS
            parts += [self.group_ends, bytes(-count & 7)]
        if self.operations:
            flags |= OPERATIONS
            rows = b"".join(
                _OPERATION.pack(o.position, o.kind, len(o.key), len(o.value)) + o.key + o.value for o in self.operations
            )
            parts += [len(rows).to_bytes(4, "little"), rows, bytes(-(4 + len(rows)) & 7)]
        return Append(generation, count, flags, columns=b"".join(parts), payload=self.data)


class LockColumns(NamedTuple):
    """Views of the columns of locks in a received append frame."""

    ends: memoryview
    """For each transaction, where its locks end among `hashes` and `modes`."""
    hashes: memoryview
    modes: memoryview

    def of(self, position: int) -> slice:
        """Return which of `hashes` and `modes` are of the transaction at this position."""
        return slice(self.ends[position - 1] if position else 0, self.ends[position])


class ReceivedAppends:
    """Views of the columns of a received append frame. Its structure is checked, the CRCs of the bodies are not."""

    __slots__ = (
        "client_high_water_marks",
        "count",
        "data",
        "data_crcs",
        "data_ends",
        "group_ends",
        "headers",
        "locks",
        "operations",
        "sequences",
        "size",
    )

    def __init__(self, message: Append) -> None:
        """Take a message apart; raises `ProtocolError` unless its columns fill it exactly and fit together."""
        count = self.count = message.count
        if not count:
            raise ProtocolError("an append frame without transactions")
        if message.flags & ~(LOCKS | GROUPS | OPERATIONS):
            raise ProtocolError(f"unknown append flags {message.flags:#x}; known are {LOCKS | GROUPS | OPERATIONS:#x}")
        take = _Cursor(message.columns)
        self.data = memoryview(message.payload[0] if message.payload else b"")
        self.size = len(message.columns) + len(self.data)
        """The bytes of columns and bodies, all of which this keeps in memory."""
        self.sequences = take(8 * count).cast("q")
        self.client_high_water_marks = take(8 * count).cast("q")
        self.headers = take(4 * count).cast("i")
        self.data_crcs = take(4 * count).cast("I")
        self.data_ends = take(4 * count).cast("I")
        self.locks = _locks(take, count) if message.flags & LOCKS else None
        self.group_ends: memoryview | None = None
        if message.flags & GROUPS:
            self.group_ends = take(count)
            if self.group_ends[count - 1] != 1:
                raise ProtocolError("an append frame ends within a group")
            if bytes(self.group_ends).strip(b"\0\1"):
                raise ProtocolError("an append frame's column of group ends holds bytes other than 0 and 1")
        self.operations: list[Operation] = []
        if message.flags & OPERATIONS:
            self._take_operations(take)
        if not take.is_empty:
            raise ProtocolError(
                f"the columns of an append frame are longer than {count} appends with flags {message.flags:#x} take"
            )
        _check_ends(self.data_ends, len(self.data), "data")
        sequences = self.sequences.tolist()
        if any(map(operator.ge, sequences, sequences[1:])):
            raise ProtocolError("the sequences of an append frame do not rise")

    def body(self, position: int) -> memoryview:
        return self.data[self.data_ends[position - 1] if position else 0 : self.data_ends[position]]

    def without(self, sequences: Collection[int]) -> ReceivedAppends | None:
        """Return a frame without the appends of these sequences, which name whole groups; None if nothing is left."""
        left = AppendColumns()
        operations = iter([*self.operations, None])
        operation = next(operations)
        for position, sequence in enumerate(self.sequences.tolist()):
            own: list[tuple[int, bytes, bytes]] = []
            while operation is not None and operation.position == position:
                own.append((operation.kind, operation.key, operation.value))
                operation = next(operations)
            if sequence in sequences:
                continue
            locks = self.locks
            span = locks.of(position) if locks is not None else slice(0)
            left.add(
                sequence,
                self.client_high_water_marks[position],
                self.headers[position],
                self.body(position),
                self.data_crcs[position],
                list(zip(locks.hashes[span], locks.modes[span], strict=True)) if locks is not None else (),
                ends_group=self.group_ends is None or bool(self.group_ends[position]),
                operations=own,
            )
        if not left:
            return None
        left.data = [b"".join(left.data)]
        return ReceivedAppends(left.message(0))

    def _take_operations(self, take: _Cursor) -> None:
        rows = bytes(take.counted())
        offset, index_before = 0, 0
        while offset < len(rows):
            if offset + _OPERATION.size > len(rows):
                raise ProtocolError("the operations of an append frame are cut short")
            index, kind, key_bytes, value_bytes = _OPERATION.unpack_from(rows, offset)
            offset += _OPERATION.size
            end = offset + key_bytes + value_bytes
            known = kind <= max(ExpectationKind) or CHANGE <= kind <= CHANGE + max(ChangeKind)
            if end > len(rows) or not index_before <= index < self.count or not known:
                raise ProtocolError(
                    f"invalid operations in an append frame: one of kind {kind} for transaction {index} takes "
                    f"{end - offset} bytes of key and value. Expected: kinds 0 to {max(ExpectationKind)} and {CHANGE} "
                    f"to {CHANGE + max(ChangeKind)}, transactions {index_before} to {self.count - 1}, at most "
                    f"{len(rows) - offset} bytes"
                )
            if len(self.operations) == OPERATIONS_MAX:
                raise ProtocolError(f"more than {OPERATIONS_MAX} expectations and register changes in one append frame")
            index_before = index
            key = rows[offset : offset + key_bytes]
            self.operations.append(Operation(index, kind, key, rows[offset + key_bytes : end]))
            offset = end


class _Cursor:
    """Takes padded columns from a message, one after the other."""

    __slots__ = ("_offset", "_view")

    def __init__(self, columns: bytes) -> None:
        self._view = memoryview(columns)
        self._offset = 0

    def __call__(self, length: int) -> memoryview:
        start = self._offset
        end = start + length
        if end > len(self._view):
            raise ProtocolError(
                f"the columns of an append frame are shorter than its count and flags say: the next one takes {length} "
                f"bytes, and {len(self._view) - start} are left"
            )
        self._offset = min(len(self._view), (end + 7) & ~7)
        return self._view[start:end]

    def counted(self) -> memoryview:
        """Take a column that begins with the length of the rest (u32)."""
        start = self._offset
        if start + 4 > len(self._view):
            raise ProtocolError(
                "the columns of an append frame are shorter than its flags say: the length of its operations is missing"
            )
        length = int.from_bytes(self._view[start : start + 4], "little")
        return self(4 + length)[4:]

    @property
    def is_empty(self) -> bool:
        return self._offset == len(self._view)


def _locks(take: _Cursor, count: int) -> LockColumns:
    ends = take(4 * count).cast("I")
    total = ends[count - 1]
    hashes = take(8 * total).cast("Q")
    modes = take(total)
    _check_ends(ends, total, "locks")
    if bytes(modes).strip(_MODES):
        raise ProtocolError(f"an append frame holds an unknown lock mode; known are 0 to {max(LockMode)}")
    return LockColumns(ends, hashes, modes)


def _check_ends(ends: memoryview, total: int, what: str) -> None:
    listed = ends.tolist()
    if listed[-1] != total or any(map(operator.gt, listed, listed[1:])):
        raise ProtocolError(
            f"the ends of {what} in an append frame must never fall, and reach {total}; the last one is {listed[-1]}"
        )


def encode_failures(failures: Sequence[FailedAppend]) -> bytes:
    """Encode the rows of an `AppendsFailed`."""
    return b"".join(_FAILURE.pack(f.sequence, f.value, f.reason) for f in failures)


def decode_failures(raw: bytes) -> list[FailedAppend]:
    """Decode the rows of an `AppendsFailed`. Raises `ProtocolError` for part of a row and for an unknown reason."""
    if len(raw) % _FAILURE.size:
        raise ProtocolError("the rows of failed appends are cut short")
    try:
        return [
            FailedAppend(sequence, value, FailureReason(reason))
            for sequence, value, reason in _FAILURE.iter_unpack(raw)
        ]
    except ValueError as error:
        raise ProtocolError(f"a failed append with an unknown reason: {error}") from error
