"""How far an application's batch is published in a partition: register `spark/<appId>`, and what follows from it.

The register holds batch i64 · groups done u32 · groups in all u32 · partitions that the batch has rows for u32 · the
name of the plan (UTF-8; empty where one group was all). Every group expects just what was read and sets the next step,
in one atomic step with its rows: so each step is taken once, whoever tries, and however often.

A partition that a batch has not come to looks like one that it has no rows for. So whether a batch is whole is seen in
all partitions together: as many as it has rows for have finished it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from polonaise.client.protocol.arguments import INT64_MAX
from polonaise.errors import BadOption, BatchOvertaken, BatchUnfinished, SinkStateDamaged
from polonaise.log import registers
from polonaise.terms import PartitionId

KEY_PREFIX: Final = b"spark/"
_FIXED: Final = struct.Struct("<qIII")


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


class Progress(NamedTuple):
    """What the register says."""

    batch: int
    done: int
    """Groups that are in the log."""
    total: int
    partitions: int
    """Of the log, that the batch has rows for."""
    plan: str = ""
    """Its name in the staging store; empty where one group was all."""

    @property
    def finished(self) -> bool:
        return self.done == self.total

    def pack(self) -> bytes:
        return _FIXED.pack(self.batch, self.done, self.total, self.partitions) + self.plan.encode()

    @classmethod
    def parse(cls, value: bytes) -> Progress:
        """Raises `SinkStateDamaged` for what no sink has written."""
        try:
            batch, done, total, partitions = _FIXED.unpack_from(value)
            progress = cls(batch, done, total, partitions, value[_FIXED.size :].decode())
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
    key = KEY_PREFIX + app.encode()
    if not app or len(key) > registers.KEY_BYTES_MAX:
        raise BadOption(f"txnAppId has 1 to {registers.KEY_BYTES_MAX - len(KEY_PREFIX)} bytes, this one {len(app)}")
    return key


def next_step(held: Progress | None, batch: int, app: str, partition: PartitionId) -> Step:
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


def check_order(held: Mapping[PartitionId, Progress], batch: int, wanted: Collection[PartitionId], app: str) -> None:
    """May batch `batch`, with rows for the partitions `wanted`, be written? `held` is what all partitions have.

    Raises `BatchUnfinished` while an earlier batch is not whole, or if this one was begun with rows for more or fewer
    partitions; `BatchOvertaken` when a later one is there and this one is not.
    """
    latest = max((progress.batch for progress in held.values()), default=-1)
    if latest > batch:
        missing = [place for place in wanted if place not in held or held[place].batch < batch]
        if missing:
            raise BatchOvertaken(
                f"batch {latest} of {app!r} is in the log already, and batch {batch} is not in partition {missing[0]}: "
                f"numbers only go up, and nothing is written; take a number above {latest}, or another txnAppId"
            )
        return
    those = {place: progress for place, progress in held.items() if progress.batch == latest}
    whole = sum(progress.finished for progress in those.values())
    parts = next((progress.partitions for progress in those.values()), 0)
    if whole >= parts:
        return
    if latest < batch:
        raise BatchUnfinished(
            f"batch {latest} of {app!r} is whole in {whole} of the {parts} partitions that it has rows for: write it "
            f"again to finish it before batch {batch}, or give this one another txnAppId"
        )
    if parts != len(wanted):
        raise BatchUnfinished(
            f"batch {batch} of {app!r} was begun with rows for {parts} partitions, and comes with rows for "
            f"{len(wanted)} now: a batch that is repeated has to have the same rows, in the same partitions"
        )


def check_batch(batch: int) -> None:
    """Raises `BadOption` for a number that no batch has."""
    if not 0 <= batch <= INT64_MAX:
        raise BadOption(f"batch {batch}: batches are numbered from 0")
