"""What a view reads: its marks and its rows come from one store, whoever names it."""

from __future__ import annotations

from typing import Any

import pytest

from polonaise.fragments.protocol.coverage import Span
from polonaise.pipelines import viewsource
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.source import LogSource
from polonaise.pipelines.viewsource import UndecodablePolicy, ViewSource
from polonaise.spark.options import ReadOptions, read_options


@pytest.mark.parametrize(
    ("source", "store"),
    [
        (LogSource("file:/log", {"fragments": "/jobs"}, ""), "/jobs"),
        (LogSource("file:/log", {}, ""), "/views"),
        (LogSource("fragments:/jobs", {}, ""), "/jobs"),
    ],
)
@pytest.mark.parametrize("name", ["fragments", "Fragments"])
def test_marks_and_rows_are_of_one_store(
    monkeypatch: pytest.MonkeyPatch, source: LogSource, store: str, name: str
) -> None:
    looked: list[ReadOptions] = []

    class History:
        def __init__(self, options: ReadOptions) -> None:
            looked.append(options)

        def wanted(self) -> dict[int, Span]:
            return {0: Span(0, 9)}

    def read(spark: Any, cluster: str, **options: str) -> Any:
        looked.append(read_options({"cluster": cluster, **options}))

    monkeypatch.setattr(viewsource, "QueryHistory", History)
    monkeypatch.setattr(viewsource.query, "read", read)
    view = TableView("v", lambda log: type("Frame", (), {"columns": ["a"]}), read={name: "/views", "headers": "1"})
    seen = ViewSource(None, source, view, UndecodablePolicy.FAIL)  # type: ignore[arg-type]
    assert seen.marks() == {0: 9}
    seen.rows({}, {0: 9})
    assert [(each.cluster, each.fragments) for each in looked] == [(source.address, store)] * 2
