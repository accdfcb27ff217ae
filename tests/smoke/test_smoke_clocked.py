"""The wall clock of a node in a smoke test, which another process sets while the node runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from polonaise_proving.stages.hosts.clocked import clock_of, set_clock


def test_a_clock_is_set_while_somebody_goes_by_it(tmp_path: Path) -> None:
    set_clock(tmp_path / "clock", 0.0)
    time_ns = clock_of(tmp_path / "clock", lambda: 7)
    assert time_ns() == 7
    set_clock(tmp_path / "clock", 86_400.0)
    assert time_ns() == 86_400 * 10**9 + 7
    set_clock(tmp_path / "clock", -1.0)
    assert time_ns() == 7 - 10**9


def test_a_command_runs_by_the_clock_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "teller.py").write_text("import sys, time\nprint(time.time(), time.time_ns(), *sys.argv[1:])\n")
    set_clock(tmp_path / "clock", 86_400.0)
    command = [sys.executable, "-m", "polonaise_proving.stages.hosts.clocked", str(tmp_path / "clock")]
    done = subprocess.run(
        [*command, sys.executable, "-m", "teller", "--one", "two"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    seconds, nanoseconds, *arguments = done.stdout.split()
    assert 86_000 < float(seconds) - time.time() < 86_500
    assert 86_000 < int(nanoseconds) / 1e9 - time.time() < 86_500
    assert arguments == ["--one", "two"]
