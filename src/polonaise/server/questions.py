"""Reads that clients pull: ranges of history, single bodies, registers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from polonaise.errors import BatchDamaged, BeyondLog, PartitionNotReady, ProtocolError
from polonaise.log.batch import HEADER_BYTES, Batch
from polonaise.server.protocol.feed import Committed
from polonaise.terms import TransactionId
from polonaise.wire.fetches import encode_bodies, parse_fetch
from polonaise.wire.messages import Batches, Bodies, Fetch, Read

if TYPE_CHECKING:
    from polonaise.server.owner import Owner
    from polonaise.server.settings import ServerSettings

FETCH_MAX = 4_096
"""Bodies that one request may ask for."""


async def wait(owner: Owner, settings: ServerSettings, request: Read) -> None:
    """Wait, if the reader asks for that, until what it wants to read first is committed. Takes no memory."""
    if request.first < 0:
        raise ProtocolError(f"a read from {request.first}")
    if request.first > owner.committed and request.wait_ms:
        try:
            async with asyncio.timeout(min(request.wait_ms / 1000, settings.read_wait_s_max)):
                await owner.feeding.wait_for(request.first)
        except TimeoutError:
            pass


async def read(owner: Owner, settings: ServerSettings, request: Read) -> Batches:
    """Committed batches from `request.first` on: from the cache if it reaches back far enough, else from a replica."""
    committed = owner.committed
    if owner.stopped is not None:
        raise owner.stopped.with_traceback(None)  # one error for many requests: it would grow with each
    _check_opened(owner)
    if request.first > committed:
        return Batches(committed)
    bytes_max = min(request.bytes_max, settings.read_bytes_max)
    if not request.after_time_us:
        cached = _from_cache(owner, request, bytes_max)
        if cached is not None:
            return Batches(committed, payload=cached)
    raw = await owner.feeding.read(
        request.first,
        committed,
        bytes_max,
        with_data=bool(request.with_data),
        after_time_us=request.after_time_us,
        part_last=request.part_last,
    )
    return Batches(committed, payload=[raw])


def _check_opened(owner: Owner) -> None:
    """Before its first session an owner does not know what is committed: it may not say that there is nothing."""
    if not owner.counts["sessions"]:
        raise PartitionNotReady(f"partition {owner.partition} is not ready: {owner.waits_for}")


def _from_cache(owner: Owner, request: Read, bytes_max: int) -> list[bytes] | None:
    """None when the cache does not tell; nothing when no batch begins in the part that is asked for."""
    found: list[bytes] = []
    first, size, in_part = request.first, 0, request.part_last >= 0
    while size < bytes_max and (batch := owner.feeding.cache.holding(first)) is not None:
        if not in_part or batch.first >= request.first:
            raw = batch.raw if request.with_data else _without_data(batch)
            found.append(raw)
            size += len(raw)
        first = batch.last + 1
        if in_part and first > request.part_last:
            return found
    return found or None


def _without_data(batch: Committed) -> bytes:
    return Batch(memoryview(batch.raw)).without_data()


async def fetch(owner: Owner, settings: ServerSettings, request: Fetch) -> Bodies:
    """The bodies of single transactions, each checked against its CRC before it is sent."""
    if len(request.ids) > 8 * FETCH_MAX:
        raise ProtocolError(f"a fetch of more than {FETCH_MAX} bodies")
    _check_opened(owner)
    bodies: list[bytes] = []
    crcs: list[int] = []
    batch: Batch | None = None
    size = 0
    for transaction in parse_fetch(request):
        if not 0 <= transaction <= owner.committed:
            raise BeyondLog(f"transaction {transaction}; the committed high-water mark is {owner.committed}")
        if batch is None or not batch.first <= transaction <= batch.last:
            batch = await _batch_holding(owner, transaction)
        body = batch.body(transaction)
        size += len(body)
        if size > 4 * settings.read_bytes_max + settings.inline_bytes_max:
            raise ProtocolError("a fetch of more bytes than one answer holds: ask for fewer ids at a time")
        bodies.append(body)
        crcs.append(batch.data_crcs[transaction - batch.first])
    return encode_bodies(bodies, crcs)


async def _batch_holding(owner: Owner, transaction: TransactionId) -> Batch:
    cached = owner.feeding.cache.holding(transaction)
    if cached is not None:
        return Batch.parse(cached.raw, verify=False)
    raw = await owner.feeding.read(transaction, owner.committed, HEADER_BYTES)
    if not raw:
        raise PartitionNotReady(f"no replica told transaction {transaction}")
    try:
        batch = Batch.parse(raw)
    except BatchDamaged as error:  # on its way here: the replica had checked what it read
        raise PartitionNotReady(f"transaction {transaction} came damaged from a replica: {error}") from None
    if not batch.first <= transaction <= batch.last:
        raise PartitionNotReady(f"a replica told {batch.first} to {batch.last} for transaction {transaction}")
    return batch
