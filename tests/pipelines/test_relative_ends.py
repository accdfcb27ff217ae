"""How long ago a job's end was is told by the clock of a server, and not by that of the machine that runs the job."""

from __future__ import annotations

import time
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.fragments.protocol.coverage import Span
from polonaise.pipelines import archive, viewsource
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.source import LogSource, Until
from polonaise.pipelines.viewsource import UndecodablePolicy, ViewSource
from polonaise.spark.options import ReadOptions

HOUR_S, DAY_S = 3_600.0, 86_400.0


@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S])
def test_an_archive_ends_some_time_ago_by_the_clock_of_a_server(ahead_s: float) -> None:
    asked_s: list[float] = []

    class Log:
        clock_ahead_s = ahead_s

        def high_water_mark(self, partition: int, *, timeout: float) -> int:
            return 9

        def read_time(self, partition: int, *, since: int, timeout: float) -> Any:
            asked_s.append(since / 1e6)
            return nullcontext(iter(()))

    log: Any = Log()
    assert archive._limits(log, [0], archive.HowToArchive(until_time=timedelta(hours=1))) == {0: 9}
    assert asked_s == [pytest.approx(time.time() - ahead_s - HOUR_S, abs=60)]


@pytest.mark.parametrize("ahead_s", [DAY_S, None])
def test_a_view_ends_some_time_ago_by_the_clock_of_a_server_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ahead_s: float | None
) -> None:
    looked: list[ReadOptions] = []

    class History:
        log = None if ahead_s is None else SimpleNamespace(clock_ahead_s=ahead_s)

        def __init__(self, options: ReadOptions) -> None:
            looked.append(options)

        def ends(self) -> None:
            pass

        def wanted(self) -> dict[int, Span]:
            return {0: Span(0, 9)}

    monkeypatch.setattr(viewsource, "QueryHistory", History)
    view = TableView("v", lambda log: type("Frame", (), {"columns": ["a"]}))
    seen = ViewSource(None, LogSource("file:/log", {}, ""), view, UndecodablePolicy.FAIL)  # type: ignore[arg-type]
    assert seen.marks(Until(time=timedelta(hours=1))) == {0: 9}
    ending_s = (looked[-1].ending_time_us or 0) / 1e6
    assert ("by the clock of this machine" in caplog.text) == (ahead_s is None)
    assert ending_s == pytest.approx(time.time() - (ahead_s or 0) - HOUR_S, abs=60)
