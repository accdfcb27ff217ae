"""Reading a part of a log as it changes: its digest, to compare it with another copy's, and the scrub's look."""

from __future__ import annotations

import hashlib
from typing import Final

from polonaise.errors import HistoryTrimmed, OutOfOrder
from polonaise.log.partitionlog import PartitionLog
from polonaise.terms import TransactionId

_READ_BYTES: Final = 1024 * 1024


async def digest(log: PartitionLog, first: TransactionId, last: TransactionId) -> tuple[int, bytes]:
    """Return the CRC of the batch that ends at `last`, and SHA-256 over the CRCs of the batches from `first` to it.

    Each batch is verified; the log may be changed meanwhile. Raises `OutOfOrder` unless a batch begins at `first` and
    one ends at `last`, or if the log is cut; and what `PartitionLog.read` does. `first` above `last` is the digest of
    nothing.
    """
    total = hashlib.sha256()
    following, crc = first, 0
    cuts = log.slot.cuts
    while following <= last:
        batches = await log.read(following, last, _READ_BYTES)
        if log.slot.cuts != cuts:
            raise OutOfOrder("no digest: the log was cut while it was read: ask again")
        if not batches:
            raise OutOfOrder(f"no digest up to {last}: no batch of this copy ends there")
        if batches[0].first != following:
            raise OutOfOrder(f"no batch begins at {following}")
        for batch in batches:
            crc = batch.crc
            total.update(crc.to_bytes(4, "little"))
        following = batches[-1].last + 1
    return crc, total.digest()


async def verify_part(log: PartitionLog, first: TransactionId, bytes_max: int) -> tuple[int, TransactionId | None]:
    """Verify a part of the log, from the batch that holds `first` on. Return its size in bytes, and the id to go on
    from.

    The id is None at the end of the log. A segment's header and registers are verified with its first batch. At most
    `bytes_max` bytes of batches, unless the first one is larger; none where `first` is trimmed meanwhile. Raises
    `DamageFound`, and `partition_unavailable` when the log has to be opened anew.
    """
    try:
        first = max(first, log.first)
        beginning_bytes = await log.check_beginning(first)
        batches = await log.read(first, log.last, bytes_max)
    except HistoryTrimmed:  # trimmed since the look at `log.first`: go on with what is left
        return 0, log.first
    if not batches:
        return beginning_bytes, None
    following = batches[-1].last + 1
    return beginning_bytes + sum(batch.length for batch in batches), following if following <= log.last else None
