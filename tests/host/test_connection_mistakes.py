"""What a loop tells of one connection: the library's own trouble costs that connection, a mistake of ours the node."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from polonaise.errors import ConnectionLost
from polonaise.host import Network
from polonaise.host.address import HostPort
from polonaise.host.real import stop_at_mistakes
from polonaise.host.sockets import dial
from polonaise.host.tls import TlsIdentity
from polonaise.host.tlssockets import TlsNetwork
from rigs.scenarios import runs_tests_on_loops
from rigs.tls import Authority
from rigs.waiting import nothing_happens_for, time_passes, wait_until
from rigs.watchedhost import Watched

WAIT_S = 20.0


class Scene:
    """A host whose failures are noted, and the TLS identity that its connections may have."""

    def __init__(self, directory: Path) -> None:
        self.host = Watched()
        self.files = Authority(directory / "ours").issue("both", "client", "server", "storage")
        self.identity = TlsIdentity(self.files)
        self.told: list[dict[str, Any]] = []
        """What the loop has told its exception handler."""

    def network(self, *, tls: bool) -> Network:
        return TlsNetwork(self.identity) if tls else self.host.network

    def watch(self) -> None:
        loop = asyncio.get_running_loop()
        stop_at_mistakes(loop, self.host)
        judge = cast(Any, loop.get_exception_handler())

        def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            self.told.append(context)
            judge(loop, context)

        loop.set_exception_handler(tell)


on_both_loops = runs_tests_on_loops(Scene)


class PromptHandshake(ssl.SSLObject):
    """Does its whole handshake in one turn of the loop, as a loop that another process keeps from running may see it.

    Its own last message is still unsent then.
    """

    wire: socket.socket
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        while True:
            try:
                super().do_handshake()
                return
            except ssl.SSLWantReadError:
                self.wire.sendall(self.outgoing.read())
                assert select.select([self.wire], [], [], WAIT_S)[0]
                self.incoming.write(self.wire.recv(65_536))


class PromptContext(ssl.SSLContext):
    sslobject_class = PromptHandshake
    wire: socket.socket

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **named: Any) -> ssl.SSLObject:
        made = cast(PromptHandshake, super().wrap_bio(incoming, outgoing, *given, **named))
        made.wire, made.incoming, made.outgoing = self.wire, incoming, outgoing
        return made


@contextlib.contextmanager
def answering(context: ssl.SSLContext) -> Iterator[tuple[str, int]]:
    """A TLS server in another thread, for one connection, and its address."""

    def answer() -> None:
        connected, _ = listening.accept()
        connected.settimeout(WAIT_S)
        with contextlib.suppress(OSError), context.wrap_socket(connected, server_side=True) as peer:
            while peer.recv(1):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            thread.join(WAIT_S)


@on_both_loops
async def test_a_caller_who_leaves_while_a_handshake_ends_costs_the_node_nothing(scene: Scene) -> None:
    """uvloop then closes the socket and forgets to tell its TLS, which writes to it: a `RuntimeError` for the loop."""
    loop = asyncio.get_running_loop()
    scene.watch()
    context = PromptContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(scene.files.ca)
    context.load_cert_chain(scene.files.certificate, scene.files.key)
    with answering(scene.identity.accepting()) as address:
        wire = socket.create_connection(address)
        context.wire = wire
        dialling = loop.create_task(
            loop.create_connection(asyncio.Protocol, ssl=context, sock=wire, server_hostname="localhost")
        )
        await asyncio.sleep(0)  # it waits for its connection, which the loop makes in its next turn
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        await nothing_happens_for(0.05)
        wire.close()
    if "uvloop" in type(loop).__module__:
        assert [str(context["exception"]).partition(" on ")[0] for context in scene.told] == [
            "unable to perform operation"
        ]
    assert not scene.host.failures
    scene.host.close()


class Mistaken(asyncio.Protocol):
    """Raises in one of its methods."""

    transport: asyncio.Transport

    def __init__(self, where: str) -> None:
        self.where = where

    def happened(self, what: str) -> None:
        if what == self.where:
            raise RuntimeError(f"a mistake of ours in {what}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.happened("connection_made")

    def data_received(self, data: bytes) -> None:
        self.happened("data_received")

    def eof_received(self) -> None:
        self.happened("eof_received")

    def connection_lost(self, error: Exception | None) -> None:
        self.happened("connection_lost")


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("where", ["connection_made", "data_received", "eof_received", "connection_lost"])
@on_both_loops
async def test_a_mistake_of_ours_in_a_connection_still_ends_the_node(scene: Scene, *, tls: bool, where: str) -> None:
    scene.watch()
    network = scene.network(tls=tls)
    made: list[Mistaken] = []

    def mistaken() -> Mistaken:
        made.append(Mistaken(where))
        return made[-1]

    listener = await network.listen("localhost:0", mistaken)
    with contextlib.suppress(OSError):
        transport, _ = await network.connect(listener.address, asyncio.Protocol)
        transport.write(b"x")
        transport.close()
    await wait_until(lambda: bool(scene.host.failures))
    await listener.close()
    made[0].transport.abort()  # it would have ended with the process
    await time_passes(0.01)
    scene.host.close()
    assert {str(failure) for failure in scene.host.failures} == {f"a mistake of ours in {where}"}


@on_both_loops
async def test_trouble_that_the_loops_own_code_raises_ends_the_connection_that_it_belongs_to(
    scene: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    scene.watch()
    listener = await scene.host.network.listen("localhost:0", asyncio.Protocol)
    transport, protocol = await scene.host.network.connect(listener.address, asyncio.Protocol)
    transport.write_eof()
    with pytest.raises(RuntimeError) as raised:
        transport.write(b"x")
    trouble = raised.value
    context = {"message": "Fatal error", "exception": trouble, "transport": transport, "protocol": protocol}
    loop.call_exception_handler(context)
    assert scene.host.failures == [trouble], "this test is in the traceback, so that it may be to blame"
    scene.host.failures.clear()
    context["exception"] = trouble = trouble.with_traceback(cast(Any, trouble.__traceback__).tb_next)
    with caplog.at_level(logging.INFO, "polonaise.host.real"):
        loop.call_exception_handler(context)
    assert transport.is_closing()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert not scene.host.failures
    loop.call_exception_handler({"message": "Exception in callback", "exception": trouble})
    assert scene.host.failures == [trouble]
    await listener.close()
    scene.host.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@on_both_loops
async def test_a_connection_that_meets_itself_finds_nobody(
    scene: Scene, *, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may give a connecting socket the very port that it connects to, if nobody listens there."""
    loop = asyncio.get_running_loop()
    met: list[socket.socket] = []

    class Bound:
        """The loop, but that a socket that connects is given the port that it connects to."""

        def __getattr__(self, name: str) -> Any:
            return getattr(loop, name)

        async def sock_connect(self, connecting: socket.socket, place: tuple[str, int]) -> None:
            connecting.bind(place)
            await loop.sock_connect(connecting, place)
            met.append(connecting)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr("polonaise.host.sockets.asyncio.get_running_loop", Bound)
    with pytest.raises(ConnectionLost, match=f"cannot connect to '127.0.0.1:{port}': .*nobody listens there"):
        await scene.network(tls=tls).connect(f"127.0.0.1:{port}", asyncio.Protocol)
    assert [ended.fileno() for ended in met] == [-1], "it was made, and is closed"


async def test_an_address_of_a_family_that_this_machine_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `localhost` may have one for each family, and the machine may be without IPv6."""
    absent, real = OSError(errno.EAFNOSUPPORT, "no such family"), socket.socket

    def made(family: int = socket.AF_INET, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise absent
        return real(family, *rest)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)),
        ]
        monkeypatch.setattr("polonaise.host.sockets.socket.socket", made)
        monkeypatch.setattr("polonaise.host.sockets.socket.getaddrinfo", lambda *_, **__: found)
        with await dial(HostPort("name", port)) as dialled:
            assert dialled.getpeername() == (host, port)
        found.pop()
        with pytest.raises(OSError, match="no such family") as told:
            await dial(HostPort("name", port))
        assert told.value is absent


async def test_what_keeps_all_addresses_of_a_name_from_being_dialled_is_told_once_and_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(*_: int) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 1)) for host in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr("polonaise.host.sockets.socket.socket", made)
    monkeypatch.setattr("polonaise.host.sockets.socket.getaddrinfo", lambda *_, **__: found)
    with pytest.raises(OSError, match="too many open files") as told:
        await dial(HostPort("name", 1))
    assert told.value.errno == errno.EMFILE
