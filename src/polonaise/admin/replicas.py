"""Write storage directories from fragments, as if their nodes had taken part in a last session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.log.control import ControlFile, ControlSlot
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.log.promises import Promises
from polonaise.terms import PartitionId, SessionId


@dataclass(frozen=True, slots=True)
class _Copy:
    """One partition on one node."""

    slot: ControlSlot
    log: PartitionLog


class Replicas:
    """New storage directories with equal contents. A context manager; partitions are written one at a time."""

    def __init__(self, host: Host, directories: Sequence[str], cluster_key: bytes, settings: LogSettings) -> None:
        self._host = host
        self._directories = directories
        self._cluster_key = cluster_key
        self._settings = settings
        self._controls: list[ControlFile] = []
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            for directory in self._directories:
                control = await ControlFile.open(self._host, directory, self._cluster_key)
                self._closing.push_async_callback(control.close)
                self._controls.append(control)
        except BaseException:
            await self._closing.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._closing.aclose()

    async def partition(self, partition: PartitionId) -> PartitionCopies:
        """Make a partition's log on each node. The caller appends, finishes, and in any case closes the copies."""
        copies: list[_Copy] = []
        try:
            for control in self._controls:
                slot = await control.create(partition)
                path = control.partition_directory(partition)
                copies.append(_Copy(slot, await PartitionLog.open(self._host, path, slot, self._settings)))
        except BaseException:
            await PartitionCopies(copies).close()
            raise
        return PartitionCopies(copies)


class PartitionCopies:
    """One partition on every node."""

    def __init__(self, copies: Sequence[_Copy]) -> None:
        self._copies = copies

    async def append(self, batches: Sequence[Batch]) -> None:
        """Append batches, durably on all nodes. Raises what `PartitionLog.append` raises, once no node writes."""
        done = await asyncio.gather(*(copy.log.append(batches) for copy in self._copies), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def finish(self, session: SessionId) -> None:
        """Save on each node, durably, the promises of one that took part in `session` until its end."""
        for copy in self._copies:
            last = copy.log.last
            await copy.slot.save(Promises(fence=session, joined=session, prepared=last, confirmed=last))

    async def close(self) -> None:
        for copy in self._copies:
            await copy.log.close()
