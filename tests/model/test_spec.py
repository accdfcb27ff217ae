"""Delivery, as `spec/` has it for Spin, keeps its promises, and a change that breaks one is noticed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from rigs.lacking import program
from rigs.programs import output_of, run_program

TEXT = Path(__file__).parents[2] / "spec" / "delivery.pml"


class Checked(NamedTuple):
    """What Spin says of the protocol within some bounds."""

    states: int
    error: str
    """What is wrong in the first state that breaks a promise; empty if every promise holds."""


def check_by_spin(directory: Path, defined: str, *options: str) -> Checked:
    """Have Spin walk all states within the bounds, and with the changes, that these words define."""
    for name in ("spin", "gcc"):
        program(name, name)
    live = "LIVENESS" in defined
    output_of(run_program("spin", "-a", *(f"-D{each}" for each in defined.split()), TEXT, cwd=directory))
    # Not optimized: with that, gcc takes longer than the walk.
    how = ("-DNFAIR=4",) if live else ("-DSAFETY",)
    output_of(run_program("gcc", "-w", "-DCOLLAPSE", "-DVECTORSZ=4096", *how, "-o", "pan", "pan.c", cwd=directory))
    said = output_of(run_program("./pan", "-m100000", *(("-a", "-f") if live else ()), "-w20", *options, cwd=directory))
    (states,) = re.findall(r"^ *(\S+) states, stored", said, re.MULTILINE)
    (errors,) = re.findall(r"errors: (\d+)$", said, re.MULTILINE)
    error = re.search(r"^pan:1: (.*) \(at depth", said, re.MULTILINE)
    assert (error is None) == (errors == "0") == ("Search not completed" not in said), said
    assert "max search depth too small" not in said
    return Checked(int(float(states)), error[1] if error else "")


@pytest.mark.slow
def test_every_promise_holds_in_every_state(tmp_path: Path) -> None:
    checked = check_by_spin(tmp_path, "MESSAGES=3 FAILURES=2")
    assert not checked.error
    assert checked.states > 10_000


@pytest.mark.slow
def test_everything_arrives_in_every_fair_run(tmp_path: Path) -> None:
    checked = check_by_spin(tmp_path, "MESSAGES=3 FAILURES=1 LIVENESS")
    assert not checked.error
    assert checked.states > 1_000


@pytest.mark.exhaustive  # of bounds
@pytest.mark.slow
@pytest.mark.parametrize(
    "defined",
    [
        "MESSAGES=3 FAILURES=1 PLAYERS=2",
        "MESSAGES=4 FAILURES=1 REFUSALS=1 WINDOW=1",
        "MESSAGES=3 FAILURES=1 REFUSALS=2",
        "MESSAGES=2 FAILURES=1 PLAYERS=2 LIVENESS",
        "MESSAGES=3 FAILURES=2 NO_CHAIN",
        "MESSAGES=2 FAILURES=1 PLAYERS=2 NO_CHAIN",
    ],
)
def test_every_promise_holds_further_on(tmp_path: Path, defined: str) -> None:
    checked = check_by_spin(tmp_path, defined)
    assert not checked.error
    assert checked.states > 10_000


@pytest.mark.slow
def test_the_chain_of_ids_keeps_duplicates_out_without_a_fence(tmp_path: Path) -> None:
    defined = "MESSAGES=2 FAILURES=1 PLAYERS=2 NO_FENCE_ON_STREAMS NO_FENCE_ON_MESSAGES ONLY_APPLIED"
    # -E: without a fence players end each other's streams, until there is none left to be opened.
    checked = check_by_spin(tmp_path, defined, "-E")
    assert not checked.error
    assert checked.states > 10_000


DUPLICATES = "MESSAGES=2 FAILURES=1 PLAYERS=2 NO_CHAIN ONLY_APPLIED"
BROKEN = (
    ("MESSAGES=2 FAILURES=1 NO_TERM", "newest"),
    (f"{DUPLICATES} NO_TERM", "in_order"),
    ("MESSAGES=2 FAILURES=0 PLAYERS=2 NO_EPOCH NO_CHAIN", "newest"),
    (f"{DUPLICATES} NO_EPOCH", "in_order"),
    ("MESSAGES=2 FAILURES=0 PLAYERS=2 NO_FENCE_ON_STREAMS", "newest"),
    ("MESSAGES=2 FAILURES=1 NO_FENCE_ON_MESSAGES", "newest"),
    (f"{DUPLICATES} NO_FENCE_ON_MESSAGES", "in_order"),
    ("MESSAGES=3 FAILURES=2 OLD_EVENTS", "no_gap"),
    ("MESSAGES=3 FAILURES=2 OLD_EVENTS NO_CHAIN", "in_order"),
    ("MESSAGES=3 FAILURES=2 OLD_READS", "in_read"),
    ("MESSAGES=3 FAILURES=2 OLD_READS ONLY_APPLIED", "in_order"),
    ("MESSAGES=3 FAILURES=1 JOIN_LATE", "in_order"),
    ("MESSAGES=3 FAILURES=1 KEEP_OVERFLOW", "rising"),
    ("MESSAGES=3 FAILURES=1 KEEP_OVERFLOW ONLY_APPLIED", "in_order"),
    ("MESSAGES=3 FAILURES=0 WINDOW=1 FORGET_OVERFLOW", "never arrives"),
    ("MESSAGES=3 FAILURES=1 KEEP_QUEUE", "rising"),
    ("MESSAGES=3 FAILURES=1 KEEP_QUEUE ONLY_APPLIED", "in_order"),
    ("MESSAGES=2 FAILURES=0 REFUSALS=1 PASS_OVER_REFUSED", "never arrives"),
    ("MESSAGES=3 FAILURES=1 STAY_FETCHED", "never arrives"),
    ("MESSAGES=3 FAILURES=1 STAY_FETCHED LIVENESS", "not in every fair run"),
)
"""Changes, with the promise that is found broken first."""
SPINS_WORDS = {"never arrives": "invalid end state", "not in every fair run": "acceptance cycle"}
"""Of a state in which nothing can happen any more, and of a fair run, in which something has not arrived."""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("defined", "broken"), BROKEN)
def test_a_broken_protocol_is_noticed(tmp_path: Path, defined: str, broken: str) -> None:
    checked = check_by_spin(tmp_path, defined, *(["-E"] if "ONLY_APPLIED" in defined else []))
    assert checked.error == SPINS_WORDS.get(broken, f"assertion violated {broken}")


def test_every_change_that_the_text_names_is_tried() -> None:
    names = set(re.findall(r"^    ([A-Z_]+) ", TEXT.read_text(), re.MULTILINE))
    tried = {name for defined, _ in BROKEN for name in defined.split()}
    assert {"NO_TERM", "NO_EPOCH", "STAY_FETCHED"} < names <= tried
