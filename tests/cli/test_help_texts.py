"""What `--help` prints of every command is for users: no names of Python's, and none of this library's modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from polonaise.cli.application import application
from rigs.shell import get_command

pytestmark = pytest.mark.slow

INTERNAL = re.compile(r"<[^>]*\.[^>]*>|collections\.abc|typing\.|<(function|class|lambda)|\bNoneType\b")


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, (*path, name))


def test_no_help_names_a_type_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # so that no name is broken at the end of a line
    monkeypatch.setattr("typer.testing._get_command", get_command)
    paths = list(_commands(get_command(application)))
    assert len(paths) > 50
    leaks = []
    for path in paths:
        said = CliRunner().invoke(application, [*path, "--help"])
        assert said.exit_code == 0, path
        leaks += [(" ".join(path), line.strip()) for line in said.output.splitlines() if INTERNAL.search(line)]
    assert leaks == []
