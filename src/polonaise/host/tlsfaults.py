"""Translate errors of OpenSSL into faults that say what went wrong with TLS and what to do."""

from __future__ import annotations

import ssl
from typing import Final

from polonaise.errors import CertificateRefused, ConnectionLost, PolonaiseError, TlsNotSpoken

OPTIONS: Final = "--tls-ca, --tls-certificate and --tls-key"
"""The options that name a process's TLS files, for messages."""

# Numbers of OpenSSL's x509_vfy.h, which Python passes on without names.
NOT_YET_VALID: Final = 9
EXPIRED: Final = 10
WRONG_PURPOSE: Final = 26
_OTHER_CA: Final = (2, 7, 18, 19, 20, 21, 24)
"""No chain of signatures leads from the certificate to a trusted CA."""
_OTHER_HOST: Final = (62, 64)
"""The certificate does not name the host."""

_ALERTS: Final = {
    "UNKNOWN_CA": "its CA is not among those that the other side trusts: use a certificate of that CA",
    "CERTIFICATE_EXPIRED": "it has expired, or is not valid yet: replace it, and compare the clocks of both machines",
    "CERTIFICATE_REQUIRED": f"there is none: this process needs one of its own ({OPTIONS})",
    "CERTIFICATE_REVOKED": "it was revoked: replace it",
    "UNSUPPORTED_CERTIFICATE": "it was not issued for this use: its extended key usage needs client authentication",
    "BAD_CERTIFICATE": (
        "it is not valid yet, not for this host, or damaged: compare the clocks of both machines, and look into the "
        "other side's log"
    ),
    "CERTIFICATE_UNKNOWN": "the other side does not say why: look into its log",
    "ACCESS_DENIED": "the other side denies access: look into its log",
    "DECRYPT_ERROR": "its signature does not fit: use the key that belongs to it",
}
"""What an alert of the peer says of this side's certificate, by the end of its name in OpenSSL."""


def refusal_in(error: BaseException | None) -> CertificateRefused | None:
    """Return the fault if the peer has refused this process's certificate by an alert."""
    _, alert, name = (getattr(error, "reason", None) or "").partition("ALERT_")
    if not isinstance(error, ssl.SSLError) or not alert or name not in _ALERTS:
        return None
    return CertificateRefused(f"this process's certificate was refused: {_ALERTS[name]}")


def why_untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Return why a certificate was not trusted, and what to do, as a phrase that follows 'the certificate of X'."""
    code = error.verify_code
    if code == EXPIRED:
        return "has expired: replace its file, which is read again by itself"
    if code == NOT_YET_VALID:
        return "is not valid yet: compare the clocks of both machines"
    if code in _OTHER_CA:
        return (
            f"is not of a CA that this process trusts ({error.verify_message}): use one CA for all, or add the "
            "other's to the file of --tls-ca"
        )
    if code in _OTHER_HOST:
        return f"is not for this host ({error.verify_message.rstrip('.')}): issue one that names it"
    if code == WRONG_PURPOSE:
        return (
            "was not issued for this use: its extended key usage lacks what its role needs: server authentication to "
            "be connected to, client authentication to connect"
        )
    return f"was not trusted ({error.verify_message}): issue another one"


def handshake_fault(address: str, error: BaseException) -> PolonaiseError:
    """Return the fault for a connection to `address` whose TLS handshake failed with `error`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateRefused(f"the certificate of {address} {why_untrusted(error)}")
    refused = refusal_in(error)
    if refused is not None:
        return CertificateRefused(f"{refused.text} ({address})")
    if isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
        return ConnectionLost(
            f"{address} ended the connection during the TLS handshake; if that happens again, its log says why"
        )
    if "ALERT_" in (error.reason or ""):
        return ConnectionLost(
            f"{address} and this process don't agree on TLS 1.3 ({error.reason}): look at what listens there"
        )
    if error.reason != "WRONG_VERSION_NUMBER":
        return ConnectionLost(
            f"{address} did not go on with the TLS handshake as it should ({error.reason}): if that happens again, "
            "look at what listens there"
        )
    return TlsNotSpoken(
        f"{address} speaks no TLS, and this process does: start that node with {OPTIONS}, or leave them out here, if "
        "the cluster has no TLS"
    )
