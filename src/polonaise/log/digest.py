"""The digest of a part of a log, to be compared with another copy's."""

from __future__ import annotations

import hashlib
from typing import Final

from polonaise.errors import OutOfOrder
from polonaise.log.partitionlog import PartitionLog
from polonaise.terms import TransactionId

_READ_BYTES: Final = 1024 * 1024


async def digest(log: PartitionLog, first: TransactionId, last: TransactionId) -> tuple[int, bytes]:
    """Return the CRC of the batch that ends at `last`, and SHA-256 over the CRCs of the batches from `first` to it.

    Each batch is verified. May run while the log is changed. Raises `OutOfOrder` unless a batch begins at `first` and
    one ends at `last`, and if the log is cut meanwhile; `DamageFound`, `HistoryTrimmed` and `partition_unavailable` as
    `PartitionLog.read` does. With `first` above `last` nothing is looked at or raised: returns 0 and the digest of
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
