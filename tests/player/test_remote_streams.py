"""What every transport to targets at an address promises: names, lost connections, TLS, junk, and the server's life."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from polonaise.errors import AddressInUse, BadOption, CertificateUnusable, Closed, InvariantViolated
from polonaise.host.tls import CLIENT, PLAYER, SERVER, STORAGE, TARGET, TlsFiles
from polonaise.player import TargetServer, remote, serve
from polonaise.player.deliverytarget import AppliedBatch, Judge
from polonaise.player.protocol.entries import DeliveryBatch, Fence
from rigs.deliverystreams import (
    REMOTE,
    SOURCE,
    Breaker,
    MemoryTarget,
    Remote,
    batch,
    batches_after,
    check_applied,
    connections_to,
    no_more_tasks_than,
    opened,
    opening,
    script,
)
from rigs.tls import Authority
from rigs.waiting import wait_until


@pytest.fixture(params=REMOTE.values(), ids=REMOTE.keys())
def transport(request: pytest.FixtureRequest) -> Remote:
    made: Remote = request.param
    return made


@pytest.fixture
async def target() -> MemoryTarget:
    return MemoryTarget()


@pytest.fixture
async def server(transport: Remote, target: MemoryTarget) -> AsyncIterator[TargetServer]:
    async with transport.serving(target) as made:
        yield made


# ---------------------------------------------------------------------- names


async def test_several_targets_are_found_by_their_names(transport: Remote) -> None:
    targets = {"shard-0": MemoryTarget(), "shard-1": MemoryTarget()}
    async with transport.serving(targets) as server, transport.endpoint(server.address) as endpoint:
        for number in (1, 0):
            source = SOURCE._replace(target=f"shard-{number}")
            async with opened(endpoint, source=source) as stream:
                stream.send(batch(-1, b"%d" % number))
                await stream.heard.until("acknowledged", 0, 0)
                told = server.health()["streams"]
                assert [(each["target"], each["player"], each["accepted"]) for each in told] == [
                    (f"shard-{number}", "payments", True)
                ]
        assert [target.of(0) for target in targets.values()] == [[(0, b"0")], [(0, b"1")]]


async def test_a_name_that_is_not_served_is_refused_with_those_that_are(transport: Remote) -> None:
    async with (
        transport.serving({"a": MemoryTarget(), "b": MemoryTarget()}) as server,
        transport.endpoint(server.address) as endpoint,
        opening(endpoint) as stream,
    ):
        await stream.heard.until("disconnected")
        assert "no target 'shard-0' is served here: there are a, b" in stream.heard.reason


async def test_what_a_target_refuses_is_in_the_health_of_its_server_until_it_is_applied(
    transport: Remote, server: TargetServer, target: MemoryTarget
) -> None:
    target.refuses.add(b"bad")
    async with transport.endpoint(server.address) as endpoint, opened(endpoint) as stream:
        stream.send(batch(-1, b"good", b"bad"))
        await stream.heard.until("refused", 0, 0, "b'bad' is refused")
        (told,) = server.health()["streams"]
        assert told["refused"] == {"0": "the entry after id 0: b'bad' is refused"}
        assert not server.health()["well"]
        target.refuses.clear()
        stream.send(batch(0, b"bad"))
        await stream.heard.until("acknowledged", 0, 1)
        assert server.health()["well"]


# ---------------------------------------------------------------------- connections


async def test_nobody_at_the_address_is_told_as_the_reason(transport: Remote, server: TargetServer) -> None:
    await server.close()
    async with transport.endpoint(server.address) as endpoint, opening(endpoint) as stream:
        await stream.heard.until("disconnected")
        assert stream.heard.reason
        await stream.task


async def test_a_server_that_says_nothing_is_given_up_and_leaves_no_socket(transport: Remote) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        await _given_up(transport, transport.address.replace(":0", f":{silent.getsockname()[1]}"))


async def _given_up(transport: Remote, address: str) -> None:
    async with transport.endpoint(address) as endpoint:
        before = asyncio.all_tasks()
        async with opening(endpoint, open_s_max=0.2) as stream:
            await stream.heard.until("disconnected")
            assert "did not answer within 0.2 s" in stream.heard.reason
        async with opening(endpoint, open_s_max=1.0) as stream:  # gRPC keeps a connection that is being made as long
            await asyncio.sleep(0)
            stream.task.cancel()
        await no_more_tasks_than(before)
    await wait_until(lambda: not connections_to(address), "every socket is closed")


@pytest.mark.parametrize("seed", range(4))
async def test_connections_that_break_in_mid_batch_lose_and_double_nothing(
    transport: Remote, target: MemoryTarget, server: TargetServer, seed: int
) -> None:
    random = Random(seed)
    entries = script(random, entries=80)
    async with (
        Breaker.before(server.address, random, 150_000) as (breaker, address),
        transport.endpoint(address) as endpoint,
    ):
        for term in range(1, 400):
            breaker.calm = breaker.broken >= 30
            async with opening(endpoint, Fence(1, term)) as stream:
                heard = stream.heard
                await wait_until(lambda heard=heard: heard.told, "an answer")
                if heard.told[0][0] == "connected":
                    stream.send(*batches_after(entries, heard.applied, random))
                    await wait_until(
                        lambda heard=heard: (
                            heard.count("disconnected")
                            or all(heard.applied.get(each) == entries[each][-1].id for each in entries)
                        ),
                        "all is applied, or the connection breaks",
                    )
                    if not heard.count("disconnected"):
                        break
        assert breaker.broken >= 5
        await wait_until(lambda: not server.health()["streams"], "the server has noticed each end")
    check_applied(target, entries)


@pytest.mark.parametrize("seed", range(3))
async def test_junk_on_the_port_harms_nobody_else(
    transport: Remote, target: MemoryTarget, server: TargetServer, seed: int
) -> None:
    random = Random(seed)
    host, _, port = server.address.rpartition("://")[2].rpartition(":")
    async with transport.endpoint(server.address) as endpoint, opened(endpoint) as stream:
        for size in (0, 1, 3, 24, 1_000, 100_000):
            for junk in (random.randbytes(size), bytes(size), b"GET / HTTP/1.1\r\n\r\n"[:size], b"\xff" * size):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(junk)
                if random.random() < 0.5:
                    writer.transport.abort()
                else:
                    writer.close()
        for id in range(5):
            stream.send(batch(id - 1, b"x"))
            await stream.heard.until("acknowledged", 0, id)
    assert len(target.of(0)) == 5
    await wait_until(lambda: not server.health()["streams"], "no stream is left")
    assert server.health()["well"]


# ---------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def target_files(authority: Authority) -> TlsFiles:
    return authority.issue("target", TARGET)


async def test_both_sides_show_certificates_of_their_roles(
    transport: Remote, target: MemoryTarget, authority: Authority, target_files: TlsFiles
) -> None:
    players = authority.issue("player", CLIENT, PLAYER, hosts=(), renew=True)
    async with (
        transport.serving(target, target_files) as server,
        transport.endpoint(server.address, players) as endpoint,
        opened(endpoint) as stream,
    ):
        large = os.urandom(3_000_000)
        stream.send(batch(-1, b"a", large))
        await stream.heard.until("acknowledged", 0, 1)
        assert server.health()["well"]
    assert target.of(0) == [(0, b"a"), (1, large)]


@pytest.mark.parametrize(
    "who", ["a player without TLS", "a player of another CA", "a server without TLS", "a server of another CA",
            "a server of another host"],
)  # fmt: skip
async def test_who_does_not_show_the_right_certificate_is_told_so(
    transport: Remote,
    target: MemoryTarget,
    authority: Authority,
    target_files: TlsFiles,
    tmp_path: Path,
    who: str,
) -> None:
    others = Authority(tmp_path / "other")
    players: TlsFiles | None = authority.issue("player", CLIENT, PLAYER, hosts=(), renew=True)
    servers: TlsFiles | None = target_files
    if who == "a player without TLS":
        players = None
    elif who == "a player of another CA":
        players = others.issue("stranger", PLAYER, hosts=())
    elif who == "a server without TLS":
        servers = None
    elif who == "a server of another CA":
        servers = others.issue("stranger", TARGET)
    else:
        servers = authority.issue("elsewhere", TARGET, hosts=("elsewhere.example",), renew=True)
    async with (
        transport.serving(target, servers) as server,
        transport.endpoint(server.address, players) as endpoint,
        opening(endpoint, open_s_max=10.0) as stream,
    ):
        await stream.heard.until("disconnected")
        assert stream.heard.count("connected") == 0
        assert stream.heard.reason
        await stream.task
    assert target.kept == Fence(0, 0)


async def test_a_certificate_that_is_not_for_the_role_is_found_at_once(
    transport: Remote, authority: Authority, target_files: TlsFiles
) -> None:
    clients = authority.issue("client", CLIENT, hosts=(), renew=True)
    with pytest.raises(CertificateUnusable, match="needs one for player"):
        remote("link://localhost:1", tls=clients)
    with pytest.raises(CertificateUnusable, match="needs one for target"):
        serve(MemoryTarget(), transport.address, tls=authority.issue("node", SERVER, STORAGE, renew=True))
    for wrong in ("ca.pem", {}):
        with pytest.raises(BadOption, match=r"polonaise\.TlsFiles"):
            remote("link://localhost:1", tls=wrong)  # type: ignore[arg-type]
        with pytest.raises(BadOption, match=r"polonaise\.TlsFiles"):
            serve(MemoryTarget(), transport.address, tls=wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- the server's life


async def test_a_server_that_closes_answers_what_is_being_applied(
    transport: Remote, target: MemoryTarget, server: TargetServer
) -> None:
    before = asyncio.all_tasks()
    async with transport.endpoint(server.address) as endpoint, opened(endpoint) as stream:
        target.waits[0] = asyncio.Event()
        stream.send(batch(-1, b"a"), batch(0, b"b"))
        await wait_until(lambda: target.at_work, "the first is being applied")
        closing = asyncio.ensure_future(server.close())
        for _ in range(10):  # what waits behind it is given up by then
            await asyncio.sleep(0)
        target.waits[0].set()
        await closing
        await stream.heard.until("acknowledged", 0, 0)
        await stream.heard.until("disconnected")
        assert "closes" in stream.heard.reason
    assert target.of(0) == [(0, b"a")]
    await no_more_tasks_than(before)
    with pytest.raises(Closed, match="was closed"):
        await server.ended()
    assert not server.health()["well"]


async def test_a_server_that_closes_does_not_wait_for_ever(
    transport: Remote, target: MemoryTarget, server: TargetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.player.serving.CLOSE_S_MAX", 0.1)
    target.waits[0] = asyncio.Event()
    async with transport.endpoint(server.address) as endpoint, opened(endpoint) as stream:
        stream.send(batch(-1, b"a"))
        await wait_until(lambda: target.at_work, "it is being applied")
        await asyncio.wait_for(server.close(), 20)
        assert not target.at_work
        await stream.heard.until("disconnected")
    assert target.applied == []


async def test_a_server_is_awaited_or_entered_once(transport: Remote, server: TargetServer) -> None:
    with pytest.raises(Closed, match="make a new one"):
        await server.start()
    with pytest.raises(AddressInUse):
        await serve(MemoryTarget(), server.address)
    made = await serve(MemoryTarget(), transport.address)
    waiting = asyncio.ensure_future(made.ended())
    await made.close()
    await made.close()
    with pytest.raises(Closed, match="was closed"):
        await waiting
    never = serve(MemoryTarget(), transport.address)
    with pytest.raises(Closed, match="was not started"):
        await never.ended()
    assert not never.health()["well"]
    await never.close()
    with pytest.raises(Closed, match="make a new one"):
        await never


async def test_a_mistake_of_our_own_stops_the_server_and_is_told(transport: Remote) -> None:
    class Mistaken(MemoryTarget):
        async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
            raise InvariantViolated("a planted one")

    async with transport.serving(Mistaken()) as server, transport.endpoint(server.address) as endpoint:
        ended = asyncio.ensure_future(server.ended())
        async with opened(endpoint) as stream:
            stream.send(batch(-1, b"a"))
            await stream.heard.until("disconnected")
        with pytest.raises(InvariantViolated, match="a planted one"):
            await ended
        assert "a planted one" in server.health()["ended"]


@pytest.mark.parametrize(
    "address", ["", "link", "link:", "link://", "link://host", "link://host:x", "ftp://host:1", "host:1", 5, None]
)
def test_what_is_no_address_of_a_target_is_said(address: Any) -> None:
    for make in (remote, lambda each: serve(MemoryTarget(), each)):
        with pytest.raises(BadOption, match=r"no address|not an address|not the address"):
            make(address)


@pytest.mark.parametrize("targets", [None, {}, MemoryTarget, {"a": "b"}, "target"])
def test_what_is_no_target_is_said(transport: Remote, targets: Any) -> None:
    with pytest.raises(BadOption, match=r"no DeliveryTarget|no targets"):
        serve(targets, transport.address)
