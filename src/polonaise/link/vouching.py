"""What TLS adds to a greeting: a peer is only what its certificate vouches for, and one in the wrong mode is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final

from polonaise.errors import CertificateRefused, FrameTooLarge, PolonaiseError, ProtocolError, TlsNotSpoken
from polonaise.host import Clock
from polonaise.host.address import HostPort
from polonaise.host.certificates import CLIENT, ROLE_URI, SERVER, STORAGE, said_by
from polonaise.host.tlsfaults import OPTIONS
from polonaise.wire.messages import ROLE_CLIENT, ROLE_OPERATOR, ROLE_SERVER, ROLE_STORAGE

_log = logging.getLogger(__name__)

ROLE_NAMES: Final = {
    ROLE_CLIENT: "client",
    ROLE_SERVER: "server",
    ROLE_STORAGE: "storage node",
    ROLE_OPERATOR: "operator",
}
_ROLE_WORDS: Final = {ROLE_CLIENT: CLIENT, ROLE_SERVER: SERVER, ROLE_STORAGE: STORAGE, ROLE_OPERATOR: CLIENT}
"""The word in a certificate for the role of a hello. An operator, who may ask for health only, needs a client's."""
_TLS_RECORD: Final = b"\x16\x03"
"""What TLS begins with. As the length of a frame it is too large for a hello."""
_WARNING_S: Final = 10.0
"""The least time, in seconds, between two warnings: anybody may connect, as often as he likes."""
_warned_s = float("-inf")


def dialled_wrongly(
    transport: asyncio.BaseTransport, roles: Collection[int], clock: Clock
) -> CertificateRefused | None:
    """Return the fault if the certificate of a peer that was dialled is for none of these roles; else None.

    For before this side's hello, which has the cluster key in it.
    """
    faults = [_refusal(transport, role) for role in roles]
    first = faults[0] if faults and all(faults) else None
    if first is not None:
        _warn(first, clock, transport.get_extra_info("peername"))
    return first


def certificate_refused(transport: asyncio.BaseTransport | None, role: int, clock: Clock) -> CertificateRefused | None:
    """Return the fault, and tell the log, if the peer's certificate is not for the role of its hello; else None.

    Without TLS there is no certificate, and the hello is believed; with TLS, a peer without one is refused.
    """
    fault = _refusal(transport, role)
    if fault is not None and transport is not None:
        _warn(fault, clock, transport.get_extra_info("peername"))
    return fault


def _refusal(transport: asyncio.BaseTransport | None, role: int) -> CertificateRefused | None:
    """Return the fault if the peer's certificate is not for this role, and there is TLS; else None."""
    if transport is None or transport.get_extra_info("sslcontext") is None:
        return None
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return CertificateRefused(f"a {ROLE_NAMES[role]} shows no certificate: every client and node needs one")
    holder = said_by(certificate)
    if _ROLE_WORDS[role] in holder.roles:
        return None
    return CertificateRefused(
        f"the certificate of {holder.name!r} is for {holder.may_be}, and not for a {ROLE_NAMES[role]}: use one with "
        f"the URI {ROLE_URI}{_ROLE_WORDS[role]}"
    )


def tls_met(error: ProtocolError, data: bytes, clock: Clock) -> TlsNotSpoken | None:
    """Return the fault, and tell the log, if `error` comes of a peer whose first bytes are TLS; None otherwise."""
    if not isinstance(error, FrameTooLarge) or not data.startswith(_TLS_RECORD):
        return None
    fault = TlsNotSpoken(
        f"a peer speaks TLS, and this node does not: start this node with {OPTIONS}, or connect without them"
    )
    _warn(fault, clock, None)
    return fault


def _warn(fault: PolonaiseError, clock: Clock, peer: Any) -> None:
    """Tell the log that a peer was refused, not more often than once in `_WARNING_S`."""
    global _warned_s
    if clock.monotonic_s() - _warned_s >= _WARNING_S:
        _warned_s = clock.monotonic_s()
        where = f" of {HostPort(*peer[:2])}" if isinstance(peer, tuple) else ""
        _log.warning("refused a connection%s: %s", where, fault)
