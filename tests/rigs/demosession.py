"""A demo as a program in a session of its own: which of its processes live, and who ends it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rigs.hangup import sighup_by_default
from rigs.waiting import block_until

LOOK_S = 0.05
"""Seconds between two looks at all processes: each takes milliseconds, which those that are waited for lack."""


def until_ended(process: subprocess.Popen[str]) -> None:
    block_until(lambda: session_of(process) == [], "all processes of the demo have ended", every_s=LOOK_S)


def session_of(process: subprocess.Popen[str]) -> list[str]:
    """The command lines of the living processes that this one and its children are."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (entry / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == process.pid and state != "Z":
            found.append(command)
    return found


def started(command: list[str], directory: Path) -> subprocess.Popen[str]:
    """A program that SIGHUP ends unless it has that ignored itself, also where the tests were started by nohup."""
    with sighup_by_default():
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=directory,
            env={**os.environ, "TMPDIR": str(directory)},
        )


@contextlib.contextmanager
def demo_until(
    when: str, directory: Path, *before: str, demo: str = "bank", payments: int = 20_000
) -> Iterator[subprocess.Popen[str]]:
    """A demo in which a process with this in its command line has begun; killed at the end if it is still there."""
    command = [*before, sys.executable, "-m", "polonaise.cli", "demo", demo, "--generate", str(payments)]
    with started(command, directory) as process:
        try:
            block_until(lambda: any(when in line for line in session_of(process)), every_s=LOOK_S)
            yield process
        finally:
            process.kill()
