"""What a server asks of the fragments of its cluster, when no replica holds a range of ids any more."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from polonaise.errors import (
    AccessDenied,
    FragmentsAhead,
    HistoryTrimmed,
    NotJoined,
    PolonaiseError,
    ProtocolError,
    StoreUnavailable,
)
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.server.replicas import expect
from polonaise.terms import PartitionId, SessionId, StorageId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import Batches, Confirm, Copy, Done, ReadBatches, Trim, Trimmed


class ArchivedHistory(Protocol):
    """`fragments.history.FragmentHistory`, which is loaded only by servers that were given a store."""

    async def highest(self, partition: PartitionId) -> TransactionId:
        """The highest id in the store just now; -1 for none."""

    async def up_to(self, partition: PartitionId) -> TransactionId:
        """The id up to which everything from the beginning is there, as far as is known; -1 for nothing."""

    async def covering(self, partition: PartitionId, last: TransactionId) -> tuple[FragmentName, ...]:
        """The fragments that hold everything up to `last`, just now. Raises `NotArchived`."""

    async def read(
        self,
        partition: PartitionId,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        after_time_us: int = 0,
    ) -> list[Batch]:
        """Batches from the one that holds `first` on, verified; one at least, unless there is none `after_time_us`.

        Raises `FragmentMissing`, `FragmentDamaged`, `StoreUnavailable`, `AccessDenied`, `WrongClusterKey`.
        """

    async def held(self) -> Mapping[FragmentName, int]:
        """All fragments in the store just now, and how many bytes each has."""

    async def check(self, name: FragmentName, size: int, pause: Callable[[int], Awaitable[None]]) -> None:
        """Read a fragment through, with a `pause` after each piece. Raises `FragmentDamaged`, `NotFound`."""

    async def mend(self, name: FragmentName, batches: AsyncIterable[Batch]) -> int:
        """Write a damaged fragment again; its length. Raises `FragmentDamaged` unless it becomes the same object."""


class ToCopy(NamedTuple):
    """Batches for a replica that lacks them."""

    payload: memoryview
    held_from: TransactionId
    """What lies below is in fragments only: no source holds it any more. 0 when these batches came from a source."""


async def read_to_copy(
    ask: Callable[[StorageId, Message], Awaitable[Message]],
    sources: Iterable[StorageId],
    request: ReadBatches,
    partition: PartitionId,
    history: ArchivedHistory | None,
    nobody: PolonaiseError,
) -> ToCopy:
    """Batches for a replica that lacks them: from the first source that has them, or from the fragments.

    From these only what a source has refused as trimmed. Raises the last source's trouble when none of them has it,
    `nobody` without any, and `HistoryTrimmed` in a server that knows of no fragments.
    """
    error = nobody
    trimmed: HistoryTrimmed | None = None
    held_from: list[TransactionId] = []
    for source in sources:
        try:
            answer = expect(await ask(source, request), Batches)
            if answer.payload:
                return ToCopy(memoryview(answer.payload[0]), 0)
            error = ProtocolError(f"{source} sent nothing")
        except HistoryTrimmed as refused:
            trimmed = refused
            held_from.append(refused.first)
        except PolonaiseError as failed:
            error = failed
    if trimmed is None:
        raise error
    found = await needed(history, trimmed, partition).read(partition, request.first, request.last, request.bytes_max)
    return ToCopy(memoryview(b"".join(batch.view for batch in found)), min(held_from))


async def copy_on(
    ask: Callable[[Message], Awaitable[Message]], session: SessionId, name: StorageId, last: TransactionId, read: ToCopy
) -> Done:
    """Give the replica `name`, which ends with `last`, what was read for it; where it ends now.

    Raises `ProtocolError` for one that does not grow by that, and what it refuses with.
    """
    done = expect(await ask(Copy(session, payload=[read.payload])), Done)
    if done.last <= last:
        raise ProtocolError(f"{name} took a copy and did not grow")
    await _drop_refilled(ask, session, done.last, read.held_from)
    return done


async def _drop_refilled(
    ask: Callable[[Message], Awaitable[Message]], session: SessionId, last: TransactionId, held_from: TransactionId
) -> None:
    """Have a replica drop what it was given only so that the rest can follow on it, as far as it goes by now.

    It is filled from the beginning, as every copy is, and the others have dropped that on somebody's word: kept, it
    would take many times the room that they need. `last`, where the replica ends, is committed.
    """
    if held_from <= 0:
        return
    expect(await ask(Confirm(session, last)), Done)
    try:
        while not expect(await ask(Trim(session, min(held_from, last))), Trimmed).done:
            pass
    except NotJoined:  # an older version trims only copies that take part: it keeps everything until the next trim
        return


def needed(history: ArchivedHistory | None, trimmed: HistoryTrimmed, partition: PartitionId) -> ArchivedHistory:
    """The history; or, without one, an error that says what to do."""
    if history is None:
        raise HistoryTrimmed(
            f"partition {partition}: {trimmed.text}, and this server was started without the fragments that hold them: "
            "start it with --fragments and the address of the archive (embedded: ?fragments=), or read that itself"
        )
    return history


async def check_not_ahead(history: ArchivedHistory, partition: PartitionId, closing: TransactionId) -> None:
    """Raises `FragmentsAhead` when the store holds more than the replicas: only what is committed is ever archived."""
    try:
        highest = await history.highest(partition)
    except (StoreUnavailable, AccessDenied) as error:
        raise type(error)(
            f"partition {partition} takes nothing before its fragment store has told how far it reaches: {error.text}"
        ) from error
    if highest > closing:
        raise FragmentsAhead(
            f"partition {partition}: the fragments in {history} reach up to {highest}, the replicas hold no more than "
            f"{closing}: acknowledged transactions are gone from these, or the fragments are of another life of the "
            "log. Nothing is appended. Restore newer copies of the storage directories; or, to go on without the ids "
            f"above {closing}, move the fragments that reach above it out of the store"
        )
