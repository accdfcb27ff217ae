"""The options of a command that give settings are made from the table of settings: meanings, defaults and bounds."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from polonaise.admin.settingkeys import TABLES, SettingKey, SettingKind
from polonaise.cli.application import application
from rigs.shell import Shell

COMMANDS = {
    "server": ("server", "run"),
    "storage": ("storage", "run"),
    "player": ("player", "start"),
    "cluster": ("cluster", "start"),
}
OPTIONS = [(table, key) for table, keys in TABLES.items() for key in keys if key.option]
NUMBERS = [(table, key) for table, key in OPTIONS if key.kind in (SettingKind.COUNT, SettingKind.BYTES)]
IDS = "{0[0]} {0[1].option}".format


@pytest.mark.parametrize("table", TABLES)
def test_the_help_tells_what_each_setting_means(monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # so that no meaning is broken at the end of a line
    told = CliRunner().invoke(application, [*COMMANDS[table], "--help"]).output
    keys = [key for each, key in OPTIONS if each == table]
    assert len(keys) >= 4
    for key in keys:
        (line,) = [line for line in told.splitlines() if line.startswith(f"│ {key.option} ")]
        assert key.meaning in line


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("storage run", "Size of a segment file, in bytes. Default: 256 MiB."),
        ("server run", "with port 0 the system chooses one. Default: 127.0.0.1:0."),
        ("cluster start", "Start nodes again that end by themselves. Default: --restart."),
    ],
)
def test_the_help_tells_a_default(monkeypatch: pytest.MonkeyPatch, command: str, told: str) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert told in CliRunner().invoke(application, [*command.split(), "--help"]).output


@pytest.mark.parametrize(("table", "key"), NUMBERS, ids=map(IDS, NUMBERS))
def test_a_number_outside_the_bounds_is_no_valid_command_line(shell: Shell, table: str, key: SettingKey) -> None:
    for number in (key.least - 1, key.most + 1):
        said = shell.run(*COMMANDS[table], key.option, number)
        assert (said.status, key.option in said.errors) == (2, True)
