"""Fragment stores that are away or behind: servers say so, and are given no partition that they can't start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise.admin.archive import archive
from polonaise.admin.cluster import ClusterObserver, ClusterStatus, Wellness
from polonaise.admin.safestop import safe_to_stop
from polonaise.admin.trimming import trim
from polonaise.client.log import Log
from polonaise.errors import AccessDenied, NotFound
from polonaise.fragments.history import FragmentHistory
from polonaise.fragments.mark import MARK, mark_of
from polonaise.node.condition import conditions_in, server_troubles
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.face import ObservedServer
from polonaise.node.monitoring.samples import Detail
from polonaise.node.reasons import Reason
from polonaise.server.fragmentwatches import ArchiveLag
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY
from polonaise_proving.stages.simulated.loop import LIFE
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from rigs.archivedtown import LOOK_S, ArchivedTown
from rigs.scenarios import runs_tests
from rigs.sharedtown import LONG_S, PARTITIONS, SharedTown
from rigs.town import Town, held_down
from rigs.waiting import wait_until

ELSEWHERE = mark_of(bytes(16))


class TwoWays(SharedTown):
    """A town of two servers, each with a way of its own to the store: one may find it gone while the other does not."""

    def __init__(self) -> None:
        super().__init__(2)
        self.stores = [SimulatedStore(self.world) for _ in range(2)]
        self.without_store = False
        """Whether the second server is started without a store from now on."""
        for store in self.stores:
            store.put_now(MARK, mark_of(CLUSTER_KEY))
        self.cluster.open_history = self._opened

    def _opened(self, key: bytes) -> Any:
        number = next(number for number, node in enumerate(self.nodes) if node.process is LIFE.get())
        return None if number and self.without_store else FragmentHistory(self.stores[number], key)

    def store_trouble(self, number: int) -> str:
        """Return why a server can't use the store."""
        return self.at(number).measures().own.fragments_trouble

    async def status(self) -> ClusterStatus:
        return await self.operator(
            lambda host, coordinator: ClusterObserver(host, coordinator, "the coordinator", 2.0).look()
        )

    async def shared(self) -> None:
        """Wait until each server serves its half."""
        await self.until(lambda: all(len(self.served(number)) == PARTITIONS // 2 for number in range(2)))


@runs_tests
def with_two_ways(story: Callable[[TwoWays], Awaitable[None]], **how: Any) -> None:
    async def tell(town: Town) -> None:
        assert isinstance(town, TwoWays)
        await town.shared()
        await story(town, **how)

    TwoWays().run(tell)


def away(store: SimulatedStore) -> None:
    store.away = True


def unmounted(store: SimulatedStore) -> None:
    store.unmounted = True


def anothers(store: SimulatedStore) -> None:
    store.put_now(MARK, ELSEWHERE)


def back(store: SimulatedStore) -> None:
    store.away = store.unmounted = False
    store.put_now(MARK, mark_of(CLUSTER_KEY))


@pytest.mark.slow
@pytest.mark.parametrize("gone", [away, unmounted, anothers])
@with_two_ways
async def test_a_server_that_starts_without_its_store_is_given_nothing_until_it_is_back(
    town: TwoWays, *, gone: Callable[[SimulatedStore], None]
) -> None:
    held_down(town.nodes[1])
    await town.all_served(0)
    gone(town.stores[1])
    town.nodes[1].let_up()
    await town.until(lambda: town.nodes[1].running and town.at(1).followed and town.store_trouble(1))
    for _ in range(int(LONG_S)):
        assert town.served(0) == [*range(PARTITIONS)]
        await asyncio.sleep(1.0)
    (why,) = server_troubles(town.at(1).health())
    assert "the fragment store is away" in why
    assert town.store_trouble(1) in ObservedServer(lambda: town.at(1), town.at(1).parts.shared.host.clock).not_ready()
    assert town.at(1).given_up == frozenset(), "it has not served any"
    back(town.stores[1])
    await town.shared()
    assert server_troubles(town.at(1).health()) == []


@pytest.mark.parametrize("gone", [away, unmounted, anothers])
@with_two_ways
async def test_what_a_server_took_over_and_cant_start_goes_to_the_next_that_can(
    town: TwoWays, *, gone: Callable[[SimulatedStore], None]
) -> None:
    gone(town.stores[1])
    await town.until(lambda: town.store_trouble(1))
    held_down(town.nodes[0])
    await town.until(lambda: len(town.at(1).partitions) == PARTITIONS)
    assert len(town.served(1)) == PARTITIONS // 2, "it goes on with what it served"
    town.nodes[0].let_up()
    await town.all_served(0, 1)


@pytest.mark.slow
@with_two_ways
async def test_where_the_store_is_away_for_all_nothing_moves(town: TwoWays) -> None:
    for store in town.stores:
        store.unmounted = True
    await town.until(lambda: town.store_trouble(0) and town.store_trouble(1))
    first = [town.served(number) for number in range(2)]
    await asyncio.sleep(LONG_S)
    assert [town.served(number) for number in range(2)] == first
    held_down(town.nodes[0])
    await town.until(lambda: len(town.at(1).partitions) == PARTITIONS)
    taken = {each: served.generation for each, served in town.at(1).partitions.items()}
    town.nodes[0].let_up()
    await asyncio.sleep(2 * LONG_S)
    assert {each: served.generation for each, served in town.at(1).partitions.items()} == taken
    waiting = [each for each in conditions_in(town.at(1).health()).values() if not each.ready]
    assert [each.partition for each in waiting] == first[0]
    assert all("fragment store" in each.waits_for for each in waiting)
    for store in town.stores:
        store.unmounted = False
    await town.shared()


@with_two_ways
async def test_the_stop_of_a_server_is_not_cleared_while_no_other_could_take_over(town: TwoWays) -> None:
    assert not any(each.stops for each in safe_to_stop(await town.status(), None))
    town.stores[1].unmounted = True
    await town.until(lambda: town.store_trouble(1))
    status = await town.status()
    assert status.wellness == Wellness.DEGRADED
    unsafe = {each.node: each.stops for each in safe_to_stop(status, None) if each.stops}
    (stops,) = unsafe.values()
    assert list(unsafe) == [str(town.at(0).id)]
    assert "no other server can take over" in stops[0]
    assert "the fragment store is away" in stops[0]
    assert any("the fragment store is away" in line for each in status.servers for line in each.troubles)
    town.stores[1].unmounted = False
    await town.until(lambda: not town.store_trouble(1))
    assert not any(each.stops for each in safe_to_stop(await town.status(), None))


@with_two_ways
async def test_a_server_without_the_store_that_the_others_have_is_told(town: TwoWays) -> None:
    town.without_store = True
    town.nodes[1].crash()
    await town.until(lambda: town.nodes[1].running and town.at(1).followed)
    await town.all_served(0, 1)
    troubles = {each.server: each.troubles for each in (await town.status()).servers}
    assert troubles[town.at(0).id] == []
    (why,) = troubles[town.at(1).id]
    assert "started without the fragment store that others have" in why


@with_two_ways
async def test_a_partition_that_only_a_listing_hinders_goes_to_another_server(town: TwoWays) -> None:
    """The mark can be read, and the fragments can't be listed, as with a key that lacks the right to."""
    listing = town.stores[1].list

    async def refused(prefix: str = "") -> Any:
        await listing(prefix)
        raise AccessDenied("no listing")

    town.stores[1].list = refused  # type: ignore[method-assign]
    town.nodes[1].crash()
    await town.until(lambda: town.nodes[1].running and town.at(1).given_up)
    await town.all_served(0)


@with_two_ways
async def test_no_second_store_is_begun_while_the_server_with_the_store_owns_nothing(town: TwoWays) -> None:
    """Its store is away, so it is given nothing; the owner of all was started without one."""
    town.without_store, town.stores[0].unmounted = True, True
    town.nodes[1].crash()
    await town.until(lambda: town.nodes[1].running and town.at(1).followed)
    held_down(town.nodes[0])
    await town.all_served(1)
    new = SimulatedStore(town.world)

    async def begin(log: Log) -> None:
        async for _ in archive(log, new, 0, rest=True, timeout=LONG_S):
            pass

    town.nodes[0].let_up()
    await town.until(lambda: town.nodes[0].running and town.at(0).followed and town.store_trouble(0))
    assert town.served(1) == [*range(PARTITIONS)]
    with pytest.raises(NotFound, match="its servers have a store already"):
        await town.application("archivist", begin)
    # One that can't be asked may know a store, too.
    town.world.network.partition(town.nodes[0].name, "archivist")
    with pytest.raises(NotFound, match="can't be asked whether it has a store"):
        await town.application("archivist", begin)
    assert not await new.list()


FRAGMENT = 2_000
HALF = b"half".ljust(1_000)
"""Two of these, with what lies around them in the log, fill a fragment; one does not."""


@pytest.mark.slow
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


async def missing_fragment(town: ArchivedTown) -> tuple[str, bytes]:
    """Archive the log as one fragment, trim it, and remove the fragment. Return its path and what it was, once its
    ids are told to be missing."""
    await town.append(*(b"%d" % number * 200_000 for number in range(9)))
    await town.archive()

    async def trimmed(log: Log) -> int:
        return (await trim(log, town.store, 0)).first

    assert await town.application("operator", trimmed) > 0
    assert not missing(town)
    ((name, raw),) = town.store.fragments().items()
    await town.store.delete(name.path)
    await wait_until(lambda: bool(missing(town)), within_s=400.0, every_s=1.0)
    return name.path, raw


def missing(town: ArchivedTown) -> str:
    """What is told of ids of partition 0 that no fragment holds."""
    return conditions_in(town.server.health())[0].missing


def test_ids_that_were_trimmed_and_that_no_fragment_holds_are_named_until_they_are_back() -> None:
    async def story(town: ArchivedTown) -> None:
        path, raw = await missing_fragment(town)
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
        town.store.put_now(path, raw)
        await wait_until(lambda: not missing(town), within_s=60.0, every_s=1.0)

    ArchivedTown().tell(story)


@pytest.mark.slow
def test_what_was_missing_and_is_back_is_seen_soon_however_seldom_looks_are() -> None:
    async def story(town: ArchivedTown) -> None:
        path, raw = await missing_fragment(town)
        town.store.put_now(path, raw)
        await asyncio.sleep(20.0)
        assert not missing(town)

    ArchivedTown(archive_look_s=300.0).tell(story)


def test_a_partition_of_which_it_is_not_known_what_is_committed_is_not_taken_for_archived() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        await town.archive()
        assert await town.lags(0) == ArchiveLag(0, 0, 0)
        for node in town.cluster.storage[:2]:
            held_down(node)
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
            held_down(node)
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
