"""Whether a storage node's directory is still where it was: files that were removed can be written on unnoticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from polonaise.errors import DirectoryGone, PolonaiseError
from polonaise.host import Host
from polonaise.log.control import ControlFile
from polonaise.storage.partitionreplica import PartitionReplica
from polonaise.storage.settings import StorageSettings

_log = logging.getLogger(__name__)


class Presence:
    """Looks for the directory, and for the files of partitions that were written to, until it is cancelled."""

    def __init__(
        self,
        settings: StorageSettings,
        control: Callable[[], ControlFile | None],
        replicas: Callable[[], Sequence[PartitionReplica]],
        let_go: Callable[[DirectoryGone], Awaitable[None]],
    ) -> None:
        """`let_go` is called once, when the directory is gone."""
        self._settings = settings
        self._control = control
        self._replicas = replicas
        self._let_go = let_go
        self._place = 0
        """How many partitions were looked for: the next ones have their turn."""
        self._said = ""

    async def run(self, host: Host) -> None:
        while True:
            await asyncio.sleep(self._settings.presence_s)
            try:
                await self._look()
                self._said = ""
            except DirectoryGone as error:
                # In a task of its own: it cancels this one.
                host.spawn(self._let_go_of(error), f"end of {self._settings.directory}")
                return
            except PolonaiseError as error:
                # Closed to this process, perhaps: what is written on is there, and is found when that is mended.
                if str(error) != self._said:
                    self._said = str(error)
                    _log.error("%s can't be looked at, and is written on: %s", self._settings.directory, error)

    async def _let_go_of(self, error: DirectoryGone) -> None:
        await self._let_go(error)

    async def _look(self) -> None:
        control = self._control()
        if control is None:  # of a new node, which has no directory yet
            return
        await control.check_in_place()
        written = [replica for replica in self._replicas() if replica.written]
        count = min(len(written), self._settings.presence_partitions_max)
        for number in range(count):
            await written[(self._place + number) % len(written)].check_in_place()
        self._place += count
