"""The rules of the tests: each asserts something, one module waits, and no folder needs another's files."""

from __future__ import annotations

import ast
import os
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from rigs import blockingwriter

pytestmark = pytest.mark.usefixtures("uncollected")

TESTS = Path(__file__).parent
CAMPAIGNS = ("kill", "model", "simulation", "soak", "torture", "torture_delivery")
"""Tests of programs of their own."""
FILES = sorted(TESTS.rglob("*.py"))

CHECKS = ("assert_", "block_until", "check", "raises_", "refuses", "unharmed", "until_", "wait_until")
"""How the names of functions of tests and rigs begin that raise AssertionError when something is wrong."""
PYTEST_CHECKS = {"raises", "warns", "fail"}
SIMULATED = {"rigs.archivedtown", "rigs.coordinator", "rigs.link", "rigs.log", "rigs.storage", "rigs.town"}
"""Rigs that run a test in the simulator, where a sleep takes no time and is as exact as the rest of it."""
MAY_SLEEP = {
    "rigs/waiting.py": "the one place",
    "rigs/attached.py": "a program of its own: an application that blocks its loop",
    "rigs/oldclient.py": "a program of its own: an application with the library of an earlier version",
    "rigs/goodclient.py": "a program of its own: a client with a steady pace",
}
MAY_CHANGE_THE_PATH = {}

MADE = {"build", "dist", "node_modules", "__pycache__"}
"""Folders of files that tools make."""

MAY_SKIP = {
    "rigs/lacking.py": "the one place",
    "rigs/oldversion.py": "no package brings the history of a shallow clone",
    "rigs/smalldisk.py": "not everybody may mount a file system",
    "cluster/test_stopped_server.py": "not everybody may make network namespaces",
    "smoke/test_smoke.py": "likewise",
    "smoke/test_smoke_leftovers.py": "likewise; and what only Linux has",
    "host/test_real_host.py": "what only Linux has",
    "link/test_hostile_peers.py": "likewise",
    "link/test_tls_flow.py": "likewise",
    "bad_input/test_bad_configuration.py": "root reads every file",
    "host/test_tls_files.py": "of root's files less is told",
    "spark/test_sessions.py": "only root can give a directory to somebody else",
    "demo/test_payments.py": "the payments of a real bank are not the project's to give",
    "pipelines/test_report_job.py": "likewise",
}
"""What CI skips, too: nothing that a package brings."""
SKIPS = {"skip", "skipif", "importorskip", "skipUnless", "skipIf", "SkipTest"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imported_by(path: Path) -> list[str]:
    names = []
    for each in nodes_of(path):
        if isinstance(each, ast.Import):
            names += [name.name for name in each.names]
        elif isinstance(each, ast.ImportFrom) and each.level == 0:
            names += [str(each.module), *(f"{each.module}.{name.name}" for name in each.names)]
    return names


def name_of(path: Path) -> str:
    return str(path.relative_to(TESTS))


def asserts(
    function: Function | ast.ClassDef,
    helpers: dict[str, Function | ast.ClassDef],
    foreign: set[str],
    assertions: list[int],
) -> bool:
    """Is there an assertion in it, or in what it uses of its own file? What it uses is taken out of `helpers`.

    `assertions` are the lines of all assertions of the file, in their order.
    """
    place = bisect_left(assertions, function.lineno)
    if place < len(assertions) and assertions[place] <= (function.end_lineno or 0):
        return True
    used = []
    for each in ast.walk(function):
        name = getattr(each, "attr", None) or getattr(each, "id", "")
        if name in PYTEST_CHECKS or (name.startswith(CHECKS) and name not in foreign):
            return True
        if name in helpers:
            used.append(helpers.pop(name))
    return any(asserts(each, helpers, foreign, assertions) for each in used)


@pytest.mark.slow
def test_every_test_asserts_something() -> None:
    without = []
    for path in FILES:
        functions = {each.name: each for each in nodes_of(path) if isinstance(each, Function | ast.ClassDef)}
        foreign = {name.rpartition(".")[2] for name in imported_by(path) if name.startswith("polonaise")}
        assertions = sorted(each.lineno for each in nodes_of(path) if isinstance(each, ast.Assert))
        for name, function in functions.items():
            if name.startswith("test_") and not asserts(function, dict(functions), foreign, assertions):
                without.append(f"{name_of(path)}: {name}")
    assert without == []


def test_no_file_imports_from_another_test_folder() -> None:
    folders: dict[str, set[Path]] = {}
    for path in FILES:
        folders.setdefault(path.stem, set()).add(path.parent)
    wrong = []
    for path in FILES:
        for name in imported_by(path):
            top, _, rest = name.partition(".")
            if top == "tests":
                elsewhere = rest.partition(".")[0] not in (*path.parts, "campaigns")  # what kill and soak share
            else:
                elsewhere = not rest and top in folders and not folders[top] & {path.parent, TESTS}
            if elsewhere:
                wrong.append(f"{name_of(path)}: {name}")
    assert wrong == []


def test_the_path_of_imports_is_changed_by_pytest_alone() -> None:
    changes = [name_of(path) for path in FILES if "sys.path." in path.read_text() and path != Path(__file__)]
    assert changes == []


def test_no_test_file_makes_a_kind_of_warning() -> None:
    """What runs tests in several processes imports the kind of each warning where it tells them all: there it finds no
    test files, and ends without saying which test it was."""
    made = [
        f"{name_of(path)}: {each.name}"
        for path in FILES
        if path.name.startswith("test_")
        for each in nodes_of(path)
        if isinstance(each, ast.ClassDef) and any(ast.unparse(base).endswith("Warning") for base in each.bases)
    ]
    assert made == []


def sleeps(path: Path) -> list[int]:
    """The lines on which somebody sleeps longer than for a turn of the event loop."""
    return [
        each.lineno
        for each in nodes_of(path)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr == "sleep"
        and ast.unparse(each.args[0]) != "0"
    ]


def test_only_the_module_for_waiting_sleeps() -> None:
    wrong = []
    for path in FILES:
        simulated = any(
            name in SIMULATED or name.startswith("polonaise_proving.stages.simulated") for name in imported_by(path)
        )
        if path.relative_to(TESTS).parts[0] not in CAMPAIGNS and name_of(path) not in MAY_SLEEP and not simulated:
            wrong += [f"{name_of(path)}:{line}" for line in sleeps(path)]
    assert wrong == [], "rigs.waiting has wait_until, and names for what is waited for on purpose"


BESIDE_A_SCENARIO = {"environment.py", "loop.py", "process.py", "world.py"}
"""What starts tasks in the simulator, and hears of their errors."""


def unheard_tasks(text: str) -> list[int]:
    """The lines that start a task whose errors are heard by nobody unless its result is asked for."""
    return [
        each.lineno
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.Attribute | ast.Name)
        and (each.attr if isinstance(each, ast.Attribute) else each.id) in ("create_task", "ensure_future")
    ]


@pytest.mark.slow
def test_what_runs_beside_a_simulated_scenario_is_started_where_its_errors_are_heard() -> None:
    """A fault or a check that crashed unheard would leave a seed that says that every promise held."""
    proving = TESTS.parent / "proving" / "polonaise_proving"
    stage = "polonaise_proving.stages.simulated"
    # The other scenarios are campaigns on real processes.
    scenarios = [
        path
        for path in (proving / "scenarios").rglob("*.py")
        if any(name.startswith(stage) for name in imported_by(path))
    ]
    paths = [*scenarios, *(proving / "faults").rglob("*.py"), *(proving / "stages" / "simulated").rglob("*.py")]
    assert {"nemesis.py", "schedule.py", "cluster.py"} <= {path.name for path in paths}
    wrong = [
        f"{path.relative_to(proving)}:{line}"
        for path in paths
        if path.name not in BESIDE_A_SCENARIO
        for line in unheard_tasks(path.read_text())
    ]
    assert wrong == [], "`World.spawn` starts what runs beside a scenario"


def test_a_task_that_nobody_hears_is_found() -> None:
    assert unheard_tasks("world.spawn(run(), 'a')") == []
    assert unheard_tasks("loop.create_task(run())\nasyncio.ensure_future(run())\ncreate_task(run())") == [1, 2, 3]


def test_what_is_lacking_is_skipped_in_one_place_so_that_ci_fails_for_want_of_it() -> None:
    skip = {
        name_of(path)
        for path in FILES
        for each in nodes_of(path)
        if isinstance(each, ast.Attribute)
        and each.attr in SKIPS
        and ast.unparse(each.value) in ("pytest", "pytest.mark")
    }
    assert skip - {"test_lacking.py"} == set(MAY_SKIP), "rigs.lacking has `lacking` and `program`"


def test_what_benchmarks_import_of_the_product_is_there() -> None:
    """Nothing else says so in time: mypy does not look at them, and they run once in a while."""
    gone = []
    for path in sorted((TESTS.parent / "benchmarks").rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "polonaise":
                module = import_module(str(node.module))
                names = [each.name for each in node.names if not hasattr(module, each.name)]
                is_room = hasattr(module, "__path__")
                gone += [
                    f"{path.name}: {node.module}.{name}"
                    for name in names
                    if not (is_room and find_spec(f"{node.module}.{name}"))
                ]
    assert gone == []


@pytest.mark.parametrize("path", blockingwriter.files(), ids=lambda path: path.name)
def test_what_threads_have_is_as_it_is_made_from_the_asynchronous_classes(path: Path) -> None:
    text = path.read_text()
    assert text == blockingwriter.written(path.name, text), "run `make blocking`"


def test_no_file_has_marks_of_a_merge_that_was_not_finished() -> None:
    """Python's own files would not even load; pages, settings and scripts would be shipped with them."""
    marks = tuple(sign * 7 + b" " for sign in (b"<", b">", b"|"))
    wrong = []
    looked_at = 0
    for folder, below, names in os.walk(TESTS.parent):
        # What tools make is no file of the project: environments, caches, `build`.
        below[:] = [each for each in below if each not in MADE and (not each.startswith(".") or each == ".ci")]
        for path in (Path(folder, name) for name in names if name != ".git"):
            looked_at += 1
            for number, line in enumerate(path.read_bytes().splitlines(), 1):
                if line.startswith(marks):
                    wrong.append(f"{path.relative_to(TESTS.parent)}:{number}")
    assert wrong == []
    assert looked_at > len(FILES)


SIZED = ("src", "proving", "tests", "benchmarks", "examples", "docs/site")
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 65
"""Lines of statements: without the docstring, comments and empty lines."""
LONGER_FUNCTIONS = {"tests/docs/test_replication_example.py: test_the_example_is_what_the_decisions_make_of_it"}
"""What is longer still: nothing is added here, and what has become shorter is taken out."""


def functions_in(node: ast.AST) -> Iterator[Function]:
    """The functions in statements: nine of ten nodes are parts of expressions, where none can be."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, field, ()):
            if isinstance(each, Function):
                yield each
            yield from functions_in(each)


def long_functions(name: str, text: str) -> list[str]:
    """The functions with more lines of statements than a reader has in view at once."""
    lines = text.splitlines()
    found = []
    for each in functions_in(ast.parse(text)):
        body = each.body[1:] if ast.get_docstring(each) is not None else each.body
        stated = lines[body[0].lineno - 1 : each.end_lineno] if body else []
        if sum(line.strip() != "" and not line.lstrip().startswith("#") for line in stated) > FUNCTION_LINES_MAX:
            found.append(f"{name}: {each.name}")
    return found


@pytest.mark.slow
def test_files_and_functions_have_a_length_that_a_reader_can_keep_in_mind() -> None:
    root = TESTS.parent
    paths = [path for folder in SIZED for path in (root / folder).rglob("*.py")]
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in paths if not MADE & {*path.parts}}
    assert {name for name, text in texts.items() if text.count("\n") > FILE_LINES_MAX} == set()
    # Taking a file apart costs more than this look: a function that is longer stands in a file that is longer, too.
    longer = {name: text for name, text in texts.items() if text.count("\n") > FUNCTION_LINES_MAX}
    assert {each for name, text in longer.items() for each in long_functions(name, text)} == LONGER_FUNCTIONS


def test_a_long_function_is_found_whatever_its_docstring_is() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    assert long_functions("a", f'def short() -> None:\n    """Long\n\n    text."""\n\n    # why\n{body}') == []
    assert long_functions("a", f"async def long() -> None:\n    1\n{body}") == ["a: long"]
