"""A block: rows of one log partition, laid out as the columns of an append, so that publishing looks at no row.

All numbers are little-endian. First a header of 20 bytes: magic `PLNR` · version u16 · flags u16 (1: with locks) · rows
u32 · bytes of data u32 · locks u32. Then columns: header i32 of each row · CRC-32 of its data u32 · end of its data u32
(in bytes, cumulative) · with flag 1 the end of its locks u32 (in locks, cumulative), the hash u64 of each lock, and the
mode u8 of each · the data. A block has no checksum of its own: `plans.BlockRef`, which refers to it, has its CRC-32.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from polonaise.client.protocol.group import Group
from polonaise.client.protocol.locks import LOCK_BYTES
from polonaise.errors import fault
from polonaise.wire.codec import Buffer

VERSION: Final = 1
LOCKS: Final = 1
_HEADER: Final = struct.Struct("<4sHHIII")
_MAGIC: Final = b"PLNR"


def encode(
    headers: np.ndarray[Any, Any],
    crcs: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any],
    data: Sequence[Buffer],
    locks: Sequence[bytes] | None,
) -> bytes:
    """Encode a block from its rows' headers, the CRCs and lengths of their bodies, and the bodies in any pieces.
    `locks` holds the encoded locks of each row, in the layout of `Lock`; None for a block without them."""
    parts: list[Buffer] = [
        headers.astype("<i4", copy=False).tobytes(),
        crcs.astype("<u4", copy=False).tobytes(),
        np.cumsum(lengths, dtype="<u4").tobytes(),
    ]
    lock_count = 0
    if locks is not None:
        lock_rows = np.frombuffer(b"".join(locks), "u1").reshape(-1, LOCK_BYTES)
        lock_count = len(lock_rows)
        ends = [end // LOCK_BYTES for end in accumulate(map(len, locks))]
        parts += [np.array(ends, "<u4").tobytes(), lock_rows[:, :-1].tobytes(), lock_rows[:, -1].tobytes()]
    size = int(lengths.sum())
    head = _HEADER.pack(_MAGIC, VERSION, LOCKS if locks is not None else 0, len(headers), size, lock_count)
    return b"".join([head, *parts, *data])


class Block(NamedTuple):
    """A decoded block. Its columns are views of its bytes, not copies."""

    headers: np.ndarray[Any, Any]
    crcs: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]
    data: memoryview
    lock_ends: np.ndarray[Any, Any]
    lock_hashes: np.ndarray[Any, Any]
    lock_modes: np.ndarray[Any, Any]

    @classmethod
    def decode(cls, raw: Buffer) -> Block:
        """Return the block with these bytes. Raises `sink_state_damaged` unless it is one whole block of this
        version."""
        try:
            magic, version, flags, count, size, locks = _HEADER.unpack_from(raw)
        except struct.error:
            magic, version, flags, count, size, locks = b"", 0, 0, 0, 0, 0
        # The lengths that the header names must add up to all of `raw`, before anything is read by them.
        lock_bytes = (4 * count + LOCK_BYTES * locks) if flags & LOCKS else 0
        if magic != _MAGIC or version != VERSION or len(raw) != _HEADER.size + 12 * count + lock_bytes + size:
            raise fault(
                "sink_state_damaged",
                "staged rows do not read as a block of this version: publish them with the version that staged them, "
                "or write them under another txnAppId",
            )
        at = _HEADER.size
        headers = np.frombuffer(raw, "<i4", count, at)
        crcs = np.frombuffer(raw, "<u4", count, at + 4 * count)
        ends = np.frombuffer(raw, "<u4", count, at + 8 * count)
        at += 12 * count
        if flags & LOCKS:
            lock_ends = np.frombuffer(raw, "<u4", count, at)
            lock_hashes = np.frombuffer(raw, "<u8", locks, at + 4 * count)
            lock_modes = np.frombuffer(raw, "u1", locks, at + 4 * count + 8 * locks)
        else:
            lock_ends, lock_hashes, lock_modes = np.zeros(count, "<u4"), np.zeros(0, "<u8"), np.zeros(0, "u1")
        return cls(headers, crcs, ends, memoryview(raw)[at + lock_bytes :], lock_ends, lock_hashes, lock_modes)


def joined(blocks: Sequence[Block]) -> Group:
    """Return the rows of these blocks, in order, as one group."""
    data: Buffer = blocks[0].data if len(blocks) == 1 else b"".join([block.data for block in blocks])
    # Most writes have no locks: their groups then carry no lock columns at all.
    with_locks = any(len(block.lock_hashes) for block in blocks)
    columns: list[Buffer] = []
    if with_locks:
        columns = [
            _ends([block.lock_ends for block in blocks], [len(block.lock_hashes) for block in blocks]),
            np.concatenate([block.lock_hashes for block in blocks]).tobytes(),
            np.concatenate([block.lock_modes for block in blocks]).tobytes(),
        ]
    return Group(
        np.concatenate([block.headers for block in blocks]).tobytes(),
        np.concatenate([block.crcs for block in blocks]).tobytes(),
        _ends([block.ends for block in blocks], [len(block.data) for block in blocks]),
        data,
        *columns,
    )


def _ends(ends: Sequence[np.ndarray[Any, Any]], totals: Sequence[int]) -> bytes:
    """Join the blocks' columns of cumulative ends: each block's are raised by the totals of the blocks before it."""
    bases = [0, *accumulate(totals)]
    return np.concatenate([each + np.uint32(base) for each, base in zip(ends, bases, strict=False)]).tobytes()
