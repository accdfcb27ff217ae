"""What operators may ask a storage node for, and what a server says in numbers, are checked before they are obeyed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from polonaise.coordination.values import PartitionValue
from polonaise.errors import ConnectionLost, Fenced, PolonaiseError, ProtocolError, UnknownPartition, WrongClusterKey
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
    Confirm,
    CopyEmptied,
    CutForReset,
    Digest,
    EmptyCopy,
    FindBatch,
    GetRegisters,
    Health,
    HealthIs,
    Join,
    LastSessionInfo,
    LowerMarks,
    NotedAre,
    NoteValues,
    ReadBatches,
    SessionInfo,
    TellNoted,
    Trim,
    Trimmed,
    Truncate,
    ValuesNoted,
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
async def test_an_operator_who_asks_for_more_is_refused_and_starts_no_session_and_empties_no_copy(
    host: Host, node: Node
) -> None:
    owner = await opened(host)
    for message in (LastSessionInfo(99), EmptyCopy(9)):
        with pytest.raises(ConnectionLost, match="health and batches only"):
            await (await operator(host)).request(message, partition=PARTITION, deadline_s=DEADLINE_S)
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


KINDS = (Truncate, CutForReset, LowerMarks, Join, Confirm, Trim, ReadBatches, GetRegisters, Digest, EmptyCopy)
LIMITS = {"q": (-(2**63), -(2**62), -2, -1, 0, 1, 3, 2**31, 2**62, 2**63 - 1), "I": (0, 1, 2**32 - 1), "B": (0, 2, 255)}


def extremes(kind: type[Message]) -> Iterator[Message]:
    """Messages of session 2 with each other field in turn at its limits."""
    forms = dict(zip(kind._FIXED_NAMES, kind._FIXED.format.lstrip("<"), strict=True))
    usual = {**dict.fromkeys(forms, 1), "session": 2}
    for name, form in forms.items():
        for value in LIMITS[form] if name != "session" else (-(2**63), -1, 0, 1):
            yield kind(**{**usual, name: value})


CASES = [pytest.param(message, id=repr(message)) for kind in KINDS for message in extremes(kind)]


@pytest.mark.exhaustive  # of messages and numbers
@pytest.mark.parametrize("message", CASES)
@simulated
async def test_a_number_at_its_limits_leaves_a_copy_that_sessions_can_use(
    host: Host, node: Node, *, message: Message
) -> None:
    made = Maker()
    owner = await opened(host)
    await owner.store_each(made.batches(4))
    await owner.confirm(1)
    await owner.fence(2)
    with contextlib.suppress(PolonaiseError):
        await owner.link.request(message, partition=owner.partition, deadline_s=10)
    assert not owner.link.closed
    for restarts in (False, True):
        if restarts:
            await node.restart(power_loss=True)
        owner = await connected(host)
        info = await owner.fence(3 + restarts)
        assert -1 <= info.confirmed <= info.max_synced <= 3
        assert -1 <= info.prepared <= 3
        assert 0 <= info.joined <= 2 + restarts
        await owner.truncate(info.max_synced)
        await owner.join(info.max_synced, info.last_crc)
        held = await owner.read_all()
        assert len(held) == info.max_synced + 1


@simulated
async def test_a_copy_that_was_given_up_is_told_apart_by_the_value_that_a_server_tells(host: Host, node: Node) -> None:
    def told(*members: str) -> NoteValues:
        value = PartitionValue.initial(members).encode().decode()
        partitions = {str(partition): value for partition in (PARTITION, PARTITION + 1)}
        return NoteValues(json.dumps({"partitions": partitions}).encode())

    owner = await opened(host)
    await owner.identify("here")
    await owner.link.request(told("here", "b", "c"), deadline_s=10)
    assert node.node.given_up == set()
    for _ in range(2):
        await owner.link.request(told("a", "b", "c"), deadline_s=10)
        assert node.node.given_up == {PARTITION}, "of the other it has no copy"
        assert (node.node.health()["partitions"], node.node.health()["given_up"]) == (1, 1)
        await node.restart()
        owner = await connected(host)
        await owner.identify("here")
        assert node.node.given_up == {PARTITION}
    told_of = await owner.link.request(TellNoted(), deadline_s=10)
    assert isinstance(told_of, NotedAre)
    assert list(json.loads(told_of.document)["note"]["partitions"]) == [str(PARTITION), str(PARTITION + 1)]
    await owner.link.request(told("here", "b", "c"), deadline_s=10)
    assert node.node.given_up == set()


NOTES = [
    pytest.param(document, id=document.decode()[:40])
    for document in (
        b"[]",
        b"{",
        b'{"description": "text"}',
        b'{"description": [1, 2]}',
        b'{"description": [1e999, "text"]}',
        b'{"description": [-1, "text"]}',
        b'{"description": [9223372036854775808, "text"]}',
        b'{"expected": [true, "text"]}',
        b'{"unique_id": "1"}',
        b'{"unique_id": -1}',
        b'{"unique_id": 2147483648}',
        b'{"unique_id": 1.5}',
        b'{"partitions": []}',
        b'{"partitions": {"4096": "text"}}',
        b'{"partitions": {"2147483647": "text"}}',
        b'{"partitions": {"-1": "text"}}',
        b'{"partitions": {"01": "text"}}',
        b'{"partitions": {"\xd9\xa3": "text"}}',
        b'{"partitions": {"1": null}}',
        b'{"partitions": {"1": "' + bytes(20_000_000).replace(b"\0", b"x") + b'"}}',
        b"[" * 100_000,
    )
]


@pytest.mark.parametrize("document", NOTES)
@simulated
async def test_values_of_another_form_are_not_noted_and_those_of_before_stay(
    host: Host, node: Node, *, document: bytes
) -> None:
    good = {"description": [3, "the cluster"], "unique_id": 7, "partitions": {"0": "a value"}}
    owner = await connected(host)
    await owner.link.request(NoteValues(json.dumps(good).encode()), deadline_s=10)
    with pytest.raises(ProtocolError, match="invalid values"):
        await owner.link.request(NoteValues(document), deadline_s=10)
    await node.restart()
    owner = await connected(host)
    told = await owner.link.request(TellNoted(), deadline_s=10)
    assert isinstance(told, NotedAre)
    assert json.loads(told.document)["note"] == good
    later = {**good, "description": [4, "the cluster"]}
    assert isinstance(await owner.link.request(NoteValues(json.dumps(later).encode()), deadline_s=10), ValuesNoted)
