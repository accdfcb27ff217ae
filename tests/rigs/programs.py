"""Runs programs to their end, and returns their output; starts commands that are talked to meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

POLONAISE = (sys.executable, "-m", "polonaise.cli")
STRICT = ("-X", "dev", "-W", "error")
"""Options of Python that make every warning an error."""


def run_program(
    *command: object, within_s: float | None = 60.0, environment: Mapping[str, str] | None = None, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, however long that takes if `within_s` is None; `environment` is added to this one's."""
    options = {"capture_output": True, "env": {**os.environ, **(environment or {})}, **how}
    return subprocess.run([str(word) for word in command], text=True, timeout=within_s, check=False, **options)


def run_python(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    return run_program(sys.executable, *arguments, **how)


def run_polonaise(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    return run_program(*POLONAISE, *arguments, **how)


def start_polonaise(*arguments: object, **how: Any) -> subprocess.Popen[str]:
    """Start a command, whose standard input, output and errors are pipes unless `how` says otherwise."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*POLONAISE, *map(str, arguments)], text=True, **{**pipes, **how})


def output_of(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a program that must exit with status 0."""
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout
