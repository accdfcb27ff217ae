"""Python processes that start a Spark of their own, as a user's would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polonaise

SOURCE = str(Path(polonaise.__file__).parents[1])
STARTED_S = 300.0
_PROGRAMS = ("sh", "bash", "dirname", "cat", "env", "uname", "ps")
"""What Spark's scripts call."""


def path_without_java(directory: Path) -> str:
    """A `PATH` on which there is what Spark's scripts call, and no Java."""
    directory.mkdir(exist_ok=True)
    for name in _PROGRAMS:
        if (program := shutil.which(name)) is not None and not (directory / name).exists():
            (directory / name).symlink_to(program)
    return str(directory)


def run(
    script: str, tmp_path: Path, *, command: tuple[str, ...] = (sys.executable,), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script, with nothing of Spark's in its environment but what is given here."""
    file = tmp_path / "script.py"
    file.write_text(script)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK", "JAVA"))}
    return subprocess.run(
        [*command, str(file)],
        env={**inherited, "PYTHONPATH": SOURCE, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=STARTED_S,
        check=False,
    )
