"""The simulated network: order, cuts, resets, half-open connections, and who hears of what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise.errors import ConnectionLost
from polonaise.host import Host
from polonaise_proving.stages.simulated import Configuration, NetworkConfiguration, World
from rigs.scenarios import runs_tests, runs_tests_in

FAITHFUL = NetworkConfiguration(partition_reset_chance=0.0)
"""A partition ends no connection."""


class Peer(asyncio.Protocol):
    """Writes down what happens to it, and when."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.chunks = 0
        self.received_at = 0.0
        self.lost: Exception | bool | None = False
        """False, or what `connection_lost` was told."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.chunks += 1
        self.received_at = self.world.now

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = error


class Pair:
    """Two machines, `a` connected to `b`."""

    def __init__(self, seed: int = 1, network: NetworkConfiguration = FAITHFUL) -> None:
        self.world = World(seed, Configuration(network=network))
        self.accepted: list[Peer] = []
        self.near: Peer

    def accept(self) -> Peer:
        peer = Peer(self.world)
        self.accepted.append(peer)
        return peer

    @property
    def far(self) -> Peer:
        return self.accepted[0]

    async def listen(self, host: Host) -> None:
        await host.network.listen("b:1", self.accept)
        await asyncio.Event().wait()

    async def dial(self, host: Host) -> None:
        _, protocol = await host.network.connect("b:1", lambda: Peer(self.world))
        assert isinstance(protocol, Peer)
        self.near = protocol
        await asyncio.Event().wait()

    async def connect(self) -> None:
        self.b = self.world.machine("b").start(self.listen)
        await asyncio.sleep(0.1)
        self.a = self.world.machine("a").start(self.dial)
        await asyncio.sleep(0.1)

    def act(self, callback: Callable[..., object], *args: object) -> None:
        """Let the process on `a` do something."""
        self.world.loop.enter(self.a, callback, *args)


with_a_pair = runs_tests_in(Pair)


@runs_tests
def with_a_connection(test: Callable[[Pair], Awaitable[None]], **how: Any) -> None:
    """Run a test of a pair that is connected."""
    pair = Pair(**how)

    async def scenario() -> None:
        await pair.connect()
        await test(pair)

    pair.world.run(scenario())


@with_a_connection(network=NetworkConfiguration(split_chance=0.3))
async def test_bytes_come_split_and_merged_but_in_order(pair: Pair) -> None:
    for number in range(1000):
        pair.act(pair.near.transport.write, b"%04d" % number)
        if number % 10 == 0:
            await asyncio.sleep(0.0003)
    await asyncio.sleep(1)
    assert pair.far.received == b"".join(b"%04d" % number for number in range(1000))
    assert 100 < pair.far.chunks != 1000


@with_a_connection
async def test_a_two_way_partition_holds_bytes_back_until_it_heals(pair: Pair) -> None:
    pair.world.network.partition("a", "b")
    pair.act(pair.near.transport.write, b"held")
    pair.world.loop.enter(pair.b, pair.far.transport.write, b"back")
    await asyncio.sleep(60)
    assert pair.far.received == pair.near.received == b""
    assert pair.near.lost is False
    pair.world.network.heal("a", "b")
    await asyncio.sleep(1)
    assert pair.far.received == b"held"
    assert pair.near.received == b"back"
    assert pair.world.faults.injected() == {"partition_two_way": 1}


@with_a_connection
async def test_a_one_way_partition_holds_back_one_way(pair: Pair) -> None:
    pair.world.network.partition("a", ["b"], both=False)
    pair.act(pair.near.transport.write, b"there")
    pair.world.loop.enter(pair.b, pair.far.transport.write, b"back")
    await asyncio.sleep(10)
    assert pair.far.received == b""
    assert pair.near.received == b"back"
    pair.world.network.heal()
    await asyncio.sleep(1)
    assert pair.far.received == b"there"
    assert pair.world.faults.injected() == {"partition_one_way": 1}


@with_a_connection
async def test_a_partition_that_holds_nothing_back_is_not_counted(pair: Pair) -> None:
    pair.world.network.partition("a", "b")
    await asyncio.sleep(10)
    pair.world.network.heal()
    assert pair.world.faults.injected() == {}


@with_a_connection
async def test_a_black_hole_lets_small_chunks_pass_and_holds_back_large_ones_and_all_behind_them(pair: Pair) -> None:
    hole = pair.world.network.black_hole("a", "b", 10)
    pair.act(pair.near.transport.write, b"small")
    await asyncio.sleep(1)
    assert pair.world.faults.injected() == {}
    pair.act(pair.near.transport.write, b"too large for it")
    await asyncio.sleep(1)
    pair.act(pair.near.transport.write, b"behind")
    pair.world.loop.enter(pair.b, pair.far.transport.write, b"the other way all passes")
    await asyncio.sleep(10)
    assert pair.far.received == b"small"
    assert pair.near.received == b"the other way all passes"
    pair.world.network.fill(hole)
    await asyncio.sleep(1)
    assert pair.far.received == b"smalltoo large for itbehind"
    assert pair.world.faults.injected() == {"black_hole": 1}


@with_a_connection
async def test_a_black_hole_ends_when_all_heals_and_the_end_of_an_earlier_one_does_not_end_it(pair: Pair) -> None:
    earlier = pair.world.network.black_hole("a", "b", 1)
    pair.world.network.black_hole("a", "b", 3)
    pair.world.network.fill(earlier)
    pair.act(pair.near.transport.write, b"held")
    await asyncio.sleep(10)
    pair.world.network.heal("a", "b")
    await asyncio.sleep(1)
    assert pair.far.received == b""
    pair.world.network.heal()
    await asyncio.sleep(1)
    assert pair.far.received == b"held"


def test_some_connections_do_not_outlive_a_partition() -> None:
    ends = []
    for seed in range(30):
        pair = Pair(seed, NetworkConfiguration(partition_reset_chance=0.5))

        async def scenario(pair: Pair = pair) -> None:
            await pair.connect()
            pair.world.network.partition("a", "b")
            pair.act(pair.near.transport.write, b"held")
            await asyncio.sleep(60)
            during = pair.near.lost is not False
            pair.world.network.heal()
            await asyncio.sleep(60)
            ends.append((during, pair.near.lost is not False, bytes(pair.far.received)))

        pair.world.run(scenario())
    assert (False, False, b"held") in ends
    assert any(during for during, _, _ in ends)
    assert any(after and not during for during, after, _ in ends)


@with_a_pair
async def test_a_connect_through_a_partition_hangs_until_it_heals_or_is_given_up(pair: Pair) -> None:
    pair.world.machine("b").start(pair.listen)
    await asyncio.sleep(0.1)
    pair.world.network.partition("a", "b")
    pair.world.machine("a").start(pair.dial)
    await asyncio.sleep(10)
    assert not pair.accepted
    pair.world.network.heal()
    await asyncio.sleep(20)
    assert pair.near.lost is False
    pair.world.network.partition("a", "b")
    started = pair.world.now
    with pytest.raises(ConnectionLost, match="no answer"):
        await pair.world.machine("a").processes[0].host.network.connect("b:1", asyncio.Protocol)
    assert pair.world.now - started > 20


@with_a_pair
async def test_a_connect_that_is_given_up_leaves_nothing_behind(pair: Pair) -> None:
    async def dial(host: Host) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.0004):
                await host.network.connect("b:1", asyncio.Protocol)
        await asyncio.sleep(10)

    pair.world.machine("b").start(pair.listen)
    await asyncio.sleep(0.1)
    await pair.world.machine("a").start(dial).ended()
    assert not pair.world.network.connections.standing
    assert all(peer.lost is not False for peer in pair.accepted)


def test_what_a_process_sent_arrives_after_its_death_and_then_the_end() -> None:
    ends: set[object] = set()
    for seed in range(20):
        pair = Pair(seed)

        async def scenario(pair: Pair = pair) -> None:
            await pair.connect()
            pair.act(pair.near.transport.write, b"last words")
            pair.a.crash()
            assert pair.far.received == b""
            await asyncio.sleep(1)
            assert pair.far.received == b"last words"
            ends.add(type(pair.far.lost))

        pair.world.run(scenario())
    assert ends == {type(None), ConnectionResetError}


@with_a_connection
async def test_a_machine_without_power_is_silent_and_refuses_when_it_is_back(pair: Pair) -> None:
    pair.world.machine("b").power_loss()
    pair.act(pair.near.transport.write, b"into the void")
    await asyncio.sleep(600)
    assert pair.near.lost is False  # half-open: nobody said a word
    pair.world.machine("b").start(pair.listen)
    await asyncio.sleep(2)
    assert isinstance(pair.near.lost, ConnectionResetError)
    assert pair.world.faults.injected() == {"power_loss": 1}


@with_a_pair
async def test_a_dead_process_s_port_refuses_and_its_successor_accepts(pair: Pair) -> None:
    outcomes: list[str] = []

    async def dial(host: Host) -> None:
        for _ in range(2):
            try:
                await host.network.connect("b:1", lambda: Peer(pair.world))
                outcomes.append("connected")
            except ConnectionLost:
                outcomes.append("refused")
            await asyncio.sleep(10)

    machine = pair.world.machine("b")
    first = machine.start(pair.listen)
    await asyncio.sleep(1)
    first.crash()
    process = pair.world.machine("a").start(dial)
    await asyncio.sleep(5)
    machine.start(pair.listen)
    await process.ended()
    assert outcomes == ["refused", "connected"]


@with_a_connection
async def test_a_reset_is_heard_on_both_sides(pair: Pair) -> None:
    pair.act(pair.near.transport.write, b"lost, perhaps")
    assert pair.world.network.reset("a", "b") == 1
    await asyncio.sleep(1)
    assert isinstance(pair.near.lost, ConnectionResetError)
    assert isinstance(pair.far.lost, ConnectionResetError)
    assert pair.world.network.reset("a", "b") == 0
    assert pair.world.faults.injected() == {"reset": 1}
    assert not pair.world.network.connections.standing


@with_a_connection
async def test_a_lost_transport_refuses_to_write(pair: Pair) -> None:
    pair.world.network.reset("a", "b")
    await asyncio.sleep(1)
    assert pair.near.transport.is_closing()
    with pytest.raises(RuntimeError):
        pair.near.transport.write(b"x")


@with_a_connection
async def test_a_flipped_byte_is_one_wrong_bit(pair: Pair) -> None:
    pair.world.network.flip_byte("a", "b")
    pair.act(pair.near.transport.write, bytes(1000))
    await asyncio.sleep(1)
    pair.act(pair.near.transport.write, bytes(1000))
    await asyncio.sleep(1)
    assert len(pair.far.received) == 2000
    assert sum(byte.bit_count() for byte in pair.far.received) == 1
    assert pair.world.faults.injected() == {"byte_flip": 1}


@with_a_connection
async def test_a_delayed_link_is_slow(pair: Pair) -> None:
    pair.world.network.delay("a", "b", 5.0)
    sent = pair.world.now
    pair.act(pair.near.transport.write, b"slow")
    await asyncio.sleep(10)
    assert pair.far.received_at - sent > 5
    pair.world.network.delay("a", "b", 0.0)
    sent = pair.world.now
    pair.act(pair.near.transport.write, b"quick")
    await asyncio.sleep(10)
    assert pair.far.received_at - sent < 0.1
    assert pair.world.faults["delay"] > 0


@with_a_connection(network=NetworkConfiguration(window_bytes=10_000, partition_reset_chance=0.0, split_chance=0.0))
async def test_unread_bytes_pause_the_writer_and_a_partition_keeps_it_paused(pair: Pair) -> None:
    pair.world.loop.enter(pair.b, pair.far.transport.pause_reading)
    pair.act(pair.near.transport.write, b"x" * 25_000)
    await asyncio.sleep(1)
    assert pair.near.transport.get_write_buffer_size() == 15_000
    pair.world.network.partition("b", "a", both=False)  # only the way of the acknowledgements
    pair.world.loop.enter(pair.b, pair.far.transport.resume_reading)
    await asyncio.sleep(1)
    assert len(pair.far.received) == 10_000
    assert pair.near.transport.get_write_buffer_size() == 15_000
    pair.world.network.heal()
    await asyncio.sleep(1)
    assert len(pair.far.received) == 25_000


@with_a_connection(network=NetworkConfiguration(window_bytes=10_000, partition_reset_chance=0.0, split_chance=0.0))
async def test_room_that_a_partition_holds_back_comes_though_another_one_heals_before(pair: Pair) -> None:
    pair.act(pair.near.transport.write, b"x" * 10_000)
    pair.world.network.partition("b", "a", both=False)
    await asyncio.sleep(1)
    assert len(pair.far.received) == 10_000
    pair.act(pair.near.transport.write, b"y" * 5_000)
    pair.world.network.partition("a", "c")
    pair.world.network.heal("a", "c")
    pair.world.network.heal()
    await asyncio.sleep(1)
    assert len(pair.far.received) == 15_000


@with_a_connection(network=NetworkConfiguration(reset_chance=0.02, flip_chance=0.05, delay_chance=0.1))
async def test_faults_strike_by_chance_when_configured(pair: Pair) -> None:
    for _ in range(300):
        if not pair.near.transport.is_closing():
            pair.act(pair.near.transport.write, b"x" * 100)
        await asyncio.sleep(0.001)
    await asyncio.sleep(1)
    assert set(pair.world.faults.injected()) == {"delay", "reset", "byte_flip"}
