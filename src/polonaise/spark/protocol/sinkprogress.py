"""How far a batch is published: the register `spark/<appId>` of each partition, and the decisions that rest on it.

The register holds, little-endian: batch i64 · groups done u32 · groups in all u32 · partitions that the batch has rows
for u32 · runs u16 · earlier batches as runs, first and last i64 each · the plan's name (UTF-8; empty if one group was
all), and where it is known NUL · whose batch it is · NUL · the digest of its rows. Every group expects the register
exactly as it was read, and sets the next step in one atomic step with its rows.
So each step is taken once, whoever tries, and however often.

One partition alone does not say whether a batch is whole: a partition that the batch has not reached looks like one
that it has no rows for. So all partitions are looked at together: the batch is whole when as many partitions have
finished it as it has rows for. In batch writes the register also names the batches that were whole before the latest
one began, as runs of numbers (few, as a rule), so that whether a repeated batch was written is known and not guessed. A
stream, whose batches come in order, needs none of that.

A name belongs to one query: the checkpoint of another one, a new one, or an older copy of this one number other rows
with the same batch numbers. So the register says which query has written it, and which rows.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from polonaise.client.protocol.arguments import INT64_MAX, encoded
from polonaise.errors import BadOption, fault
from polonaise.log import registers
from polonaise.redaction import redacted
from polonaise.terms import PartitionId

KEY_PREFIX: Final = registers.SPARK_SINKS
_FIXED: Final = struct.Struct("<qIIIH")
_RUN: Final = struct.Struct("<qq")
RUNS_MAX: Final = 16
"""The most ranges of earlier batch numbers in a register. The oldest are forgotten, so that its size is bounded."""

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of batch numbers, (first, last), both inclusive, ascending."""


BATCH_WRITES: Final = "-"
"""Stands for the id of a query in the registers of batch writes."""


class Origin(NamedTuple):
    """The origin of a batch: whose it is, and which rows it has."""

    query: str = ""
    """The id of the stream's query, which its checkpoint holds; `BATCH_WRITES`; empty if unknown."""
    digest: str = ""
    """The digest of the batch's rows in any order, see `rows.RowDigest`; empty if unknown."""


UNKNOWN: Final = Origin()


class Step(enum.Enum):
    """The next thing to do for a batch in a partition."""

    BEGIN = "begin"
    """Nothing of the batch is in the partition: publish it by this driver's own plan."""
    RESUME = "resume"
    """Some groups are in the partition: go on by the plan that the register names, even if another driver made it."""
    NOTHING = "nothing"
    """All groups of the batch are in the partition."""
    OVERTAKEN = "overtaken"
    """A later batch is in the partition, in part or whole."""


class SinkProgress(NamedTuple):
    """The decoded value of a register `spark/<appId>`."""

    batch: int
    """Number of the application's latest batch in this partition."""
    done: int
    """Number of the batch's groups that are in this partition."""
    total: int
    """Number of groups that the batch has for this partition."""
    partitions: int
    """Number of the log's partitions that the batch has rows for; 1 for a batch without rows."""
    earlier: Runs = ()
    """Batches known to have been whole before this one began, in at most `RUNS_MAX` runs; none in a stream."""
    plan: str = ""
    """The plan's name in the staging store; empty if one group was all."""
    origin: Origin = UNKNOWN
    """Unknown in registers of versions before 0.2."""

    @property
    def finished(self) -> bool:
        return self.done == self.total

    def pack(self) -> bytes:
        fixed = _FIXED.pack(self.batch, self.done, self.total, self.partitions, len(self.earlier))
        texts = [self.plan] if self.origin == UNKNOWN else [self.plan, *self.origin]
        return fixed + b"".join(_RUN.pack(*run) for run in self.earlier) + "\0".join(texts).encode()

    @classmethod
    def parse(cls, value: bytes, app: str, partition: PartitionId) -> SinkProgress:
        """Decode the value of an application's register in a partition. Raises `sink_state_damaged` for other bytes."""
        try:
            batch, done, total, partitions, runs = _FIXED.unpack_from(value)
            name_at = _FIXED.size + runs * _RUN.size
            earlier = tuple(_RUN.iter_unpack(value[_FIXED.size : name_at]))
            plan, *origin = value[name_at:].decode().split("\0")
            progress = cls(batch, done, total, partitions, earlier, plan, Origin(*origin))
        except (struct.error, UnicodeDecodeError, TypeError):
            progress = cls(-1, 0, 0, 0)
        if progress.batch < 0 or not 0 < progress.done <= progress.total or not progress.partitions:
            raise fault(
                "sink_state_damaged",
                f"the register {KEY_PREFIX.decode()}{app} of partition {partition} holds {redacted(repr(value), 40)}, "
                "which no sink of this version has written; choose another txnAppId",
            )
        return progress


def register_key(app: str) -> bytes:
    """Return the key of an application's register. Raises `BadOption` for a name that can't be one."""
    name = encoded("txnAppId", app)
    bytes_max = registers.KEY_BYTES_MAX - len(KEY_PREFIX)
    if not 0 < len(name) <= bytes_max:
        raise BadOption(f"txnAppId has 1 to {bytes_max} bytes, this one {len(name)}")
    return KEY_PREFIX + name


def next_step(progress: SinkProgress | None, batch: int, app: str, partition: PartitionId) -> Step:
    """Return what batch `batch` still needs in a partition. Raises `batch_unfinished` if the partition holds some
    groups of an earlier batch, and not all of them."""
    if progress is None or (progress.batch < batch and progress.finished):
        return Step.BEGIN
    # This driver has no rows of the earlier batch: it could finish the plan here, and yet partitions that were not
    # begun would lack theirs, and nobody would have been told (docs/decisions/0013).
    if progress.batch < batch:
        raise fault(
            "batch_unfinished",
            f"batch {progress.batch} of {app!r} is in partition {partition} with {progress.done} of its "
            f"{progress.total} groups: write it again to finish it before batch {batch}, or give this one another "
            "txnAppId",
        )
    if progress.batch == batch and not progress.finished:
        return Step.RESUME
    return Step.NOTHING if progress.batch == batch else Step.OVERTAKEN


def check_order(
    by_partition: Mapping[PartitionId, SinkProgress],
    batch: int,
    partitions: Collection[PartitionId],
    app: str,
    *,
    in_order: bool = False,
    origin: Origin = UNKNOWN,
) -> Runs | None:
    """Return the earlier batches that batch `batch` is to record as whole, or None if `batch` is already in the log.

    `by_partition` is the progress in all partitions, `partitions` are those that the batch has rows for. A batch write
    that is in the log adds nothing, whatever rows come with it now. Raises `batch_unfinished` if an earlier batch is
    not whole, or if this one was begun with other rows, or rows for other partitions; `batch_overtaken` if a later
    batch is in the log and this one is not known to be; `BadOption` for the name of another query.

    In a stream (`in_order`) every batch below the latest one is in the log. Spark repeats the latest one only: of a
    query that is known, an older batch, or the latest with other rows, comes of an older copy of its checkpoint, and
    raises `batch_overtaken`.
    """
    if not by_partition:
        return ()
    for progress in by_partition.values():
        check_query(progress, origin.query, app)
    latest = latest_of(by_partition)
    of_latest = [progress for progress in by_partition.values() if progress.batch == latest]
    # All registers of one batch carry the same count of partitions and the same runs: any of them will do.
    parts, earlier = of_latest[0].partitions, of_latest[0].earlier
    finished = sum(progress.finished for progress in of_latest)
    if latest > batch and in_order and origin.query:
        raise fault(
            "batch_overtaken",
            f"batch {latest} of {app!r} is in the log, and its query is at batch {batch} again: its checkpoint is an "
            f"older copy; restore the latest one, or delete the checkpoint and take another txnAppId, which "
            "writes all rows again",
        )
    if latest > batch:
        if in_order or any(first <= batch <= last for first, last in earlier):
            return None
        raise fault(
            "batch_overtaken",
            f"batch {latest} of {app!r} is in the log, and batch {batch} is not, or was written too long ago to be "
            f"remembered; nothing is written, as batch numbers only go up: take one above {latest}, or another "
            "txnAppId",
        )
    if latest == batch:
        _check_same_rows(of_latest[0], origin, app, whole=finished >= parts, in_order=in_order)
        if finished >= parts:
            return None
        _check_same_partitions(by_partition, batch, partitions, app)
        return earlier
    if finished < parts:
        raise fault(
            "batch_unfinished",
            f"batch {latest} of {app!r} is whole in {finished} of the {parts} partitions that it has rows for: write "
            f"it again to finish it before batch {batch}, or give this one another txnAppId",
        )
    # A stream needs no record of earlier batches: that they were written follows from their order.
    return () if in_order else _added(earlier, latest)


def latest_of(by_partition: Mapping[PartitionId, SinkProgress]) -> int:
    """Return the number of the latest batch that is in the log, in part or whole; -1 for none."""
    return max((progress.batch for progress in by_partition.values()), default=-1)


def check_query(progress: SinkProgress, query: str, app: str) -> None:
    """Raise `BadOption` if another query, as far as both are known, has written under this name."""
    before = progress.origin.query
    if before and query and before != query:
        who, now = ("batch writes have" if each == BATCH_WRITES else f"query {each} has" for each in (before, query))
        raise BadOption(
            f"txnAppId {app!r} is another's: {who} written batch {progress.batch} under it, and {now} batches of other "
            "rows with the same numbers: take another txnAppId, or the checkpoint of that query"
        )


def _check_same_rows(latest: SinkProgress, origin: Origin, app: str, *, whole: bool, in_order: bool) -> None:
    """Raise an error if a batch comes with other rows than before, unless it is a batch write that is whole."""
    before, digest = latest.origin.digest, origin.digest
    if not before or not digest or before == digest or (whole and not (in_order and origin.query)):
        return
    counts = " and ".join(each.partition("-")[0] for each in (before, digest))
    if whole:
        raise fault(
            "batch_overtaken",
            f"batch {latest.batch} of {app!r} is in the log, with other rows ({counts} rows): its query's "
            "checkpoint is an older copy, or its rows are made anew each time, as with uuid(); restore the latest "
            "checkpoint, or take a new one and another txnAppId, which writes all rows again",
        )
    raise fault(
        "batch_unfinished",
        f"batch {latest.batch} of {app!r} was begun with other rows ({counts} rows): a batch that is repeated has to "
        "have the same rows, in the same partitions",
    )


def _check_same_partitions(
    by_partition: Mapping[PartitionId, SinkProgress], batch: int, partitions: Collection[PartitionId], app: str
) -> None:
    """Raise `batch_unfinished` if the batch, as far as known, has rows for other partitions than when it was begun."""
    begun = {partition: progress for partition, progress in by_partition.items() if progress.batch == batch}
    parts = next(iter(begun.values())).partitions
    unexpected = sorted(begun.keys() - set(partitions))
    if len(partitions) == parts and not unexpected:
        return
    now = f"with none for partition {unexpected[0]} now" if unexpected else f"with rows for {len(partitions)} now"
    raise fault(
        "batch_unfinished",
        f"batch {batch} of {app!r} was begun with rows for {parts} partitions, and comes {now}: "
        "a batch that is repeated has to have the same rows, in the same partitions",
    )


def _added(runs: Runs, batch: int) -> Runs:
    if runs and runs[-1][1] == batch - 1:
        return (*runs[:-1], (runs[-1][0], batch))
    return (*runs, (batch, batch))[-RUNS_MAX:]


def check_batch(batch: int) -> None:
    """Raise `BadOption` unless `batch` is a valid batch number."""
    if not 0 <= batch <= INT64_MAX:
        raise BadOption(f"batch {batch}: a batch has a number from 0 to {INT64_MAX}")
