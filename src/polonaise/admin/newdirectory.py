"""Prepare the directory that a log is restored into: locked, and marked as no log until the restored one is whole."""

from __future__ import annotations

import asyncio
import posixpath
import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from polonaise.coordination.values import DESCRIPTION
from polonaise.errors import AlreadyInitialized, BadOption, DiskFailed
from polonaise.host import Disk
from polonaise.host.wholefiles import write_file
from polonaise.node.addresses import COORDINATOR, MARKER
from polonaise.node.embedded import HOST_LOCK, RESTORING, lock_path

_OURS: Final = re.compile(rf"{RESTORING}|{HOST_LOCK}|{COORDINATOR}|storage-[0-9]+|{MARKER}\.new")
"""Names that a restore makes, and that a killed one may leave."""
_EMBEDDED: Final = b"embedded"
_CLUSTER: Final = b"cluster"
_TEXT: Final = b": such a log is being restored into this directory. It is no log before this file is gone.\n"


@asynccontextmanager
async def new_directory(disk: Disk, directory: str, *, embedded: bool) -> AsyncGenerator[None, None]:
    """Lock the directory while a log is made in it. What an unfinished restore left there is removed first.

    `embedded` says whether an embedded log is made, which ends with a file of its own, or the directory of a cluster.

    From before anything but the lock is removed or made until the block has ended well, a file in it says that it is no
    log. Raises `BadOption` for a directory that holds anything else, `AlreadyInitialized` for one with a log (from
    which that file is removed first, if a restore was killed just before it would have done so), `DirectoryInUse`, and
    faults of the disk.
    """
    await disk.make_directory(directory)
    await _end_restore(disk, directory)
    await _check(disk, directory)
    lock = await disk.lock(lock_path(directory))
    try:
        # Checked again under the lock: another restore may have come first, and have ended by now.
        unfinished = await _check(disk, directory)
        # Durable before anything else changes: a crash from here on leaves a directory that says that it is no log.
        await write_file(disk, posixpath.join(directory, RESTORING), [_EMBEDDED if embedded else _CLUSTER, _TEXT])
        await disk.sync_directory(directory)
        for name in unfinished:
            await asyncio.to_thread(_remove, posixpath.join(directory, name))
        await disk.sync_directory(directory)
        yield
        await disk.remove(posixpath.join(directory, RESTORING))
        await disk.sync_directory(directory)
    finally:
        lock.release()


async def _end_restore(disk: Disk, directory: str) -> None:
    """Do the last step of a restore that was killed before it, and raise `AlreadyInitialized`: the log is whole.

    Does nothing for any other directory.
    """
    if not await _lacks_only_end(disk, directory):
        return
    lock = await disk.lock(lock_path(directory))
    try:
        # Again under the lock: that restore may have been under way, and have ended by now.
        if await _lacks_only_end(disk, directory):
            await disk.remove(posixpath.join(directory, RESTORING))
            await disk.sync_directory(directory)
            raise AlreadyInitialized(
                f"{directory} holds a whole log already: a restore into it lacked only its last step, the removal of "
                f"{RESTORING}, which was done now; use the log, or restore into a new or an empty directory"
            )
    finally:
        lock.release()


async def _lacks_only_end(disk: Disk, directory: str) -> bool:
    """Whether an unfinished restore lacks only its last step, so that the log may be in use already."""
    names = await disk.list(directory)
    return RESTORING in names and (MARKER in names or await _is_cluster(disk, directory))


async def _check(disk: Disk, directory: str) -> list[str]:
    """Return the names that an unfinished restore has left. Raises `AlreadyInitialized` or `BadOption` for all else."""
    names = set(await disk.list(directory))
    if MARKER in names or (RESTORING in names and await _is_cluster(disk, directory)):
        raise AlreadyInitialized(f"{directory} holds a log already: restore into a new or an empty directory")
    foreign = sorted(name for name in names if not _OURS.fullmatch(name))
    unfinished = sorted(names - {HOST_LOCK, RESTORING, f"{MARKER}.new"})
    if foreign or (unfinished and RESTORING not in names):
        examples = ", ".join((foreign or unfinished)[:3])
        raise BadOption(f"{directory} is not empty (it holds {examples}): restore into a new or an empty directory")
    return unfinished


async def _is_cluster(disk: Disk, directory: str) -> bool:
    """Whether an unfinished restore has made all of a cluster.

    False for an embedded log: it can't be opened before its own file is written, after the coordinator's values.
    """
    if not await disk.exists(posixpath.join(directory, COORDINATOR, DESCRIPTION)):
        return False
    return not (await disk.load(posixpath.join(directory, RESTORING))).startswith(_EMBEDDED)


def _remove(path: str) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise DiskFailed(
            f"{path}, left by an unfinished restore, can't be removed: {error.strerror or error}"
        ) from error
