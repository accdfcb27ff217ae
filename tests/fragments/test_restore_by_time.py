"""What is chosen by time where commit times stand still, because a clock was ahead, is refused or told."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import polonaise
from polonaise.admin.restore import HowToRestore, Key, restore
from polonaise.cli.inputs import ids_of
from polonaise.errors import BadOption
from polonaise.fragments.store import ObstoreStore
from rigs.restoring import archived


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored"


@pytest.mark.parametrize("fragment_bytes", [1_000, 1_000_000])
async def test_a_time_at_which_commit_times_stand_still_is_refused(
    store: ObstoreStore,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    fragment_bytes: int,
    tmp_path: Path,
) -> None:
    """As in a log whose clock was an hour ahead once, when it was opened."""
    real, ahead = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead * 10**9)
    directory = f"embedded:{tmp_path / 'ahead'}"
    async with polonaise.connect(directory) as wrong:
        for _ in range(5):
            await wrong.append(b"before", 0)
    now_us = real() // 1000
    ahead = 3_600
    async with polonaise.connect(directory) as wrong:
        await wrong.append(b"ahead", 0)
    ahead = 0
    async with polonaise.connect(directory) as wrong:
        await wrong.append(b"now", 0)
        await archived(wrong, store, fragment_bytes=fragment_bytes)
    with pytest.raises(BadOption, match=r"partition 0: commit times stand still from id .*PARTITION=ID") as refused:
        await restore(store, str(target), HowToRestore(until_time_us=now_us + 60_000_000, key=Key.NEW))
    advice = str(refused.value).rpartition("--until ")[2].split()[0]
    until = ids_of([advice])
    assert set(until) == {0}
    assert f"all up to {until[0]} were committed before it" in str(refused.value)
    ahead = 7_200  # it is over: the clock has reached that time
    with pytest.raises(BadOption, match="stand still"):
        await restore(store, str(target / "later"), HowToRestore(until_time_us=now_us + 60_000_000, key=Key.NEW))
    done = await restore(store, str(target / "all"), HowToRestore(until_time_us=now_us + 7_000_000_000, key=Key.NEW))
    assert done.partitions[0].last == done.partitions[0].in_store_up_to


async def test_a_reading_by_time_that_begins_in_the_future_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = f"embedded:{tmp_path / 'ahead'}"
    async with polonaise.connect(directory) as log:
        await log.append(b"now", 0)
        since = datetime.now(UTC) - timedelta(minutes=1)
        assert [tx.data async for tx in log.read_time(0, since=since)] == [b"now"]
        assert "stand still" not in caplog.text
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600 * 10**9)
    async with polonaise.connect(directory) as log:
        assert [tx.data async for tx in log.read_time(0, since=since)] == [b"now"]
    assert "partition 0: commit times stand still at " in caplog.text
