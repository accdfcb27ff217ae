"""What a certificate says: the name of its holder, the roles that it vouches for, and when it expires.

A role is a URI beside the names of hosts, such as `urn:polonaise:client` (docs/decisions/0032).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from polonaise.redaction import redacted

ROLE_URI: Final = "urn:polonaise:"
"""The beginning of a role's URI; the role's word follows."""
CLIENT: Final = "client"
SERVER: Final = "server"
STORAGE: Final = "storage"
PLAYER: Final = "player"
TARGET: Final = "target"
ROLE_WORDS: Final = (CLIENT, SERVER, STORAGE, PLAYER, TARGET)
_NAME_MAX: Final = 100

PeerCertificate: TypeAlias = Mapping[str, Any]
"""A verified certificate as `ssl.SSLSocket.getpeercert` returns it."""


class VouchedFor(NamedTuple):
    name: str
    """The common name, or else the first alternative name. Short, printable."""
    roles: frozenset[str]
    """The roles that the certificate vouches for, of `ROLE_WORDS`."""
    expires_s: float
    """When it expires, in seconds since 1970; `inf` if it does not say."""

    @property
    def may_be(self) -> str:
        """The roles as a phrase, such as `server and storage`."""
        return " and ".join(word for word in ROLE_WORDS if word in self.roles) or "no role of Polonaise"


def said_by(certificate: PeerCertificate) -> VouchedFor:
    """Return what a verified certificate says of its holder: nothing is checked here."""
    names = list(_alternative_names(certificate))
    common = [
        str(value) for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
    ]  # fmt: skip
    name = next(iter([*common, *(value for _, value in names)]), "without a name")
    words = {value.removeprefix(ROLE_URI) for kind, value in names if kind == "URI" and value.startswith(ROLE_URI)}
    expires = certificate.get("notAfter")
    return VouchedFor(
        "".join(letter if letter.isprintable() else "?" for letter in redacted(name, _NAME_MAX)),
        frozenset(words.intersection(ROLE_WORDS)),
        float("inf") if expires is None else float(ssl.cert_time_to_seconds(str(expires))),
    )


def _alternative_names(certificate: PeerCertificate) -> Iterator[tuple[str, str]]:
    """Yield kind (DNS, IP Address, URI) and value of each."""
    for kind, value in certificate.get("subjectAltName", ()):
        yield str(kind), str(value)
