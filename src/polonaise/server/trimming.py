"""Dropping from the replicas what is archived: on request only, and only what this server finds archived itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from polonaise.errors import BeyondLog, NotArchived, PartitionNotReady, PolonaiseError, ProtocolError
from polonaise.fragments.protocol.names import fingerprint
from polonaise.log.batch import Batch
from polonaise.server.replicas import expect
from polonaise.terms import StorageId, TransactionId
from polonaise.wire.messages import Confirm, Done, LogTrimmed, Trim, TrimLog, Trimmed

if TYPE_CHECKING:
    from polonaise.server.archivedhistory import ArchivedHistory
    from polonaise.server.partitionreader import PartitionReader
    from polonaise.server.protocol.session import Session

_STEP_S: Final = 1.0
"""Segments are dropped for so long, then who asked is told how far that went, and asks again."""


async def trim(reader: PartitionReader, request: TrimLog) -> LogTrimmed:
    """Have the engaged replicas drop what lies below `request.before`, for a while; asked again, it goes on.

    Raises `NotArchived` unless the fragments of this server's own store hold everything below, are the ones that were
    verified by whoever asks, and are of this very log; `BeyondLog` for what is not committed; `PartitionNotReady`.
    """
    owner, before = reader.owner, request.before
    partition, session = owner.partition, owner.session
    if session is None:
        raise PartitionNotReady(f"partition {partition} is not ready: {owner.readiness.waits_for}")
    if before < 0:
        raise ProtocolError(f"a trim below {before}")
    if before > owner.committed:
        raise BeyondLog(f"nothing is trimmed at {before}: partition {partition} is committed up to {owner.committed}")
    if reader.history is None:
        raise NotArchived(
            "this server was started without --fragments (embedded: ?fragments=URL in the address): it trims only what "
            "it finds in a fragment store itself"
        )
    await _check_archived(reader, reader.history, request)
    return await _drop(reader, session, before)


async def _check_archived(reader: PartitionReader, history: ArchivedHistory, request: TrimLog) -> None:
    """Raises `NotArchived` unless everything below is there, the same that was verified, and of this log."""
    partition = reader.owner.partition
    covering = await history.covering(partition, request.before - 1)
    if fingerprint(covering) != request.fragments:
        raise NotArchived(
            f"the fragments that were verified are not those that {history} has for partition {partition}, "
            "which this server relies upon: name the same store, and try again"
        )
    if request.before:
        await _check_same_log(reader, history, request.before)


async def _check_same_log(reader: PartitionReader, history: ArchivedHistory, before: TransactionId) -> None:
    """What the log goes on from at `before` has to be what the fragments end with there.

    Each batch carries the CRC of the one before it, so these two speak for everything below.
    """
    raw = await reader.read_history(before, reader.owner.committed, 1)
    held = Batch.parse(raw)
    if not held.first:
        return
    archived = await history.read(reader.owner.partition, held.first - 1, held.first - 1, 1)
    if not archived or archived[-1].last != held.first - 1 or archived[-1].crc != held.previous_crc:
        raise NotArchived(
            f"the fragments in {history} are not of this log: they have another batch at {held.first - 1} of partition "
            f"{reader.owner.partition}"
        )


async def _drop(reader: PartitionReader, session: Session, before: TransactionId) -> LogTrimmed:
    """A segment of each replica in turn, until none has another one to drop, or the time is over."""
    until_s = asyncio.get_running_loop().time() + _STEP_S
    held: dict[StorageId, Trimmed] = {}
    while reader.owner.session is session and asyncio.get_running_loop().time() < until_s:
        behind = [name for name in session.engaged if name not in held or not held[name].done]
        if not behind:
            break
        for name in behind:
            held[name] = await _drop_one(reader, session, name, before, confirm=name not in held)
    if len(held) < len(session.engaged):
        raise PartitionNotReady(f"session {session.id} of partition {reader.owner.partition} ended during a trim")
    return LogTrimmed(max(each.first for each in held.values()), all(each.done for each in held.values()))


async def _drop_one(
    reader: PartitionReader, session: Session, name: StorageId, before: TransactionId, *, confirm: bool
) -> Trimmed:
    """Let one replica drop its oldest segment. It has to know first that `before` is committed."""
    try:
        if confirm:
            expect(await reader.ask(name, Confirm(session.id, before)), Done)
        return expect(await reader.ask(name, Trim(session.id, before)), Trimmed)
    except PolonaiseError as error:
        raise PartitionNotReady(f"{name} was not trimmed: {error}") from error
