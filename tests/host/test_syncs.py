"""Calls to disks: those the loop waits for, those of threads, and files that are replaced in one step."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.errors import BadOption, Closed, DirectoryInUse, DiskFailed
from polonaise.host import files
from polonaise.host.files import ALONE_S, APART_S, REST_RATIO, SLOW_S, SMALL_BYTES, DiskThreads, SyncsInLoop, try_lock
from polonaise.host.real import RealHost
from polonaise.host.replacing import check_replaceable, is_standard_output, may_be_replaced, replaced
from rigs.waiting import time_passes, wait_until

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
    monkeypatch.setattr("polonaise.host.files.ALONE_S", 0.0)
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


def write(path: Path, contents: bytes = b"new") -> None:
    with replaced(path) as file:
        file.write(contents)


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link, second = tmp_path / "far" / "file", tmp_path / "link", tmp_path / "second"
    link.symlink_to("far/file")
    second.symlink_to(link)
    write(second, b"first")  # there is no such file yet
    assert target.read_bytes() == b"first"
    target.chmod(0o640)
    write(second)
    assert link.is_symlink()
    assert second.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640, "who may read it is as before"
    assert os.listdir(tmp_path / "far") == ["file"]


def test_a_failure_leaves_the_file_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file.new").write_bytes(b"another file of the user's")
    with contextlib.suppress(RuntimeError), replaced(tmp_path / "file") as file:
        file.write(b"half")
        raise RuntimeError
    assert (tmp_path / "file").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["file", "file.new"]
    write(tmp_path / "file")
    assert (tmp_path / "file.new").read_bytes() == b"another file of the user's"


@pytest.mark.parametrize("through", ["pipe", "link"])
def test_a_pipe_is_written_into_and_stays(tmp_path: Path, through: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    opened = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(tmp_path / through)
        assert os.read(opened, 10) == b"new"
    finally:
        os.close(opened)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_more_than_a_pipe_holds_waits_for_its_reader() -> None:
    """As with `>(…)` of a shell."""
    (output, into), contents = os.pipe(), bytes(1 << 20)
    writing = threading.Thread(target=write, args=(Path(f"/proc/self/fd/{into}"), contents))
    with open(output, "rb") as reader, open(into, "wb"):
        writing.start()
        assert reader.read(len(contents)) == contents
        writing.join()


def test_a_pipe_that_nobody_reads_and_a_directory_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadOption, match="nobody reads from the pipe"):
        write(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    (tmp_path / "round").symlink_to("round")
    for path, told in (("directory", "is a directory"), ("link", "is a directory"), ("round", "leads to itself")):
        with pytest.raises(BadOption, match=told):
            write(tmp_path / path)
        assert not may_be_replaced(tmp_path / path)
    assert (tmp_path / "link").is_symlink()
    assert may_be_replaced(tmp_path / "pipe")
    assert may_be_replaced(tmp_path / "missing")
    assert check_replaceable(tmp_path / "missing") is None


@pytest.mark.parametrize("output", ["pipe", "file"])
def test_what_is_the_standard_output_is_written_to_it_and_stays(tmp_path: Path, output: str) -> None:
    link, told = tmp_path / "stdout", tmp_path / "told"
    link.symlink_to("/proc/self/fd/1")
    program = (
        "import sys; from pathlib import Path; from polonaise.host.replacing import *; p = Path(sys.argv[1])\n"
        "assert is_standard_output(p)\n"
        "with replaced(p) as file: file.write(b'new')\n"
        "print(' and more')"
    )
    command = [sys.executable, "-c", program, str(link)]
    if output == "pipe":
        assert subprocess.run(command, check=True, capture_output=True).stdout == b"new and more\n"
    else:
        with told.open("wb") as file:
            subprocess.run(command, check=True, stdout=file)
        assert told.read_bytes() == b"new and more\n"
    assert link.is_symlink()
    assert not is_standard_output(tmp_path / "other")
