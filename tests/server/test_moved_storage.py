"""Storage nodes are known by name, whatever address they are at, and each is reached by two connections."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.admin.storagenodes import StorageMove, move_storage
from polonaise.client.log import Log
from polonaise.errors import BadOption, ConnectionLost, DeadlineExceeded, PolonaiseError, fault
from polonaise.host.real import RealHost
from polonaise.link.protocol.traffic import OWN_REQUESTS
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLink
from polonaise.wire.messages import HighWaterMark, Identified, Identify, Refused
from rigs.faults import raises_code
from rigs.health import until_engaged
from rigs.storage import FixedAddresses
from rigs.town import Town, held_down, in_a_town
from rigs.waiting import time_passes, wait_until

TIMEOUT_S = 2.0


async def moved(town: Town, number: int, address: str) -> StorageMove:
    return await town.operator(
        lambda host, coordinator: move_storage(host, coordinator, town.name(number), address, TIMEOUT_S)
    )


async def told_by_hand(town: Town, number: int, address: str) -> None:
    """Change the description as an operator does who is not kept from mistakes."""

    async def change(_: Any, coordinator: Any) -> None:
        current = await coordinator.description()
        assert (
            await coordinator.set_description(current.value.moved(town.name(number), address), current.version)
            is not None
        )

    await town.operator(change)


def links(town: Town) -> dict[str, Any]:
    told: dict[str, Any] = town.server.health()["storage"]
    return told


async def append(town: Town, body: bytes, engaged: int) -> None:
    async def main(log: Log) -> None:
        await log.append(body, 0)
        await until_engaged(log, engaged)

    await town.application("writer", main)


@in_a_town
async def test_a_node_that_comes_back_at_another_address_is_found_there_once_the_cluster_is_told(town: Town) -> None:
    await append(town, b"1", 3)
    node, name = town.cluster.storage[1], town.name(1)
    town.cluster.places[node.name] = "storage-1:9001"
    node.crash()
    await append(town, b"2", 2)
    assert not links(town)[name]["connected"]
    await time_passes(5)  # until it runs again
    assert await moved(town, 1, "storage-1:9001") == StorageMove(name, name, "storage-1:9001", "")
    await append(town, b"3", 3)
    assert (links(town)[name]["address"], links(town)[name]["error"]) == ("storage-1:9001", "")
    assert await town.log() == [b"1", b"2", b"3"]
    assert (await moved(town, 1, "storage-1:9001")).changed is False


@in_a_town
async def test_a_connection_that_stands_is_left_alone_until_it_breaks(town: Town) -> None:
    await append(town, b"1", 3)
    node, name = town.cluster.storage[1], town.name(1)
    told = await moved(town, 1, "storage-1:9001")
    assert (told.changed, "connection_lost" in told.trouble) == (True, True), "nobody is there yet"
    await time_passes(10)
    assert links(town)[name]["connected"]
    town.cluster.storage[2].crash()  # a server reads the addresses when it lacks a connection
    await wait_until(lambda: links(town)[name]["address"] == "storage-1:9001")
    assert links(town)[name]["connected_at"] == name
    town.cluster.places[node.name] = "storage-1:9001"
    node.crash()
    await append(town, b"2", 3)
    assert links(town)[name]["address"] == links(town)[name]["connected_at"] == "storage-1:9001"


@in_a_town
async def test_a_disk_that_is_reached_as_another_node_is_kept_out_and_the_server_goes_on_with_the_others(
    town: Town,
) -> None:
    await append(town, b"1", 3)
    names = [town.cluster.storage_id(node) for node in town.cluster.storage]
    await told_by_hand(town, 1, names[2])
    town.cluster.storage[1].crash()
    await wait_until(lambda: "wrong_storage_node" in links(town)[names[1]]["error"])
    for each in (names[1], names[2], "polonaise storage move"):
        assert each in links(town)[names[1]]["error"]
    await append(town, b"2", 2)
    assert links(town)[names[2]]["connected"], "its own connection is not harmed"
    await told_by_hand(town, 1, names[1])
    await append(town, b"3", 3)
    assert await town.log() == [b"1", b"2", b"3"]


@in_a_town
async def test_while_all_nodes_are_connected_the_description_is_not_read(town: Town) -> None:
    await append(town, b"1", 3)
    reads: list[str] = []
    read = town.cluster.service.read
    town.cluster.service.read = lambda key: (reads.append(key), read(key))[1]  # type: ignore[method-assign]
    await time_passes(60)
    assert reads
    assert "description" not in reads
    held_down(town.cluster.storage[1])
    await time_passes(60)
    assert 20 <= reads.count("description") <= 62, "and once a second at most while one is not"


@in_a_town
async def test_a_server_goes_on_with_the_addresses_that_it_knows_while_the_coordinator_is_gone(town: Town) -> None:
    await append(town, b"1", 3)
    town.cluster.cut_off.add("server-0")
    name = town.name(1)
    town.cluster.storage[1].crash()
    await wait_until(lambda: not links(town)[name]["connected"])
    await wait_until(lambda: links(town)[name]["connected"])
    town.cluster.cut_off.clear()
    await append(town, b"2", 3)


# ---------------------------------------------------------------------- a node of the version before names


class _Peer(SimpleNamespace):
    async def request(self, message: object, **_: object) -> object:
        self.asked.append(message)
        return Identified("a:1")


def linked(name: str, others: dict[str, StorageLink], *, version: int, node: int) -> tuple[StorageLink, Any]:
    link = StorageLink(None, name, 1, b"k" * 16, ServerSettings(), others, FixedAddresses())  # type: ignore[arg-type]
    others[name] = link
    closed: list[object] = []
    peer = SimpleNamespace(version_max=version, node=node)
    return link, _Peer(peer=peer, asked=[], closed=closed, close=closed.append)


@in_a_town
async def test_a_member_that_the_description_lacks_is_told_as_that_and_not_as_a_wrong_address(town: Town) -> None:
    async def add(_: Any, coordinator: Any) -> None:
        current = await coordinator.partition(0)
        value = replace(current.value, next=(*current.value.members, "d"))
        assert await coordinator.set_partition(0, value, current.version) is not None

    await append(town, b"first", 3)
    await town.operator(add)
    await wait_until(lambda: "d" in links(town) and bool(links(town)["d"]["error"]))
    error = links(town)["d"]["error"]
    assert error.startswith("[unknown_storage_node] the cluster's description has no storage node d")
    assert "polonaise storage add NAME HOST:PORT" in error
    addresses = town.server.parts.addresses
    told = addresses.why_not_reached("d", BadOption("'d' is not an address: write host:port"))
    assert "is not an address" not in told.text
    known = BadOption("a storage node of the cluster, and a wrong address")
    assert addresses.why_not_reached(town.name(0), known) is known


async def test_a_node_that_knows_of_no_names_is_not_asked_and_kept_from_being_linked_twice() -> None:
    others: dict[str, StorageLink] = {}
    first, connection = linked("a:1", others, version=1, node=7)
    await first._check_name(connection)
    assert connection.asked == []
    first.session = connection
    second, again = linked("b:1", others, version=1, node=7)
    with pytest.raises(BadOption, match="a:1 are the same storage node"):
        await second._check_name(again)
    assert len(again.closed) == 1
    third, distinct = linked("c:1", others, version=1, node=8)
    await third._check_name(distinct)


async def test_a_node_that_knows_its_name_is_asked_and_closed_when_it_has_another() -> None:
    link, connection = linked("a:1", {}, version=2, node=7)
    await link._check_name(connection)
    (asked,) = connection.asked
    assert isinstance(asked, Identify)
    assert asked.name == "a:1"

    async def refuse(*_: object, **__: object) -> object:
        await asyncio.sleep(0)
        raise fault("wrong_storage_node", "this is b:1")

    connection.request = refuse
    with raises_code("wrong_storage_node"):
        await link._check_name(connection)
    assert len(connection.closed) == 1


def connection() -> Any:
    return SimpleNamespace(closed=None, peer=None, close=lambda: None)


def test_a_late_refusal_of_a_request_is_no_fault_of_the_session() -> None:
    link = StorageLink(None, "storage:1", 1, b"k" * 16, ServerSettings(), {}, FixedAddresses())  # type: ignore[arg-type]
    failed: list[Any] = []
    link.session = connection()
    link.listen(0, SimpleNamespace(on_replica_failed=lambda *fault: failed.append(fault)))  # type: ignore[arg-type]
    refusal = Refused(detail=0, code="fenced", text="an earlier session's")
    link._on_message(link.session, refusal, OWN_REQUESTS | 7, 0)
    assert failed == []
    link._on_message(link.session, refusal, 7, 0)
    assert len(failed) == 1


async def test_what_is_asked_for_over_the_bulk_connection_is_waited_for_as_long_as_the_node_needs() -> None:
    """A copy takes syncs: on a slow disk, none would ever be made within a fixed time."""
    host = RealHost()
    link = StorageLink(host, "storage:1", 1, b"k" * 16, ServerSettings(), {}, FixedAddresses())
    waited_s: list[float] = []

    async def request(message: Any, *, partition: int, deadline_s: float) -> Any:
        waited_s.append(deadline_s)
        raise DeadlineExceeded("late")

    link.bulk = SimpleNamespace(request=request)  # type: ignore[assignment]
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            await link.ask_bulk(HighWaterMark(), 0)
    host.close()
    assert waited_s == [5, 10, 20, 40, 60]


async def test_a_bulk_connection_that_fails_is_told_until_it_is_made_again_and_the_other_one_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = RealHost()
    settings = ServerSettings(retry_s_min=0.01, retry_s_max=0.01)
    link = StorageLink(host, "storage:1", 1, b"k" * 16, settings, {}, FixedAddresses())
    first, second = connection(), connection()
    bulks: deque[Any] = deque([ConnectionLost("too many sockets"), first])

    async def connect(purpose: str, address: str) -> Any:
        if purpose == "session":
            return connection()
        made = bulks.popleft() if bulks else ConnectionLost("still away")
        if isinstance(made, PolonaiseError):
            raise made
        return made

    monkeypatch.setattr(link, "_connect", connect)
    link.start()
    try:
        await wait_until(lambda: link.bulk_error)
        with pytest.raises(ConnectionLost, match="too many sockets"):
            await link.ask_bulk(HighWaterMark(), 0)
        await wait_until(lambda: link.bulk)
        assert link.bulk_error is None
        first.closed = ConnectionLost("reset by the peer")
        link._on_closed(first, first.closed)
        await wait_until(lambda: link.bulk is None)
        with pytest.raises(ConnectionLost, match=r"reset by the peer|still away"):
            await link.ask_bulk(HighWaterMark(), 0)
        bulks.append(second)
        await wait_until(lambda: link.bulk)
        assert link.bulk_error is None
        assert link.last_error is None
    finally:
        link.close()
        host.close()
