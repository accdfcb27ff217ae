"""docs/testing.md tells the truth: its example is a test module that passes, and its table names every fault."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from polonaise.testing import Faults

DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.mark.slow
def test_the_example_passes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "test_example.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    command += ["-o", "asyncio_default_fixture_loop_scope=function"]
    command += ["--rootdir", str(tmp_path), "-W", "error", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_every_fault_is_in_the_table() -> None:
    told = DOCUMENT.read_text()
    for name, _ in inspect.getmembers(Faults, inspect.isfunction):
        if not name.startswith("_"):
            assert f"{name}" in told.split("## What can go wrong")[1]
