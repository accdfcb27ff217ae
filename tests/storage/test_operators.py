"""An operator may ask a storage node for its health, and for nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from polonaise.errors import ConnectionLost, WrongClusterKey
from polonaise.host import Host
from polonaise.link.connection import Connection, connect, hello
from polonaise.wire.messages import ROLE_OPERATOR, ROLE_STORAGE, Health, HealthIs, LastSessionInfo, SessionInfo
from rigs.log import KEY, PARTITION
from rigs.storage import DEADLINE_S, Node, Owner, opened, simulated

OTHER_KEY = bytes(reversed(range(16)))


async def operator(host: Host, key: bytes = KEY) -> Connection:
    def make() -> Connection:
        greeting = hello(ROLE_OPERATOR, "an operator", cluster_key=key)
        return Connection(host, hello=greeting, peer_roles=(ROLE_STORAGE,), on_message=lambda *_: None)

    while True:
        try:
            return await connect(host, "storage:1", make, deadline_s=DEADLINE_S)
        except ConnectionLost:
            await asyncio.sleep(0.1)  # it does not listen yet


async def health(connection: Connection) -> dict[str, Any]:
    answer = await connection.request(Health(), deadline_s=DEADLINE_S)
    assert isinstance(answer, HealthIs)
    told: dict[str, Any] = json.loads(answer.document)
    return told


@simulated(cluster_key=KEY)
async def test_an_operator_learns_how_a_node_is(host: Host, node: Node) -> None:
    await opened(host)
    asking = await operator(host)
    await asyncio.sleep(2)  # the room on the disk is looked at once a second
    told = await health(asking)
    assert told["partitions"] == 1
    assert 0 < told["disk"]["free_bytes"] < told["disk"]["total_bytes"]


@simulated(cluster_key=KEY)
async def test_an_operator_who_asks_for_more_is_refused_and_starts_no_session(host: Host, node: Node) -> None:
    owner = await opened(host)
    asking = await operator(host)
    with pytest.raises(ConnectionLost, match="health only"):
        await asking.request(LastSessionInfo(99), partition=PARTITION, deadline_s=DEADLINE_S)
    assert (await owner.ask(LastSessionInfo(2), SessionInfo)).fence < 99
    assert (await health(await operator(host)))["partitions"] == 1, "the node goes on"


@simulated
async def test_a_new_node_does_not_join_the_cluster_of_an_operator(host: Host, node: Node) -> None:
    asking = await operator(host, OTHER_KEY)
    told = await health(asking)
    assert (told["partitions"], told["disk"]) == (0, None)
    owner = await Owner.connected(host, key=KEY)
    await owner.fence(1)


@simulated(cluster_key=KEY)
async def test_an_operator_of_another_cluster_is_refused(host: Host, node: Node) -> None:
    with pytest.raises(WrongClusterKey):
        await operator(host, OTHER_KEY)
