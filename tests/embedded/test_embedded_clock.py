"""An embedded log on a machine whose clock is wrong for a while: its commit times are right all the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import polonaise
from polonaise.node.condition import conditions_in

TEN_YEARS_S = 3_650 * 86_400


class SetClock:
    """The machine's clock, which may be set wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = time.time_ns
        self.ahead_s = 0
        monkeypatch.setattr(time, "time_ns", lambda: self._real() + self.ahead_s * 10**9)

    @property
    def true_us(self) -> int:
        return self._real() // 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return SetClock(monkeypatch)


@pytest.mark.parametrize("storage", [1, 3])
@pytest.mark.parametrize("ahead_s", [TEN_YEARS_S, -TEN_YEARS_S])
async def test_a_clock_that_is_wrong_once_leaves_no_trace_in_commit_times(
    tmp_path: Path, clock: SetClock, ahead_s: int, storage: int
) -> None:
    address = f"embedded:{tmp_path}?storage={storage}"
    async with polonaise.connect(address) as log:
        await log.append(b"before", partition=0)
        clock.ahead_s = ahead_s
        await log.append(b"meanwhile", partition=0)
        health = await log.health(0)
        assert "has jumped" in conditions_in(health)[0].clock
        clock.ahead_s = 0
        await log.append(b"after", partition=0)
        health = await log.health(0)
        assert conditions_in(health)[0].clock == ""
        assert health["clock"]["jumps"] == 1
        assert health["clock"]["last_jump_s"] == pytest.approx(ahead_s, abs=1.0)
    async with polonaise.connect(address) as log:
        await log.append(b"after a restart", partition=0)
        times = [tx.commit_time_us async for tx in log.read(0)]
    assert times == sorted(times)
    assert all(abs(each - clock.true_us) < 60_000_000 for each in times)


async def test_a_log_whose_times_stand_still_says_until_when(tmp_path: Path, clock: SetClock) -> None:
    """A process that begins by a wrong clock has nothing to compare it with."""
    clock.ahead_s = TEN_YEARS_S
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.append(b"ahead", partition=0)
    clock.ahead_s = 0
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.append(b"after", partition=0)
        assert "commit times stand still at 20" in conditions_in(await log.health(0))[0].times
