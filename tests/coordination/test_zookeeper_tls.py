"""The coordinator in a ZooKeeper that takes TLS, its connections, and what is said when the sides don't agree."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.admin.asking import answered
from polonaise.admin.zookeeper import ZooKeeperEnsemble
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.coordination.zookeeperensemble import ensemble_troubles
from polonaise.coordination.zookeepersession import TlsHandler
from polonaise.errors import BadOption, CoordinatorUnavailable
from polonaise.host import tls
from polonaise.host.real import RealClock, RealHost
from polonaise.host.tls import CLIENT, TlsFiles, TlsIdentity
from polonaise.node.addresses import coordinator_at
from rigs.tls import Authority, replace
from rigs.zookeeper import SESSION_S, ensemble, new_root

DESCRIPTION = ClusterDescription(bytes(range(16)), 3, ("a:1", "b:1", "c:1"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def encrypted(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), tick_ms=500, tls=ours.node("zookeeper")) as made:
        made.start(60.0)
        yield made


async def round_trip(hosts: str, tls: TlsFiles | None) -> None:
    """Make a cluster in a new place, and read it."""
    coordinator = Coordinator(ZooKeeperBackend(hosts, new_root(), session_s=SESSION_S, tls=tls), RealClock())
    try:
        await coordinator.initialize(DESCRIPTION)
        assert await coordinator.describe() == DESCRIPTION
    finally:
        await coordinator.close()


async def refused(hosts: str, tls: TlsFiles | None, naming: str) -> None:
    with pytest.raises(CoordinatorUnavailable) as caught:
        await round_trip(hosts, tls)
    assert naming in str(caught.value)


@pytest.mark.slow
async def test_a_coordinator_in_a_zookeeper_with_tls(encrypted: ZooKeeperEnsemble, ours: Authority) -> None:
    await round_trip(encrypted.hosts, ours.node())


@pytest.mark.slow
async def test_an_ensemble_has_tls_among_its_servers_too(ours: Authority, tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path, servers=3, tick_ms=500, tls=ours.node("three")) as three:
        three.start(60.0)
        assert sum(server.is_leader() for server in three.servers) == 1
        await round_trip(three.hosts, ours.node("user"))


@pytest.mark.slow
async def test_a_zookeeper_with_tls_is_not_reached_without(encrypted: ZooKeeperEnsemble) -> None:
    await refused(encrypted.hosts, None, "one with TLS answers only to TLS")


@pytest.mark.slow
async def test_each_server_with_tls_is_told_to_have_it_if_it_is_asked_without(encrypted: ZooKeeperEnsemble) -> None:
    for told in (await ensemble_troubles(encrypted.hosts, None, 3.0)).values():
        assert "has TLS only" in told


@pytest.mark.slow
async def test_a_zookeeper_without_tls_is_not_reached_with_it(ours: Authority) -> None:
    await refused(ensemble().hosts, ours.node("hopeful"), "?tls=no is for one without TLS")


@pytest.mark.slow
async def test_a_zookeeper_on_another_host_is_not_believed(ours: Authority, tmp_path: Path) -> None:
    elsewhere = ours.node("elsewhere", hosts=("localhost",))
    with ZooKeeperEnsemble(tmp_path, listen="localhost:0", tick_ms=500, tls=elsewhere) as named:
        named.start(60.0)
        port = named.servers[0].address.port
        await refused(f"127.0.0.1:{port}", ours.node("visitor"), "is not for this host")


@pytest.mark.slow
async def test_the_ca_is_replaced_as_documented_and_zookeeper_answers_at_each_step(tmp_path: Path) -> None:
    before, after = Authority(tmp_path / "before"), Authority(tmp_path / "after")
    nodes, users = [ca.node("zookeeper") for ca in (before, after)], [ca.node("user") for ca in (before, after)]
    old_ca, new_ca = Path(nodes[0].ca).read_bytes(), Path(nodes[1].ca).read_bytes()
    both = tmp_path / "both.pem"
    both.write_bytes(old_ca + new_ca)
    node, user = own_copy(nodes[0], tmp_path / "its"), own_copy(users[0], tmp_path / "ours-own")
    with ZooKeeperEnsemble(tmp_path / "zookeeper", tick_ms=500, tls=node) as made:
        made.start(60.0)
        await round_trip(made.hosts, user)
        for files in (node, user):
            replace(files.ca, str(both))
        await round_trip(made.hosts, user)
        for files, new in ((node, nodes[1]), (user, users[1])):
            replace(files.certificate, new.certificate)
            replace(files.key, new.key)
        assert made.tend() == ["the TLS files were replaced: the servers of ZooKeeper use them for new connections"]
        await round_trip(made.hosts, user)
        for files in (node, user):
            replace(files.ca, nodes[1].ca)
        await round_trip(made.hosts, user)
        await refused(made.hosts, users[0], "is not of a CA that this process trusts")


def own_copy(files: TlsFiles, directory: Path) -> TlsFiles:
    """Return copies of these files, which a test replaces."""
    directory.mkdir()
    return TlsFiles(
        *(shutil.copy(path, directory / Path(path).name) for path in (files.ca, files.certificate, files.key))
    )


async def test_the_address_says_when_zookeeper_has_no_tls(ours: Authority) -> None:
    host, identity = RealHost(), TlsIdentity(ours.issue("app", CLIENT, hosts=()))
    try:
        for address, expected in (("zookeeper://a:1/b", identity.files), ("zookeeper://a:1/b?tls=no", None)):
            backend = coordinator_at(host, address, identity)._backend
            assert isinstance(backend, ZooKeeperBackend)
            assert backend._tls == expected
            assert str(backend) == "zookeeper://a:1/b"
        with pytest.raises(BadOption, match="its only option is"):
            coordinator_at(host, "zookeeper://a:1/b?tls=maybe", identity)
    finally:
        host.close()


HOST = "127.0.0.1"


@contextlib.contextmanager
def answering(context: ssl.SSLContext) -> Iterator[int]:
    """Answer handshakes, and keep what comes of them until the end; gives the port."""
    kept = contextlib.ExitStack()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted = listening.accept()[0]
                kept.enter_context(accepted)
                with contextlib.suppress(OSError):
                    kept.enter_context(context.wrap_socket(accepted, server_side=True))

    with kept, socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def server(files: TlsFiles) -> ssl.SSLContext:
    return tls._loaded(files, ssl.PROTOCOL_TLS_SERVER)


def test_only_the_given_cas_are_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    node = theirs.node()
    monkeypatch.setenv("SSL_CERT_FILE", node.ca)
    handler = TlsHandler(ours.client())
    with answering(server(node)) as port, pytest.raises(ssl.SSLCertVerificationError):
        handler.create_connection((HOST, port), hostname=HOST, timeout=20.0, verify_certs=True)


def test_a_connection_is_made_while_the_certificate_is_being_replaced(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    files, other = ours.client(), ours.client("other")
    handler = TlsHandler(files)
    with answering(server(ours.node())) as port:
        with handler.create_connection((HOST, port), hostname=HOST, timeout=20.0):
            pass
        replace(files.certificate, other.certificate)  # its key comes in a moment
        with handler.create_connection((HOST, port), hostname=HOST, timeout=20.0) as made:
            assert made.version() == "TLSv1.3"


def test_files_that_can_not_be_used_are_a_reason_to_try_again(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ours").client()
    key = Path(files.key).read_bytes()
    Path(files.key).write_text("no key")
    handler = TlsHandler(files)
    with answering(server(Authority(tmp_path / "ours").node())) as port:
        with pytest.raises(ConnectionError, match="holds no private key"):
            handler.create_connection((HOST, port), hostname=HOST, timeout=20.0)
        Path(files.key).write_bytes(key)
        handler.create_connection((HOST, port), hostname=HOST, timeout=20.0).close()


@pytest.mark.slow
def test_a_zookeeper_that_refuses_this_certificate_is_said_to(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    node = ours.node()
    distrusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    distrusting.load_cert_chain(node.certificate, node.key)
    distrusting.load_verify_locations(theirs.node().ca)
    distrusting.verify_mode = ssl.CERT_REQUIRED
    with answering(distrusting) as port:
        told = asyncio.run(refusal(f"{HOST}:{port}", ours.issue("app", CLIENT), 2.0))
    assert "this process's certificate was refused: its CA is not among those" in told


@pytest.mark.slow
@pytest.mark.parametrize("within_s", [0.7, 2.0])
def test_the_reason_why_tls_fails_is_told_also_by_a_call_that_is_given_less_time_than_a_request(
    tmp_path: Path, within_s: float
) -> None:
    """Commands give the coordinator three seconds, and a request to ZooKeeper may take six."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with answering(server(theirs.node())) as port:
        told = asyncio.run(refusal(f"{HOST}:{port}", ours.issue("app", CLIENT), within_s))
    assert f"the certificate of {HOST}:{port} is not of a CA that this process trusts" in told


async def refusal(hosts: str, files: TlsFiles, within_s: float = 20.0) -> str:
    """Return the text of the error with which a call fails that is given this time."""
    coordinator = Coordinator(ZooKeeperBackend(hosts, "/bank", session_s=6.0, tls=files), RealClock())
    try:
        with pytest.raises(CoordinatorUnavailable) as caught:
            await answered(coordinator, coordinator.describe(), within_s)
    finally:
        await coordinator.close()
    return str(caught.value)
