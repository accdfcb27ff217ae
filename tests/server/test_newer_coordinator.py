"""A server that can't read a value of the coordinator's, because a newer version wrote it, leaves the others to it."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.client.log import Log
from polonaise.coordination import Coordinator
from polonaise.coordination.values import (
    ASSIGNMENT,
    DESCRIPTION,
    Assignment,
    ClusterDescription,
    CoordinatorValue,
    PartitionValue,
    Registration,
    partition_key,
)
from polonaise.errors import CoordinatorDamaged, CoordinatorNewer, UnsupportedFormat
from polonaise.host import Host
from rigs.town import Town, in_a_town, in_an_application
from rigs.waiting import wait_until


def with_more(town: Town, key: str) -> None:
    """Change a value as a newer version might: with a field that this one does not know."""
    present = town.cluster.service.read(key)
    assert present is not None
    contents = present.contents.replace(b"{", b'{"hue":7,', 1)
    assert town.cluster.service.compare_and_set(key, contents, present) is not None


def without_more(town: Town, key: str) -> None:
    """Change it back, as a version does that writes what this one can read."""
    present = town.cluster.service.read(key)
    assert present is not None
    contents = present.contents.replace(b'{"hue":7,', b"{", 1)
    assert town.cluster.service.compare_and_set(key, contents, present) is not None


@in_an_application
async def test_a_server_goes_on_with_what_it_owns_tells_it_and_comes_back(town: Town, log: Log) -> None:
    async def members(_: Host, coordinator: Coordinator) -> int:
        return len(await coordinator.members())

    assert (await log.append(b"before", 0)).committed
    assert await town.operator(members) == 1
    (server,) = town.cluster.owners.values()
    with_more(town, ASSIGNMENT)
    await wait_until(lambda: "'hue', which this version" in server.health()["coordinator"])
    assert "run the version that wrote it, or a newer one" in server.health()["coordinator"]
    await asyncio.sleep(10)
    assert (await log.append(b"meanwhile", 0)).committed, "nobody else would serve the partition"
    assert await town.operator(members) == 0, "a server that can read the value is to take over"
    without_more(town, ASSIGNMENT)
    await wait_until(lambda: not server.health()["coordinator"])
    assert await town.operator(members) == 1
    assert (await log.append(b"after", 0)).committed
    assert [node.restarts for node in town.cluster.servers] == [0]


@in_a_town
async def test_a_server_that_starts_is_refused_by_a_description_it_can_not_read(town: Town) -> None:
    with_more(town, DESCRIPTION)

    with pytest.raises(CoordinatorNewer, match=r"description.*'hue'.*run the version that wrote it"):
        await town.description()


@in_a_town
async def test_a_partition_whose_value_is_newer_waits_and_says_so(town: Town) -> None:
    (server,) = town.cluster.servers
    server.crash()
    with_more(town, partition_key(0))
    await wait_until(lambda: server.running)

    def waits_for() -> str:
        owner = town.cluster.owners.get(server.name)
        served = owner.health()["partitions"].get("0") if owner is not None else None
        return served["waits_for"] if served else ""

    await wait_until(lambda: "'hue', which this version" in waits_for())
    without_more(town, partition_key(0))
    assert await town.log() == []


@pytest.mark.parametrize(
    "value",
    [PartitionValue.initial(("a",)), Assignment(), ClusterDescription(bytes(16), 1, ("a",))],
    ids=lambda value: type(value).__name__,
)
def test_a_field_that_is_not_known_is_told_from_damage(value: CoordinatorValue) -> None:
    newer = value.encode().replace(b"{", b'{"hue":7,', 1)
    with pytest.raises(CoordinatorNewer, match="'hue'") as refused:
        type(value).decode(newer)
    assert isinstance(refused.value, CoordinatorDamaged | UnsupportedFormat)
    with pytest.raises(CoordinatorDamaged) as damaged:
        type(value).decode(newer.replace(b"hue", b"\xff\xff\xff"))
    assert not isinstance(damaged.value, CoordinatorNewer)


@pytest.mark.parametrize("raw", [b'[7, "h:1", [], [], {"hue": 7}]', b'[7, "h:1", [3], [4], 1, 2]'])
def test_what_is_added_to_a_registration_is_passed_over(raw: bytes) -> None:
    registration = Registration.decode(raw)
    assert (registration.server, registration.address) == (7, "h:1")
    assert Registration.decode(registration.encode()) == registration
