"""TLS of gRPC connections: credentials from a process's TLS files, which are read again when they change.

gRPC does its handshakes itself; `TlsIdentity` looks at the files first, so that what is wrong with them is told as
everywhere else.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from polonaise.errors import CertificateRefused, CertificateUnusable
from polonaise.host.tls import PLAYER, ROLE_URI, TlsFiles, TlsIdentity

_URI: Final = "peer_uri"
_NAME: Final = "x509_common_name"


class TlsTexts(NamedTuple):
    """The contents of a process's TLS files."""

    authorities: bytes
    certificate: bytes
    key: bytes


class GrpcIdentity:
    """A process's TLS files as gRPC takes them. While changed files can't be used, those before stay in use."""

    def __init__(self, identity: TlsIdentity) -> None:
        self.identity = identity
        self._texts = _read(identity.files)
        self._lock = threading.Lock()  # gRPC asks in threads of its own

    def texts(self) -> TlsTexts:
        """Return what is in the files, or was, before they were changed to what can't be used."""
        with self._lock:
            self.identity.accepting()  # looks at the files, and logs what is wrong with them
            if self.identity.trouble is None:
                try:
                    self._texts = _read(self.identity.files)
                except CertificateUnusable:
                    pass  # gone in this moment: the next look tells
            return self._texts

    def warning(self) -> str:
        with self._lock:
            return self.identity.warning()

    def of_channel(self) -> grpc.ChannelCredentials:
        texts = self.texts()
        return grpc.ssl_channel_credentials(texts.authorities, texts.key, texts.certificate)

    def of_server(self) -> grpc.ServerCredentials:
        """Return the credentials of a server, which takes changed files for the connections from then on."""
        used = self.texts()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            texts = self.texts()
            if texts == used:
                return None
            used = texts
            return _configuration(texts)

        return grpc.dynamic_ssl_server_credentials(_configuration(used), changed, require_client_authentication=True)


def check_player(peer: Mapping[str, Sequence[bytes]]) -> None:
    """Raise `CertificateRefused` unless the peer's certificate, which gRPC has verified, is for a player."""
    role = f"{ROLE_URI}{PLAYER}"
    if role.encode() not in peer.get(_URI, ()):
        name = b"".join(peer.get(_NAME, ())[:1]).decode(errors="replace")
        raise CertificateRefused(f"the certificate of {name!r} is not for a player: use one with the URI {role}")


def _configuration(texts: TlsTexts) -> Any:
    return grpc.ssl_server_certificate_configuration([(texts.key, texts.certificate)], texts.authorities)


def _read(files: TlsFiles) -> TlsTexts:
    try:
        return TlsTexts(*(Path(path).read_bytes() for path in (files.ca, files.certificate, files.key)))
    except OSError as error:
        raise CertificateUnusable(f"{error.filename!r} can't be read: {error.strerror}") from error
