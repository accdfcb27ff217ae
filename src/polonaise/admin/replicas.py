"""Write storage directories from fragments, as if their nodes had taken part in a last session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.log.control import ControlFile, ControlSlot
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.log.promises import Promises
from polonaise.terms import PartitionId, SessionId


class _Copy(NamedTuple):
    """One partition on one node."""

    slot: ControlSlot
    log: PartitionLog


class PartitionCopies:
    """One partition on every node."""

    def __init__(self, copies: Sequence[_Copy]) -> None:
        self._copies = copies

    async def append(self, batches: Sequence[Batch]) -> None:
        """Append batches, durably on all nodes. Raises what `PartitionLog.append` raises, once no node writes."""
        results = await asyncio.gather(*(copy.log.append(batches) for copy in self._copies), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error

    async def finish(self, session: SessionId) -> None:
        """Save on each node, durably, the promises of a node that took part in `session` until its end."""
        for copy in self._copies:
            last = copy.log.last
            await copy.slot.save(Promises(fence=session, joined=session, prepared=last, confirmed=last))


class Replicas:
    """New storage directories with equal contents; partitions are written one at a time."""

    def __init__(self, host: Host, controls: Sequence[ControlFile], settings: LogSettings) -> None:
        self._host = host
        self._controls = controls
        self._settings = settings

    @asynccontextmanager
    async def partition(self, partition: PartitionId) -> AsyncGenerator[PartitionCopies, None]:
        """Make a partition's log on each node, and close it at the end. The caller calls `append`, then `finish`."""
        copies: list[_Copy] = []
        async with AsyncExitStack() as closing:
            for control in self._controls:
                slot = await control.create(partition)
                path = control.partition_directory(partition)
                log = await PartitionLog.open(self._host, path, slot, self._settings)
                closing.push_async_callback(log.close)
                copies.append(_Copy(slot, log))
            yield PartitionCopies(copies)


@asynccontextmanager
async def new_replicas(
    host: Host, directories: Sequence[str], cluster_key: bytes, settings: LogSettings
) -> AsyncGenerator[Replicas, None]:
    """Make storage directories of this cluster, and close their control files at the end."""
    controls: list[ControlFile] = []
    async with AsyncExitStack() as closing:
        for directory in directories:
            control = await ControlFile.open(host, directory, cluster_key)
            closing.push_async_callback(control.close)
            controls.append(control)
        yield Replicas(host, controls, settings)
