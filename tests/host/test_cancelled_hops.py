"""Whoever is cancelled while a thread opens something for it loses nothing: it is closed again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from polonaise.host import Host
from polonaise.host.files import try_lock
from polonaise.host.real import RealHost, loop_factory
from rigs.waiting import time_passes, wait_until

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "uvloop"])
Loop = Callable[[], asyncio.AbstractEventLoop] | None
MOMENTS = 8
"""In so many turns of the loop an open file is there at the latest, if the disk is quick."""


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def cancelled_after(turns: int, make: Coroutine[Any, Any, Any]) -> Any:
    """What was made; None if the cancellation came first."""
    task = asyncio.ensure_future(make)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


def run(loop: Loop, main: Callable[[RealHost], Coroutine[Any, Any, None]]) -> None:
    with contextlib.closing(RealHost()) as host, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main(host))


async def quiet(host: RealHost) -> None:
    """Until the threads have done what they were asked for."""
    await wait_until(lambda: not host._threads._begun_s)


@LOOPS
def test_a_thousand_cancelled_opens_leave_no_descriptor(loop: Loop, tmp_path: Path) -> None:
    async def main(host: RealHost) -> None:
        await (await host.disk.open(f"{tmp_path}/a", create=True)).close()
        await time_passes(0.01)  # what was closed is gone
        before = descriptors()
        for number in range(1_000):
            file = await cancelled_after(number % MOMENTS, host.disk.open(f"{tmp_path}/a"))
            if file is not None:
                await file.close()
        await quiet(host)
        assert len(descriptors()) <= len(before)

    run(loop, main)


def test_an_open_that_is_cancelled_when_its_file_is_on_the_way_closes_it(tmp_path: Path) -> None:
    """The thread has answered, and the loop has not come to tell it yet."""

    async def main(host: RealHost) -> None:
        await (await host.disk.open(f"{tmp_path}/a", create=True)).close()
        before = descriptors()
        for turns in (0, 1):
            opening = asyncio.ensure_future(host.disk.open(f"{tmp_path}/a"))
            await asyncio.sleep(0)
            done, real = threading.Event(), host._threads.run
            real(done.set)  # with one thread it comes after the open
            assert done.wait(5)
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        await quiet(host)
        assert descriptors() == before

    with contextlib.closing(RealHost(disk_threads=1)) as host:
        asyncio.run(main(host))


@LOOPS
def test_a_lock_that_nobody_took_is_free(loop: Loop, tmp_path: Path) -> None:
    async def main(host: RealHost) -> None:
        for number in range(80):
            path = f"{tmp_path}/lock-{number}"
            lock = await cancelled_after(number % MOMENTS, host.disk.lock(path))
            if lock is None:
                await quiet(host)
                try_lock(path).release()
            else:
                lock.release()

    run(loop, main)


def test_a_loop_that_ends_while_a_file_is_opened_leaves_no_descriptor(tmp_path: Path) -> None:
    host, go = RealHost(disk_threads=1), threading.Event()
    (tmp_path / "a").touch()

    async def main() -> None:
        host._threads.run(go.wait)
        asked = [host.disk.open(f"{tmp_path}/a"), host.disk.lock(f"{tmp_path}/lock")]
        tasks = [asyncio.ensure_future(each) for each in asked]
        await asyncio.wait(tasks, timeout=0.01)

    before = descriptors()
    asyncio.run(main())
    go.set()
    host.close()
    assert descriptors() == before


def test_a_host_that_is_closed_closes_what_was_left_open(tmp_path: Path) -> None:
    host = RealHost()

    async def main() -> None:
        file = await host.disk.open(f"{tmp_path}/a", create=True)
        await host.disk.open(f"{tmp_path}/b", create=True)
        await host.disk.lock(f"{tmp_path}/lock")
        host.cut_off_disk()
        with pytest.raises(Exception, match="closed"):
            await file.close()

    before = descriptors()
    asyncio.run(main())
    host.close()
    host.close()
    assert descriptors() == before


@LOOPS
def test_a_listener_that_nobody_took_listens_no_more(loop: Loop, tmp_path: Path) -> None:
    async def main(host: RealHost) -> None:
        await (await host.network.listen("127.0.0.1:0", asyncio.Protocol)).close()
        await time_passes(0.01)  # what was closed is gone
        before = descriptors()
        for number in range(40):
            for address in ("127.0.0.1:0", f"unix:{tmp_path}/{number}"):
                listener = await cancelled_after(number % MOMENTS, host.network.listen(address, asyncio.Protocol))
                if listener is not None:
                    await listener.close()
        await wait_until(lambda: len(descriptors()) <= len(before))
        assert not list(tmp_path.iterdir())

    run(loop, main)


@LOOPS
def test_a_connection_that_nobody_took_is_closed(loop: Loop, tmp_path: Path) -> None:
    async def main(host: Host) -> None:
        addresses = ["127.0.0.1:0", f"unix:{tmp_path}/here"]
        listeners = [await host.network.listen(address, asyncio.Protocol) for address in addresses]
        transport, _ = await host.network.connect(listeners[0].address, asyncio.Protocol)
        transport.abort()
        await time_passes(0.05)  # what was closed is gone
        before = descriptors()
        for number in range(40):
            for listener in listeners:
                made = await cancelled_after(number % MOMENTS, host.network.connect(listener.address, asyncio.Protocol))
                if made is not None:
                    made[0].abort()
        await wait_until(lambda: len(descriptors()) <= len(before))
        for listener in listeners:
            await listener.close()

    run(loop, main)
