"""Compare several replicas of a log by their files alone, where no quorum can decide: which holds more?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from polonaise.errors import BadOption, SegmentDamaged, StorageNameDamaged, WrongClusterKey
from polonaise.log.batch import Batch
from polonaise.storage.files import Files, find, name_in, trimmed_in
from polonaise.storage.offline import batches_of, bounds_in
from polonaise.storage.protocol.standing import Bounds
from polonaise.terms import NO_SESSION, NO_TRANSACTION, PartitionId, SessionId, StorageId, TransactionId


class ReplicaReport(NamedTuple):
    """One replica of a partition."""

    directory: str
    node: StorageId
    """The name of its storage node; empty if none is known."""
    first: TransactionId
    """The first id that was not trimmed."""
    last: TransactionId
    """The last id before the first damage; the one before `first` for none."""
    bounds: Bounds
    joined: SessionId
    """NO_SESSION without a control file."""
    damage: str
    """The first thing that is damaged or missing; empty if nothing is."""


class ReplicaDifference(NamedTuple):
    """Where replicas of a partition part, and which of them agree with each other there."""

    first: TransactionId
    """The first id at which they differ. Below it, replicas that hold an id hold the same."""
    sides: tuple[tuple[str, ...], ...]
    """Directories of the replicas that hold a batch there, grouped by those that hold the same one."""


@dataclass(frozen=True)
class ComparisonReport:
    """The result of comparing the replicas of one partition."""

    partition: PartitionId
    replicas: tuple[ReplicaReport, ...]
    difference: ReplicaDifference | None
    """The first difference; None if all replicas are equal, as far as each of them goes."""

    @property
    def same(self) -> TransactionId:
        """The last id that more than one replica holds or has trimmed, and that is equal wherever it is held, or -1."""
        if len(self.replicas) < 2:
            return NO_TRANSACTION
        second_last = sorted(replica.last for replica in self.replicas)[-2]
        return second_last if self.difference is None else min(second_last, self.difference.first - 1)

    @property
    def contradiction(self) -> str:
        """A sentence that names replicas which know different transactions to be committed; empty if none do."""
        if self.difference is None:
            return ""
        sides = [
            [
                replica.directory
                for replica in self.replicas
                if replica.directory in side and replica.bounds.confirmed >= self.difference.first
            ]
            for side in self.difference.sides
        ]
        knowing = [side[0] for side in sides if side]
        return f"{' and '.join(knowing)} know different transactions to be committed" if len(knowing) > 1 else ""

    @property
    def well(self) -> bool:
        return not self.contradiction and not any(each.damage for each in self.replicas)


async def compare(directories: Sequence[str]) -> list[ComparisonReport]:
    """Compare what storage directories hold of each partition; each is read to its end or to its first damage.

    Raises `BadOption` for fewer than two directories, one that is named twice, and segments whose partition is unknown,
    `WrongClusterKey` for directories of different logs, `UnsupportedFormat`, and what `storage.files.find` raises.
    """
    if len(directories) < 2 or len(set(directories)) < len(directories):
        raise BadOption("nothing to compare: give two storage directories or more, each once")
    replicas = [(directory, files) for directory in directories for files in find(directory)]
    keys = {files.control.cluster_key for _, files in replicas if files.control is not None}
    if len(keys) > 1:
        raise WrongClusterKey("these directories are of different logs: compare replicas of one log")
    unnamed = next((directory for directory, files in replicas if files.partition is None), None)
    if unnamed is not None:
        raise BadOption(f"the partition of {unnamed} is unknown, without a control file: give storage directories")
    partitions = sorted({files.partition for _, files in replicas if files.partition is not None})
    return [
        await _compared(
            partition, [_Walk(directory, files) for directory, files in replicas if files.partition == partition]
        )
        for partition in partitions
    ]


@dataclass(eq=False)
class _Walk:
    directory: str
    files: Files
    batches: AsyncGenerator[Batch, None] = field(init=False)
    batch: Batch | None = None
    """The next batch to compare; None before the first `step`, and at the end."""
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
        kept = self.files.control
        joined = NO_SESSION if kept is None else kept.promises.joined
        first, damage, node = trimmed_in(self.files).first, self.damage, ""
        try:
            node = name_in(self.files)
        except StorageNameDamaged as error:
            damage = damage or error.text
        return ReplicaReport(self.directory, node, first, self.last, bounds_in(self.files), joined, damage)


async def _compared(partition: PartitionId, walks: list[_Walk]) -> ComparisonReport:
    difference: ReplicaDifference | None = None
    async with AsyncExitStack() as stack:
        for walk in walks:
            await stack.enter_async_context(aclosing(walk.batches))
            await walk.step()
        while unfinished := [walk for walk in walks if walk.batch is not None]:
            at_next_id = _at_next_id(unfinished)
            difference = difference or _difference(at_next_id)
            for walk in at_next_id:
                await walk.step()
    return ComparisonReport(partition, tuple(walk.report() for walk in walks), difference)


def _at_next_id(walks: list[_Walk]) -> list[_Walk]:
    """Return the replicas whose batch holds the lowest id, and those whose batch begins within one of these."""
    first = min(walk.batch.first for walk in walks if walk.batch is not None)
    last = max(walk.batch.last for walk in walks if walk.batch is not None and walk.batch.first == first)
    return [walk for walk in walks if walk.batch is not None and walk.batch.first <= last]


def _difference(walks: list[_Walk]) -> ReplicaDifference | None:
    """Return the difference between the present batches of these replicas; equal batches imply an equal past."""
    sides: dict[tuple[TransactionId, TransactionId, int], list[str]] = {}
    for walk in walks:
        assert walk.batch is not None
        sides.setdefault((walk.batch.first, walk.batch.last, walk.batch.crc), []).append(walk.directory)
    if len(sides) == 1:
        return None
    return ReplicaDifference(min(first for first, _, _ in sides), tuple(tuple(side) for side in sides.values()))
