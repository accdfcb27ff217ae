"""Whoever waits for an embedded log, or can't open it, is told which process or disk is the matter, and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import polonaise
from polonaise.errors import AppendUnknown, BadOption, CoordinatorUnavailable, DeadlineExceeded, DiskFull
from polonaise.host import files
from polonaise.host.files import try_lock
from polonaise.host.real import RealHost
from polonaise.node.addresses import coordinator_at
from polonaise.node.attachment import whereabouts
from rigs.embedded import append_once, processes


def test_the_process_that_has_the_lock_is_named_with_what_to_do_about_it(tmp_path: Path) -> None:
    assert whereabouts(str(tmp_path)) == ""
    assert not list(tmp_path.iterdir()), "a request makes nothing"
    path = tmp_path / "host.lock"
    path.write_text(f"{os.getppid()}\n")
    assert whereabouts(str(tmp_path)) == f"nobody hosts the log in {tmp_path}"
    seat = SimpleNamespace(trouble=DiskFull("no space left for 'x'"))
    assert whereabouts(str(tmp_path), seat).endswith("this process can't: [disk_full] no space left for 'x'")  # type: ignore[arg-type]
    lock = try_lock(str(path))
    try:
        told = whereabouts(str(tmp_path))
        assert told.startswith(f"process {os.getppid()} hosts the log, according to {path}: ")
        assert f"kill -CONT {os.getppid()}" in told
        path.write_text("")
        assert "has not written its process id" in whereabouts(str(tmp_path))
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        path.write_text(str(ended.pid))
        assert "can't be seen from here" in whereabouts(str(tmp_path))
        path.write_text(str(os.getpid()))
        assert whereabouts(str(tmp_path)) == "", "it knows itself"
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


async def test_a_log_whose_disk_is_full_says_how_to_read_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"embedded:{tmp_path}"
    await append_once(address)
    write = files._write

    def full(descriptor: int, offset: int, buffers: object) -> None:
        if "unique-id" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "planted")
        write(descriptor, offset, buffers)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_write", full)
    with pytest.raises(CoordinatorUnavailable) as told:
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
