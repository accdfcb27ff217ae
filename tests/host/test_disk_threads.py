"""The threads that wait for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.errors import Closed, DirectoryInUse
from polonaise.host.files import try_lock
from polonaise.host.real import RealHost
from polonaise.host.threads import DiskThreads
from rigs.waiting import wait_until


@pytest.fixture
def threads() -> Iterator[DiskThreads]:
    threads = DiskThreads(2)
    yield threads
    threads.close()


async def test_the_outcome_of_a_call_is_what_it_returns_or_raises(threads: DiskThreads) -> None:
    assert await threads.run(lambda: 6 * 7) == 42
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)


async def test_calls_run_beside_each_other_up_to_the_bound_and_begin_in_order(threads: DiskThreads) -> None:
    begun: list[int] = []
    both, go_on = threading.Barrier(3), threading.Event()

    def call(number: int) -> None:
        begun.append(number)
        if number < 2:
            both.wait()
            go_on.wait()

    outcomes = [threads.run(lambda number=number: call(number)) for number in range(4)]
    both.wait()
    assert sorted(begun) == [0, 1]
    go_on.set()
    await asyncio.gather(*outcomes)
    assert sorted(begun[2:]) == [2, 3]


async def test_a_call_that_nobody_waits_for_any_more_is_made_to_its_end(threads: DiskThreads) -> None:
    go_on, made = threading.Event(), threading.Event()

    def call() -> None:
        go_on.wait()
        made.set()

    outcome = threads.run(call)
    outcome.cancel()
    go_on.set()
    assert made.wait(5)
    assert await threads.run(lambda: "the next one") == "the next one"


def test_a_loop_that_was_closed_meanwhile_disturbs_no_other() -> None:
    threads = DiskThreads(1)
    go_on = threading.Event()

    async def leave_behind() -> None:
        threads.run(go_on.wait)

    async def ask() -> str:
        return await threads.run(lambda: "heard")

    asyncio.run(leave_behind())
    go_on.set()
    assert asyncio.run(ask()) == "heard"
    threads.close()


async def test_closing_waits_for_what_is_under_way() -> None:
    threads = DiskThreads(1)
    made: list[int] = []
    outcomes = [threads.run(lambda number=number: made.append(number)) for number in range(3)]
    threads.close()
    assert made == [0, 1, 2]
    await asyncio.gather(*outcomes)


async def test_after_the_end_nothing_is_taken_any_more() -> None:
    threads = DiskThreads(1)
    threads.close()
    with pytest.raises(Closed):
        threads.run(lambda: None)


async def test_what_had_not_begun_can_be_dropped() -> None:
    threads, begun, go = DiskThreads(1), threading.Event(), threading.Event()
    carried_out: list[str] = []

    def first() -> None:
        begun.set()
        go.wait(10)
        carried_out.append("begun")

    threads.run(first)
    threads.run(lambda: carried_out.append("waiting"))
    assert await asyncio.to_thread(begun.wait, 10)
    asyncio.get_running_loop().call_later(0.01, go.set)
    await asyncio.to_thread(threads.close, drop=True)
    assert carried_out == ["begun"]


async def test_a_disk_that_hangs_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    threads, go = DiskThreads(2), threading.Event()
    hanging = threads.run(go.wait)
    assert not threads.close(within_s=0.05)
    assert "1 calls to a disk have not returned" in caplog.text
    go.set()
    assert await hanging
    assert threads.close()


async def test_it_is_told_for_how_long_the_oldest_call_has_not_returned(tmp_path: Path) -> None:
    """Also of one that nobody waits for any more, and of one that has no thread yet."""
    host, go = RealHost(), threading.Event()
    assert host.disk.under_way_s == 0.0
    hanging = [host._threads.run(go.wait) for _ in range(20)]
    hanging[1].cancel()
    await wait_until(lambda: host.disk.under_way_s >= 0.05, "the oldest one is told")
    go.set()
    await asyncio.gather(*hanging, return_exceptions=True)
    assert not await host.disk.exists(str(tmp_path / "none"))
    await wait_until(lambda: host.disk.under_way_s == 0.0, "all have returned")
    host.close()


async def test_a_directory_stays_locked_while_a_call_to_its_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs may still write one day, and then nobody else may have the directory open."""
    host, go, path = RealHost(), threading.Event(), str(tmp_path / "lock")
    await host.disk.lock(path)
    hanging = host._threads.run(go.wait)
    monkeypatch.setattr(DiskThreads.close, "__kwdefaults__", {"drop": False, "within_s": 0.05})
    host.close()
    with pytest.raises(DirectoryInUse):
        try_lock(path)
    go.set()
    assert await hanging
    host.close()
    try_lock(path).release()
