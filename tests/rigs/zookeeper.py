"""A ZooKeeper for the tests of one pytest process: started by the first that asks, ended with the process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from polonaise.admin.zookeeper import ZooKeeperEnsemble
from polonaise.coordination.zookeeper import ZooKeeperBackend
from rigs.waiting import PATIENCE_S

SESSION_S = 2.0
"""Twice the least that ZooKeeper grants with ticks of half a second."""

_roots = itertools.count()


@functools.cache
def ensemble() -> ZooKeeperEnsemble:
    """Return the running ensemble of one server, the same one at each call."""
    directory = Path(tempfile.mkdtemp(prefix="polonaise-zookeeper-"))
    made = ZooKeeperEnsemble(directory, servers=1, tick_ms=500)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(made.stop)  # before its directory is removed
    made.start(60.0)
    return made


def new_root() -> str:
    """Return a root that no other test uses."""
    return f"/test-{next(_roots)}"


def backend_at(root: str) -> ZooKeeperBackend:
    """Return the backend of a process of its own."""
    return ZooKeeperBackend(ensemble().hosts, root, session_s=SESSION_S)


@contextlib.contextmanager
def operator() -> Iterator[KazooClient]:
    """Open a client with which to look at nodes, and to do damage."""
    client = KazooClient(ensemble().hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


async def end_session(backend: ZooKeeperBackend) -> None:
    """End the backend's session as ZooKeeper does when it has expired; the backend learns of it by itself."""
    assert backend._session is not None
    client: Any = backend._session._client

    def end() -> None:
        thief = KazooClient(backend._hosts, client_id=client.client_id)
        thief.start(timeout=PATIENCE_S)
        thief.stop()
        thief.close()

    await asyncio.to_thread(end)


async def die(backend: ZooKeeperBackend) -> None:
    """Let the backend end as a killed process does, whose session ZooKeeper then ends."""
    if backend._session is None:
        return
    await end_session(backend)
    await backend.close()
