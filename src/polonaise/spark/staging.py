"""The staging store: holds the rows of tasks, and plans, until they are published.

::

    staged/<time>-<token>-<number>                              blocks of one attempt of one task
    plans/<hash of appId>/<batch>-<time>-<partition>-<token>    see `protocol.plans`

Every name is new and says when it was made. So nothing is ever overwritten, and leftovers are recognized by their age.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import numpy as np

from polonaise.checksum import crc32
from polonaise.client.protocol.draft import Limits
from polonaise.errors import BadOption, DeadlineExceeded, NotFound, PolonaiseError
from polonaise.fragments.store import ObjectStore
from polonaise.node.addresses import split_topic
from polonaise.node.embedded import parse_embedded
from polonaise.redaction import redacted
from polonaise.spark.protocol import blocks
from polonaise.spark.protocol.plans import INLINE, PLANS, STAGED, BlockRef, Plan, Staged, plans_prefix
from polonaise.spark.rows import RowColumns
from polonaise.terms import PartitionId

T = TypeVar("T")

_log = logging.getLogger("polonaise.spark")

_EMBEDDED: Final = "embedded:"
_STAGING: Final = "staging"
OPEN_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of rows, of all partitions together, that a task keeps in blocks that are not full yet."""
OBJECT_BYTES: Final = 8 * 1024 * 1024
"""Bytes, roughly, that a task collects before it uploads them as one object."""
_TIME: Final = "%Y%m%dT%H%M%SZ"


def staging_of(cluster: str) -> str:
    """Return the path of the default staging store, in the directory of an embedded log, or beside that of a
    coordinator. Raises `BadOption` for an address that names no directory: Spark's driver and its tasks need a store
    that all reach."""
    if "://" in cluster:
        raise BadOption(
            f"staging: cluster={redacted(cluster)!r} names no directory beside which rows could be staged: give the "
            "option staging, a URL or directory that the driver and all executors reach"
        )
    if cluster.startswith(_EMBEDDED):
        return os.path.join(parse_embedded(cluster).directory, _STAGING)
    return f"{split_topic(cluster)[0].partition(':')[2].rstrip('/')}-{_STAGING}"


# ------------------------------------------------------------------ a task's rows


class _OpenBlock:
    """Rows of one partition that are not a block yet."""

    def __init__(self) -> None:
        self.pieces: list[RowColumns] = []
        self.count = 0
        self.weight = 0

    def take(self, piece: RowColumns) -> None:
        self.pieces.append(piece)
        self.count += len(piece.headers)
        self.weight += int(piece.weights.sum())

    def block(self) -> bytes:
        locks: list[bytes] = []
        for piece in self.pieces:
            locks += piece.locks or ()
        return blocks.encode(
            np.concatenate([piece.headers for piece in self.pieces]),
            np.concatenate([piece.crcs for piece in self.pieces]),
            np.concatenate([piece.lengths for piece in self.pieces]),
            [piece.data for piece in self.pieces],
            locks if self.pieces[0].locks is not None else None,
        )


class Stage:
    """Stages the rows of one attempt of one task, as blocks that can be published, with bounded memory. A block is at
    most as large as a group may be. What remains at the end travels inline, in the task's message, if nothing was
    uploaded before and it has at most `inline_bytes_max` bytes."""

    def __init__(
        self, task: int, put: Callable[[str, bytes], object], inline_bytes_max: int, limits: Limits | None = None
    ) -> None:
        self._task = task
        self._put = put
        self._inline_bytes_max = inline_bytes_max
        self._limits = limits or Limits()
        self._prefix = f"{STAGED}{_new_name()}-"
        self._open: dict[PartitionId, _OpenBlock] = {}
        self._open_weight = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._objects: list[str] = []
        self._refs: list[BlockRef] = []

    def add(self, partition: PartitionId, piece: RowColumns) -> None:
        """Take rows of a partition into its open block. May close and upload blocks; raises what the store raises."""
        # Two sums over the rows: weights, which count towards a block's size, and lengths, which find a row's data.
        ends = np.cumsum(piece.weights)
        starts = np.concatenate([[0], np.cumsum(piece.lengths)])
        start, count = 0, len(piece.headers)
        while start < count:
            opened = self._open.setdefault(partition, _OpenBlock())
            before = int(ends[start - 1]) if start else 0
            # As many rows as the open block has room for, by bytes and by count.
            room = self._limits.group_bytes_max - opened.weight
            stop = min(
                start + self._limits.group_count_max - opened.count,
                int(np.searchsorted(ends, before + room, side="right")),
                count,
            )
            if stop <= start and opened.count:
                self._close(partition)  # full: the next round opens an empty one
                continue
            # At least one row, so that the loop ends: a body has at most 1 MiB, and any row fits into an empty block.
            stop = max(stop, start + 1)
            part = RowColumns(
                piece.headers[start:stop],
                piece.crcs[start:stop],
                piece.lengths[start:stop],
                piece.data[starts[start] : starts[stop]],
                None if piece.locks is None else piece.locks[start:stop],
            )
            opened.take(part)
            self._open_weight += int(ends[stop - 1]) - before
            start = stop
        # Many partitions may each have a block that is not full: together they may not exceed the bound.
        if self._open_weight > OPEN_BYTES_MAX:
            self._close_all()

    def finish(self) -> Staged:
        """Stage what remains, and return all that was staged."""
        self._close_all()
        if self._objects or self._waiting_bytes > self._inline_bytes_max:
            self._upload()
        return Staged(self._task, tuple(self._objects), tuple(self._refs), b"".join(self._waiting))

    def _close_all(self) -> None:
        for partition in list(self._open):
            self._close(partition)

    def _close(self, partition: PartitionId) -> None:
        opened = self._open.pop(partition)
        self._open_weight -= opened.weight
        raw = opened.block()
        self._refs.append(
            BlockRef(partition, INLINE, self._waiting_bytes, len(raw), opened.count, opened.weight, crc32(raw))
        )
        self._waiting.append(raw)
        self._waiting_bytes += len(raw)
        if self._waiting_bytes >= OBJECT_BYTES:
            self._upload()

    def _upload(self) -> None:
        if not self._waiting:
            return
        path = f"{self._prefix}{len(self._objects):05d}"
        self._put(path, b"".join(self._waiting))
        index = len(self._objects)
        self._objects.append(path)
        self._refs = [ref._replace(object=index) if ref.object == INLINE else ref for ref in self._refs]
        self._waiting, self._waiting_bytes = [], 0


def _new_name() -> str:
    return f"{datetime.now(UTC).strftime(_TIME)}-{secrets.token_hex(8)}"


# ------------------------------------------------------------------ plans


async def store_plan(store: ObjectStore, plan: Plan) -> str:
    """Store a plan durably under a new name, and return the name."""
    time, token = _new_name().split("-")
    name = f"{plans_prefix(plan.app, plan.batch)}{time}-{plan.partition}-{token}"
    await store.put_if_absent(name, plan.pack())
    return name


async def within(seconds: float, answer: Awaitable[T]) -> T:
    """Await an answer of the staging store. Raises `DeadlineExceeded` after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        raise DeadlineExceeded(
            f"the staging store did not answer within {seconds:g} s: see that it can be reached, or raise the timeout"
        ) from None


async def discard(store: ObjectStore, names: Iterable[str], patience_s: float) -> None:
    """Delete objects that nobody needs, up to the first that can't be deleted; the rest is left to `collect`."""
    for name in sorted(set(names)):
        try:
            await within(patience_s, store.delete(name))
        except PolonaiseError as error:
            # The store does not answer: do not hold up the commit, which has succeeded, by a wait for each name.
            _log.warning("%s in the staging store is left to be collected later: %s", name, error)
            return


# ------------------------------------------------------------------ leftovers


@dataclass(frozen=True)
class Collected:
    """The number of objects that a collection has deleted, and their bytes."""

    objects: int
    bytes: int


async def collect(
    store: ObjectStore, is_needed: Callable[[Plan, str], Awaitable[bool]], older_than_s: float
) -> Collected:
    """Delete objects older than `older_than_s` seconds, except plans that may still be published and their objects.
    `is_needed(plan, name)` is awaited for each old plan. Raises `sink_state_damaged` for a plan that can't be read,
    before anything is deleted: nothing tells which objects it needs."""
    oldest = datetime.now(UTC).timestamp() - older_than_s
    listed = [*await store.list(PLANS), *await store.list(STAGED)]
    old = {each.path: each.bytes for each in listed if _made_s(each.path) < oldest}
    for each in listed:
        if not each.path.startswith(PLANS):
            continue
        # Young plans are read, too: a plan may name objects that are older than the plan.
        try:
            plan = Plan.parse(await store.get(each.path), each.path)
        except NotFound:
            continue
        if each.path not in old or await is_needed(plan, each.path):
            for name in (each.path, *plan.objects):
                old.pop(name, None)
    for name in sorted(old):
        await store.delete(name)
    return Collected(len(old), sum(old.values()))


def _made_s(path: str) -> float:
    """Return when an object was made, by its name, in seconds since 1970 UTC; infinity for a name that is not ours."""
    parts = path.rpartition("/")[2].split("-")
    try:
        time = parts[0 if path.startswith(STAGED) else 1]
        return datetime.strptime(time, _TIME).replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError):
        return float("inf")
