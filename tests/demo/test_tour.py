"""docs/tour.md, tried literally: its files are saved, its commands are run, in an empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

TOUR = Path(__file__).parents[2] / "docs" / "tour.md"
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
    ended = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=directory, capture_output=True, text=True, timeout=within_s, check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def said_by(text: str, directory: Path, within_s: float = 120) -> list[str]:
    """What the commands of a document say, one after the other, without the first, which installs."""
    install, *rest = steps(text)
    assert "pip install" in install.text
    said = []
    for step in rest:
        if step.file is not None:
            (directory / step.file).write_text(step.text)
        else:
            said.append(run(step.text, directory, within_s))
    return said


@pytest.mark.slow
def test_the_tour_does_what_it_says(tmp_path: Path) -> None:
    first, deposit, again, conflict, killed, compared = said_by(TOUR.read_text(), tmp_path)
    assert first.index("hello") < first.index("world")
    assert "account 1 has 100" in deposit
    assert "account 1 has 200" in again
    assert conflict.count("paid out, transaction") == 1
    assert conflict.count("insufficient funds") == 1
    assert conflict.count("run 1: account 1 has 200") == 2
    assert "run 2: account 1 has 50" in conflict
    acknowledged = [int(number) for number in re.findall(r": (\d+) deposits were acknowledged", killed)]
    assert len(acknowledged) == 2
    balances = dict(re.findall(r"\((\d+), (\d+)\)", compared))
    assert int(balances["2"]) >= sum(acknowledged)
