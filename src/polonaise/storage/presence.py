"""The regular check that a storage node's directory exists: writes to removed files succeed, so they tell nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from polonaise.errors import DirectoryGone, NotFound, PolonaiseError
from polonaise.host import DiskSpace, Host
from polonaise.log.control import ControlFile
from polonaise.storage.partitionreplica import PartitionReplica
from polonaise.storage.settings import StorageSettings

_log = logging.getLogger(__name__)


class Presence:
    """Checks regularly that the node's directory, and the files of partitions, are in their places."""

    def __init__(
        self,
        settings: StorageSettings,
        control: Callable[[], ControlFile | None],
        replicas: Callable[[], Sequence[PartitionReplica]],
        let_go: Callable[[DirectoryGone], Coroutine[Any, Any, None]],
        write_again: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Make the check. `let_go` is called once, when the directory is gone, and `write_again` each time it is there.

        `control` returns the open control file, None while a new node has none; `replicas` returns the replicas that
        the node runs.
        """
        self._settings = settings
        self._control = control
        self._replicas = replicas
        self._let_go = let_go
        self._write_again = write_again
        self._checked = 0
        """The number of partitions written to that were checked so far: it says whose turn is next."""
        self._idle_checked = 0
        """The same over all partitions, of which a look checks one more, if nobody writes to it: what it holds is read
        some day."""
        self._error_logged = ""
        self.space: DiskSpace | None = None
        """The room on the directory's disk at the last check that did not fail; None before that, while there is no
        such directory, and once it is gone."""

    async def run(self, host: Host) -> None:
        """Check once every `presence_s` seconds, until the directory is gone."""
        while True:
            await asyncio.sleep(self._settings.presence_s)
            try:
                await self._check()
                self._error_logged = ""
                self.space = await self._look_at_space(host)
                await self._write_again()
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
        """Return the room on the directory's disk; None if there is no such directory yet, as for a new node."""
        try:
            return await host.disk.space(self._settings.directory)
        except NotFound:
            return None

    async def _check(self) -> None:
        """Check the directory, and some of the partitions in it. Raises `DirectoryGone`, and what the disk raises."""
        control = self._control()
        if control is None:  # a new node has no control file yet
            return
        await control.check_in_place()
        replicas = self._replicas()
        written = [replica for replica in replicas if replica.written]
        count = min(len(written), self._settings.presence_partitions_max)
        for number in range(count):
            await written[(self._checked + number) % len(written)].check_in_place()
        self._checked += count
        if replicas:
            # The next one, whatever it does: to look at what thousands do would cost more than the check.
            replica = replicas[self._idle_checked % len(replicas)]
            self._idle_checked += 1
            if not replica.written and not replica.busy:
                await replica.check_in_place()
