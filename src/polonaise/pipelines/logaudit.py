"""The audit of a log against itself: every copy of every partition is whole and in order, and all copies are equal.

The copies are the servers', in fragments, and in the directories of storage nodes. The first two are values that travel
to Spark's tasks and are read there. A storage node's directory is read only in the process of the driver, whose machine
it is on.

Each copy is walked over: each batch follows the one before it, and their digests are summed up. The digest of many
batches is the sum of their SHA-256, so that it can be put together from parts. To find where copies differ, digests are
kept by ranges of `BLOCK_IDS` ids, here called blocks.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import BadOption, BatchDamaged, DataDamaged, FragmentDamaged, NotFound, SegmentDamaged
from polonaise.fragments.agreement import contradictions, ids_to_compare
from polonaise.fragments.format import batches_in
from polonaise.fragments.objects import fragments_of, looked_at, open_bytes, partitions_in
from polonaise.fragments.protocol.coverage import FragmentRange, Span, cover
from polonaise.log.batch import Batch
from polonaise.node.addresses import absolute_store, check_no_topic
from polonaise.pipelines.job import full_address, open_log, tasks_address
from polonaise.pipelines.runs import JobProgress, Silence
from polonaise.pipelines.tasks import run_tasks
from polonaise.redaction import redacted, redacted_address, redacted_repr
from polonaise.spark import clusters
from polonaise.storage.files import Files, evidence_in, find
from polonaise.storage.offline import dump, each_unwaited
from polonaise.terms import NO_TRANSACTION, PartitionId, SessionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PartitionCopy(Protocol):
    """A copy of a partition, or of a part of it."""

    @property
    def where(self) -> str:
        """The copy's place, for people."""

    def batches(self, span: Span) -> Iterator[Batch]:
        """Yield the copy's batches that begin in the span, in order, unverified. Raises what reading them raises."""


@redacted_repr
class ServedCopy(NamedTuple):
    """A partition as the servers give it to readers."""

    address: str
    partition: PartitionId
    timeout_s: float

    @property
    def where(self) -> str:
        return "servers"

    def batches(self, span: Span) -> Iterator[Batch]:
        log = clusters.log_at(self.address)
        reading = log.read_batches(self.partition, after=span.first - 1, until=span.last, timeout=self.timeout_s)
        with reading as batches:
            for batch in batches:
                if span.first <= batch.first <= span.last:
                    yield batch


@redacted_repr
class FragmentCopy(NamedTuple):
    """A partition as its fragments in a store hold it: pieces of fragments, in the order of ids."""

    url: str
    pieces: tuple[FragmentRange, ...]

    @property
    def where(self) -> str:
        return f"fragments in {redacted_address(self.url)}"

    def batches(self, span: Span) -> Iterator[Batch]:
        store = clusters.store_at(self.url)
        for name, piece in self.pieces:
            first, last = max(span.first, piece.first), min(span.last, piece.last)
            if first > last:
                continue
            raw = clusters.wait(lambda path=name.path: store.get(path))  # type: ignore[misc]
            open_bytes(raw, name)
            try:
                for encoded in batches_in(raw):
                    batch = Batch.parse(encoded, verify=False)
                    if first <= batch.first <= last:
                        yield batch
            except FragmentDamaged as error:
                raise FragmentDamaged(f"{name.path}: {error.text}") from error


@redacted_repr
class StorageCopy(NamedTuple):
    """A partition in a storage node's directory on this machine. The node may be running."""

    directory: str
    partition: PartitionId

    @property
    def where(self) -> str:
        return f"storage node {redacted(self.directory)}"

    def batches(self, span: Span) -> Iterator[Batch]:
        for files in self._files():
            for dumped in each_unwaited(dump(files)):
                if dumped.batch.first > span.last:
                    return
                if dumped.batch.first >= span.first:
                    yield dumped.batch

    def synced(self) -> TransactionId:
        """Return the last id that the node has synced, by its own evidence; -1 for none."""
        return max((evidence_in(files).last for files in self._files()), default=-1)

    def _files(self) -> list[Files]:
        return [files for files in find(self.directory) if files.partition == self.partition]


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
    """Walk over batches, and check each by itself and against the one before it. Stops at the first bad one. Errors of
    damage, and `NotFound`, end the walk, and are its `trouble`; others of reading are raised."""
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
    """Return the spans in which to look, batch by batch, for a difference of two copies; none for equal ones. That is
    the first block that both copies hold whole and in which they differ. If there is none, it is the blocks at the
    beginning and end of what both hold, where unequal digests prove nothing. Without an id in common, `last` of a span
    is below `first`; if one copy has no batches, there are no spans."""
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


_TASK_IDS: Final = 4 * BLOCK_IDS
"""The largest number of ids of the servers' copy that one task reads."""
_TIMEOUT_S: Final = 60.0


class CopyReport(NamedTuple):
    """The result for one copy of one partition, read from its beginning."""

    where: str
    transactions: int
    last: TransactionId
    """The last good id; -1 for none."""
    behind: int
    """Number of committed transactions above `last`, which this copy lacks or can't read. By itself no fault."""
    digest: str
    """The sum of the SHA-256 of the good batches, up to the first bad one, in hexadecimal."""
    troubles: tuple[str, ...]


@dataclass(frozen=True)
class PartitionAudit:
    """One partition, and every copy of it that was read."""

    partition: PartitionId
    committed: TransactionId
    """The committed high-water mark when the audit began. What comes after is not examined."""
    copies: tuple[CopyReport, ...]

    @property
    def troubles(self) -> list[str]:
        return [f"partition {self.partition}, {each.where}: {what}" for each in self.copies for what in each.troubles]


@dataclass(frozen=True)
class LogAuditReport:
    """The result for a log: the servers' copy, and each other copy that the audit was given, read as far as it goes."""

    log: str
    """The log's address, redacted: a report is printed and kept."""
    partitions: tuple[PartitionAudit, ...]

    @property
    def troubles(self) -> list[str]:
        """All that is wrong, line by line."""
        return [what for each in self.partitions for what in each.troubles]

    @property
    def well(self) -> bool:
        return not self.troubles

    def fields(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "partitions": [
                {
                    "partition": each.partition,
                    "committed": each.committed,
                    "copies": [{**copy._asdict(), "troubles": list(copy.troubles)} for copy in each.copies],
                }
                for each in self.partitions
            ],
            "troubles": self.troubles,
        }


def audit_log(
    spark: SparkSession,
    address: str,
    *,
    partitions: str = "all",
    fragments: str | None = None,
    storage: Sequence[str] = (),
    timeout_s: float = _TIMEOUT_S,
    progress: JobProgress | None = None,
) -> LogAuditReport:
    """Read all that is committed from the servers, and the same from other copies that are given, and compare them.

    Other copies are a store of fragments (`fragments`) and directories of storage nodes on this machine (`storage`).
    Checks of each copy that ids are dense, that each batch names the CRC of the one before it, that commit times and
    sessions never go back, and the CRCs of batches and of transactions' data; and that all copies have the same bytes.
    A replica that is still catching up, or that was trimmed, is compared as far as it goes.

    Servers and fragments are read by Spark's tasks, `storage` directories in this process. `timeout_s` bounds each
    request to the log; `progress` counts tasks, then the partitions of all directories. Troubles are in the report.

    Raises `BadOption` and `UnknownPartition` for invalid options, `NotInitialized` for an embedded log that does not
    exist, `NotFound` for a store or directory that does not exist, `BadOption` for the address of a topic, for a store
    without fragments and for segments that do not say their partition, what `find` raises for a directory, and what
    reading and Spark raise, except damage.
    """
    progress, full = progress or Silence(), full_address(address)
    url = None if fragments is None else absolute_store(fragments)
    for directory in storage:
        # Raises for a path without files of a storage node, before anything is read.
        if any(files.partition is None for files in find(directory)):
            raise BadOption(
                f"can't tell to which partition {redacted(directory)} belongs: name a storage directory, or one "
                "partition's directory in it"
            )
    if url is not None and not clusters.wait(lambda: partitions_in(clusters.store_at(url))):
        raise BadOption(
            f"{redacted_address(url)} holds no fragments: correct its address, or archive the log there first"
        )
    with open_log(full) as log:
        check_no_topic(log.topic, "an audit")
        numbers = partitions_named(partitions, log.partition_count, log.topic)
        committed = {number: log.high_water_mark(number, timeout=timeout_s) for number in numbers}
        copies: dict[PartitionId, list[PartitionCopy]] = {
            number: [ServedCopy(tasks_address(full), number, timeout_s)] for number in numbers
        }
        fragment_troubles: dict[PartitionId, list[str]] = {number: [] for number in numbers}
        for number in numbers:
            if url is not None:
                archived, fragment_troubles[number] = _archived(url, number, committed[number], log.cluster_key)
                copies[number].append(archived)
            copies[number] += [StorageCopy(directory, number) for directory in storage]
        # Before the walks: a running node goes on syncing, and only what it had synced by now has to be found.
        synced = {
            copy: copy.synced()
            for of_partition in copies.values()
            for copy in of_partition
            if isinstance(copy, StorageCopy)
        }
        walks = _walked(spark, copies, committed, progress)
        return LogAuditReport(
            redacted(full),
            tuple(
                PartitionAudit(
                    number,
                    committed[number],
                    _judged(copies[number], walks[number], committed[number], fragment_troubles[number], synced),
                )
                for number in numbers
            ),
        )


def _archived(
    url: str, partition: PartitionId, committed: TransactionId, cluster_key: bytes
) -> tuple[FragmentCopy, list[str]]:
    """Return a partition's fragments to read, and what is wrong with or between its fragments by their footers."""
    store, troubles = clusters.store_at(url), []
    good = []
    listed = clusters.wait(lambda: fragments_of(store, partition))
    ids = ids_to_compare(listed)
    for name, size in listed.items():
        try:
            facts = clusters.wait(partial(looked_at, store, name, size, ids[name]))
        except FragmentDamaged as error:
            troubles.append(error.text)
            continue
        if facts.footer.cluster_key != cluster_key:
            troubles.append(f"{name.path} is of another cluster")
        else:
            good.append(facts)
    troubles += [each.what for each in contradictions(good)]
    covered = cover([facts.name for facts in good], Span(0, committed))
    inner = [hole for hole in covered.holes if any(facts.name.first > hole.last for facts in good)]
    troubles += [f"no good fragment holds {hole.first} to {hole.last}" for hole in inner]
    return FragmentCopy(url, covered.pieces), troubles


# ------------------------------------------------------------------ walking


class _AuditTask(NamedTuple):
    copy: PartitionCopy
    span: Span


def _walked(
    spark: SparkSession,
    copies: dict[PartitionId, list[PartitionCopy]],
    committed: dict[PartitionId, TransactionId],
    progress: JobProgress,
) -> dict[PartitionId, list[Walk]]:
    tasks = {
        (number, copy): [_AuditTask(copy, span) for span in _spans(copy, committed[number])]
        for number, of_partition in copies.items()
        for copy in of_partition
    }
    remote = [task for some in tasks.values() for task in some if not isinstance(task.copy, StorageCopy)]
    local = [task for some in tasks.values() for task in some if isinstance(task.copy, StorageCopy)]
    walks = dict(zip(remote, run_tasks(spark, _walk, remote, progress, "servers and fragments"), strict=True))
    progress.begin("storage directories", len(local))
    for done, task in enumerate(local, start=1):
        walks[task] = _walk(task)
        progress.done(done)
    return {
        number: [joined([walks[task] for task in tasks[number, copy]]) for copy in of_partition]
        for number, of_partition in copies.items()
    }


def _spans(copy: PartitionCopy, committed: TransactionId) -> list[Span]:
    if isinstance(copy, FragmentCopy):
        return [piece.span for piece in copy.pieces]
    if isinstance(copy, StorageCopy):
        return [Span(0, committed)]
    return [Span(first, min(first + _TASK_IDS - 1, committed)) for first in range(0, committed + 1, _TASK_IDS)]


def _walk(task: _AuditTask) -> Walk:
    return walk(task.copy.batches(task.span))


# ------------------------------------------------------------------ judging


def _judged(
    copies: Sequence[PartitionCopy],
    walks: Sequence[Walk],
    committed: TransactionId,
    fragment_troubles: Sequence[str],
    synced: Mapping[StorageCopy, TransactionId],
) -> tuple[CopyReport, ...]:
    """Return the report on each copy. The first copy is the servers', with which the others are compared. `synced` has,
    for each copy in a storage directory, the last id that was synced before the walks."""
    reports = []
    for copy, walked in zip(copies, walks, strict=True):
        troubles = [walked.trouble] if walked.trouble else []
        if isinstance(copy, FragmentCopy):
            troubles += fragment_troubles
        if isinstance(copy, ServedCopy):
            troubles += filter(None, [begins_at_the_beginning(walked)])
            if not troubles and _last(walked) != committed:
                troubles.append(f"it ends with {_last(walked)}, but {committed} was committed")
        else:
            troubles += filter(None, [_fork(copies[0], walks[0], copy, walked)])
        last = _last(walked)
        if isinstance(copy, StorageCopy) and not walked.trouble and last < (due := min(synced[copy], committed)):
            troubles.append(f"it ends with {last}, but {due} was synced")
        reports.append(
            CopyReport(copy.where, walked.transactions, last, committed - last, walked.digest, tuple(troubles))
        )
    return tuple(reports)


def _last(walked: Walk) -> TransactionId:
    return -1 if walked.end is None else walked.end.last


def _fork(served: PartitionCopy, served_walk: Walk, copy: PartitionCopy, copy_walk: Walk) -> str:
    """Say where a copy differs from the servers', reading the suspect ids of both again. Empty if it does not."""
    shared = min(_last(served_walk), _last(copy_walk))
    for span in suspects(served_walk, copy_walk):
        pairs = itertools.zip_longest(*(_up_to(each.batches(span), shared) for each in (served, copy)))
        for served_batch, copy_batch in pairs:
            if served_batch is None or copy_batch is None or digest_of(served_batch) != digest_of(copy_batch):
                at = min(batch.first for batch in (served_batch, copy_batch) if batch is not None)
                return f"the batch from {at} is another one than the servers': a fork"
    return ""


def _up_to(batches: Iterable[Batch], last: TransactionId) -> Iterator[Batch]:
    """Yield batches that end at `last` or before. What follows may be damaged, and is not read."""
    for batch in batches:
        if batch.last > last:
            return
        yield batch
        if batch.last == last:
            return
