"""Of exhaustive tests a part runs that follows from a seed, and all of them where nobody asks for a part."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import exhaustive
from rigs.programs import run_python

TESTS = Path(__file__).parent
FAMILY = [SimpleNamespace(nodeid=f"tests/test_it.py::test_it[{number}]") for number in range(20)]

PROGRAM = """
import pytest
@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(12))
def test_drawn(number): print(f"ran-{number}-")
@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.exhaustive("polonaise.log.tail")), 1])
def test_few(number): print(f"few-{number}-")
@pytest.mark.parametrize("number", range(7))
def test_other(number): print(f"other-{number}-")
@pytest.mark.exhaustive(of="two functions")
def test_one(): print("both-1-")
@pytest.mark.exhaustive(of="two functions")
def test_another(): print("both-2-")
def test_steps(drawn): print(f"steps-{sum(1 << step for step in range(60) if drawn(step))}-")
"""


def runs(one_of: int, seed: str) -> set[str]:
    left_out = [each.nodeid for each in exhaustive.left_out_of(FAMILY, one_of, seed)]
    return {each.nodeid for each in FAMILY} - set(left_out)


@pytest.mark.parametrize(("one_of", "count"), [(1, 20), (2, 10), (6, 4), (19, 2), (100, 1)])
def test_one_of_so_many_runs_and_one_at_least(one_of: int, count: int) -> None:
    assert len(runs(one_of, "seed")) == count


def test_the_same_seed_draws_the_same_and_others_come_to_each_in_the_end() -> None:
    assert runs(6, "seed") == runs(6, "seed")
    assert set.union(*(runs(6, str(seed)) for seed in range(40))) == runs(1, "")


def test_what_is_named_is_found_among_what_the_last_commits_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = "proving/polonaise_proving/stages/simulated/loop.py"
    told = f"docs/a.md\nsrc/polonaise/log/tail.py\n{loop}\nsrc/polonaise/py.typed"
    monkeypatch.setattr(exhaustive, "_git", lambda *arguments: told if arguments[0] == "diff" else "")
    monkeypatch.setattr(exhaustive, "_text", lambda path: f"{path} = 1")
    named = {"polonaise.log", "polonaise_proving.stages.simulated.loop"}
    assert exhaustive._changed(named) == {"polonaise.log.tail", "polonaise_proving.stages.simulated.loop"}
    assert exhaustive._changed({"polonaise.log.tail", "polonaise.link"}) == {"polonaise.log.tail"}
    assert exhaustive._changed({"docs/a.md", "docs/b.md"}) == {"docs/a.md"}


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        ("x = 1  # why\n", False),
        ('"""What it is."""\n\nx = 1\n"""Of one."""\n', False),
        ("x = 2\n", True),
        ('x = """1"""\n', True),
        ("x = 1\n)", True),
        ("", True),
    ],
)
def test_a_module_whose_comments_and_docstrings_alone_are_others_has_not_changed(
    monkeypatch: pytest.MonkeyPatch, now: str, changed: bool
) -> None:
    answers = {"diff": "src/polonaise/log/tail.py", "show": "x = 1"}
    monkeypatch.setattr(exhaustive, "_git", lambda *arguments: answers[arguments[0]])
    monkeypatch.setattr(exhaustive, "_text", lambda path: now)
    assert exhaustive._changed({"polonaise.log"}) == ({"polonaise.log.tail"} if changed else set())


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("polonaise.log.tail", True),
        ("polonaise.log", True),
        ("polonaise.lo", False),
        ("polonaise.log.tail.x", False),
        ("src/polonaise", False),
    ],
)
def test_a_mark_names_a_module_or_a_package_that_it_is_in(named: str, meant: bool) -> None:
    assert exhaustive.is_in("polonaise.log.tail", named) == meant


@pytest.mark.parametrize(
    ("named", "there"),
    [
        ("polonaise.log.tail", True),
        ("polonaise_proving.model", True),
        ("docs/spark.md", True),
        ("polonaise.no", False),
        ("docs/no.md", False),
    ],
)
def test_a_mark_that_names_what_is_not_there_would_never_see_it_changed(named: str, there: bool) -> None:
    assert exhaustive._exists(named) == there


def test_without_git_the_day_is_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*arguments: object, **how: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(exhaustive.subprocess, "run", no_git)
    config = SimpleNamespace(option=SimpleNamespace(sample=6, sample_seed=None))
    exhaustive.pytest_configure(config)  # type: ignore[arg-type]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", config.option.sample_seed)


def drawn(directory: Path, *options: str, **environment: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """What of the program ran, and how that ended."""
    (directory / "test_it.py").write_text(PROGRAM)
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath={TESTS}\nmarkers=exhaustive\n")
    command = ["-m", "pytest", "-p", "exhaustive", "-p", "no:cacheprovider", "-rA", *options, "test_it.py"]
    done = run_python(*command, cwd=directory, environment=environment, within_s=None)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^((?:ran|few|other|both|steps)-\d+)-", done.stdout, re.MULTILINE)), done


def steps_of(ran: set[str]) -> int:
    """The steps that ran of a test's own loop: a bit for each."""
    (steps,) = (each for each in ran if each.startswith("steps-"))
    return int(steps.removeprefix("steps-"))


OTHERS = {"few-1", *(f"other-{number}" for number in range(7))}


@pytest.mark.slow
def test_a_part_is_drawn_alike_in_all_processes_and_can_be_run_again(tmp_path: Path) -> None:
    alone, told = drawn(tmp_path, "--sample", "4", "--sample-seed", "a")
    assert alone >= OTHERS
    assert len([each for each in alone if each.startswith("ran")]) == 3
    assert len([each for each in alone if each.startswith("both")]) == 1, "drawn from together"
    assert steps_of(alone).bit_count() == 15
    assert "1 of 4 ran: POLONAISE_SAMPLE=a has the same ones run again" in told.stdout
    assert drawn(tmp_path, "--sample", "4", "-n", "2", POLONAISE_SAMPLE="a")[0] == alone
    assert any(drawn(tmp_path, "--sample", "4", POLONAISE_SAMPLE=seed)[0] != alone for seed in "bcd")


@pytest.mark.slow
def test_all_run_where_nobody_asks_for_a_part_whatever_the_seed(tmp_path: Path) -> None:
    ran, told = drawn(tmp_path, POLONAISE_SAMPLE="a")
    assert len(ran) == 12 + 2 + 7 + 2 + 1
    assert steps_of(ran).bit_count() == 60
    assert "POLONAISE_SAMPLE" not in told.stdout
