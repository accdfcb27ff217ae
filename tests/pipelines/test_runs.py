"""The frame of the jobs: what a run leaves behind, however it ends."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from polonaise.cli.pipeline import Output, run_job, settings_of
from polonaise.cli.progressbars import ProgressBars
from polonaise.errors import BadOption, StoreUnavailable
from polonaise.node.addresses import absolute_address
from polonaise.pipelines.joblog import full_address, tasks_address
from polonaise.pipelines.progress import JobProgress


@dataclass(frozen=True)
class Found:
    well: bool
    shown: int = 0

    def fields(self) -> Mapping[str, Any]:
        return {"shown": self.shown}


def outcome(path: Path) -> tuple[str, Any]:
    told = json.loads(path.read_text())
    return told["outcome"], told.get("report") or told.get("error")


def test_a_run_is_told_to_people_or_as_json_and_always_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, shown = tmp_path / "run.json", []
    run_job("audit", lambda progress: Found(True, 3), shown.append, Output(False, str(file)))
    assert shown == [Found(True, 3)]
    assert outcome(file) == ("well", {"shown": 3})
    run_job("audit", lambda progress: Found(True, 4), shown.append, Output(True, str(file)))
    assert json.loads(capsys.readouterr().out)["report"] == {"shown": 4} == outcome(file)[1]
    assert len(shown) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_what_is_not_well_ends_with_exit_status_1_and_its_report(tmp_path: Path) -> None:
    with pytest.raises(typer.Exit) as ended:
        run_job("audit", lambda progress: Found(False), lambda report: None, Output(False, str(tmp_path / "run.json")))
    assert ended.value.exit_code == 1
    assert outcome(tmp_path / "run.json")[0] == "not well"


def test_a_job_that_fails_says_so_in_its_report(tmp_path: Path) -> None:
    def work(progress: JobProgress) -> Found:
        raise StoreUnavailable("the store is away")

    with pytest.raises(StoreUnavailable):
        run_job("archive", work, lambda report: None, Output(False, str(tmp_path / "run.json")))
    told = {"code": "store_unavailable", "message": "the store is away"}
    assert outcome(tmp_path / "run.json") == ("failed", told)


def test_a_report_that_could_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    def work(progress: JobProgress) -> Found:
        raise AssertionError("the work began")

    for path in (tmp_path, tmp_path / "missing" / "run.json"):
        with pytest.raises(BadOption, match="the report can't be written"):
            run_job("archive", work, lambda report: None, Output(False, str(path)))


def test_bars_are_drawn_on_a_terminal_and_nowhere_else() -> None:
    for terminal in (True, False):
        written = io.StringIO()
        with ProgressBars(Console(file=written, force_terminal=terminal, width=80)) as bars:
            bars.begin("starting", 1)
            bars.begin("fragments [red]", 4)
            bars.done(4)
        assert ("fragments [red]" in written.getvalue()) == terminal
        assert ("4/4" in written.getvalue()) == terminal


def test_settings_are_key_and_value() -> None:
    assert settings_of(["a=1", "b=x=y"], "--conf", "a=1") == {"a": "1", "b": "x=y"}
    for wrong in ("a", "=1"):
        with pytest.raises(BadOption, match="such as a=1"):
            settings_of([wrong], "--conf", "a=1")


@pytest.mark.parametrize("address", ["embedded:", "embedded:?partitions=2", "file:", "file", "embedded"])
def test_an_address_without_a_path_does_not_become_the_working_directory(address: str) -> None:
    assert absolute_address(address) == address


def test_tasks_do_not_host_an_embedded_log_and_have_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert full_address("file:c") == f"file:{tmp_path / 'c'}"
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "polonaise-embedded").touch()
    address = full_address("embedded:log?partitions=2")
    assert tasks_address(address) == f"embedded:{tmp_path / 'log'}?partitions=2&host=no"
    assert full_address("embedded:log?fragments=store") == f"embedded:{tmp_path / 'log'}?fragments={tmp_path / 'store'}"
    assert tasks_address(f"embedded:{tmp_path}") == f"embedded:{tmp_path}?host=no"
    assert tasks_address("embedded:/host=x?host=yes&storage=3") == "embedded:/host=x?storage=3&host=no"
    assert tasks_address("file:/c") == "file:/c"
    for wrong in ("log", "file:", "s3://bucket"):
        with pytest.raises(BadOption, match="no address of a log"):
            full_address(wrong)
