"""Writes small files again that are removed or changed under a running process which knows what was in them."""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Mapping
from typing import Final, NoReturn

from polonaise.errors import NotFound, PolonaiseError
from polonaise.host import Disk
from polonaise.host.wholefiles import write_whole

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0


async def keep_files(disk: Disk, directory: str, files: Mapping[str, str], *, beside: str) -> NoReturn:
    """Write those of the files again that somebody removes, empties or changes, until cancelled.

    Only what is amiss at two looks is written, and only while the file `beside` them is there: the whole directory may
    be being removed.
    """
    amiss: set[str] = set()
    logged = ""
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            there = await disk.exists(posixpath.join(directory, beside))
            before, amiss = amiss, {name for name in files if not await _is_whole(disk, directory, name, files[name])}
            for name in sorted(before & amiss) if there else ():
                await write_whole(disk, directory, name, [files[name].encode()])
                _log.warning("%s/%s was removed or changed while the log ran, and was written again", directory, name)
            logged = ""
        except PolonaiseError as error:
            if str(error) != logged:
                logged = str(error)
                _log.error("%s may lack one of its small files: %s", directory, error)


async def _is_whole(disk: Disk, directory: str, name: str, contents: str) -> bool:
    try:
        return await disk.load(posixpath.join(directory, name)) == contents.encode()
    except NotFound:
        return False
