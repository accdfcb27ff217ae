"""Shells complete the command line: what comes after `polonaise` is found by asking the command itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rigs.programs import run_program

PROGRAM = Path(sys.executable).with_name("polonaise")


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM.exists(), reason="the command is not installed beside this Python")
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
