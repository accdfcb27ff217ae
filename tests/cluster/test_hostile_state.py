"""Messages that are well-formed and wrong: out of their place, out of bounds, out of their time.

Each gets its own answer, nothing of it reaches the log, and the others are not disturbed (`conftest` sees to that).
"""

from __future__ import annotations

import struct
import time
from typing import TypeVar

import pytest

import polonaise
from polonaise.terms import MountState
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_CLIENT,
    Append,
    AppendsFailed,
    Batches,
    Bodies,
    Credit,
    Feed,
    Fetch,
    Flush,
    Flushed,
    GetRegister,
    HighWaterMark,
    HighWaterMarkIs,
    LastSessionInfo,
    Mounted,
    Read,
    Refused,
    SessionInfo,
    Store,
    Stored,
    Truncate,
    Unmount,
)
from rigs.hostile import Peer, Target, dial, greet, mount, one_append
from rigs.waiting import time_passes

M = TypeVar("M", bound=Message)

pytestmark = pytest.mark.slow
HUGE = 2**63 - 1


async def heard(peer: Peer, kind: type[M]) -> M:
    """The next message of this kind; what else comes is passed over."""
    while True:
        message = await peer.hear()
        assert message is not None, f"the connection ended before a {kind.__name__} came"
        if isinstance(message, kind):
            return message


async def mounted(peer: Peer, mark: int = -1) -> Mounted:
    """The answer to a mount, once the partition is ready: on a busy machine a session may end, and another begin."""
    while True:
        answer = await peer.answer(mount(mark))
        while not isinstance(answer, Mounted):
            assert answer is not None
            answer = await peer.hear()
        if answer.state != MountState.NOT_READY:
            return answer
        await time_passes(0.05)


async def committed(target: Target) -> int:
    async with polonaise.connect(target.cluster.coordinator) as log:
        return await log.high_water_mark(0)


# ---------------------------------------------------------------------- server: mounts


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"client_high_water_mark": -2}, id="mark below -1"),
        pytest.param({"client_high_water_mark": -(2**63)}, id="smallest mark"),
        pytest.param({"form": 3}, id="unknown form"),
        pytest.param({"credit": -1}, id="negative credit"),
    ],
)
async def test_an_invalid_mount_closes_its_connection(server: Target, changes: dict[str, int]) -> None:
    async with greet(server) as peer:
        assert await peer.refused(mount(**changes)) == "protocol_error"
        assert await peer.hear() is None


@pytest.mark.parametrize("client_id", [0, -1, -(2**31)])
async def test_a_mount_without_a_client_id_closes_its_connection(server: Target, client_id: int) -> None:
    async with greet(server, node=client_id) as peer:
        assert await peer.refused(mount()) == "protocol_error"


async def test_a_mount_on_an_older_connection_is_refused_and_the_newer_one_stays(server: Target) -> None:
    async with greet(server, node=77) as newer, greet(server, node=77) as older:
        assert isinstance(await newer.answer(mount(await committed(server), connection_sequence=5)), Mounted)
        assert await older.refused(mount(connection_sequence=4)) == "protocol_error"
        assert isinstance(await newer.answer(Flush()), Flushed)


async def test_a_mount_that_knows_a_later_generation_is_sent_elsewhere(server: Target) -> None:
    async with greet(server) as peer:
        assert await peer.refused(mount(generation_known=2**31 - 1)) == "not_owner"
        assert (await mounted(peer)).state == MountState.READY


@pytest.mark.parametrize("partition", [-1, 1, 4_096, 2**31 - 1, -(2**31)])
async def test_a_partition_that_the_cluster_does_not_have_is_unknown(server: Target, partition: int) -> None:
    for message in (mount(), HighWaterMark(), Read(0, 1, 0, 1, 0), Flush()):
        async with greet(server) as peer:
            assert await peer.refused(message, partition=partition) == "unknown_partition"


# ---------------------------------------------------------------------- server: appends


async def test_an_append_before_a_mount_is_void(server: Target) -> None:
    before = await committed(server)
    async with greet(server) as peer:
        peer.say(one_append(b"void"))
        assert await peer.refused(Flush()) == "partition_not_ready"
    assert await committed(server) == before


async def test_a_frame_of_more_appends_than_one_turn_bears_is_refused_before_it_is_looked_at(server: Target) -> None:
    """Two million rows, so that reading them alone would stop the server for everybody."""
    count = 2_000_000
    async with greet(server) as peer:
        await mounted(peer)
        began_s = time.monotonic()
        peer.say(Append(1, count, 0, columns=bytes(28 * count), payload=[]), partition=0)
        refused = await heard(peer, Refused)
        assert refused.code == "body_too_large"
        assert time.monotonic() - began_s < 5
        assert isinstance(await peer.answer(HighWaterMark()), HighWaterMarkIs), "the connection goes on"


# ---------------------------------------------------------------------- server: the rest


async def test_credit_and_unmounts_that_make_no_sense_change_nothing(server: Target) -> None:
    async with greet(server) as peer:
        for message in (Credit(-HUGE), Credit(HUGE), Unmount(), Unmount()):
            peer.say(message, partition=0)
        assert (await mounted(peer)).state == MountState.READY
        for amount in (-HUGE, 0, HUGE, HUGE):
            peer.say(Credit(amount), partition=0)
        peer.say(Flush(), partition=0, request=9)
        await heard(peer, Flushed)


async def test_reading_past_the_end_or_before_the_beginning(server: Target) -> None:
    end = await committed(server)
    async with greet(server) as peer:
        for first in (end + 1, 2**40, HUGE):
            answer = await peer.answer(Read(first, 2**32 - 1, 0, 1, 0))
            assert isinstance(answer, Batches)
            assert not answer.payload
        assert await peer.refused(Read(-1, 1, 0, 1, 0)) == "protocol_error"
        assert isinstance(await peer.answer(Read(0, 0, 0, 255, HUGE)), Batches)
        assert isinstance(await peer.answer(Read(0, 0, 2**32 - 1, 0, -HUGE)), Batches)


async def test_fetching_what_is_not_there_or_too_much(server: Target) -> None:
    async with greet(server) as peer:
        for id in (-1, -HUGE, await committed(server) + 1, HUGE):
            assert await peer.refused(Fetch(struct.pack("<q", id))) == "beyond_log"
        assert await peer.refused(Fetch(bytes(8 * 4_097))) == "protocol_error"
        assert await peer.refused(Fetch(bytes(7))) == "protocol_error"
        answer = await peer.answer(Fetch(b""))
        assert isinstance(answer, Bodies)
        assert answer.count == 0


async def test_a_key_too_long_for_a_register_closes_its_connection(server: Target) -> None:
    async with greet(server) as peer:
        assert await peer.refused(GetRegister(b"k" * 1_025)) == "protocol_error"


@pytest.mark.parametrize(
    "message",
    [Feed(0), Flushed(0), HighWaterMarkIs(1, 0), AppendsFailed(1, b""), Mounted(0, 1, HUGE, 0, ""), Stored(0, 0)],
    ids=lambda m: type(m).__name__,
)
async def test_an_answer_that_nobody_asked_for_closes_its_connection(target: Target, message: Message) -> None:
    async with greet(target) as peer:
        assert await peer.refused(message) == "protocol_error"
        assert await peer.hear() is None


@pytest.mark.parametrize(
    "message", [Store(0, 0), LastSessionInfo(HUGE), Truncate(0, -1)], ids=lambda m: type(m).__name__
)
async def test_a_client_port_obeys_no_server(server: Target, message: Message) -> None:
    async with greet(server) as peer:
        assert await peer.refused(message) == "protocol_error"


# ---------------------------------------------------------------------- storage


async def session_of(target: Target) -> int:
    """The session of partition 0."""
    async with polonaise.connect(target.cluster.coordinator) as log:
        health = await log.health(0)
        return int(health["partitions"]["0"]["session"])


@pytest.mark.parametrize("key", [b"k" * 16, bytes(16)], ids=["wrong key", "no key"])
async def test_nobody_without_the_key_raises_the_fence(storage: Target, key: bytes) -> None:
    """The largest session there is would shut every owner out for ever."""
    session = await session_of(storage)
    async with dial(storage) as peer:
        peer.say(storage.hello(cluster_key=key))
        peer.say(LastSessionInfo(HUGE), request=1, partition=0)
        # Who names none is greeted, to be told the key, and may say nothing that an owner says.
        assert await peer.ended() == ["wrong_cluster_key" if any(key) else "protocol_error"]
    async with greet(storage) as peer:
        info = await peer.answer(LastSessionInfo(session))
        assert isinstance(info, SessionInfo)
        assert info.fence == session


async def test_a_client_does_not_get_into_a_storage_node(storage: Target) -> None:
    async with dial(storage) as peer:
        peer.say(storage.hello(role=ROLE_CLIENT))
        assert await peer.ended() == ["wrong_role"]
