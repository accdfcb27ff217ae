"""The audit of a log without Spark: its tasks run in this process, so it needs none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polonaise.fragments.protocol.coverage import Span
from polonaise.log.batch import Batch
from polonaise.pipelines import logaudit
from polonaise.pipelines.logaudit import StorageCopy
from rigs.tableviews import bank_log, more

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_tasks(spark: Any, function: Any, items: Any, progress: Any, what: str) -> list[Any]:
        return [function(item) for item in items]

    monkeypatch.setattr(logaudit, "run_tasks", run_tasks)


def test_a_replica_that_catches_up_meanwhile_is_well_as_far_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, replica = tmp_path / "log" / "storage-0", tmp_path / "replica"
    with bank_log(tmp_path / "log", 50):
        pass
    shutil.copytree(node, replica)
    with bank_log(tmp_path / "log", 0) as log:
        more(log, 50, 50)
        batches = StorageCopy.batches

        def caught_up(copy: StorageCopy, span: Span) -> Iterator[Batch]:
            yield from batches(copy, span)
            shutil.copytree(node, replica, dirs_exist_ok=True)

        monkeypatch.setattr(StorageCopy, "batches", caught_up)
        report = logaudit.audit_log(None, f"embedded:{tmp_path / 'log'}", partitions="0", storage=[str(replica)])  # type: ignore[arg-type]
    assert report.troubles == []
    assert report.partitions[0].copies[1].last < 99
