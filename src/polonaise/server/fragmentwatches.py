"""What a server does with the fragment store in the background: it looks at the store, at the archive, and scrubs."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from polonaise.errors import PolonaiseError, StoreUnavailable
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.archivewatch import ArchiveWatch
from polonaise.server.fragmentscrub import FragmentScrubbing
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.sharedparts import SharedParts

_log = logging.getLogger(__name__)
_ANSWER_S: Final = 5.0
"""The longest that a look may take: less than a server that has just started lives until it is given partitions."""


class StoreWatch:
    """Looks at the mark of the store every now and then: one small read, however large the store is."""

    def __init__(self, history: ArchivedHistory, look_s: float) -> None:
        self._history = history
        self._look_s = look_s
        self.trouble: str | None = None
        """Empty if the store can be used, None before the first look."""

    async def run(self) -> None:
        while True:
            trouble = await self._look()
            if trouble and not self.trouble:
                _log.warning("the fragment store can't be used: %s", trouble)
            elif self.trouble and not trouble:
                _log.warning("the fragment store %s can be used again", self._history)
            self.trouble = trouble
            await asyncio.sleep(self._look_s)

    async def _look(self) -> str:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._history.look()
        except TimeoutError:
            text = f"{self._history} did not answer within {_ANSWER_S:g} s: see that it can be reached"
            return str(StoreUnavailable(text))
        except PolonaiseError as error:
            return str(error)
        return ""


class FragmentWatches:
    """The watches of a fragment store, with what they have found. A server without a store has none."""

    def __init__(self, history: ArchivedHistory, shared: SharedParts, owned: OwnedPartitions) -> None:
        self._host = shared.host
        self._history = history
        self._owned = owned
        settings = shared.settings
        self.store = StoreWatch(history, settings.store_look_s)
        self.archive = ArchiveWatch(
            history,
            settings.archive_look_s,
            settings.store_look_s,
            settings.archive_fragment_bytes,
            lambda: owned.readers,
        )
        self.scrubbing = FragmentScrubbing(self._host, settings, history, lambda: owned.readers)

    def spawn(self) -> list[asyncio.Task[None]]:
        """Begin to watch, in tasks that never end by themselves."""
        return [
            self._host.spawn(self.store.run(), "fragment store"),
            self._host.spawn(self.archive.run(), "archive"),
            self._host.spawn(self.scrubbing.run(), "scrub of the fragments"),
        ]

    def __str__(self) -> str:
        """Return what operators are told of where the fragments are."""
        return str(self._history)

    @property
    def missing(self) -> dict[str, str]:
        """By partition, as JSON has it, the first of the ids that nothing holds any more."""
        gone = {} if self.archive.lag is None else self.archive.lag.gone
        return {str(partition): what for partition, what in gone.items() if partition in self._owned.served}

    @property
    def failed(self) -> dict[str, str]:
        """By partition, as JSON has it, why a read of the fragments failed by a mistake of ours."""
        failed = self._history.failed
        return {str(partition): why for partition, (_, why) in failed.items() if partition in self._owned.served}
