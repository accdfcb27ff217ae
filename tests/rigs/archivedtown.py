"""A town whose servers know a fragment store, and look every few seconds how far it is behind."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from polonaise.admin.archive import archive
from polonaise.client.log import Log
from polonaise.fragments.history import FragmentHistory
from polonaise.fragments.mark import MARK, mark_of
from polonaise.server.fragmentwatches import ArchiveLag
from polonaise.server.settings import ServerSettings
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from rigs.town import Town
from rigs.waiting import wait_until

LOOK_S = 5.0


class ArchivedTown(Town):
    """The town, its store, and an archiver that runs when it is told to."""

    def __init__(self, seed: int = 1, spares: int = 0, **settings: Any) -> None:
        super().__init__(seed, server=ServerSettings(**{"archive_look_s": LOOK_S, **settings}), spares=spares)
        self.store = SimulatedStore(self.world)
        self.store.put_now(MARK, mark_of(CLUSTER_KEY))
        self.cluster.open_history = lambda key: FragmentHistory(self.store, key)

    def tell(self, story: Callable[[ArchivedTown], Coroutine[Any, Any, None]]) -> None:
        self.run(lambda _: story(self))

    def lag(self) -> ArchiveLag | None:
        return self.server.measures().archive

    async def lags(self, transactions: int) -> ArchiveLag:
        """Wait until so many transactions are told to be lacking."""

        def told() -> bool:
            lag = self.lag()
            return lag is not None and lag.transactions == transactions

        await wait_until(told, f"{transactions} are lacking", within_s=60.0, every_s=1.0)
        lag = self.lag()
        assert lag is not None
        return lag

    async def archive(self) -> None:
        async def write(log: Log) -> None:
            async for _ in archive(log, self.store, 0, rest=True):
                pass

        await self.application("archiver", write)
