"""Peers that dawdle, do not read, or say what nobody should, and what all connections hold and lose together."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from polonaise.errors import (
    ConnectionLost,
    FrameDamaged,
    FrameTooLarge,
    Overloaded,
    PolonaiseError,
    ProtocolError,
    Retry,
    TlsNotSpoken,
)
from polonaise.host.tcpcounts import segment_counts
from polonaise.link.connection import Budget, Connection
from polonaise.link.protocol.measuring import LATELY_S, LossMeasuring
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    Feed,
    Flush,
    Hello,
    HighWaterMark,
    HighWaterMarkIs,
    Ping,
    Refused,
)
from rigs.link import GREETING, KEY, SETTINGS, Rig, run, simulated
from rigs.waiting import wait_until

# ------------------------------------------------------------------ peers that dawdle


@simulated
async def test_who_connects_and_says_nothing_is_cut(rig: Rig) -> None:
    peer = await rig.raw()
    await wait_until(lambda: peer.lost, 10)
    assert "did not say hello" in str(rig.server.closed[0])


# ------------------------------------------------------------------ peers that do not read


@simulated
async def test_writers_are_asked_to_wait_for_a_peer_that_does_not_read(rig: Rig) -> None:
    rig.settle_for(unsent_bytes_high=100_000)
    peer = await rig.greeted_raw()
    peer.transport.pause_reading()
    connection = rig.server.only
    while connection.writable:
        connection.send(Feed(0, payload=[bytes(50_000)]))
    assert 100_000 < connection.unsent_bytes < 200_000
    sent: list[int] = []

    async def write(_: int) -> None:
        await connection.wait_writable()
        connection.send(Feed(0, payload=[bytes(500_000)]))
        sent.append(connection.unsent_bytes)

    waiting = [asyncio.ensure_future(write(number)) for number in range(4)]
    await asyncio.sleep(1)
    assert sent == []
    peer.transport.resume_reading()
    await wait_until(lambda: len(sent) == 4)
    assert max(sent) < 700_000  # they waited for each other too
    await asyncio.gather(*waiting)


@simulated
async def test_a_ping_flood_from_a_peer_that_does_not_read_stays_bounded(rig: Rig) -> None:
    rig.settle_for(unsent_bytes_max=500_000)
    peer = await rig.greeted_raw()
    peer.transport.pause_reading()
    flood = b"".join(b"".join(Ping().frame()) for _ in range(5_000))
    for _ in range(30):
        peer.say(flood)
        await asyncio.sleep(0.1)
    assert isinstance(rig.server.only.closed, Overloaded)


@simulated
async def test_closing_sends_what_was_said_but_does_not_wait_for_ever(rig: Rig) -> None:
    reader, sleeper = await rig.greeted_raw(), await rig.raw(GREETING)
    await wait_until(lambda: len(rig.server.greeted) == 2)
    sleeper.transport.pause_reading()
    for connection in rig.server.connections:
        for _ in range(20):
            connection.send(Feed(0, payload=[bytes(50_000)]))
        connection.close()
    await wait_until(lambda: reader.lost)
    assert len(reader.heard_of(Feed)) == 20
    await asyncio.sleep(SETTINGS.linger_s_max + 1)
    sleeper.transport.close()
    await asyncio.sleep(1)
    assert not rig.world.network.connections.standing


# ------------------------------------------------------------------ bytes that nobody should send


@pytest.mark.parametrize(
    ("said", "error"),
    [
        pytest.param((b"GET / HTTP/1.1\r\nHost: log\r\n\r\n",), FrameTooLarge, id="http"),
        pytest.param((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",), FrameTooLarge, id="http/2"),
        pytest.param((bytes.fromhex("160301020001") + bytes(600),), TlsNotSpoken, id="tls hello"),
        pytest.param((b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(9),), FrameTooLarge, id="ssh"),
        pytest.param((bytes(1000),), FrameDamaged, id="zeros"),
        pytest.param((b"\xff" * 1000,), FrameTooLarge, id="ones"),
        pytest.param((Flush(),), ProtocolError, id="message before hello"),
        pytest.param((Hello(1, 1, 1, 1, KEY, "x" * 5000),), FrameTooLarge, id="hello too large"),
        pytest.param((GREETING, GREETING), ProtocolError, id="hello twice"),
        pytest.param((GREETING, b"\0" * 24), FrameDamaged, id="length 0"),
        pytest.param((GREETING, b"\xff" * 24), FrameTooLarge, id="length 2^32-1"),
        pytest.param((GREETING, struct.pack("<I", (1 << 20) + 1) + bytes(20)), FrameTooLarge, id="just over the limit"),
        pytest.param((GREETING, b"".join(Flush().frame())[:-1] + b"\x99"), FrameDamaged, id="wrong crc"),
    ],
)
@simulated
async def test_bytes_that_are_no_conversation_close_that_connection_and_no_other(
    rig: Rig, *, said: tuple[Message | bytes, ...], error: type[ProtocolError]
) -> None:
    neighbour = await rig.connect()
    peer = await rig.raw(*said)
    await wait_until(lambda: peer.lost)
    assert type(rig.server.connections[1].closed) is error
    assert [refusal.code for refusal in peer.heard_of(Refused)] == [error.code]
    assert rig.server.heard == []
    await asyncio.sleep(10)
    assert await neighbour.request(HighWaterMark(), partition=1, deadline_s=5) == HighWaterMarkIs(1, 100)


@pytest.mark.parametrize("at", [1, 10, 23, 24, 40])
@simulated
async def test_a_peer_that_closes_in_the_middle_of_a_frame_is_just_gone(rig: Rig, *, at: int) -> None:
    peer = await rig.raw(b"".join(GREETING.frame())[:at])
    await asyncio.sleep(0.1)
    peer.transport.close()
    await wait_until(lambda: bool(rig.server.closed))
    assert isinstance(rig.server.closed[0], ConnectionLost)


@simulated
async def test_after_closing_nothing_is_delivered_any_more(rig: Rig) -> None:
    def close_at_once(connection: Connection, *_: object) -> None:
        connection.close()

    rig.server.on_message = close_at_once
    peer = await rig.raw(GREETING, *[Flush()] * 10)
    await wait_until(lambda: peer.lost)
    assert rig.server.heard == [Flush()]
    assert len(rig.server.closed) == 1


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bits_never_reach_the_node_as_another_message(seed: int) -> None:
    async def scenario(rig: Rig) -> None:
        for turn in range(30):
            peer = await rig.raw(GREETING)
            await asyncio.sleep(0.01)
            rig.world.network.flip_byte("client", "server")
            peer.say(HighWaterMark(), request=turn + 1, partition=turn)
            await asyncio.sleep(0.01)
            peer.transport.abort()
        assert rig.server.heard == []

    run(scenario, seed=seed, split_chance=0.0)


@pytest.mark.parametrize("ends", [("client", "server"), ("server", "client")])
@simulated(split_chance=0.0)
async def test_a_flipped_bit_in_a_hello_is_worth_another_try(rig: Rig, *, ends: tuple[str, str]) -> None:
    """Whoever gave up for good would stop a view because of one bit."""
    for _ in range(100):
        rig.world.network.flip_byte(*ends)
        with pytest.raises(PolonaiseError) as raised:
            await rig.connect(0.5)
        assert raised.value.retry is Retry.AGAIN, raised.value
    assert (await rig.connect()).is_greeted


@pytest.mark.parametrize("head_bytes", [0, 2**28])
@simulated
async def test_what_is_asked_on_a_connection_that_a_garbled_frame_has_closed_may_be_asked_again(
    rig: Rig, *, head_bytes: int
) -> None:
    connection = await rig.connect()
    rig.server.only.send_frame([struct.pack("<IHHIiII", 24, 1, 0, 0, -1, head_bytes, 0)])
    await wait_until(lambda: connection.closed is not None)
    with pytest.raises(ConnectionLost, match="frame_damaged") as raised:
        await connection.request(HighWaterMark(), deadline_s=1.0)
    assert raised.value.retry is Retry.AGAIN


MB = 2**20


class Holding:
    """Something that holds bytes until it is cut off."""

    def __init__(self, name: str) -> None:
        self.peer_name = name
        self.error: PolonaiseError | None = None

    def abort(self, error: PolonaiseError) -> None:
        self.error = error


def test_the_greediest_goes_and_the_others_stay() -> None:
    budget = Budget(10 * MB)
    modest, greedy, late = Holding("modest"), Holding("greedy"), Holding("late")
    budget.book(modest, 2 * MB)
    budget.book(greedy, 7 * MB)
    assert budget.cut_off == 0
    budget.book(late, 3 * MB)
    assert isinstance(greedy.error, Overloaded)
    assert modest.error is None
    assert late.error is None
    assert (budget.total, budget.cut_off) == (5 * MB, 1)


def test_what_was_given_back_is_there_again() -> None:
    budget = Budget(10 * MB)
    first, second = Holding("first"), Holding("second")
    for _ in range(5):
        budget.book(first, 9 * MB)
        assert budget.tight
        budget.book(first, 0)
        budget.book(second, 9 * MB)
        budget.release(second)
    assert (budget.total, budget.cut_off) == (0, 0)
    assert not budget.tight


@simulated
async def test_answers_that_are_taken_are_on_nobodys_account(rig: Rig) -> None:
    budget = rig.server.budget = Budget(100 * MB)
    reading, deaf = await rig.greeted_raw(), await rig.greeted_raw()
    deaf.transport.pause_reading()
    for connection in rig.server.connections:
        for _ in range(40):
            connection.send(Refused(0, "code", "x" * 60_000))
    await wait_until(lambda: len(reading.heard) == 41)
    await asyncio.sleep(2)  # the next heartbeat looks
    assert 1 * MB < budget.total < 2.4 * MB, "what the network took of it is off too"
    deaf.transport.abort()
    await wait_until(lambda: budget.total == 0)


@simulated
async def test_what_is_shared_is_on_nobodys_account(rig: Rig) -> None:
    """A live feed to a thousand subscribers is one batch in memory, not a thousand."""
    budget = rig.server.budget = Budget(1 * MB)
    deaf = await rig.greeted_raw()
    deaf.transport.pause_reading()
    for _ in range(40):
        rig.server.only.send(Refused(0, "code", "x" * 60_000), shared=True)
    await asyncio.sleep(2)
    assert (budget.total, budget.cut_off) == (0, 0)


@simulated
async def test_unfinished_frames_are_bounded_over_all_connections(rig: Rig) -> None:
    budget = rig.server.budget = Budget(2 * MB)
    greedy = [await rig.greeted_raw() for _ in range(4)]
    modest = await rig.connect()
    begun = MB.to_bytes(4, "little") + bytes(20)
    for number, peer in enumerate(greedy):
        peer.say(begun + bytes((number + 1) * 240_000))
    await wait_until(lambda: budget.cut_off > 0)
    await asyncio.sleep(1)
    assert budget.total <= 2 * MB
    assert greedy[3].lost
    assert modest.closed is None


def test_the_share_that_was_sent_again_lately_is_told() -> None:
    losses = LossMeasuring()
    assert losses.resent is None, "nobody has counted yet"
    losses.seen(0.0, 1_000, 500)  # of before: nobody knows when
    assert losses.resent == 0.0
    losses.seen(1.0, 1_100, 530)
    assert losses.resent == 0.3


def test_losses_of_long_ago_are_told_no_more() -> None:
    losses = LossMeasuring()
    for second, resent in enumerate([0, 10, 10, 10, 10, 10, 10, 10]):
        losses.seen(float(second), 100 * second, resent)
        assert (losses.resent > 0) == (1 <= second <= LATELY_S)


def test_a_single_loss_is_none() -> None:
    losses = LossMeasuring()
    losses.seen(0.0, 0, 0)
    losses.seen(1.0, 4, 2)
    assert losses.resent == 0.0


def test_all_sent_again_is_not_more_than_all() -> None:
    losses = LossMeasuring()
    losses.seen(0.0, 10, 0)
    losses.seen(1.0, 10, 5)  # such as what opens a connection, which carries no data
    assert losses.resent == 1.0


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel does not tell")
async def test_the_kernel_counts_what_was_sent_on_a_connection() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(5):
            writer.write(b"x")
            await reader.readexactly(1)
        counts = segment_counts(writer.transport)
        assert counts is not None
        assert counts.sent >= 5
        assert counts.resent < counts.sent
        writer.close()
        await writer.wait_closed()


def test_without_a_connection_nothing_is_counted() -> None:
    assert segment_counts(None) is None
