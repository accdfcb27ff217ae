"""Writes small files again that are removed under a running process which knows what was in them."""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Mapping
from typing import Final, NoReturn

from polonaise.errors import PolonaiseError
from polonaise.host import Disk
from polonaise.host.wholefiles import write_whole

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""Seconds between looks whether the files are in their places."""


async def keep_files(disk: Disk, directory: str, files: Mapping[str, str], *, beside: str) -> NoReturn:
    """Write those of the files again that somebody removes, until cancelled.

    Only what is missing at two looks is written, and only while the file `beside` them is there: the whole directory
    may be being removed.
    """
    missing: set[str] = set()
    logged = ""
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            before, missing = (
                missing,
                {name for name in (beside, *files) if await disk.identity(posixpath.join(directory, name)) is None},
            )
            for name in () if beside in missing else sorted(before & missing):
                await write_whole(disk, directory, name, [files[name].encode()])
                _log.warning("%s/%s was removed while the log ran, and was written again", directory, name)
            logged = ""
        except PolonaiseError as error:
            if str(error) != logged:
                logged = str(error)
                _log.error("%s may lack one of its small files: %s", directory, error)
