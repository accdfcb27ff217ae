"""A test that hangs ends and fails, whatever it hangs in, and its report says where everything was."""

from __future__ import annotations

import signal
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from polonaise.host.real import FAILED_EXIT_CODE
from rigs.programs import run_python

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent

# A test each, and what its report must show.
HANGS = {
    "waits_for_what_a_task_never_says": (
        """
        async def never(): await asyncio.Event().wait()
        async def waits(): await never()
        def beside(): released.wait()
        async def test_{name}():
            threading.Thread(target=beside, name="beside").start()
            try:
                await asyncio.create_task(waits(), name="the waiting one")
            finally:
                released.set()
        """,
        ["--- task the waiting one", "in waits", "in never", "--- thread beside", "in beside", "--- thread MainThread"],
    ),
    "has_a_task_that_takes_the_failure": (
        """
        async def takes(): time.sleep(60)
        async def test_{name}():
            task = asyncio.create_task(takes())
            await asyncio.wait([task])
            await asyncio.Event().wait()
        """,
        ["in takes"],
    ),
    "passes_after_a_task_has_taken_the_failure": (
        """
        async def took(): time.sleep(60)
        async def test_{name}():
            await asyncio.wait([asyncio.create_task(took())])
        """,
        ["kept the failure to itself", "in took"],
    ),
    "fails_and_hangs_in_its_teardown": (
        """
        @pytest.fixture
        def stuck():
            yield
            threading.Event().wait()
        def test_{name}(stuck): assert False, "first"
        """,
        ["assert False", "in stuck"],
    ),
    "catches_whatever_is_wrong": (
        """
        def test_{name}():
            try:
                threading.Event().wait()
            except Exception:
                pass
        """,
        ["threading.Event().wait()"],
    ),
}
HEAD = """
import asyncio, signal, threading, time
import limits, pytest
limits.AGAIN_S = 0.3
released = threading.Event()
"""


def pytest_in(directory: Path, program: str, *options: str, **started: object) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(HEAD + program)
    settings = "[pytest]\nasyncio_mode=auto\nasyncio_default_fixture_loop_scope=function\npythonpath=" + str(TESTS)
    (directory / "pytest.ini").write_text(settings + "\nfilterwarnings=error\nmarkers=slow\n")
    command = ["-m", "pytest", "-p", "limits", "-p", "no:cacheprovider", *options, "test_it.py"]
    return run_python(*command, cwd=directory, within_s=None, **started)


@pytest.mark.parametrize(
    ("options", "names"), [((), tuple(HANGS)), (("-n", "1"), tuple(HANGS)[:1])], ids=["alone", "with xdist"]
)
def test_what_hangs_fails_and_says_where_everything_was(
    tmp_path: Path, options: tuple[str, ...], names: tuple[str, ...]
) -> None:
    program = "".join(textwrap.dedent(HANGS[name][0]).format(name=name) for name in names)
    program += "@pytest.mark.timeout(60)\ndef test_last(): pass\n"  # whatever else the machine does
    # Long enough that what goes before is over by then on a busy machine, too.
    done = pytest_in(tmp_path, program, "--timeout=3", "-rA", *options)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "PASSED test_it.py::test_last" in done.stdout
    for name in names:
        assert f"FAILED test_it.py::test_{name}" in done.stdout
        for shown in HANGS[name][1]:
            assert shown in done.stdout, name
    assert done.stdout.count("took more than 3 s") >= len(names)


def test_a_main_thread_that_hears_nothing_ends_the_process(tmp_path: Path) -> None:
    deaf = """
limits.LAST_S = 1
def test_deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(60)
"""
    done = pytest_in(tmp_path, deaf, "--timeout=0.5")
    assert done.returncode == 1
    assert "Timeout (0:00:01.5" in done.stderr
    assert "in test_deaf" in done.stderr


def test_a_slow_one_has_more_time_unless_it_says_otherwise(tmp_path: Path) -> None:
    program = """
@pytest.mark.slow
def test_slow(request): assert request.node.stash[limits._limits] == limits.SLOW_S
@pytest.mark.slow
@pytest.mark.timeout(30)
def test_says(request): assert request.node.stash[limits._limits] == 30
def test_other(request): assert request.node.stash[limits._limits] == 60
"""
    done = pytest_in(tmp_path, program, "--timeout=60")
    assert done.returncode == 0, done.stdout


def test_every_test_has_a_limit(request: pytest.FixtureRequest) -> None:
    assert 0 < float(request.config.getini("timeout")) <= 300


def ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_what_a_shell_runs_in_the_background_hears_a_sigint(tmp_path: Path) -> None:
    program = """
def test_sent():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
"""
    before: Callable[[], None] = ignored
    done = pytest_in(tmp_path, program, "--timeout=5", preexec_fn=before)
    assert done.returncode == 0, done.stdout


def test_a_test_that_ends_the_process_is_told_with_the_reason(tmp_path: Path) -> None:
    program = """
from polonaise.host.real import RealHost

async def test_it():
    async def fails(): raise LookupError("a mistake")
    RealHost().spawn(fails(), "fails")
    await asyncio.Event().wait()
"""
    done = pytest_in(tmp_path, program)
    assert done.returncode == FAILED_EXIT_CODE
    assert "test_it.py::test_it (call) ends the process with the status 70" in done.stderr
    assert "in fails" in done.stderr
    assert "LookupError: a mistake" in done.stderr
