"""How campaigns begin and end: they refuse what would try nothing, and end by Ctrl-C or SIGTERM with what was done."""

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

from rigs.waiting import block_until

KILL, SOAK, DELIVERY, PIPELINE = (
    f"polonaise_proving.scenarios.{name}" for name in ("kill", "soak", "delivery", "pipeline.campaign")
)


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
