"""Reading a log for no other reason than to find out whether it still reads."""

from __future__ import annotations

from polonaise.errors import HistoryTrimmed
from polonaise.log.partitionlog import PartitionLog
from polonaise.terms import TransactionId


async def look(log: PartitionLog, first: TransactionId, bytes_max: int) -> tuple[int, TransactionId | None]:
    """Verify some of what is held, from the batch with `first` on: how many bytes, and the id that follows them.

    None for that when this was the end. Every byte of a segment up to its last synced batch is covered by a checksum,
    and so looked at: header and registers with its first batch. Raises `DamageFound`.
    """
    try:
        first = max(first, log.first)
        seen = await log.check_beginning(first)
        batches = await log.read(first, log.last, bytes_max)
    except HistoryTrimmed:  # meanwhile: what is left is looked at next
        return 0, log.first
    if not batches:
        return seen, None
    following = batches[-1].last + 1
    return seen + sum(batch.length for batch in batches), following if following <= log.last else None
