"""Commands that other packages bring are added by their entry points, and told of when they are missing or broken."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from polonaise.cli import application
from polonaise.errors import ExtraMissing
from rigs.programs import run_program


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points that are installed: none, until a test adds some."""
    installed: list[EntryPoint] = []
    monkeypatch.setattr(application, "entry_points", lambda group: list(installed))
    return installed


def with_commands() -> typer.Typer:
    made = typer.Typer()

    @made.command("own")
    def own() -> None:
        typer.echo("own")

    application._add_commands(made)
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
