"""While its coordinator is away a server names it, and writes a line of the log now and then, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from polonaise.coordination import Coordinator
from polonaise.errors import CoordinatorUnavailable, NotOwner
from polonaise.host import Host
from polonaise.host.real import RealClock
from polonaise.node.condition import server_troubles
from polonaise.server.coordinatortrouble import AGAIN_S, CoordinatorTrouble
from rigs.town import Town
from server.test_server_health import health


class Clock:
    """A clock that stands still between two settings."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


def test_what_fails_at_the_coordinator_is_logged_once_and_then_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    clock: Any = Clock()
    trouble = CoordinatorTrouble(clock)
    with caplog.at_level(logging.INFO):
        for second in range(100):
            clock.now_s = 1000.0 + second
            for what in ("the assignment can't be read", "the registration can't be renewed", *map(str, range(50))):
                trouble.failed(what, CoordinatorUnavailable("no answer of zk1:2181"))
    assert len(caplog.messages) == 1 + 99 // AGAIN_S
    assert all("zk1:2181" in line for line in caplog.messages)
    assert "for 30 s" in caplog.messages[1]
    assert trouble.errors == 5200
    caplog.clear()
    for what in ("the assignment can't be read", "the registration can't be renewed", *map(str, range(50))):
        trouble.succeeded(what)
    assert caplog.messages == ["the coordinator answers again, after 99.0 s"]
    trouble.failed("the assignment can't be read", CoordinatorUnavailable("no answer of zk1:2181"))
    assert len(caplog.messages) == 2, "new trouble is told at once"


def test_what_is_not_asked_any_more_is_no_answer_of_the_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    trouble = CoordinatorTrouble(RealClock())
    trouble.failed("the members can't be read", CoordinatorUnavailable("away"))
    caplog.clear()
    trouble.not_needed("the members can't be read")
    assert str(trouble) == ""
    assert caplog.messages == [], "nobody has heard of it"
    trouble.succeeded("the assignment can't be read")
    assert [message.partition(",")[0] for message in caplog.messages] == ["the coordinator answers again"]


def test_a_client_is_told_of_the_coordinator_by_a_server_that_owns_nothing_for_it() -> None:
    async def story(town: Town) -> str:
        await town.append(b"first")

        async def ask(host: Host, _: Coordinator) -> str:
            server = town.server
            server.partitions.clear()
            server.parts.owned.followed = False
            server.parts.trouble.failed("it can't be read", CoordinatorUnavailable("no answer of zk1:2181"))
            with pytest.raises(NotOwner) as refused:
                await health(host, server.address, 0)
            return str(refused.value)

        return await town.operator(ask)

    told = Town(1).run(story)
    assert "no answer of zk1:2181" in told
    assert "read the assignment again" not in told


def test_partitions_that_a_server_has_given_up_are_told_of_it() -> None:
    (told,) = server_troubles({"given_up": [3, 5]})
    assert "it can't serve partitions 3, 5, which it has given up" in told
    assert "see why it does not reach storage nodes" in told, "a server of an older version does not say why"
    assert server_troubles({"given_up": []}) == []
    (told,) = server_troubles({"given_up": [3, 5], "given_up_why": {"5": "session 7 ended: b: [disk_full] no space"}})
    assert told == (
        "it can't serve partition 5, which it has given up, for others to take over: "
        "session 7 ended: b: [disk_full] no space"
    )
    assert server_troubles({"given_up": [3, 5], "given_up_why": {}}) == [], "others serve them"


def test_a_partition_that_a_server_serves_again_is_not_told_as_one_that_it_cannot_serve() -> None:
    async def story(town: Town) -> None:
        await town.append(b"first")
        server, storage = town.server, [node.name for node in town.cluster.storage]

        def told() -> tuple[object, int]:
            return server.own_health()["given_up"], server.measures().given_up

        town.world.network.partition(town.cluster.servers[0].name, storage)
        while not server.given_up:
            await asyncio.sleep(1.0)
        assert told() == ([0], 1)
        town.world.network.heal(town.cluster.servers[0].name, storage)
        await town.append(b"second")
        assert server.given_up == {0}, "others are told for a while that it may be struggling"
        assert told() == ([], 0)
        assert not any("can't serve" in line for line in server_troubles(server.own_health()))

    Town(1).run(story)
