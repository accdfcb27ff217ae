"""Several replicas of one log, compared by their files alone: up to where they are the same, and who holds more.

For whoever has to decide which of them to go on with, when there is no quorum that could say.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from polonaise.errors import BadOption, SegmentDamaged, WrongClusterKey
from polonaise.log.batch import Batch
from polonaise.storage.files import Files, find, trimmed_in
from polonaise.storage.offline import batches_of, bounds_in
from polonaise.storage.protocol.standing import Bounds
from polonaise.terms import NO_SESSION, NO_TRANSACTION, PartitionId, SessionId, TransactionId


class ReplicaReport(NamedTuple):
    """One replica of a partition."""

    directory: str
    first: TransactionId
    """The first id that was not trimmed."""
    last: TransactionId
    """The last id that it holds before its first damage; the one before `first` for none."""
    bounds: Bounds
    joined: SessionId
    """The session that it took part in last; NO_SESSION where nothing says so."""
    damage: str
    """What is damaged or missing first; empty when nothing is."""


class ReplicaDifference(NamedTuple):
    """Where replicas part: each of them goes on with other batches from there."""

    first: TransactionId
    """Below it those that hold an id hold the same."""
    sides: tuple[tuple[str, ...], ...]
    """The directories that still agree with each other, side by side."""


@dataclass(frozen=True)
class ComparisonReport:
    """The replicas of one partition."""

    partition: PartitionId
    replicas: tuple[ReplicaReport, ...]
    difference: ReplicaDifference | None
    """None where all of them are the same, as far as each of them goes."""

    @property
    def same(self) -> TransactionId:
        """The last id that more than one replica holds and that is the same wherever it is held; -1 for none."""
        if len(self.replicas) < 2:
            return NO_TRANSACTION
        together = sorted((each.last for each in self.replicas), reverse=True)[1]
        return together if self.difference is None else min(together, self.difference.first - 1)

    @property
    def contradiction(self) -> str:
        """Which replicas know different transactions to be committed; empty when none do, as it has to be."""
        if self.difference is None:
            return ""
        sides = [
            [each.directory for each in self.replicas if each.directory in side and self._knows(each)]
            for side in self.difference.sides
        ]
        knowing = [side[0] for side in sides if side]
        return f"{' and '.join(knowing)} know different ones to be committed" if len(knowing) > 1 else ""

    def _knows(self, replica: ReplicaReport) -> bool:
        return self.difference is not None and replica.bounds.confirmed >= self.difference.first

    @property
    def well(self) -> bool:
        return not self.contradiction and not any(each.damage for each in self.replicas)


async def compare(directories: Sequence[str]) -> list[ComparisonReport]:
    """Compare what storage directories hold of each partition; every byte of them is read.

    Raises `BadOption` for fewer than two directories and for one that is named twice, `WrongClusterKey` for those of
    different logs, and what `find` raises.
    """
    if len(directories) < 2 or len(set(directories)) < len(directories):
        raise BadOption("what is to be compared? Name two storage directories or more, each once")
    found = [(directory, files) for directory in directories for files in find(directory)]
    keys = {files.kept.cluster_key for _, files in found if files.kept is not None}
    if len(keys) > 1:
        raise WrongClusterKey("these directories are of different logs: compare replicas of one")
    unnamed = next((directory for directory, files in found if files.partition is None), None)
    if unnamed is not None:
        raise BadOption(f"{unnamed}: which partition it is nothing says; name storage directories")
    partitions = sorted({files.partition for _, files in found if files.partition is not None})
    return [await _compared(partition, _of(partition, found)) for partition in partitions]


def _of(partition: PartitionId, found: Iterable[tuple[str, Files]]) -> list[_Walk]:
    return [_Walk(directory, files) for directory, files in found if files.partition == partition]


@dataclass(eq=False)
class _Walk:
    """A replica that is being read from its beginning."""

    directory: str
    files: Files
    batches: AsyncGenerator[Batch, None] = field(init=False)
    batch: Batch | None = None
    """Where it is; None at its end."""
    last: TransactionId = NO_TRANSACTION
    damage: str = ""

    def __post_init__(self) -> None:
        self.batches = batches_of(self.files)
        self.last = trimmed_in(self.files).first - 1

    async def step(self) -> None:
        if self.batch is not None:
            self.last = self.batch.last
        try:
            self.batch = await anext(self.batches, None)
        except SegmentDamaged as error:
            self.batch, self.damage = None, error.text

    def report(self) -> ReplicaReport:
        kept = self.files.kept
        joined = NO_SESSION if kept is None else kept.promises.joined
        first = trimmed_in(self.files).first
        return ReplicaReport(self.directory, first, self.last, bounds_in(self.files), joined, self.damage)


async def _compared(partition: PartitionId, walks: list[_Walk]) -> ComparisonReport:
    difference: ReplicaDifference | None = None
    async with AsyncExitStack() as stack:
        for walk in walks:
            await stack.enter_async_context(aclosing(walk.batches))
            await walk.step()
        while going := [walk for walk in walks if walk.batch is not None]:
            here = _next_of(going)
            difference = difference or _difference(here)
            for walk in here:
                await walk.step()
    return ComparisonReport(partition, tuple(walk.report() for walk in walks), difference)


def _next_of(going: list[_Walk]) -> list[_Walk]:
    """Those whose batch holds the least id, and those whose batch begins within one of these."""
    least = min(walk.batch.first for walk in going if walk.batch is not None)
    last = max(walk.batch.last for walk in going if walk.batch is not None and walk.batch.first == least)
    return [walk for walk in going if walk.batch is not None and walk.batch.first <= last]


def _difference(here: list[_Walk]) -> ReplicaDifference | None:
    """A batch carries the CRC of the one before it: replicas with the same one are the same up to there."""
    sides: dict[tuple[TransactionId, TransactionId, int], list[str]] = {}
    for walk in here:
        assert walk.batch is not None
        sides.setdefault((walk.batch.first, walk.batch.last, walk.batch.crc), []).append(walk.directory)
    if len(sides) == 1:
        return None
    return ReplicaDifference(min(first for first, _, _ in sides), tuple(tuple(side) for side in sides.values()))
