"""A job's Spark session: what it says, and does not say, when the job fails."""

from __future__ import annotations

from typing import Any

import pytest

from polonaise.pipelines import job
from polonaise.pipelines.job import job_session


class RecordingSession:
    """A session that records what is done to it; without a Spark."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @property
    def sparkContext(self) -> RecordingSession:  # noqa: N802 - as Spark writes it
        return self

    def setLogLevel(self, level: str) -> None:  # noqa: N802 - as Spark writes it
        self.done.append(f"log {level}")

    def stop(self) -> None:
        self.done.append("stop")


class Failing(Exception):
    """What the job fails of."""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> RecordingSession:
    spark = RecordingSession()
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setattr(job, "session", lambda *_, **__: spark)
    monkeypatch.setattr(job, "active_session", lambda: None)
    return spark


def fail() -> None:
    with pytest.raises(Failing), job_session(None, "job", {}):
        raise Failing


def test_a_session_says_nothing_more_from_the_failure_of_its_job_on(session: RecordingSession) -> None:
    fail()
    assert session.done == ["log OFF", "stop"]


def test_a_session_whose_job_comes_to_its_end_may_say_what_goes_wrong_after_it(session: RecordingSession) -> None:
    with job_session(None, "job", {}):
        pass
    assert session.done == ["stop"]


def test_logs_of_the_users_own_are_left_as_they_are(session: RecordingSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    fail()
    assert session.done == ["stop"]


def test_the_job_s_failure_is_told_where_the_log_level_can_t_be_set(
    session: RecordingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any, level: str) -> None:
        raise NotImplementedError(level)

    monkeypatch.setattr(RecordingSession, "setLogLevel", refuse)
    fail()
    assert session.done == ["stop"]


def test_a_session_that_was_there_before_is_neither_quietened_nor_stopped(
    session: RecordingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "active_session", lambda: session)
    fail()
    assert session.done == []
