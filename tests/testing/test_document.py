"""docs/testing.md tells the truth: its example is a test module that passes, and its table names every fault."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from polonaise.testing import Faults
from rigs.programs import output_of, run_python

DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.mark.slow
def test_the_example_passes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "test_example.py").write_text(example)
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    command += ["-o", "asyncio_default_fixture_loop_scope=function", "--rootdir", tmp_path, "-W", "error", tmp_path]
    assert "5 passed" in output_of(run_python(*command, within_s=120, cwd=tmp_path))


def test_every_fault_is_in_the_table() -> None:
    told = DOCUMENT.read_text()
    for name, _ in inspect.getmembers(Faults, inspect.isfunction):
        if not name.startswith("_"):
            assert f"{name}" in told.split("## What can go wrong")[1]
