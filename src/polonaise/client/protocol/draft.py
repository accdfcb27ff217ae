"""What an application says of a transaction before it is sent: bodies, locks, expectations, changes of registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from polonaise.client.protocol.locks import lock_hash
from polonaise.errors import BadOption, BodyTooLarge, TooManyLocks
from polonaise.log import registers
from polonaise.terms import ChangeKind, ExpectationKind, LockMode, PartitionId, TransactionId
from polonaise.wire.appends import CHANGE


class Lock(NamedTuple):
    """A lock that an append carries: on what, and what the append does to it."""

    name: str
    id: int
    """64 bits, signed."""
    mode: LockMode = LockMode.WRITE


class Expectation(NamedTuple):
    """What an append demands before it is ordered; all of them hold, or it is refused. See `ExpectationKind`."""

    kind: ExpectationKind
    key: bytes = b""
    value: bytes = b""

    @classmethod
    def equals(cls, key: bytes, value: bytes) -> Expectation:
        return cls(ExpectationKind.EQUALS, key, value)

    @classmethod
    def absent(cls, key: bytes) -> Expectation:
        return cls(ExpectationKind.ABSENT, key)

    @classmethod
    def present(cls, key: bytes) -> Expectation:
        return cls(ExpectationKind.PRESENT, key)

    @classmethod
    def position(cls, transaction: TransactionId) -> Expectation:
        """The append's first id is exactly this one."""
        return cls(ExpectationKind.POSITION, b"", transaction.to_bytes(8, "little", signed=True))


class Change(NamedTuple):
    """What an append does to a register, in one atomic step with itself."""

    kind: ChangeKind
    key: bytes
    value: bytes = b""

    @classmethod
    def set(cls, key: bytes, value: bytes) -> Change:
        return cls(ChangeKind.SET, key, value)

    @classmethod
    def delete(cls, key: bytes) -> Change:
        return cls(ChangeKind.DELETE, key)


class Limits(NamedTuple):
    """Bounds of one append, the same as the servers': refused here before anything is sent."""

    body_bytes_max: int = 1024 * 1024
    locks_max: int = 1_000
    group_count_max: int = 4_096
    group_bytes_max: int = 8 * 1024 * 1024


HEADER_MIN: Final = -(2**31)
HEADER_MAX: Final = 2**31 - 1


def checked_body(data: Any, limits: Limits) -> bytes:
    """The body as bytes. Raises `BodyTooLarge`, or `BadOption` for what is not bytes."""
    body = data if type(data) is bytes else _bytes_of(data)
    if len(body) > limits.body_bytes_max:
        raise BodyTooLarge(
            f"a body of {len(body)} bytes; the limit is {limits.body_bytes_max}: store it elsewhere and append where"
        )
    return body


def _bytes_of(data: Any) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise BadOption(f"a body is bytes, not {type(data).__name__}: encode it, or connect with a serializer")


def checked_header(header: int) -> int:
    """Raises `BadOption` unless it fits 32 bits."""
    if not HEADER_MIN <= header <= HEADER_MAX:
        raise BadOption(f"a header is a signed 32-bit integer, not {header}")
    return header


def lock_hashes(locks: Iterable[Lock], limits: Limits) -> list[tuple[int, int]]:
    """Locks as they travel. Raises `TooManyLocks`."""
    hashed = [(lock_hash(lock.name, lock.id), int(lock.mode)) for lock in locks]
    if len(hashed) > limits.locks_max:
        raise TooManyLocks(f"{len(hashed)} locks on one transaction; the limit is {limits.locks_max}: lock coarser")
    return hashed


def operations(expectations: Iterable[Expectation], changes: Iterable[Change]) -> list[tuple[int, bytes, bytes]]:
    """Expectations and changes as they travel. Raises `BadOption` for keys and values past their bounds."""
    asked = [(int(e.kind), _checked_key(e.key), _checked_value(e.value)) for e in expectations]
    asked += [(CHANGE + c.kind, _checked_key(c.key), _checked_value(c.value)) for c in changes]
    return asked


def _checked_key(key: bytes) -> bytes:
    if len(key) > registers.KEY_BYTES_MAX:
        raise BadOption(f"a register's key of {len(key)} bytes; the limit is {registers.KEY_BYTES_MAX}")
    return key


def _checked_value(value: bytes) -> bytes:
    if len(value) > registers.VALUE_BYTES_MAX:
        raise BadOption(f"a register's value of {len(value)} bytes; the limit is {registers.VALUE_BYTES_MAX}")
    return value


class Draft:
    """The transaction that a context builds: `tx` in its first argument.

    Several appends in one context are a group: they commit one after the other, all or none. Nothing is sent before
    the context has returned. `high_water_mark` is what the client had applied when the context began; whatever the
    context reads after that is at least as new.
    """

    __slots__ = (
        "_encode",
        "_limits",
        "abandoned",
        "bodies",
        "high_water_mark",
        "locks",
        "operations",
        "partition",
        "position",
        "size",
    )

    def __init__(
        self,
        partition: PartitionId,
        high_water_mark: TransactionId,
        limits: Limits,
        encode: Callable[[Any], bytes] | None = None,
    ) -> None:
        self.partition = partition
        self.high_water_mark = high_water_mark
        self.bodies: list[tuple[int, bytes]] = []
        """(header, body) of each append."""
        self.locks: list[tuple[int, int]] = []
        self.operations: list[tuple[int, bytes, bytes]] = []
        self.position: TransactionId | None = None
        self.size = 0
        self.abandoned: str | None = None
        self._limits = limits
        self._encode = encode

    def read_lock(self, name: str, id: int) -> None:
        """Built on the state behind this lock: refused if another transaction has written it meanwhile."""
        self._lock(name, id, 0)

    def write_lock(self, name: str, id: int) -> None:
        """Built on that state, and changes it."""
        self._lock(name, id, 1)

    def append_lock(self, name: str, id: int) -> None:
        """Changes that state without having looked at it: never refused for it, but later readers of it are."""
        self._lock(name, id, 2)

    def _lock(self, name: str, id: int, mode: int) -> None:
        if len(self.locks) >= self._limits.locks_max:
            raise TooManyLocks(f"the limit is {self._limits.locks_max} locks on one transaction: lock coarser")
        self.locks.append((lock_hash(name, id), mode))

    def append(self, data: Any, header: int = 0) -> None:
        """Append `data` (bytes, or what the client's serializer takes) under a 32-bit header.

        Raises `BodyTooLarge`, or `BadOption` for a header or data that cannot be meant.
        """
        body = checked_body(data if self._encode is None else self._encode(data), self._limits)
        self.size += len(body)
        self.bodies.append((checked_header(header), body))
        if len(self.bodies) > self._limits.group_count_max or (
            self.size > self._limits.group_bytes_max and len(self.bodies) > 1
        ):
            raise BodyTooLarge(
                f"a group of {len(self.bodies)} appends with {self.size} bytes; the limits are "
                f"{self._limits.group_count_max} and {self._limits.group_bytes_max}: split it"
            )

    def expect(self, key: bytes, *, equals: bytes | None = None, absent: bool = False, present: bool = False) -> None:
        """Demand that a register equals a value, is absent, or is present: exactly one of the three.

        If it is not so when the append is ordered, the append is refused and `run` raises `ExpectationFailed`.
        """
        if (equals is not None) + absent + present != 1:
            raise BadOption("expect(key, …) takes exactly one of equals=, absent=True, present=True")
        if equals is not None:
            expectation = Expectation.equals(key, equals)
        else:
            expectation = Expectation.absent(key) if absent else Expectation.present(key)
        self.operations += operations([expectation], [])

    def expect_position(self, id: TransactionId) -> None:
        """Demand that the (first) append gets exactly this id; if not, the context runs again when that is applied."""
        self.position = id
        self.operations += operations([Expectation.position(id)], [])

    def set(self, key: bytes, value: bytes) -> None:
        """Set a register, in one atomic step with the append. Raises `BadOption` past 1 KiB of key, 64 KiB of value."""
        self.operations += operations([], [Change.set(key, value)])

    def delete(self, key: bytes) -> None:
        """Delete a register, in one atomic step with the append."""
        self.operations += operations([], [Change.delete(key)])

    def abandon(self, reason: str = "the context abandoned the transaction") -> None:
        """Append nothing after all. `return tx.abandon("why")` ends the context; `run` then raises `Abandoned`.

        It is final, and it is said of the state that the view had applied when the context ran. Where that must be
        the newest, wait for it first (`Log.high_water_mark`, then `Log.wait_applied`).
        """
        self.abandoned = reason
