"""Locks as they are sent: 64-bit hashes of name and id, with a mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, count
from typing import Final, TypeAlias
from uuid import UUID

from polonaise.client.protocol.arguments import wrong_lock
from polonaise.terms import LockMode

LOCK_BYTES: Final = 9
"""The bytes of one lock: 8 of its hash, and behind them one for the mode."""

LockId: TypeAlias = int | str | UUID
"""The id of a lock. `7` and `"7"` are different ids."""

_MODES: Final = slice(LOCK_BYTES - 1, None, LOCK_BYTES)
_TEXT: Final = b"text"
_UUID: Final = b"uuid"
_NUMBER: Final = b""


class Lock(bytes):
    """A lock that an append carries: the piece of state, by name and id, and what the append does to it, the mode.

    ::

        await log.append(b"1 100", locks=[Lock("account", 1), Lock("iban", "DE89 3704", LockMode.READ)])

    The id is a signed 64-bit number, a text or a UUID; the mode is WRITE by default. Making the same lock again is
    cheap. Raises `BadOption` for an invalid name, id or mode.
    """

    __slots__ = ()

    def __new__(cls, name: str, id: LockId, mode: LockMode = LockMode.WRITE) -> Lock:
        try:
            if type(id) is int or type(id) in _PLAIN:
                return _KEPT[mode][name][id]
        except KeyError:
            pass  # not kept: made below
        except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
            raise wrong_lock(name, id, mode) from error
        return _new_lock(name, id, mode)

    @property
    def hash(self) -> int:
        """The 64-bit hash by which the owner knows the lock."""
        return int.from_bytes(self[:-1], "little")

    @property
    def mode(self) -> LockMode:
        """What the append does to the state behind the lock."""
        return LockMode(self[-1])

    def __repr__(self) -> str:
        return f"<Lock {self.hash:#018x} {self.mode.name}>"


def lock_columns(locks: Sequence[bytes]) -> tuple[list[int], bytearray, bytearray]:
    """Return the columns of locks that are joined for each transaction: ends counted in locks, hashes, modes."""
    hashes = bytearray().join(locks)
    modes = hashes[_MODES]
    del hashes[_MODES]
    return [end // LOCK_BYTES for end in accumulate(map(len, locks))], hashes, modes


def _new_lock(name: str, id: LockId, mode: LockMode) -> Lock:
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
"""The locks that were made lately, by mode, name and id. The second half stays empty, so that the modes -3 to -1 find
nothing. Plain dictionaries, one in the other: a look-up touches a third of the memory that one in an `lru_cache`
does."""
_PLAIN: Final = frozenset((int, str, UUID))
"""The types of ids that are looked up in `_KEPT`: True and 1.0 would be found where 1 is."""
_KEPT_MAX: Final = 65_536
"""About the most locks in `_KEPT`: the next one that is made drops all others."""
_kept_count = count()


def _keep(lock: Lock, name: str, id: LockId, mode: LockMode) -> None:
    global _kept_count
    if next(_kept_count) >= _KEPT_MAX:
        _kept_count = count()
        for kept in _KEPT:
            kept.clear()
    _KEPT[mode].setdefault(name, {})[id] = lock


def _hash(name: str, id: LockId) -> bytes:
    """Return the hash, the same in every client: 8 bytes of blake2b over the length-prefixed name and the id. The
    length keeps name and id apart, and BLAKE2's personalization the types of ids."""
    if isinstance(id, str):
        kind, raw = _TEXT, id.encode()
    elif isinstance(id, UUID):
        kind, raw = _UUID, id.bytes
    else:
        kind, raw = _NUMBER, id.to_bytes(8, "little", signed=True)
    hashed = _hash_of_name(name, kind).copy()
    hashed.update(raw)
    return hashed.digest()


@lru_cache(maxsize=1_024)
def _hash_of_name(name: str, kind: bytes) -> blake2b:
    raw = name.encode()
    return blake2b(len(raw).to_bytes(4, "little") + raw, digest_size=8, person=kind)
