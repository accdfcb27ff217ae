"""What every network promises, loopback and the simulated one, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from polonaise.errors import AddressInUse, BadOption, ConnectionLost
from polonaise.host import Host, Network
from polonaise.host.real import RealHost
from polonaise.host.tls import TlsIdentity
from polonaise_proving.stages.simulated import World
from rigs.scenarios import run_alone, runs_tests_on
from rigs.tls import Authority
from rigs.waiting import wait_until


class Here:
    """The network under test, and the addresses to try it with."""

    def __init__(self, network: Network, tcp: str, refused: str, unix: str) -> None:
        self.network = network
        self.tcp = tcp
        self.refused = refused
        self.unix = unix


Given = Callable[[Here], Awaitable[None]]


def on_asyncio(given: Given, directory: Path) -> None:
    _really(given, directory, None)


def on_uvloop(given: Given, directory: Path) -> None:
    _really(given, directory, uvloop.new_event_loop)


def on_asyncio_with_tls(given: Given, directory: Path) -> None:
    _really(given, directory, None, TlsIdentity(Authority(directory / "ca").node()))


def on_uvloop_with_tls(given: Given, directory: Path) -> None:
    _really(given, directory, uvloop.new_event_loop, TlsIdentity(Authority(directory / "ca").node()))


def _really(
    given: Given,
    directory: Path,
    factory: Callable[[], asyncio.AbstractEventLoop] | None,
    tls: TlsIdentity | None = None,
) -> None:
    with contextlib.closing(RealHost(tls=tls)) as host, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(given(Here(host.network, "127.0.0.1:0", "127.0.0.1:1", f"unix:{directory}/s")))  # type: ignore[arg-type]


def simulated(given: Given, directory: Path) -> None:
    async def main(host: Host) -> None:
        await given(Here(host.network, "a:0", "a:1", f"unix:{directory}/s"))

    run_alone(World(1), main)


on_every_network = runs_tests_on(on_asyncio, on_uvloop, simulated, on_asyncio_with_tls, on_uvloop_with_tls)
on_networks_with_half_closing = runs_tests_on(on_asyncio, on_uvloop, simulated)
"""TLS closes both ways at once."""


class Peer(asyncio.Protocol):
    """Writes down what happens to it."""

    def __init__(self, *, stays: bool = False) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.happened: list[str] = []
        self._stays = stays

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.happened.append("made")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self.received += data

    def eof_received(self) -> bool:
        self.happened.append("eof")
        return self._stays

    def pause_writing(self) -> None:
        self.happened.append("pause")

    def resume_writing(self) -> None:
        self.happened.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.happened.append("lost")

    async def happens(self, what: str) -> None:
        await wait_until(lambda: what in self.happened)


class Accepting:
    """A factory that keeps the protocols it made."""

    def __init__(self, *, stays: bool = False) -> None:
        self.peers: list[Peer] = []
        self._stays = stays

    def __call__(self) -> Peer:
        peer = Peer(stays=self._stays)
        self.peers.append(peer)
        return peer

    async def first(self) -> Peer:
        await wait_until(lambda: self.peers)
        await self.peers[0].happens("made")
        return self.peers[0]


async def connected(here: Here, *, stays: bool = False) -> tuple[Peer, Peer]:
    """Connect two peers. Their connection has to outlive its listener, which is closed."""
    accepting = Accepting(stays=stays)
    listener = await here.network.listen(here.tcp, accepting)
    _, near = await here.network.connect(listener.address, Peer)
    assert isinstance(near, Peer)
    far = await accepting.first()
    await listener.close()
    return near, far


async def closed(peer: Peer, other: Peer) -> None:
    """Close a connection at the side of `peer`, and wait until both sides know."""
    peer.transport.close()
    await peer.happens("lost")
    await other.happens("lost")


@on_every_network
async def test_bytes_arrive_in_order_both_ways(here: Here) -> None:
    near, far = await connected(here)
    for number in range(100):
        near.transport.write(b"%03d" % number)
    near.transport.writelines([b"end", bytearray(b"of"), memoryview(b"it")])
    expected = b"".join(b"%03d" % number for number in range(100)) + b"endofit"
    await wait_until(lambda: len(far.received) == len(expected))
    assert far.received == expected
    far.transport.write(b"answer")
    await wait_until(lambda: near.received == b"answer")
    await closed(near, far)


@on_every_network
async def test_a_buffer_may_be_used_anew_after_writing_it(here: Here) -> None:
    near, far = await connected(here)
    near.transport.write(b"first")
    near.transport.write(b"")
    await wait_until(lambda: far.received == b"first")
    near.transport.abort()
    await near.happens("lost")
    await far.happens("lost")


@on_every_network
async def test_a_close_lets_everything_through_and_ends_both_sides_once(here: Here) -> None:
    near, far = await connected(here)
    near.transport.write(b"x" * 3_000_000)
    near.transport.close()
    assert near.transport.is_closing()
    near.transport.close()
    await far.happens("lost")
    await near.happens("lost")
    assert len(far.received) == 3_000_000
    assert far.happened == ["made", "eof", "lost"]
    assert near.happened.count("lost") == 1


@on_networks_with_half_closing
async def test_a_half_closed_connection_still_carries_the_other_way(here: Here) -> None:
    near, far = await connected(here, stays=True)
    near.transport.write(b"question")
    assert near.transport.can_write_eof()
    near.transport.write_eof()
    await far.happens("eof")
    assert far.received == b"question"
    assert "lost" not in far.happened
    far.transport.write(b"answer")
    await wait_until(lambda: near.received == b"answer")
    await closed(far, near)


@on_every_network
async def test_a_writer_is_paused_until_its_peer_reads(here: Here) -> None:
    near, far = await connected(here)
    far.transport.pause_reading()
    near.transport.set_write_buffer_limits(high=100_000)
    written = 0
    while "pause" not in near.happened:
        assert written < 100_000_000
        near.transport.write(b"y" * 50_000)
        written += 50_000
        await asyncio.sleep(0)
    assert near.transport.get_write_buffer_size() > 100_000
    assert "resume" not in near.happened
    far.transport.resume_reading()
    await near.happens("resume")
    await wait_until(lambda: len(far.received) == written)
    assert near.transport.get_write_buffer_size() == 0
    await closed(near, far)


@on_every_network
async def test_a_paused_reader_gets_nothing_until_it_resumes(here: Here) -> None:
    near, far = await connected(here)
    far.transport.pause_reading()
    assert not far.transport.is_reading()
    near.transport.write(b"held back")
    far.transport.write(b"ping")
    await wait_until(lambda: near.received == b"ping")
    assert far.received == b""
    far.transport.resume_reading()
    await wait_until(lambda: far.received == b"held back")
    await closed(far, near)


@on_every_network
async def test_nothing_is_received_after_closing(here: Here) -> None:
    near, far = await connected(here)
    far.transport.close()
    near.transport.write(b"too late")
    await near.happens("lost")
    await far.happens("lost")
    assert far.received == b""


@on_every_network
async def test_a_connect_that_nobody_answers_is_lost(here: Here) -> None:
    for address in (here.refused, here.unix):
        with pytest.raises(ConnectionLost):
            await here.network.connect(address, Peer)


@on_every_network
async def test_a_closed_listener_accepts_no_more_and_frees_its_address(here: Here) -> None:
    for wanted in (here.tcp, here.unix):
        listener = await here.network.listen(wanted, Peer)
        address = listener.address
        with pytest.raises(AddressInUse):
            await here.network.listen(address, Peer)
        for _ in range(20):
            # asyncio forgets, unclosed, who looked if it is just being accepted at the close
            await asyncio.sleep(0)
        await listener.close()
        with pytest.raises(ConnectionLost):
            await here.network.connect(address, Peer)
        await (await here.network.listen(address, Peer)).close()


@on_every_network
async def test_unix_sockets_carry_too(here: Here) -> None:
    accepting = Accepting()
    listener = await here.network.listen(here.unix, accepting)
    assert listener.address == here.unix
    _, near = await here.network.connect(here.unix, Peer)
    assert isinstance(near, Peer)
    near.transport.write(b"hello")
    far = await accepting.first()
    await wait_until(lambda: far.received == b"hello")
    await closed(near, far)
    await listener.close()


@pytest.mark.parametrize("address", ["", "nothing", "a:b", "a:70000", ":1", "unix:", "::1:5", "a:-1"])
@on_every_network
async def test_an_invalid_address_is_refused(here: Here, *, address: str) -> None:
    with pytest.raises(BadOption):
        await here.network.listen(address, Peer)
    with pytest.raises(BadOption):
        await here.network.connect(address, Peer)


@on_every_network
async def test_an_address_of_another_machine_cannot_be_listened_on(here: Here) -> None:
    with pytest.raises(BadOption):
        await here.network.listen("192.0.2.1:4000", Peer)
