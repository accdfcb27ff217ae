"""A partition's registers: a small exact map bytes → bytes, and its changes as they travel in batches.

An encoded section is a run of ``kind u8 (0 set, 1 delete) · key length u16 · value length u32 · key · value``; a
snapshot is the same with sets only.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from polonaise.errors import BatchDamaged, ProtocolError

KEY_BYTES_MAX: Final = 1_024
VALUE_BYTES_MAX: Final = 64 * 1024
TOTAL_BYTES_MAX: Final = 1024 * 1024
"""The bound on all keys and values of a partition together, in bytes, so that a snapshot is one small read."""

PRODUCERS: Final = b"producer/"
"""The prefix of the keys of idempotent producers."""
SPARK_SINKS: Final = b"spark/"
"""The prefix of the Spark sink's keys: per application, how far its latest batch is appended, and how it is divided."""
GROUPS: Final = b"group/"
"""The prefix of the keys of worker groups: per group, the epoch of the partition's worker and how far it is."""
RESERVED: Final = (PRODUCERS, SPARK_SINKS, GROUPS)
"""The prefixes of the keys that only the library sets."""
PAGE_COUNT_MAX: Final = 4_096
"""How many registers one page has at most, so that listing many holds up other requests only briefly."""
PAGE_BYTES_MAX: Final = 256 * 1024
"""About how many bytes of keys and values one page has at most: its last register may exceed this."""

_CHANGE: Final = struct.Struct("<BHI")
_SET: Final = 0
_DELETE: Final = 1

Change = tuple[bytes, bytes | None]
"""One change of a register: (key, new value), or (key, None) for a deletion."""


def encode(changes: Iterable[Change]) -> bytes:
    """Return the registers section that makes these changes, in this order."""
    parts: list[bytes] = []
    for key, value in changes:
        if value is None:
            parts.append(_CHANGE.pack(_DELETE, len(key), 0) + key)
        else:
            parts.append(_CHANGE.pack(_SET, len(key), len(value)) + key + value)
    return b"".join(parts)


def decode(section: bytes | memoryview) -> Iterator[Change]:
    """Yield the changes of a section, in order. Raises `BatchDamaged` for bytes that are no section."""
    raw = bytes(section)
    offset = 0
    while offset < len(raw):
        if offset + _CHANGE.size > len(raw):
            raise BatchDamaged("the registers section is cut short")
        kind, key_bytes, value_bytes = _CHANGE.unpack_from(raw, offset)
        offset += _CHANGE.size
        end = offset + key_bytes + value_bytes
        if kind > _DELETE or end > len(raw) or (kind == _DELETE and value_bytes):
            raise BatchDamaged("the registers section does not parse")
        key = raw[offset : offset + key_bytes]
        yield key, None if kind == _DELETE else raw[offset + key_bytes : end]
        offset = end


def apply(registers: dict[bytes, bytes], section: bytes | memoryview) -> None:
    """Change `registers` as the section says; not at all if the section is damaged (`BatchDamaged`)."""
    for key, value in list(decode(section)):
        if value is None:
            registers.pop(key, None)
        else:
            registers[key] = value


def snapshot(registers: dict[bytes, bytes]) -> bytes:
    """Return a section that makes an empty map into this one; equal maps give equal bytes."""
    return encode(sorted(registers.items()))


def sets_of(section: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the registers of a snapshot that a peer sent. Raises `ProtocolError` for anything else."""
    try:
        for key, value in decode(section):
            if value is None:
                raise ProtocolError("a snapshot of registers has a deletion in it")
            yield key, value
    except BatchDamaged as error:
        raise ProtocolError(f"a snapshot of registers does not parse: {error.text}") from error


class RegisterPage(NamedTuple):
    """Some registers, in the order of their keys."""

    changes: list[Change]
    more: bool
    """Whether more of the requested registers follow this page."""


def page(
    registers: Mapping[bytes, bytes], keys: Sequence[bytes], prefix: bytes, first: bytes, count_max: int | None = None
) -> RegisterPage:
    """Return a page, not empty while any is left, of the registers with keys that begin with `prefix`, from `first` on.

    `keys` are all keys in order; `count_max` is `PAGE_COUNT_MAX` unless given.
    """
    count_max = count_max or PAGE_COUNT_MAX
    chosen: list[Change] = []
    size = 0
    for position in range(bisect_left(keys, max(prefix, first)), len(keys)):
        key = keys[position]
        if not key.startswith(prefix):
            break
        if len(chosen) == count_max or size >= PAGE_BYTES_MAX:
            return RegisterPage(chosen, True)
        value = registers[key]
        chosen.append((key, value))
        size += len(key) + len(value)
    return RegisterPage(chosen, False)


def after(key: bytes) -> bytes:
    """Return the least key above this one."""
    return key + b"\0"
