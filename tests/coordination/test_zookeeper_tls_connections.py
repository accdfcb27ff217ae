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

from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.coordination.zookeepersession import TlsHandler
from polonaise.host import tls
from polonaise.host.certificates import CLIENT
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
        backend = ZooKeeperBackend(f"{HOST}:{port}", "/bank", tls=ours.issue("app", CLIENT))
        hint = asyncio.run(backend._hint())
    assert "this process's certificate was refused: its CA is not among those" in hint
    assert "?tls=no" not in hint
