"""docs/tour.md, tried literally: its files are saved, its commands are run, in an empty directory."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rigs.documents import run, said_by, steps

TOUR = Path(__file__).parents[2] / "docs" / "tour.md"


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
