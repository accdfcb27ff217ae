"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def run(script: Path) -> str:
    command = [sys.executable, script.name]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_example_runs_as_it_stands_and_finds_its_log_again(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 1
    script = tmp_path / "bank.py"
    script.write_text(blocks[0])
    assert run(script) == "account 1 has 70\n"
    assert (tmp_path / "bank" / "host.lock").exists()
    assert run(script) == "account 1 has 140\n"
