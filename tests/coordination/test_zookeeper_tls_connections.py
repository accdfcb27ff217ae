"""The connections that kazoo gets when there is TLS, and why ZooKeeper does not answer; without a ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.admin.asking import answered
from polonaise.coordination import Coordinator
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.coordination.zookeepersession import TlsHandler
from polonaise.errors import CoordinatorUnavailable
from polonaise.host import tls
from polonaise.host.certificates import CLIENT
from polonaise.host.real import RealClock
from polonaise.host.tls import TlsFiles
from rigs.tls import Authority, replace

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


def test_a_zookeeper_that_refuses_this_certificate_is_said_to(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    node = ours.node()
    distrusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    distrusting.load_cert_chain(node.certificate, node.key)
    distrusting.load_verify_locations(theirs.node().ca)
    distrusting.verify_mode = ssl.CERT_REQUIRED
    with answering(distrusting) as port:
        told = asyncio.run(refusal(f"{HOST}:{port}", ours.issue("app", CLIENT)))
    assert "this process's certificate was refused: its CA is not among those" in told


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
