"""A process's TLS files: read, tried on each other, read again when they change, and refused by name."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from polonaise.admin import certificates
from polonaise.errors import AccessDenied, BadOption, CertificateUnusable
from polonaise.host import tls
from polonaise.host.tls import (
    CLIENT,
    EXPIRY_WARNING_S,
    RETRY_S,
    ROLE_URI,
    ROLE_WORDS,
    SERVER,
    STORAGE,
    VARIABLES,
    TlsFiles,
    TlsIdentity,
    files_in,
    said_by,
    tls_identity,
)
from rigs.privileges import unprivileged
from rigs.tls import EXPIRED_DAYS, Authority, replace
from rigs.waiting import block_until


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def refusal_of(files: TlsFiles) -> str:
    with pytest.raises(CertificateUnusable) as caught:
        TlsIdentity(files)
    return str(caught.value)


def refusal(files: TlsFiles) -> str:
    text = refusal_of(files)
    for line in Path(files.key).read_text().splitlines()[1:-1] if os.path.isfile(files.key) else []:
        assert line not in text, "no key material in an error"
    return text


def let_expire(ca: str, key: str) -> None:
    """Write the CA's own certificate anew, as one that has expired; what it issued goes on to be of it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    signing: Any = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    old = x509.load_pem_x509_certificate(Path(ca).read_bytes())
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), old.serial_number, now - timedelta(2), now - timedelta(1),
        list(old.extensions),
    )  # fmt: skip
    Path(ca).write_bytes(made.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def test_a_certificate_says_its_name_its_roles_and_its_last_day(ours: Authority) -> None:
    own = TlsIdentity(ours.node("n1", days=30)).own
    assert own.name == "n1"
    assert own.roles == {SERVER, STORAGE}
    assert 29 * 86_400 < own.expires_s - time.time() < 31 * 86_400
    assert TlsIdentity(ours.client()).own.roles == {CLIENT}


def test_a_certificate_without_a_name_is_called_that() -> None:
    said = said_by({"subject": (), "subjectAltName": ()})
    assert said.name == "without a name"
    assert said.may_be == "no role of Polonaise"
    assert said_by({"subjectAltName": (("DNS", "a\n\x1b[31mb"),)}).name == "a??[31mb"


@pytest.mark.parametrize("file", ["ca", "certificate", "key"])
def test_a_file_that_holds_something_else_is_refused_by_name(ours: Authority, file: str) -> None:
    files = ours.node()
    Path(getattr(files, file)).write_text("-----BEGIN SOMETHING-----\n")
    assert f"{getattr(files, file)!r} holds no " in refusal(files)


@pytest.mark.parametrize("file", ["ca", "certificate", "key"])
def test_a_file_with_damaged_contents_is_refused(ours: Authority, file: str) -> None:
    files = ours.node()
    path = Path(getattr(files, file))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "AAAA", lines[-1], ""]))
    assert getattr(files, file) in refusal(files)


def test_an_unreadable_key_is_refused_by_name(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    files = ours.node()
    below = Path(tempfile.gettempdir()).resolve()
    for path in (ours.directory, *(each for each in ours.directory.resolve().parents if below in each.parents)):
        os.chmod(path, 0o755)
    os.chmod(files.key, 0o000)
    with unprivileged():
        said = refusal_of(files)
    assert f"{files.key!r} can't be read: Permission denied" in said


def test_a_directory_in_place_of_a_key_is_refused(ours: Authority) -> None:
    files = ours.node()
    os.remove(files.key)
    os.mkdir(files.key)
    assert f"{files.key!r} can't be read: Is a directory" in refusal(files)


def in_place_of(kind: str, path: str) -> None:
    """Put something into a file's place from which nothing can be read, or no end."""
    os.remove(path)
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a device without an end":
            os.symlink("/dev/zero", path)
        case "a large file":
            with open(path, "wb") as file:
                file.truncate(2**40)


NO_FILES = ["nothing", "a pipe", "a device without an end", "a large file"]


@pytest.mark.parametrize("file", ["ca", "certificate", "key"])
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_can_not_be_read_to_its_end_is_refused_by_name_and_leaves_the_files_before_in_use(
    ours: Authority, file: str, kind: str
) -> None:
    files = ours.node()
    identity = TlsIdentity(files)
    context = identity.accepting()
    in_place_of(kind, getattr(files, file))
    assert identity.accepting() is context
    named = f"{'no file ' if kind == 'nothing' else ''}{getattr(files, file)!r}"
    assert named in identity.warning()
    assert named in refusal_of(files)


def test_a_key_that_does_not_fit_its_certificate_is_refused(ours: Authority) -> None:
    files, other = ours.node(), ours.node("other")
    said = refusal(TlsFiles(files.ca, files.certificate, other.key))
    assert f"the key {other.key!r} does not belong to the certificate {files.certificate!r}" in said


def test_an_encrypted_key_is_refused_and_no_password_asked_for(ours: Authority) -> None:
    from cryptography.hazmat.primitives import serialization

    files = ours.node()
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    form = serialization.PrivateFormat.PKCS8
    encryption = serialization.BestAvailableEncryption(b"hush")
    Path(files.key).write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    assert "is encrypted: give one without a password" in refusal(files)


def test_a_certificate_of_another_ca_is_refused_at_the_start(ours: Authority, tmp_path: Path) -> None:
    files, theirs = ours.node(), Authority(tmp_path / "theirs").node()
    assert "is not of a CA that this process trusts" in refusal(TlsFiles(theirs.ca, files.certificate, files.key))


def test_an_expired_certificate_is_refused_at_the_start(ours: Authority) -> None:
    now = datetime.now(UTC)
    said = refusal(ours.node(days=EXPIRED_DAYS))
    hours = {f"{now + timedelta(minutes=later):%Y-%m-%d %H:%M UTC}" for later in (-1, 0, 1)}
    assert any(f"has expired on {hour}: replace its file" in said for hour in hours), said


def test_an_expired_ca_is_not_told_as_the_certificate_that_it_issued(tmp_path: Path) -> None:
    """The certificate has years, and its CA has none: the hour is not the certificate's."""
    files = Authority(tmp_path / "old").node()
    let_expire(files.ca, f"{tmp_path}/old/ca-key.pem")
    said = refusal(files)
    assert "a CA in front of it has expired" in said
    assert files.ca in said


@pytest.mark.parametrize("file", ["ca", "certificate", "key"])
def test_a_file_that_was_written_in_half_is_named(ours: Authority, file: str) -> None:
    files = ours.node()
    path = Path(getattr(files, file))
    whole = path.read_bytes()
    for end in (len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:end])
        said = refusal(files)
        assert f"{str(path)!r} ends in the middle of a " in said
        assert "it was not written to its end: write it again" in said
        assert not [other for other in (files.ca, files.certificate, files.key) if other != str(path) and other in said]


def test_a_certificate_without_a_role_is_refused_at_the_start(ours: Authority) -> None:
    assert "names no role: issue one with a URI of urn:polonaise:client" in refusal(ours.issue("roleless"))


def test_a_certificate_for_another_role_is_refused_at_the_start(ours: Authority) -> None:
    with pytest.raises(CertificateUnusable, match="'client' is for client, and this process needs one for storage"):
        tls_identity(STORAGE, ours.client())


@pytest.mark.parametrize(("use", "fits"), [("serverAuth", {STORAGE}), ("clientAuth", {CLIENT})])
def test_a_certificate_for_another_use_is_refused_at_the_start(tmp_path: Path, use: str, fits: set[str]) -> None:
    files = issued_for(use, tmp_path)
    for role in (CLIENT, SERVER, STORAGE):
        if role in fits:
            assert tls_identity(role, files) is not None
        else:
            with pytest.raises(CertificateUnusable, match="issue one whose extended key usage has"):
                tls_identity(role, files)


def issued_for(use: str, directory: Path) -> TlsFiles:
    """Issue a certificate of all roles with this extended key usage, by openssl."""
    names = ",".join(f"URI:{ROLE_URI}{role}" for role in ROLE_WORDS)
    (directory / "ext").write_text(f"extendedKeyUsage={use}\nsubjectAltName={names}")
    for line in (
        "ecparam -name prime256v1 -genkey -noout -out ca-key.pem",
        "req -x509 -new -key ca-key.pem -days 9 -subj /CN=ca -out ca.pem",
        "ecparam -name prime256v1 -genkey -noout -out key.pem",
        "req -new -key key.pem -subj /CN=all -out csr",
        "x509 -req -in csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 9 -extfile ext -out certificate.pem",
    ):
        subprocess.run(["openssl", *line.split()], cwd=directory, check=True, capture_output=True)
    return TlsFiles(*(str(directory / name) for name in ("ca.pem", "certificate.pem", "key.pem")))


def test_a_part_of_the_files_is_refused_and_what_is_missing_named(ours: Authority) -> None:
    files = ours.node()
    with pytest.raises(BadOption, match="certificate and key not given"):
        files_in({"POLONAISE_TLS_CA": files.ca})
    assert files_in({}) is None
    with pytest.raises(BadOption, match="invalid TLS file key"):
        TlsFiles(files.ca, files.certificate, "")


@pytest.mark.parametrize("given", ["text", "bytes", "bytes path", "one line"])
def test_a_key_given_in_place_of_its_path_is_refused_and_not_shown(ours: Authority, given: str) -> None:
    files = ours.node()
    text = Path(files.key).read_text()
    secret = text.splitlines()[1]
    value: Any = {"text": text, "bytes": text.encode(), "bytes path": files.key.encode(), "one line": secret * 99}[
        given
    ]
    with pytest.raises(BadOption, match="give the path") as caught:
        TlsFiles(files.ca, files.certificate, value)
    assert secret not in str(caught.value)
    assert files.key not in str(caught.value)


def test_a_key_in_the_environment_is_refused_and_not_shown(ours: Authority) -> None:
    files = ours.node()
    text = Path(files.key).read_text()
    given = {variable: getattr(files, name) for name, variable in VARIABLES.items()}
    with pytest.raises(BadOption, match="POLONAISE_TLS_KEY in the environment") as caught:
        files_in({**given, "POLONAISE_TLS_KEY": text})
    assert text.splitlines()[1] not in str(caught.value)


def test_files_are_named_by_absolute_paths(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ours.node()
    monkeypatch.chdir(ours.directory)
    assert TlsFiles("ca.pem", "node.pem", "node-key.pem") == files


def test_a_replaced_certificate_is_used_at_once(ours: Authority) -> None:
    identity = TlsIdentity(ours.node(days=20))
    before, context = identity.own.expires_s, identity.accepting()
    assert identity.accepting() is context, "nothing is read while nothing changes"
    ours.node(days=40, renew=True)
    assert identity.accepting() is not context
    assert identity.own.expires_s > before


def test_files_that_can_not_be_used_leave_those_before_in_use_and_are_told_once(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files, other = ours.node(), ours.node("other", days=30)
    identity = TlsIdentity(files)
    context = identity.dialling()
    replace(files.certificate, other.certificate)  # its key comes in a moment
    caplog.clear()
    for _ in range(3):
        assert identity.dialling() is context
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "does not belong to the certificate" in caplog.text
    assert identity.trouble is not None
    replace(files.key, other.key)
    assert identity.dialling() is not context
    assert identity.own.name == "other"
    assert identity.trouble is None


@pytest.mark.slow
def test_a_certificate_that_is_not_valid_yet_is_tried_again(
    ours: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = time.time()
    files = ours.node()
    identity = TlsIdentity(files, wall_s=lambda: now_s)
    context = identity.accepting()
    monkeypatch.setattr(certificates, "_CLOCK", timedelta(seconds=-4))
    ours.node(renew=True)
    for _ in range(3):
        assert identity.accepting() is context
    assert "is not valid yet" in str(identity.trouble)
    caplog.clear()

    def taken() -> bool:
        nonlocal now_s
        now_s += RETRY_S
        return identity.accepting() is not context

    block_until(taken)
    assert identity.trouble is None
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == []


def test_files_that_can_not_be_opened_for_a_moment_are_tried_again_and_told_daily(
    ours: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = time.time()
    identity = TlsIdentity(ours.node(), wall_s=lambda: now_s)
    context = identity.accepting()
    tries = 0

    def no_descriptors(*_: Any, **__: Any) -> Any:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(tls, "open", no_descriptors, raising=False)
        ours.node(renew=True)
        for _ in range(3):
            assert identity.accepting() is context
        assert tries == 1, "not read for each connection"
        now_s += RETRY_S
        identity.accepting()
        assert tries == 2
        assert caplog.text.count("Too many open files") == 1
        now_s += 86_400
        identity.accepting()
        assert caplog.text.count("Too many open files") == 2
    now_s += RETRY_S
    assert identity.accepting() is not context
    assert identity.trouble is None


def test_files_of_another_role_leave_those_before_in_use(ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    files, client = ours.node(), ours.client()
    identity = tls_identity(STORAGE, files)
    assert identity is not None
    context = identity.accepting()
    replace(files.certificate, client.certificate)
    replace(files.key, client.key)
    assert identity.accepting() is context
    assert identity.own.roles == {SERVER, STORAGE}
    assert "'client' is for client, and this process needs one for storage" in caplog.text


def test_a_ca_that_is_taken_out_is_not_believed_though_this_certificate_is_of_it(
    ours: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, theirs = ours.node(), Authority(tmp_path / "theirs").node()
    identity = TlsIdentity(files)
    context = identity.accepting()
    before = {each["serialNumber"] for each in context.get_ca_certs()}
    replace(files.ca, theirs.ca)
    assert {each["serialNumber"] for each in identity.accepting().get_ca_certs()}.isdisjoint(before)
    assert {each["serialNumber"] for each in identity.dialling().get_ca_certs()}.isdisjoint(before)
    assert identity.own.name == "node", "its certificate is shown on"
    assert "the CAs are taken as they are now" in caplog.text
    warning = identity.warning()
    assert "is not of a CA that this process trusts" in warning
    assert "the CAs are taken as they are now" in warning, "no earlier file is in use"


def test_what_is_wrong_with_the_files_is_said_for_health(ours: Authority) -> None:
    now_s = time.time()
    files = ours.node(days=20)
    identity = TlsIdentity(files, wall_s=lambda: now_s)
    assert identity.warning() == ""
    os.remove(files.key)
    assert "no file" in identity.warning(), "looked at, though no connection is made"
    ours.node(days=20, renew=True)
    assert identity.warning() == ""
    now_s += 10 * 86_400
    assert f"the certificate {files.certificate!r} expires on " in identity.warning()
    now_s += 11 * 86_400
    assert f"the certificate {files.certificate!r} has expired on " in identity.warning()


def test_a_certificate_that_expires_soon_is_told_once_a_day(ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    now_s = time.time()
    identity = TlsIdentity(ours.node(days=20), wall_s=lambda: now_s)
    assert caplog.records == []
    now_s += 20 * 86_400 - EXPIRY_WARNING_S + 60
    for _ in range(3):
        identity.accepting()
    assert len(caplog.records) == 1
    now_s += 86_400
    identity.accepting()
    assert len(caplog.records) == 2


def test_a_process_tells_once_a_day_of_a_certificate_however_many_identities_it_has(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Each look at a server of ZooKeeper makes an identity of its own."""
    now_s = time.time()
    files, other = ours.node(days=1), ours.node("other", days=1)
    kept = TlsIdentity(files, wall_s=lambda: now_s)
    for each in (files, files, other):
        TlsIdentity(each, wall_s=lambda: now_s)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"], "one of each certificate"
    caplog.clear()
    now_s += 86_400 + 120
    for _ in range(3):
        kept.accepting()
        TlsIdentity(files, wall_s=lambda: now_s)
    (record,) = caplog.records
    assert record.levelname == "ERROR", "it has expired, and its end is told once more"
    assert "has expired on " in record.getMessage()
    assert "replace the file" in record.getMessage()


def test_a_certificate_that_has_expired_is_told_though_its_coming_end_was_told_within_the_day(
    ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = time.time()
    identity = TlsIdentity(ours.node(days=1), wall_s=lambda: now_s)
    now_s = identity.own.expires_s + 1
    identity.accepting()
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_a_key_that_others_may_read_is_told_once_a_day(ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    files = ours.node()
    os.chmod(files.key, 0o644)
    for _ in range(3):
        TlsIdentity(files)
    assert caplog.text.count(f"everybody on this machine may read the private key {files.key!r}") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="files of root's are for a group that root has chosen")
def test_a_key_that_a_group_may_read_is_told(ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    files = ours.node()
    os.chmod(files.key, 0o640)
    TlsIdentity(files)
    assert f"a whole group may read the private key {files.key!r}" in caplog.text


def test_a_certificate_by_openssl_as_the_page_says_it_will_do(tmp_path: Path) -> None:
    """The commands of docs/tls.md for a CA of one's own."""
    page = (Path(__file__).parents[2] / "docs" / "tls.md").read_text()
    commands = page.split("<!-- openssl -->", 1)[1].split("```sh\n", 1)[1].split("```", 1)[0]
    subprocess.run(["sh", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    files = TlsFiles(str(tmp_path / "ca.pem"), str(tmp_path / "node1.pem"), str(tmp_path / "node1-key.pem"))
    assert TlsIdentity(files).own.roles == {SERVER, STORAGE}
    assert "-----BEGIN PRIVATE KEY-----" in Path(files.key).read_text(), "PKCS#8, as ZooKeeper wants it"


def test_a_directory_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    for path in (tmp_path.parent.parent, tmp_path.parent, tmp_path):
        os.chmod(path, 0o755)
    locked.chmod(0o555)
    with unprivileged(), pytest.raises(AccessDenied):
        Authority(locked / "ca").node()
