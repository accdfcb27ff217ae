"""A server tells how it is to whoever asks about no partition, and of a partition only what it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polonaise.coordination import Coordinator
from polonaise.errors import NotOwner, PolonaiseError, UnknownPartition
from polonaise.host import Host
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.wire.frame import NO_PARTITION
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, Health, HealthIs
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY
from rigs.town import Town


async def health(host: Host, address: str, partition: int) -> dict[str, Any]:
    def make() -> Connection:
        greeting = hello(ROLE_CLIENT, "operator", cluster_key=CLUSTER_KEY)
        return Connection(host, hello=greeting, peer_roles=(ROLE_SERVER,), on_message=lambda *_: None)

    connection = await connect(host, address, make, deadline_s=5)
    try:
        answer = await connection.request(Health(), partition=partition, deadline_s=5)
    finally:
        connection.close()
    assert isinstance(answer, HealthIs)
    told: dict[str, Any] = json.loads(answer.document)
    return told


def told(partition: int, *, owns: bool = True) -> dict[str, Any]:
    """What a server answers that owns partition 0, or nothing."""

    async def story(town: Town) -> dict[str, Any]:
        async def ask(host: Host, _: Coordinator) -> dict[str, Any]:
            if not owns:
                town.server.partitions.clear()
            return await health(host, town.server.address, partition)

        await town.append(b"first")
        return await town.operator(ask)

    return Town(1).run(story)


def test_a_server_that_is_asked_about_no_partition_tells_of_all_that_it_owns() -> None:
    answer = told(NO_PARTITION)
    assert list(answer["partitions"]) == ["0"]
    assert len(answer["storage"]) == 3


def test_a_standby_server_says_that_it_owns_no_partition() -> None:
    assert told(NO_PARTITION, owns=False)["partitions"] == {}


@pytest.mark.parametrize(("partition", "owns", "refused"), [(7, True, UnknownPartition), (0, False, NotOwner)])
def test_health_of_a_partition_that_others_own_is_refused(
    partition: int, owns: bool, refused: type[PolonaiseError]
) -> None:
    with pytest.raises(refused):
        told(partition, owns=owns)
