"""Settings that are wrong: each is named with where it is from and what would be right, and no node starts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from polonaise.admin.configuration import configuration_of
from polonaise.cli.exitstatus import ExitStatus
from polonaise.errors import AccessDenied, BadOption, DiskFailed, PolonaiseError
from rigs.shell import Shell


def refused(directory: Path, text: str | bytes, table: str = "server") -> str:
    path = directory / "p.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadOption) as error:
        configuration_of(table, str(path), {}, {})
    assert str(path) in error.value.text
    assert "\n" not in error.value.text
    return error.value.text


@pytest.mark.parametrize(
    ("text", "naming"),
    [
        ("[server]\nlistn = 'a:1'\n", "unknown setting server.listn, did you mean listen?"),
        ("[server]\nscrub_byte_per_s = 1\n", "did you mean scrub_bytes_per_s?"),
        ("[server]\nzzzzzz = 1\n", "`polonaise config show server` lists all"),
        ("[servers]\nlisten = 'a:1'\n", "unknown table servers, did you mean [server]?"),
        ("listen = 'a:1'\n", "unknown key listen: it belongs below [server] or [storage]"),
        ("[other]\n", "there are [server], [storage], [cluster], [player], [targets.NAME]"),
        ("server = 3\n", "write [server]"),
        ("[storage]\nread_max = 3\n", "unknown setting storage.read_max, did you mean reads_max?"),
    ],
)
def test_a_typo_is_told_with_the_nearest_right_name(tmp_path: Path, text: str, naming: str) -> None:
    assert naming in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("line", "naming"),
    [
        ("listen = 7000", "invalid server.listen 7000: write a text"),
        ("preferred = 'all'", "invalid server.preferred 'all': write numbers of partitions"),
        ("preferred = [-1]", "invalid server.preferred [-1]"),
        ("preferred = [1.5]", "invalid server.preferred [1.5]"),
        ("settle_s = 'soon'", "invalid server.settle_s 'soon': write seconds"),
        ("settle_s = true", "invalid server.settle_s True"),
        ("settle_s = -1", "from 0 to 3600"),
        ("settle_s = nan", "invalid server.settle_s nan"),
        ("settle_s = inf", "invalid server.settle_s inf"),
        ("window = 2.5", "a whole number"),
        ("window = 0", "from 1 to 64"),
        ("cache_bytes_max = '1.5'", "invalid server.cache_bytes_max"),
        ("cache_bytes_max = '12 parsecs'", "bytes"),
        ("cache_bytes_max = '12 s'", "bytes"),
        ("evidence = 'perhaps'", "true or false"),
        ("evidence = 1", "true or false"),
        ("storage = [1, 2]", "a list"),
        ("storage = {a = 1}", "a list"),
        ("lock_entries = 99999999999999999999999999", "invalid server.lock_entries"),
        ("copy_share = 0", "server.copy_share"),
        ('listen = "a\\u0000b"', "invalid server.listen"),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_bounds(tmp_path: Path, line: str, naming: str) -> None:
    assert naming in refused(tmp_path, f"[server]\n{line}\n")


def test_all_mistakes_are_told_at_once_and_many_are_counted(tmp_path: Path) -> None:
    text = refused(tmp_path, "[server]\n" + "".join(f"typo_{number} = 1\n" for number in range(9)))
    assert text.count("unknown setting") == 5
    assert text.endswith("and 4 more")


def test_a_mistake_in_another_nodes_table_is_told_as_well(tmp_path: Path) -> None:
    assert "storage.reads_max" in refused(tmp_path, "[storage]\nreads_max = 'x'\n", "server")


def test_settings_that_contradict_each_other(tmp_path: Path) -> None:
    text = refused(tmp_path, "[server]\nheartbeat_s = 10\n")
    assert "silence_s_max is 5 (default)" in text


def test_more_bytes_to_copy_at_least_than_at_most(tmp_path: Path) -> None:
    text = refused(tmp_path, '[server]\ncopy_bytes_per_s = "512 KiB"\n')
    assert "copy_bytes_per_s is 512 KiB" in text
    assert "copy_bytes_per_s_min is 1 MiB (default)" in text


@pytest.mark.parametrize("raw", [b"[server\n", b"\xff\xfe", b"a = 1\na = 2\n", b"[server]\nlisten = \n"])
def test_a_file_that_is_no_toml(tmp_path: Path, raw: bytes) -> None:
    assert "is no valid TOML" in refused(tmp_path, raw)


def test_a_file_that_is_far_too_large(tmp_path: Path) -> None:
    assert "no configuration file" in refused(tmp_path, b"#" * (2 * 1024 * 1024))


@pytest.mark.parametrize(
    ("path", "error"), [("missing.toml", BadOption), (".", DiskFailed), ("a.txt/b.toml", DiskFailed)]
)
def test_a_file_that_can_not_be_read(tmp_path: Path, path: str, error: type[PolonaiseError]) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(error):
        configuration_of("server", str(tmp_path / path), {}, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("")
    path.chmod(0)
    with pytest.raises(AccessDenied):
        configuration_of("server", str(path), {}, {})


def test_a_wrong_variable_is_named_and_its_secret_is_not(tmp_path: Path) -> None:
    environment = {
        "POLONAISE_STORAGE_LISTN": "a:1",
        "POLONAISE_STORAGE_READS_MAX": "?password=hush",
    }
    with pytest.raises(BadOption) as error:
        configuration_of("storage", None, {}, environment)
    assert "environment POLONAISE_STORAGE_LISTN: unknown setting storage.listn, did you mean listen?" in str(
        error.value
    )
    assert "environment POLONAISE_STORAGE_READS_MAX: invalid" in str(error.value)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("POLONAISE_SERVRE_SETTLE_S", "POLONAISE_SERVER_SETTLE_S"),
        ("POLONAISE_SERVERS_SETTLE_S", "POLONAISE_SERVER_SETTLE_S"),
        ("POLONAISE_STORGE_LISTEN", "POLONAISE_STORAGE_LISTEN"),
        ("POLONAISE_SETTLE_S", "POLONAISE_SERVER_SETTLE_S"),
        ("POLONAISE_COFNIG", "POLONAISE_CONFIG"),
        ("POLONAISE_TLS_CERT", "POLONAISE_TLS_CERTIFICATE"),
    ],
)
def test_a_variable_with_a_typo_before_its_setting(variable: str, meant: str) -> None:
    for table in ("server", "storage", "cluster"):
        with pytest.raises(BadOption) as error:
            configuration_of(table, None, {}, {variable: "hush"})
        assert f"environment {variable}: there is no such variable, did you mean {meant}?" in str(error.value)
        assert "hush" not in str(error.value)


@pytest.mark.parametrize("table", ["server", "storage"])
def test_a_variable_without_its_table_is_taken_for_one_of_the_node_that_is_started(table: str) -> None:
    with pytest.raises(BadOption, match=f"did you mean POLONAISE_{table.upper()}_LISTEN"):
        configuration_of(table, None, {}, {"POLONAISE_LISTEN": "a:1"})


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        (
            "POLONAISE_STORAGE_SETTLE_S",
            "storage.settle_s: it is one of server (POLONAISE_SERVER_SETTLE_S, or [server])",
        ),
        ("POLONAISE_STORAGE_COORDINATOR", "storage.coordinator: it is one of server and cluster"),
        ("POLONAISE_STORAGE_TLS_CA", "there is no such variable, did you mean POLONAISE_TLS_CA?"),
        ("POLONAISE_STORAGE_CONFIG", "there is no such variable, did you mean POLONAISE_CONFIG?"),
    ],
)
def test_a_variable_with_the_prefix_of_another_kind_of_node(variable: str, told: str) -> None:
    with pytest.raises(BadOption, match=re.escape(told)):
        configuration_of("storage", None, {}, {variable: "1"})


@pytest.mark.parametrize(
    ("command", "variable", "read"),
    [
        (("server", "run"), "POLONAISE_COORDINATOR", "give --coordinator, POLONAISE_SERVER_COORDINATOR in the environ"),
        (("player", "start", "--name", "p"), "POLONAISE_LOG", "give --log, POLONAISE_PLAYER_LOG in the environment"),
        (("cluster", "start"), "POLONAISE_STORAGE_DIRECTORY", "give --directory, POLONAISE_CLUSTER_DIRECTORY in the"),
        (("storage", "run"), "POLONAISE_CLUSTER_DIRECTORY", "give --directory, POLONAISE_STORAGE_DIRECTORY in the"),
        (("cluster", "create", "--storage", "a=a:1"), "POLONAISE_CLUSTER_COORDINATOR", "POLONAISE_SERVER_COORDINATOR"),
        (("cluster", "status"), "POLONAISE_SERVER_COORDINATOR", "or set POLONAISE_COORDINATOR"),
        (("cluster", "status"), "POLONAISE_CORDINATOR", "or set POLONAISE_COORDINATOR"),
        (("log", "health"), "POLONAISE_PLAYER_LOG", "or in POLONAISE_LOG"),
    ],
)
def test_what_is_given_where_it_is_not_read_is_told_with_what_is_missing(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], variable: str, read: str
) -> None:
    for other in ("POLONAISE_COORDINATOR", "POLONAISE_LOG"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, "hush")
    said = shell.run(*command)
    assert read in said.errors
    assert said.errors.endswith(f"({variable} is set, and not read here)\n")
    assert "hush" not in said.errors


@pytest.mark.parametrize("command", [("server", "run"), ("storage", "run")])
def test_a_node_whose_file_of_settings_is_missing_has_the_exit_status_for_settings(
    shell: Shell, tmp_path: Path, command: tuple[str, ...]
) -> None:
    said = shell.run(*command, "--config", tmp_path / "none.toml")
    assert said.status == ExitStatus.SETTINGS
    assert "[bad_option] there is no file" in said.errors
    assert "none.toml': correct the path in --config" in said.errors


def test_evidence_that_a_file_asks_for_can_be_refused_on_the_command_line(shell: Shell, tmp_path: Path) -> None:
    said = shell.run("server", "run", "--no-evidence")  # taken: what is missing is something else
    assert "--coordinator is not given" in said.errors


def test_a_port_that_no_service_has_is_no_link_of_kubernetes() -> None:
    with pytest.raises(BadOption, match=r"unknown setting server\.port"):
        configuration_of("server", None, {}, {"POLONAISE_SERVER_PORT": "7000"})


@pytest.mark.parametrize(
    ("node", "naming"),
    [("server", "POLONAISE_SERVER_COORDINATOR"), ("storage", "POLONAISE_STORAGE_DIRECTORY")],
)
def test_a_node_without_what_it_needs_says_how_to_give_it(shell: Shell, node: str, naming: str) -> None:
    shell.refuses(node, "run", code="bad_option", naming=naming)
    shell.refuses(node, "run", "--directory" if node == "storage" else "--coordinator", "", code="bad_option")


@pytest.mark.parametrize(
    "options", [("server", "--listen", "nowhere"), ("storage", "--directory", ""), ("storage", "--http", "nowhere")]
)
def test_a_node_that_can_never_run_with_its_settings_has_an_exit_status_of_its_own(
    shell: Shell, tmp_path: Path, options: tuple[str, ...]
) -> None:
    node, *given = options
    needed = {"server": ["--coordinator", f"file:{tmp_path / 'c'}"], "storage": ["--directory", tmp_path / "s"]}[node]
    said = shell.run(node, "run", *needed, *given)
    assert said.status == ExitStatus.SETTINGS, "systemd does not start it again"
    assert said.errors.startswith("polonaise: [bad_option] ")
    assert said.errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("server", "run"), ("storage", "run"), ("config", "show"), ("cluster", "start")])
def test_every_command_that_reads_a_file_refuses_a_typo_in_it(shell: Shell, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[server]\nlistn = 'a:1'\n")
    made = tmp_path / "d"
    options = ["--directory", made] if command[0] in ("storage", "cluster") else []
    shell.refuses(*command, *options, "--config", path, code="bad_option", naming="did you mean listen?")
    assert not made.exists()


def test_settings_of_an_unknown_node(shell: Shell) -> None:
    shell.refuses("config", "show", "client", code="bad_option", naming="server, storage, cluster")


@pytest.mark.parametrize(
    "address", ["zookeper://m1:2181/bank", "zookeeper://m1:2181", "zookeeper://m1:99999/bank", "x"]
)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_malformed_address_of_the_coordinator_has_the_exit_status_for_settings(
    shell: Shell, caplog: pytest.LogCaptureFixture, address: str, log_format: str
) -> None:
    said = shell.run("server", "run", "--coordinator", address, "--log-format", log_format)
    assert said.status == ExitStatus.SETTINGS
    assert "[bad_option]" in (said.errors if log_format == "text" else caplog.text)


def test_settings_that_a_node_would_refuse_are_shown_with_its_exit_status(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[server]\nlisten = 7\n")
    assert shell.run("config", "show", "--config", file).status == ExitStatus.SETTINGS


def test_a_file_of_settings_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(b'\xef\xbb\xbf[server]\nname = "till"\n')
    assert configuration_of("server", str(file), {}, {})["name"] == "till"
