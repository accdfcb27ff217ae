"""Groups in columns: many transactions that commit as one, without an object for each."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from polonaise.checksum import crc32
from polonaise.client.protocol.arguments import wrong
from polonaise.client.protocol.draft import (
    Limits,
    body_too_large,
    check_group_size,
    checked_body,
    checked_header,
    joined,
)
from polonaise.client.protocol.locks import LOCK_BYTES, Lock, lock_columns
from polonaise.errors import BadOption, TooManyLocks
from polonaise.terms import TransactionId
from polonaise.wire.appends import AppendColumns, Operation
from polonaise.wire.codec import Buffer

_UNBOUNDED: Final = Limits(*[2**62] * len(Limits._fields))


class Group:
    """Transactions of one partition that commit one after the other, all or none, as columns.

    ::

        group = Group.of([b"1 100", b"2 50"], locks=[[Lock("account", 1)], [Lock("account", 2)]])
        receipt = await log.append_group(group, partition=0)

    `Group.of` makes a group from lists. The constructor takes columns, little-endian. For each transaction: `headers`
    (int32), `data_crcs`, the CRC-32 of the body (uint32), and `data_ends`, the offset in `data` just behind the body
    (uint32). Where there are locks: for each transaction `lock_ends`, the number of locks of all transactions up to and
    with this one (uint32), and for each lock `lock_hashes` (uint64) and `lock_modes` (a byte). A lock that is raised is
    raised to the id of the transaction that carries it. `data` is not copied, and is not to be changed as long as the
    append is pending. Raises `BadOption` for columns that do not fit together.
    """

    __slots__ = ("data", "data_crcs", "data_ends", "headers", "lock_ends", "lock_hashes", "lock_modes")

    def __init__(
        self,
        headers: Buffer,
        data_crcs: Buffer,
        data_ends: Buffer,
        data: Buffer,
        lock_ends: Buffer = b"",
        lock_hashes: Buffer = b"",
        lock_modes: Buffer = b"",
    ) -> None:
        self.headers: Final = _column("headers", "i", headers)
        self.data_crcs: Final = _column("data_crcs", "I", data_crcs)
        self.data_ends: Final = _column("data_ends", "I", data_ends)
        self.data: Final = data
        self.lock_ends: Final = _column("lock_ends", "I", lock_ends)
        self.lock_hashes: Final = _column("lock_hashes", "Q", lock_hashes)
        self.lock_modes: Final = bytes(lock_modes)
        self._check()

    @classmethod
    def of(cls, bodies: Iterable[bytes], headers: Sequence[int] = (), locks: Sequence[Iterable[Lock]] = ()) -> Group:
        """Return a group of these bodies, with a header for each (default 0) and locks for each (default none).

        Raises `BadOption` for an invalid body, header or lock, and when `headers` or `locks` has another length than
        `bodies`.
        """
        checked = [checked_body(body, _UNBOUNDED) for body in _listed(bodies)]
        for name, given in (("headers", headers), ("locks", locks)):
            if given and len(given) != len(checked):
                raise wrong(name, given, f"one for each of the {len(checked)} bodies, or none at all")
        columns_of_locks: list[Buffer] = []
        if locks:
            ends, hashes, modes = lock_columns([joined(each, _UNBOUNDED) for each in locks])
            columns_of_locks = [array("I", ends).tobytes(), hashes, modes]
        return cls(
            array("i", [checked_header(header) for header in headers] or [0] * len(checked)).tobytes(),
            array("I", map(crc32, checked)).tobytes(),
            array("I", accumulate(map(len, checked))).tobytes(),
            b"".join(checked),
            *columns_of_locks,
        )

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def size(self) -> int:
        """The bytes of its bodies and locks."""
        return len(self.data) + LOCK_BYTES * len(self.lock_hashes)

    def _check(self) -> None:
        count = len(self.headers)
        fits = len(self.data_crcs) == len(self.data_ends) == count and _rises_to(self.data_ends, len(self.data))
        if self.lock_ends:
            locks = len(self.lock_hashes)
            fits = fits and len(self.lock_ends) == count and _rises_to(self.lock_ends, locks)
            fits = fits and len(self.lock_modes) == locks
        elif self.lock_hashes or self.lock_modes:
            raise BadOption(
                f"a group of {count} has lock_hashes or lock_modes, and no lock_ends: without those nothing says which "
                "transaction carries which lock"
            )
        if not fits:
            raise BadOption(
                f"the columns of a group of {count} do not fit together: "
                "data_crcs, data_ends and lock_ends have one entry for each header, lock_modes one for each of "
                "lock_hashes, and ends rise to the end of the data or locks"
            )

    def check(self, limits: Limits) -> None:
        """Check the group against `limits`. Raises `BodyTooLarge`, `TooManyLocks`, `BadOption`."""
        count = len(self)
        if not count:
            raise BadOption("an empty group: append at least one transaction; its body may be empty")
        check_group_size(count, self.size, limits)
        largest = _largest_step(self.data_ends)
        if largest > limits.body_bytes_max:
            raise body_too_large(largest, limits)
        locks = _largest_step(self.lock_ends) if self.lock_ends else 0
        if locks > limits.locks_max:
            raise TooManyLocks(f"{locks} locks on one transaction; the limit is {limits.locks_max}: lock coarser")

    def columns(
        self, sequence: int, client_high_water_mark: TransactionId, operations: Sequence[tuple[int, bytes, bytes]]
    ) -> AppendColumns:
        """Return the columns of an append frame for this group alone."""
        count = len(self)
        columns = AppendColumns()
        columns.sequences = array("q", range(sequence, sequence + count))
        columns.client_high_water_marks = array("q", [client_high_water_mark]) * count
        columns.headers, columns.data_crcs, columns.data_ends = self.headers, self.data_crcs, self.data_ends
        columns.data, columns.data_bytes = [self.data], len(self.data)
        columns.lock_ends, columns.lock_hashes = self.lock_ends, self.lock_hashes
        columns.lock_modes = bytearray(self.lock_modes)
        # One group: the owner decides on all of it at its last transaction, which carries its operations.
        columns.group_ends = bytearray(count - 1) + b"\1"
        columns.operations = [Operation(count - 1, kind, key, value) for kind, key, value in operations]
        return columns


def _listed(bodies: Iterable[bytes]) -> list[bytes]:
    if isinstance(bodies, bytes | bytearray | memoryview | str) or not isinstance(bodies, Iterable):
        raise wrong("bodies", bodies, "a list of bytes, one for each transaction")
    return list(bodies)


def _column(name: str, kind: str, given: Buffer) -> array[int]:
    column = array(kind)
    raw = memoryview(given).cast("B")
    if len(raw) % column.itemsize:
        raise BadOption(
            f"column {name} of a group has {len(raw)} bytes, which is no multiple of {column.itemsize}: it is cut short"
        )
    column.frombytes(raw)
    return column


def _rises_to(ends: Sequence[int], total: int) -> bool:
    return (ends[-1] if ends else 0) == total and not any(map(operator.gt, ends, ends[1:]))


def _largest_step(ends: Sequence[int]) -> int:
    steps: Iterator[int] = map(operator.sub, ends, [0, *ends])
    return max(steps)
