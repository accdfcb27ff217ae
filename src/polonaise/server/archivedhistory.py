"""The archived history behind a server's log: the port to its fragments, and the rules for using them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from polonaise.errors import (
    AccessDenied,
    FragmentDamaged,
    FragmentsAhead,
    HistoryTrimmed,
    NotJoined,
    PolonaiseError,
    ProtocolError,
    StoreUnavailable,
    UnsupportedFormat,
)
from polonaise.fragments.protocol.coverage import BatchEnd, Span, how_to_keep, may_be_only_copy
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.server.storagelinks import expect
from polonaise.terms import PartitionId, SessionId, StorageId, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.messages import Batches, Confirm, Copy, Done, ReadBatches, Trim, Trimmed


class ArchivedHistory(Protocol):
    """The port to a fragment store, which `fragments.history.FragmentHistory` implements.

    Every method may raise `StoreUnavailable`, `AccessDenied` and, for the fragments of another cluster,
    `WrongClusterKey`.
    """

    failed: dict[PartitionId, tuple[TransactionId, str]]
    """By partition the first id of a read that failed by a mistake of our own, and why, until that id was read."""
    on_refused: Callable[[FragmentName, TransactionId, str], None]
    """Called when a read, or a trim, can't use a fragment, with the wanted id and what is wrong."""
    on_sound: Callable[[FragmentName], None]
    """Called when a fragment that could not be used was read."""
    on_missing: Callable[[PartitionId, str], None]
    """Called when no fragment holds an id that is to be read, with what is to be told."""

    async def look(self) -> None:
        """Return, after one small read, if the store is there and is this cluster's."""

    async def highest(self, partition: PartitionId, closing: TransactionId) -> TransactionId:
        """Return the highest id of the partition in the store now; -1 for none.

        Raises `FragmentDamaged`, `UnsupportedFormat` or `NotFound` if it is above `closing` and its fragment can't be
        opened.
        """

    async def up_to(self, partition: PartitionId) -> TransactionId:
        """Return the id up to which the store held all of the partition when it was last listed; -1 for nothing."""

    async def covering(self, partition: PartitionId, last: TransactionId) -> tuple[FragmentName, ...]:
        """Return the fragments that hold all ids from 0 to `last` now. Raises `not_archived` for a gap."""

    async def lacks(self, partition: PartitionId, wanted: Span) -> Span | None:
        """Return the first of these ids that no fragment holds now, by the names; None if there are none."""

    async def check_opens(self, partition: PartitionId, names: Sequence[FragmentName]) -> None:
        """Raise `not_archived` for a fragment of the partition that its footer or size shows to be damaged."""

    async def read(
        self,
        partition: PartitionId,
        first: TransactionId,
        last: TransactionId,
        bytes_max: int,
        after_time_us: int = 0,
        follows: Callable[[], Awaitable[BatchEnd]] | None = None,
    ) -> list[Batch]:
        """Return verified batches from the one that holds `first` on; none of them ends above `last`.

        At most `bytes_max` bytes, unless the first batch alone is larger. With `after_time_us` (µs UTC), only from the
        first batch of that commit time or later. Raises `FragmentMissing` for an id that no fragment holds, and
        `FragmentDamaged` or `UnsupportedFormat` if no fragment that holds it can be used. `follows` tells the end of a
        batch above these ids, from the log itself: where fragments contradict each other, those are read from which the
        log goes on.
        """

    async def held(self, partition: PartitionId | None = None) -> Mapping[FragmentName, int]:
        """Return all fragments in the store, or of a partition, each with its size in bytes."""

    async def check(self, name: FragmentName, size: int, pause: Callable[[int], Awaitable[None]]) -> None:
        """Read a fragment of `size` bytes through; await `pause` with the length of each piece that was read.

        Raises `FragmentDamaged` unless it has the digest in its name, `NotFound` if it is gone, and what is wrong if it
        can't be opened all the same.
        """

    async def mend(self, name: FragmentName, batches: AsyncIterable[Batch]) -> int:
        """Write a damaged fragment again, and return its size in bytes.

        Raises `FragmentDamaged` unless the batches make the very same object, and what `batches` raises.
        """


class ToCopy(NamedTuple):
    """Batches for a replica that lacks them."""

    payload: memoryview
    held_from: TransactionId
    """The lowest id left on a source that refused the batches as trimmed; 0 if a replica sent them."""


async def read_to_copy(
    ask: Callable[[StorageId, Message], Awaitable[Message]],
    sources: Iterable[StorageId],
    request: ReadBatches,
    partition: PartitionId,
    history: ArchivedHistory | None,
    no_source: PolonaiseError,
) -> ToCopy:
    """Read batches for a replica that lacks them, from the first source that has them, or from the fragments.

    The fragments are read only after a source has refused the ids as trimmed: an id that is merely missing may be
    damage, and has to be reported. Raises `no_source` when `sources` is empty, and the last source's error when none
    sends the ids or has trimmed them. For trimmed ids, raises `HistoryTrimmed` in a server without fragments, and what
    `ArchivedHistory.read` raises.
    """
    error = no_source
    trimmed: HistoryTrimmed | None = None
    held_from: dict[StorageId, TransactionId] = {}
    for source in sources:
        try:
            answer = expect(await ask(source, request), Batches)
            if answer.payload:
                return ToCopy(memoryview(answer.payload[0]), 0)
            error = ProtocolError(f"{source} sent no batches")
        except HistoryTrimmed as refused:
            trimmed = refused
            held_from[source] = refused.first
        except PolonaiseError as failed:
            error = failed
    if trimmed is None:
        raise error
    history = required(history, trimmed, partition)

    async def follows() -> BatchEnd:
        source, first = next(iter(held_from.items()))
        answer = expect(await ask(source, ReadBatches(request.session, first, request.last, 1, 0, 0)), Batches)
        if not answer.payload:
            raise ProtocolError(f"{source} sent no batches from {first} on, the first id that it holds")
        return end_before(answer.payload[0])

    batches = await history.read(partition, request.first, request.last, request.bytes_max, follows=follows)
    return ToCopy(memoryview(b"".join(batch.view for batch in batches)), min(held_from.values()))


def end_before(raw: bytes | bytearray | memoryview) -> BatchEnd:
    """Return the end of the batch before the first one of these, as that one tells it."""
    batch = Batch.parse(raw, verify=False)
    return BatchEnd(batch.first - 1, batch.previous_crc)


async def copy_on(
    ask: Callable[[Message], Awaitable[Message]], session: SessionId, name: StorageId, last: TransactionId, read: ToCopy
) -> Done:
    """Copy the batches in `read` to the replica `name`, whose log ends at `last`; return the new end of its log.

    Raises what `ask` raises, and `ProtocolError` for an answer of another kind, or if the replica's log did not grow:
    the caller would copy the same batches for ever.
    """
    done = expect(await ask(Copy(session, payload=[read.payload])), Done)
    if done.last <= last:
        raise ProtocolError(f"{name} acknowledged a copy, but its log did not grow")
    await _drop_refilled(ask, session, done.last, read.held_from)
    return done


async def _drop_refilled(
    ask: Callable[[Message], Awaitable[Message]], session: SessionId, last: TransactionId, held_from: TransactionId
) -> None:
    """Have a replica drop the ids below `held_from`, as others have: it got them only because copies leave no gap."""
    if held_from <= 0:
        return
    # Confirmed first: a replica drops only what it knows to be committed.
    expect(await ask(Confirm(session, last)), Done)
    try:
        while not expect(await ask(Trim(session, min(held_from, last))), Trimmed).done:
            pass
    except NotJoined:  # a node of an older version trims joined replicas only: the next trim drops these ids there
        return


def required(history: ArchivedHistory | None, trimmed: HistoryTrimmed, partition: PartitionId) -> ArchivedHistory:
    """Return the history; raise `HistoryTrimmed`, which says what to do, if there is none."""
    if history is None:
        raise HistoryTrimmed(
            f"partition {partition}: {trimmed.text}; this server was started without the fragments that hold them: "
            "start it with --fragments and the address of the archive (embedded: ?fragments=), or read the archive "
            "itself"
        )
    return history


async def check_not_ahead(
    history: ArchivedHistory, partition: PartitionId, closing: TransactionId, held: TransactionId | None = None
) -> None:
    """Raise `FragmentsAhead` if the partition's fragments reach above `closing`, where the log ends.

    Only what is committed is ever archived: either committed transactions are gone from the replicas, or an operator
    gives them up, who resets the head to `closing`, and others would get their ids (`held` is up to where the source of
    that reset holds the log; None for no reset). Raises what keeps the store from being read; the caller tries again.
    """
    # What a fragment holds below is often the only copy of that: it may not be moved out of the store as a whole.
    give_up = f"polonaise archive cut {history} {partition}={closing}"
    try:
        highest = await history.highest(partition, closing)
    except (StoreUnavailable, AccessDenied) as error:
        raise type(error)(
            f"partition {partition} takes no appends until its fragment store tells how far it reaches: {error.text}"
        ) from error
    except (FragmentDamaged, UnsupportedFormat) as error:
        raise type(error)(
            f"partition {partition}: by its name a fragment in {history} reaches above {closing}, where the log "
            f"ends, but it can't be opened: {error.text}. Nothing is appended. Restore the fragment from a copy; "
            f"or, to go on without the ids above {closing}, give them up in the store: {give_up}"
        ) from error
    if highest > closing and held is not None:
        instead = f"; or reset the head to no less than {highest}" if highest <= held else ""
        raise FragmentsAhead(
            f"partition {partition}: its head is to be reset to {closing}, and the fragments in {history} reach up to "
            f"{highest}. {may_be_only_copy(history, partition, closing + 1, highest)}; or, so that other transactions "
            f"get these ids, give up in the store what they hold above {closing}: {give_up}{instead}"
        )
    if highest > closing:
        raise FragmentsAhead(
            f"partition {partition}: the fragments in {history} reach up to {highest}, the replicas hold no more than "
            f"{closing}: acknowledged transactions are gone from these, or the fragments are of another life of the "
            f"log. Nothing is appended. If they are of this one, {history} may have the only copy of the ids above "
            f"{closing}: restore newer copies of the storage directories. {how_to_keep(history)}. Or, to go on without "
            f"them, so that other transactions get their ids, give them up in the store: {give_up}; fragments of "
            "another life are to be moved out of it whole"
        )
