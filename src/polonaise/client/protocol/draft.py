"""What an application says of a transaction before it is sent: bodies, locks, expectations, changes of registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from polonaise.client.protocol.arguments import checked_id, checked_key, checked_value, wrong
from polonaise.client.protocol.locks import LOCK_BYTES, Lock, LockId
from polonaise.errors import BadOption, BodyTooLarge, Closed, TooManyLocks
from polonaise.log import registers
from polonaise.terms import ChangeKind, ExpectationKind, LockMode, OwnKind, PartitionId, TransactionId
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
        """The register holds this value from then on. Not under `producer/` and `spark/`, which are the library's."""
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
    """The bodies of appends that commit as one; with the locks, where these are a `Group`."""


_READ, _WRITE, _APPEND = LockMode
_EXPECTED: Final = frozenset(int(kind) for kind in ExpectationKind)

OPERATIONS_MAX: Final = 32_768
"""Expectations and changes of one append or context: what servers take in one frame is bounded, too."""
OPERATIONS_BYTES_MAX: Final = 16 * 1024 * 1024
"""Their keys and values together: a frame has room for these and for the largest group."""
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
    if not isinstance(header, int) or isinstance(header, bool) or not HEADER_MIN <= header <= HEADER_MAX:
        raise wrong("header", header, "a header is an integer of 32 bits, signed")
    return header


def joined(locks: Iterable[Lock], limits: Limits) -> bytes:
    """Locks as they wait to be sent, one after the other. Raises `TooManyLocks`, or `BadOption` for what is no lock."""
    if type(locks) is list and len(locks) == 1 and type(locks[0]) is Lock:
        return locks[0]  # the common case: it is the very bytes already
    held: list[Lock] = []
    try:
        # Of what makes them one by one, no more are made than it takes to see that they are too many.
        held += locks if type(locks) is list else islice(locks, limits.locks_max + 1)
        if len(held) > limits.locks_max:
            raise TooManyLocks(
                f"{len(held)}{'' if type(locks) is list else ' or more'} locks on one transaction; the limit is "
                f"{limits.locks_max}: lock coarser"
            )
        packed = b"".join(held)
    except TypeError as error:
        raise _wrong_locks(locks, held) from error
    if len(packed) != len(held) * LOCK_BYTES:
        raise _wrong_locks(locks, held)
    return packed


def _wrong_locks(locks: Any, held: list[Any]) -> BadOption:
    """Why these are no locks, once taking them has failed."""
    if isinstance(locks, Lock):
        return wrong("locks", locks, "one lock goes in a list, too: [Lock(name, id)]")
    for lock in held:
        if not isinstance(lock, Lock):
            return wrong("locks", locks, f"{lock!r} in it is no Lock(name, id, mode)")
    return wrong("locks", locks, "a list of Lock(name, id, mode)")


def operations(
    expectations: Iterable[Expectation], changes: Iterable[Change], *, own: bool = False
) -> list[tuple[int, bytes, bytes]]:
    """Expectations and changes as they travel. Raises `BadOption` for what is none, or past its bounds.

    Registers of the library's are set by the library only (`own`): an application may look at them, and delete those
    that nobody needs any more.
    """
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
        if change.kind == ChangeKind.SET and not own and change.key.startswith(registers.RESERVED):
            raise _reserved(change.key)
    _check_operations(len(asked), bytes_of(asked))
    return asked


def _reserved(key: bytes) -> BadOption:
    (prefix,) = [each for each in registers.RESERVED if key.startswith(each)]
    return wrong(
        "key", key, f"registers under {prefix!r} are the library's: begin the keys of your own registers otherwise"
    )


def bytes_of(asked: Iterable[tuple[int, bytes, bytes]]) -> int:
    """How many bytes the keys and values of expectations and changes have."""
    return sum(len(key) + len(value) for _, key, value in asked)


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
    listed = list(islice(given, OPERATIONS_MAX + 1))
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
        "_asked_bytes",
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
        self._asked_bytes = 0
        self._limits = limits
        self._encode = encode
        self._over = False

    @property
    def sent_bytes(self) -> int:
        """Bytes of its bodies, its locks, and the keys and values that it expects and changes."""
        return self.size + LOCK_BYTES * len(self.locks) + self._asked_bytes

    def end(self) -> None:
        """The context has returned: what is asked of this from now on would be lost, and is refused."""
        self._over = True

    def _check_open(self) -> None:
        if self._over:
            raise Closed("the context has returned: a transaction is built before that, and anew in each run")

    def read_lock(self, name: str, id: LockId) -> None:
        """Built on the state behind this lock: refused if another transaction has written it meanwhile."""
        self._lock(name, id, _READ)

    def write_lock(self, name: str, id: LockId) -> None:
        """Built on that state, and changes it."""
        self._lock(name, id, _WRITE)

    def append_lock(self, name: str, id: LockId) -> None:
        """Changes that state without having looked at it: never refused for it, but later readers of it are."""
        self._lock(name, id, _APPEND)

    def _lock(self, name: str, id: LockId, mode: LockMode) -> None:
        if self._over:
            self._check_open()
        locks = self.locks
        if len(locks) >= self._limits.locks_max:
            raise TooManyLocks(f"the limit is {self._limits.locks_max} locks on one transaction: lock coarser")
        locks.append(Lock(name, id, mode))

    def append(self, data: Any, header: int = 0) -> None:
        """Append `data` (bytes, or what the client's serializer takes) under a 32-bit header.

        Raises `BodyTooLarge`, or `BadOption` for a header or data that cannot be meant.
        """
        if self._over:
            self._check_open()
        limits, bodies = self._limits, self.bodies
        body = checked_body(data if self._encode is None else self._encode(data), limits)
        if header or type(header) is not int:
            checked_header(header)
        bodies.append((header, body))
        self.size += len(body)
        if len(bodies) > 1 and (len(bodies) > limits.group_count_max or self.size > limits.group_bytes_max):
            raise BodyTooLarge(
                f"a group of {len(bodies)} appends with {self.size} bytes; the limits are "
                f"{limits.group_count_max} and {limits.group_bytes_max}: split it"
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
        """Demand that the (first) append gets exactly this id; if not, the context runs again when that is applied.

        `run` raises `ExpectationFailed` for a position up to `high_water_mark`, which no append can get any more, and
        for one that is too high when the append is ordered.
        """
        self._ask([Expectation.position(id)], [])
        self.position = id

    def set(self, key: bytes, value: bytes) -> None:
        """Set a register, in one atomic step with the append.

        Raises `BadOption` past 1 KiB of key or 64 KiB of value, and for a key under a prefix of the library's own.
        """
        self._ask([], [Change.set(key, value)])

    def delete(self, key: bytes) -> None:
        """Delete a register, in one atomic step with the append."""
        self._ask([], [Change.delete(key)])

    def _ask(self, expectations: list[Expectation], changes: list[Change]) -> None:
        self._check_open()
        asked = operations(expectations, changes)
        self.operations += asked
        self._asked_bytes += bytes_of(asked)
        _check_operations(len(self.operations), self._asked_bytes)

    def abandon(self, reason: str = "the context abandoned the transaction") -> None:
        """Append nothing after all. `return tx.abandon("why")` ends the context; `run` then raises `Abandoned`.

        It is final, and it is said of the state that the view had applied when the context ran. Where that must be
        the newest, wait for it first (`Log.high_water_mark`, then `Log.wait_applied`).
        """
        self._check_open()
        self.abandoned = reason


def append_own(draft: Draft, kind: OwnKind, data: bytes) -> None:
    """Append something of the library's own behind everything else in the draft; no method, for it is nobody else's."""
    draft._check_open()
    draft.bodies.append((int(kind), checked_body(data, draft._limits)))
    draft.size += len(data)
    draft.operations.append((CHANGE + ChangeKind.OWN, b"", b""))
