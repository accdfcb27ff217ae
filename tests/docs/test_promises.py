"""The table of promises and the table of their judges are of the same promises, and no judge is left out."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from polonaise_proving.judges import moments
from polonaise_proving.judges.checkers import CHECKERS
from polonaise_proving.judges.histories import CHECKS
from polonaise_proving.judges.promises import JUDGES
from polonaise_proving.mutations.known import MUTATIONS

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_promises_that_are_judged_are_those_that_are_made() -> None:
    _, _, table = PAGE.read_text().partition("| id | promise |")
    table = table.partition("\n\n")[0]
    assert re.findall(r"^\| (P\d+ [^|]+?) \|", table, re.MULTILINE) == [
        each for each in JUDGES if re.match(r"P\d+ ", each)
    ]


def test_every_judge_looks_at_a_promise() -> None:
    of_moments = [
        each for _, each in inspect.getmembers(moments, inspect.isfunction) if each.__module__ == moments.__name__
    ]
    judges = {*CHECKERS, *CHECKS, *(each for each in of_moments if not each.__name__.startswith("_"))}
    idle = judges - {judge for those in JUDGES.values() for judge in those}
    assert not idle, f"{idle}: name in JUDGES (judges/promises.py) the promise that each looks at"


def test_a_promise_has_one_name() -> None:
    proving = Path(str(moments.__file__)).parents[1]
    names = {
        (path.relative_to(proving).as_posix(), name)
        for path in proving.rglob("*.py")
        for name in re.findall(r'"(P\d+ [^":.]+)"', path.read_text())
    }
    assert {name for _, name in names} >= {"P1 durability", "P9 all or nothing"}
    others = sorted(each for each in names if each[1] not in JUDGES)
    assert not others, f"{others}: call a promise as the table in docs/architecture.md does"


def test_what_a_mutation_breaks_in_a_schedule_has_a_judge() -> None:
    judged = {promise.split()[0] for promise, judges in JUDGES.items() if judges}
    broken = {
        each.breaks.partition(":")[0].split(",")[0].split()[0] for each in MUTATIONS.values() if each.test is None
    }
    assert broken <= judged, "each promise that a mutation breaks in a schedule has a judge in judges/promises.py"
