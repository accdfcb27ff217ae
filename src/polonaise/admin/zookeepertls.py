"""The TLS files of ZooKeeper servers that run on this machine, as Java wants them, and as they are replaced."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from polonaise.errors import CertificateUnusable
from polonaise.host.files import with_own_errors
from polonaise.host.replacing import replaced
from polonaise.host.tls import TlsFiles


def tls_lines(tls: TlsFiles, store: Path, *, among_servers: bool) -> list[str]:
    """Return the lines of a configuration that make servers take TLS only, with certificates of this CA."""
    lines = ["serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory", "ssl.clientAuth=need"]
    for part in ("ssl", "ssl.quorum") if among_servers else ("ssl",):
        for kind, path in (("keyStore", store), ("trustStore", Path(tls.ca))):
            lines += [f"{part}.{kind}.location={path}", f"{part}.{kind}.type=PEM"]
    # Each reads its files again when they are replaced (`ZooKeeperEnsemble.tend`).
    lines.append("client.certReload=true")
    return [*lines, "sslQuorum=true", "sslQuorumReloadCertFiles=true"] if among_servers else lines


def check_key(path: str) -> None:
    """Raise `CertificateUnusable` for a key that OpenSSL reads and ZooKeeper's Java does not."""
    if b"-----BEGIN PRIVATE KEY-----" not in with_own_errors(path, Path(path).read_bytes):
        raise CertificateUnusable(
            f"the key {path!r} is not in PKCS#8, and ZooKeeper reads no other: give the one that `openssl pkcs8 -topk8 "
            "-nocrypt` makes of it"
        )


def write_store(path: Path, tls: TlsFiles) -> None:
    """Write key and certificate into one file, for the user of this process only. It is whole at any time."""
    with replaced(path, mode=0o600) as file:
        file.write(Path(tls.key).read_bytes() + b"\n" + Path(tls.certificate).read_bytes())


def changes_of(tls: TlsFiles) -> tuple[object, ...]:
    """Return what tells whether key or certificate were replaced: it is another value then."""
    changes: list[object] = []
    for path in (tls.certificate, tls.key):
        with contextlib.suppress(OSError):
            there = os.stat(path)
            changes.append((there.st_mtime_ns, there.st_ino, there.st_size))
    return tuple(changes)
