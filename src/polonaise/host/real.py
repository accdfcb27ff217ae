"""The real machine: uvloop, POSIX files, sockets, the system's clocks."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import Any, Final, TypeAlias

from polonaise.errors import PolonaiseError, trace_of
from polonaise.host import Clock, Disk, Host, Network
from polonaise.host.files import DiskThreads, RealDisk, SyncsInLoop
from polonaise.host.patching import check_patches
from polonaise.host.sockets import RealNetwork
from polonaise.host.stopsignals import STOPS, ForcedStop
from polonaise.host.tls import TlsIdentity
from polonaise.host.tlssockets import TlsNetwork

_log = logging.getLogger(__name__)

FAILED_EXIT_CODE: Final = 70
"""After `RealHost.fail`: EX_SOFTWARE."""

DISK_THREADS: Final = 4

_LOOPS: Final = frozenset(("asyncio", "uvloop", "ssl"))
"""Event loops and their transports are made of these."""

Main: TypeAlias = Callable[[Host], Coroutine[Any, Any, None]]


class RealClock:
    # Not a method of our own: it is called with every message, and a call in between would cost as much again.
    monotonic_s = staticmethod(time.monotonic)

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def slept_s(self) -> float:
        # Of Linux. Read one after the other, so that a machine that has never slept shows microseconds: these are 0.
        if not hasattr(time, "CLOCK_BOOTTIME"):
            return 0.0
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic(), 1)


class RealHost:
    """The real machine, in this process. `close` it when its tasks are done."""

    def __init__(
        self, disk_threads: int = DISK_THREADS, *, syncs_in_loop: bool = False, tls: TlsIdentity | None = None
    ) -> None:
        """With `syncs_in_loop` the loop waits for short syncs (`SyncsInLoop`); with `tls` all TCP has TLS."""
        check_patches()
        self._threads = DiskThreads(disk_threads)
        self.tasks: set[asyncio.Task[None]] = set()
        """Those that have not ended."""
        self.clock: Clock = RealClock()
        self._files = RealDisk(self._threads, SyncsInLoop() if syncs_in_loop else None)
        self.disk: Disk = self._files
        self.network: Network = RealNetwork() if tls is None else TlsNetwork(tls)
        self.random = random.Random()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def fail(self, error: BaseException) -> None:
        """Log the error, and end the process at once."""
        # A fault's message says what to do. A mistake of ours is logged with its traceback.
        _log.critical("this process stops: %s", error, exc_info=trace_of(error))
        os._exit(FAILED_EXIT_CODE)

    def cut_off_disk(self) -> None:
        """Let no further call reach the disk. Waits for those that have begun, within bounds."""
        self._threads.close(drop=True)

    def close(self) -> None:
        """End the disk's threads, after all calls that they were given, and close and unlock what is still open. While
        a call hangs, nothing is unlocked: it might still write where the next owner of the directory does."""
        if self._threads.close():
            self._files.release()

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)


def run(
    main: Main, *, syncs_in_loop: bool = False, tls: TlsIdentity | None = None, stop_s_max: float | None = None
) -> None:
    """Run a node until `main` returns. SIGTERM and SIGINT cancel it, which is a clean stop and not an error.
    `syncs_in_loop` is for a storage node, and for no process that does anything else. `tls` as for `RealHost`. With
    `stop_s_max` a process that has not stopped so long after the signal is ended by force."""
    with ExitStack() as ending:
        forced = None if stop_s_max is None else ending.enter_context(ForcedStop(stop_s_max, FAILED_EXIT_CODE))
        host = RealHost(syncs_in_loop=syncs_in_loop, tls=tls)
        ending.callback(host.close)
        runner = ending.enter_context(asyncio.Runner(loop_factory=loop_factory()))
        runner.run(_until_stopped(main, host, forced))


async def _until_stopped(main: Main, host: Host, forced: ForcedStop | None) -> None:
    stopped = False
    task = asyncio.ensure_future(main(host))

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    loop = asyncio.get_running_loop()
    stop_at_mistakes(loop, host)
    for number in STOPS:
        loop.add_signal_handler(number, stop)
    if forced is not None:
        forced.stop = lambda: _call_in(loop, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
    finally:
        for number in STOPS:
            loop.remove_signal_handler(number)


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(call)


def stop_at_mistakes(loop: asyncio.AbstractEventLoop, host: Host) -> None:
    """Make an exception in a callback of the loop stop the node if it is a mistake of ours; asyncio would only log it.
    Trouble of one connection ends that connection only."""

    def mistake(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and _is_of_a_connection(context, error):
            # A loop may close a socket and go on writing to it, as uvloop does for a caller that gives up while its
            # TLS handshake ends. Nothing is wrong then but that connection.
            _log.info("a connection was ended: %s", context.get("message"), exc_info=error)
            if (transport := context.get("transport")) is not None:
                transport.abort()
        elif error is None or isinstance(error, PolonaiseError):
            _log.warning("%s", context.get("message"), exc_info=error)
        else:
            host.fail(error)

    loop.set_exception_handler(mistake)


def _is_of_a_connection(context: dict[str, Any], error: BaseException) -> bool:
    """Whether the loop tells of one connection's transport, and no code but the loop's own took part in the error."""
    if "transport" not in context and "protocol" not in context:
        return False
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return all(module.partition(".")[0] in _LOOPS for module in modules)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a node's event loop; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
