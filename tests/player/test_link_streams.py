"""Streams over the project's own link: its bounds, its heartbeats, peers that break its rules, and its simulation."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from polonaise.client.applicationhost import ApplicationHost
from polonaise.host import Host
from polonaise.host.tls import CLIENT, PLAYER, TARGET, TlsIdentity
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import hello
from polonaise.link.settings import LinkSettings
from polonaise.player import remote, serve
from polonaise.player.deliverytarget import AppliedBatch, Judge
from polonaise.player.linkendpoint import LinkEndpoint
from polonaise.player.linkserver import LinkServer
from polonaise.player.protocol.entries import DeliveryBatch, Fence
from polonaise.player.protocol.reception import Verdict
from polonaise.player.targetsession import ServedTargets
from polonaise.wire.codec import Message
from polonaise.wire.deliveries import (
    DeliverEntries,
    DeliveryAccepted,
    DeliveryEnded,
    EntriesApplied,
    EntryRefused,
    OpenDelivery,
)
from polonaise.wire.messages import ROLE_CLIENT, ROLE_OPERATOR, ROLE_PLAYER, ROLE_SERVER, ROLE_TARGET, Flush, Hello
from polonaise_proving.stages.simulated import Configuration, NetworkConfiguration, World
from rigs.deliverystreams import (
    SOURCE,
    Heard,
    MemoryTarget,
    batch,
    batches_after,
    check_applied,
    opened,
    opening,
    script,
)
from rigs.hostile import Peer
from rigs.proxy import proxied
from rigs.tls import Authority, careless
from rigs.waiting import nothing_happens_for, wait_until

QUICK = LinkSettings(heartbeat_s=0.05, silence_s_max=0.3)


@contextlib.asynccontextmanager
async def hosted(identity: TlsIdentity | None = None) -> AsyncIterator[ApplicationHost]:
    host = ApplicationHost(identity)
    failed: list[BaseException] = []
    host.on_fail = failed.append
    try:
        yield host
    finally:
        host.close()
    assert failed == []


@contextlib.asynccontextmanager
async def serving(
    host: Host, target: MemoryTarget, settings: LinkSettings | None = None, **bounds: int
) -> AsyncIterator[tuple[LinkServer, str]]:
    server = LinkServer(host, ServedTargets(target, **bounds), settings)
    address = await server.start("127.0.0.1:0")
    try:
        yield server, address
    finally:
        await server.close(1.0)


# ---------------------------------------------------------------------- bounds


async def test_a_player_that_sends_more_than_is_held_is_not_read_and_nothing_is_dropped() -> None:
    target = MemoryTarget()
    target.waits[0] = asyncio.Event()
    payload = bytes(100_000)
    async with (
        hosted() as host,
        serving(host, target, held_bytes_max=500_000) as (server, address),
        opened(LinkEndpoint(host, address)) as stream,
    ):
        for id in range(300):
            stream.send(batch(id - 1, payload))
        (served,) = server.streams
        await wait_until(lambda: served.health()["waiting_bytes"] > 500_000, "it is full")
        await nothing_happens_for(0.1)
        assert served.health()["waiting_bytes"] < 700_000
        assert stream.heard.count("written") < 300, "more may not be sent for now"
        # The link stays up however long that takes.
        target.waits[0].set()
        await stream.heard.until("acknowledged", 0, 299)
        assert stream.heard.count("written") == 300
    assert [id for id, _ in target.of(0)] == list(range(300))


async def test_what_is_applied_together_is_acknowledged_together_and_before_a_refusal_behind_it() -> None:
    target = MemoryTarget()
    target.refuses.add(b"3")
    async with (
        hosted() as host,
        serving(host, target) as (_, address),
        opened(LinkEndpoint(host, address)) as stream,
    ):
        stream.send(*(batch(id - 1, b"%d" % id) for id in range(5)))
        await wait_until(lambda: stream.heard.count("refused"))
        told = [each[:3] for each in stream.heard.told if each[0] in ("acknowledged", "refused")]
        assert told == [("acknowledged", 0, 2), ("refused", 0, 2)]


async def test_a_batch_above_the_limit_of_a_message_is_said_and_not_sent() -> None:
    target = MemoryTarget()
    async with hosted() as host, serving(host, target) as (_, address):
        endpoint = LinkEndpoint(host, address, LinkSettings(frame_bytes_max=100_000))
        async with opened(endpoint) as stream:
            stream.send(batch(-1, bytes(90_000)), batch(0, bytes(50_000), bytes(50_000)))
            await stream.heard.until("disconnected")
            assert "entries 1 to 2 of partition 0 take 100" in stream.heard.reason
            assert "carries 100000 at most: have the route function return less" in stream.heard.reason
            await stream.task
    assert len(target.applied) <= 1


async def test_a_batch_above_the_limit_of_the_server_is_refused_with_its_size() -> None:
    async with (
        hosted() as host,
        serving(host, MemoryTarget(), LinkSettings(frame_bytes_max=100_000)) as (_, address),
        opened(LinkEndpoint(host, address)) as stream,
    ):
        stream.send(batch(-1, bytes(200_000)))
        await stream.heard.until("disconnected")
        assert "takes 100000 at most" in stream.heard.reason


@pytest.mark.slow
async def test_either_side_notices_a_connection_that_is_dead_and_open() -> None:
    target = MemoryTarget()
    async with (
        hosted() as host,
        serving(host, target, QUICK) as (server, address),
        proxied(address) as proxy,
        opened(LinkEndpoint(host, proxy.address, QUICK)) as stream,
    ):
        await nothing_happens_for(0.6)
        assert stream.heard.count("disconnected") == 0, "an idle one that lives stays"
        proxy.cut()
        stream.send(batch(-1, b"a"))
        await stream.heard.until("disconnected")
        assert "silent for 0.3 s" in stream.heard.reason
        await wait_until(lambda: not server.streams, "the server has noticed it, too")
    assert target.applied == []


@pytest.mark.slow
async def test_a_target_that_is_busy_for_long_is_not_taken_for_dead() -> None:
    target = MemoryTarget()
    target.waits[0] = asyncio.Event()
    async with (
        hosted() as host,
        serving(host, target, QUICK, held_bytes_max=1) as (_, address),
        opened(LinkEndpoint(host, address, QUICK)) as stream,
    ):
        stream.send(batch(-1, b"a"), batch(0, b"b"))
        await nothing_happens_for(1.0)
        target.waits[0].set()
        await stream.heard.until("acknowledged", 0, 1)


async def test_a_socket_in_a_directory_is_an_address_too(tmp_path: Path) -> None:
    target = MemoryTarget()
    async with serve(target, f"link://unix:{tmp_path}/socket") as server:
        assert server.address == f"link://unix:{tmp_path}/socket"
        endpoint = remote(server.address)
        async with opened(endpoint) as stream:
            stream.send(batch(-1, b"a"))
            await stream.heard.until("acknowledged", 0, 0)
        await endpoint.close()
    assert target.of(0) == [(0, b"a")]


# ---------------------------------------------------------------------- peers that break the rules


@contextlib.asynccontextmanager
async def dialled(address: str, said: Hello | None = None) -> AsyncIterator[Peer]:
    """A raw connection to a server of targets, that has said hello as a player."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        peer = Peer(reader, writer)
        peer.say(said or hello(ROLE_PLAYER, "a stranger"))
        yield peer
    finally:
        writer.transport.abort()


ENTRIES = DeliverEntries(-1, crc32(b"a"), struct.pack("<qi", 0, 1), [b"a"])
OPEN = OpenDelivery(1, 1, b"k" * 16, "payments", "shard-0")


@pytest.mark.parametrize("role", [ROLE_CLIENT, ROLE_SERVER, ROLE_OPERATOR, ROLE_TARGET, 99])
async def test_only_players_are_served(role: int) -> None:
    async with (
        hosted() as host,
        serving(host, MemoryTarget()) as (_, address),
        dialled(address, hello(role, "x")) as peer,
    ):
        assert await peer.ended() == ["wrong_role"]


async def test_a_server_of_the_log_is_no_target_and_says_so() -> None:
    async with hosted() as host:

        def accept() -> Connection:
            return Connection(
                host, hello=hello(ROLE_SERVER, "s"), peer_roles=(ROLE_CLIENT,), on_message=lambda *_: None,
                accepted=True,
            )  # fmt: skip

        listener = await host.network.listen("127.0.0.1:0", accept)
        async with opening(LinkEndpoint(host, listener.address)) as stream:
            await stream.heard.until("disconnected")
            assert "the peer is a player, not a client: check the address" in stream.heard.reason
        await listener.close()


@pytest.mark.parametrize(
    ("said", "partition"),
    [
        ([ENTRIES], 0),
        ([OPEN, OPEN], -1),
        ([OPEN, ENTRIES], 0),
        ([Flush()], 0),
        ([EntriesApplied(5)], 0),
        ([OpenDelivery(-1, 1, b"k" * 16, "p", "t")], -1),
        ([OpenDelivery(1, 1, b"k" * 16, "", "t")], -1),
        ([OpenDelivery(1, 1, b"k" * 16, "p", "t" * 201)], -1),
    ],
    ids=[
        "a batch first", "opened twice", "a batch before it is accepted", "of a client", "of a target", "no fence",
        "no name", "a long name",
    ],
)  # fmt: skip
async def test_a_player_that_says_what_is_out_of_turn_is_refused(said: list[Message], partition: int) -> None:
    target = MemoryTarget()
    target.accepts.clear()
    async with hosted() as host, serving(host, target) as (server, address):
        async with dialled(address) as peer:
            assert isinstance(await peer.hear(), Hello)
            for message in said:
                peer.say(message, partition=partition)
            assert await peer.ended() == ["protocol_error"]
        await wait_until(lambda: not server.streams, "it is gone")
    assert target.calls == 0


@pytest.mark.parametrize(
    ("message", "partition"),
    [(ENTRIES, -1), (DeliverEntries(-1, 5, b"x" * 12, []), 0), (DeliverEntries(-1, 0, b""), 0)],
    ids=["no partition", "a wrong checksum", "no entries"],
)
async def test_a_batch_that_no_player_sends_is_refused_and_not_applied(message: Message, partition: int) -> None:
    target = MemoryTarget()
    async with hosted() as host, serving(host, target) as (_, address), dialled(address) as peer:
        assert isinstance(await peer.hear(), Hello)
        peer.say(OPEN)
        assert isinstance(await peer.hear(), DeliveryAccepted)
        peer.say(message, partition=partition)
        assert await peer.ended() == ["protocol_error"]
    assert target.calls == 0


@pytest.mark.slow
async def test_a_player_that_opens_no_stream_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polonaise.player.linkserver._OPEN_S_MAX", 0.1)
    async with hosted() as host, serving(host, MemoryTarget()) as (server, address):
        async with dialled(address) as peer:
            assert isinstance(await peer.hear(), Hello)
            async with opened(LinkEndpoint(host, address)) as stream:
                assert await peer.ended() == ["deadline_exceeded"]
                await nothing_happens_for(0.2)
                assert stream.heard.count("disconnected") == 0, "one that is opened stays"
        await wait_until(lambda: not server.streams, "it is gone")


@pytest.mark.parametrize(
    ("said", "partition"),
    [
        (EntriesApplied(0), 0),
        (EntryRefused(0, "no"), 0),
        (DeliveryAccepted(b"123"), -1),
        (OPEN, -1),
    ],
    ids=["an early acknowledgement", "an early refusal", "rows cut short", "of a player"],
)
async def test_a_target_that_says_what_is_out_of_turn_is_disconnected(said: Message, partition: int) -> None:
    def answer(connection: Connection, *_: Any) -> None:
        connection.send(said, partition=partition)

    await _meets(answer, "may be no|out of turn|cut short|player sent|broke|ended")


async def test_the_reason_of_a_target_is_made_fit_for_a_log() -> None:
    def answer(connection: Connection, *_: Any) -> None:
        connection.send(DeliveryEnded("no\nway\x1b[31m" + "x" * 5_000))

    stream = await _meets(answer, r"no\\nway\\x1b\[31mxxx")
    assert len(stream.reason) < 1_000


async def _meets(answer: Any, why: str) -> Heard:
    """Open a stream to a target that answers so; return what was told, once it is disconnected for this reason."""
    async with hosted() as host:

        def accept() -> Connection:
            return Connection(
                host, hello=hello(ROLE_TARGET, "t"), peer_roles=(ROLE_PLAYER,), on_message=answer, accepted=True
            )

        listener = await host.network.listen("127.0.0.1:0", accept)
        async with opening(LinkEndpoint(host, listener.address)) as stream:
            await wait_until(lambda: stream.heard.told, "it is disconnected")
            assert stream.heard.told == [("disconnected",)]
            with pytest.raises(AssertionError, match=why):
                raise AssertionError(stream.heard.reason)
        await listener.close()
        return stream.heard


@pytest.mark.parametrize("side", ["a client as a player", "a node as a target"])
async def test_a_certificate_of_another_role_is_refused_by_the_other_side(
    side: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    players = authority.issue("player", CLIENT, *([PLAYER] if side == "a node as a target" else []), hosts=())
    targets = authority.issue("target", TARGET) if side == "a client as a player" else authority.node("target")
    target = MemoryTarget()
    async with (
        hosted(careless(targets)) as there,
        hosted(careless(players)) as here,
        serving(there, target) as (_, address),
        opening(LinkEndpoint(here, address)) as stream,
    ):
        await stream.heard.until("disconnected")
        assert "certificate_refused" in stream.heard.reason
        assert ("not for a player" if side == "a client as a player" else "not for a target") in stream.heard.reason
    assert target.kept == Fence(0, 0)


# ---------------------------------------------------------------------- simulation


class Patient(MemoryTarget):
    """Takes its time before it applies, so that streams end amid that."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.faithful = True

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        if self.faithful:
            return await self._patiently(batch, judge)
        # A planted mistake: it goes on although it was cancelled, and compares neither fence nor ids.
        return await asyncio.shield(self._patiently(batch, lambda *_: Verdict.APPLY))

    async def _patiently(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        await asyncio.sleep(self.random.random() * 0.01)
        applied = self._apply(batch, judge)
        await asyncio.sleep(self.random.random() * 0.01)
        return applied


def simulated(seed: int, *, faithful: bool = True) -> tuple[World, Patient, dict[int, Any]]:
    """A player and a target that die, are paused and cut off, until all is applied."""
    network = NetworkConfiguration(delay_chance=0.02, reset_chance=0.01, flip_chance=0.002)
    world = World(seed, Configuration(network=network))
    random = world.random("scenario")
    # The memory is durable at once: what was applied is, whoever dies then.
    target = Patient(world.random("target"))
    target.faithful = faithful
    entries = script(random, entries=60)
    epochs = iter(range(1, 1_000))

    async def be_target(host: Host) -> None:
        await LinkServer(host, ServedTargets(target)).start("target:1")
        await asyncio.Event().wait()

    async def be_player(host: Host) -> None:
        endpoint, epoch = LinkEndpoint(host, "target:1"), next(epochs)
        for term in range(1, 10_000):
            heard = Heard()
            stream = endpoint.stream(Fence(epoch, term), heard)
            task = asyncio.ensure_future(stream.serve(SOURCE, 1.0))
            while not task.done() and not heard.told:
                await asyncio.sleep(0.001)
            if heard.told and heard.told[0][0] == "connected":
                for each in batches_after(entries, heard.applied, random):
                    stream.send([each])
                    await asyncio.sleep(random.random() * 0.005)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.random() * 3):
                    await asyncio.wait((task,))
            stream.close()
            await asyncio.wait((task,))
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        machines = {"target": be_target, "player": be_player}
        processes = {name: world.machine(name).start(main) for name, main in machines.items()}
        for _ in range(40):
            await asyncio.sleep(random.random() * 0.3)
            name = random.choice(list(machines))
            match random.randrange(5):
                case 0:
                    processes[name].crash()
                case 1:
                    processes[name].pause(random.random() * 8)
                case 2:
                    world.network.partition("target", "player", both=random.random() < 0.5)
                case _:
                    world.network.heal()
            for each, main in machines.items():
                if not processes[each].alive:
                    processes[each] = world.machine(each).start(main)
            assert all(target.of(each) == [tuple(e) for e in entries[each]][: len(target.of(each))] for each in entries)
        world.network.heal()
        for process in processes.values():
            process.resume()
        while any(target.ids.get(each) != entries[each][-1].id for each in entries):
            await asyncio.sleep(0.1)

    world.run(scenario())
    return world, target, entries


@pytest.mark.parametrize("seed", range(12))
def test_whatever_dies_in_the_simulator_each_entry_is_applied_once_and_in_order(seed: int) -> None:
    _, target, entries = simulated(seed)
    check_applied(target, entries)
    assert target.kept > Fence(1, 1)


def test_the_simulation_finds_a_target_that_does_not_compare_ids() -> None:
    assert any(not _holds(seed) for seed in range(12))


def _holds(seed: int) -> bool:
    try:
        _, target, entries = simulated(seed, faithful=False)
        check_applied(target, entries)
    except AssertionError:
        return False
    return True


def test_a_simulated_schedule_is_a_function_of_its_seed() -> None:
    first, again, other = simulated(1)[0], simulated(1)[0], simulated(2)[0]
    assert first.trace.fingerprint == again.trace.fingerprint
    assert first.trace.fingerprint != other.trace.fingerprint
