"""Shells complete the command line: what comes after `polonaise` is found by asking the command itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rigs.programs import run_program

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
