"""The demo that is told to stop, early or late: no traceback, no process and no directory stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

WITHIN_S = 30.0
INTERRUPTED = 130


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


def until(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGINT, "storage-0"), (signal.SIGTERM, "storage-2"), (signal.SIGTERM, "server run")],
)
def test_a_demo_that_is_told_to_stop_takes_all_of_it_along(number: signal.Signals, when: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polonaise.cli", "demo", "bank", "--generate", "100000"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        until(lambda: any(when in line for line in session_of(process)))
        process.send_signal(number)
        output, _ = process.communicate(timeout=WITHIN_S)
    assert "Traceback" not in output
    assert session_of(process) == []
    assert process.returncode == INTERRUPTED
    assert list(tmp_path.iterdir()) == []
