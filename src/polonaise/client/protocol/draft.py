"""Transactions before they are sent: a context's draft, expectations, changes of registers, and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from polonaise.client.protocol.arguments import checked_id, checked_key, checked_value, wrong
from polonaise.client.protocol.locks import LOCK_BYTES, Lock, LockId
from polonaise.errors import BadOption, BodyTooLarge, Closed, TooManyLocks
from polonaise.log import registers
from polonaise.terms import ChangeKind, ExpectationKind, LockMode, OwnKind, PartitionId, TransactionId
from polonaise.wire.appends import CHANGE
from polonaise.wire.copies import NEEDED_MAX, Needs

T = TypeVar("T")


class Expectation(NamedTuple):
    """A demand that an append makes of a register, or of its own id, when it is ordered.

    If one of its expectations does not hold, the append is refused with `ExpectationFailed`. ::

        log.append(b"guest 7", expectations=[Expectation.absent(b"seat/12")], changes=[Change.set(b"seat/12", b"7")])
    """

    kind: ExpectationKind
    key: bytes = b""
    value: bytes = b""

    @classmethod
    def equals(cls, key: bytes, value: bytes) -> Expectation:
        """Demand that the register holds exactly this value."""
        return cls(ExpectationKind.EQUALS, key, value)

    @classmethod
    def absent(cls, key: bytes) -> Expectation:
        """Demand that the register is absent."""
        return cls(ExpectationKind.ABSENT, key)

    @classmethod
    def present(cls, key: bytes) -> Expectation:
        """Demand that the register is present, whatever its value."""
        return cls(ExpectationKind.PRESENT, key)

    @classmethod
    def position(cls, transaction: TransactionId) -> Expectation:
        """Demand that the append's first transaction gets exactly this id. Raises `BadOption` for an invalid id."""
        position = checked_id("transaction", transaction, 0)
        return cls(ExpectationKind.POSITION, b"", position.to_bytes(8, "little", signed=True))


class Change(NamedTuple):
    """A change that an append makes to a register: both come about in one atomic step. `append` raises `BadOption` for
    an invalid key or value."""

    kind: ChangeKind
    key: bytes
    value: bytes = b""

    @classmethod
    def set(cls, key: bytes, value: bytes) -> Change:
        """Set the register to this value. `append` refuses keys under `producer/`, `spark/` and `group/`."""
        return cls(ChangeKind.SET, key, value)

    @classmethod
    def delete(cls, key: bytes) -> Change:
        """Delete the register; no error if it is absent."""
        return cls(ChangeKind.DELETE, key)


class Limits(NamedTuple):
    """The bounds of one append, by default at or below those of the servers. One past them is refused, and not sent."""

    body_bytes_max: int = 1024 * 1024
    """Bytes of one transaction's body."""
    locks_max: int = 1_000
    """Locks of one append, of all appends of one context, or of one transaction of a `Group`."""
    group_count_max: int = 4_096
    """Transactions of one context or `Group`."""
    group_bytes_max: int = 8 * 1024 * 1024
    """Bytes of bodies that commit as one; in a `Group`, of its locks, too."""


_READ, _WRITE, _APPEND = LockMode
_EXPECTED: Final = frozenset(int(kind) for kind in ExpectationKind if kind != ExpectationKind.COPIES)

OPERATIONS_MAX: Final = 32_768
"""The most expectations and changes of one append or context; servers bound those of a frame, too."""
OPERATIONS_BYTES_MAX: Final = 16 * 1024 * 1024
"""The most bytes of keys and values in the expectations and changes of one append: a frame has room for these and for
the largest group."""
HEADER_MIN: Final = -(2**31)
HEADER_MAX: Final = 2**31 - 1


def checked_body(data: Any, limits: Limits) -> bytes:
    """Return the body as bytes. Raises `BodyTooLarge`, or `BadOption` for data that is not bytes."""
    body = data if type(data) is bytes else _bytes_of(data)
    if len(body) > limits.body_bytes_max:
        raise body_too_large(len(body), limits)
    return body


def body_too_large(size: int, limits: Limits) -> BodyTooLarge:
    return BodyTooLarge(
        f"a body of {size} bytes; the limit is {limits.body_bytes_max}: store it elsewhere and append its address"
    )


def check_group_size(count: int, size: int, limits: Limits) -> None:
    if count > limits.group_count_max or (size > limits.group_bytes_max and count > 1):
        raise BodyTooLarge(
            f"a group of {count} transactions with {size} bytes; the limits are "
            f"{limits.group_count_max} transactions and {limits.group_bytes_max} bytes: split it"
        )


def _bytes_of(data: Any) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise BadOption(
        f"a body is bytes, not {type(data).__name__}: encode it, or connect with a serializer whose encode does"
    )


def checked_header(header: int) -> int:
    """Return the header. Raises `BadOption` unless it is an integer of 32 bits, signed."""
    if not isinstance(header, int) or isinstance(header, bool) or not HEADER_MIN <= header <= HEADER_MAX:
        raise wrong("header", header, "a header is an integer of 32 bits, signed")
    return header


_LOCK: Final = frozenset((Lock,))


def joined(locks: Iterable[Lock], limits: Limits) -> bytes:
    """Return the bytes of the locks, joined. Raises `TooManyLocks` and `BadOption`."""
    if type(locks) is list and len(locks) == 1 and type(locks[0]) is Lock:
        return locks[0]  # the common case: a lock is its own bytes
    listed: list[Lock] = []
    try:
        # A generator might yield locks without end: take only as many as show that there are too many.
        listed += locks if type(locks) is list else islice(locks, limits.locks_max + 1)
        if len(listed) > limits.locks_max:
            raise TooManyLocks(
                f"{len(listed)}{'' if type(locks) is list else ' or more'} locks on one transaction; the limit is "
                f"{limits.locks_max}: lock coarser"
            )
    except TypeError as error:
        raise _wrong_locks(locks, listed) from error
    # Other bytes of a lock's length might have a mode that makes the owner cut the connection off.
    if not _LOCK.issuperset(map(type, listed)):
        raise _wrong_locks(locks, listed)
    return b"".join(listed)


def _wrong_locks(locks: Any, listed: list[Any]) -> BadOption:
    if isinstance(locks, Lock):
        return wrong("locks", locks, "one lock goes in a list, too: [Lock(name, id)]")
    for lock in listed:
        if not isinstance(lock, Lock):
            return wrong("locks", locks, f"{lock!r} in it is no Lock(name, id, mode)")
    return wrong("locks", locks, "a list of Lock(name, id, mode)")


def operations(
    expectations: Iterable[Expectation], changes: Iterable[Change], *, own: bool = False
) -> list[tuple[int, bytes, bytes]]:
    """Return expectations and changes as tuples (kind, key, value), as they are sent, expectations first.

    Raises `BadOption` for an invalid one, and past the bounds. Only the library (`own`) sets registers under its own
    prefixes, which an application may expect and delete.
    """
    checked: list[tuple[int, bytes, bytes]] = []
    for expectation in _listed("expectations", expectations, Expectation):
        kind, key, value = expectation
        if kind not in _EXPECTED or (kind == ExpectationKind.POSITION and len(value) != 8):
            raise wrong("expectations", expectation, "make it with Expectation.equals, absent, present or position")
        checked.append((int(kind), checked_key(key), checked_value(value)))
    for change in _listed("changes", changes, Change):
        if change.kind not in (ChangeKind.SET, ChangeKind.DELETE):
            raise wrong("changes", change, "make it with Change.set or Change.delete")
        checked.append((CHANGE + change.kind, checked_key(change.key), checked_value(change.value)))
        if change.kind == ChangeKind.SET and not own and change.key.startswith(registers.RESERVED):
            raise _reserved(change.key)
    _check_operations(len(checked), bytes_of(checked))
    return checked


def _reserved(key: bytes) -> BadOption:
    (prefix,) = [reserved for reserved in registers.RESERVED if key.startswith(reserved)]
    return wrong(
        "key", key, f"registers under {prefix!r} are the library's: begin the keys of your own registers otherwise"
    )


def bytes_of(operations: Iterable[tuple[int, bytes, bytes]]) -> int:
    return sum(len(key) + len(value) for _, key, value in operations)


def _check_operations(count: int, size: int) -> None:
    if count > OPERATIONS_MAX:
        raise BadOption(f"more than {OPERATIONS_MAX} expectations and changes on one append: split it")
    if size > OPERATIONS_BYTES_MAX:
        raise BadOption(
            f"expectations and changes with {size} bytes of keys and values on one append; the limit is "
            f"{OPERATIONS_BYTES_MAX}: split it"
        )


def _listed(name: str, given: Iterable[T], kind: type[T]) -> list[T]:
    wanted = f"a list of {kind.__name__}"
    if isinstance(given, kind) or not isinstance(given, Iterable):
        raise wrong(name, given, wanted)
    # A generator might go on without end: one more than allowed shows that there are too many.
    listed = list(islice(given, OPERATIONS_MAX + 1))
    for each in listed:
        if not isinstance(each, kind):
            raise wrong(name, each, wanted)
    return listed


class Built(NamedTuple):
    """What a context has built: it is appended as it was when the context returned."""

    high_water_mark: TransactionId
    bodies: Sequence[tuple[int, bytes]]
    """Each with its header."""
    locks: Sequence[Lock]
    operations: Sequence[tuple[int, bytes, bytes]]
    position: TransactionId | None
    """The id that it demands, if any."""
    needs: Needs | None
    size: int
    """The bytes of its bodies, its locks, and the keys and values that it expects and changes."""
    abandoned: str | None
    """Why nothing is to be appended after all."""


class Draft:
    """The transaction that a context builds; the context's first argument, `tx`.

    ::

        def withdraw(tx, account, amount):
            tx.write_lock("account", account)
            if balances.of(account) < amount:
                return tx.abandon("insufficient funds")
            tx.append(b"%d %d" % (account, -amount))

    Several appends in one context are a group: they commit one after the other, all or none. Once the context has
    returned, every method raises `Closed`. What the context reads from the view is at least as new as
    `high_water_mark`, the id up to which the client had applied the log of `partition` when the context began.
    """

    __slots__ = ("_abandoned", "_bodies", "_encode", "_limits", "_locks", "_needs", "_operation_bytes", "_operations",
                 "_over", "_position", "_size", "high_water_mark", "partition")  # fmt: skip

    def __init__(
        self,
        partition: PartitionId,
        high_water_mark: TransactionId,
        limits: Limits,
        encode: Callable[[Any], bytes] | None = None,
    ) -> None:
        self.partition: Final = partition
        self.high_water_mark: Final = high_water_mark
        self._bodies: list[tuple[int, bytes]] = []
        self._locks: list[Lock] = []
        self._operations: list[tuple[int, bytes, bytes]] = []
        self._position: TransactionId | None = None
        self._needs: Needs | None = None
        self._size = 0
        """Bytes of the bodies."""
        self._abandoned: str | None = None
        self._operation_bytes = 0
        self._limits = limits
        self._encode = encode
        self._over = False

    def _built(self) -> Built:
        size = self._size + LOCK_BYTES * len(self._locks) + self._operation_bytes
        return Built(
            self.high_water_mark, tuple(self._bodies), tuple(self._locks), tuple(self._operations), self._position,
            self._needs, size, self._abandoned,
        )  # fmt: skip

    def _finish(self) -> None:
        """Refuse further calls: what they add would be lost."""
        self._over = True

    def _check_open(self) -> None:
        if self._over:
            raise Closed("the context has returned: a transaction is built before that, and anew in each run")

    def read_lock(self, name: str, id: LockId) -> None:
        """Declare that the transaction is built on the state behind this lock, and does not change it.

        The append is refused, and the context runs again, if another transaction with a WRITE or APPEND lock on it was
        ordered above `high_water_mark`. `id` is an integer of 64 bits, a text or a UUID; `7` and `"7"` are two locks.
        Raises `BadOption` for an invalid lock, and `TooManyLocks` past `Limits.locks_max`.
        """
        self._lock(name, id, _READ)

    def write_lock(self, name: str, id: LockId) -> None:
        """Declare that the transaction is built on the state behind this lock, and changes it. Else as `read_lock`."""
        self._lock(name, id, _WRITE)

    def append_lock(self, name: str, id: LockId) -> None:
        """Declare that the transaction changes the state behind this lock without having looked at it, like a deposit.
        Never refused for this lock; appends that were built on the state before it are. Raises as `read_lock`."""
        self._lock(name, id, _APPEND)

    def _lock(self, name: str, id: LockId, mode: LockMode) -> None:
        if self._over:
            self._check_open()
        locks = self._locks
        if len(locks) >= self._limits.locks_max:
            raise TooManyLocks(
                f"more than {self._limits.locks_max} locks on one transaction, which is the limit: lock coarser"
            )
        locks.append(Lock(name, id, mode))

    def append(self, data: Any, header: int = 0) -> None:
        """Append a transaction with `data` (bytes, or what the client's serializer encodes) to the group.

        Raises `BodyTooLarge` for a body or a group past `Limits`, and `BadOption` for a header that is no signed 32-bit
        integer, or data that is not bytes.
        """
        if self._over:
            self._check_open()
        limits, bodies = self._limits, self._bodies
        body = checked_body(data if self._encode is None else self._encode(data), limits)
        if header or type(header) is not int:
            checked_header(header)
        bodies.append((header, body))
        self._size += len(body)
        if len(bodies) > 1:
            check_group_size(len(bodies), self._size, limits)

    def expect(self, key: bytes, *, equals: bytes | None = None, absent: bool = False, present: bool = False) -> None:
        """Demand that a register equals a value, is absent, or is present: exactly one of the three.

        ::

            tx.expect(b"seat/12", absent=True)

        If it does not hold when the append is ordered, `run` raises `ExpectationFailed`, without running the context
        again. Raises `BadOption` for an invalid argument.
        """
        if (equals is not None) + absent + present != 1:
            raise BadOption("expect(key, …) takes exactly one of equals=, absent=True, present=True")
        if equals is not None:
            expectation = Expectation.equals(key, equals)
        else:
            expectation = Expectation.absent(key) if absent else Expectation.present(key)
        self._add_operations([expectation], [])

    def expect_position(self, id: TransactionId) -> None:
        """Demand that the context's append, or the first of several, gets exactly this transaction id.

        `tx.expect_position(tx.high_water_mark + 1)` demands that nothing was appended meanwhile. If another transaction
        gets the id first, the context runs again once all that was ordered before its append is applied. `run` raises
        `ExpectationFailed` for an id up to `high_water_mark`, and for one still beyond the end of the log when the
        append is ordered. Raises `BadOption` for an invalid id.
        """
        self._add_operations([Expectation.position(checked_id("id", id, 0))], [])
        self._position = id

    def need(self, *, copies: int = 0, zones: int = 0) -> None:
        """Demand that the append is on so many copies, in so many zones, before it counts as a success.

        The numbers are as in `Log.append`; a second call replaces the first. While too few replicas are engaged `run`
        tries again; it raises `CopiesUnproved` if the append is committed and not proved before the deadline. Raises
        `BadOption` for an invalid number.
        """
        self._check_open()
        self._needs = checked_needs(copies, zones)

    def set(self, key: bytes, value: bytes) -> None:
        """Set a register, in one atomic step with the append.

        Raises `BadOption` past 1 KiB of key or 64 KiB of value, and for a key under a prefix of the library's own.
        `run` raises `RegistersFull` when the partition's registers have no room for it.
        """
        self._add_operations([], [Change.set(key, value)])

    def delete(self, key: bytes) -> None:
        """Delete a register, in one atomic step with the append, if it is there. Raises `BadOption` past 1 KiB of
        key."""
        self._add_operations([], [Change.delete(key)])

    def _add_operations(self, expectations: list[Expectation], changes: list[Change]) -> None:
        self._check_open()
        checked = operations(expectations, changes)
        self._operations += checked
        self._operation_bytes += bytes_of(checked)
        _check_operations(len(self._operations), self._operation_bytes)

    def abandon(self, reason: str | None = None) -> None:
        """Append nothing after all. `return tx.abandon("why")` ends the context; `run` then raises `Abandoned`.

        The decision is final, and rests on the state that the view had applied when the context ran: where that must be
        the newest, wait for it first (`Log.high_water_mark`, then `Log.wait_applied`).
        """
        self._check_open()
        self._abandoned = "the context abandoned the transaction" if reason is None else str(reason)

    def _append_own(self, kind: OwnKind, data: bytes) -> None:
        """Append a transaction of the library's own behind everything else in the draft.

        It has to be the last: a draft's operations are sent with its last transaction, which the owner marks as the
        library's own.
        """
        self._check_open()
        self._bodies.append((int(kind), checked_body(data, self._limits)))
        self._size += len(data)
        self._operations.append((CHANGE + ChangeKind.OWN, b"", b""))


# For the library alone: no application is offered them as methods of its `tx`.
append_own: Final = Draft._append_own
built: Final = Draft._built
finish: Final = Draft._finish


def checked_needs(copies: int, zones: int) -> Needs | None:
    """Return what an append needs, None for nothing: so many zones take as many copies. Raises `BadOption`."""
    for name, value in (("copies", copies), ("zones", zones)):
        if type(value) is not int or not 0 <= value <= NEEDED_MAX:
            raise wrong(name, value, f"an integer, 0 to {NEEDED_MAX}")
    return Needs(max(copies, zones), zones) if copies or zones else None


def operation_of(needs: Needs) -> tuple[int, bytes, bytes]:
    """Return the expectation by which the owner refuses an append that can't get the copies and zones it needs."""
    return int(ExpectationKind.COPIES), b"", needs.encode()
