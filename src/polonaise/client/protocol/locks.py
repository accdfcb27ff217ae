"""Locks as they travel: 64-bit hashes of name and id, with a mode."""

from __future__ import annotations

from functools import lru_cache, partial
from hashlib import blake2b
from typing import Final

from polonaise.client.protocol.arguments import wrong_lock
from polonaise.terms import LockMode

LOCK_BYTES: Final = 9
"""Of one lock: its hash, and behind it one byte for the mode."""


class Lock(bytes):
    """A lock that an append carries: on what, and what the append does to it.

    `Lock("account", 7)` is for writing. The id is a signed 64-bit number. A lock can be used any number of times; what
    was asked for lately is kept, so asking for it again is cheap. Raises `BadOption` for what is no lock.

    It is the very bytes that travel: there are locks for every transaction, and bytes are joined into columns without
    a look at each, and never looked at by the garbage collector.
    """

    __slots__ = ()

    def __new__(cls, name: str, id: int, mode: LockMode = LockMode.WRITE) -> Lock:
        try:
            return _LATELY[mode](name, id)
        except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
            raise wrong_lock(name, id, mode) from error

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


def _made(mode: LockMode, name: str, id: int) -> Lock:
    return bytes.__new__(Lock, _hash(name, id) + bytes([mode]))


_LATELY: Final = tuple(lru_cache(maxsize=65_536)(partial(_made, mode)) for mode in LockMode)
"""The locks that were asked for lately. One cache for each mode, because members of an enum are slow as keys."""


def _hash(name: str, id: int) -> bytes:
    """The hash of a lock, the same in every client: blake2b over length-prefixed name and 64-bit id.

    The length in front keeps the two parts apart: no pair of a name and an id is confused with another.
    """
    hashed = _begun(name).copy()
    hashed.update(id.to_bytes(8, "little", signed=True))
    return hashed.digest()


@lru_cache(maxsize=1_024)
def _begun(name: str) -> blake2b:
    """The hash as far as the name goes: an application has few names and many ids."""
    raw = name.encode()
    return blake2b(len(raw).to_bytes(4, "little") + raw, digest_size=8)
