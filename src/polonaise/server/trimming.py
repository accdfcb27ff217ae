"""The trim: the replicas drop history on request, once this server has itself found it in its fragment store."""

from __future__ import annotations

import asyncio
from typing import Final

from polonaise.errors import BeyondLog, PartitionNotReady, PolonaiseError, ProtocolError, fault
from polonaise.fragments.protocol.coverage import BatchEnd
from polonaise.fragments.protocol.names import fingerprint
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol.session import Session
from polonaise.server.storagelinks import expect
from polonaise.terms import NO_TRANSACTION, StorageId, TransactionId
from polonaise.wire.messages import Confirm, Done, LogTrimmed, Trim, TrimLog, Trimmed

_STEP_S: Final = 1.0
"""For so long one request drops segments; then the answer says how far it got, and the caller asks again."""


async def trim(reader: PartitionReader, request: TrimLog) -> LogTrimmed:
    """Have the engaged replicas drop segments below `request.before`; return how far that got in about a second.

    Raises `not_archived` unless the fragments of this server's own store hold everything below, are those that the
    caller has verified, can be opened where a replica still holds their ids, and are of this very log; `BeyondLog` if
    `before` is not committed, `ProtocolError` if it is negative; `PartitionNotReady` without a session, if it ends
    meanwhile, or if a replica fails; and what keeps the store or the log from being read.
    """
    owner, before = reader.owner, request.before
    partition, session = owner.partition, owner.session
    if session is None:
        raise PartitionNotReady(f"partition {partition} is not ready: {owner.readiness.waits_for}")
    if before < 0:
        raise ProtocolError(f"invalid trim: {before} is below the first transaction, 0")
    if before > owner.committed:
        raise BeyondLog(
            f"nothing was trimmed: partition {partition} is committed up to {owner.committed} only, not to {before}"
        )
    if reader.history is None:
        raise fault(
            "not_archived",
            "this server was started without --fragments (embedded: ?fragments=URL in the address): it trims only what "
            "it finds in a fragment store itself",
        )
    await _check_archived(reader, reader.history, session, request)
    # A replica trims only up to what is confirmed to it, and later it may be cut there: so whole batches are confirmed.
    # Below 0 there is nothing, for which nothing has to be confirmed.
    certain = (await reader.batch_holding(before)).last if before else NO_TRANSACTION
    return await _drop(reader, session, min(before, certain), certain)


async def _check_archived(
    reader: PartitionReader, history: ArchivedHistory, session: Session, request: TrimLog
) -> None:
    """Raise `not_archived` unless the store's fragments show that the trim loses nothing: new ones are opened."""
    partition = reader.owner.partition
    covering = await history.covering(partition, request.before - 1)
    if fingerprint(covering) != request.fragments:
        raise fault(
            "not_archived",
            f"the fragments that were verified are not those in {history}, the store that this server uses, for "
            f"partition {partition}: name the same store, and try again",
        )
    if request.before:
        held = [(await _drop_one(reader, session, name, NO_TRANSACTION)).first for name in list(session.engaged)]
        await history.check_opens(partition, [name for name in covering if name.last >= min(held, default=0)])
        await _check_same_log(reader, history, request.before)


async def _check_same_log(reader: PartitionReader, history: ArchivedHistory, before: TransactionId) -> None:
    """Raise `not_archived` unless log and fragments have the same batch in front of the one with `before`."""
    following = await reader.batch_holding(before)
    if not following.first:
        return
    last = following.first - 1

    async def follows() -> BatchEnd:
        return BatchEnd(last, following.previous_crc)

    archived = await history.read(reader.owner.partition, last, last, 1, follows=follows)
    if not archived or archived[-1].last != last or archived[-1].crc != following.previous_crc:
        raise fault(
            "not_archived",
            f"the fragments in {history} are not of this log: they have another batch at {last} of partition "
            f"{reader.owner.partition}",
        )


async def _drop(reader: PartitionReader, session: Session, before: TransactionId, certain: TransactionId) -> LogTrimmed:
    """Drop one segment of each replica in turn, told first what is `certain`, until none is left or time is over."""
    until_s = asyncio.get_running_loop().time() + _STEP_S
    answers: dict[StorageId, Trimmed] = {}
    while reader.owner.session is session and asyncio.get_running_loop().time() < until_s:
        behind = [name for name in session.engaged if name not in answers or not answers[name].done]
        if not behind:
            break
        for name in behind:
            told = name in answers
            answers[name] = await _drop_one(reader, session, name, before, NO_TRANSACTION if told else certain)
    if len(answers) < len(session.engaged):
        raise PartitionNotReady(
            f"session {session.id} of partition {reader.owner.partition} ended during a trim: trim again"
        )
    return LogTrimmed(max(answer.first for answer in answers.values()), all(answer.done for answer in answers.values()))


async def _drop_one(
    reader: PartitionReader,
    session: Session,
    name: StorageId,
    before: TransactionId,
    certain: TransactionId = NO_TRANSACTION,
) -> Trimmed:
    """Have one replica drop its oldest segment if all of it is below `before`, told first what is `certain`."""
    try:
        if certain != NO_TRANSACTION:
            expect(await reader.ask(name, Confirm(session.id, certain)), Done)
        return expect(await reader.ask(name, Trim(session.id, before)), Trimmed)
    except PolonaiseError as error:
        raise PartitionNotReady(f"{name} was not trimmed: {error}") from error
