"""Make the coordinator of an embedded log again, from the log's own storage directories."""

from __future__ import annotations

import contextlib
import logging
import posixpath

from polonaise.admin.coordinatorbackup import RecoveredCluster, recover
from polonaise.coordination.rebuilding import Noted
from polonaise.errors import DirectoryInUse, PolonaiseError, RecoveryUnsafe, fault
from polonaise.host.files import try_lock
from polonaise.log.control import CONTROL_FILE
from polonaise.node.embedded import (
    STORAGE_MAX,
    EmbeddedHost,
    clear_sockets,
    coordinator_of,
    is_log,
    lock_path,
    parse_embedded,
    storage_directory,
    storage_names,
    storage_settings,
)
from polonaise.storage.node import StorageNode
from polonaise.terms import StorageId

_log = logging.getLogger(__name__)


async def recover_embedded(address: str, known: Noted | None, timeout_s: float, believed: str = "") -> RecoveredCluster:
    """Make the values of an embedded log's coordinator again, as `recover` does, from its storage directories.

    Raises `DirectoryInUse` if the log is open anywhere, `not_embedded_log`, and what `recover` raises.
    """
    directory = parse_embedded(address).directory
    host = EmbeddedHost(directory)
    try:
        if not await is_log(host.disk, directory):
            raise fault("not_embedded_log", f"there is no embedded log in {directory}: correct the path")
        try:
            lock = try_lock(lock_path(directory))
        except DirectoryInUse:
            raise DirectoryInUse(f"a process has the log in {directory} open: close it everywhere first") from None
        try:
            return await _recover(host, directory, known, timeout_s, believed)
        finally:
            lock.release()
    finally:
        host.close()


async def _recover(
    host: EmbeddedHost, directory: str, known: Noted | None, timeout_s: float, believed: str
) -> RecoveredCluster:
    """Recover with the storage nodes running in this process. The caller holds the host's lock."""
    await clear_sockets(host.disk, directory)
    unusable: dict[StorageId, PolonaiseError] = {}
    async with contextlib.AsyncExitStack() as closing:
        coordinator = coordinator_of(host, directory)
        closing.push_async_callback(coordinator.close)
        nodes = {}
        for number, name in enumerate(storage_names(STORAGE_MAX)):
            # A node would make a directory that is missing, and an empty one would tell of a cluster without a log.
            if await host.disk.exists(posixpath.join(storage_directory(directory, number), CONTROL_FILE)):
                node = StorageNode(host, storage_settings(directory, number, name, None))
                try:
                    await node.start()
                except PolonaiseError as error:
                    _log.warning("%s can't be used: %s", storage_directory(directory, number), error)
                    unusable[name] = error
                    continue
                closing.push_async_callback(node.close)
                nodes[name] = name
        try:
            return await recover(host, coordinator, known, nodes, timeout_s, believed=believed)
        except RecoveryUnsafe as error:
            if not unusable:
                raise
            told = "; ".join(f"{name}: {why}" for name, why in unusable.items())
            raise RecoveryUnsafe(f"{error.text}. {told}") from None
