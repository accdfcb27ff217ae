"""Real connections with TLS, on asyncio's loop and on uvloop: who is let in, who is not, and what each side is told."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from polonaise.admin import certificates
from polonaise.errors import CertificateRefused, ConnectionLost, PolonaiseError, TlsNotSpoken, TlsRequired
from polonaise.host import sockets, tlssockets
from polonaise.host.real import RealClock, RealHost
from polonaise.host.tls import CLIENT, SERVER, STORAGE, TlsIdentity
from polonaise.link import vouching
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.link.settings import LinkSettings
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, HighWaterMark, HighWaterMarkIs
from rigs.nodewithtls import NodeWithTls
from rigs.scenarios import runs_tests_on_loops
from rigs.tls import EXPIRED_DAYS, Authority, careless, replace
from rigs.waiting import nothing_happens_for, wait_until

DEADLINE_S = 20.0
QUICK_S = 3.0
"""An answer that takes longer came of a deadline that has passed, and of nothing that was said."""


on_both_loops = runs_tests_on_loops(lambda directory: Authority(directory / "ours"))


@contextlib.asynccontextmanager
async def dialled(
    node: NodeWithTls, identity: TlsIdentity | None, *, host: str = "127.0.0.1"
) -> AsyncIterator[Connection]:
    """Connect to the node as what it takes."""
    machine = RealHost(tls=identity)
    try:
        connection = await connect(machine, f"{host}:{node.port}", node.dialling(machine).make, deadline_s=DEADLINE_S)
        try:
            yield connection
        finally:
            connection.close()
            await asyncio.sleep(0)
    finally:
        machine.close()


async def works(node: NodeWithTls, identity: TlsIdentity | None, **how: Any) -> None:
    async with dialled(node, identity, **how) as connection:
        answer = await connection.request(HighWaterMark(), partition=1, deadline_s=DEADLINE_S)
        assert answer == HighWaterMarkIs(1, 100)


async def refused(
    node: NodeWithTls, identity: TlsIdentity | None, kind: type[PolonaiseError], naming: str, **how: Any
) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(kind) as caught:
        async with dialled(node, identity, **how):
            pass
    assert naming in str(caught.value)
    assert loop.time() - began_s < QUICK_S, "told, and not waited for"


@on_both_loops
async def test_two_nodes_of_one_ca_talk(ours: Authority) -> None:
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        identity = TlsIdentity(ours.node("other"))
        for host in ("127.0.0.1", "localhost"):
            await works(node, identity, host=host)


@on_both_loops
async def test_what_is_sent_is_not_to_be_read_on_the_way(ours: Authority) -> None:
    async with NodeWithTls(TlsIdentity(ours.node())) as node, dialled(node, TlsIdentity(ours.node("other"))) as near:
        assert near._transport is not None
        assert near._transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert near._transport.get_extra_info("ssl_object").cipher() is not None


@on_both_loops
async def test_a_certificate_of_another_ca_is_refused_and_both_sides_are_told(
    ours: Authority, *, caplog: pytest.LogCaptureFixture, tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs = Authority(tmp_path_factory.mktemp("theirs"))
    files = theirs.node()
    trusting = type(files)(ours.node("x").ca, files.certificate, files.key)
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        await refused(node, careless(trusting), CertificateRefused, "its CA is not among those")
        await wait_until(lambda: "is not of a CA that this process trusts" in caplog.text)
        assert node.connections == [], "the node never heard of it"
        await refused(node, TlsIdentity(files), CertificateRefused, "is not of a CA that this process trusts")
        await works(node, TlsIdentity(ours.node("other")))


@on_both_loops
async def test_an_expired_certificate_is_refused_and_both_sides_are_told(
    ours: Authority, *, caplog: pytest.LogCaptureFixture
) -> None:
    late = careless(ours.node("late", days=EXPIRED_DAYS))
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        await refused(node, late, CertificateRefused, "certificate was refused: it has expired")
        await wait_until(lambda: "its certificate has expired" in caplog.text)
    async with NodeWithTls(late) as node:
        await refused(node, TlsIdentity(ours.node("other")), CertificateRefused, "has expired: replace its file")


@on_both_loops
async def test_a_certificate_that_is_not_valid_yet_is_refused_and_both_sides_are_told_of_clocks(
    ours: Authority, *, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = TlsIdentity(ours.node())
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_CLOCK", timedelta(hours=-1))
        early = careless(ours.node("early"))
    async with NodeWithTls(good) as node:
        await refused(node, early, CertificateRefused, "compare the clocks of both machines")
        await wait_until(lambda: "is not valid yet: compare the clocks of both machines" in caplog.text)
    async with NodeWithTls(early) as node:
        await refused(node, TlsIdentity(ours.node("other")), CertificateRefused, "is not valid yet")


@on_both_loops
async def test_a_certificate_for_another_host_is_refused(ours: Authority) -> None:
    async with NodeWithTls(TlsIdentity(ours.node("elsewhere", hosts=("elsewhere.example",)))) as node:
        identity = TlsIdentity(ours.node("other"))
        await refused(node, identity, CertificateRefused, "is not for this host (IP address mismatch")
        await refused(node, identity, CertificateRefused, "is not for this host (Hostname mismatch", host="localhost")


@on_both_loops
async def test_a_peer_without_a_certificate_is_refused_and_both_sides_are_told(
    ours: Authority, *, caplog: pytest.LogCaptureFixture
) -> None:
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        bare = careless(ours.client(), shows_certificate=False)
        await refused(node, bare, CertificateRefused, "there is none: this process needs one of its own (--tls-ca")
        await wait_until(lambda: "it shows no certificate" in caplog.text)


@on_both_loops
async def test_a_client_certificate_is_refused_at_a_storage_node_and_its_log_says_so(
    ours: Authority, *, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vouching, "_warned_s", float("-inf"))
    async with NodeWithTls(TlsIdentity(ours.issue("disk", STORAGE))) as node:
        said = "the certificate of 'client' is for client, and not for a server"
        client = TlsIdentity(ours.client())
        await refused(node, client, CertificateRefused, said)
        assert [type(error) for error in node.closed] == [CertificateRefused]
        assert "refused a connection of 127.0.0.1:" in caplog.text
        assert said in caplog.text
        await refused(node, client, CertificateRefused, said)
        assert caplog.text.count(said) == 1, "anybody may connect, as often as he likes"


@on_both_loops
async def test_a_node_of_another_role_is_told_nothing_not_even_the_cluster_key(ours: Authority) -> None:
    received: list[bytes] = []

    class Eavesdropper(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            received.append(data)

        def connection_lost(self, error: Exception | None) -> None:
            received.append(b"lost")

    host = RealHost(tls=TlsIdentity(ours.issue("disk", STORAGE)))
    machine = RealHost(tls=TlsIdentity(ours.client()))
    listener = await host.network.listen("127.0.0.1:0", Eavesdropper)

    def make() -> Connection:
        return Connection(
            machine,
            hello=hello(ROLE_CLIENT, "app", cluster_key=b"known to members"),
            peer_roles=(ROLE_SERVER,),
            on_message=lambda *_: None,
        )

    with pytest.raises(CertificateRefused, match="is for storage, and not for a server"):
        await connect(machine, listener.address, make, deadline_s=DEADLINE_S)
    await wait_until(lambda: received)
    assert received == [b"lost"]
    await listener.close()
    host.close()
    machine.close()


@pytest.mark.parametrize("certificate", [None, {}])
def test_with_tls_a_peer_without_a_certificate_is_not_believed(certificate: dict[str, Any] | None) -> None:
    extra = {"sslcontext": object(), "peercert": certificate}
    transport = asyncio.Transport(extra)
    fault = vouching.certificate_refused(transport, [ROLE_CLIENT], RealClock())
    assert isinstance(fault, CertificateRefused)
    assert "shows no certificate" in str(fault)
    assert vouching.certificate_refused(asyncio.Transport({}), [ROLE_CLIENT], RealClock()) is None


@on_both_loops
async def test_each_role_gets_to_where_it_belongs(ours: Authority) -> None:
    server, storage = ours.issue("server", SERVER), ours.issue("disk", STORAGE)
    async with NodeWithTls(TlsIdentity(storage)) as node:
        await works(node, TlsIdentity(server))
    async with NodeWithTls(TlsIdentity(server), ROLE_SERVER, ROLE_CLIENT) as node:
        await works(node, TlsIdentity(ours.issue("app", CLIENT, hosts=())))


@on_both_loops
async def test_a_plain_peer_is_refused_by_name_and_both_sides_are_told(
    ours: Authority, *, caplog: pytest.LogCaptureFixture
) -> None:
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        await refused(node, None, TlsRequired, "takes TLS only: give this side its certificate with --tls-ca")
        assert "it speaks no TLS" in caplog.text
        await works(node, TlsIdentity(ours.node("other")))


@on_both_loops
async def test_a_peer_with_tls_is_refused_by_a_plain_node_and_both_sides_are_told(
    ours: Authority, *, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vouching, "_warned_s", float("-inf"))
    async with NodeWithTls(None) as node:
        await refused(node, TlsIdentity(ours.node()), TlsNotSpoken, "speaks no TLS, and this process does")
        await wait_until(lambda: "a peer speaks TLS, and this node does not: start this node with" in caplog.text)
        await works(node, None)


@on_both_loops
@pytest.mark.parametrize("said", [b"\x99\x03\x03\x00\x05hello", b"\x16\x03\x03\x00\x04\x09\x00\x00\x00"])
async def test_garbage_in_place_of_a_handshake_is_no_node_without_tls(ours: Authority, *, said: bytes) -> None:
    def answer() -> None:
        accepted = listening.accept()[0]
        with accepted, contextlib.suppress(ConnectionError):
            accepted.recv(1)
            accepted.sendall(said)
            while accepted.recv(4096):
                pass

    machine = RealHost(tls=TlsIdentity(ours.node()))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = asyncio.create_task(asyncio.to_thread(answer))
        with pytest.raises(ConnectionLost, match="did not go on with the TLS handshake as it should"):
            await machine.network.connect(f"127.0.0.1:{listening.getsockname()[1]}", asyncio.Protocol)
        await answering
    machine.close()


@on_both_loops
async def test_a_replaced_certificate_is_shown_to_new_connections_by_both_sides(ours: Authority) -> None:
    node_files, other_files = ours.node(), ours.node("other")

    def serial(connection: Connection) -> str:
        assert connection._transport is not None
        return str(connection._transport.get_extra_info("peercert")["serialNumber"])

    async with NodeWithTls(TlsIdentity(node_files)) as node:
        identity = TlsIdentity(other_files)
        async with dialled(node, identity) as old:
            assert isinstance(await old.request(HighWaterMark(), partition=0, deadline_s=DEADLINE_S), HighWaterMarkIs)
            before = serial(old), serial(node.connections[-1])
            ours.node(renew=True)
            ours.node("other", renew=True)
            async with dialled(node, identity) as new:
                await new.request(HighWaterMark(), partition=0, deadline_s=DEADLINE_S)
                assert {serial(new), serial(node.connections[-1])}.isdisjoint(before)
            # Who is connected stays.
            await old.request(HighWaterMark(), partition=0, deadline_s=DEADLINE_S)


@on_both_loops
async def test_a_ca_that_is_taken_out_lets_its_certificates_in_no_more(
    ours: Authority, *, tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs = Authority(tmp_path_factory.mktemp("theirs"))
    ours_files, theirs_files = ours.node(), theirs.node()
    both = ours.directory / "both.pem"
    both.write_text(Path(ours_files.ca).read_text() + Path(theirs_files.ca).read_text())
    trusted = ours.directory / "trusted.pem"
    trusted.write_bytes(both.read_bytes())
    node_files = type(ours_files)(str(trusted), ours_files.certificate, ours_files.key)
    old = TlsIdentity(ours.node("old"))
    new = TlsIdentity(type(ours_files)(str(both), theirs_files.certificate, theirs_files.key))
    async with NodeWithTls(TlsIdentity(node_files)) as node:
        await works(node, old)
        await works(node, new)
        # The node moves to the other CA: first its certificate, then the CA that it believes.
        replace(node_files.certificate, theirs_files.certificate)
        replace(node_files.key, theirs_files.key)
        replace(str(trusted), theirs_files.ca)
        await works(node, new)
        trusts_both = type(ours_files)(str(both), old.files.certificate, old.files.key)
        await refused(node, TlsIdentity(trusts_both), CertificateRefused, "its CA is not among those")


@pytest.mark.slow
@on_both_loops
async def test_strangers_and_silent_peers_are_cut_off(
    ours: Authority, *, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tlssockets, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(tlssockets, "_WARNING_S", 0.0)
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        node.settings = LinkSettings(hello_s_max=0.2)  # a stranger without TLS is waited for as long

        async def call(first: bytes) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            writer.write(first)
            async with asyncio.timeout(DEADLINE_S):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()  # until the node has closed it
            writer.close()

        strange = b"", b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00" + bytes(512), b"GET / HTTP/1.1\r\n\r\n"
        await asyncio.gather(*map(call, strange))
        await wait_until(lambda: "no handshake in time (0.2 s to begin it, and 0.2 s to finish it)" in caplog.text)
        await works(node, TlsIdentity(ours.node("other")))
        await wait_until(lambda: not getattr(node.listener, "_arriving"))  # noqa: B009 - a private one


@on_both_loops
async def test_a_probe_that_only_connects_is_not_worth_a_warning(
    ours: Authority, *, caplog: pytest.LogCaptureFixture
) -> None:
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        with socket.create_connection(("127.0.0.1", node.port)):
            await wait_until(lambda: getattr(node.listener, "_arriving"))  # noqa: B009 - a private one
        await wait_until(lambda: not getattr(node.listener, "_arriving"))  # noqa: B009 - a private one
        assert caplog.records == []


@on_both_loops
async def test_a_peer_that_gives_up_in_its_handshake_is_not_taken_for_one_that_does_not_trust_this_node(
    ours: Authority, *, caplog: pytest.LogCaptureFixture
) -> None:
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        with socket.create_connection(("127.0.0.1", node.port)) as leaving:
            leaving.sendall(b"\x16\x03\x01\x02\x00")
        await wait_until(lambda: "left during the handshake: it gave up waiting or was ended, or" in caplog.text)


@on_both_loops
async def test_handshakes_under_way_are_bounded_and_the_rest_wait(
    ours: Authority, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlssockets, "UNPROVED_MAX", 3)
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        arriving: Any = getattr(node.listener, "_arriving")  # noqa: B009 - a private one
        with contextlib.ExitStack() as opened:
            for _ in range(10):
                opened.enter_context(socket.create_connection(("127.0.0.1", node.port)))
            await wait_until(lambda: len(arriving) == 3)
            await nothing_happens_for(0.05)
            assert len(arriving) == 3
        await works(node, TlsIdentity(ours.node("other")))
        await wait_until(lambda: not arriving)


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
@on_both_loops
async def test_a_machine_without_one_family_listens_on_the_other(
    ours: Authority, *, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    host = RealHost(tls=TlsIdentity(ours.node()))
    bound = sockets._bound_to

    def without(family: int, kind: int, protocol: int, where: tuple[Any, ...]) -> socket.socket:
        if where[0] == "127.0.0.2":
            raise OSError(number, os.strerror(number))
        return bound(family, kind, protocol, where)

    monkeypatch.setattr(sockets, "_bound_to", without)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses
    ])  # fmt: skip
    addresses = ["127.0.0.2", "127.0.0.1"]
    listener = await host.network.listen("localhost:0", asyncio.Protocol)
    await listener.close()
    addresses.pop()
    with pytest.raises(PolonaiseError):
        await host.network.listen("localhost:0", asyncio.Protocol)
    host.close()


@on_both_loops
async def test_a_closed_listener_ends_the_handshakes_under_way(ours: Authority) -> None:
    host = RealHost(tls=TlsIdentity(ours.node()))
    listener = await host.network.listen("127.0.0.1:0", asyncio.Protocol)
    with socket.create_connection(("127.0.0.1", int(listener.address.rpartition(":")[2]))) as silent:
        silent.settimeout(DEADLINE_S)
        await wait_until(lambda: getattr(listener, "_arriving"))  # noqa: B009 - a private one
        await listener.close()
        assert await asyncio.to_thread(silent.recv, 1) == b""
    host.close()


@on_both_loops
async def test_old_versions_of_tls_are_refused(ours: Authority, *, caplog: pytest.LogCaptureFixture) -> None:
    files = ours.node()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files.ca)
    context.load_cert_chain(files.certificate, files.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with NodeWithTls(TlsIdentity(files)) as node:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection("127.0.0.1", node.port, ssl=context)
        await wait_until(lambda: "it does not speak TLS 1.3" in caplog.text)
        assert node.connections == []


@on_both_loops
async def test_warnings_of_refused_peers_do_not_fill_the_log(
    ours: Authority, *, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlssockets, "_WARNING_S", 3_600.0)
    async with NodeWithTls(TlsIdentity(ours.node())) as node:
        for _ in range(20):
            await refused(node, None, TlsRequired, "takes TLS only")
        assert caplog.text.count("refused a connection") == 1
        monkeypatch.setattr(tlssockets, "_WARNING_S", 0.0)
        await refused(node, None, TlsRequired, "takes TLS only")
        assert caplog.text.count("refused a connection") == 2
        assert "(19 more were refused before)" in caplog.text
