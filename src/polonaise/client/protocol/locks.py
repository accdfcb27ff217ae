"""Lock ids as they travel: 64-bit hashes of name and number."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b


@lru_cache(maxsize=65_536)
def lock_hash(name: str, number: int) -> int:
    """The hash of a lock id, the same in every client: blake2b over length-prefixed name and 64-bit number.

    The length in front keeps the two parts apart: no pair of a name and a number is confused with another.
    """
    raw = name.encode()
    digest = blake2b(
        len(raw).to_bytes(4, "little") + raw + number.to_bytes(8, "little", signed=True), digest_size=8
    ).digest()
    return int.from_bytes(digest, "little")
