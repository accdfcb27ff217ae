"""Servers whose clocks are wrong, or whose certificates have expired: it is told, and others take over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from polonaise.client.log import Log
from polonaise.node.condition import conditions_in, server_troubles
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.face import ObservedServer
from polonaise.node.monitoring.samples import Detail
from polonaise.server.settings import ServerSettings
from polonaise_proving.stages.simulated.cluster import Node
from polonaise_proving.stages.simulated.coordinator import SimulatedBackend
from rigs.scenarios import runs_tests
from rigs.sharedtown import LONG_S, PARTITIONS, SharedTown
from rigs.town import Town, in_a_town, in_an_application
from rigs.waiting import wait_until

DAY_S = 86_400.0
NEAR_S = 3.0


async def off_s(town: Town, log: Log, body: bytes) -> float:
    """Append, and return by how much the commit time is off."""
    receipt = log.append(body, 0)
    assert await receipt
    return ((await log.transaction(receipt.id, 0)).commit_time_us - town.world.true_us) / 1e6


def owner(town: Town) -> Node:
    """The server that has a session of partition 0."""
    (found,) = [node for node in town.cluster.servers if town.cluster.owns(node)]
    return found


@in_an_application(servers=1)
async def test_a_clock_that_jumps_while_its_owner_orders_is_told_and_stamps_nothing(town: Town, log: Log) -> None:
    assert abs(await off_s(town, log, b"before")) < NEAR_S
    machine = owner(town).machine
    machine.jump_clock(DAY_S)
    assert abs(await off_s(town, log, b"at once")) < NEAR_S
    await asyncio.sleep(25.0)
    assert abs(await off_s(town, log, b"later")) < NEAR_S, "no other server is there to take over"
    health = town.server.health()
    assert "the clock of this server is off" in health["clock"]["trouble"]
    assert any("24.0 hours ahead of" in each for each in conditions_in(health)[0].server_troubles)
    assert any("24.0 hours ahead of" in each for each in server_troubles(health))
    machine.jump_clock(-DAY_S)
    assert abs(await off_s(town, log, b"after")) < NEAR_S
    await wait_until(lambda: not town.server.health()["clock"]["trouble"])
    assert town.server.health()["clock"]["jumps"] == 1


@in_an_application(servers=1)
async def test_a_server_that_starts_with_a_wrong_clock_waits_and_says_why(town: Town, log: Log) -> None:
    assert abs(await off_s(town, log, b"before")) < NEAR_S
    node = owner(town)
    node.machine.jump_clock(-10 * DAY_S)
    node.crash()
    await town.has_a_server()
    receipt = log.append(b"after", 0)
    await wait_until(lambda: "10.0 days behind" in town.server.health()["partitions"].get("0", {}).get("waits_for", ""))
    assert not receipt.done
    node.machine.jump_clock(10 * DAY_S)
    assert await receipt
    assert abs(await off_s(town, log, b"more")) < NEAR_S


@in_an_application(servers=2, server=ServerSettings(settle_s=0.5))
async def test_a_server_whose_clock_is_off_gives_its_partitions_up_and_comes_back(town: Town, log: Log) -> None:
    assert abs(await off_s(town, log, b"before")) < NEAR_S
    node = owner(town)
    node.machine.jump_clock(DAY_S)
    await wait_until(lambda: not town.cluster.owns(node), within_s=60.0)
    await wait_until(lambda: any(town.cluster.owns(each) for each in town.cluster.servers), within_s=60.0)
    assert abs(await off_s(town, log, b"by the other")) < NEAR_S
    assert node.restarts == 0
    server = town.cluster.owners[node.name]
    face = ObservedServer(lambda: server, server.parts.shared.host.clock)
    assert "the clock of this server is off" in face.not_ready(), "it has nothing, and could not take anything over"
    assert (await face.health())["status"] == "not_ready"
    node.machine.jump_clock(-DAY_S)

    async def members() -> int:
        return len(await town.operator(lambda _, coordinator: coordinator.members()))

    async with asyncio.timeout(60.0):
        while await members() < 2:
            await asyncio.sleep(0.5)
    assert abs(await off_s(town, log, b"at last")) < NEAR_S
    await wait_until(lambda: not face.not_ready())


@in_an_application(servers=1)
async def test_a_storage_node_whose_clock_is_off_is_told_and_stops_nothing(town: Town, log: Log) -> None:
    assert abs(await off_s(town, log, b"before")) < NEAR_S
    town.cluster.storage[1].machine.jump_clock(-3 * DAY_S)
    await wait_until(lambda: "3.0 days ahead of" in town.server.health()["clock"]["trouble"])
    assert town.server.health()["clock"]["storage"][town.name(1)] < -2 * DAY_S
    assert abs(await off_s(town, log, b"after")) < NEAR_S


@pytest.mark.slow
@in_a_town(servers=1, server=ServerSettings(clock_off_s_max=1e9))
async def test_times_that_stand_still_are_told_with_the_moment_at_which_that_ends(town: Town) -> None:
    """As in a log whose owner had a clock that was ahead, before that was noticed."""
    machine = town.cluster.servers[0].machine
    await town.append(b"before")
    machine.jump_clock(600.0)
    await town.append(b"ahead")
    machine.jump_clock(-600.0)
    await town.append(b"after")
    health = town.server.health()
    assert health["partitions"]["0"]["times_stand_still_until_us"] > town.world.true_us + 500_000_000
    (trouble,) = conditions_in(health)[0].troubles
    assert "commit times stand still at 2025-" in trouble
    await asyncio.sleep(620.0)
    assert conditions_in(town.server.health())[0].troubles == []


@pytest.mark.slow
@in_an_application(servers=1)
async def test_the_coordinators_clock_is_measured_by_renewals_and_told(town: Town, log: Log) -> None:
    """ZooKeeper dates what is written; nothing else tells its time."""
    await town.has_a_server()
    assert town.server.health()["clock"]["coordinator"] is None, "a coordinator without a clock of its own"
    renewed = property(lambda _: town.world.true_us + 7_200_000_000)
    with patch.object(SimulatedBackend, "renewed_us", renewed):
        await wait_until(lambda: "coordinator's clock is" in town.server.health()["clock"]["trouble"])
        clock = town.server.health()["clock"]
        assert abs(clock["coordinator"] - 7_200.0) < NEAR_S
        assert "the coordinator's clock is 2.0 hours ahead of that of this server" in clock["trouble"]
        assert not clock["unfit"], "it decides nothing"
        samples = await ObservedServer(lambda: town.server, town.server.parts.shared.host.clock).samples(Detail())
        ((_, offset_s),) = samples[metrics.COORDINATOR_CLOCK_OFFSET]
        assert abs(offset_s - 7_200.0) < NEAR_S
    await wait_until(lambda: town.server.health()["clock"]["coordinator"] is None)


SAID = "the certificate 's0.pem' has expired on 2027-01-01: replace the file, which is read again by itself"


class Servers(SharedTown):
    """A town of some servers, whose certificates are made up."""

    def expire(self, number: int) -> None:
        """Have a server's certificate expire now."""
        network: Any = self.at(number).parts.shared.host.network
        network.expires_s, network.trouble = self.at(number).parts.shared.host.clock.wall_us() / 1e6, SAID

    def renew(self, number: int) -> None:
        network: Any = self.at(number).parts.shared.host.network
        network.expires_s, network.trouble = float("inf"), ""

    def generations(self) -> dict[int, int]:
        servers = self.cluster.running_servers
        return {each: served.generation for server in servers for each, served in server.partitions.items()}

    async def stays(self) -> None:
        """Check that nothing moves for long."""
        before = self.generations()
        assert sorted(before) == [*range(PARTITIONS)]
        for _ in range(2 * int(LONG_S)):
            await asyncio.sleep(1.0)
            assert self.generations() == before


@runs_tests
def with_servers(story: Callable[[Servers], Awaitable[None]], count: int) -> None:
    async def tell(town: Town) -> None:
        assert isinstance(town, Servers)
        await town.all_served(*range(count))
        await story(town)

    Servers(count).run(tell)


@pytest.mark.slow
@with_servers(count=3)
async def test_what_it_owns_goes_to_the_others_and_comes_back_with_a_new_certificate(town: Servers) -> None:
    await town.append(b"before")
    town.expire(0)
    await town.all_served(1, 2)
    await town.append(b"after")
    await town.stays()
    assert not town.at(0).parts.unservable.why, "others serve it"
    town.renew(0)
    await town.all_served(0, 1, 2)


@pytest.mark.slow
@with_servers(count=3)
async def test_nothing_moves_when_all_have_expired_at_about_the_same_time(town: Servers) -> None:
    before = town.generations()
    for number in range(3):
        town.expire(number)
        await asyncio.sleep(2.0)
    await town.stays()
    assert town.generations() == before, "nor has anything moved meanwhile"
