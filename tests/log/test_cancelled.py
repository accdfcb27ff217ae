"""A log that is opened, read, cut or closed by a task that is cancelled at any of its calls keeps no file open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.log.control import ControlFile
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.log.segmentreader import SegmentCache
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import DIRECTORY, KEY, PARTITION, Maker, Open, simulate

SMALL = LogSettings(segment_bytes_max=700)
Work = Callable[[Host, SegmentCache], Awaitable[Callable[[], Awaitable[None]]]]
"""Prepares something, and returns what is cancelled."""


class Cut:
    """Cancels a task at its call of this number: while that is under way, or when its outcome is on the way."""

    def __init__(self, host: Host, number: int, late: bool) -> None:
        self._disk: Any = host.disk
        self._left = number
        self._late = late
        self.task: asyncio.Task[None]

    async def through(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether it was cut short."""
        submit = self._disk.submit

        def counting(*args: Any, **kwargs: Any) -> Any:
            future = submit(*args, **kwargs)
            if asyncio.current_task() is self.task:
                self._left -= 1
                if not self._left and self._late:
                    future.add_done_callback(lambda _: self.task.cancel())
                elif not self._left:
                    asyncio.get_running_loop().call_soon(self.task.cancel)
            return future

        async def run() -> None:
            await work()

        self._disk.submit = counting
        self.task = asyncio.create_task(run())
        try:
            await asyncio.wait([self.task])
        finally:
            del self._disk.submit
        await asyncio.sleep(0.1)
        if not self.task.cancelled():
            self.task.result()
        return self.task.cancelled()


async def opens(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    control = await ControlFile.open(host, DIRECTORY, KEY)

    async def work() -> None:
        slot = await control.load(PARTITION)
        assert slot is not None
        log = await PartitionLog.open(host, control.partition_directory(PARTITION), slot, SMALL, cache)
        await log.close()

    return work


async def opens_control(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        control = await ControlFile.open(host, DIRECTORY, KEY)
        await control.close()

    return work


async def reads(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    opened = await Open.on(host, SMALL, cache=cache)

    async def work() -> None:
        for first in (0, 4, 8, 11, 1):
            await opened.log.read(first, 11, 1 << 20)

    return work


async def rolls_and_cuts(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    opened = await Open.on(host, SMALL, cache=cache)

    async def work() -> None:
        try:
            await opened.append_each(Maker(opened.log.last, opened.log.last_crc).batches(4, size=60))
            await opened.log.cut(5)
        finally:
            await opened.log.close()

    return work


@pytest.mark.exhaustive  # of moments
@pytest.mark.parametrize("late", [False, True], ids=["during a call", "when its outcome is on the way"])
@pytest.mark.parametrize("capacity", [0, 32])
@pytest.mark.parametrize("prepare", [opens, opens_control, reads, rolls_and_cuts])
def test_what_was_opened_is_closed(prepare: Work, capacity: int, late: bool) -> None:
    async def write(host: Host) -> None:
        opened = await Open.on(host, SMALL)
        await opened.append_each(Maker().batches(12, size=60))
        await opened.close()

    async def cut_short(machine: Machine, number: int) -> bool:
        cut = False

        async def main(host: Host) -> None:
            nonlocal cut
            cache = SegmentCache(capacity)
            work = await prepare(host, cache)
            cut = await Cut(host, number, late).through(work)
            known = [path for path in process.handles if path.endswith(".seq")]
            assert len(known) == len(cache), known
            assert not [path for path in process.handles if path.endswith((".idx", ".new"))]
            if prepare is opens_control:
                assert not process.handles
            with contextlib.suppress(PolonaiseError):
                if prepare is not opens_control:
                    return
                await (await ControlFile.open(host, DIRECTORY, KEY)).close()

        process: Process = machine.start(main)
        await process.ended()
        return cut

    async def scenario(machine: Machine) -> int:
        await machine.start(write).ended()
        number = 1
        while await cut_short(machine, number):
            number += 1
        return number

    assert simulate(scenario) > 5
