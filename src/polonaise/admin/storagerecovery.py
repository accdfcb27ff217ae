"""Make a storage directory from the directory of another storage node, while the node that is to have it is stopped.

The new copy holds what the other node knows to be committed, and has taken part in no session: the owners take it for a
late replica, whose word decides nothing, and bring it up to date.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Callable
from contextlib import aclosing
from typing import NamedTuple

from polonaise.errors import BadOption, DiskFailed, HistoryTrimmed, ProtocolError, SegmentDamaged, fault
from polonaise.host import Host
from polonaise.host.real import RealHost
from polonaise.log.batch import Batch
from polonaise.log.control import ControlFile, Promises
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.redaction import redacted
from polonaise.storage.files import Files, check_name, find, name_in, trimmed_in, write_name
from polonaise.storage.offline import batches_of, bounds_in
from polonaise.terms import NO_TRANSACTION, PartitionId, StorageId, TransactionId

_STAGING = ".recovering"
"""Appended to the directory's name while it is not whole."""
_CHUNK_BYTES = 4 * 1024 * 1024


class RecoveredCopy(NamedTuple):
    """One partition in a directory that was recovered."""

    partition: PartitionId
    last: TransactionId
    """The last id that was copied, which is the last that the source knows to be committed."""


async def recover_storage(
    directory: str, source: str, name: StorageId, tell: Callable[[RecoveredCopy], None] = lambda copy: None
) -> list[RecoveredCopy]:
    """Make `directory`, a storage directory for the node `name`, from the storage directory `source` of another node.

    Of each partition, what the source knows to be committed is read, verified, and written beside `directory`; `tell`
    is called after each partition. At the end it is put in the place of `directory` in one step. The source is not
    changed, and its node may run meanwhile.

    Raises, with `directory` as it was: `BadOption` for a directory that is not empty, an unfinished recovery beside it,
    a source without partitions, or a name that is invalid or the source's own; `control_file_missing` for a source that
    is only a part of a storage directory; `HistoryTrimmed` for one whose oldest ids were trimmed; `SegmentDamaged` for
    one that lacks what it should hold; what `storage.files.find` and `storage.offline.batches_of` raise, and faults of
    the disk.
    """
    source = source.rstrip("/") or "/"
    directory = _beyond_link(directory)
    staging = _checked(directory, source, name)
    found = find(source)
    for files in found:
        if files.control is None or not files.whole or files.directory != source:
            raise fault(
                "control_file_missing",
                f"{redacted(source)} is not a whole storage directory: name one with its control file",
            )
        if trimmed_in(files).first:
            raise HistoryTrimmed(
                f"partition {files.partition} in {redacted(source)} was trimmed below {trimmed_in(files).first}: start "
                "the node with an empty directory instead; it is filled from the replicas and the fragments"
            )
    if not found or found[0].control is None:
        raise BadOption(f"{redacted(source)} holds no partition: there is nothing to recover from it")
    host = RealHost()
    try:
        control = await ControlFile.open(host, staging, found[0].control.cluster_key)
        try:
            copies = []
            for files in found:
                copies.append(await _copy(host, control, files))
                tell(copies[-1])
            await write_name(host.disk, staging, name)
        finally:
            await control.close()
        await asyncio.to_thread(_put_in_place, staging, directory)
        await host.disk.sync_directory(posixpath.dirname(staging) or ".")
    finally:
        host.close()
    return copies


def _beyond_link(directory: str) -> str:
    """Return where a link leads, or the path as it is: the link stays, and leads to what is made."""
    return os.path.realpath(directory) if os.path.islink(directory.rstrip("/")) else directory


def _checked(directory: str, source: str, name: StorageId) -> str:
    try:
        check_name(name)
    except ProtocolError as error:
        raise BadOption(error.text) from error
    if os.path.exists(directory) and (not os.path.isdir(directory) or os.listdir(directory)):
        raise BadOption(
            f"{redacted(directory)} is not empty: stop its node and move the directory away; what it holds may be the "
            "last copy of something"
        )
    staging = directory.rstrip("/") + _STAGING
    if os.path.exists(staging):
        raise BadOption(f"{redacted(staging)} is left of a recovery that was interrupted: remove it")
    for files in find(source):
        if name_in(files) == name:
            raise BadOption(f"{redacted(source)} is the directory of {name} itself: two nodes must not have one name")
    return staging


async def _copy(host: Host, control: ControlFile, files: Files) -> RecoveredCopy:
    """Copy what the source knows to be committed of one partition. Raises `SegmentDamaged` if it lacks some of it."""
    assert files.partition is not None
    bounds = bounds_in(files)
    slot = await control.create(files.partition)
    log = await PartitionLog.open(host, control.partition_directory(files.partition), slot, LogSettings())
    try:
        chunk: list[Batch] = []
        size, last = 0, NO_TRANSACTION
        # What lies above the confirmed mark may never have been committed: another replica's word decides on that. But
        # a batch is committed as a whole, and servers of earlier versions confirmed ids within one.
        async with aclosing(batches_of(files)) as batches:
            async for batch in batches:
                if batch.first > bounds.confirmed:
                    break
                chunk.append(batch)
                size, last = size + batch.length, batch.last
                if size >= _CHUNK_BYTES:
                    await log.append(chunk)
                    chunk, size = [], 0
        if chunk:
            await log.append(chunk)
        if last < bounds.confirmed:
            raise SegmentDamaged(
                f"partition {files.partition} in {files.directory} ends with {last}, and {bounds.confirmed} is known "
                "to be committed: recover from another node"
            )
        # Not joined to any session, so that it has no vote; and confirmed, so that what was copied is not cut.
        await slot.save(Promises(confirmed=last))
    finally:
        await log.close()
    return RecoveredCopy(files.partition, last)


def _put_in_place(staging: str, directory: str) -> None:
    try:
        if os.path.isdir(directory):
            os.rmdir(directory)
        os.rename(staging, directory)
    except OSError as error:
        raise DiskFailed(
            f"{redacted(staging)} is whole, and can't be renamed to {redacted(directory)}: {error.strerror or error}"
        ) from error
