"""Servers whose certificate has expired: no client connects to them any more, so servers that can take over do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from polonaise.server.node import Server
from rigs.scenarios import runs_tests
from rigs.town import Town, held_down
from rigs.waiting import wait_until

PARTITIONS = 4
LONG_S = 60.0
"""Virtual seconds within which partitions move if they move at all: looks, graces and quiet times are shorter."""
SAID = "the certificate 's0.pem' has expired on 2027-01-01: replace the file, which is read again by itself"


class Servers(Town):
    """A town of some servers, whose certificates are made up."""

    def __init__(self, count: int) -> None:
        super().__init__(1, servers=count, partitions=PARTITIONS)

    def is_running(self, number: int) -> bool:
        return self.cluster.servers[number].name in self.cluster.owners

    def at(self, number: int) -> Server:
        return self.cluster.owners[self.cluster.servers[number].name]

    def expire(self, number: int) -> None:
        """Have a server's certificate expire now."""
        network: Any = self.at(number).parts.shared.host.network
        network.expires_s, network.trouble = self.at(number).parts.shared.host.clock.wall_us() / 1e6, SAID

    def renew(self, number: int) -> None:
        network: Any = self.at(number).parts.shared.host.network
        network.expires_s, network.trouble = float("inf"), ""

    def served(self, number: int) -> list[int]:
        """Return the partitions that a server has a session of."""
        if not self.cluster.servers[number].running:
            return []
        return [each for each, served in self.at(number).partitions.items() if served.owner.session is not None]

    def generations(self) -> dict[int, int]:
        servers = self.cluster.running_servers
        return {each: served.generation for server in servers for each, served in server.partitions.items()}

    async def all_served(self, *by: int) -> None:
        """Wait until each of these servers serves some of the partitions, and no other one does."""

        def shared() -> bool:
            served = [self.served(number) for number in by]
            return all(served) and sorted(each for some in served for each in some) == [*range(PARTITIONS)]

        await wait_until(shared, within_s=LONG_S, every_s=0.5)

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


@with_servers(count=2)
async def test_a_certificate_that_is_replaced_at_once_moves_nothing(town: Servers) -> None:
    before = town.generations()
    town.expire(0)
    await asyncio.sleep(5.0)
    town.renew(0)
    await asyncio.sleep(LONG_S)
    assert town.generations() == before


@with_servers(count=3)
async def test_nothing_moves_when_all_have_expired_at_about_the_same_time(town: Servers) -> None:
    before = town.generations()
    for number in range(3):
        town.expire(number)
        await asyncio.sleep(2.0)
    await town.stays()
    assert town.generations() == before, "nor has anything moved meanwhile"


@with_servers(count=2)
async def test_nothing_is_given_to_a_server_that_owns_nothing_and_can_not_be_reached(town: Servers) -> None:
    held_down(town.cluster.servers[1])
    await town.all_served(0)
    town.cluster.servers[1].let_up()
    await wait_until(lambda: town.is_running(1) and town.at(1).followed, within_s=LONG_S)
    town.expire(1)
    await town.stays()
    town.renew(1)
    await town.all_served(0, 1)


@with_servers(count=3)
async def test_what_one_of_the_expired_was_given_by_need_goes_to_the_first_that_is_renewed(town: Servers) -> None:
    for number in range(3):
        town.expire(number)
    await asyncio.sleep(LONG_S)
    held_down(town.cluster.servers[2])
    await town.all_served(0, 1)
    town.renew(1)
    await town.all_served(1)
    await town.stays()
