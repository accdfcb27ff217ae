"""One process's part in an embedded log: it may stand for election as the host, and reaches the process that hosts."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.settings import ClientSettings
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import DirectoryInUse, NotInitialized, PolonaiseError, fresh
from polonaise.host import Host
from polonaise.host.files import try_lock
from polonaise.host.unawaited import retrieve
from polonaise.node import hostelection as elections
from polonaise.node.embedded import (
    EmbeddedAddress,
    EmbeddedSockets,
    check_coordinator,
    check_fragments,
    coordinator_of,
    fragments_of,
    is_log,
    lock_path,
    parse_embedded,
)
from polonaise.node.location import LogLocation

_log = logging.getLogger(__name__)

_LOCAL_RETRY_S_MAX: Final = 0.1
"""The longest pause between tries to reach the host: these are cheap, and a take-over is noticed at once."""
_FIRST_HOST_S: Final = 0.02
"""Between two looks whether a process has made the log."""
_PATIENCE_S: Final = 2.0
"""After this a warning names the process that should make the log."""
_REMEMBERED_S: Final = 1.0


@asynccontextmanager
async def attached(address_text: str, settings: ClientSettings) -> AsyncIterator[LogLocation]:
    """Take part in the embedded log at this address, as its host or attached to it, until the context ends."""
    address = parse_embedded(address_text)
    pid, host = os.getpid(), ApplicationHost()
    host.network = EmbeddedSockets(address.directory, host)
    election: elections.HostElection | None = None
    coordinator = coordinator_of(host, address.directory)
    try:
        # Before anything is made there: a directory with other contents is refused, and left as it is.
        log_exists = await is_log(host.disk, address.directory)
        if address.may_host:
            await host.disk.make_directory(address.directory)
            election = elections.take(address)
            # Until a process hosts, this one or another: before that nobody answers. Shielded, because all logs of
            # this process in the directory share the election: one that is cancelled must not cancel it for the rest.
            settled = asyncio.wrap_future(election.settled)
            settled.add_done_callback(retrieve)  # the election goes on without a caller that is cancelled
            await asyncio.shield(settled)
        elif not log_exists:
            raise NotInitialized(
                f"no embedded log in {address.directory}: correct the path, or leave host=no out to make one"
            )
        # Only now: the process that hosts a new log is the one that writes what is compared here.
        address.check(await _described(host, coordinator, address, election))
        check_fragments(address, await fragments_of(host.disk, address.directory))
        local = replace(settings, retry_s_max=min(settings.retry_s_max, _LOCAL_RETRY_S_MAX))
        yield LogLocation(
            host,
            coordinator,
            local,
            lambda listener: _listen(election, listener),
            _RememberedHost(address.directory, election),
        )
    finally:
        if os.getpid() == pid:  # in a forked child, which ends, all that there is to be closed is its parent's
            await coordinator.close()
            if election is not None:
                # In a thread: it waits for the nodes, and the application's loop must not stand still for that.
                await asyncio.to_thread(elections.leave, election)
            host.close()


async def _described(
    host: Host, coordinator: Coordinator, address: EmbeddedAddress, election: elections.HostElection | None
) -> ClusterDescription:
    """Return the cluster's description; wait while none is written yet."""
    loop = asyncio.get_running_loop()
    complain_s = loop.time() + _PATIENCE_S
    while True:
        try:
            return await coordinator.describe()
        except NotInitialized:
            if election is not None and election.failure is not None:
                raise fresh(election.failure) from None
            await check_coordinator(host.disk, address.directory)
        if loop.time() >= complain_s:
            complain_s += 5 * _PATIENCE_S
            _log.warning(
                "the embedded log in %s is not made yet, and the process that holds its lock does not make it: %s",
                address.directory,
                who_hosts(address.directory, election) or "another log of this process does",
            )
        await asyncio.sleep(_FIRST_HOST_S)


class _RememberedHost:
    """Remembers the answer of `who_hosts` for a second: all partitions of a log may ask at once."""

    def __init__(self, directory: str, election: elections.HostElection | None) -> None:
        self._directory = directory
        self._election = election
        self._answer = ""
        self._answered_s = float("-inf")

    def __call__(self) -> str:
        now_s = time.monotonic()
        if now_s - self._answered_s > _REMEMBERED_S:
            self._answer, self._answered_s = who_hosts(self._directory, self._election), now_s
        return self._answer


def who_hosts(directory: str, election: elections.HostElection | None = None) -> str:
    """Return which process hosts the log, if not this one, and what to do if it does not answer, as a phrase.

    Takes the lock for an instant if it is free: `flock` tells of a lock in no other way. Elections allow for that.
    """
    path = lock_path(directory)
    if not os.path.exists(path):
        return ""
    try:
        try_lock(path).release()
    except DirectoryInUse:
        return _host_in(path)
    except PolonaiseError as error:
        return f"the host of the log in {directory} is unknown: {error}"
    if election is not None and election.trouble is not None:
        return f"nobody hosts the log in {directory}; this process can't: {election.trouble}"
    return f"nobody hosts the log in {directory}"


def _host_in(path: str) -> str:
    """Return a phrase on the process that holds this lock, by the id that it wrote there; empty for this one."""
    try:
        pid = int(Path(path).read_text())
        if pid == os.getpid():
            return ""
        os.kill(pid, 0)
    except ValueError:
        return f"a process has locked {path}, and has not written its process id there"
    except ProcessLookupError:
        # The process may run in another container, where process ids mean others.
        return f"process {pid} hosts the log, according to {path}, and can't be seen from here"
    except OSError:  # another user's process, or the file can't be read
        return f"the process that hosts the log is named in {path}: if it is stopped or hangs, continue it or end it"
    return (
        f"process {pid} hosts the log, according to {path}: if it is stopped or hangs, continue it (kill -CONT {pid}) "
        "or end it, and another process takes over"
    )


def _listen(election: elections.HostElection | None, listener: Callable[[BaseException], None]) -> None:
    """Have `listener` called in this event loop when an error has ended this process's part in the election."""
    if election is None:
        return
    loop = asyncio.get_running_loop()

    def tell(error: PolonaiseError) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(listener, error)

    election.listeners.append(tell)  # before looking for a failure, so that none falls in between
    if election.failure is not None:
        tell(election.failure)
