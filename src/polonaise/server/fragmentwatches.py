"""What a server does with the fragment store in the background: it looks at the store, at the archive, and scrubs."""

from __future__ import annotations

import asyncio
from typing import Any

from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.archivewatch import ArchiveLag, ArchiveWatch
from polonaise.server.fragmentscrub import FragmentScrubbing
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.sharedparts import SharedParts
from polonaise.server.storewatch import StoreWatch


class FragmentWatches:
    """The watches of a fragment store, with what they have found. A server without a store has none."""

    def __init__(self, history: ArchivedHistory, shared: SharedParts, owned: OwnedPartitions) -> None:
        self._host = shared.host
        self._history = history
        self._owned = owned
        settings = shared.settings
        self._store = StoreWatch(history, settings.store_look_s)
        self._archive = ArchiveWatch(
            history,
            settings.archive_look_s,
            settings.store_look_s,
            settings.archive_fragment_bytes,
            lambda: owned.readers,
        )
        self._scrubbing = FragmentScrubbing(self._host, settings, history, lambda: owned.readers)

    def spawn(self) -> list[asyncio.Task[None]]:
        """Begin to watch, in tasks that never end by themselves."""
        return [
            self._host.spawn(self._store.run(), "fragment store"),
            self._host.spawn(self._archive.run(), "archive"),
            self._host.spawn(self._scrubbing.run(), "scrub of the fragments"),
        ]

    def __str__(self) -> str:
        """Return what operators are told of where the fragments are."""
        return str(self._history)

    @property
    def store_trouble(self) -> str | None:
        """Why the store can't be used; empty if it can, None before the first look."""
        return self._store.trouble

    @property
    def archive_lag(self) -> ArchiveLag | None:
        """How far the archive was behind; None before the first look."""
        return self._archive.lag

    def scrub_health(self) -> dict[str, Any]:
        return self._scrubbing.health()

    @property
    def missing(self) -> dict[str, str]:
        """By partition, as JSON has it, the first of the ids that nothing holds any more."""
        gone = {} if self._archive.lag is None else self._archive.lag.gone
        return {str(partition): what for partition, what in gone.items() if partition in self._owned.served}

    @property
    def failed(self) -> dict[str, str]:
        """By partition, as JSON has it, why a read of the fragments failed by a mistake of ours."""
        failed = self._history.failed
        return {str(partition): why for partition, (_, why) in failed.items() if partition in self._owned.served}
