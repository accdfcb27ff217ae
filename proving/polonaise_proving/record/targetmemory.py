"""The memory of a simulated target: a file of records, each of which is one durable step.

A record says that a fence was taken, or how far a partition was applied and what came of that. Whoever reads the file
stops at the first bytes that are no whole record: a step that was broken off has not happened.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from polonaise.player.protocol.entries import NO_FENCE, Fence, RoutedEntry
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

MEMORY_FILE: Final = "memory"
_HEAD: Final = struct.Struct("<IIB")
"""The head of a record: the CRC of what follows it in the record, the length of its body, and its kind."""
_FENCE: Final = struct.Struct("<qq")
_STEP: Final = struct.Struct("<iqi")
_EFFECT: Final = struct.Struct("<qi")
_FENCE_KIND: Final = 1
_STEP_KIND: Final = 2


class FenceTaken(NamedTuple):
    """A stream was accepted under this fence."""

    fence: Fence


class StepTaken(NamedTuple):
    """A partition was applied up to `last`."""

    partition: PartitionId
    last: TransactionId
    effects: Sequence[RoutedEntry]
    """What came of it: the entries that were applied, without dummies."""


Record: TypeAlias = FenceTaken | StepTaken


def encode(record: Record) -> bytes:
    if isinstance(record, FenceTaken):
        kind, body = _FENCE_KIND, _FENCE.pack(*record.fence)
    else:
        kind = _STEP_KIND
        parts = [_STEP.pack(record.partition, record.last, len(record.effects))]
        for id, effect in record.effects:
            assert effect is not None
            parts += [_EFFECT.pack(id, len(effect)), effect]
        body = b"".join(parts)
    tail = struct.pack("<IB", len(body), kind) + body
    return struct.pack("<I", crc32(tail)) + tail


def decode(raw: bytes, start: int = 0) -> Iterator[tuple[Record, int]]:
    """Yield each whole record from `start` on, with the offset behind it."""
    while start + _HEAD.size <= len(raw):
        crc, length, kind = _HEAD.unpack_from(raw, start)
        end = start + _HEAD.size + length
        if end > len(raw) or crc32(raw[start + 4 : end]) != crc:
            return
        body = raw[start + _HEAD.size : end]
        yield (FenceTaken(Fence(*_FENCE.unpack(body))) if kind == _FENCE_KIND else _step(body)), end
        start = end


def _step(body: bytes) -> StepTaken:
    partition, last, count = _STEP.unpack_from(body)
    effects, at = [], _STEP.size
    for _ in range(count):
        id, length = _EFFECT.unpack_from(body, at)
        at += _EFFECT.size
        effects.append(RoutedEntry(id, body[at : at + length]))
        at += length
    return StepTaken(partition, last, effects)


@dataclass(slots=True)
class TargetMemory:
    """What a target knows of itself."""

    fence: Fence = NO_FENCE
    applied: dict[PartitionId, TransactionId] = field(default_factory=dict)
    """By partition: the last id that was applied."""
    length: int = 0
    """The bytes of the file that hold this."""

    def last(self, partition: PartitionId) -> TransactionId:
        return self.applied.get(partition, NO_TRANSACTION)

    def take(self, records: Iterable[tuple[Record, int]], start: int = 0) -> None:
        """Note what records say that lie `start` bytes behind the beginning of the file."""
        for record, end in records:
            if isinstance(record, FenceTaken):
                self.fence = record.fence
            else:
                self.applied[record.partition] = record.last
            self.length = start + end
