"""One process's part in an embedded log: one of those that may host it, and a way to reach whoever does."""

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
"""Between tries to reach an embedded log's host: cheap, and a take-over should not be waited for when it is done."""
_FIRST_HOST_S: Final = 0.02
"""Between looks whether another process has made the log."""
_PATIENCE_S: Final = 2.0
_KNOWN_S: Final = 1.0


@asynccontextmanager
async def attached(address_text: str, settings: ClientSettings) -> AsyncIterator[LogLocation]:
    """A part in the log at this address, as its host or beside it, until the context ends."""
    address = parse_embedded(address_text)
    host = ApplicationHost()
    host.network = EmbeddedSockets(address.directory, host)
    election: elections.HostElection | None = None
    coordinator = coordinator_of(host, address.directory)
    try:
        there = await is_log(host.disk, address.directory)
        if address.may_host:
            await host.disk.make_directory(address.directory)
            election = elections.take(address)
            await asyncio.shield(asyncio.wrap_future(election.settled))
        elif not there:
            raise NotInitialized(
                f"no embedded log in {address.directory}: correct the path, or leave host=no out to make one"
            )
        address.check(await _described(host, coordinator, address, election))
        check_fragments(address, await fragments_of(host.disk, address.directory))
        local = replace(settings, retry_s_max=min(settings.retry_s_max, _LOCAL_RETRY_S_MAX))
        yield LogLocation(
            host,
            coordinator,
            local,
            lambda listener: _listen(election, listener),
            _Whereabouts(address.directory, election),
        )
    finally:
        await coordinator.close()
        if election is not None:
            await asyncio.to_thread(elections.leave, election)
        host.close()


async def _described(
    host: Host, coordinator: Coordinator, address: EmbeddedAddress, election: elections.HostElection | None
) -> ClusterDescription:
    """The description; waits while another process is about to write it."""
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
                "the embedded log in %s is not made yet, and whoever holds its lock does not make it: %s",
                address.directory,
                whereabouts(address.directory, election) or "another log of this process does",
            )
        await asyncio.sleep(_FIRST_HOST_S)


class _Whereabouts:
    """Remembers for a second what `whereabouts` says: all partitions of a log may ask."""

    def __init__(self, directory: str, election: elections.HostElection | None) -> None:
        self._directory = directory
        self._election = election
        self._known = ""
        self._asked_s = float("-inf")

    def __call__(self) -> str:
        now_s = time.monotonic()
        if now_s - self._asked_s > _KNOWN_S:
            self._known, self._asked_s = whereabouts(self._directory, self._election), now_s
        return self._known


def whereabouts(directory: str, election: elections.HostElection | None = None) -> str:
    """Say who hosts the log in this directory, and what to do if that process does not answer; or why nobody does."""
    path = lock_path(directory)
    if not os.path.exists(path):
        return ""
    try:
        try_lock(path).release()
    except DirectoryInUse:
        return _host_in(path)
    except PolonaiseError as error:
        return f"who hosts the log in {directory} can't be told: {error}"
    if election is not None and election.trouble is not None:
        return f"nobody hosts the log in {directory}; this process can't: {election.trouble}"
    return f"nobody hosts the log in {directory}"


def _host_in(path: str) -> str:
    """The process that holds this lock, as it has written itself; empty for the one that asks."""
    try:
        pid = int(Path(path).read_text())
        if pid == os.getpid():
            return ""
        os.kill(pid, 0)
    except ValueError:
        return f"a process has locked {path} and has not said which it is"
    except ProcessLookupError:
        # The number may be that of a process on the other side of a container's wall.
        return f"process {pid} hosts the log, says {path}, and is not to be seen from here"
    except OSError:  # another user's, or the file can't be read
        return f"the process that hosts the log is named in {path}: if it is stopped or hangs, continue it or end it"
    return (
        f"process {pid} hosts the log, says {path}: if it is stopped or hangs, continue it (kill -CONT {pid}) or "
        "end it, and another one takes over"
    )


def _listen(election: elections.HostElection | None, listener: Callable[[BaseException], None]) -> None:
    """Pass on, into this event loop, what ends the part in the election."""
    if election is None:
        return
    loop = asyncio.get_running_loop()

    def tell(error: PolonaiseError) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(listener, error)

    election.listeners.append(tell)
    if election.failure is not None:
        tell(election.failure)
