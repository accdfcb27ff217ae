"""How far an application's batch is published in a partition: register `spark/<appId>`, and what follows from it.

The register holds batch i64 · groups done u32 · groups in all u32 · partitions that the batch has rows for u32 · runs
u16 · earlier batches as runs, first and last i64 each · the name of the plan (UTF-8; empty where one group was all).
Every group expects just what was read and sets the next step, in one atomic step with its rows: so each step is taken
once, whoever tries, and however often.

A partition that a batch has not come to looks like one that it has no rows for. So whether a batch is whole is seen in
all partitions together: as many as it has rows for have finished it. Batches that were whole before the latest one
began are kept by their numbers, few runs as a rule: so whether one that comes again was written is known, not guessed.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from polonaise.client.protocol.arguments import INT64_MAX, encoded
from polonaise.errors import BadOption, BatchOvertaken, BatchUnfinished, SinkStateDamaged
from polonaise.log import registers
from polonaise.terms import PartitionId

KEY_PREFIX: Final = registers.SPARK_SINKS
_FIXED: Final = struct.Struct("<qIIIH")
_RUN: Final = struct.Struct("<qq")
RUNS_MAX: Final = 16
"""Of earlier batches, in a register; older ones are not known any more."""

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Numbers from first to last, ascending."""


class Step(enum.Enum):
    """What is to be done for a batch in a partition."""

    BEGIN = "begin"
    """Nothing of it is in the log: it goes by our own plan."""
    RESUME = "resume"
    """It is there in part: it goes on by the plan that the register names, whoever made it."""
    NOTHING = "nothing"
    """All of it is there."""
    OVERTAKEN = "overtaken"
    """A later batch is there."""


class SinkProgress(NamedTuple):
    """What the register says."""

    batch: int
    done: int
    """Groups that are in the log."""
    total: int
    partitions: int
    """Of the log, that the batch has rows for."""
    earlier: Runs = ()
    """Batches that were whole before this one began, as far as is known."""
    plan: str = ""
    """Its name in the staging store; empty where one group was all."""

    @property
    def finished(self) -> bool:
        return self.done == self.total

    def pack(self) -> bytes:
        fixed = _FIXED.pack(self.batch, self.done, self.total, self.partitions, len(self.earlier))
        return fixed + b"".join(_RUN.pack(*run) for run in self.earlier) + self.plan.encode()

    @classmethod
    def parse(cls, value: bytes) -> SinkProgress:
        """Raises `SinkStateDamaged` for what no sink has written."""
        try:
            batch, done, total, partitions, runs = _FIXED.unpack_from(value)
            name_at = _FIXED.size + runs * _RUN.size
            earlier = tuple(_RUN.iter_unpack(value[_FIXED.size : name_at]))
            progress = cls(batch, done, total, partitions, earlier, value[name_at:].decode())
        except (struct.error, UnicodeDecodeError):
            progress = cls(-1, 0, 0, 0)
        if progress.batch < 0 or not 0 < progress.done <= progress.total or not progress.partitions:
            raise SinkStateDamaged(
                f"a register {KEY_PREFIX.decode()}… holds {value[:40]!r}, which no sink has written: somebody else "
                "did; choose another txnAppId"
            )
        return progress


def register_key(app: str) -> bytes:
    """Where an application's progress is kept. Raises `BadOption` for a name that is empty or too long."""
    key = KEY_PREFIX + encoded("txnAppId", app)
    if not app or len(key) > registers.KEY_BYTES_MAX:
        raise BadOption(f"txnAppId has 1 to {registers.KEY_BYTES_MAX - len(KEY_PREFIX)} bytes, this one {len(app)}")
    return key


def next_step(held: SinkProgress | None, batch: int, app: str, partition: PartitionId) -> Step:
    """What batch `batch` still needs. Raises `BatchUnfinished` when an earlier one is there in part only."""
    if held is None or (held.batch < batch and held.finished):
        return Step.BEGIN
    if held.batch < batch:
        raise BatchUnfinished(
            f"batch {held.batch} of {app!r} is in partition {partition} with {held.done} of its {held.total} groups: "
            f"write it again to finish it before batch {batch}, or give this one another txnAppId"
        )
    if held.batch == batch and not held.finished:
        return Step.RESUME
    return Step.NOTHING if held.batch == batch else Step.OVERTAKEN


def check_order(
    held: Mapping[PartitionId, SinkProgress],
    batch: int,
    places: Collection[PartitionId],
    app: str,
    *,
    in_order: bool = False,
) -> Runs | None:
    """May batch `batch`, with rows for the partitions `places`, be written? `held` is what all partitions have.

    The earlier batches that it is to name; None if it was written before, whatever rows it comes with now. Raises
    `BatchUnfinished` while an earlier batch is not whole, or if this one was begun with rows for other partitions;
    `BatchOvertaken` when a later one is there, and this one is not known to be; of a stream, whose batches come
    `in_order`, it is known.
    """
    if not held:
        return ()
    latest = latest_of(held)
    those = [progress for progress in held.values() if progress.batch == latest]
    whole, parts, earlier = sum(progress.finished for progress in those), those[0].partitions, those[0].earlier
    if latest > batch:
        if in_order or any(first <= batch <= last for first, last in earlier):
            return None
        raise BatchOvertaken(
            f"batch {latest} of {app!r} is in the log, and batch {batch} is not, or so long ago that it is not known: "
            f"numbers only go up, and nothing is written; take a number above {latest}, or another txnAppId"
        )
    if latest == batch:
        if whole >= parts:
            return None
        _check_same_partitions(held, batch, places, app)
        return earlier
    if whole < parts:
        raise BatchUnfinished(
            f"batch {latest} of {app!r} is whole in {whole} of the {parts} partitions that it has rows for: write it "
            f"again to finish it before batch {batch}, or give this one another txnAppId"
        )
    return () if in_order else _added(earlier, latest)


def latest_of(held: Mapping[PartitionId, SinkProgress]) -> int:
    """The number of the latest batch that is there, in part or whole; -1 for none."""
    return max((progress.batch for progress in held.values()), default=-1)


def _check_same_partitions(
    held: Mapping[PartitionId, SinkProgress], batch: int, places: Collection[PartitionId], app: str
) -> None:
    """Whoever finishes a batch has rows for just the partitions that it was begun for."""
    begun = {place: progress for place, progress in held.items() if progress.batch == batch}
    parts = next(iter(begun.values())).partitions
    strange = sorted(begun.keys() - set(places))
    if len(places) == parts and not strange:
        return
    now = f"with none for partition {strange[0]} now" if strange else f"with rows for {len(places)} now"
    raise BatchUnfinished(
        f"batch {batch} of {app!r} was begun with rows for {parts} partitions, and comes {now}: "
        "a batch that is repeated has to have the same rows, in the same partitions"
    )


def _added(runs: Runs, batch: int) -> Runs:
    if runs and runs[-1][1] == batch - 1:
        return (*runs[:-1], (runs[-1][0], batch))
    return (*runs, (batch, batch))[-RUNS_MAX:]


def check_batch(batch: int) -> None:
    """Raises `BadOption` for a number that no batch has."""
    if not 0 <= batch <= INT64_MAX:
        raise BadOption(f"batch {batch}: batches are numbered from 0")
