"""A cluster of real processes, or of none, and a writer that compares what it was told with the log."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.admin import requiring
from polonaise.admin.opening import opened_coordinator
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import AppendUnknown, PolonaiseError
from polonaise.node.local import ChildNode, LocalCluster
from rigs.waiting import PATIENCE_S, time_passes, wait_until


@contextlib.contextmanager
def running(directory: Path, **options: Any) -> Iterator[LocalCluster]:
    """Yield a started cluster. At the end, stop it cleanly, and check that no process has written a traceback."""
    cluster = LocalCluster(directory, **options)
    with cluster:
        yield cluster
        running = [node for node in nodes(cluster) if node.alive]
        pids = [node.pid for node in running]
        cluster.stop()
        assert [node.exit_status for node in running] == [0] * len(running), "a clean stop is no error"
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    for node in nodes(cluster):
        assert "Traceback" not in node.log, f"{node.name} wrote a traceback:\n{node.log[-3000:]}"


def unserved(directory: Path, description: ClusterDescription) -> str:
    """Make a cluster of which no node runs; return its coordinator's address."""
    address = f"file:{directory}"

    async def make() -> None:
        async with opened_coordinator(address) as (_, coordinator):
            await coordinator.initialize(description)

    asyncio.run(make())
    return address


def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `--timeout` of a requirement limit the wait after the change alone: what a disk's sync takes is no fault."""

    def answered(coordinator: Coordinator, asking: Awaitable[Any], _: float, more: str = "") -> Awaitable[Any]:
        return asked(coordinator, asking, 60.0, more)

    asked = requiring.answered
    monkeypatch.setattr(requiring, "answered", answered)


def nodes(cluster: LocalCluster) -> list[ChildNode]:
    assert cluster.server is not None
    return [cluster.server, *cluster.storage]


class Writer:
    """Appends numbered bodies at a steady pace, and remembers what it was told of each, and when."""

    def __init__(self, log: polonaise.Log, every_s: float = 0.005) -> None:
        self._log = log
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._fates: set[asyncio.Task[None]] = set()
        self.committed: dict[bytes, int] = {}
        self.failed: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.told_s: list[float] = []
        """The times, in seconds, at which commits were told."""

    async def __aenter__(self) -> Writer:
        self._task = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._fates:
            await asyncio.wait(self._fates, timeout=PATIENCE_S)
            assert all(fate.done() for fate in self._fates), "every fate is learnt"
        await asyncio.gather(*self._fates)

    async def _write(self) -> None:
        for number in itertools.count():
            await self._log.ready(0)
            body = f"writer/{number}".encode()
            fate = asyncio.create_task(self._learn(body, self._log.append(body, partition=0)))
            self._fates.add(fate)
            await time_passes(self._every_s)

    async def _learn(self, body: bytes, receipt: polonaise.Receipt) -> None:
        try:
            await receipt
            self.committed[body] = receipt.id
            self.told_s.append(time.monotonic())
        except AppendUnknown:
            self.unknown.add(body)
        except PolonaiseError:
            self.failed.add(body)

    async def writes(self, count: int) -> None:
        """Wait until `count` more appends are committed."""
        goal = len(self.committed) + count
        await wait_until(lambda: len(self.committed) >= goal, f"{count} more commits")

    def longest_pause_s(self, since_s: float) -> float:
        """Return the longest time without a commit since `since_s`."""
        told = [since_s, *[s for s in self.told_s if s >= since_s]]
        return max(b - a for a, b in itertools.pairwise(told))

    async def check(self, log: polonaise.Log) -> int:
        """Check that what the writer was told is true of the log. Return the log's length."""
        bodies = [tx.data async for tx in log.read(0, timeout=PATIENCE_S)]
        times = Counter(bodies)
        assert all(bodies[id] == body for body, id in self.committed.items()), "committed, under the id that was told"
        assert all(times[body] == 1 for body in self.committed), "once"
        assert not any(times[body] for body in self.failed), "what failed is not in the log"
        assert all(times[body] <= 1 for body in self.unknown), "what is unknown is there once or not at all"
        return len(bodies)


def connected(cluster: LocalCluster) -> contextlib.AbstractAsyncContextManager[polonaise.Log]:
    return polonaise.connect(cluster.coordinator)
