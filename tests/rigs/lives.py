"""Two lives of a log that begin alike: one that was given up, such as by a reset of the head, and the one that goes on.

Batch `n` of both has the ids from `EACH * n` on.
"""

from __future__ import annotations

from typing import Any

from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore
from polonaise.log.batch import Batch
from rigs.fragments import KEY, PARTITION, batches_of, named_fragment

EACH = 4
"""The transactions of each batch."""
TIME_US = 1_000_000
"""So many microseconds are between two batches, of whichever life."""


def life(name: bytes, begun: list[Batch], count: int, partition: int = PARTITION) -> list[Batch]:
    """Return `begun`, and so many batches more that only this life of the log has."""
    rows = [(1, 2, n, 0, name, -1, []) for n in range(EACH)]
    plan: list[Any] = [(rows, 3, 4, TIME_US * (len(begun) + n), False, False) for n in range(1, count + 1)]
    last, crc = (begun[-1].last, begun[-1].crc) if begun else (-1, 0)
    return begun + batches_of(plan, last + 1, crc, partition=partition)


BEGUN = life(b"both", [], 2)
FIRST, SECOND = life(b"first", BEGUN, 12), life(b"second", BEGUN, 12)


async def put(store: ObstoreStore, batches: list[Batch], key: bytes = KEY) -> FragmentName:
    """Put a fragment of these batches into the store."""
    name, raw = named_fragment(batches, key)
    await store.put_if_absent(name.path, raw)
    return name
