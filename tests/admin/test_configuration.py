"""Settings from the command line, the environment and a file: which counts, and what a value may look like."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from polonaise.admin.configuration import DEFAULT, configuration_of, variable_of
from polonaise.admin.settingkeys import TABLES
from polonaise.server.settings import ServerSettings
from polonaise.storage.settings import StorageSettings


def written(directory: Path, text: str) -> str:
    path = directory / "polonaise.toml"
    path.write_text(text)
    return str(path)


def test_without_anything_given_the_settings_are_the_defaults() -> None:
    assert configuration_of("server", None, {}, {}).server_settings() == ServerSettings()
    given = configuration_of("storage", None, {"directory": "/data"}, {})
    assert given.storage_settings() == StorageSettings("/data")


def test_the_command_line_counts_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "[server]\nlisten = 'file:1'\nsettle_s = 1\nwindow = 1\nwarn_s = 1\n")
    environment = {"POLONAISE_SERVER_LISTEN": "environment:1", "POLONAISE_SERVER_SETTLE_S": "2"}
    given = configuration_of("server", file, {"listen": "command:1", "evidence": None}, environment)
    assert [(name, given[name], given.given[name].origin) for name in ("listen", "settle_s", "window", "evidence")] == [
        ("listen", "command:1", "command line"),
        ("settle_s", 2.0, "environment POLONAISE_SERVER_SETTLE_S"),
        ("window", 1, f"file {file}"),
        ("evidence", False, "default"),
    ]
    settings = given.server_settings()
    assert (settings.listen, settings.settle_s, settings.window, settings.warn_s) == ("command:1", 2.0, 1, 1.0)


def test_a_rate_has_the_unit_of_a_rate() -> None:
    units = {key.name: key.unit for table in TABLES.values() for key in table if "bytes" in key.name}
    assert {unit for name, unit in units.items() if "_per_s" in name} == {"bytes per second"}
    assert {unit for name, unit in units.items() if "_per_s" not in name} == {"bytes"}


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "[storage]\nreads_max = 7\n")
    assert configuration_of("storage", None, {}, {"POLONAISE_CONFIG": file})["reads_max"] == 7
    assert configuration_of("storage", None, {}, {"POLONAISE_CONFIG": ""})["reads_max"] == 32


@pytest.mark.parametrize(
    ("table", "name", "text", "value"),
    [
        ("server", "cache_bytes_max", "64 MiB", 64 * 2**20),
        ("server", "cache_bytes_max", "1.5GiB", 3 * 2**29),
        ("server", "cache_bytes_max", "1000", 1_000),
        ("server", "cache_bytes_max", "2 MB", 2_000_000),
        ("server", "settle_s", "500 ms", 0.5),
        ("server", "scrub_every_s", "6 h", 21_600.0),
        ("server", "settle_s", "2 min", 120.0),
        ("server", "evidence", "yes", True),
        ("server", "evidence", "OFF", False),
        ("server", "storage", "a:1, b:1,", ("a:1", "b:1")),
        ("server", "preferred", "3, 0", frozenset({0, 3})),
        ("server", "copy_share", "0.5", 0.5),
        ("cluster", "port", "7000", 7_000),
    ],
)
def test_a_text_is_read_with_its_unit(table: str, name: str, text: str, value: object) -> None:
    assert configuration_of(table, None, {}, {variable_of(table, name): text})[name] == value


def test_a_list_may_be_written_as_one(tmp_path: Path) -> None:
    file = written(tmp_path, '[server]\nstorage = ["a:1", "b:1"]\n')
    assert configuration_of("server", file, {}, {})["storage"] == ("a:1", "b:1")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "service", ["SERVER", "STORAGE", "STORAGE_0", "STORAGE_METRICS", "CLUSTER", "COORDINATOR", "SERVERS", "METRICS"]
)
def test_what_kubernetes_sets_for_services_is_no_setting(table: str, service: str) -> None:
    links = {
        f"POLONAISE_{service}_{end}": value
        for end, value in {
            "SERVICE_HOST": "10.0.0.1",
            "SERVICE_PORT": "7000",
            "SERVICE_PORT_CLIENTS": "7000",
            "PORT": "tcp://10.0.0.1:7000",
            "PORT_7000_TCP": "tcp://10.0.0.1:7000",
            "PORT_7000_TCP_PROTO": "tcp",
            "PORT_7000_TCP_PORT": "7000",
            "PORT_7000_TCP_ADDR": "10.0.0.1",
        }.items()
    }
    given = configuration_of(table, None, {}, links)
    assert {each.origin for each in given.given.values()} == {DEFAULT}


def test_an_empty_variable_does_not_override_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "[storage]\nreads_max = 7\n")
    given = configuration_of("storage", file, {}, {"POLONAISE_STORAGE_READS_MAX": ""})
    assert given["reads_max"] == 7


def test_variables_that_are_no_settings_are_no_mistakes() -> None:
    others = {
        "POLONAISE_LOG": "l",
        "POLONAISE_CI": "1",
        "POLONAISE_TLS_CA": "ca.pem",
        "POLONAISE_COORDINATOR": "file:c",
    }
    foreign = {"POLONAISE_VERSION": "1.2", "POLONAISE_HOME": "/srv", "POLONAISE": "x", "XPOLONAISE_SERVER_LISTN": "a:1"}
    for table in TABLES:
        given = configuration_of(table, None, {}, {**others, **foreign})
        assert {each.origin for each in given.given.values()} == {DEFAULT}


def test_a_value_is_shown_without_its_secrets() -> None:
    variable = variable_of("server", "fragments")
    given = configuration_of("server", None, {}, {variable: "s3://bucket?aws_secret_access_key=hush"})
    assert "hush" not in given.given["fragments"].shown
    assert "hush" in given["fragments"]


def test_the_links_of_nodes_have_the_settings_that_are_given() -> None:
    given = configuration_of("server", None, {}, {variable_of("server", "silence_s_max"): "20"})
    assert given.server_settings().link.silence_s_max == 20.0


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_has_a_meaning_and_a_default_within_its_bounds(table: str) -> None:
    for key in TABLES[table]:
        assert key.meaning.endswith((".", "…."))
        if isinstance(key.default, int | float) and not isinstance(key.default, bool):
            assert key.least <= key.default <= key.most, key


def test_every_setting_of_a_node_is_a_field_or_named_beside_them() -> None:
    link = {"heartbeat_s", "silence_s_max"}
    names = {key.name for key in TABLES["server"]} - {field.name for field in fields(ServerSettings)}
    assert names - link == {"coordinator", "storage", "partitions", "fragments", "http", "log_format"}
    names = {key.name for key in TABLES["storage"]} - {field.name for field in fields(StorageSettings)}
    assert names - link == {"http", "log_format"}
