"""The regular check that a storage node's directory exists: writes to removed files succeed, so they tell nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from math import ceil
from typing import Any, Final

from polonaise.errors import DirectoryGone, NotFound, PolonaiseError
from polonaise.host import DiskSpace, Host
from polonaise.log.control import ControlFile
from polonaise.storage.partitionreplica import PartitionReplica
from polonaise.storage.settings import StorageSettings

_log = logging.getLogger(__name__)

_EVERY_FILE_S: Final = 60.0
"""The seconds within which all files of all partitions are looked for, as far as `_EVERY_FILE_MAX` allows."""
_EVERY_FILE_MAX: Final = 16
"""The most partitions of which one look checks all files: thousands at rest are to cost next to nothing."""


class Presence:
    """Checks regularly that the node's directory, and the files of partitions, are in their places."""

    def __init__(
        self,
        settings: StorageSettings,
        control: Callable[[], ControlFile | None],
        replicas: Callable[[], Sequence[PartitionReplica]],
        let_go: Callable[[DirectoryGone], Coroutine[Any, Any, None]],
        small_files: Sequence[str],
        write_again: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Make the check. `let_go` is called once the directory is gone, `write_again` when a small file is missing."""
        self._settings = settings
        self._control = control
        self._replicas = replicas
        self._let_go = let_go
        self._small_files = small_files
        self._write_again = write_again
        self._checked = 0
        """Whose turn is next of the partitions that are written to."""
        self._checked_whole = 0
        """Whose turn is next for a look at all files."""
        self._error_logged = ""
        self.space: DiskSpace | None = None
        """The room on the directory's disk at the last good check; None before, and once the directory is gone."""

    async def run(self, host: Host) -> None:
        """Check once every `presence_s` seconds, until the directory is gone."""
        while True:
            await asyncio.sleep(self._settings.presence_s)
            try:
                missing = await self._check_directory()
                self.space = await self._look_at_space(host)
                if missing:
                    await self._write_again()
                await self._check_partitions()
                self._error_logged = ""
            except DirectoryGone as error:
                self.space = None
                # In a task of its own, because letting go cancels this one.
                host.spawn(self._let_go(error), f"end of {self._settings.directory}")
                return
            except PolonaiseError as error:
                # This process may only have lost the right to look there. Then the files that it has open are still in
                # their places, and what is written to them is kept.
                if str(error) != self._error_logged:
                    self._error_logged = str(error)
                    _log.error(
                        "%s can't be checked, and the node goes on writing to it: %s", self._settings.directory, error
                    )

    async def _look_at_space(self, host: Host) -> DiskSpace | None:
        """Return the room on the directory's disk; None if the directory is not made yet."""
        try:
            return await host.disk.space(self._settings.directory)
        except NotFound:
            return None

    async def _check_directory(self) -> bool:
        control = self._control()
        # A new node has no control file yet.
        return control is not None and await control.check_in_place(self._small_files)

    async def _check_partitions(self) -> None:
        """Check some of the partitions, each also if another one could not be. Raises what the disk raised first."""
        replicas, most = self._replicas(), self._settings.presence_partitions_max
        written = [replica for replica in replicas if replica.written]
        due = _in_turn(written, self._checked, min(len(written), most))
        # All files only of a few at a time: a directory may have thousands.
        count = ceil(len(replicas) * self._settings.presence_s / _EVERY_FILE_S)
        in_turn = _in_turn(replicas, self._checked_whole, min(count, len(replicas), _EVERY_FILE_MAX))
        self._checked += len(due)
        self._checked_whole += len(in_turn)
        errors: list[PolonaiseError] = []
        for replica in dict.fromkeys([*due, *in_turn]):
            if replica in due or not replica.busy:
                try:
                    await replica.check_in_place(every_file=replica in in_turn)
                except PolonaiseError as error:
                    errors.append(error)
        if errors:
            raise errors[0]


def _in_turn(replicas: Sequence[PartitionReplica], first: int, count: int) -> list[PartitionReplica]:
    """Return the next `count` replicas, going on with the first one behind the last."""
    return [replicas[(first + number) % len(replicas)] for number in range(count)]
