"""Locks as they travel: 64-bit hashes of name and id, with a mode."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import Final, TypeAlias
from uuid import UUID

from polonaise.client.protocol.arguments import wrong_lock
from polonaise.terms import LockMode

LOCK_BYTES: Final = 9
"""Of one lock: its hash, and behind it one byte for the mode."""

LockId: TypeAlias = int | str | UUID
"""What a lock's name is said of: a signed 64-bit number, a text, or a UUID. `7` and `"7"` are two."""

_TEXT: Final = b"text"
_UUID: Final = b"uuid"
_NUMBER: Final = b""


class Lock(bytes):
    """A lock that an append carries: on what, and what the append does to it.

    `Lock("account", 7)` is for writing. The id is a signed 64-bit number, a text or a UUID. A lock can be used any
    number of times; what was asked for lately is kept, so asking for it again is cheap. Raises `BadOption` for what is
    no lock.

    It is the very bytes that travel: there are locks for every transaction, and bytes are joined into columns without
    a look at each, and never looked at by the garbage collector.
    """

    __slots__ = ()

    def __new__(cls, name: str, id: LockId, mode: LockMode = LockMode.WRITE) -> Lock:
        try:
            if type(id) is int or type(id) in _PLAIN:
                return _KEPT[mode][name][id]
        except KeyError:
            pass
        except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
            raise wrong_lock(name, id, mode) from error
        return _made(name, id, mode)

    @property
    def hash(self) -> int:
        """What the owner knows it by."""
        return int.from_bytes(self[:-1], "little")

    @property
    def mode(self) -> LockMode:
        """What the append does to it."""
        return LockMode(self[-1])

    def __repr__(self) -> str:
        return f"<Lock {self.hash:#018x} {self.mode.name}>"


def _made(name: str, id: LockId, mode: LockMode) -> Lock:
    try:
        if isinstance(id, bool):
            raise TypeError
        lock = bytes.__new__(Lock, _hash(name, id) + bytes([LockMode(mode)]))
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise wrong_lock(name, id, mode) from error
    if type(id) in _PLAIN:
        _keep(lock, name, id, mode)
    return lock


_KEPT: Final[tuple[dict[str, dict[LockId, Lock]], ...]] = tuple({} for _ in range(2 * len(LockMode)))
"""The locks that were asked for lately: by mode, name and id; the second half stays empty, so that a negative mode
finds nothing. Plain dictionaries, one in the other, because a look into them touches a third of the memory that one
into an `lru_cache` does, and nearly all that a lock costs is to wait for memory."""
_PLAIN: Final = frozenset((int, str, UUID))
"""What is looked for among the kept. True, 1.0 and numbers of other libraries are found where 1 is, but are no ids."""
_KEPT_MAX: Final = 65_536
_kept_count = count()


def _keep(lock: Lock, name: str, id: LockId, mode: LockMode) -> None:
    """Keep a lock that was made; when there are too many, all others are forgotten."""
    global _kept_count
    if next(_kept_count) >= _KEPT_MAX:
        _kept_count = count()
        for kept in _KEPT:
            kept.clear()
    _KEPT[mode].setdefault(name, {})[id] = lock


def _hash(name: str, id: LockId) -> bytes:
    """The hash of a lock, the same in every client: blake2b over length-prefixed name and id, told apart by its type.

    The length in front keeps the two parts apart, and BLAKE2's personalization the types: no pair of a name and an id
    is confused with another, not with that of another type either.
    """
    if isinstance(id, str):
        kind, raw = _TEXT, id.encode()
    elif isinstance(id, UUID):
        kind, raw = _UUID, id.bytes
    else:
        kind, raw = _NUMBER, id.to_bytes(8, "little", signed=True)
    hashed = _begun(name, kind).copy()
    hashed.update(raw)
    return hashed.digest()


@lru_cache(maxsize=1_024)
def _begun(name: str, kind: bytes) -> blake2b:
    """The hash as far as the name goes: an application has few names and many ids."""
    raw = name.encode()
    return blake2b(len(raw).to_bytes(4, "little") + raw, digest_size=8, person=kind)
