"""Whoever waits for an embedded log is told which process, disk or clock is the matter; readers and leases go on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import polonaise
from polonaise.errors import AppendUnknown, BadOption, CoordinatorUnavailable, DeadlineExceeded, DiskFull
from polonaise.host import files
from polonaise.host.files import try_lock
from polonaise.host.real import RealHost
from polonaise.node.addresses import coordinator_at
from polonaise.node.attachment import who_hosts
from polonaise.node.condition import conditions_in
from rigs.embedded import TAKE_OVER_S_MAX, append_once, host_of, processes
from rigs.waiting import wait_until


def test_the_process_that_has_the_lock_is_named_with_what_to_do_about_it(tmp_path: Path) -> None:
    assert who_hosts(str(tmp_path)) == ""
    assert not list(tmp_path.iterdir()), "a request makes nothing"
    path = tmp_path / "host.lock"
    path.write_text(f"{os.getppid()}\n")
    assert who_hosts(str(tmp_path)) == f"nobody hosts the log in {tmp_path}"
    seat = SimpleNamespace(trouble=DiskFull("no space left for 'x'"))
    assert who_hosts(str(tmp_path), seat).endswith("this process can't: [disk_full] no space left for 'x'")  # type: ignore[arg-type]
    lock = try_lock(str(path))
    try:
        told = who_hosts(str(tmp_path))
        assert told.startswith(f"process {os.getppid()} hosts the log, according to {path}: ")
        assert f"kill -CONT {os.getppid()}" in told
        path.write_text("")
        assert "has not written its process id" in who_hosts(str(tmp_path))
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        path.write_text(str(ended.pid))
        assert "can't be seen from here" in who_hosts(str(tmp_path))
        path.write_text(str(os.getpid()))
        assert who_hosts(str(tmp_path)) == "", "it knows itself"
    finally:
        lock.release()


@pytest.mark.slow
async def test_who_waits_for_a_host_that_is_stopped_is_told_which_process_that_is(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host = await group.start()
        async with polonaise.connect(f"embedded:{tmp_path}") as log:
            await log.append(b"before")
            await host.stop()
            with pytest.raises(
                DeadlineExceeded, match=rf"process {host.pid} hosts the log, according to {tmp_path}/host\.lock"
            ):
                await log.health(0, timeout=0.5)
            with pytest.raises(AppendUnknown, match=rf"process {host.pid} hosts the log"):
                await log.run(lambda tx: tx.append(b"in vain"), timeout=0.5)
            with pytest.raises(DeadlineExceeded, match=rf"process {host.pid} hosts the log"):
                await log.append(b"too").applied(timeout=0.5)
            host.signal(signal.SIGCONT)
            assert (await log.health(0))["partitions"]["0"]["ready"]


async def test_a_log_whose_disk_is_full_says_how_to_read_what_is_there(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}"
    await append_once(address)
    with no_room_for_ids(), pytest.raises(CoordinatorUnavailable) as told:
        async with polonaise.connect(address):
            pass
    assert "free some, then try again" in str(told.value)
    assert f"polonaise segment read {tmp_path}/storage-0 --partition 0" in str(told.value)


@pytest.mark.parametrize("wait", [None, 5.0])
@pytest.mark.parametrize("where", ["", "/coordinator", "/coordinator/"])
async def test_the_coordinator_of_an_embedded_log_is_that_of_no_cluster(
    where: str, wait: float | None, tmp_path: Path
) -> None:
    directory = tmp_path / "log"
    await append_once(f"embedded:{directory}")
    with pytest.raises(BadOption, match=f"write embedded:{directory}$"):
        async with polonaise.connect(f"file:{directory}{where}", wait=wait):
            pass
    with contextlib.closing(RealHost()) as host:
        with pytest.raises(BadOption, match="embedded"):
            coordinator_at(host, f"file:{directory}{where}")
        coordinator_at(host, f"file:{tmp_path}")


FULL = "no space left for"


@contextlib.contextmanager
def no_room_for_ids() -> Iterator[None]:
    """Let no id be given out during the block."""
    write = files._write

    def full(descriptor: int, offset: int, buffers: object) -> None:
        if "unique-id" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "planted")
        write(descriptor, offset, buffers)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(files, "_write", full)
        yield


async def test_a_reader_needs_no_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"embedded:{tmp_path}"
    async with polonaise.connect(address) as host:
        await host.append(b"there", partition=0)
        with no_room_for_ids(), caplog.at_level(logging.WARNING, "polonaise.client"):
            async with polonaise.connect(f"{address}?host=no") as reader:
                assert reader.client_id == 0
                assert [tx.data async for tx in reader.read(0)] == [b"there"]
                assert await reader.high_water_mark(0) == 0
                assert reader.clock_ahead_s is not None, "it was told with the first answer"
                assert reader.failure is None
    assert "this client can read only, because it was given no id: [coordinator_unavailable] " in caplog.text
    assert FULL in caplog.text


@pytest.mark.slow
async def test_what_needs_an_id_says_why_there_is_none_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}"
    async with contextlib.AsyncExitStack() as opened:
        host = await opened.enter_async_context(polonaise.connect(address))
        with no_room_for_ids():
            log = await opened.enter_async_context(polonaise.connect(f"{address}?host=no"))
            receipt = log.append(b"waits", partition=0)
            for ask in (lambda: log.ready(0, timeout=0.2), lambda: receipt.applied(timeout=0.2)):
                with pytest.raises(DeadlineExceeded, match=FULL):
                    await ask()
            assert isinstance(log.trouble(0), CoordinatorUnavailable)
            for make in (lambda: log.lease("name"), lambda: log.group("group", handler=_handle)):
                with pytest.raises(CoordinatorUnavailable, match=FULL):
                    make()
        await asyncio.wait_for(receipt, 30)
        assert log.client_id not in (0, host.client_id)
        assert log.trouble(0) is None
        async with log.lease("name") as lease:
            assert lease.holder >> 32 == log.client_id
        assert [tx.client_id async for tx in host.read(0)] == [log.client_id]
        await log.run(lambda tx: tx.append(b"of a context"), partition=0)


async def test_a_client_without_an_id_closes_as_others_do(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}"
    async with polonaise.connect(address), contextlib.AsyncExitStack() as opened:
        with no_room_for_ids():
            log = await opened.enter_async_context(polonaise.connect(f"{address}?host=no"))
            receipt = log.append(b"never sent", partition=0)
            await opened.aclose()
        await wait_until(lambda: receipt.done)
        assert not receipt.committed
        assert "closed" in str(receipt.error)


async def _handle(tx: object) -> None: ...


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


@pytest.mark.slow
async def test_a_log_whose_times_stand_still_says_until_when(tmp_path: Path, clock: SetClock) -> None:
    """A process that begins by a wrong clock has nothing to compare it with."""
    clock.ahead_s = TEN_YEARS_S
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.append(b"ahead", partition=0)
    clock.ahead_s = 0
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.append(b"after", partition=0)
        assert "commit times stand still at 20" in conditions_in(await log.health(0))[0].times


DURATION_S = 2.0
"""As `attached.py` has it."""


@pytest.mark.slow
async def test_a_lease_is_kept_when_another_process_hosts_the_log(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host, first, second = await group.start(), await group.start(), await group.start()
        await first.ask("hold", "n")
        await second.tell("hold", "n")
        await host.close()
        with pytest.raises(TimeoutError):
            await second.answer(within_s=TAKE_OVER_S_MAX + DURATION_S)
        assert await first.ask("held", "n")
        assert host_of(tmp_path) in (first.pid, second.pid)
        await first.ask("release", "n")
        await second.answer()
