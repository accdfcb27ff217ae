"""The frame of the jobs: what a run leaves behind however it ends, jobs as programs, and what Spark says went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError
from rich.console import Console

import polonaise
from polonaise.admin.archive import verify
from polonaise.cli.pipeline import Output, ProgressBars, run_job, settings_of
from polonaise.errors import BadOption, StoreUnavailable, ViewFailed
from polonaise.fragments.store import open_store
from polonaise.node.addresses import absolute_address
from polonaise.pipelines import tasks
from polonaise.pipelines.archive import HowToArchive, archive
from polonaise.pipelines.job import full_address, job_session, tasks_address
from polonaise.pipelines.rowtexts import shown
from polonaise.pipelines.runs import JobProgress, Silence
from polonaise.pipelines.sparkerrors import translated, translating
from polonaise.pipelines.tasks import run_tasks
from polonaise.spark import sessions
from rigs.faults import raises_code
from rigs.quickspark import without_spark
from rigs.waiting import block_until


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


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


STARTED_S = 120.0
SOURCE = str(Path(polonaise.__file__).parents[1])


@contextmanager
def program(job: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A job in a process of its own; whatever it started is gone at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", f"polonaise.pipelines.{job}", *arguments],
        env={**without_spark(), "PYTHONPATH": SOURCE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ended(job: str, *arguments: str) -> tuple[int, str, str]:
    with program(job, *arguments) as process:
        output, errors = process.communicate(timeout=STARTED_S)
        return process.returncode, output, errors


def filled(address: str, count: int, at_once: int = 10, numbers: int = 10) -> list[bytes]:
    """A log, each of whose transactions has its number so many times; the batches of partition 0."""
    with polonaise.blocking.connect(address) as log:
        for start in range(0, count, at_once):
            receipts = [log.append(b"%d" % n * numbers, 0) for n in range(start, start + at_once)]
            receipts[-1].result(timeout=30)
        return [bytes(batch.view) for batch in log.read_batches(0)]


@pytest.mark.slow
def test_an_archive_as_a_program(tmp_path: Path) -> None:
    address, store, run = f"embedded:{tmp_path / 'log'}", str(tmp_path / "store"), tmp_path / "run.json"
    filled(address, 100)
    status, output, errors = ended("archive", address, store, "--rest", "--json", "--report", str(run))
    assert status == 0, errors
    told: dict[str, Any] = json.loads(output)
    assert told == json.loads(run.read_text())
    assert (told["job"], told["outcome"]) == ("archive", "well")
    (partition,) = told["report"]["partitions"]
    assert (partition["last"], partition["transactions"]) == (99, 100)

    status, _, errors = ended("archive", "embedded:nowhere", store)
    assert (status, len(errors.splitlines())) == (1, 1)
    assert errors.startswith("polonaise: [not_initialized]")


@pytest.mark.slow
def test_an_archive_that_is_killed_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    address, store = f"embedded:{tmp_path / 'log'}", tmp_path / "store"
    batches = filled(address, 6_000, at_once=100, numbers=150)
    with program("archive", address, str(store), "--fragment-mib", "1", "--rest") as process:
        block_until(lambda: list(store.glob("0/*.parquet")) or process.poll() is not None, within_s=STARTED_S)
        assert process.poll() is None, process.communicate()
        process.kill()
        process.wait()
    report = archive(spark, address, str(store), HowToArchive(fragment_bytes=2**20, rest=True))
    assert report.partitions[0].last == polonaise.Batch.parse(batches[-1]).last
    found = asyncio.run(verify(open_store(str(store)), 0))
    assert found.troubles == []
    assert found.transactions == 6_000


TRACE = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
Traceback (most recent call last):
  File "worker.py", line 1, in main
{errors}

	at org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("errors", "code", "text"),
    [
        ("polonaise.errors.FragmentDamaged: [fragment_damaged] 0/1.parquet", "fragment_damaged", "0/1.parquet"),
        (
            "polonaise.errors.FragmentDamaged: [fragment_damaged] a\nDuring handling of it:\n"
            "polonaise.errors.StoreUnavailable: [store_unavailable] b: [x] c",
            "store_unavailable",
            "b: [x] c",
        ),
        ("polonaise.errors.OfANewerVersion: [newer] d", "internal", "newer: d"),
        (
            "ZeroDivisionError: division by zero",
            "spark_failed",
            "Job aborted due to stage failure: Task 0 in stage 1.0",
        ),
    ],
)
def test_a_fault_is_found_in_what_spark_says(errors: str, code: str, text: str) -> None:
    found = translated(PySparkException(TRACE.format(errors=errors)))
    assert found.code == code
    assert found.text.startswith(text)


def test_what_spark_says_of_values_is_told_without_their_secrets() -> None:
    address, row = "postgresql://u:hunter2@h/db", f'{{"key":"{"x " * 80}postgresql://u:hunter2@h/db of the bank"}}'
    for said in (
        f"[CAST_INVALID_INPUT] The value '{address}' of the type \"STRING\" can't be a number",
        TRACE.format(errors=f"ValueError: {address} is no number"),
        f"[USER_RAISED_EXCEPTION] polonaise.errors.ViewFailed: [view_failed] row \2{row}\3: no SQLSTATE: P0001",
    ):
        text = translated(PySparkException(said)).text
        assert "hunter2" not in text
        assert "postgresql://u:***" in text
    assert translated(PySparkException(said)).text.endswith("…: no")


@pytest.mark.parametrize(
    "text", ["a\npassword=hunter2", '{"password": "hunter2"}', "the\tkey 'x', password: hunter2", "x" * 9_000 + "\\"]
)
def test_a_text_of_a_row_is_redacted_as_it_was_before_json_escaped_it(text: str) -> None:
    for whole in (json.dumps({"key": text, "email": "joe@bank"}, separators=(",", ":")), json.dumps([text])[:-2]):
        assert "hunter2" not in shown(whole)
    assert (
        shown('{"account":17,"email":"joe@bank","note":null}') == '{"account": 17, "email": "joe@bank", "note": null}'
    )


def test_a_traceback_does_not_show_a_row_either() -> None:
    said = '[USER_RAISED_EXCEPTION] polonaise.errors.ViewFailed: [view_failed] row \2{"key":"//u:hunter2@h"}\3: no'
    with pytest.raises(ViewFailed) as failed, translating():
        raise PySparkException(said)
    trace = "".join(traceback.format_exception(failed.value))
    assert "hunter2" not in trace


def test_what_java_raises_as_spark_starts_is_told_in_its_words() -> None:
    said = (
        "An error occurred while calling None.JavaSparkContext.\n: org.apache.spark.SparkException: No: 'x'\n\tat a.B"
    )
    found = translated(Py4JError(said))
    assert (found.code, found.text) == ("spark_failed", "No: 'x'")
    assert translated(Py4JError("no answer")).text == "no answer"


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("An error occurred while calling o44.load.\n: java.io.IOException: Stream closed\n\tat java.base/x"),
        PySparkException("Job aborted due to stage failure: Task 0: java.io.EOFException\n\tat x"),
        PySparkException("Task 3: SparkException: Python worker exited unexpectedly (crashed)\n\tat x"),
    ],
)
def test_a_process_of_spark_that_died_is_named_and_what_to_do(error: PySparkException | Py4JError) -> None:
    text = translated(error).text
    assert text.startswith("a Python process of Spark's, in which it reads the log, is gone (")
    assert "want of memory" in text
    assert "run it again" in text


def test_a_driver_that_died_is_named() -> None:
    text = translated(Py4JNetworkError("Answer from Java side is empty")).text
    assert text.startswith("Spark's Java process, its driver, is gone (Answer from Java side is empty), often")


def test_what_a_function_of_the_users_raised_is_said() -> None:
    text = translated(PySparkException(TRACE.format(errors="ZeroDivisionError: division by zero"))).text
    assert text == (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: ZeroDivisionError: division by zero"
    )


def test_a_java_that_ended_has_said_why_itself() -> None:
    ended = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    assert "said why on stderr" in translated(ended).text


@pytest.mark.parametrize("master", ["bogus", "yarns", "http://spark:7077"])
def test_a_master_of_no_kind_that_spark_knows_is_refused_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(sessions, "active_session", lambda: None)
    monkeypatch.setattr(sessions, "find_java", None)
    with raises_code("spark_failed", match="Spark knows no master"), job_session(master, "polonaise", {}):
        pass


def test_an_error_without_words_is_named() -> None:
    assert translated(PySparkException("")).text == "PySparkException"


class GoneSpark:
    """A session whose Java process is gone; with `at` it goes while tasks run."""

    def __init__(self, at: str) -> None:
        self._at = at

    def __getattr__(self, name: str) -> Any:
        if name == "_jsparkSession":  # else it would be taken for Spark Connect
            return None
        if name == self._at or (self._at == "collect" and name == "statusTracker"):
            raise Py4JNetworkError("Answer from Java side is empty")
        return self

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self


@pytest.mark.parametrize("at", ["range", "setJobGroup", "collect"])
def test_a_driver_that_is_gone_is_told_by_every_job_that_has_tasks(at: str) -> None:
    spark: Any = GoneSpark(at)
    with raises_code("spark_failed", match="Spark's Java process, its driver, is gone"):
        run_tasks(spark, abs, [1], Silence(), "tasks")


def test_what_ended_a_job_is_told_also_if_its_tasks_can_not_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "wait", interrupted)
    spark: Any = GoneSpark("cancelJobGroup")
    with pytest.raises(KeyboardInterrupt):
        run_tasks(spark, abs, [1], Silence(), "tasks")
