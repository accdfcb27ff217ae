"""Addresses of targets in other processes: the scheme says by which transport they are reached."""

from __future__ import annotations

from typing import Final

from polonaise.client.applicationhost import ApplicationHost
from polonaise.errors import BadOption
from polonaise.host.address import parse_address
from polonaise.host.tls import PLAYER, TlsFiles, TlsIdentity, tls_identity
from polonaise.player.endpoint import DeliveryEndpoint
from polonaise.player.linkendpoint import LinkEndpoint
from polonaise.redaction import redacted

LINK: Final = "link"
GRPC: Final = "grpc"
"""Needs the extra `grpc`."""
_SCHEMES: Final = (LINK, GRPC)


def remote_place(text: str) -> tuple[str, str]:
    """Return the scheme and the place of an address: `link://host:port`, `link://unix:/path` or `grpc://host:port`.

    Raises `BadOption` for anything else.
    """
    scheme, mark, place = text.partition("://") if isinstance(text, str) else ("", "", "")
    if not mark or scheme not in _SCHEMES:
        forms = " or ".join(f"{each}://HOST:PORT" for each in _SCHEMES)
        raise BadOption(f"{redacted(text)!r} is no address of a target: write {forms}")
    parse_address(place)
    return scheme, place


def identity_of(role: str, tls: TlsFiles | None) -> TlsIdentity | None:
    if tls is not None and not isinstance(tls, TlsFiles):
        raise BadOption(
            f"tls is {type(tls).__name__}: the TLS files are polonaise.TlsFiles(ca=…, certificate=…, key=…)"
        )
    return tls_identity(role, tls)


def remote(address: str, *, tls: TlsFiles | None = None) -> DeliveryEndpoint:
    """Return the target at an address, in another process, for a `Player` to deliver to.

    ::

        targets = {"shard-0": remote("link://db1:7300"), "shard-1": remote("grpc://db2:7300")}

    There it is served under the name that the player knows it by: with `serve`, or at a `grpc` address by a program in
    any language that follows `proto/delivery.proto`. `tls` has the TLS files of a player, by default those that the
    environment names (docs/tls.md); without any, connections are plain.

    Raises `BadOption` for what is no address, `CertificateUnusable`, and `ExtraMissing` without the extra `grpc`.
    """
    scheme, place = remote_place(address)
    identity = identity_of(PLAYER, tls)
    if scheme == GRPC:
        from polonaise.player.grpctransport.endpoint import GrpcEndpoint  # only here, because it needs an extra

        return GrpcEndpoint(place, identity)
    host = ApplicationHost(identity)
    return LinkEndpoint(host, place, release=host.close)
