"""Which syncs the event loop waits for, and that all others go to threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from polonaise.errors import Closed, DiskFailed
from polonaise.host import files
from polonaise.host.real import RealHost
from polonaise.host.syncs import ALONE_S, APART_S, REST_RATIO, SLOW_S, SMALL_BYTES, SyncsInLoop
from rigs.waiting import time_passes

SMALL = [b"frame", b"batch"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def settled(clock: Clock, file: object) -> SyncsInLoop:
    """One that has seen this file alone for long enough."""
    syncs = SyncsInLoop(clock)
    assert not syncs.allows(file, SMALL)
    clock.now_s += ALONE_S
    return syncs


def wait(syncs: SyncsInLoop, clock: Clock, seconds: float) -> None:
    clock.now_s += seconds
    syncs.waited()


def test_small_syncs_of_one_file_are_waited_for_one_after_the_other_with_time_between() -> None:
    clock = Clock()
    syncs = settled(clock, "a")
    for _ in range(3):
        assert syncs.allows("a", SMALL)
        wait(syncs, clock, 0.0002)
        assert not syncs.allows("a", SMALL)
        clock.now_s += APART_S


def test_a_large_write_is_not_waited_for() -> None:
    clock = Clock()
    syncs = settled(clock, "a")
    assert not syncs.allows("a", [bytes(SMALL_BYTES), b"x"])
    assert syncs.allows("a", [bytes(SMALL_BYTES)])


def test_two_files_that_are_busy_at_the_same_time_are_not_waited_for() -> None:
    clock = Clock()
    syncs = settled(clock, "a")
    for _ in range(100):
        clock.now_s += ALONE_S / 2
        assert not syncs.allows("b", SMALL)
        clock.now_s += ALONE_S / 2
        assert not syncs.allows("a", SMALL)
    clock.now_s += ALONE_S
    assert syncs.allows("a", SMALL)


def test_a_disk_that_hung_holds_the_loop_up_once() -> None:
    clock = Clock()
    syncs = settled(clock, "a")
    assert syncs.allows("a", SMALL)
    wait(syncs, clock, 2 * SLOW_S)
    clock.now_s += 1.9 * SLOW_S * REST_RATIO
    assert not syncs.allows("a", SMALL)
    assert not syncs.allows("b", SMALL), "nor by another file"
    clock.now_s += 0.2 * SLOW_S * REST_RATIO
    assert syncs.allows("b", SMALL)


# ------------------------------------------------------------------ on the machine


class Syncs:
    """In which threads the system was asked to sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[bool] = []
        self.failing = False
        real = files._sync_data

        def sync(descriptor: int) -> None:
            self.threads.append(threading.current_thread() is not threading.main_thread())
            if self.failing:
                raise OSError(5, "Input/output error")
            real(descriptor)

        monkeypatch.setattr(files, "_sync_data", sync)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    monkeypatch.setattr("polonaise.host.syncs.ALONE_S", 0.0)
    return Syncs(monkeypatch)


@pytest.mark.parametrize("in_loop", [False, True])
async def test_only_a_host_that_was_told_so_waits_in_its_loop(tmp_path: Path, syncs: Syncs, in_loop: bool) -> None:
    with contextlib.closing(RealHost(syncs_in_loop=in_loop)) as host:
        file = await host.disk.open(f"{tmp_path}/a", create=True)
        await file.write(0, [b"one"], sync=True)
        await time_passes(2 * APART_S)
        await file.write(3, [b"two"], sync=True)
        assert syncs.threads == [not in_loop] * 2
        assert await file.read(0, 10) == b"onetwo"
        await file.close()


async def test_while_a_thread_is_busy_with_the_disk_the_loop_leaves_it_to_the_threads(
    tmp_path: Path, syncs: Syncs
) -> None:
    with contextlib.closing(RealHost(syncs_in_loop=True)) as host:
        file = await host.disk.open(f"{tmp_path}/a", create=True)
        reading = asyncio.ensure_future(file.read(0, 10))
        await asyncio.sleep(0)
        await file.write(0, [b"one"], sync=True)
        await reading
        assert syncs.threads == [True]
        await file.close()


async def test_a_sync_that_fails_in_the_loop_is_told_and_leaves_the_file_usable_and_closable(
    tmp_path: Path, syncs: Syncs
) -> None:
    with contextlib.closing(RealHost(syncs_in_loop=True)) as host:
        file = await host.disk.open(f"{tmp_path}/a", create=True)
        syncs.failing = True
        with pytest.raises(DiskFailed):
            await file.write(0, [b"one"], sync=True)
        syncs.failing = False
        await time_passes(2 * APART_S)
        await file.write(0, [b"one"], sync=True)
        assert syncs.threads == [False, False]
        await file.close()
        with pytest.raises(Closed):
            await file.write(0, [b"two"], sync=True)


async def test_a_host_whose_disk_was_cut_off_writes_nothing_in_its_loop_either(tmp_path: Path, syncs: Syncs) -> None:
    host = RealHost(syncs_in_loop=True)
    file = await host.disk.open(f"{tmp_path}/a", create=True)
    host.cut_off_disk()
    with pytest.raises(Closed):
        await file.write(0, [b"one"], sync=True)
    assert syncs.threads == []
    assert (tmp_path / "a").read_bytes() == b""
    host.close()
