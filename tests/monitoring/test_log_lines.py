"""Log lines as text or as JSON: the fields that are known, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

import pytest

from polonaise.node.logformat import JsonLines, LogFormat, TextLines, log_to
from rigs.town import Town, held_down

_LOG = logging.getLogger("polonaise.test")


def record(message: str, *arguments: object, **known: Any) -> logging.LogRecord:
    return _LOG.makeRecord("polonaise.test", logging.WARNING, "", 1, message, arguments, None, extra=known)


def test_a_line_of_json_has_the_fields_that_are_known() -> None:
    line = json.loads(JsonLines().format(record("partition %d: %s", 3, "waits\nfor two", partition=3, generation=7)))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "polonaise.test",
        "message": "partition 3: waits\nfor two",
        "partition": 3,
        "generation": 7,
    }


@pytest.mark.parametrize("lines", [JsonLines(), TextLines()])
def test_no_line_shows_a_secret(lines: logging.Formatter) -> None:
    try:
        raise ValueError("postgresql://bank:hunter2@db/bank")
    except ValueError:
        secret = _LOG.makeRecord(
            "polonaise.test", logging.ERROR, "", 1, "s3://b?aws_secret_access_key=hunter2", (), sys.exc_info()
        )
    line = lines.format(secret)
    assert "hunter2" not in line
    assert "***" in line
    assert "ValueError" in line


def test_each_line_of_json_is_one_line_with_its_traceback_in_it() -> None:
    try:
        raise ZeroDivisionError("twice")
    except ZeroDivisionError:
        failed = _LOG.makeRecord("polonaise.test", logging.ERROR, "", 1, "it failed", (), sys.exc_info())
    line = JsonLines().format(failed)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["exception"].startswith("Traceback")


@pytest.mark.parametrize(("verbose", "count"), [(False, 1), (True, 2)])
def test_what_is_done_is_logged_only_when_asked_for(monkeypatch: pytest.MonkeyPatch, verbose: bool, count: int) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as a new process has it
    monkeypatch.setattr(logging.getLogger(), "level", logging.NOTSET)
    monkeypatch.setattr(_LOG, "_cache", {})
    written = io.StringIO()
    log_to(written, LogFormat.JSON, verbose=verbose)
    _LOG.info("it was done")
    _LOG.warning("it is late")
    assert len([json.loads(line) for line in written.getvalue().splitlines()]) == count


def test_a_cluster_at_work_logs_partition_generation_and_session(caplog: pytest.LogCaptureFixture) -> None:
    async def story(town: Town) -> None:
        await town.append(b"first")
        held_down(town.cluster.storage[0])
        await town.append(b"second")

    with caplog.at_level(logging.INFO):
        Town(1).run(story)
    lines = [json.loads(JsonLines().format(each)) for each in caplog.records if "servedpartition" in each.name]
    assert lines
    assert all({"partition", "generation"} <= set(line) for line in lines)
    ended = [line for line in lines if "ended" in line["message"]]
    assert ended
    assert all(f"session {line['session']} ended" in line["message"] for line in ended)
