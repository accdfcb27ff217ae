"""The scrub of a log's segments: read them to find out whether they can still be read."""

from __future__ import annotations

from polonaise.errors import HistoryTrimmed
from polonaise.log.partitionlog import PartitionLog
from polonaise.terms import TransactionId


async def verify_part(log: PartitionLog, first: TransactionId, bytes_max: int) -> tuple[int, TransactionId | None]:
    """Verify a part of the log, from the batch that holds `first` on. Return its size, and the id to go on from.

    The size is in bytes; the id is None at the end of the log. Header, registers and batches of a segment are covered
    by checksums, and so verified: header and registers together with the segment's first batch. At most `bytes_max`
    bytes of batches, unless the first one is larger. Where `first` is trimmed meanwhile, nothing is verified: 0 bytes.
    Raises `DamageFound`, and `partition_unavailable` when the log has to be opened anew.
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
