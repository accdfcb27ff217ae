"""Make a CA and certificates for development and tests, with the library cryptography.

In production use the CA that you have (docs/tls.md). Anybody who has the key of a CA that is made here can make
themselves a node.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from polonaise.errors import AlreadyInitialized, BadOption, CertificateUnusable, ExtraMissing
from polonaise.host.files import with_own_errors
from polonaise.host.replacing import replaced
from polonaise.host.tls import CLIENT, PLAYER, ROLE_URI, SERVER, STORAGE, TARGET, TlsFiles

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ExtraMissing(f"making certificates needs {error.name}: pip install 'polonaise[tls]'") from error

CA: Final = "ca"
CA_DAYS: Final = 3650
DAYS_MAX: Final = 3650
_CLOCK: Final = timedelta(minutes=5)
"""How long before its making a certificate's validity begins: the clocks of other machines may be behind."""
_NAME_MAX: Final = 64
_NAME: Final = re.compile(r"(?!\.)[\w.-]{1,64}", re.ASCII)
_HOST: Final = re.compile(
    r"(?=.{1,253}$)(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
    re.ASCII | re.I,
)
_DIALLING: Final = frozenset((CLIENT, PLAYER))
"""The roles whose holders accept no connection."""
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class CertificateHolder(NamedTuple):
    """The holder for whom a certificate is made."""

    name: str
    """The certificate's common name, and the name of its files."""
    roles: tuple[str, ...]
    """The roles that the certificate vouches for."""
    hosts: tuple[str, ...] = ()
    """The DNS names and IP addresses in the certificate, which who dials checks. A holder that only dials has none."""


class Made(NamedTuple):
    """A certificate and its key, as files."""

    holder: CertificateHolder
    certificate: Path
    key: Path
    expires: datetime


def node(text: str) -> CertificateHolder:
    """Return the holder of a certificate for the nodes of one host, servers and storage nodes.

    `text` is HOST or HOST,HOST,…, DNS names and IP addresses of which the first becomes the holder's name. `localhost`
    also stands for the loopback addresses. Raises `BadOption` for an invalid host.
    """
    return _at(text, SERVER, STORAGE)


def target(text: str) -> CertificateHolder:
    """Return the holder of a certificate for the targets of players on one host; otherwise as `node`."""
    return _at(text, TARGET, ending="-target")


def _at(text: str, *roles: str, ending: str = "") -> CertificateHolder:
    hosts: list[str] = []
    for host in text.split(","):
        if not _is_ip(host) and not _HOST.fullmatch(host):
            raise BadOption(f"{host!r} is no host's name or IP address: write HOST, or HOST,HOST,… for one certificate")
        hosts += _LOOPBACK if host == "localhost" else [host]
    name = hosts[0].replace(":", "_").replace("*", "any") + ending
    if len(name) > _NAME_MAX:
        # A common name has 64 characters at most, and a DNS name may have more: keep its beginning, which tells people
        # the host, and a digest, which tells apart names that begin alike.
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: _NAME_MAX - 9].rstrip('.-')}-{digest}"
    return CertificateHolder(_checked(name), roles, tuple(dict.fromkeys(hosts)))


def client(name: str) -> CertificateHolder:
    """Return the holder of a certificate for a client. Raises `BadOption` for an invalid name."""
    return CertificateHolder(_checked(name), (CLIENT,))


def player(name: str) -> CertificateHolder:
    """Return the holder of a certificate for a player, which is a client of the log. Raises as `client`."""
    return CertificateHolder(_checked(name), (CLIENT, PLAYER))


def _checked(name: str) -> str:
    """Return `name`. Raises `BadOption` unless it can be the name of files beside those of the CA."""
    if not _NAME.fullmatch(name) or name == CA or name.endswith("-key"):
        raise BadOption(
            f"{name!r} can't be the name of a certificate's files: take 1 to 64 letters, digits, dots, hyphens and "
            "underscores, and neither 'ca' nor '…-key'"
        )
    return name


def files_of_holder(directory: Path, name: str) -> TlsFiles:
    return TlsFiles(str(_certificate(directory, CA)), str(_certificate(directory, name)), str(_key(directory, name)))


def _certificate(directory: Path, name: str) -> Path:
    return directory / f"{name}.pem"


def _key(directory: Path, name: str) -> Path:
    return directory / f"{name}-key.pem"


def make(
    directory: Path, holders: Sequence[CertificateHolder], *, days: float = 365, renew: bool = False
) -> list[Made]:
    """Make a certificate for each holder, signed by the CA in the directory, which is made if missing.

    They are valid for `days` days, but no longer than the CA. Only the user of this process can read the keys. With
    `renew` a certificate that exists is replaced, and keeps its key; without it, one that exists raises
    `AlreadyInitialized`, before any is made. Also raises `BadOption`, `CertificateUnusable` for a CA or a key that
    can't be used, and faults of the disk.
    """
    if not 0 < days <= DAYS_MAX:
        raise BadOption(f"invalid number of days {days:g}: it must be above 0 and at most {DAYS_MAX}")
    names = [holder.name for holder in holders]
    if len(set(names)) != len(names):
        raise BadOption(f"two certificates of one name among {', '.join(names)}: give each another name")
    with_own_errors(str(directory), partial(directory.mkdir, mode=0o700, parents=True, exist_ok=True))
    with _alone_in(directory):
        there = [str(path) for name in names if (path := _certificate(directory, name)).exists()]
        if there and not renew:
            raise AlreadyInitialized(
                f"there are certificates already ({', '.join(there)}): choose other names, or replace them with --renew"
            )
        ca, ca_key = _authority(directory)
        return [_issue(directory, holder, ca, ca_key, timedelta(days=days)) for holder in holders]


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Hold the directory's lock during the block, so that no two processes make certificates in it at once."""
    descriptor = with_own_errors(str(directory), partial(os.open, directory, os.O_RDONLY))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # ends with the descriptor, and with the process
        yield
    finally:
        os.close(descriptor)


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    at, key_at = _certificate(directory, CA), _key(directory, CA)
    if at.exists() or key_at.exists():
        ca, key = _read_certificate(at), _read_key(key_at)
        _check_authority(ca, key, at, key_at)
        return ca, key
    key = ec.generate_private_key(ec.SECP256R1())
    # No two CAs of one name: of those, Java's trust store of PEM files keeps the last one only, and while a CA is
    # replaced ZooKeeper would refuse everybody with a certificate of the other.
    subject = _named(f"Polonaise development CA {secrets.token_hex(4)}")
    public = key.public_key()
    now = datetime.now(UTC)
    made = (
        _begun(subject, subject, public, now - _CLOCK, now + timedelta(days=CA_DAYS), ca=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_at, key)
    _write(at, made.public_bytes(serialization.Encoding.PEM))
    return made, key


def _check_authority(ca: x509.Certificate, key: ec.EllipticCurvePrivateKey, at: Path, key_at: Path) -> None:
    """Raise `CertificateUnusable` unless processes that trust `ca` would trust certificates signed with `key`."""
    if ca.public_key() != key.public_key():
        raise CertificateUnusable(
            f"the key {str(key_at)!r} does not belong to the first certificate in {str(at)!r}: the CA that signs must "
            "be the first one in the file, and other CAs that are trusted come behind it"
        )
    if ca.not_valid_after_utc <= datetime.now(UTC):
        raise CertificateUnusable(
            f"the CA {str(at)!r} has expired on {ca.not_valid_after_utc:%Y-%m-%d}: begin in a new directory, and add "
            "its ca.pem to those of all processes before its certificates are used"
        )
    try:
        ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        is_ca = ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_ca = False
    if not is_ca:
        raise CertificateUnusable(
            f"{str(at)!r} is no CA of `polonaise tls init`: restore it, or begin in a new directory"
        )


def _issue(
    directory: Path,
    holder: CertificateHolder,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    valid: timedelta,
) -> Made:
    at, key_at = _certificate(directory, holder.name), _key(directory, holder.name)
    if key_at.exists():
        key = _read_key(key_at)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(key_at, key)
    public = key.public_key()
    now = datetime.now(UTC)
    expires = min(now + valid, ca.not_valid_after_utc)
    # Nodes get both uses of TLS, since a server accepts and dials. Clients and players only dial.
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH] + [ExtendedKeyUsageOID.SERVER_AUTH] * (not {*holder.roles} <= _DIALLING)
    issuer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    made = (
        _begun(_named(holder.name), ca.subject, public, min(now, expires) - _CLOCK, expires, ca=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(holder)), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write(at, made.public_bytes(serialization.Encoding.PEM))
    return Made(holder, at, key_at, expires)


def _alternatives(holder: CertificateHolder) -> Iterable[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"{ROLE_URI}{role}") for role in holder.roles]
    for host in holder.hosts:
        names.append(x509.IPAddress(ipaddress.ip_address(host)) if _is_ip(host) else x509.DNSName(host))
    return names


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime, *, ca: bool
) -> x509.CertificateBuilder:
    """Return what is to become a certificate, with all that those of CAs and of others have."""
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )


# ---------------------------------------------------------------------- files


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(with_own_errors(str(path), path.read_bytes))
    except ValueError as error:
        raise CertificateUnusable(
            f"{str(path)!r} is no certificate in PEM: restore it, or begin in a new directory"
        ) from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a key that this module made. Raises `CertificateUnusable`, also for one that others may read."""
    try:
        key = serialization.load_pem_private_key(with_own_errors(str(path), path.read_bytes), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateUnusable(
            f"{str(path)!r} is no key of `polonaise tls init`: restore it, or begin in a new directory"
        )
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        if path == _key(path.parent, CA):
            remedy = (
                "make a new CA and all certificates in a new directory, and take the old CA out of the ca.pem of every "
                "process"
            )
        else:
            remedy = "remove it, and replace its certificate with --renew"
        raise CertificateUnusable(
            f"other users may read the key {str(path)!r}: run chmod 600 on it; if somebody may have copied it, {remedy}"
        )
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(path, text, mode=0o600)


def _write(path: Path, contents: bytes, mode: int = 0o644) -> None:
    """Replace a file as a whole: a process that reads it meanwhile gets the old or the new contents, and no mixture."""

    def write() -> None:
        with replaced(path, mode) as file:
            file.write(contents)

    with_own_errors(str(path), write)
