"""Walk over one copy of a partition's batches: check that each follows the one before it, and sum up their digests.

The digest of many batches is the sum of their SHA-256, so that it can be put together from parts. To find where copies
differ, digests are kept by ranges of `BLOCK_IDS` ids, here called blocks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from polonaise.errors import BatchDamaged, DataDamaged, FragmentDamaged, NotFound, SegmentDamaged
from polonaise.fragments.protocol.coverage import Span
from polonaise.log.batch import Batch
from polonaise.terms import NO_TRANSACTION, SessionId, TransactionId

BLOCK_IDS: Final = 262_144
"""Number of ids in each range by which copies are compared. A batch belongs to the one in which it begins."""
_MODULUS: Final = 2**256
_DAMAGES: Final = (BatchDamaged, DataDamaged, FragmentDamaged, SegmentDamaged, NotFound)


class End(NamedTuple):
    """A batch's ids, CRCs, commit time and session: enough to check the batches before and after it."""

    first: TransactionId
    last: TransactionId
    crc: int
    previous_crc: int
    commit_time_us: int
    session: SessionId


@dataclass(frozen=True)
class Walk:
    """The result of walking over consecutive batches in one copy of a partition, or in a part of a copy."""

    begin: End | None = None
    """The first batch; None if there is none, or if it is bad."""
    end: End | None = None
    """The last good batch; None for none."""
    transactions: int = 0
    """Number of transactions in the good batches."""
    digests: dict[int, int] = field(default_factory=dict)
    """Digest of the good batches that begin in each range of `BLOCK_IDS` ids, by the range's number: 0, 1, 2, …"""
    trouble: str = ""
    """Why the walk stopped early; empty if it reached the end."""

    @property
    def digest(self) -> str:
        """Digest of all good batches, in hexadecimal."""
        return f"{sum(self.digests.values()) % _MODULUS:064x}"


def walk(batches: Iterable[Batch]) -> Walk:
    """Walk over batches, and check each by itself and against the one before it. Stops at the first bad one.

    Errors of damage, and `NotFound`, end the walk, and are its `trouble`; others of reading are raised.
    """
    begin = end = None
    transactions, trouble = 0, ""
    digests: Counter[int] = Counter()
    try:
        for batch in batches:
            now = End(batch.first, batch.last, batch.crc, batch.previous_crc, batch.commit_time_us, batch.session)
            trouble = _damage(batch) or ("" if end is None else gap(end, now))
            if trouble:
                break
            digests[block_of(batch.first)] += digest_of(batch)
            begin, end, transactions = begin or now, now, transactions + batch.count
    except _DAMAGES as error:
        trouble = error.text
    return Walk(begin, end, transactions, dict(digests), trouble)


def joined(walks: Sequence[Walk]) -> Walk:
    """Join walks that follow each other into one. Stops at the first trouble in one of them, or between two."""
    merged = Walk()
    for each in walks:
        if merged.end is not None and each.begin is not None and (trouble := gap(merged.end, each.begin)):
            return replace(merged, trouble=trouble)
        digests = Counter(merged.digests)
        digests.update(each.digests)
        merged = Walk(
            merged.begin or each.begin,
            each.end or merged.end,
            merged.transactions + each.transactions,
            dict(digests),
            each.trouble,
        )
        if merged.trouble:
            break
    return merged


def gap(before: End, after: End) -> str:
    """Say why one batch can't follow another; empty if it can."""
    if after.first != before.last + 1:
        return f"after {before.last} comes {after.first}: ids are not dense"
    if after.previous_crc != before.crc:
        return f"the batch from {after.first} follows another batch than the one that ends at {before.last}: a fork"
    if after.commit_time_us < before.commit_time_us:
        return f"the batch from {after.first} was committed before the one that ends at {before.last}"
    if after.session < before.session:
        return f"the batch from {after.first} is of session {after.session}, after one of session {before.session}"
    return ""


def suspects(one: Walk, other: Walk) -> list[Span]:
    """Return the spans in which to look, batch by batch, for a difference of two copies; none for equal ones.

    That is the first block that both copies hold whole and in which they differ. If there is none, it is the blocks at
    the beginning and end of what both hold, where unequal digests prove nothing. Without an id in common, `last` of a
    span is below `first`; if one copy has no batches, there are no spans.
    """
    if one.begin is None or one.end is None or other.begin is None or other.end is None:
        return []
    shared = Span(max(one.begin.first, other.begin.first), min(one.end.last, other.end.last))
    whole_blocks = range(-(-shared.first // BLOCK_IDS), (shared.last + 1) // BLOCK_IDS)
    blocks = [block for block in whole_blocks if _differ(one, other, block)][:1]
    if not blocks:
        parts = {block_of(shared.first), block_of(shared.last)} - set(whole_blocks)
        same_extent = (one.begin.first, one.end.last) == (other.begin.first, other.end.last)
        blocks = sorted(block for block in parts if not same_extent or _differ(one, other, block))
    first_last = [(block * BLOCK_IDS, (block + 1) * BLOCK_IDS - 1) for block in blocks]
    return [Span(max(first, shared.first), min(last, shared.last)) for first, last in first_last]


def _differ(one: Walk, other: Walk, block: int) -> bool:
    return one.digests.get(block, 0) % _MODULUS != other.digests.get(block, 0) % _MODULUS


def block_of(id: TransactionId) -> int:
    return id // BLOCK_IDS


def digest_of(batch: Batch) -> int:
    return int.from_bytes(hashlib.sha256(batch.view).digest(), "big")


def _damage(batch: Batch) -> str:
    last_good = batch.first - 1
    try:
        Batch.parse(batch.view)
        for tx in batch.transactions(own=True):
            last_good = tx.id
    except BatchDamaged as error:
        return f"damaged: {error.text}"
    except DataDamaged:
        return f"the data of transaction {last_good + 1} does not fit its CRC"
    return ""


def begins_at_the_beginning(walked: Walk) -> str:
    """Say why a copy does not begin with the log's first batch; empty if it does, or is empty."""
    if walked.begin is None:
        return ""
    if walked.begin.first != NO_TRANSACTION + 1:
        return f"it begins with {walked.begin.first}"
    return "" if walked.begin.previous_crc == 0 else "its first batch follows another one"
