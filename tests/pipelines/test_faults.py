"""What Spark says went wrong: faults of ours come back as what they were."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError

from polonaise.errors import ViewFailed
from polonaise.pipelines import tasks
from polonaise.pipelines.jobsession import job_session
from polonaise.pipelines.progress import Silence
from polonaise.pipelines.rowtexts import shown
from polonaise.pipelines.sparkerrors import translated, translating
from polonaise.pipelines.tasks import run_tasks
from polonaise.spark import sessions
from rigs.faults import raises_code

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
