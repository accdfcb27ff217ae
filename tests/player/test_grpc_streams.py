"""Streams over gRPC: what only they can meet. What holds for every transport is tested for all of them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from polonaise.errors import AddressInUse, BadOption
from polonaise.host.tls import PLAYER, TARGET, TlsFiles, TlsIdentity
from polonaise.player.grpctransport import channels, server
from polonaise.player.grpctransport.endpoint import REASON_CHARACTERS_MAX, GrpcEndpoint
from polonaise.player.grpctransport.messages import (
    METHOD,
    SERVICE,
    UnsentAnswers,
    batches_bytes,
    hello_bytes,
)
from polonaise.player.grpctransport.server import GrpcServer
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.remotetargets import remote
from polonaise.player.targetsession import ServedTargets
from rigs.deliverystreams import SOURCE, Heard, MemoryTarget, connections_to
from rigs.names import SilentNameService
from rigs.programs import run_program
from rigs.proxy import proxied
from rigs.tls import Authority, replace
from rigs.waiting import nothing_happens_for, time_passes, wait_until


class RunStream:
    """A stream whose task runs, with what it has told. A context manager, which closes it and waits for its task."""

    def __init__(self, endpoint: GrpcEndpoint, fence: Fence, open_s_max: float = 20.0) -> None:
        self.events = Heard()
        self.stream = endpoint.stream(fence, self.events)
        self.task = asyncio.get_running_loop().create_task(self.stream.serve(SOURCE, open_s_max))

    def send(self, *batches: DeliveryBatch) -> None:
        self.stream.send(batches)

    async def one(self, name: str) -> tuple[Any, ...]:
        """Wait for an event of this name, and return the last one."""
        await wait_until(lambda: self.events.count(name), f"{name}; told was {self.events.told}, {self.events.reason}")
        return [each for each in self.events.told if each[0] == name][-1]

    async def ended(self) -> str:
        """Wait until the stream has ended by itself, and return why."""
        await self.one("disconnected")
        await self.task
        return self.events.reason

    async def __aenter__(self) -> RunStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stream.close()
        await self.task


def batch(partition: int, previous: int, *ids: int, payload: bytes = b"x") -> DeliveryBatch:
    return DeliveryBatch(partition, previous, [RoutedEntry(id, payload) for id in ids])


class Serving:
    """A server of the target on loopback, under every name. A context manager."""

    def __init__(self, target: MemoryTarget, **how: Any) -> None:
        self.failures: list[BaseException] = []
        self.server = GrpcServer(ServedTargets(target), **how)
        self.server.on_fail = self.failures.append
        self.place = "127.0.0.1:0"

    @property
    def address(self) -> str:
        return f"grpc://{self.place}"

    async def __aenter__(self) -> Serving:
        self.place = await self.server.start(self.place)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close(5.0)


@pytest.fixture
async def target() -> MemoryTarget:
    return MemoryTarget()


@pytest.fixture
async def served(target: MemoryTarget) -> AsyncIterator[Serving]:
    async with Serving(target) as serving:
        yield serving


@pytest.mark.parametrize("how", ["close", "cancel"])
@pytest.mark.parametrize("when", ["at once", "at any await", "accepted", "applying"])
async def test_nothing_is_left_of_streams_that_are_closed_or_cancelled(
    served: Serving, target: MemoryTarget, how: str, when: str
) -> None:
    endpoint = GrpcEndpoint(served.place)
    before = asyncio.all_tasks()
    running = []
    for term in range(1, 21):
        if when == "applying":
            target.waits[0] = asyncio.Event()
        run = RunStream(endpoint, Fence(1, term))
        running.append(run)  # the player keeps the last one, too: that must keep no connection
        if when == "at any await":
            for _ in range(term):
                await asyncio.sleep(0)
        elif when != "at once":
            await run.one("connected")
        if when == "applying":
            run.send(batch(0, target.ids.get(0, -1), term))
            await wait_until(lambda: target.at_work)
        told = len(run.events.told)
        if how == "close":
            run.stream.close()
            await run.task
        else:
            run.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run.task
        assert len(run.events.told) == told
    await wait_until(lambda: len(asyncio.all_tasks()) <= len(before), "tasks are left")
    await wait_until(lambda: not connections_to(served.address), "connections are left")
    await wait_until(lambda: not served.server.streams, "the server still has streams")
    for gate in target.waits.values():
        gate.set()
    assert target.ids == {}, "what is being applied when a stream ends is cancelled"


@pytest.mark.slow
async def test_threads_do_not_grow_with_streams(served: Serving) -> None:
    endpoint = GrpcEndpoint(served.place)
    for term in range(1, 6):
        async with RunStream(endpoint, Fence(1, term)) as run:
            await run.one("connected")
    threads = len(os.listdir("/proc/self/task"))
    for term in range(6, 60):
        async with RunStream(endpoint, Fence(1, term)) as run:
            await run.one("connected")
    assert len(os.listdir("/proc/self/task")) <= threads + 2


@pytest.mark.slow
async def test_a_connection_that_is_dead_is_noticed_by_both_sides(target: MemoryTarget) -> None:
    async with Serving(target, keepalive_s=0.5) as serving, proxied(serving.place) as proxy:
        run = RunStream(GrpcEndpoint(proxy.address, keepalive_s=0.5), Fence(1, 1))
        await run.one("connected")
        await nothing_happens_for(2.0)  # silence alone ends nothing, and pings are permitted
        assert not run.task.done()
        proxy.cut()
        assert "no connection" in await run.ended()
        await wait_until(lambda: not serving.server.streams, "the server still has the stream")


@pytest.mark.slow
async def test_a_server_that_permits_no_pings_is_told_of() -> None:
    async with raw_server(_says(UnsentAnswers.accepted, {})) as place:  # with gRPC's own settings
        reason = await RunStream(GrpcEndpoint(place, keepalive_s=0.5), Fence(1, 1)).ended()
        assert "its server takes no keepalive pings as often as this player sends them" in reason


async def test_a_dead_connection_is_noticed_well_before_a_target_counts_as_stuck() -> None:
    assert PlayerSettings().progress_s_max / 2 >= 2 * channels.KEEPALIVE_S


async def test_large_entries_arrive_and_one_above_the_limit_is_told_with_its_place(
    served: Serving, target: MemoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 6 * 2**20  # above gRPC's own limit
    monkeypatch.setattr("polonaise.player.grpctransport.endpoint.MESSAGE_BYTES_MAX", limit)
    run = RunStream(GrpcEndpoint(served.place), Fence(1, 1))
    await run.one("connected")
    run.send(batch(0, -1, 3, payload=bytes(limit - 100)))
    assert await run.one("acknowledged") == ("acknowledged", 0, 3)
    run.send(batch(0, 3, 9, payload=bytes(limit)))
    reason = await run.ended()
    assert "entry 9 of partition 0 has" in reason
    assert f"at most {limit}" in reason
    assert target.ids == {0: 3}


async def test_a_target_whose_limit_is_lower_than_an_entry_is_told_of(target: MemoryTarget) -> None:
    async with raw_server(_says(UnsentAnswers.accepted, {})) as address:  # with gRPC's own limit, 4 MiB
        run = RunStream(GrpcEndpoint(address), Fence(1, 1))
        await run.one("connected")
        run.send(batch(0, -1, 0, payload=bytes(5 * 2**20)))
        assert "raise the limit of its server (max receive message length)" in await run.ended()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 100, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + b"\xff\xff\xff\0\0\0\0\0\1" * 50,
        b"\x16\x03\x01\x02\x00\x01",
    ],
)  # fmt: skip
async def test_hostile_bytes_on_the_port_end_that_connection_alone(
    served: Serving, target: MemoryTarget, garbage: bytes
) -> None:
    async with RunStream(GrpcEndpoint(served.place), Fence(1, 1)) as run:
        await run.one("connected")
        host, _, port = served.place.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        writer.write_eof()
        async with asyncio.timeout(20):
            while await reader.read(65_536):
                pass
        writer.close()
        run.send(batch(0, -1, 0))
        await run.one("acknowledged")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([b"\xff\xff"], "a message of 2 bytes is not of"),
        ([b""], "a message has neither a hello nor a batch"),
        ([next(batches_bytes([batch(0, -1, 0)]))], "a stream begins with a batch"),
        ([hello_bytes(Fence(0, 1), SOURCE)], "both count from 1"),
        ([hello_bytes(Fence(1, 1), SOURCE)] * 2, "a second hello"),
        ([hello_bytes(Fence(1, 1), SOURCE._replace(player="p" * 201))], "more than 200 characters"),
        ([hello_bytes(Fence(1, 1), SOURCE) + next(batches_bytes([batch(0, -1, 0)]))], "the hello comes alone"),
        ([hello_bytes(Fence(1, 1), SOURCE), next(batches_bytes([batch(-1, -1, 0)]))], "partitions count from 0"),
        ([hello_bytes(Fence(1, 1), SOURCE), next(batches_bytes([batch(0, -2, 0)]))], "ids from -1"),
        ([hello_bytes(Fence(1, 1), SOURCE), next(batches_bytes([batch(0, -1)]))], "no batch is empty"),
        ([hello_bytes(Fence(1, 1), SOURCE), next(batches_bytes([batch(0, 5, 5)]))], "has id 5 after 5: ids rise"),
        ([hello_bytes(Fence(1, 1), SOURCE), next(batches_bytes([batch(0, -1, 3, 2)]))], "has id 2 after 3: ids rise"),
        ([b"\n\2\x08\2" + b""], "both count from 1"),
    ],
)
async def test_a_message_that_no_player_sends_ends_the_stream_with_a_reason(
    served: Serving, target: MemoryTarget, said: list[bytes], why: str
) -> None:
    async with grpc.aio.insecure_channel(served.place) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        for message in said:
            await call.write(message)
        answers = b""
        while (data := await call.read()) is not grpc.aio.EOF:
            answers += data
        assert await call.code() is grpc.StatusCode.OK
        assert why.encode() in answers
    assert target.ids == {}


async def test_a_player_of_another_version_is_told_so(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polonaise.player.grpctransport.messages.VERSION", 2)
    reason = await RunStream(GrpcEndpoint(served.place), Fence(1, 1)).ended()
    assert "the player follows version 2 of the contract, and this target version 1" in reason


async def test_a_player_that_says_no_hello_is_not_waited_for(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HELLO_S_MAX", 0.1)
    async with grpc.aio.insecure_channel(served.place) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        assert b"no hello within 0.1 s" in await call.read()


# ---------------------------------------------------------------------- targets that are none of ours


def _says(*said: Any) -> Callable[[Any, Any], Any]:
    """Return a target that gives these answers, each a method of `UnsentAnswers` with its arguments, and then waits."""

    async def deliver(_: Any, context: Any) -> None:
        answers = UnsentAnswers()
        method, *arguments = said
        method(answers, *arguments)
        await context.read()
        await context.write(answers.take())
        while await context.read() is not grpc.aio.EOF:
            pass

    return deliver


class raw_server:  # noqa: N801 - a context manager
    """A server of a target that is written in the test, with gRPC's own settings."""

    def __init__(self, deliver: Callable[[Any, Any], Any], service: str = SERVICE) -> None:
        handler = grpc.stream_stream_rpc_method_handler(deliver)
        self._server = grpc.aio.server(handlers=[grpc.method_handlers_generic_handler(service, {METHOD: handler})])

    async def __aenter__(self) -> str:
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)


async def _fails(_: Any, context: Any) -> None:
    await context.read()
    raise RuntimeError("password=hidden is what is told")


async def _aborts(_: Any, context: Any) -> None:
    await context.read()
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the shard was moved to postgresql://u:hidden@b/x")


async def _says_nothing(_: Any, context: Any) -> None:
    """End the stream with the status OK."""
    await context.read()


async def _does_not_even_listen(_: Any, context: Any) -> None:
    """End the stream while the player may be writing its hello."""


async def _says_garbage(_: Any, context: Any) -> None:
    await context.write(b"\xff\xff")
    await context.read()


async def _hangs(_: Any, context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize(
    ("deliver", "why"),
    [
        (_fails, "look into the log of the target's server"),
        (_aborts, "FAILED_PRECONDITION the shard was moved to postgresql://u:***@b/x"),
        (_says_nothing, "does not say why"),
        (_does_not_even_listen, ": the "),
        (_says_garbage, "a message of 2 bytes is not of"),
        (_hangs, "did not answer within 0.3 s"),
        (_says(UnsentAnswers.ended, "no shard here"), "no shard here"),
        (_says(UnsentAnswers.ended, ""), "does not say why"),
        (_says(UnsentAnswers.ended, "é" * 1_000_000), "ééé"),
        (_says(UnsentAnswers.acknowledged, 0, 0), "answers batches before it has accepted"),
        (_says(UnsentAnswers.refused, 0, 0, ""), "answers batches before it has accepted"),
        (_says(UnsentAnswers.accepted, {0: -2}), "ids count from 0"),
    ],
)  # fmt: skip
async def test_why_a_target_has_ended_a_stream_is_told_in_short_without_secrets(
    deliver: Callable[[Any, Any], Any], why: str
) -> None:
    async with raw_server(deliver) as address:
        run = RunStream(GrpcEndpoint(address), Fence(1, 1), open_s_max=0.3 if deliver is _hangs else 20.0)
        reason = await run.ended()
        assert why in reason
        assert "hidden" not in reason
        assert len(reason) <= REASON_CHARACTERS_MAX
        assert run.events.told[-1] == ("disconnected",)


async def test_a_server_of_something_else_is_told_of() -> None:
    async with raw_server(_hangs, service="something.Else") as address:
        assert f"no {SERVICE} is served there" in await RunStream(GrpcEndpoint(address), Fence(1, 1)).ended()


async def test_a_server_that_is_not_there_is_told_of_at_once_and_found_when_it_is(target: MemoryTarget) -> None:
    async with Serving(target) as serving:
        pass
    endpoint = GrpcEndpoint(serving.place)
    for term in (1, 2):
        reason = await RunStream(endpoint, Fence(1, term)).ended()
        assert reason.startswith(f"{serving.address}: no connection: start the target there")
    again = Serving(target)
    again.place = serving.place
    async with again, RunStream(endpoint, Fence(1, 3)) as run:  # and gRPC's pauses between attempts do not count
        await run.one("connected")


async def test_a_target_that_keeps_writing_fails_nobody_when_it_ends(target: MemoryTarget) -> None:
    """What the target said last counts, though the player was writing just then."""

    async def deliver(_: Any, context: Any) -> None:
        answers = UnsentAnswers()
        answers.accepted({})
        await context.read()
        await context.write(answers.take())
        await context.read()
        answers.ended("enough")
        await context.write(answers.take())

    async with raw_server(deliver) as address:
        for term in range(1, 11):
            run = RunStream(GrpcEndpoint(address), Fence(1, term))
            await run.one("connected")
            for id in range(50):
                run.send(batch(0, id - 1, id, payload=bytes(100_000)))
            assert await run.ended() == "enough"


# ---------------------------------------------------------------------- the server


async def test_a_server_whose_closing_is_cancelled_is_closed_nevertheless(served: Serving) -> None:
    async with RunStream(GrpcEndpoint(served.place), Fence(1, 1)) as run:
        await run.one("connected")
        closing = asyncio.ensure_future(served.server.close(5.0))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert "no connection" in await RunStream(GrpcEndpoint(served.place), Fence(1, 2)).ended()


@pytest.mark.slow
async def test_a_connection_on_which_nobody_opens_a_stream_is_closed_and_an_idle_stream_is_not(
    target: MemoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_STRANGER_MS", 200)
    async with Serving(target) as serving, RunStream(GrpcEndpoint(serving.place), Fence(1, 1)) as run:
        await run.one("connected")
        host, _, port = serving.place.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(20), grpc.aio.insecure_channel(serving.place) as channel:
            while await reader.read(1000):
                pass
            await channel.channel_ready()
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        writer.close()
        await nothing_happens_for(0.5)
        assert not run.task.done()


async def test_the_loop_does_not_wait_for_a_name_service(target: MemoryTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC looks a name up where it is asked to listen."""
    silent = SilentNameService()
    monkeypatch.setattr(socket, "getaddrinfo", silent.getaddrinfo)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Serving(target).server.start("name:0"), 0.1)
    assert (silent.asked, silent.answered) == (["name"], [])
    silent.answers.set()
    with pytest.raises(BadOption, match="nobody knows it: name a host of this machine"):
        await Serving(target).server.start("name:0")


@pytest.mark.parametrize("place", ["here", "unix:/tmp/x", "[::1", "192.0.2.77:0", "a.host.that.is.none.invalid:0"])
async def test_an_address_at_which_nobody_can_listen_is_refused(target: MemoryTarget, place: str) -> None:
    with pytest.raises((BadOption, AddressInUse), match="host"):
        await Serving(target).server.start(place)


@pytest.mark.slow
async def test_a_player_that_reads_no_answers_is_not_read_from_for_ever(
    target: MemoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusals add up: whoever does not read them must not fill the target's memory."""
    monkeypatch.setattr(server, "_UNSENT_ANSWERS_MAX", 10)
    target.refuses.add(b"x")
    async with Serving(target) as serving, grpc.aio.insecure_channel(serving.place) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        await call.write(hello_bytes(Fence(1, 1), SOURCE))

        async def write() -> None:
            while True:
                await call.write(next(batches_bytes([batch(0, -1, 0)] * 50)))

        writing = asyncio.ensure_future(write())
        (stream,) = await wait_until(lambda: list(serving.server.streams))
        await wait_until(lambda: len(stream._answers) > 10, "answers wait to be read", every_s=0.001)
        for _ in range(50):
            await time_passes(0.005)
            assert len(stream._answers) <= 10 + 2 * 50
        writing.cancel()
        await asyncio.wait((writing,))


@pytest.mark.parametrize(
    "address", ["grpc://", "grpc://host", "grpc://0.0.0.0:7000", "grpc://host:0", "grpc://unix:/tmp/x",
                "grpc://u:hidden@host:7000/x"]
)  # fmt: skip
def test_an_address_where_no_target_can_be_is_refused(address: str) -> None:
    with pytest.raises(BadOption) as raised:
        remote(address)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("missing", ["grpc", "google"])
def test_without_the_extra_its_name_is_told(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from polonaise.player import remote, serve\n"
        "from polonaise.errors import ExtraMissing\n"
        "class Target:\n    accept = apply = close = print\n"
        "for make in (lambda: remote('grpc://host:1'), lambda: serve(Target(), 'grpc://host:1')):\n"
        "    try: make()\n"
        "    except ExtraMissing as error: print(error)"
    )
    told = run_program(sys.executable, "-c", code)
    assert told.stdout.count("pip install 'polonaise[grpc]'") == 2, told


def test_grpc_is_imported_only_when_it_is_used() -> None:
    code = "import sys, polonaise, polonaise.player.player; print({'grpc', 'google.protobuf'} & set(sys.modules))"
    assert run_program(sys.executable, "-c", code).stdout == "set()\n"


# ---------------------------------------------------------------------- TLS


async def test_a_certificate_for_no_player_is_refused_with_what_it_needs(target: MemoryTarget, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = TlsIdentity(authority.client())
    async with Serving(target, tls=TlsIdentity(authority.issue("target", TARGET), TARGET)) as serving:
        run = RunStream(GrpcEndpoint(serving.place, client), Fence(1, 1))
        reason = await run.ended()
        assert "the certificate of 'client' is not for a player" in reason
        assert "urn:polonaise:player" in reason
    assert target.kept == NO_FENCE


async def test_replaced_files_count_for_the_streams_from_then_on_without_a_restart(
    target: MemoryTarget, tmp_path: Path
) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    targets, players = ours.issue("target", TARGET), ours.issue("player", PLAYER, hosts=())
    new = [others.issue("target", TARGET), others.issue("player", PLAYER, hosts=())]
    async with Serving(target, tls=TlsIdentity(targets, TARGET)) as serving:
        endpoint = GrpcEndpoint(serving.place, TlsIdentity(players, PLAYER))
        async with RunStream(endpoint, Fence(1, 1)) as run:
            await run.one("connected")
            # The target first: the player does not trust its new certificate, and what is open stays open.
            for old, by in zip(_paths(targets), _paths(new[0]), strict=True):
                replace(old, by)
            assert "not of a CA that this player trusts" in await RunStream(endpoint, Fence(1, 2)).ended()
            run.send(batch(0, -1, 0))
            await run.one("acknowledged")
        for old, by in zip(_paths(players), _paths(new[1]), strict=True):
            replace(old, by)
        async with RunStream(endpoint, Fence(1, 3)) as run:
            await run.one("connected")
        assert serving.server.trouble() == ""
        # Files that can't be used leave those before in use, and show.
        replace(targets.key, players.key)
        async with RunStream(endpoint, Fence(1, 4)) as run:
            await run.one("connected")
        assert "does not belong to the certificate" in serving.server.trouble()


def _paths(files: TlsFiles) -> tuple[str, str, str]:
    return files.ca, files.certificate, files.key
