"""A partition's registers: a small exact map bytes → bytes, and its changes as they travel in batches.

Changes are as durable as data because they are data: section `registers` of a batch. An encoded section is a run of
``kind u8 (0 set, 1 delete) · key length u16 · value length u32 · key · value``; a snapshot is the same with sets only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from polonaise.errors import BatchDamaged

KEY_BYTES_MAX: Final = 1_024
VALUE_BYTES_MAX: Final = 64 * 1024
TOTAL_BYTES_MAX: Final = 1024 * 1024
"""Bound on all keys and values of a partition together, so that a snapshot is one small read."""

_CHANGE: Final = struct.Struct("<BHI")
_SET: Final = 0
_DELETE: Final = 1

Change = tuple[bytes, bytes | None]
"""(key, new value), or (key, None) for a deletion."""


def encode(changes: Iterable[Change]) -> bytes:
    """The registers section that makes these changes, in this order."""
    parts: list[bytes] = []
    for key, value in changes:
        if value is None:
            parts.append(_CHANGE.pack(_DELETE, len(key), 0) + key)
        else:
            parts.append(_CHANGE.pack(_SET, len(key), len(value)) + key + value)
    return b"".join(parts)


def decode(section: bytes | memoryview) -> Iterator[Change]:
    """The changes of a section, in order. Raises `BatchDamaged` for bytes that are not one."""
    raw = bytes(section)
    offset = 0
    while offset < len(raw):
        if offset + _CHANGE.size > len(raw):
            raise BatchDamaged("registers section cut short")
        kind, key_bytes, value_bytes = _CHANGE.unpack_from(raw, offset)
        offset += _CHANGE.size
        end = offset + key_bytes + value_bytes
        if kind > _DELETE or end > len(raw) or (kind == _DELETE and value_bytes):
            raise BatchDamaged("registers section does not parse")
        key = raw[offset : offset + key_bytes]
        yield key, None if kind == _DELETE else raw[offset + key_bytes : end]
        offset = end


def apply(registers: dict[bytes, bytes], section: bytes | memoryview) -> None:
    """Change `registers` as the section says; not at all if it is damaged."""
    for key, value in list(decode(section)):
        if value is None:
            registers.pop(key, None)
        else:
            registers[key] = value


def snapshot(registers: dict[bytes, bytes]) -> bytes:
    """A section that makes an empty map into this one; equal maps give equal bytes."""
    return encode(sorted(registers.items()))
