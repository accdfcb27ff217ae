"""The command line itself: options of settings, tables, completion, and commands that other packages bring."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import polonaise
import polonaise_proving
from polonaise.admin.settingkeys import TABLES, SettingKey, SettingKind
from polonaise.cli import application as commands_module
from polonaise.cli.application import application
from polonaise.cli.exitstatus import ExitStatus
from polonaise.cli.output import print_table, say, tidy
from polonaise.errors import DiskFailed, ExtraMissing
from rigs.programs import run_program
from rigs.shell import Shell


def test_a_cell_that_is_a_list_has_a_line_for_each_of_its_items(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["partition", "problems"], [(0, ["one thing", "another\nthing"]), (1, []), (2, "a\x1b[31m")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "partition  problems",
        "0          one thing",
        r"           another\nthing",
        "1",
        r"2          a\x1b[31m",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
def test_no_text_is_written_with_the_markup_of_a_page() -> None:
    """A terminal shows it as it is: `the *coordinator*`. Docstrings may have it; they are not said to operators."""
    markup = re.compile(r"(?<![\w*])\*{1,2}[A-Za-z][\w -]*\*{1,2}(?!\w)")
    marked, looked_at = [], 0
    packages = (Path(package.__file__).parent for package in (polonaise, polonaise_proving))
    for path in (each for package in packages for each in package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        told = [each for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for each in told:
            looked_at += 1
            if id(each) not in docstrings and markup.search(str(each.value)):
                marked.append(f"{path.name}:{each.lineno}: {each.value}")
    assert marked == []
    assert looked_at > 1000


def test_a_fault_of_the_work_is_not_told_as_one_of_the_output() -> None:
    with pytest.raises(PermissionError), tidy():
        raise PermissionError("a directory")


def test_a_table_for_a_full_output_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with _output("/dev/full", monkeypatch), pytest.raises(DiskFailed, match="standard output can't be written"), tidy():
        print_table(["partition"], [["x" * 100_000]])  # more than is buffered


def test_a_line_that_is_written_only_at_the_end_of_a_full_output_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with _output("/dev/full", monkeypatch), pytest.raises(DiskFailed, match="standard output can't be written"), tidy():
        say("x")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["log create", "log append", "segment dump"])
def test_a_closed_output_is_told_before_anything_is_done(tmp_path: Path, command: str) -> None:
    line = [sys.executable, "-m", "polonaise.cli", *command.split(), f"embedded:{tmp_path / 'log'}"]
    ended = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *line], stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == ExitStatus.FAILED
    assert ended.stderr.startswith("polonaise: [disk_failed] standard output can't be written: it is closed")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_table_whose_reader_went_away_ends_as_every_output_does(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with _output(writer, monkeypatch), pytest.raises(typer.Exit) as ended, tidy():
        print_table(["partition"], [["x" * 100_000]])
    assert ended.value.exit_code == ExitStatus.READER_GONE


@contextmanager
def _output(target: str | int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with open(target, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        yield
        monkeypatch.undo()


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


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points that are installed: none, until a test adds some."""
    installed: list[EntryPoint] = []
    monkeypatch.setattr(commands_module, "entry_points", lambda group: list(installed))
    return installed


def with_commands() -> typer.Typer:
    made = typer.Typer()

    @made.command("own")
    def own() -> None:
        typer.echo("own")

    commands_module._add_commands(made)
    return made


def from_package(name: str, where: str) -> EntryPoint:
    return EntryPoint(name, where, "polonaise.commands")


@pytest.mark.parametrize("command", [["smoke", "--seed", "3"], ["demo", "bank"], ["demo", "shards", "--generate", "5"]])
def test_a_command_of_the_proving_ground_says_what_brings_it(packages: list[EntryPoint], command: list[str]) -> None:
    done = CliRunner().invoke(with_commands(), command)
    assert isinstance(done.exception, ExtraMissing)
    assert f"`polonaise {command[0]}` comes with another package: pip install 'polonaise[proving]'" in str(
        done.exception
    )


def test_a_command_that_is_missing_is_in_no_list_of_commands_and_its_help_says_what_brings_it(
    packages: list[EntryPoint],
) -> None:
    made = with_commands()
    assert "smoke" not in CliRunner().invoke(made, ["--help"]).output
    assert "polonaise[proving]" in CliRunner().invoke(made, ["smoke", "--help"]).output


def add_greeting(made: typer.Typer) -> None:
    @made.command("greet")
    def greet() -> None:
        typer.echo("hello")


def test_a_package_adds_what_its_entry_point_names(packages: list[EntryPoint]) -> None:
    packages.append(from_package("greet", f"{__name__}:add_greeting"))
    assert CliRunner().invoke(with_commands(), ["greet"]).output == "hello\n"


def add_nothing(made: typer.Typer) -> None:
    raise RuntimeError("of another version, see https://u:secret@host/")


@pytest.mark.parametrize("where", ["no.such.package:add_to", f"{__name__}:not_there", f"{__name__}:add_nothing"])
def test_a_package_that_is_broken_leaves_the_other_commands(packages: list[EntryPoint], where: str) -> None:
    packages.append(from_package("greet", where))
    made = with_commands()
    assert CliRunner().invoke(made, ["own"]).output == "own\n"
    done = CliRunner().invoke(made, ["greet", "--anything"])
    assert isinstance(done.exception, ExtraMissing)
    assert f"`polonaise greet` can't be loaded from {where}: " in str(done.exception)
    assert "secret" not in str(done.exception)


@pytest.mark.slow
def test_the_library_works_where_the_proving_ground_can_not_be_imported(tmp_path: Path) -> None:
    """What an environment without it looks like, but for the entry points, which say that it is there."""
    (tmp_path / "polonaise_proving.py").write_text("raise ImportError('not here')\n")
    done = run_program(sys.executable, "-m", "polonaise.cli", "--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


PROGRAM = Path(sys.executable).with_name("polonaise")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("polonaise clu", ["cluster"]), ("polonaise cluster st", ["status", "start"]), ("polonaise config sh", ["show"])],
)
def test_a_shell_is_offered_the_commands_that_begin_so(typed: str, offered: list[str]) -> None:
    environment = {
        **os.environ,
        "_POLONAISE_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    assert run_program(PROGRAM, environment=environment).stdout.split() == offered


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
@pytest.mark.parametrize("shell", ["nosuch", "--version nosuch", "bash zsh"])
def test_nothing_is_installed_for_a_shell_that_is_not_known(tmp_path: Path, option: str, shell: str) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    ended = run_program(PROGRAM, option, *shell.split(), environment=environment)
    assert ended.returncode == 1
    assert "bash, zsh, fish" in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_completion_is_installed_for_the_shell_that_is_named(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    run_program(PROGRAM, "--install-completion", "fish", environment=environment)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["polonaise.fish"]
