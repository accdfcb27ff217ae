"""Documents tried literally: the files that they show are saved, and the commands are run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from rigs.programs import output_of, run_program

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    """A file to save (its name is the last one in backquotes before it), or commands to run."""

    file: str | None
    text: str


def steps(text: str) -> list[Step]:
    found = []
    for block in _BLOCK.finditer(text):
        kind, body = block.groups()
        names = re.findall(r"`(\w+\.py)`", text[: block.start()])
        found.append(Step(names[-1] if kind == "python" else None, body))
    return found


def run(commands: str, directory: Path, within_s: float = 120) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = run_program("bash", "-e", "-c", commands, cwd=directory, environment={"PATH": path}, within_s=within_s)
    assert "Traceback" not in ended.stderr, ended.stderr
    return output_of(ended)


def said_by(text: str, directory: Path, within_s: float = 120) -> list[str]:
    """Run the commands of a document except the first, which installs. Return their output, one after the other."""
    install, *rest = steps(text)
    assert "pip install" in install.text
    said = []
    for step in rest:
        if step.file is not None:
            (directory / step.file).write_text(step.text)
        else:
            said.append(run(step.text, directory, within_s))
    return said
