"""docs/tour.md, tried literally: its files are saved, its commands are run, in an empty directory."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
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
def test_what_a_worker_has_counted_is_in_the_database_when_it_ends(tmp_path: Path) -> None:
    for step in steps(TOUR.read_text()):
        if step.file in ("bank.py", "worker.py"):
            (tmp_path / step.file).write_text(step.text)
    # Its view is late: nothing but the receipt waits for it.
    late = "    def apply(self, tx, db):\n"
    bank = (tmp_path / "bank.py").read_text()
    (tmp_path / "bank.py").write_text(bank.replace(late, f"{late}        __import__('time').sleep(0.05)\n"))
    said = run("python worker.py one 0.3", tmp_path)
    [counted] = re.findall(r"one: (\d+) deposits", said)
    with closing(sqlite3.connect(tmp_path / "bank.db")) as db:
        assert db.execute("SELECT balance FROM accounts").fetchone() == (int(counted),)


def test_the_tour_kills_nobody_but_a_worker_of_its_own() -> None:
    """The lock's file still names whoever hosted before, and that number may be another process's by now."""
    [kill] = [step.text for step in steps(TOUR.read_text()) if "kill -9" in step.text]
    waits, kills = kill.index("until jobs -p | grep -qx"), kill.index("kill -9")
    assert waits < kills


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
