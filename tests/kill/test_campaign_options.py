"""How campaigns begin and end: they refuse what would try nothing, end by Ctrl-C or SIGTERM with what was done, and
don't hang; no process outlives them."""

from __future__ import annotations

import importlib
import os
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
