"""A node ends with its parent, whatever state it is in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from polonaise.host.real import FAILED_EXIT_CODE, RealHost
from polonaise.log.control import ControlFile
from rigs.programs import run_polonaise, run_python
from rigs.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ENDS = "from polonaise.cli.running import stop_when_stdin_ends; import signal, threading; "


def test_a_node_whose_loop_hangs_is_killed_when_its_parent_has_ended() -> None:
    hangs = ENDS + "signal.signal(signal.SIGTERM, lambda *_: None); stop_when_stdin_ends(0.2)\nwhile True: pass"
    ended = run_python("-c", hangs, stdin=subprocess.DEVNULL)
    assert ended.returncode == -signal.SIGKILL


def test_the_fault_that_ends_a_node_is_told_in_the_format_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    ended = run_polonaise("storage", "run", "--directory", tmp_path / "file", "--log-format", "json")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    told = json.loads(line)
    assert told["level"] == "critical"
    assert told["message"].startswith("the node ends: [not_a_directory] ")


def test_a_node_that_works_stops_by_itself_when_its_parent_has_ended() -> None:
    works = ENDS + "signal.signal(signal.SIGTERM, lambda *_: exit(7)); stop_when_stdin_ends()\nwhile True: pass"
    assert run_python("-c", works, stdin=subprocess.DEVNULL).returncode == 7


HANGS = """
import threading
from polonaise.host import files

def hang(descriptor):
    print("hangs", flush=True)
    threading.Event().wait()

files._sync_data = hang
from polonaise.cli import main
main()
"""


async def _make_storage(directory: Path) -> None:
    with contextlib.closing(RealHost()) as host:
        await (await ControlFile.open(host, str(directory), b"k" * 16)).close()


def test_a_storage_node_whose_disk_hangs_does_not_outlive_its_stop_for_long(tmp_path: Path) -> None:
    asyncio.run(_make_storage(tmp_path))
    program = [sys.executable, "-c", HANGS, "storage", "run", "--directory", str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
            process.terminate()
            _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == FAILED_EXIT_CODE
    assert "What was acknowledged is durable" in errors
