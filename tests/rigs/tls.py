"""Certificates for tests: a CA in a directory, the files of its holders, and peers who break the rules."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, cast

from polonaise.admin import certificates
from polonaise.admin.certificates import CertificateHolder
from polonaise.host import tls
from polonaise.host.tls import CLIENT, SERVER, STORAGE, TlsFiles, TlsIdentity

EXPIRED_DAYS = 1e-9
HERE = ("localhost", "127.0.0.1", "::1")


class Authority:
    """A CA, and the certificates that it has issued."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def issue(
        self, name: str, *roles: str, hosts: tuple[str, ...] = HERE, days: float = 30, renew: bool = False
    ) -> TlsFiles:
        certificates.make(self.directory, [CertificateHolder(name, roles, hosts)], days=days, renew=renew)
        return certificates.files_of_holder(self.directory, name)

    def node(self, name: str = "node", **how: Any) -> TlsFiles:
        return self.issue(name, SERVER, STORAGE, **how)

    def client(self, name: str = "client", **how: Any) -> TlsFiles:
        return self.issue(name, CLIENT, hosts=(), **how)


class Careless:
    """A peer's identity, which nobody has checked: its files may be of any kind."""

    def __init__(self, files: TlsFiles, *, shows_certificate: bool = True) -> None:
        self._files = files
        self._shows_certificate = shows_certificate

    def accepting(self) -> ssl.SSLContext:
        return tls._loaded(self._files, ssl.PROTOCOL_TLS_SERVER)

    def dialling(self) -> ssl.SSLContext:
        if self._shows_certificate:
            return tls._loaded(self._files, ssl.PROTOCOL_TLS_CLIENT)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self._files.ca)
        return context


def careless(files: TlsFiles, **how: Any) -> TlsIdentity:
    return cast(TlsIdentity, Careless(files, **how))


def replace(path: str, by: str) -> None:
    """Put another file in the place of this one, as who renews certificates does."""
    new = Path(f"{path}.new")
    new.write_bytes(Path(by).read_bytes())
    new.rename(path)
