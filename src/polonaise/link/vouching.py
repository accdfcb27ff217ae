"""Check the role in a peer's hello against its TLS certificate; notice a peer that speaks TLS to a node without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final

from polonaise.errors import CertificateRefused, FrameTooLarge, PolonaiseError, ProtocolError, TlsNotSpoken
from polonaise.host import Clock
from polonaise.host.address import HostPort
from polonaise.host.tls import CLIENT, OPTIONS, PLAYER, ROLE_URI, SERVER, STORAGE, TARGET, said_by
from polonaise.link.protocol.greeting import ROLE_NAMES
from polonaise.wire.messages import ROLE_CLIENT, ROLE_OPERATOR, ROLE_PLAYER, ROLE_SERVER, ROLE_STORAGE, ROLE_TARGET

_log = logging.getLogger(__name__)

_ROLE_WORDS: Final = {
    ROLE_CLIENT: CLIENT,
    ROLE_SERVER: SERVER,
    ROLE_STORAGE: STORAGE,
    ROLE_OPERATOR: CLIENT,
    ROLE_PLAYER: PLAYER,
    ROLE_TARGET: TARGET,
}
"""The role that a certificate must have, by the role in the hello. Operators count as clients."""
_TLS_RECORD: Final = b"\x16\x03"
"""A TLS connection begins so. Read as the length of a frame, it is too large for a hello."""
_WARNING_S: Final = 10.0
"""The least time between two warnings: anybody may connect, as often as they like."""
_warned_s = float("-inf")


def certificate_refused(
    transport: asyncio.BaseTransport | None, roles: Collection[int], clock: Clock
) -> CertificateRefused | None:
    """Return the fault, and log it, if the peer's certificate is for none of these roles.

    Without TLS the hello is believed; with TLS, a peer without a certificate is refused.
    """
    if transport is None or transport.get_extra_info("sslcontext") is None:
        return None
    faults = [_refusal(transport, role) for role in roles]
    fault = faults[0] if faults and all(faults) else None
    if fault is not None:
        _warn(fault, clock, transport.get_extra_info("peername"))
    return fault


def _refusal(transport: asyncio.BaseTransport, role: int) -> CertificateRefused | None:
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return CertificateRefused(f"a {ROLE_NAMES[role]} shows no certificate: give it one with {OPTIONS}")
    holder = said_by(certificate)
    if _ROLE_WORDS[role] in holder.roles:
        return None
    return CertificateRefused(
        f"the certificate of {holder.name!r} is for {holder.may_be}, and not for a {ROLE_NAMES[role]}: use one with "
        f"the URI {ROLE_URI}{_ROLE_WORDS[role]}"
    )


def tls_met(error: ProtocolError, data: bytes, clock: Clock) -> TlsNotSpoken | None:
    """Return the fault, and log it, if a peer that began with TLS caused `error`. `data` begins the connection."""
    if not isinstance(error, FrameTooLarge) or not data.startswith(_TLS_RECORD):
        return None
    fault = TlsNotSpoken(
        f"a peer speaks TLS, and this node does not: start this node with {OPTIONS}, or connect without them"
    )
    _warn(fault, clock, None)
    return fault


def _warn(fault: PolonaiseError, clock: Clock, peer: Any) -> None:
    global _warned_s
    if clock.monotonic_s() - _warned_s >= _WARNING_S:
        _warned_s = clock.monotonic_s()
        where = f" of {HostPort(*peer[:2])}" if isinstance(peer, tuple) else ""
        _log.warning("refused a connection%s: %s", where, fault)
