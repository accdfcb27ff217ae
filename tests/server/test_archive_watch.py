"""Servers tell how far the archive is behind what their partitions have committed, in simulated clusters."""

from __future__ import annotations

import asyncio

from polonaise.admin.trimming import trim
from polonaise.client.log import Log
from polonaise.node.condition import conditions_in
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.face import ObservedServer
from polonaise.node.reasons import Reason
from polonaise.server.archivewatch import ArchiveLag
from rigs.archivedtown import LOOK_S, ArchivedTown
from rigs.waiting import wait_until

FRAGMENT = 2_000
HALF = b"half".ljust(1_000)
"""Two of these, with what lies around them in the log, fill a fragment; one does not."""


def test_a_fragment_that_is_not_archived_is_told_with_the_time_since_when_it_is_full() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(HALF)
        assert await town.lags(1) == ArchiveLag(1, 0, 0), "an archiver leaves what fills no fragment"
        await asyncio.sleep(200.0)
        full_us = town.world.true_us
        await town.append(HALF)
        lag = await town.lags(2)
        assert lag.due_us is not None
        assert abs(lag.due_us - full_us) < 60_000_000, "it is the time of the batch that fills it, and of none before"
        await town.append(HALF, HALF)
        await asyncio.sleep(200.0)
        assert town.lag() == ArchiveLag(4, lag.due_us, 0), "what is lacking grows old, and is not forgotten"
        await town.archive()
        assert await town.lags(0) == ArchiveLag(0, 0, 0)
        await town.append(HALF)
        assert await town.lags(1) == ArchiveLag(1, 0, 0)

    ArchivedTown(archive_fragment_bytes=FRAGMENT).tell(story)


def test_an_archiver_that_writes_all_there_is_is_late_with_the_first_that_it_lacks() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        lag = await town.lags(1)
        assert lag.due_us is not None
        assert 0 <= town.world.true_us - lag.due_us < 60_000_000
        await town.append(b"second")
        assert (await town.lags(2)).due_us == lag.due_us

    ArchivedTown(archive_fragment_bytes=0).tell(story)


def test_what_is_lacking_before_a_fragment_is_late_however_little_it_is() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        await town.archive()
        await town.lags(0)
        await town.append(b"second")
        await town.archive()
        await town.lags(0)
        await town.store.delete(min(town.store.fragments()).path)
        assert (await town.lags(2)).due_us

    ArchivedTown().tell(story)


def test_ids_that_were_trimmed_and_that_no_fragment_holds_are_named_until_they_are_back() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(*(b"%d" % number * 200_000 for number in range(9)))
        await town.archive()

        async def trimmed(log: Log) -> int:
            return (await trim(log, town.store, 0)).first

        first = await town.application("operator", trimmed)
        assert first > 0
        assert conditions_in(town.server.health())[0].missing == ""
        (name,) = town.store.fragments()
        raw = town.store.fragments()[name]
        await town.store.delete(name.path)
        await wait_until(lambda: bool(conditions_in(town.server.health())[0].missing), within_s=60.0, every_s=1.0)
        condition = conditions_in(town.server.health())[0]
        assert "no fragment in the store holds id 0" in condition.missing
        assert (Reason.FRAGMENTS_MISSING, condition.missing) in condition.reasons
        samples = await ObservedServer(lambda: town.server, town.server.parts.shared.host.clock).samples(Detail())
        assert samples.value(metrics.NODE_DEGRADED, "fragments_missing") == 1
        assert samples.value(metrics.ARCHIVE_LAG_UNKNOWN) == 0, "what is missing is known"
        assert samples.value(metrics.ARCHIVE_LAG) == 9
        lag = town.lag()
        assert lag is not None
        assert lag.due_us is None, "and not since when: 0 would say that nothing is late"
        town.store.put_now(name.path, raw)
        await wait_until(lambda: not conditions_in(town.server.health())[0].missing, within_s=60.0, every_s=1.0)

    ArchivedTown().tell(story)


def test_what_was_missing_and_is_back_is_seen_soon_however_seldom_looks_are() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(*(b"%d" % number * 200_000 for number in range(9)))
        await town.archive()

        async def trimmed(log: Log) -> int:
            return (await trim(log, town.store, 0)).first

        assert await town.application("operator", trimmed) > 0
        (name,) = town.store.fragments()
        raw = town.store.fragments()[name]
        await town.store.delete(name.path)
        await wait_until(lambda: bool(conditions_in(town.server.health())[0].missing), within_s=400.0, every_s=1.0)
        town.store.put_now(name.path, raw)
        await asyncio.sleep(20.0)
        assert not conditions_in(town.server.health())[0].missing

    ArchivedTown(archive_look_s=300.0).tell(story)


def test_a_partition_of_which_it_is_not_known_what_is_committed_is_not_taken_for_archived() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        await town.archive()
        assert await town.lags(0) == ArchiveLag(0, 0, 0)
        for node in town.cluster.storage[:2]:
            node.hold_down()
            node.crash()
        (server,) = town.cluster.servers
        server.crash()
        await wait_until(lambda: server.running and town.lag() is not None, within_s=120.0, every_s=1.0)
        assert town.lag() == ArchiveLag(None, None, 1)
        for node in town.cluster.storage[:2]:
            node.let_up()
        await wait_until(lambda: town.lag() == ArchiveLag(0, 0, 0), within_s=120.0, every_s=1.0)

    ArchivedTown().tell(story)


def test_the_age_is_not_known_while_what_is_lacking_can_not_be_read() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        assert (await town.lags(1)).due_us
        (served,) = town.server.partitions.values()
        await town.archive()
        await town.lags(0)
        await town.append(b"second")
        for node in town.cluster.storage[:2]:
            node.hold_down()
            node.crash()
        assert served.owner.committed == 1
        assert await town.lags(1) == ArchiveLag(1, None, 1), "unlike 0, which would say that nothing is late"
        for node in town.cluster.storage[:2]:
            node.let_up()
        await wait_until(lambda: bool((lag := town.lag()) and lag.due_us), within_s=120.0, every_s=1.0)

    ArchivedTown(archive_fragment_bytes=0).tell(story)


def test_of_a_store_that_is_away_what_it_lacked_stands_and_that_it_lacked_nothing_does_not() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        lag = await town.lags(1)
        town.store.away = True
        await asyncio.sleep(4 * LOOK_S)
        assert town.lag() == ArchiveLag(1, lag.due_us, 1)
        town.store.away = False
        await town.archive()
        assert await town.lags(0) == ArchiveLag(0, 0, 0)
        town.store.away = True
        await wait_until(lambda: town.lag() == ArchiveLag(None, None, 1), within_s=60.0, every_s=1.0)

    ArchivedTown(archive_fragment_bytes=0).tell(story)
