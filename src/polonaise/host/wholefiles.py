"""What users of a `Disk` do with it: open a file for one use, and write a file whole or not at all."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import AsyncIterator, Sequence

from polonaise.host import Buffer, Disk, File


@contextlib.asynccontextmanager
async def opened_file(disk: Disk, path: str, *, create: bool = False) -> AsyncIterator[File]:
    file = await disk.open(path, create=create)
    try:
        yield file
    finally:
        await file.close()


async def write_file(disk: Disk, path: str, buffers: Sequence[Buffer]) -> None:
    """Replace the contents of a file, durably but for a new name. A crash may leave a part."""
    async with opened_file(disk, path, create=True) as file:
        await file.truncate(0)
        await file.write(0, buffers, sync=True)


async def write_whole(disk: Disk, directory: str, name: str, buffers: Sequence[Buffer]) -> None:
    """Write a file durably under its name in the directory: a crash leaves it whole, or what was there before."""
    path = posixpath.join(directory, name)
    await write_file(disk, f"{path}.new", buffers)
    # Renamed when it is synced: the name never stands for a part. The directory is synced, or the name may be lost.
    await disk.rename(f"{path}.new", path)
    await disk.sync_directory(directory)
