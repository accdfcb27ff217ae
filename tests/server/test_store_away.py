"""Servers whose fragment store is away: they are given no partition, give back what they can't start, and say why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise.admin.archive import archive
from polonaise.admin.cluster import ClusterObserver, ClusterStatus, Wellness
from polonaise.admin.safestop import safe_to_stop
from polonaise.client.log import Log
from polonaise.errors import AccessDenied, NotFound
from polonaise.fragments.history import FragmentHistory
from polonaise.fragments.mark import MARK, mark_of
from polonaise.node.condition import conditions_in, server_troubles
from polonaise.node.monitoring.face import ObservedServer
from polonaise.server.node import Server
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY, Node
from polonaise_proving.stages.simulated.loop import LIFE
from polonaise_proving.stages.simulated.object_store import SimulatedStore
from rigs.scenarios import runs_tests
from rigs.town import Town, held_down
from rigs.waiting import wait_until

PARTITIONS = 4
LONG_S = 60.0
"""Virtual seconds within which partitions move if they move at all: looks, graces and quiet times are shorter."""
ELSEWHERE = mark_of(bytes(16))


class TwoWays(Town):
    """A town of two servers, each with a way of its own to the store: one may find it gone while the other does not."""

    def __init__(self) -> None:
        super().__init__(1, servers=2, partitions=PARTITIONS)
        self.stores = [SimulatedStore(self.world) for _ in range(2)]
        self.without_store = False
        """Whether the second server is started without a store from now on."""
        for store in self.stores:
            store.put_now(MARK, mark_of(CLUSTER_KEY))
        self.cluster.open_history = self._opened

    def _opened(self, key: bytes) -> Any:
        number = next(number for number, node in enumerate(self.nodes) if node.process is LIFE.get())
        return None if number and self.without_store else FragmentHistory(self.stores[number], key)

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.servers

    def at(self, number: int) -> Server:
        return self.cluster.owners[self.nodes[number].name]

    def served(self, number: int) -> list[int]:
        """Return the partitions that a server has a session of."""
        if not self.nodes[number].running:
            return []
        return [each for each, served in self.at(number).partitions.items() if served.owner.session is not None]

    async def status(self) -> ClusterStatus:
        return await self.operator(
            lambda host, coordinator: ClusterObserver(host, coordinator, "the coordinator", 2.0).look()
        )

    async def until(self, holds: Callable[[], object]) -> None:
        await wait_until(lambda: bool(holds()), within_s=LONG_S, every_s=0.5)

    async def shared(self) -> None:
        """Wait until each server serves its half."""
        await self.until(lambda: all(len(self.served(number)) == PARTITIONS // 2 for number in range(2)))

    async def all_served(self, *by: int) -> None:
        await self.until(lambda: sorted(each for number in by for each in self.served(number)) == [*range(PARTITIONS)])


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


@pytest.mark.parametrize("gone", [away, unmounted, anothers])
@with_two_ways
async def test_a_server_that_starts_without_its_store_is_given_nothing_until_it_is_back(
    town: TwoWays, *, gone: Callable[[SimulatedStore], None]
) -> None:
    held_down(town.nodes[1])
    await town.all_served(0)
    gone(town.stores[1])
    town.nodes[1].let_up()
    await town.until(lambda: town.nodes[1].running and town.at(1).followed and town.at(1).parts.store_trouble)
    for _ in range(int(LONG_S)):
        assert town.served(0) == [*range(PARTITIONS)]
        await asyncio.sleep(1.0)
    (why,) = server_troubles(town.at(1).health())
    assert "the fragment store is away" in why
    assert (
        town.at(1).parts.store_trouble
        in ObservedServer(lambda: town.at(1), town.at(1).parts.shared.host.clock).not_ready()
    )
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
    await town.until(lambda: town.at(1).parts.store_trouble)
    held_down(town.nodes[0])
    await town.until(lambda: len(town.at(1).partitions) == PARTITIONS)
    assert len(town.served(1)) == PARTITIONS // 2, "it goes on with what it served"
    town.nodes[0].let_up()
    await town.all_served(0, 1)


@with_two_ways
async def test_where_the_store_is_away_for_all_nothing_moves(town: TwoWays) -> None:
    for store in town.stores:
        store.unmounted = True
    await town.until(lambda: town.at(0).parts.store_trouble and town.at(1).parts.store_trouble)
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
    await town.until(lambda: town.at(1).parts.store_trouble)
    status = await town.status()
    assert status.wellness == Wellness.DEGRADED
    unsafe = {each.node: each.stops for each in safe_to_stop(status, None) if each.stops}
    (stops,) = unsafe.values()
    assert list(unsafe) == [str(town.at(0).id)]
    assert "no other server can take over" in stops[0]
    assert "the fragment store is away" in stops[0]
    assert any("the fragment store is away" in line for each in status.servers for line in each.troubles)
    town.stores[1].unmounted = False
    await town.until(lambda: not town.at(1).parts.store_trouble)
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
    await town.until(lambda: town.nodes[0].running and town.at(0).followed and town.at(0).parts.store_trouble)
    assert town.served(1) == [*range(PARTITIONS)]
    with pytest.raises(NotFound, match="its servers have a store already"):
        await town.application("archivist", begin)
    # One that can't be asked may know a store, too.
    town.world.network.partition(town.nodes[0].name, "archivist")
    with pytest.raises(NotFound, match="can't be asked whether it has a store"):
        await town.application("archivist", begin)
    assert not await new.list()
