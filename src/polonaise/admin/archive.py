"""Fragment stores without Spark: archive what is committed and not archived yet; verify and repair fragments."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from polonaise.admin.asking import stores_in
from polonaise.client.log import Log
from polonaise.errors import (
    BeyondLog,
    CoordinatorUnavailable,
    DeadlineExceeded,
    FragmentDamaged,
    FragmentMissing,
    FragmentsAhead,
    HistoryTrimmed,
    LogForked,
    NotFound,
    PartitionNotReady,
    PolonaiseError,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.fragments.agreement import MOVE_OUT, FragmentFacts, contradictions, ends_told, ids_to_compare
from polonaise.fragments.format import Footer
from polonaise.fragments.mark import MARK, claim, is_marked, put_mark, unmarked
from polonaise.fragments.objects import (
    PUT_BACK,
    ArchivedFragment,
    footer_of,
    fragments_of,
    made_again,
    partitions_in,
    verified,
    write_fragments,
)
from polonaise.fragments.protocol.coverage import (
    FRAGMENT_BYTES,
    BatchEnd,
    Span,
    archived_up_to,
    belongs,
    cover,
    spans_to_write,
)
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import INIT, MendableStore, ObjectStore, ReadableStore
from polonaise.fragments.topicrecord import record_topics
from polonaise.log.batch import Batch
from polonaise.node.addresses import check_no_topic
from polonaise.terms import NO_TRANSACTION, ClusterTopics, PartitionId, TransactionId

_OTHER_LIFE: Final = (
    "a log and a copy of it that was restored with its key have gone on differently, and both were archived there. "
    "Nothing was written. Archive one of the two into a store of its own (restore a copy with --new-key), and move the "
    "fragments of the other log out of this store"
)


_INSIST: Final = (
    "if nothing was ever put there, or it is lost for good, insist: polonaise archive init LOG STORE --insist"
)
_LACKS_S: Final = 10.0
"""Seconds that each request about what a store lacks may take: a partition that is not served tells nothing."""


async def archive(
    log: Log,
    store: ObjectStore,
    partition: PartitionId,
    *,
    fragment_bytes: int = FRAGMENT_BYTES,
    rest: bool = False,
    until: TransactionId | None = None,
    timeout: float | None = None,
    tell_missing: Callable[[Span], None] | None = None,
) -> AsyncGenerator[ArchivedFragment, None]:
    """Write what is committed and not in the store yet, and yield each fragment after it was verified.

    A part that does not fill a fragment yet is left for the next time, unless `rest`. With `until` everything up to
    this id (inclusive) is written and nothing above it; a batch that goes beyond it is left out whole. `tell_missing`
    is called with each range of ids that is written although later ids are archived: somebody has removed its
    fragments, is writing them, or was killed. Ids that the storage nodes no longer hold either can't be written:
    `FragmentMissing` names them, after all others were.

    Several archivers may run at the same time, and any of them may be killed: what they write twice is the same object,
    or overlaps. Raises `BeyondLog` for an `until` that is not committed, and what `check_may_begin`, `own_fragments_of`
    and `write_fragments` raise.
    """
    await check_may_begin(log, store, partition, timeout)
    committed = await log.high_water_mark(partition, timeout=timeout)
    if until is not None and until > committed:
        raise BeyondLog(f"partition {partition} is committed up to {committed}: nothing can be archived up to {until}")
    fragments = await own_fragments_of(log, store, partition, timeout)
    limit = committed if until is None else until
    missing = missing_in(fragments, limit)
    lost: list[str] = []
    for span in spans_to_write(fragments, limit):
        # Only a span that reaches the end of the log may still grow; one before other fragments never will.
        whole = rest or until is not None or span.last < committed
        async with aclosing(batches_of(log, partition, span, limit, timeout)) as batches:
            try:
                first = await anext(batches, None)
            except (FragmentMissing, HistoryTrimmed) as error:
                if span not in missing:
                    raise
                lost.append(f"{span.first} to {span.last} ({error.text})")
                continue
            if tell_missing is not None and span in missing:
                tell_missing(span)
            beginning = _with_first(first, batches)
            writing = write_fragments(store, log.cluster_key, beginning, fragment_bytes=fragment_bytes, rest=whole)
            async with aclosing(writing) as written:
                async for each in written:
                    yield each
    if lost:
        raise FragmentMissing(
            f"partition {partition}: no fragment in {store} holds these ids, and the storage nodes can't send them: "
            f"{'; '.join(lost)}: put the fragments back"
        )


async def _with_first(first: Batch | None, rest: AsyncIterator[Batch]) -> AsyncIterator[Batch]:
    if first is not None:
        yield first
    async for batch in rest:
        yield batch


def missing_in(fragments: Iterable[FragmentName], limit: TransactionId) -> list[Span]:
    """Return ids up to `limit` (inclusive) that no fragment holds, although later ones are archived."""
    archived = list(fragments)
    last = max((name.last for name in archived), default=NO_TRANSACTION)
    return [span for span in spans_to_write(archived, limit) if span.last < last]


async def batch_at(log: Log, partition: PartitionId, id: TransactionId, timeout: float | None = None) -> Batch:
    """Return the batch that holds a transaction. Raises what `Log.read_batches` raises."""
    async with aclosing(log.read_batches(partition, after=id - 1, until=id, timeout=timeout)) as reader:
        return await anext(reader)


async def batch_left_out(log: Log, store: ObjectStore, partition: PartitionId, until: TransactionId) -> Span | None:
    """Return the batch that goes beyond `until`, a committed id within it, and that `archive` has left out, or None."""
    missing = spans_to_write(await fragments_of(store, log.id_of(partition)), until)
    if not missing or missing[-1].last != until:
        return None
    batch = await batch_at(log, partition, until)
    return Span(batch.first, batch.last) if batch.last > until else None


async def check_may_begin(log: Log, store: ReadableStore, partition: PartitionId, timeout: float | None = None) -> None:
    """Raise `NotFound` for a store without a mark if any server of the log knows a store, or can't be asked.

    The log would be archived a second time, from the beginning, and the servers would believe the mark where theirs is
    not mounted. Raises what `is_marked`, `Log.health` and `Log.servers_health` raise.
    """
    if await is_marked(store, log.cluster_key):
        return
    owner = await log.health(partition, timeout=timeout)
    told = await log.servers_health()
    if known := stores_in([owner, *told.values()]):
        raise unmarked(store, f", and its servers have a store already ({known[0]})")
    for address, why in told.items():
        if isinstance(why, PolonaiseError):
            raise unmarked(
                store, f", and its server {address} can't be asked whether it has a store (start or remove it; {why})"
            )


async def other_store(log: Log, store: ObjectStore) -> str:
    """Return the address of the store that the log's servers have, if it is another one; empty if not, or unknown."""
    known = stores_in((await log.servers_health()).values())
    return "" if any(_place(each) == _place(str(store)) for each in known) else next(iter(known), "")


def _place(store: str) -> str:
    """Return the address of a store in one form: a server's directory may be relative, or a URL."""
    path = store.removeprefix("file://")
    return path.rstrip("/") if "://" in path else str(Path(path).absolute())


async def _check_whole(log: Log, partition: PartitionId, timeout: float | None) -> None:
    """Raise `HistoryTrimmed` if the first batch of the partition can't be read: then it was archived elsewhere."""
    if await log.high_water_mark(partition, timeout=timeout) == NO_TRANSACTION:
        return
    await batch_at(log, partition, 0, timeout)


async def own_fragments_of(
    log: Log, store: ObjectStore, partition: PartitionId, timeout: float | None = None
) -> dict[FragmentName, int]:
    """Return the partition's fragments and their sizes in bytes, after checking that the log goes on where they end.

    The cluster key does not suffice: a log that was restored with the same key has it, too. A new store is marked as
    this log's; for the log of a topic, the cluster's topics are recorded there as well. Raises `WrongClusterKey` for
    another cluster's store, `HistoryTrimmed` for a new one of a log of which something was trimmed, `FragmentsAhead`
    and `LogForked` for one of a log with the same key that has gone on differently, `NotFound` for a directory that may
    not be mounted, `FragmentDamaged` for a mark, a record of topics or a latest fragment that can't be read, and what
    reading and the store raise.
    """
    fragments = await fragments_of(store, log.id_of(partition))
    for footer in await _latest(store, fragments, log.cluster_key):
        await _check_goes_on(log, partition, store, footer, timeout)
    # After the checks: a store of another log must not be marked as this one's.
    if not await is_marked(store, log.cluster_key):
        await _check_whole(log, partition, timeout)
        await claim(store, log.cluster_key)
    if log.topic:
        await record_topics(store, log.cluster_key, await _topics_with(log, partition))
    return fragments


async def _topics_with(log: Log, partition: PartitionId) -> ClusterTopics:
    """Return the cluster's topics. Raises `CoordinatorUnavailable` if who told them knows less than this client."""
    topics = await log.cluster_topics()
    if log.id_of(partition) not in topics.topics.get(log.topic, ()):
        raise CoordinatorUnavailable(
            f"the topics of the cluster were told without partition {partition} of topic {log.topic}: run it again"
        )
    return topics


async def init(log: Log, store: ObjectStore) -> None:
    """Mark a store as this log's, whether it is empty or holds fragments. Done again, it changes nothing.

    Of each partition only the fragments that reach farthest are compared with the cluster key, which finds a wrong
    address. `check_lacks_nothing` finds a store that is not mounted. Raises `WrongClusterKey` for another cluster's
    mark or latest fragments, `FragmentDamaged` for some that can't be read, and `BadOption` for the log of a topic.
    """
    check_no_topic(log.topic, "an archive")
    for partition in await partitions_in(store):
        await _latest(store, await fragments_of(store, partition), log.cluster_key)
    await put_mark(store, log.cluster_key)


async def check_lacks_nothing(log: Log, store: ObjectStore) -> None:
    """Raise `HistoryTrimmed` if the store lacks ids that the log can't send, or if that is not known of a partition.

    A directory that is not mounted looks like a new store. With a mark in it servers would take what was trimmed for
    never archived. `log` may be that of a topic.
    """
    if await is_marked(store, log.cluster_key):
        return
    for partition in range(log.partition_count):
        named = f"partition {partition}" + (f" of topic {log.topic}" if log.topic else "")
        try:
            committed = await log.high_water_mark(partition, timeout=_LACKS_S)
        except (DeadlineExceeded, PartitionNotReady) as error:
            raise HistoryTrimmed(
                f"whether {store} lacks what was trimmed can't be known: {named} is not served at present "
                f"({error.text}). Mount what belongs there, or correct the address; {_INSIST}"
            ) from error
        lacking = spans_to_write(await fragments_of(store, log.id_of(partition)), committed)
        if not lacking:
            continue
        # Only the oldest ids are ever trimmed: if the log sends the first of these, it sends the others.
        first, last = lacking[0]
        try:
            await batch_at(log, partition, first, _LACKS_S)
        except (DeadlineExceeded, FragmentDamaged, FragmentMissing, HistoryTrimmed) as error:
            raise HistoryTrimmed(
                f"{store} lacks ids {first} to {last} of {named}, and the log can't send {first} ({error.text}). "
                f"Mount what belongs there, correct the address, or put the fragments back; {_INSIST}"
            ) from error


async def no_fragments(store: ReadableStore) -> NotFound:
    """Return the error for a store in which no fragment was found: it may not be mounted, if it has no mark."""
    try:
        await store.get(MARK)
    except NotFound:
        return unmarked(store, ", nor any fragment")
    return NotFound(f"{store} holds no fragments: archive the log there first (polonaise archive run LOG STORE)")


async def _latest(store: ObjectStore, fragments: dict[FragmentName, int], cluster_key: bytes) -> list[Footer]:
    last = max((name.last for name in fragments), default=NO_TRANSACTION)
    footers = [await footer_of(store, name, size) for name, size in fragments.items() if name.last == last]
    if any(footer.cluster_key != cluster_key for footer in footers):
        raise WrongClusterKey(f"{store} holds fragments of another cluster: choose another address, one per cluster")
    return footers


async def _check_goes_on(
    log: Log, partition: PartitionId, store: ObjectStore, latest: Footer, timeout: float | None
) -> None:
    """Raise `FragmentsAhead` or `LogForked` unless the log goes on from the latest fragment of a store just listed."""
    last = latest.last
    committed = await log.high_water_mark(partition, timeout=timeout)
    if last > committed:
        raise FragmentsAhead(
            f"partition {partition}: the fragments in {store} reach up to {last}, and the log is committed up to "
            f"{committed}: {_OTHER_LIFE}"
        )
    # The batch behind the fragment is read, not the fragment's own last one: archived batches may have been trimmed.
    # Only where the log ends with the fragment is there no other.
    batch = await batch_at(log, partition, min(last + 1, committed), timeout)
    if BatchEnd(last, latest.last_crc) not in ends_told(batch):
        raise LogForked(
            f"partition {partition}: the fragments in {store} reach up to {last}, and the log has other transactions "
            f"there: {_OTHER_LIFE}"
        )


async def batches_of(
    log: Log, partition: PartitionId, span: Span, limit: TransactionId, timeout: float | None
) -> AsyncGenerator[Batch, None]:
    """Yield the log's batches that belong to a span and end at or below `limit`, with the id of their partition."""
    id = log.id_of(partition)
    async with aclosing(log.read_batches(partition, after=span.first - 1, until=span.last, timeout=timeout)) as reader:
        async for batch in reader:
            if belongs(batch, span, limit):
                batch.partition = id
                yield batch


# ------------------------------------------------------------------ verifying


@dataclass
class StoreReport:
    """The fragments of a partition, read and compared with each other."""

    partition: PartitionId
    fragments: int = 0
    transactions: int = 0
    """Number of transactions in good fragments, each counted once."""
    bytes: int = 0
    """The size in bytes of all fragments of the partition, good or damaged."""
    last: TransactionId = -1
    """The last id up to which everything is in good fragments; -1 for none."""
    holes: tuple[Span, ...] = ()
    """Ids that no good fragment holds, below the last id in good ones."""
    missing: tuple[Span, ...] = ()
    """Ids that no fragment holds, good or damaged, below the last id of the partition in the store."""
    cluster_key: builtins.bytes | None = None
    """Cluster key of the first good fragment; None if no fragment is good."""
    wrong: list[str] = field(default_factory=list)
    """Descriptions of fragments that are damaged, in another format, or not of one log with the others."""
    damaged: list[FragmentName] = field(default_factory=list)

    @property
    def troubles(self) -> list[str]:
        """All that is wrong, line by line; empty if nothing is."""
        lines = [*self.wrong, *(f"no fragment holds {span.first} to {span.last}: {PUT_BACK}" for span in self.missing)]
        for hole in self.holes:
            if not any(span.first <= hole.last and hole.first <= span.last for span in self.missing):
                lines.append(f"no good fragment holds {hole.first} to {hole.last}")
        return lines


async def verify(store: ObjectStore, partition: PartitionId) -> StoreReport:
    """Read every fragment of a partition, and report damage, other formats, contradictions, holes and missing ids."""
    report = StoreReport(partition)
    listed = await fragments_of(store, partition)
    ids = ids_to_compare(listed)
    good: list[FragmentFacts] = []
    for name, size in listed.items():
        report.fragments += 1
        report.bytes += size
        try:
            good.append(await verified(store, name, ids[name]))
        except FragmentDamaged as error:
            report.wrong.append(error.text)
            report.damaged.append(name)
        except UnsupportedFormat as error:  # it may well be whole: nothing to be repaired
            report.wrong.append(error.text)
    report.wrong += [f"{each.what}: {MOVE_OUT}" for each in contradictions(good)]
    names = [facts.name for facts in good]
    covered = cover(names, Span(0, max((name.last for name in names), default=NO_TRANSACTION)))
    report.holes = covered.holes
    report.missing = cover(listed, Span(0, max((name.last for name in listed), default=NO_TRANSACTION))).holes
    report.transactions = sum(piece.span.length for piece in covered.pieces)
    report.last = archived_up_to(names)
    report.cluster_key = good[0].footer.cluster_key if good else None
    return report


async def check_archived_from(log: Log, store: ReadableStore, cluster_key: bytes | None) -> None:
    """Raise `WrongClusterKey` unless the store's mark and fragments, of this key if one could be read, are the log's.

    Raises `FragmentDamaged` for a mark that can't be read, and `BadOption` for the log of a topic.
    """
    check_no_topic(log.topic, "an archive")
    try:
        if cluster_key in (None, log.cluster_key):
            await is_marked(store, log.cluster_key)
            return
        other = f", of cluster {cluster_key.hex()}"
    except WrongClusterKey:
        other = ""
    raise WrongClusterKey(
        f"{store} holds the fragments of another log{other}; the given log is of cluster {log.cluster_key.hex()}: "
        "give the log that was archived there. Nothing was written"
    )


async def repair(log: Log, store: MendableStore, name: FragmentName, timeout: float | None = None) -> None:
    """Replace a damaged fragment by one made from the log, if that is the very same object, and read it back.

    `log` has the topic, if any, of the fragment's partition. Raises, with nothing changed, `FragmentDamaged` if it is
    not, or if nothing else holds its transactions; `HistoryTrimmed`, `FragmentMissing`, and what reading and the store
    raise. Raises `FragmentDamaged`, too, if the new object does not read back well.
    """
    partition = (await log.cluster_topics()).number_of(name.partition)[1] if log.topic else name.partition
    async with aclosing(batches_of(log, partition, Span(name.first, name.last), name.last, timeout)) as batches:
        await store.replace(name.path, await made_again(log.cluster_key, name, batches))
    await verified(store, name)


async def mark_trouble(store: ObjectStore, cluster_key: bytes) -> str | None:
    """Return what is wrong with the mark of a store that holds this cluster's fragments, or None."""
    try:
        if await is_marked(store, cluster_key):
            return None
    except WrongClusterKey:
        return f"{MARK} is of another cluster than the fragments"
    except FragmentDamaged as error:
        return error.text
    return f"{MARK} is missing, so servers do not use the store: {INIT}"
