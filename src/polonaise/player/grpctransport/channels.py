"""The channels and servers of gRPC: when a connection is dead, what is too large, and which certificate is believed.

Credentials are made from a process's TLS files, which are read again when they change. gRPC does its handshakes itself;
`TlsIdentity` looks at the files first, so that what is wrong with them is told as everywhere else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import grpc

from polonaise.errors import BadOption, CertificateRefused, CertificateUnusable
from polonaise.host.address import HostPort, is_every_interface, parse_address
from polonaise.host.tls import PLAYER, ROLE_URI, TlsFiles, TlsIdentity
from polonaise.player.grpctransport.messages import MESSAGE_BYTES_MAX
from polonaise.redaction import redacted

ChannelOptions: TypeAlias = list[tuple[str, Any]]

SCHEME: Final = "grpc://"
KEEPALIVE_S: Final = 5.0
"""Seconds of silence after which a side asks whether the other is still there. With twice as long for the answer, that
is well below `PlayerSettings.progress_s_max`."""
_STRANGER_MS: Final = 10_000
"""The longest that a connection lasts on which nobody opens a stream."""
_STREAMS_MAX: Final = 100
"""The most streams of one connection: a player has one."""


def place_of(text: str) -> HostPort:
    place = parse_address(text)
    if not isinstance(place, HostPort):
        raise BadOption(f"{SCHEME}{redacted(text)} is not the address of a target over gRPC: write grpc://host:port")
    return place


def connectable(text: str) -> str:
    """Return the place in `host:port`. Raises `BadOption` for anything else, and for one that nobody can connect to."""
    place = place_of(text)
    if is_every_interface(place) or not place.port:
        raise BadOption(f"nobody can connect to {SCHEME}{place}: name the host and the port of the target")
    return str(place)


def client_options(keepalive_s: float, open_s_max: float) -> ChannelOptions:
    open_ms = max(1, int(open_s_max * 1000))
    return [
        *_common_options(keepalive_s),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.use_local_subchannel_pool", 1),  # its connection is its own, and so is what went wrong with that
        ("grpc.min_reconnect_backoff_ms", open_ms),  # how long a connection may take to be made, even if it is closed
        ("grpc.initial_reconnect_backoff_ms", open_ms),
        ("grpc.max_reconnect_backoff_ms", open_ms),
        ("grpc.enable_http_proxy", 0),  # as everything else here connects
        ("grpc.enable_retries", 0),  # the player opens the next stream, under the next fence
        ("grpc.service_config_disable_resolution", 1),
    ]


def server_options(keepalive_s: float) -> ChannelOptions:
    return [
        *_common_options(keepalive_s),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.so_reuseport", 0),  # or a second server would get every other connection, and nobody an error
        ("grpc.http2.min_ping_interval_without_data_ms", 200),  # players ask more often than gRPC allows for
        ("grpc.max_concurrent_streams", _STREAMS_MAX),
        ("grpc.server_handshake_timeout_ms", _STRANGER_MS),
        ("grpc.max_connection_idle_ms", _STRANGER_MS),
    ]


def _common_options(keepalive_s: float) -> ChannelOptions:
    silence_ms = max(1, int(keepalive_s * 1000))
    answer_ms = 2 * silence_ms  # the question waits behind what is being sent
    return [
        ("grpc.keepalive_time_ms", silence_ms),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),  # else a minute, and gRPC goes by this one
        ("grpc.http2.max_pings_without_data", 0),  # go on asking while nothing is sent
    ]


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


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Do the work, in a task of its own that no cancellation reaches; raise the cancellation after that."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
