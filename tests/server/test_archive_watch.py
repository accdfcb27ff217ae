"""Servers tell how far the archive is behind what their partitions have committed, in simulated clusters."""

from __future__ import annotations

import asyncio

from polonaise.server.archivewatch import ArchiveLag
from rigs.archivedtown import LOOK_S, ArchivedTown
from rigs.waiting import wait_until


def test_an_archive_that_stays_behind_is_told_with_the_age_of_what_it_lacks() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first", b"second")
        lag = await town.lags(2)
        assert lag.oldest_us is not None
        assert 0 <= town.world.true_us - lag.oldest_us < 60_000_000
        await asyncio.sleep(200.0)
        assert town.lag() == lag, "what is lacking grows old, and is not forgotten"
        await town.archive()
        assert await town.lags(0) == ArchiveLag(0, 0)
        await town.append(b"third")
        later = await town.lags(1)
        assert later.oldest_us is not None
        assert later.oldest_us - lag.oldest_us > 200_000_000, "it is the time of the first that is lacking"

    ArchivedTown().tell(story)


def test_the_age_is_not_known_while_what_is_lacking_can_not_be_read() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        assert (await town.lags(1)).oldest_us
        (served,) = town.server.partitions.values()
        await town.archive()
        await town.lags(0)
        await town.append(b"second")
        for node in town.cluster.storage[:2]:
            node.hold_down()
            node.crash()
        assert served.owner.committed == 1
        assert (await town.lags(1)).oldest_us is None, "unlike 0, which would say that all is archived"
        for node in town.cluster.storage[:2]:
            node.let_up()
        await wait_until(lambda: bool((lag := town.lag()) and lag.oldest_us), within_s=120.0, every_s=1.0)

    ArchivedTown().tell(story)


def test_a_store_that_is_away_leaves_what_was_seen_last() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        lag = await town.lags(1)
        town.store.away = True
        await asyncio.sleep(4 * LOOK_S)
        assert town.lag() == lag

    ArchivedTown().tell(story)
