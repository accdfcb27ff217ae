"""Runs a part of the exhaustive tests: those marked so are many of one kind, and another part is drawn by each commit.

`--sample 6` keeps one of six of each such test function, at least one, and those about what the last commits or the
work under way have changed: a mark may name modules, packages, and files by their paths. Several functions whose marks
say `of` the same are drawn from together. Without `--sample` all run. Which part it is follows from a seed, which is
told at the end: `POLONAISE_SAMPLE` or `--sample-seed` has the same part run again. A test with a loop of its own over
many steps of one kind asks the fixture `drawn` which of them run.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Set
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest

VARIABLE: Final = "POLONAISE_SAMPLE"
MARK: Final = "exhaustive"
COMMITS: Final = 3
"""What these last ones have changed is not left to chance."""
ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("src", "proving")


@pytest.hookimpl
def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("polonaise")
    group.addoption("--sample", type=int, default=1, metavar="N", help="run one of N of the exhaustive tests")
    group.addoption(
        "--sample-seed",
        default=os.environ.get(VARIABLE) or None,
        metavar="SEED",
        help=f"which of them: any text; by default ${VARIABLE}, else what the commit is called",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Workers are given the options as they are then, so that all of them draw the same part."""
    if config.option.sample < 1:
        raise pytest.UsageError("--sample takes a number from 1 on")
    if config.option.sample > 1 and config.option.sample_seed is None:
        # Where there is no git, the day changes by itself, too.
        config.option.sample_seed = _git("rev-parse", "--short=8", "HEAD") or datetime.now(UTC).date().isoformat()


@pytest.hookimpl(trylast=True)  # of those that are left for other reasons
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    one_of = config.option.sample
    if one_of == 1:
        return
    families: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker(MARK))]
    if lost := sorted({named for _, mark in marked for named in mark.args if not _exists(named)}):
        raise pytest.UsageError(f"marks `{MARK}` name what is not there: {', '.join(lost)}")
    changed = _changed({named for _, mark in marked for named in mark.args})
    for item, mark in marked:
        if not any(is_in(each, named) for each in changed for named in mark.args):
            families[mark.kwargs.get("of") or item.nodeid.partition("[")[0]].append(item)
    left_out = {
        item for members in families.values() for item in left_out_of(members, one_of, config.option.sample_seed)
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def left_out_of(members: list[Any], one_of: int, seed: str) -> list[Any]:
    """What does not run of the instances of one test function: all but one of `one_of`, and but one at least."""
    drawn = sorted(members, key=lambda member: (crc32(f"{seed} {member.nodeid}".encode()), member.nodeid))
    return drawn[ceil(len(members) / one_of) :]


def is_in(changed: str, named: str) -> bool:
    """Whether a module, or a path, is the one that is named, or a module is one of the package that is."""
    return changed == named or ("/" not in named and changed.startswith(f"{named}."))


@pytest.fixture
def drawn(request: pytest.FixtureRequest) -> Callable[[int], bool]:
    """Whether the step of this number, of a test's own loop, is of the part that runs: one of so many that follow."""
    one_of, seed = request.config.option.sample, request.config.option.sample_seed

    def draw(step: int) -> bool:
        group, place = divmod(step, one_of)
        return crc32(f"{seed} {request.node.nodeid} {group}".encode()) % one_of == place

    return draw


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.sample > 1:
        seed = config.option.sample_seed
        terminalreporter.write_line(
            f"of the exhaustive tests 1 of {config.option.sample} ran: {VARIABLE}={seed} has the same ones run again, "
            "`make nightly` all of them"
        )


def _exists(named: str) -> bool:
    """Whether there is a file of this path, or a module or package of this name."""
    paths = [named] if "/" in named else [f"{each}/{named.replace('.', '/')}" for each in PACKAGES]
    return any((ROOT / path).exists() or (ROOT / f"{path}.py").exists() for path in paths)


def _changed(named: Set[str]) -> set[str]:
    """Of the files that are named, and the modules that are, or are in a package that is: those that the last commits,
    or the work under way, have changed. A module has changed if its code has."""
    before = f"HEAD~{COMMITS}"
    files = {each for each in named if "/" in each}
    paths = _git("diff", "--name-only", before, "--", *PACKAGES, *sorted(files)) if named else ""  # none if shallow
    modules = {
        path.partition("/")[2].removesuffix(".py").replace("/", "."): path
        for path in paths.splitlines()
        if path.endswith(".py")
    }
    return (files & {*paths.splitlines()}) | {
        module
        for module, path in modules.items()
        if any(is_in(module, each) for each in named)
        and _code(_git("show", f"{before}:{path}")) != _code(_text(ROOT / path))
    }


def _code(text: str) -> str:
    """What a module does: its text without comments, docstrings and layout, which are changed in many files at once."""
    try:
        parsed = ast.parse(text)
    except SyntaxError:
        return text
    for each in ast.walk(parsed):
        if isinstance(body := getattr(each, "body", None), list):
            each.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(parsed)


def _is_text(line: ast.AST) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _git(*arguments: str) -> str:
    """What git says, or nothing where it says nothing: not installed, no clone, or not so long a history."""
    try:
        done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
