"""Connections: hello, requests and answers, deadlines, bounds, and peers that do not keep to any of it."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    InvariantViolated,
    NotOwner,
    PolonaiseError,
    WrongRole,
)
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import ANY_CLUSTER, hello
from polonaise.link.protocol.measuring import ClockMeasuring
from polonaise.terms import PeerClock
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_CLIENT,
    ROLE_SERVER,
    ROLE_STORAGE,
    Flush,
    HighWaterMark,
    HighWaterMarkIs,
    Ping,
    Refused,
)
from polonaise_proving.stages.simulated import ProcessFailed
from rigs.link import KEY, Raw, Rig, run, simulated
from rigs.raising import length
from rigs.waiting import wait_until

# ------------------------------------------------------------------ hello


@simulated
async def test_both_sides_learn_who_the_other_is(rig: Rig) -> None:
    connection = await rig.connect()
    await wait_until(lambda: bool(rig.server.greeted))
    assert (connection.peer.name, connection.peer.role) == ("sam", ROLE_SERVER)
    assert (rig.server.only.peer.name, rig.server.only.peer.node) == ("carol", ROLE_CLIENT)
    assert rig.client.greeted == [connection]


@pytest.mark.parametrize("key", [ANY_CLUSTER, b"guessed".ljust(16)], ids=["no key", "a wrong key"])
@simulated
async def test_the_cluster_key_is_told_only_to_those_who_have_it(rig: Rig, *, key: bytes) -> None:
    """An open port that says the key at once, to whoever asks, would have no use for it."""
    silent = await rig.raw()
    guessing = await rig.raw(hello(ROLE_CLIENT, "scanner", cluster_key=key))
    await wait_until(lambda: guessing.lost)
    assert [type(message) for message in guessing.heard] == [Refused]
    assert not silent.heard
    assert not rig.server.greeted


@simulated
async def test_a_refusal_is_fit_for_a_log_whatever_the_peer_calls_it(rig: Rig) -> None:
    rig.server.on_message = lambda connection, message, request, partition: connection.send(
        Refused(0, "evil\nCRITICAL all is lost\x1b[2J" + "x" * 5_000, "and\x00so on"), request=request
    )
    connection = await rig.connect()
    with pytest.raises(PolonaiseError) as refused:
        await connection.request(HighWaterMark(), deadline_s=5)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


@simulated
async def test_who_does_not_read_is_not_read_until_it_does(rig: Rig) -> None:
    rig.settle_for(unsent_bytes_high=1_000, unread_bytes_max=4_000)
    asked = 0

    def answer_at_length(connection: Connection, message: Message, request: int, partition: int) -> None:
        nonlocal asked
        asked += 1
        connection.send(Refused(0, "code", "x" * 1_000))

    rig.server.on_message = answer_at_length
    peer = await rig.greeted_raw()
    peer.transport.pause_reading()
    for _ in range(3_000):
        peer.say(HighWaterMark())
    await asyncio.sleep(1)
    assert asked < 1_000, "what the network holds, and a little"
    assert rig.server.only.unsent_bytes < 10_000
    peer.transport.resume_reading()
    await wait_until(lambda: asked == 3_000)


@simulated
async def test_who_does_not_belong_here_is_told_why_and_cut_off(rig: Rig) -> None:
    peer = await rig.raw(hello(ROLE_STORAGE, "lost", cluster_key=KEY))
    await wait_until(lambda: peer.lost)
    assert [refusal.code for refusal in peer.heard_of(Refused)] == [WrongRole.code]
    assert isinstance(rig.server.closed[0], WrongRole)
    assert rig.server.greeted == []


# ------------------------------------------------------------------ requests and answers


@simulated
async def test_answers_reach_the_requests_they_belong_to(rig: Rig) -> None:
    connection = await rig.connect()
    asked = [connection.request(HighWaterMark(), partition=number, deadline_s=5) for number in range(50)]
    answers = await asyncio.gather(*asked)
    assert answers == [HighWaterMarkIs(1, number * 100) for number in range(50)]
    assert connection._awaited.waiting == {}


@simulated
async def test_a_refusal_is_raised_as_the_fault_it_names(rig: Rig) -> None:
    def refuse(connection: Connection, message: Message, request: int, partition: int) -> None:
        raise NotOwner("partition 3 lives elsewhere")

    rig.server.on_message = refuse
    connection = await rig.connect()
    with pytest.raises(NotOwner, match="lives elsewhere"):
        await connection.request(HighWaterMark(), partition=3, deadline_s=5)
    assert connection.closed is None  # a refused request harms nothing else


@simulated
async def test_a_request_has_a_deadline_and_an_answer_that_comes_later_harms_nobody(rig: Rig) -> None:
    asked: list[int] = []
    rig.server.on_message = lambda c, m, request, p: asked.append(request)
    connection = await rig.connect()
    began_s = rig.client.host.clock.monotonic_s()
    with pytest.raises(DeadlineExceeded, match="sam was asked for what is committed and did not answer within 2 s"):
        await connection.request(HighWaterMark(), deadline_s=2.0)
    assert 2.0 <= rig.client.host.clock.monotonic_s() - began_s < 2.1
    rig.server.only.send(HighWaterMarkIs(1, 1), request=asked[0])
    await wait_until(lambda: bool(rig.client.heard))
    assert connection.closed is None


@simulated
async def test_requests_fail_when_the_connection_breaks(rig: Rig) -> None:
    rig.server.on_message = lambda *_: None
    connection = await rig.connect()
    asked = [asyncio.ensure_future(connection.request(HighWaterMark(), deadline_s=30)) for _ in range(3)]
    await wait_until(lambda: len(rig.server.heard) == 3)
    rig.world.network.reset("client", "server")
    for failed in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(failed, ConnectionLost)
    with pytest.raises(ConnectionLost):
        await connection.request(HighWaterMark(), deadline_s=30)
    with pytest.raises(ConnectionLost):
        await connection.wait_writable()
    connection.send(Flush())  # into the void
    assert len(rig.client.closed) == 1


@simulated
async def test_asking_a_closed_connection_for_ever_keeps_nothing(rig: Rig) -> None:
    """One error is raised to everybody who asks: it must not collect their stacks."""
    connection = await rig.connect()
    connection.close()
    for _ in range(100):
        with pytest.raises(Closed):
            await connection.request(Flush(), deadline_s=1)
    assert connection.closed is not None
    assert length(connection.closed.__traceback__) < 10


@simulated
async def test_a_refusal_about_the_connection_closes_it(rig: Rig) -> None:
    connection = await rig.connect()
    await wait_until(lambda: bool(rig.server.greeted))
    rig.server.only.send(Refused(0, "not_owner", "shutting down\x1b[31m\n"))
    await wait_until(lambda: connection.closed is not None)
    assert isinstance(connection.closed, NotOwner)
    assert connection.closed.text == "shutting down\\x1b[31m\\n"  # fit for a log


def test_our_own_mistake_stops_the_node_and_is_not_told_to_the_peer() -> None:
    def lie(*_: object) -> None:
        raise InvariantViolated("two and two are five")

    async def scenario(rig: Rig) -> None:
        rig.server.on_message = lie
        connection = await rig.connect()
        await connection.request(HighWaterMark(), deadline_s=5)

    with pytest.raises(ProcessFailed, match="two and two are five"):
        run(scenario)


# ------------------------------------------------------------------ heartbeats and silence


@simulated
async def test_an_idle_connection_lives(rig: Rig) -> None:
    connection = await rig.connect()
    await asyncio.sleep(60)
    assert connection.closed is None
    assert rig.server.closed == []
    assert await connection.request(HighWaterMark(), partition=1, deadline_s=5) == HighWaterMarkIs(1, 100)
    assert [type(message) for message in rig.server.heard] == [HighWaterMark]  # heartbeats are nobody's business


@simulated
async def test_a_peer_that_only_listens_is_pinged_and_cut_when_it_does_not_answer(rig: Rig) -> None:
    peer = await rig.greeted_raw()
    await wait_until(lambda: peer.lost)
    assert 4 <= len(peer.heard_of(Ping)) <= 7
    assert isinstance(rig.server.closed[0], ConnectionLost)
    assert "raw was silent" in str(rig.server.closed[0])


@simulated
async def test_connecting_has_a_deadline(rig: Rig) -> None:
    rig.server_process.pause()
    with pytest.raises(ConnectionLost, match="did not answer within 2 s"):
        await rig.connect(deadline_s=2)
    rig.server_process.resume()
    with pytest.raises(ConnectionLost):
        await rig.client.host.network.connect("server:7001", Raw)


@simulated
async def test_a_connect_that_is_given_up_leaves_no_connection_behind(rig: Rig) -> None:
    for delay_s in (0.0, 0.0003, 0.0006, 0.0009, 0.0012, 0.0015, 0.002):
        attempt = asyncio.ensure_future(rig.connect())
        await asyncio.sleep(delay_s)
        attempt.cancel()
        outcome = (await asyncio.gather(attempt, return_exceptions=True))[0]
        if isinstance(outcome, Connection):
            outcome.close()
    await asyncio.sleep(30)
    assert not rig.world.network.connections.standing


@simulated
async def test_a_connect_that_is_given_up_in_the_moment_of_the_greeting_leaves_no_connection_behind(rig: Rig) -> None:
    attempt = asyncio.ensure_future(rig.connect())
    rig.client.greeted = Cancelling(attempt)
    await asyncio.gather(attempt, return_exceptions=True)
    assert attempt.cancelled()
    await asyncio.sleep(30)
    assert not rig.world.network.connections.standing


class Cancelling(list[Connection]):
    """Takes note of a greeted connection by giving up on it."""

    def __init__(self, attempt: asyncio.Future[Connection]) -> None:
        self.attempt = attempt

    def append(self, connection: Connection) -> None:
        super().append(connection)
        self.attempt.cancel()


# ------------------------------------------------------------------ clocks


@simulated
async def test_the_side_that_has_connected_measures_the_clock_of_the_other(rig: Rig) -> None:
    connection = await rig.connect()
    await wait_until(lambda: connection.clock.measured is not None)
    first = connection.clock.measured
    assert first is not None
    assert 0 <= first.within_us < 1_000_000
    await wait_until(lambda: connection.clock.measured != first, within_s=10.0)
    again = connection.clock.measured
    assert again is not None
    assert abs(again.offset_us - first.offset_us) < 100_000, "the same clock, a moment later"
    assert rig.server.only.clock.measured is None


def test_an_answer_to_an_older_question_than_the_last_is_passed_over() -> None:
    measuring = ClockMeasuring(2.0)
    assert measuring.due(10.0)
    assert not measuring.due(11.0)
    assert measuring.due(12.0)
    measuring.answered(5_000_000, 12.5)
    assert measuring.measured is None, "this may be the answer to the first"
    measuring.answered(7_000_000, 13.0)
    assert measuring.measured == PeerClock(7_000_000 - 12_500_000, 500_000, 13.0)


def test_nobody_is_asked_for_the_time_if_the_interval_is_nought() -> None:
    assert not ClockMeasuring(0.0).due(1e9)
