"""Lock ids as they travel: 64-bit hashes of name and number."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b


@lru_cache(maxsize=1_024)
def _begun(name: str) -> blake2b:
    """The hash as far as the name goes: an application has few names and many numbers."""
    raw = name.encode()
    return blake2b(len(raw).to_bytes(4, "little") + raw, digest_size=8)


@lru_cache(maxsize=65_536)
def lock_hash(name: str, number: int) -> int:
    """The hash of a lock id, the same in every client: blake2b over length-prefixed name and 64-bit number.

    The length in front keeps the two parts apart: no pair of a name and a number is confused with another.
    """
    hashed = _begun(name).copy()
    hashed.update(number.to_bytes(8, "little", signed=True))
    return int.from_bytes(hashed.digest(), "little")
