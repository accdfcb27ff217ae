"""Decides which process hosts an embedded log: the one that holds the lock, and after its end the next one.

The operating system frees the locks of a dead process, so a take-over waits for no lease (`docs/decisions/0009`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from polonaise.errors import DirectoryGone, DirectoryInUse, NotFound, PolonaiseError, Retry, fault
from polonaise.host import Identity, unreachable
from polonaise.host.files import check_room, identity, too_many_open, try_lock
from polonaise.host.patching import patched_threads
from polonaise.host.real import loop_factory, stop_at_mistakes
from polonaise.node.embedded import EmbeddedAddress, EmbeddedHost, NodesStopped, host_log, lock_path
from polonaise.redaction import redacted

_log = logging.getLogger(__name__)

WATCH_S: Final = 0.1
"""Mean time between attempts to get the lock: a take-over begins about this long after the end of the host."""
_ASKING_S: Final = 0.005
"""After it the lock is tried once more before another process counts as the host: one that only asks who hosts
(`attachment.who_hosts`) has the lock for an instant. If this process took it for the host, its own failures to host
would pass instead of being told to whoever opens the log."""
_PRESENCE_S: Final = 1.0
"""Between looks whether the directory is in its place: a host could go on writing to files that were removed, while
another process makes and locks a lock file of that name."""
_RETRY_S_MAX: Final = 2.0
"""The longest mean pause between attempts to host that fail."""
_LEFTOVERS_S: Final = 5.0
"""So long locks within the directory may outlive the host's: a dying process frees its files one by one."""
_LOOP: Final = "an event loop of its own for the nodes of the log"
_LOOP_DESCRIPTORS: Final = 16
"""File descriptors that an event loop and the nodes need at their start: uvloop aborts the process when it gets only
some."""
_CANCELS_MAX: Final = 20
_CLOSE_S_MAX: Final = 20.0


class HostElection:
    """One process's part in the election at one directory: a thread that tries for the lock, and hosts while it has it.

    All logs that the process has open there, and may host, share it. The nodes have an event loop of their own in the
    thread, so that an application that keeps its loop busy does not hold up other processes.
    """

    def __init__(self, identity: Identity, address: EmbeddedAddress) -> None:
        self._identity = identity
        self._address = address
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._pause_s = WATCH_S
        self._lock_file: Identity | None = None
        self._users = 0
        self.listeners: list[Callable[[PolonaiseError], None]] = []
        """Called, in the election's thread, with the error that ends this process's part for good."""
        self.settled: Future[None] = Future()
        """Done once this process hosts, or another one has the lock; fails with why this one can't host."""
        self.trouble: PolonaiseError | None = None
        """Why the last attempt to get the lock, or to host with it, failed, if it goes on trying; None once this one
        hosts."""
        self.failure: PolonaiseError | None = None
        """Why this process neither hosts nor tries any more."""
        self._thread = threading.Thread(target=self._run, name=f"host {address.directory}", daemon=True)

    def _close(self) -> None:
        """End the thread and the nodes in it; wait for their clean end, within bounds."""
        self._stopping.set()
        with self._guard:
            if self._cancel is not None:
                self._cancel()
        self._thread.join(_CLOSE_S_MAX)
        if self._thread.is_alive():
            _log.error(
                "the nodes of the log in %s have not ended within %g s, perhaps because a disk hangs: "
                "they end with this process",
                self._address.directory,
                _CLOSE_S_MAX,
            )

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        path = lock_path(self._address.directory)
        in_use = False
        while self.failure is None and not self._stopping.is_set():
            was_in_use, in_use = in_use, False
            try:
                lock = try_lock(path)
            except DirectoryInUse:
                in_use = True
                self._pause_s = WATCH_S
                if not (was_in_use or self.settled.done()):
                    self._stopping.wait(_ASKING_S)
                    continue
                self._settle()
            except PolonaiseError as error:
                # A process that has the log open already can go on without hosting it.
                self._failed(error, passes=self.settled.done())
            else:
                try:
                    self._host_with(path)
                except PolonaiseError as error:
                    self._failed(error, passes=self.settled.done() and error.retry is Retry.AGAIN)
                except Exception as error:  # noqa: BLE001 - told to whoever waits
                    # Whatever it is: a thread that ended without a word would leave all waiting that `settled` ends.
                    _log.critical("hosting the log in %s has failed", self._address.directory, exc_info=error)
                    failed = fault(
                        "host_failed", f"this process can't host the log: {type(error).__name__}: {redacted(error)}"
                    )
                    self._failed(failed, passes=False)
                finally:
                    lock.release()  # only now: until the nodes have ended, another host would meet their files
            # With jitter, so that processes do not all try, or fail, at the same time.
            self._stopping.wait(self._pause_s * random.uniform(0.5, 1.5))

    def _host_with(self, lock_path: str) -> None:
        """Host while holding the lock; try again for a while if files of the host before are still locked."""
        _log.info("this process (%d) has the lock of %s", os.getpid(), self._address.directory)
        with contextlib.suppress(OSError):  # for messages to people who look for the host; nothing else rests on it
            Path(lock_path).write_text(f"{os.getpid()}\n")
        self._lock_file = identity(lock_path)
        give_up_s = time.monotonic() + _LEFTOVERS_S
        while True:
            try:
                self._host()
                return
            except DirectoryInUse:
                if time.monotonic() >= give_up_s or self._stopping.wait(WATCH_S / 2):
                    raise

    def _host(self) -> None:
        """Run the nodes until this process leaves the election.

        Raises their fault, or `host_failed` if they stopped themselves.
        """
        host = EmbeddedHost(self._address.directory)
        try:
            check_room(_LOOP_DESCRIPTORS, _LOOP)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                try:
                    runner.run(self._until_left(host))
                except (RuntimeError, NodesStopped):
                    if host.failure is None:  # else it only says that the loop was stopped
                        raise
                if host.failure is not None:
                    # What tasks meet from now on, without their disk, means nothing.
                    runner.get_loop().set_exception_handler(lambda *_: None)
                    _end_all_tasks(runner.get_loop())
        except OSError as error:
            failed = fault("host_failed", f"this process can't have another event loop: {error}")
            raise too_many_open(error, _LOOP) or failed from error
        finally:
            host.close()
        if host.failure is not None:
            safe = "" if isinstance(host.failure, DirectoryGone) else ", what was acknowledged is safe"
            raise fault(
                "host_failed",
                f"the nodes of the log in {self._address.directory} stopped themselves in this process{safe}: "
                f"{host.failure}; see the log, mend the cause, and open the log again",
            ) from host.failure

    async def _until_left(self, host: EmbeddedHost) -> None:
        loop = asyncio.get_running_loop()
        stop_at_mistakes(loop, host)
        nodes = asyncio.ensure_future(host_log(host, self._address, self._started))
        with self._guard:
            self._cancel = lambda: _cancel_in(loop, nodes)
        if self._stopping.is_set():  # set before `_cancel` was, so that `_close` could not call it
            nodes.cancel()
        watches = (
            host.spawn(self._watch_place(host), f"presence of {self._address.directory}"),
            host.spawn(self._watch_sockets(host, nodes), f"sockets of {self._address.directory}"),
        )
        try:
            await asyncio.wait([nodes])
        finally:
            for watch in watches:
                watch.cancel()
            with self._guard:
                self._cancel = None
        error = None if nodes.cancelled() else nodes.exception()
        if host.failure is not None:
            return  # errors that the nodes met after it, without their disk, mean nothing
        if isinstance(error, PolonaiseError):
            raise error
        if error is not None:
            host.fail(error)

    async def _watch_place(self, host: EmbeddedHost) -> None:
        """Raise `DirectoryGone`, which stops the nodes, once the path no longer leads to the lock that is held.

        A process that opens the path after that would find another directory or none, and host a second log.
        """
        path = lock_path(self._address.directory)
        lock_file = self._lock_file
        while lock_file == self._lock_file:
            await asyncio.sleep(_PRESENCE_S)
            with contextlib.suppress(PolonaiseError):  # not to be read at the moment: that does not mean it is gone
                lock_file = await host.disk.identity(path)
        raise DirectoryGone(
            f"{path} was removed, moved or replaced while the log ran, and perhaps all that is in its directory: if "
            "that file alone, open the log again, which makes it anew; otherwise put back what belongs there first"
        )

    async def _watch_sockets(self, host: EmbeddedHost, nodes: asyncio.Future[None]) -> None:
        """End the nodes once nobody can connect to one of them, as the directory of their sockets is gone: no other
        process could take over. This one then hosts again, with new sockets, unless another one gets the lock first.
        """
        trouble = ""
        while not trouble:
            await asyncio.sleep(_PRESENCE_S)
            trouble = unreachable(host.network)
        # The whole log may be being removed, and its sockets were only the first: then there is nothing to host any
        # more, and `_watch_place` says so.
        await asyncio.sleep(_PRESENCE_S)
        lock_file = None
        with contextlib.suppress(PolonaiseError):  # not to be read at the moment: then nothing is to be made there
            lock_file = await host.disk.identity(lock_path(self._address.directory))
        if self._stopping.is_set() or nodes.done() or lock_file != self._lock_file:
            return
        _log.error(
            "the nodes of the log in %s start again, with new sockets: %s. Keep cleaners of old files away from the "
            "directory", self._address.directory, trouble,
        )  # fmt: skip
        nodes.cancel()

    def _started(self) -> None:
        _log.info("this process (%d) hosts the log in %s", os.getpid(), self._address.directory)
        self._pause_s = WATCH_S
        self.trouble = None
        self._settle()

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)

    def _failed(self, error: PolonaiseError, *, passes: bool) -> None:
        """Pause longer after an attempt that failed; leave the election for good unless the error `passes`."""
        if passes:
            _log.warning("this process can't host the log in %s: %s", self._address.directory, error)
            self._pause_s = min(2 * self._pause_s, _RETRY_S_MAX)
            self.trouble = error
            return
        self.failure = error
        # Forgotten first: a log that is opened anew stands for a new election, and is not told of this failure.
        with _guard:
            if _elections.get(self._identity) is self:
                del _elections[self._identity]
        if not self.settled.done():
            self.settled.set_exception(error)
        for listener in list(self.listeners):
            listener(error)


def _end_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the loop's tasks, again and again until none is left: without their disk, those that clean up behind
    themselves may wait for ever.
    """
    for _ in range(_CANCELS_MAX):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        with contextlib.suppress(RuntimeError):  # a task has stopped the loop once more
            loop.run_until_complete(asyncio.wait(tasks, timeout=0.05))
    _log.error("tasks of the nodes do not end: %s", ", ".join(sorted(task.get_name() for task in tasks)))


def _cancel_in(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(task.cancel)


# ---------------------------------------------------------------------- the elections of this process

_guard = threading.Lock()
_elections: dict[Identity, HostElection] = {}


def take(address: EmbeddedAddress) -> HostElection:
    """Take part in the election at an existing directory until `leave`, sharing one `HostElection` in this process.

    Raises `NotFound` if the directory can't be found, and `host_failed` where threads are none.
    """
    if (patched := patched_threads()) is not None:
        raise fault(
            "host_failed",
            f"{patched.name} has patched the threads of this process, and the nodes of an embedded log need a "
            "thread of their own: open it with ?host=no here while another process hosts it, or run a cluster and "
            f"open its address, or leave threads and what they wait with as they are, by {patched.spared}",
        )
    # By device and inode: two paths may lead to the same directory, and a process must not wait for its own lock.
    try:
        status = os.stat(address.directory)
    except OSError as error:
        raise NotFound(
            f"the directory of the log, {address.directory!r}, can't be found: {error.strerror}: if it was removed or "
            "moved just now, open the log again"
        ) from error
    identity = (status.st_dev, status.st_ino)
    with _guard:
        election = _elections.get(identity)
        if election is None:
            election = _elections[identity] = HostElection(identity, address)
            election._thread.start()
        election._users += 1
        return election


def leave(election: HostElection) -> None:
    """Give up one use of the election; the last one ends it, and returns when the nodes have stopped."""
    with _guard:
        election._users -= 1
        if election._users:
            return
        if _elections.get(election._identity) is election:
            del _elections[election._identity]
    election._close()


def _disown() -> None:
    """Forget, in a forked child, which has none of its threads, the elections of its parent."""
    global _guard
    _guard = threading.Lock()
    _elections.clear()


os.register_at_fork(after_in_child=_disown)
