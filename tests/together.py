"""Which tests one process of several runs: those that stand on what takes long to start, and the longest ones first.

Else each process of pytest-xdist would have a Spark, a MariaDB and two PostgreSQL of its own, and make the wheels,
pages and clusters of each file of which it runs a test. What takes minutes begins before the rest: at the end nobody
waits for it. `--dist loadscope` goes by this; otherwise tests are dealt out as pytest-xdist has it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

ROOT: Final = Path(__file__).parents[1]
DATABASES: Final = ("tests/views/", "tests/player/test_sql_delivery.py")
"""Where nearly all tests are of the databases that a process shares."""
OF_SPARK: Final = re.compile(r"\bspark: SparkSession\b")
OF_A_FILE: Final = re.compile(r'scope="module"|\btarget: Target\b')
"""A file whose tests share what they stand on, which may be a cluster of `tests/cluster/conftest.py`."""
FIRST: Final = ("spark", "databases")
"""The groups that take one process longest, in the order in which they begin."""
LONGEST: Final = ("soak", "smoke", "torture_delivery", "torture", "kill", "upgrades", "demo", "examples")
"""Directories of tests of whole runs, the longest first."""


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Together(config, log) if config.getoption("dist") == "loadscope" else None


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out groups of tests, and single ones, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0]) or nodeid


@pytest.hookimpl
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn(item.nodeid))


@cache
def group_of(file: str) -> str:
    """Return the group of the tests of a file, which one process runs, or nothing if each may run anywhere."""
    if file.startswith(DATABASES):
        return "databases"
    text = (ROOT / file).read_text()
    if OF_SPARK.search(text):
        return "spark"
    return file if OF_A_FILE.search(text) else ""


def turn(nodeid: str) -> int:
    """Return when a test begins: first those of the large groups, which take one process longest."""
    file = nodeid.partition("::")[0]
    directory = file.split("/")[1]
    if (group := group_of(file)) in FIRST:
        return FIRST.index(group)
    return len(FIRST) + (LONGEST.index(directory) if directory in LONGEST else len(LONGEST))
