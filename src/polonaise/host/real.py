"""The machine itself: uvloop, POSIX files, sockets, the system's clocks."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from polonaise.errors import PolonaiseError
from polonaise.host import Clock, Disk, Host, Network
from polonaise.host.files import RealDisk
from polonaise.host.sockets import RealNetwork
from polonaise.host.syncs import SyncsInLoop
from polonaise.host.threads import DiskThreads

_log = logging.getLogger(__name__)

FAILED_EXIT_CODE: Final = 70
"""How a process ends that stopped itself: EX_SOFTWARE."""

DISK_THREADS: Final = 4

Main: TypeAlias = Callable[[Host], Coroutine[Any, Any, None]]


class RealClock:
    """The system's clocks."""

    monotonic_s = staticmethod(time.monotonic)  # asked for with every message: without a detour

    def wall_us(self) -> int:
        return time.time_ns() // 1000


class RealHost:
    """This process on this machine. `close` it when its tasks are done."""

    def __init__(self, disk_threads: int = DISK_THREADS, *, syncs_in_loop: bool = False) -> None:
        """`syncs_in_loop`: its loop may wait for short syncs; see `host.syncs`."""
        self._threads = DiskThreads(disk_threads)
        self._tasks: set[asyncio.Task[None]] = set()
        self.clock: Clock = RealClock()
        self._files = RealDisk(self._threads, SyncsInLoop() if syncs_in_loop else None)
        self.disk: Disk = self._files
        self.network: Network = RealNetwork()
        self.random = random.Random()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def fail(self, error: BaseException) -> None:
        # A fault says itself what to do; a mistake of ours is told with the way to it.
        _log.critical("this process stops: %s", error, exc_info=None if isinstance(error, PolonaiseError) else error)
        os._exit(FAILED_EXIT_CODE)

    def cut_off_disk(self) -> None:
        """No call reaches the disk any more, but for those that have begun: these end first."""
        self._threads.close(drop=True)

    def close(self) -> None:
        """End the disk's threads, after what they have under way, and close and unlock what is still open.

        Not while a call to the disk hangs: it might still write where the next owner of the directory does. Then files
        and locks end with this process.
        """
        if self._threads.close():
            self._files.release()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)


def run(main: Main, *, syncs_in_loop: bool = False) -> None:
    """Run a node until `main` returns; SIGTERM and SIGINT cancel it, which is a clean stop and not an error.

    `syncs_in_loop` is for a storage node, and for nobody who does anything else.
    """
    host = RealHost(syncs_in_loop=syncs_in_loop)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_until_stopped(main, host))
    finally:
        host.close()


async def _until_stopped(main: Main, host: Host) -> None:
    stopped = False
    task = asyncio.ensure_future(main(host))

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    loop = asyncio.get_running_loop()
    stop_at_mistakes(loop, host)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def stop_at_mistakes(loop: asyncio.AbstractEventLoop, host: Host) -> None:
    """What a callback raises, nobody else will ever see: a fault of ours stops the node, others are logged."""

    def mistake(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, PolonaiseError):
            _log.warning("%s", context.get("message"), exc_info=error)
        else:
            host.fail(error)

    loop.set_exception_handler(mistake)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes a node's event loop; None for asyncio's own, where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
