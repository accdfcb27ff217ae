"""An operator may ask a storage node for its health, and where batches end. Servers alone have copies emptied."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from polonaise.errors import ConnectionLost, Fenced, PolonaiseError, UnknownPartition, WrongClusterKey
from polonaise.host import Host
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_OPERATOR,
    ROLE_SERVER,
    ROLE_STORAGE,
    BatchFound,
    CopyEmptied,
    EmptyCopy,
    FindBatch,
    Health,
    HealthIs,
    LastSessionInfo,
    SessionInfo,
    Trim,
    Trimmed,
)
from rigs.log import KEY, PARTITION, Maker
from rigs.storage import DEADLINE_S, Node, Owner, connected, filled, opened, simulated

OTHER_KEY = bytes(reversed(range(16)))


async def operator(host: Host, key: bytes = KEY, role: int = ROLE_OPERATOR) -> Connection:
    def make() -> Connection:
        greeting = hello(role, "an operator", cluster_key=key)
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
    with pytest.raises(ConnectionLost, match="health and batches only"):
        await asking.request(LastSessionInfo(99), partition=PARTITION, deadline_s=DEADLINE_S)
    assert (await owner.ask(LastSessionInfo(2), SessionInfo)).fence < 99
    assert (await health(await operator(host)))["partitions"] == 1, "the node goes on"


@simulated(cluster_key=KEY)
async def test_an_operator_learns_in_no_session_which_batch_holds_an_id(host: Host, node: Node) -> None:
    owner = await filled(host, Maker().batches(3, count=4))
    asking = await operator(host)

    async def found(transaction: int) -> Message:
        return await asking.request(FindBatch(transaction), partition=PARTITION, deadline_s=DEADLINE_S)

    assert [await found(id) for id in (4, 6, 7)] == [BatchFound(4, 7)] * 3
    assert [await found(id) for id in (12, 99, -1)] == [BatchFound(NO_TRANSACTION, NO_TRANSACTION)] * 3
    await owner.confirm(11)
    assert (await owner.ask(LastSessionInfo(2), SessionInfo)).confirmed == 11, "the session is not disturbed"


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


# ------------------------------------------------------------------ copies that are not needed any more


async def emptied(host: Host, session: int, role: int = ROLE_SERVER) -> int:
    connection = await operator(host, role=role)
    answer = await connection.request(EmptyCopy(session), partition=PARTITION, deadline_s=DEADLINE_S)
    assert isinstance(answer, CopyEmptied)
    return answer.bytes


@simulated(cluster_key=KEY, segment_bytes_max=2_000)
async def test_an_emptied_copy_frees_its_segments_and_is_filled_again_in_a_later_session(
    host: Host, node: Node
) -> None:
    made = Maker().batches(30, size=100, count=2)
    await filled(host, made)
    assert len(node.segments()) > 2
    freed = await emptied(host, 5)
    assert freed > 30 * 200
    assert len(node.segments()) == 1
    assert await emptied(host, 5) == 0, "once more: nothing is left"
    for power_loss in (False, True):
        await node.restart(power_loss=power_loss)
        owner = await connected(host)
        with pytest.raises(Fenced):
            await owner.fence(4)
    assert await owner.fence(6) == SessionInfo(6, NO_SESSION, NO_TRANSACTION, NO_TRANSACTION, -1, 0, UNRESOLVED)
    await owner.bring_up(made)


@simulated(cluster_key=KEY)
async def test_a_copy_that_was_never_there_is_not_made(host: Host, node: Node) -> None:
    with pytest.raises(UnknownPartition, match="never on this node"):
        await emptied(host, 5)
    assert (await health(await operator(host, role=ROLE_SERVER)))["partitions"] == 0


@simulated(cluster_key=KEY)
async def test_an_operator_empties_no_copy_that_a_later_session_has_asked(host: Host, node: Node) -> None:
    owner = await opened(host, 5)
    with pytest.raises(Fenced):
        await emptied(host, 4)
    assert (await owner.ask(LastSessionInfo(5), SessionInfo)).joined == 5


@simulated(cluster_key=KEY)
async def test_an_operator_may_not_have_copies_emptied(host: Host, node: Node) -> None:
    owner = await opened(host)
    with pytest.raises(ConnectionLost, match="health and batches only"):
        await emptied(host, 9, ROLE_OPERATOR)
    assert (await owner.fence(2)).fence == 2


@simulated(cluster_key=KEY, segment_bytes_max=2_000)
async def test_an_emptied_copy_of_a_trimmed_log_begins_anew_and_is_filled_from_the_beginning(
    host: Host, node: Node
) -> None:
    made = Maker().batches(30, size=100, count=2)
    owner = await filled(host, made)
    await owner.confirm(59)
    while not (await owner.ask(Trim(1, 30), Trimmed)).done:
        pass
    assert await emptied(host, 5) > 0
    await node.restart(power_loss=True)
    owner = await connected(host)
    assert await owner.fence(6) == SessionInfo(6, NO_SESSION, NO_TRANSACTION, NO_TRANSACTION, -1, 0, UNRESOLVED)
    await owner.bring_up(made)


@pytest.mark.parametrize(("kind", "number"), [("sync", 3), ("sync", 4), ("sync", 5), ("write", 5), ("write", 6)])
def test_emptying_that_failed_half_way_is_repeated(kind: str, number: int) -> None:
    @simulated(cluster_key=KEY, segment_bytes_max=2_000)
    async def scenario(host: Host, node: Node) -> None:
        await filled(host, Maker().batches(30, size=100, count=2))
        node.fail_at(kind, number)
        with contextlib.suppress(PolonaiseError):
            await emptied(host, 5)
        node.mend()
        await emptied(host, 5)
        assert len(node.segments()) == 1

    scenario()
