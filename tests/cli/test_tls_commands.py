"""`polonaise tls`: certificates for development, and a look at files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from polonaise.admin import certificates
from polonaise.admin.certificates import files_of_holder
from polonaise.cli.application import application
from polonaise.host.tls import CLIENT, PLAYER, SERVER, STORAGE, TARGET, TlsIdentity
from rigs.shell import Shell


def commands(group: Any, name: str = "polonaise") -> Iterator[tuple[str, set[str]]]:
    """Yield the name and the parameters of each command below a group."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", {parameter.name for parameter in command.params}


def test_each_command_that_connects_to_a_cluster_takes_tls_files() -> None:
    addresses = {"coordinator", "address", "argument", "arguments", "log_option", "repair"}
    connecting = [(name, has) for name, has in commands(get_command(application)) if has & addresses]
    assert len(connecting) > 30
    assert [name for name, has in connecting if "tls_ca" not in has] == []


def test_init_makes_a_ca_one_for_nodes_and_one_for_clients(shell: Shell, tmp_path: Path) -> None:
    said = shell.run("tls", "init", tmp_path / "tls", "--json")
    assert [(each["name"], each["roles"], each["hosts"]) for each in said.objects] == [
        ("localhost", "server,storage", "localhost,127.0.0.1,::1"),
        ("client", "client", ""),
    ]
    assert TlsIdentity(files_of_holder(tmp_path / "tls", "localhost")).own.roles == {SERVER, STORAGE}
    assert TlsIdentity(files_of_holder(tmp_path / "tls", "client")).own.roles == {CLIENT}
    assert "PRIVATE" not in said.output


def test_init_makes_those_of_players_and_targets_by_their_names(shell: Shell, tmp_path: Path) -> None:
    said = shell.run("tls", "init", tmp_path, "--target", "localhost", "--player", "accounts", "--json")
    assert [(each["name"], each["roles"], each["hosts"]) for each in said.objects] == [
        ("localhost-target", "target", "localhost,127.0.0.1,::1"),
        ("accounts", "client,player", ""),
    ]
    for name, roles in (("localhost-target", (TARGET,)), ("accounts", (CLIENT, PLAYER))):
        for role in roles:
            assert TlsIdentity(files_of_holder(tmp_path, name), role).own.roles == {*roles}


def test_keys_can_be_read_by_their_user_only(shell: Shell, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        shell.run("tls", "init", tmp_path / "tls")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert {modes[name] for name in modes if name.endswith("-key.pem")} == {0o600}
    assert len(modes) == 6


def test_init_adds_certificates_of_the_same_ca(shell: Shell, tmp_path: Path) -> None:
    shell.run("tls", "init", tmp_path)
    ca = (tmp_path / "ca.pem").read_bytes()
    said = shell.run("tls", "init", tmp_path, "--node", "n1.example.com,192.0.2.1", "--client", "billing")
    assert [row[0] for row in said.rows] == ["n1.example.com", "billing"]
    assert (tmp_path / "ca.pem").read_bytes() == ca
    assert TlsIdentity(files_of_holder(tmp_path, "n1.example.com")).own.name == "n1.example.com"


def test_a_certificate_that_exists_is_replaced_only_when_that_is_said(shell: Shell, tmp_path: Path) -> None:
    shell.run("tls", "init", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shell.refuses("tls", "init", tmp_path, code="already_initialized", naming="replace them with --renew")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert shell.run("tls", "init", tmp_path, "--renew", "--days", 2).status == 0
    changed = {path.name for path in tmp_path.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"localhost.pem", "client.pem"}, "the keys and the CA stay"
    TlsIdentity(files_of_holder(tmp_path, "localhost"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--node", "a b"),
        ("--node", ""),
        ("--node", "a..b"),
        ("--node", "a,\u212a.example"),
        ("--client", "../x"),
        ("--client", "ca"),
        ("--client", "x-key"),
    ],
)
def test_a_name_that_is_none_is_refused(shell: Shell, tmp_path: Path, option: str, value: str) -> None:
    shell.refuses(
        "tls", "init", tmp_path / "tls", option, value, code="bad_option", naming=repr(value.rpartition(",")[2])
    )
    assert not (tmp_path / "tls").exists()


@pytest.mark.parametrize("days", ["0", "-1", "nan", "100000"])
def test_a_number_of_days_that_is_none_is_refused(shell: Shell, tmp_path: Path, days: str) -> None:
    shell.refuses("tls", "init", tmp_path / "tls", "--days", days, code="bad_option", naming="invalid number of days")


def test_two_certificates_of_one_name_are_refused(shell: Shell, tmp_path: Path) -> None:
    shell.refuses("tls", "init", tmp_path, "--node", "a", "--client", "a", code="bad_option", naming="of one name")


@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem"])
def test_a_ca_that_is_damaged_or_half_there_is_refused(shell: Shell, tmp_path: Path, name: str) -> None:
    shell.run("tls", "init", tmp_path)
    (tmp_path / name).write_text("no PEM")
    shell.refuses("tls", "init", tmp_path, "--client", "b", code="certificate_unusable", naming=name)
    (tmp_path / name).unlink()
    shell.refuses("tls", "init", tmp_path, "--client", "c", code="not_found", naming=name)


def test_a_ca_whose_key_is_anothers_issues_nothing(shell: Shell, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for directory in (ours, theirs):
        shell.run("tls", "init", directory)
    both = (theirs / "ca.pem").read_bytes() + (ours / "ca.pem").read_bytes()
    (ours / "ca.pem").write_bytes(both)
    before = (ours / "localhost.pem").read_bytes()
    naming = "does not belong to the first certificate"
    shell.refuses("tls", "init", ours, "--client", "b", code="certificate_unusable", naming=naming)
    shell.refuses("tls", "init", ours, "--renew", code="certificate_unusable", naming=naming)
    assert (ours / "localhost.pem").read_bytes() == before
    assert not (ours / "b-key.pem").exists()


def test_an_expired_ca_issues_nothing(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "CA_DAYS", 0)
    certificates._authority(tmp_path)
    shell.refuses("tls", "init", tmp_path, code="certificate_unusable", naming="has expired on")
    assert not (tmp_path / "client.pem").exists()


def test_a_key_that_others_may_read_is_not_used_again(shell: Shell, tmp_path: Path) -> None:
    shell.run("tls", "init", tmp_path)
    (tmp_path / "client-key.pem").chmod(0o640)
    renewing = ("tls", "init", tmp_path, "--client", "client", "--renew")
    shell.refuses(*renewing, code="certificate_unusable", naming="client-key.pem': run chmod 600")
    shell.refuses(*renewing, code="certificate_unusable", naming="remove it, and replace its certificate with --renew")


def test_a_key_of_the_ca_that_others_may_read_asks_for_a_new_ca_if_somebody_has_it(
    shell: Shell, tmp_path: Path
) -> None:
    shell.run("tls", "init", tmp_path)
    (tmp_path / "ca-key.pem").chmod(0o640)
    renewing = ("tls", "init", tmp_path, "--client", "client", "--renew")
    said = shell.run(*renewing)
    assert said.status == 1
    assert said.errors.startswith("polonaise: [certificate_unusable] ")
    assert "ca-key.pem': run chmod 600" in said.errors
    assert "make a new CA and all certificates in a new directory" in said.errors
    assert "take the old CA out of the ca.pem of every process" in said.errors
    assert "--renew" not in said.errors


def test_a_host_of_a_long_name_may_be_the_first(shell: Shell, tmp_path: Path) -> None:
    host = ".".join(["a" * 40, "b" * 40, "example"])
    name = shell.run("tls", "init", tmp_path, "--node", host).rows[0][0]
    assert len(name) <= 64
    assert name.startswith("a" * 40 + ".b")
    assert TlsIdentity(files_of_holder(tmp_path, name)).own.roles == {SERVER, STORAGE}
    other = shell.run("tls", "init", tmp_path, "--node", f"{host}.org").rows[0][0]
    assert other != name


def test_two_at_once_make_one_ca(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda n: certificates.make(tmp_path, [certificates.client(f"c{n}")]), range(8)):
            pass
    for number in range(8):
        assert TlsIdentity(files_of_holder(tmp_path, f"c{number}")).own.roles == {CLIENT}, "of the CA that is there"


def test_check_says_what_a_certificate_is_for(shell: Shell, tmp_path: Path) -> None:
    shell.run("tls", "init", tmp_path)
    given = files_of_holder(tmp_path, "localhost")
    options = ["--tls-ca", given.ca, "--tls-certificate", given.certificate, "--tls-key", given.key]
    said = shell.run("tls", "check", *options)
    assert said.output.startswith("localhost is for server and storage, until 20")
    assert shell.run("tls", "check", *options, "--json").objects[0]["roles"] == ["server", "storage"]
    assert "POLONAISE_TLS_CA" not in os.environ, "options of one command stay with it"


def test_check_names_what_is_wrong(shell: Shell, tmp_path: Path) -> None:
    shell.run("tls", "init", tmp_path)
    given = files_of_holder(tmp_path, "localhost")
    shell.refuses("tls", "check", code="bad_option", naming="no TLS files are named: give --tls-ca")
    shell.refuses("tls", "check", "--tls-ca", given.ca, code="bad_option", naming="certificate and key not given")
    options = ["--tls-ca", given.ca, "--tls-certificate", given.certificate, "--tls-key", tmp_path / "client-key.pem"]
    shell.refuses("tls", "check", *options, code="certificate_unusable", naming="does not belong to the certificate")
