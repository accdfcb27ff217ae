"""What an application says of a transaction before it is sent: bodies, locks, expectations, changes of registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from polonaise.client.protocol.arguments import checked_id, checked_key, checked_value, wrong
from polonaise.client.protocol.locks import LOCK_BYTES, Lock
from polonaise.errors import BadOption, BodyTooLarge, Closed, TooManyLocks
from polonaise.terms import ChangeKind, ExpectationKind, LockMode, PartitionId, TransactionId
from polonaise.wire.appends import CHANGE

T = TypeVar("T")


class Expectation(NamedTuple):
    """What an append demands before it is ordered; all of them hold, or it is refused. See `ExpectationKind`."""

    kind: ExpectationKind
    key: bytes = b""
    value: bytes = b""

    @classmethod
    def equals(cls, key: bytes, value: bytes) -> Expectation:
        """The register holds just this value."""
        return cls(ExpectationKind.EQUALS, key, value)

    @classmethod
    def absent(cls, key: bytes) -> Expectation:
        """There is no such register."""
        return cls(ExpectationKind.ABSENT, key)

    @classmethod
    def present(cls, key: bytes) -> Expectation:
        """The register is there, whatever it holds."""
        return cls(ExpectationKind.PRESENT, key)

    @classmethod
    def position(cls, transaction: TransactionId) -> Expectation:
        """The append's first id is exactly this one."""
        position = checked_id("transaction", transaction, 0)
        return cls(ExpectationKind.POSITION, b"", position.to_bytes(8, "little", signed=True))


class Change(NamedTuple):
    """What an append does to a register, in one atomic step with itself."""

    kind: ChangeKind
    key: bytes
    value: bytes = b""

    @classmethod
    def set(cls, key: bytes, value: bytes) -> Change:
        """The register holds this value from then on."""
        return cls(ChangeKind.SET, key, value)

    @classmethod
    def delete(cls, key: bytes) -> Change:
        """The register is gone from then on; no error if there is none."""
        return cls(ChangeKind.DELETE, key)


class Limits(NamedTuple):
    """Bounds of one append, the same as the servers': refused here before anything is sent."""

    body_bytes_max: int = 1024 * 1024
    """Of one transaction."""
    locks_max: int = 1_000
    """Of one append, or of all appends of one context."""
    group_count_max: int = 4_096
    """Appends of one context."""
    group_bytes_max: int = 8 * 1024 * 1024


_READ, _WRITE, _APPEND = LockMode
_EXPECTED: Final = frozenset(int(kind) for kind in ExpectationKind)

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
    raise BadOption(
        f"a body is bytes, not {type(data).__name__}: encode it, or connect with a serializer whose encode does"
    )


def checked_header(header: int) -> int:
    """Raises `BadOption` unless it is an integer that fits 32 bits."""
    if not isinstance(header, int) or not HEADER_MIN <= header <= HEADER_MAX:
        raise wrong("header", header, "a header is an integer of 32 bits, signed")
    return header


def joined(locks: Iterable[Lock], limits: Limits) -> bytes:
    """Locks as they wait to be sent, one after the other. Raises `TooManyLocks`, or `BadOption` for what is no lock."""
    held: list[Lock] = []
    try:
        held += locks
        packed = b"".join(held)
    except TypeError as error:
        raise _wrong_locks(locks, held) from error
    count = len(held)
    if len(packed) != count * LOCK_BYTES:
        raise _wrong_locks(locks, held)
    if count > limits.locks_max:
        raise TooManyLocks(f"{count} locks on one transaction; the limit is {limits.locks_max}: lock coarser")
    return packed


def _wrong_locks(locks: Any, held: list[Any]) -> BadOption:
    """Why these are no locks, once taking them has failed."""
    if isinstance(locks, Lock):
        return wrong("locks", locks, "one lock goes in a list, too: [Lock(name, id)]")
    for lock in held:
        if not isinstance(lock, Lock):
            return wrong("locks", locks, f"{lock!r} in it is no Lock(name, id, mode)")
    return wrong("locks", locks, "a list of Lock(name, id, mode)")


def operations(expectations: Iterable[Expectation], changes: Iterable[Change]) -> list[tuple[int, bytes, bytes]]:
    """Expectations and changes as they travel. Raises `BadOption` for what is none, or past its bounds."""
    asked: list[tuple[int, bytes, bytes]] = []
    for expectation in _listed("expectations", expectations, Expectation):
        kind, key, value = expectation
        if kind not in _EXPECTED or (kind == ExpectationKind.POSITION and len(value) != 8):
            raise wrong("expectations", expectation, "make it with Expectation.equals, absent, present or position")
        asked.append((int(kind), checked_key(key), checked_value(value)))
    for change in _listed("changes", changes, Change):
        if change.kind not in (ChangeKind.SET, ChangeKind.DELETE):
            raise wrong("changes", change, "make it with Change.set or Change.delete")
        asked.append((CHANGE + change.kind, checked_key(change.key), checked_value(change.value)))
    return asked


def _listed(name: str, given: Iterable[T], kind: type[T]) -> list[T]:
    wanted = f"a list of {kind.__name__}"
    if isinstance(given, kind) or not isinstance(given, Iterable):
        raise wrong(name, given, wanted)
    listed = list(given)
    for each in listed:
        if not isinstance(each, kind):
            raise wrong(name, each, wanted)
    return listed


class Draft:
    """The transaction that a context builds: `tx` in its first argument.

    Several appends in one context are a group: they commit one after the other, all or none. Nothing is sent before
    the context has returned. `high_water_mark` is what the client had applied when the context began; whatever the
    context reads after that is at least as new.
    """

    __slots__ = (
        "_encode",
        "_limits",
        "_over",
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
        self.locks: list[Lock] = []
        self.operations: list[tuple[int, bytes, bytes]] = []
        self.position: TransactionId | None = None
        self.size = 0
        self.abandoned: str | None = None
        self._limits = limits
        self._encode = encode
        self._over = False

    def end(self) -> None:
        """The context has returned: what is asked of this from now on would be lost, and is refused."""
        self._over = True
        self.locks = []  # the others are on their way, and none may be added to them

    def _check_open(self) -> None:
        if self._over:
            raise Closed("the context has returned: a transaction is built before that, and anew in each run")

    def read_lock(self, name: str, id: int) -> None:
        """Built on the state behind this lock: refused if another transaction has written it meanwhile."""
        self._lock(name, id, _READ)

    def write_lock(self, name: str, id: int) -> None:
        """Built on that state, and changes it."""
        self._lock(name, id, _WRITE)

    def append_lock(self, name: str, id: int) -> None:
        """Changes that state without having looked at it: never refused for it, but later readers of it are."""
        self._lock(name, id, _APPEND)

    def _lock(self, name: str, id: int, mode: LockMode) -> None:
        if len(self.locks) >= self._limits.locks_max:
            raise TooManyLocks(f"the limit is {self._limits.locks_max} locks on one transaction: lock coarser")
        self.locks.append(Lock(name, id, mode))

    def append(self, data: Any, header: int = 0) -> None:
        """Append `data` (bytes, or what the client's serializer takes) under a 32-bit header.

        Raises `BodyTooLarge`, or `BadOption` for a header or data that cannot be meant.
        """
        self._check_open()
        body = checked_body(data if self._encode is None else self._encode(data), self._limits)
        self.bodies.append((checked_header(header), body))
        self.size += len(body)
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
        self._ask([expectation], [])

    def expect_position(self, id: TransactionId) -> None:
        """Demand that the (first) append gets exactly this id; if not, the context runs again when that is applied."""
        self._ask([Expectation.position(id)], [])
        self.position = id

    def set(self, key: bytes, value: bytes) -> None:
        """Set a register, in one atomic step with the append. Raises `BadOption` past 1 KiB of key, 64 KiB of value."""
        self._ask([], [Change.set(key, value)])

    def delete(self, key: bytes) -> None:
        """Delete a register, in one atomic step with the append."""
        self._ask([], [Change.delete(key)])

    def _ask(self, expectations: list[Expectation], changes: list[Change]) -> None:
        self._check_open()
        self.operations += operations(expectations, changes)

    def abandon(self, reason: str = "the context abandoned the transaction") -> None:
        """Append nothing after all. `return tx.abandon("why")` ends the context; `run` then raises `Abandoned`.

        It is final, and it is said of the state that the view had applied when the context ran. Where that must be
        the newest, wait for it first (`Log.high_water_mark`, then `Log.wait_applied`).
        """
        self._check_open()
        self.abandoned = reason
