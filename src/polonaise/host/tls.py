"""A process's TLS identity: contexts of Python's `ssl` from three files, which are read again whenever they change.

Both sides show a certificate, and verify the other's. TLS 1.3 only, but for ZooKeeper, which may have 1.2. A
certificate says who holds it, and for which roles: each is a URI beside the names of hosts, such as
`urn:polonaise:client` (docs/decisions/0032). What OpenSSL says of a failure is translated here.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from polonaise.errors import (
    BadOption,
    CertificateRefused,
    CertificateUnusable,
    ConnectionLost,
    PolonaiseError,
    TlsNotSpoken,
)
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
    names = [(str(kind), str(value)) for kind, value in certificate.get("subjectAltName", ())]
    common = [str(value) for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    name = next(iter([*common, *(value for _, value in names)]), "without a name")
    words = {value.removeprefix(ROLE_URI) for kind, value in names if kind == "URI" and value.startswith(ROLE_URI)}
    expires = certificate.get("notAfter")
    return VouchedFor(
        "".join(letter if letter.isprintable() else "?" for letter in redacted(name, _NAME_MAX)),
        frozenset(words.intersection(ROLE_WORDS)),
        float("inf") if expires is None else float(ssl.cert_time_to_seconds(str(expires))),
    )


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


_log = logging.getLogger(__name__)

VARIABLES: Final = {"ca": "POLONAISE_TLS_CA", "certificate": "POLONAISE_TLS_CERTIFICATE", "key": "POLONAISE_TLS_KEY"}
EXPIRY_WARNING_S: Final = 14 * 86_400.0
"""So long before a certificate expires its process begins to warn of it, once a day."""
_DAY_S: Final = 86_400.0
RETRY_S: Final = 30.0
"""After this, files that could not be used are tried again even though they did not change."""
_told: Final[dict[str, float]] = {}
_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A system's CAs have a quarter of a million."""
_PATH_MAX: Final = 4096

_BEGIN: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]+-----")
_END: Final = re.compile(rb"-----END [A-Z0-9 ]+-----")
_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's flag for verifying a certificate whenever it is valid, which Python passes on without a name."""

failures: ContextVar[list[ssl.SSLError]] = ContextVar("failures")
"""The TLS errors of the handshake that the current task has begun, in a list that it has set before: the event loop
itself may report only a lost connection."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of a process's three TLS files in PEM: the CAs that it trusts, its certificate, and its private key.

    ::

        tls = TlsFiles(ca="tls/ca.pem", certificate="tls/client.pem", key="tls/client-key.pem")
        async with polonaise.connect("polonaise://server1:7000", tls=tls) as log:
            ...

    The files are read again when they change; connections that are open stay. Relative paths are made absolute. Raises
    `BadOption` for a value that is no path.
    """

    ca: str
    """The file with the certificates of all trusted CAs."""
    certificate: str
    """The file with this process's certificate, followed by those between it and the CA, if there are any."""
    key: str
    """The file with the certificate's private key, without a password."""

    def __post_init__(self) -> None:
        for name in VARIABLES:
            object.__setattr__(self, name, os.path.abspath(_path(name, getattr(self, name))))


def _path(name: str, value: object) -> str:
    """Return `value` as a path. Raises `BadOption`, which does not show it: it may be the private key itself."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise BadOption(f"invalid TLS file {name} (of type {type(value).__name__}): give the path of a file in PEM")
    if "-----BEGIN" in path or any(mark in path for mark in "\n\r\0") or len(path) > _PATH_MAX:
        raise BadOption(
            f"invalid TLS file {name} ({VARIABLES[name]} in the environment): it looks like the contents of a file and "
            "not like its path: give the path"
        )
    return path


def files_in(environment: Mapping[str, str]) -> TlsFiles | None:
    """Return the TLS files that an environment names, if any. Raises what `files_of` raises."""
    return files_of({name: environment.get(variable, "") for name, variable in VARIABLES.items()})


def files_of(given: Mapping[str, str | None]) -> TlsFiles | None:
    """Return the TLS files given as `ca`, `certificate` and `key`, if any. Raises `BadOption` if some are missing."""
    there = {name: path for name in VARIABLES if (path := given.get(name))}
    if not there:
        return None
    missing = [name for name in VARIABLES if name not in there]
    if missing:
        raise BadOption(
            f"TLS needs all of {OPTIONS}: {' and '.join(missing)} not given "
            f"({', '.join(VARIABLES[name] for name in missing)} in the environment)"
        )
    return TlsFiles(**there)


_Version: TypeAlias = tuple[Any, ...]


class _Contexts(NamedTuple):
    accepting: ssl.SSLContext
    dialling: ssl.SSLContext
    own: VouchedFor


class TlsIdentity:
    """The `ssl` contexts of a process's TLS files, made anew when the files change. If changed files can't be used,
    that is logged, at once and then daily, and the contexts before stay in use: so certificate and key may be replaced
    one after the other. Only the CAs of a changed CA file are taken nevertheless, where certificate and key are
    unchanged. Files that can't be used are tried again every `RETRY_S` seconds, too."""

    def __init__(self, files: TlsFiles, role: str | None = None, *, wall_s: Callable[[], float] = time.time) -> None:
        """Read the files. Raises `CertificateUnusable` if they can't be used, or if the certificate is not for `role`.
        Files that replace these must be for that role, too. `wall_s` returns seconds since 1970."""
        self.files = files
        self._role = role
        self._wall_s = wall_s
        self._seen = _version(files)
        """The version of the files that were read last, with or without success."""
        self._used = self._seen
        """The version of the files in use."""
        self._contexts = _contexts(files, role)
        self._read_s = self._told_s = wall_s()
        self.trouble: CertificateUnusable | None = None
        """What is wrong with the files as they are now. `_kept` says what is in use then."""
        self._tell_of_expiry()

    @property
    def own(self) -> VouchedFor:
        return self._contexts.own

    def accepting(self) -> ssl.SSLContext:
        return self._current().accepting

    def dialling(self) -> ssl.SSLContext:
        """Return the context for a connection to another node, whose host name is checked."""
        return self._current().dialling

    def _current(self) -> _Contexts:
        version, now_s = _version(self.files), self._wall_s()
        # A clock that was set back is no reason to wait longer.
        if version != self._seen or (self.trouble is not None and not 0 <= now_s - self._read_s < RETRY_S):
            self._read(version, now_s)
        self._tell_of_expiry()
        return self._contexts

    def _read(self, version: _Version, now_s: float) -> None:
        changed = version != self._seen
        self._seen, self._read_s = version, now_s
        try:
            self._contexts, self._used = _contexts(self.files, self._role), version
        except CertificateUnusable as error:
            self._take_authorities(version)
            if changed or self.trouble is None or not 0 <= now_s - self._told_s < _DAY_S:
                self._told_s = now_s
                _log.warning("the TLS files have changed and can't be used; %s: %s", self._kept(), error)
            self.trouble = error
        else:
            self.trouble = None
            _log.info("the TLS files were read again: %s, valid until %s", self.own.name, _day(self.own.expires_s))

    def _kept(self) -> str:
        if self._used == self._seen:
            return "the CAs are taken as they are now, and this process's certificate stays in use"
        return "those before stay in use"

    def _take_authorities(self, version: _Version) -> None:
        """Trust the CAs of a changed CA file, even if they did not issue this process's own unchanged certificate."""
        if version[0] == self._used[0] or version[1:] != self._used[1:]:
            return
        try:
            _check_text(self.files.ca, "CERTIFICATE-----", "certificate")
            accepting = _loaded(self.files, ssl.PROTOCOL_TLS_SERVER)
            dialling = _loaded(self.files, ssl.PROTOCOL_TLS_CLIENT)
        except CertificateUnusable:
            return
        self._contexts, self._used = _Contexts(accepting, dialling, self.own), version

    def warning(self) -> str:
        """Return what is wrong with the files, or soon will be, for health documents."""
        self._current()
        if self.trouble is not None:
            return f"the TLS files can't be used; {self._kept()}: {self.trouble}"
        return self._expiry() if self.own.expires_s - self._wall_s() < EXPIRY_WARNING_S else ""

    def _expiry(self) -> str:
        return (
            f"the certificate {self.files.certificate!r} "
            f"{'expires' if self.own.expires_s > self._wall_s() else 'has expired'} on {_day(self.own.expires_s)}: "
            "replace the file, which is read again by itself"
        )

    def _tell_of_expiry(self) -> None:
        now_s = self._wall_s()
        if self.own.expires_s - now_s < EXPIRY_WARNING_S:
            _log_daily(logging.WARNING if self.own.expires_s > now_s else logging.ERROR, self._expiry(), now_s)


def _log_daily(level: int, line: str, now_s: float) -> None:
    """Log a line, unless this process, whatever its identities, has logged the same within a day."""
    for told, told_s in list(_told.items()):
        if not 0 <= now_s - told_s < _DAY_S:  # a clock that was set back is no reason to say nothing for longer
            _told.pop(told, None)
    if line not in _told:
        _told[line] = now_s
        _log.log(level, "%s", line)


def _day(seconds: float) -> str:
    return "no day" if seconds == float("inf") else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def tls_identity(role: str, files: TlsFiles | None = None) -> TlsIdentity | None:
    """Return the identity of these files, or else of those that the environment names, if any. Raises `BadOption` as
    `files_of`, and `CertificateUnusable`, also if the certificate is not for `role`."""
    files = files_in(os.environ) if files is None else files
    return None if files is None else TlsIdentity(files, role)


# ---------------------------------------------------------------------- reading


def _version(files: TlsFiles) -> _Version:
    version: list[Any] = []
    for path in (files.ca, files.certificate, files.key):
        try:
            status = os.stat(path)
            version.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        except OSError as error:
            version.append(error.errno)
    return tuple(version)


def _contexts(files: TlsFiles, role: str | None) -> _Contexts:
    """Read the files. Raises `CertificateUnusable` if they can't be used, or don't fit each other or the role."""
    _check_text(files.ca, "CERTIFICATE-----", "certificate")
    _check_text(files.certificate, "CERTIFICATE-----", "certificate")
    _check_text(files.key, "PRIVATE KEY-----", "private key")
    accepting, dialling = _loaded(files, ssl.PROTOCOL_TLS_SERVER), _loaded(files, ssl.PROTOCOL_TLS_CLIENT)
    own = said_by(_own_certificate(files))
    if not own.roles:
        raise CertificateUnusable(
            f"the certificate {files.certificate!r} of {own.name!r} names no role: issue one with a URI of "
            + ", ".join(f"{ROLE_URI}{role}" for role in ROLE_WORDS)
        )
    if role is not None and role not in own.roles:
        raise CertificateUnusable(
            f"the certificate {files.certificate!r} of {own.name!r} is for {own.may_be}, and this process needs one "
            f"for {role}: issue one with the URI {ROLE_URI}{role}"
        )
    if role is not None:
        _check_use(files, role)
    return _Contexts(accepting, dialling, own)


def _check_text(path: str, mark: str, kind: str) -> None:
    """Raise `CertificateUnusable` unless the file holds `mark`; warn of a private key that other users may read."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a pipe, too
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CertificateUnusable(f"{path!r} can't be read: it is no ordinary file: name one with a {kind}")
            text = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise CertificateUnusable(f"no file {path!r}: correct the path of the {kind}") from None
    except OSError as error:
        raise CertificateUnusable(
            f"{path!r} can't be read: {error.strerror}: let the user of this process read it"
        ) from error
    if len(text) > _FILE_BYTES_MAX:
        raise CertificateUnusable(f"{path!r} has more than {_FILE_BYTES_MAX} bytes: name a file with a {kind} in PEM")
    if mark.encode() not in text:
        raise CertificateUnusable(f"{path!r} holds no {kind} in PEM: name a file with one")
    if len(_BEGIN.findall(text)) > len(_END.findall(text)):
        raise CertificateUnusable(
            f"{path!r} ends in the middle of a {kind}: it was not written to its end: write it again"
        )
    if kind != "private key":
        return
    if status.st_mode & stat.S_IROTH:
        _log_daily(
            logging.WARNING, f"everybody on this machine may read the private key {path!r}: chmod 600 it", time.time()
        )
    # A key of root's that a group may read is how systems hand keys to services: that is no mistake.
    elif status.st_mode & stat.S_IRGRP and status.st_uid != 0:
        _log_daily(logging.WARNING, f"a whole group may read the private key {path!r}: chmod 600 it", time.time())


def _loaded(files: TlsFiles, side: ssl._SSLMethod) -> ssl.SSLContext:
    context = _TellingContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.hostname_checks_common_name = False  # hosts are alternative names; the common name is for people
    if side is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # connections are never resumed, so that each shows its certificate
    try:
        context.load_verify_locations(files.ca)
    except (ssl.SSLError, OSError) as error:
        raise CertificateUnusable(
            f"{files.ca!r} holds no readable certificates ({_reason(error)}): name a file with those of the CAs, in PEM"
        ) from None
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateUnusable(
                f"the key {files.key!r} does not belong to the certificate {files.certificate!r}: give those that were "
                "made together"
            ) from None
        raise CertificateUnusable(
            f"certificate {files.certificate!r} and key {files.key!r} can't be used ({_reason(error)}): give a "
            "certificate and its private key, both in PEM"
        ) from None
    except OSError as error:
        raise CertificateUnusable(
            f"{files.certificate!r} or {files.key!r} can't be read: {error.strerror}: let the user of this process "
            "read both"
        ) from error
    except _Encrypted:
        raise CertificateUnusable(
            f"the key {files.key!r} is encrypted: give one without a password, in a file that only the user of this "
            "process may read"
        ) from None
    return context


class _Encrypted(Exception):
    """The key is encrypted."""


def _refuse_password() -> NoReturn:
    """Keep OpenSSL from asking for the password at the terminal, and waiting."""
    raise _Encrypted


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or type(error).__name__)


_AS_CLIENT: Final = (ssl.PROTOCOL_TLS_SERVER, "client")
_AS_SERVER: Final = (ssl.PROTOCOL_TLS_CLIENT, "server")
_USES: Final = {
    CLIENT: (_AS_CLIENT,),
    SERVER: (_AS_SERVER, _AS_CLIENT),
    STORAGE: (_AS_SERVER,),
    PLAYER: (_AS_CLIENT,),
    TARGET: (_AS_SERVER,),
}
"""For each role, the sides that verify its certificate, each with the use of TLS that it must allow for. A process that
dials is a client of TLS, whatever its role."""


def _own_certificate(files: TlsFiles) -> Mapping[str, Any]:
    """Return this process's certificate, verified by its own CAs for one of the uses of TLS."""
    error = _verified(files, ssl.PROTOCOL_TLS_SERVER)
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == WRONG_PURPOSE:
        error = _verified(files, ssl.PROTOCOL_TLS_CLIENT)
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == EXPIRED:
        raise CertificateUnusable(_expired(files))
    if isinstance(error, ssl.SSLCertVerificationError):
        raise CertificateUnusable(f"this process's certificate {files.certificate!r} {why_untrusted(error)}") from None
    if isinstance(error, ssl.SSLError):
        raise CertificateUnusable(
            f"the certificate {files.certificate!r} can't be used ({_reason(error)}): issue another one"
        ) from None
    return error


def _expired(files: TlsFiles) -> str:
    """Return what is told of files with an expired certificate, which may be that of a CA."""
    remedy = "replace its file, which is read again by itself"
    verified = _verified(files, ssl.PROTOCOL_TLS_SERVER, _NO_CHECK_TIME)
    if isinstance(verified, ssl.SSLError):
        return f"this process's certificate {files.certificate!r} has expired: {remedy}"
    if (expires_s := said_by(verified).expires_s) > time.time():
        return (
            f"a CA in front of it has expired, and not this process's certificate {files.certificate!r} itself: "
            f"replace that CA's certificate in {files.ca!r}, or behind this process's own"
        )
    return f"this process's certificate {files.certificate!r} has expired on {_day(expires_s)}: {remedy}"


def _check_use(files: TlsFiles, role: str) -> None:
    for verifier, use in _USES[role]:
        error = _verified(files, verifier)
        if isinstance(error, ssl.SSLError):
            raise CertificateUnusable(
                f"the certificate {files.certificate!r} was not issued for the use as a {use} of TLS, which a {role} "
                f"needs: issue one whose extended key usage has {use}Auth ({_reason(error)})"
            ) from None


def _verified(files: TlsFiles, verifier: ssl._SSLMethod, flags: int = 0) -> Mapping[str, Any] | ssl.SSLError:
    """Return the certificate as `verifier` verified it against itself, or the error of that handshake. `verifier` is
    the `ssl.PROTOCOL_…` of the side that verifies, `flags` are more of OpenSSL's flags for that."""
    server, client = _loaded(files, ssl.PROTOCOL_TLS_SERVER), _loaded(files, ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.verify_flags |= flags
    client.check_hostname = False
    (client if verifier is ssl.PROTOCOL_TLS_SERVER else server).verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    dialling = client.wrap_bio(to_client, to_server)
    for _ in range(3):  # hello, certificates, verification
        for side in (dialling, accepting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError as waiting:
                if isinstance(waiting.__cause__, ssl.SSLError):
                    return waiting.__cause__
            except ssl.SSLError as error:
                return error
    return (accepting if verifier is ssl.PROTOCOL_TLS_SERVER else dialling).getpeercert() or {}


# ---------------------------------------------------------------------- handshakes that tell why they fail


class _TellingHandshake(ssl.SSLObject):
    """An `SSLObject` whose failed handshake is told to the peer. asyncio and uvloop drop the alert that OpenSSL has
    written for the peer. So `do_handshake` first reports a wait for more bytes, before which the event loop sends what
    is written, and raises the failure when it is called again."""

    unsent: ssl.MemoryBIO | None = None
    """What the event loop will send; None if failures are not to be told."""
    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            failures.get([]).append(error)
            if self.unsent is None or not self.unsent.pending:
                raise
            self._failure = error
            raise ssl.SSLWantReadError from error


class _TellingContext(ssl.SSLContext):
    """Accepted connections tell the peer why they are refused; dialled ones fail at once."""

    sslobject_class = _TellingHandshake

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool = False, *rest: Any, **options: Any
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, *rest, **options)
        if server_side and isinstance(made, _TellingHandshake):
            made.unsent = outgoing
        return made
