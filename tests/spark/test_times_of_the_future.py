"""Whoever chooses by time from fragments or from files of segments is told of commit times that stand still."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import polonaise
from polonaise.admin.archive import archive
from polonaise.fragments.objects import fragments_of
from polonaise.fragments.store import open_store
from polonaise.spark import fragmentfiles
from polonaise.spark.segmentfiles import SegmentFiles


async def written(directory: Path) -> None:
    """A log with a transaction, and a store that has it."""
    async with polonaise.connect(f"embedded:{directory}/log") as log:
        await log.append(b"one", partition=0)
        async for _ in archive(log, open_store(str(directory / "store"), make=True), 0, rest=True):
            pass


@pytest.mark.parametrize("clock_s", [None, 0])
def test_a_range_by_time_that_begins_in_the_future_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock_s: int | None
) -> None:
    asyncio.run(written(tmp_path))
    if clock_s is not None:
        monkeypatch.setattr(fragmentfiles.time, "time_ns", lambda: clock_s * 10**9)
    expected = 0 if clock_s is None else 1
    with caplog.at_level(logging.WARNING, logger="polonaise.spark"):
        assert SegmentFiles(str(tmp_path / "log" / "storage-0")).first_at(0, 1, 1) == (0, 0)
    assert sum("commit times stand still" in each.message for each in caplog.records) == expected
    caplog.clear()
    store = open_store(str(tmp_path / "store"))
    fragments = asyncio.run(fragments_of(store, 0))
    with caplog.at_level(logging.WARNING, logger="polonaise.spark"):
        assert fragmentfiles.first_at(store, fragments, 1, 1, None) == (0, 0)
    assert sum("commit times stand still" in each.message for each in caplog.records) == expected
