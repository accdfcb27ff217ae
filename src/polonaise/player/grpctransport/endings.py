"""Why a stream over gRPC has ended, in words that say what to do."""

from __future__ import annotations

import re
from typing import Final

import grpc

from polonaise.player.grpctransport.messages import MESSAGE_BYTES_MAX, SERVICE
from polonaise.redaction import redacted, shortened

REASON_CHARACTERS_MAX: Final = 500
_HANDSHAKE: Final = re.compile("handshake|ssl|certificate|tls", re.IGNORECASE)
_BROKEN_WRITE: Final = "Internal error from Core"
"""What gRPC tells if a stream ends while it is written to; it does not tell why then."""
_PINGS: Final = re.compile("too.many.pings", re.IGNORECASE)
_ADVICE: Final = {
    grpc.StatusCode.UNIMPLEMENTED: f"no {SERVICE} is served there: check the address",
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        "if a message was too large for the target, raise the limit of its server (max receive message length) above "
        f"its largest entry; {MESSAGE_BYTES_MAX // 2**20} MiB are always enough"
    ),
    grpc.StatusCode.PERMISSION_DENIED: "give this player other TLS files, or none, as the target asks for",
    grpc.StatusCode.UNAUTHENTICATED: "give this player other TLS files, or none, as the target asks for",
    grpc.StatusCode.CANCELLED: "its server has cancelled the stream",
    grpc.StatusCode.INTERNAL: "look into the log of the target's server",
    grpc.StatusCode.UNKNOWN: "look into the log of the target's server",
}


def why_ended(address: str, code: grpc.StatusCode, details: str | None, *, with_tls: bool) -> str:
    """Return why a stream to this address has ended, from the status that gRPC tells."""
    told = told_by_target(" ".join((details or "").split()))
    if _PINGS.search(told):
        advice = "its server takes no keepalive pings as often as this player sends them: have it permit them"
    elif told == _BROKEN_WRITE:
        advice = "the stream broke while it was written to: look whether the target runs, and into its log"
    elif code is grpc.StatusCode.UNAVAILABLE:
        advice = _advice_without_connection(told, with_tls)
    else:
        advice = _ADVICE.get(code, "")
    # What to do comes first: gRPC's own text may be long.
    parts = (address, advice, f"{code.name} {told}".rstrip())
    return shortened(": ".join(part for part in parts if part), REASON_CHARACTERS_MAX)


def _advice_without_connection(told: str, with_tls: bool) -> str:
    if with_tls and "CERTIFICATE_VERIFY_FAILED" in told:
        return "its certificate is not of a CA that this player trusts, or has expired"
    if with_tls and "Hostname Verification" in told:
        return "its certificate does not name this host: issue one that does"
    if with_tls and "WRONG_VERSION_NUMBER" in told:
        return "it speaks no TLS, and this player does: give both TLS files, or neither"
    if with_tls and _HANDSHAKE.search(told):
        return "the TLS handshake failed: use certificates of one CA for both, and look whether the target has TLS"
    if with_tls:
        return "no connection: start the target there; if it runs, look whether it has TLS and takes this certificate"
    return "no connection: start the target there; if it runs, look whether it takes connections with TLS only"


def told_by_target(reason: str) -> str:
    """Return the text of a target as it may be shown. It may be of any length, and have anything in it."""
    return redacted(reason, REASON_CHARACTERS_MAX)
