"""What is sent over TLS to a peer that does not read: it is counted, bounded, and costs no more memory than it has."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from polonaise.errors import ConnectionLost, Overloaded
from polonaise.host.real import RealHost
from polonaise.host.tls import TlsIdentity
from polonaise.link.connection import Budget, Connection, connect
from polonaise.link.settings import LinkSettings
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, Feed
from rigs.nodewithtls import NodeWithTls
from rigs.scenarios import runs_tests_on_loops
from rigs.tls import Authority
from rigs.waiting import wait_until

MIB = 1024 * 1024
DEADLINE_S = 20.0


def identity_in(directory: Path) -> TlsIdentity:
    return TlsIdentity(Authority(directory / "ours").issue("both", "client", "server", "storage"))


on_both_loops = runs_tests_on_loops(identity_in)


class ByteCounter(asyncio.Protocol):
    """Counts what it receives, and writes down what happens."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received_bytes = 0
        self.last = b""
        self.happened: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self.last = data[-1:]

    def pause_writing(self) -> None:
        self.happened.append("pause")

    def resume_writing(self) -> None:
        self.happened.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.happened.append("lost")


@contextlib.asynccontextmanager
async def joined(identity: TlsIdentity, pairs: int = 1) -> AsyncIterator[list[tuple[ByteCounter, ByteCounter]]]:
    """Connect each of these pairs, and give the side that dialled and the one that accepted."""
    host = RealHost(tls=identity)
    accepted: list[ByteCounter] = []

    def accept() -> ByteCounter:
        accepted.append(ByteCounter())
        return accepted[-1]

    listener = await host.network.listen("127.0.0.1:0", accept)
    made = []
    for number in range(pairs):
        _, near = await host.network.connect(listener.address, ByteCounter)
        await wait_until(lambda number=number: len(accepted) > number)  # type: ignore[misc]
        made.append((cast(ByteCounter, near), accepted[number]))
    try:
        yield made
    finally:
        await listener.close()
        for pair in made:
            for each in pair:
                each.transport.abort()
        await wait_until(lambda: all("lost" in each.happened for pair in made for each in pair))
        host.close()


@on_both_loops
@pytest.mark.parametrize("dialled", [True, False])
async def test_what_a_deaf_peer_leaves_unread_is_counted(identity: TlsIdentity, *, dialled: bool) -> None:
    async with joined(identity) as [pair]:
        near, deaf = pair if dialled else pair[::-1]
        deaf.transport.pause_reading()
        near.transport.set_write_buffer_limits(high=MIB)
        near.transport.write(bytes(32 * MIB - 1) + b"!")
        near.transport.write(b"")
        assert near.happened == ["pause"]
        await asyncio.sleep(0)
        unsent = near.transport.get_write_buffer_size()
        assert unsent > 16 * MIB, "the network between takes a few MiB at most"
        near.transport.write(b"?")
        assert near.transport.get_write_buffer_size() > unsent - 8 * MIB
        deaf.transport.resume_reading()
        await wait_until(lambda: deaf.received_bytes == 32 * MIB + 1)
        assert deaf.last == b"?"
        assert near.happened == ["pause", "resume"]
        assert near.transport.get_write_buffer_size() == 0


@on_both_loops
async def test_a_few_bytes_take_a_few_bytes_of_memory_when_they_arrive(identity: TlsIdentity) -> None:
    """As without TLS (`host/sockets.py`): both loops ask for 256 KiB for each record, and give most of it back."""
    async with joined(identity) as [(near, far)]:
        near.transport.write(b"first")
        await wait_until(lambda: far.received_bytes == 5)
        tracemalloc.start()
        try:
            for number in range(10):
                near.transport.write(b"again")
                await wait_until(lambda number=number: far.received_bytes == 10 + 5 * number)  # type: ignore[misc]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100_000


@on_both_loops
async def test_a_limit_smaller_than_a_piece_ends_its_pause_too(identity: TlsIdentity) -> None:
    async with joined(identity) as [(near, deaf)]:
        deaf.transport.pause_reading()
        near.transport.set_write_buffer_limits(high=1_000)
        sent = 0
        while not near.happened:
            near.transport.writelines([bytes(300), bytearray(300), memoryview(bytearray(300))])
            sent += 900
        near.transport.set_write_buffer_limits(high=0)
        deaf.transport.resume_reading()
        await wait_until(lambda: near.happened == ["pause", "resume"])
        await wait_until(lambda: deaf.received_bytes == sent)


@on_both_loops
async def test_a_buffer_that_waits_may_be_used_anew(identity: TlsIdentity) -> None:
    async with joined(identity) as [(near, deaf)]:
        deaf.transport.pause_reading()
        near.transport.write(bytes(16 * MIB))
        buffer = bytearray(b"first")
        near.transport.write(buffer)
        buffer[:] = b"later"
        deaf.transport.resume_reading()
        await wait_until(lambda: deaf.received_bytes == 16 * MIB + 5)
        assert deaf.last == b"t"


@on_both_loops
async def test_a_close_sends_what_waits_and_an_abort_does_not(identity: TlsIdentity) -> None:
    async with joined(identity, pairs=2) as [(closing, reader), (aborting, deaf)]:
        for each in (reader, deaf):
            each.transport.pause_reading()
        for each in (closing, aborting):
            each.transport.write(bytes(16 * MIB))
        closing.transport.close()
        closing.transport.close()
        closing.transport.write(b"too late")
        aborting.transport.abort()
        assert closing.transport.is_closing()
        assert aborting.transport.get_write_buffer_size() < MIB
        for each in (reader, deaf):
            each.transport.resume_reading()
        await wait_until(lambda: reader.happened == deaf.happened == ["lost"])
        assert reader.received_bytes == 16 * MIB
        assert deaf.received_bytes < 16 * MIB


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
@on_both_loops
async def test_a_large_write_leaves_no_large_buffer_behind(identity: TlsIdentity) -> None:
    async with joined(identity, pairs=16) as pairs:
        gc.collect()
        before = _resident_bytes()
        payload = bytes(8 * MIB)
        for near, far in pairs:
            near.transport.write(payload)
            await wait_until(lambda far=far: far.received_bytes == 8 * MIB)  # type: ignore[misc]
        assert _resident_bytes() - before < 64 * MIB, "128 MiB if each connection kept as much as it wrote"


async def deaf_client(node: NodeWithTls) -> Connection:
    """Connect a client that reads nothing from now on."""
    client = await connect(node.host, node.address, node.dialling(node.own_host).make, deadline_s=DEADLINE_S)
    client.pause("the test says so")
    return client


@on_both_loops
async def test_answers_that_nobody_reads_are_bounded_over_all_connections(identity: TlsIdentity) -> None:
    async with NodeWithTls(identity, ROLE_SERVER, ROLE_CLIENT) as node:
        budget = node.budget = Budget(32 * MIB)
        clients = [await deaf_client(node) for _ in range(5)]
        for connection in list(node.connections):
            connection.send(Feed(0, payload=[bytes(16 * MIB)]))
        assert budget.cut_off >= 3, "two of these fit at most, and a few MiB are in the network"
        assert 0 < budget.total <= 32 * MIB
        assert any(isinstance(connection.closed, Overloaded) for connection in node.connections)
        for client in clients:
            client.abort(ConnectionLost("the test is over"))
        await wait_until(lambda: budget.total == 0)


@on_both_loops
async def test_a_feed_that_all_have_in_common_is_booked_on_nobody(identity: TlsIdentity) -> None:
    async with NodeWithTls(identity, ROLE_SERVER, ROLE_CLIENT) as node:
        budget = node.budget = Budget(32 * MIB)
        clients = [await deaf_client(node) for _ in range(5)]
        gc.collect()
        before = _resident_bytes()
        batch = Feed(0, payload=[bytes(16 * MIB)])
        for connection in node.connections:
            connection.send(batch, shared=True)
            assert connection.unsent_bytes > 8 * MIB
        assert (budget.total, budget.cut_off) == (0, 0)
        assert _resident_bytes() - before < 40 * MIB, "one batch in memory, and not one for each"
        for client in clients:
            client.abort(ConnectionLost("the test is over"))


@pytest.mark.slow
@on_both_loops
async def test_a_deaf_peer_keeps_writers_waiting_and_is_cut_off(identity: TlsIdentity) -> None:
    async with NodeWithTls(identity, ROLE_SERVER, ROLE_CLIENT) as node:
        node.settings = LinkSettings(unread_s_max=1.5, heartbeat_s=0.2, unsent_bytes_high=MIB)
        client = await deaf_client(node)
        [connection] = node.connections
        connection.send(Feed(0, payload=[bytes(16 * MIB)]))
        assert not connection.writable
        await wait_until(lambda: connection.closed is not None)
        client.abort(ConnectionLost("the test is over"))
        assert isinstance(connection.closed, Overloaded)
        assert "has read nothing of what it is sent" in str(connection.closed)
