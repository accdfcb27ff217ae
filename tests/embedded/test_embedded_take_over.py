"""Several processes on one embedded log: whoever hosts may close, be killed, stopped or forked."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from rigs.embedded import SILENCE_S, TAKE_OVER_S_MAX, host_of, processes, until_hosted_by

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("storage", [1, 3])
async def test_when_the_host_is_killed_another_takes_over_with_all_that_was_acknowledged(
    tmp_path: Path, storage: int
) -> None:
    async with processes(tmp_path) as group:
        host = await group.start(f"?storage={storage}")
        guest = await group.start()
        for number in range(20):
            await (host, guest)[number % 2].ask("append", str(number))
        await guest.tell("append", "under way")
        killed_s = time.monotonic()
        await host.kill()
        assert await guest.answer() == 20
        # What was asked before the kill may have been committed before it: this was certainly not.
        assert await guest.ask("append", "after") == 21
        took_s = time.monotonic() - killed_s
        print(f"take-over from a killed host: {took_s:.2f} s")  # noqa: T201
        assert took_s < TAKE_OVER_S_MAX
        assert await guest.ask("read") == [*map(str, range(20)), "under way", "after"]
        assert host_of(tmp_path) == guest.pid


async def test_when_the_host_closes_another_takes_over_and_nothing_is_lost(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host = await group.start()
        guests = [await group.start() for _ in range(2)]
        assert await guests[0].ask("append", "before") == 0
        assert await host.close() == 0
        assert await guests[0].ask("append", "one") == 1
        assert await guests[1].ask("append", "two") == 2
        assert host_of(tmp_path) in [guest.pid for guest in guests]


async def test_processes_that_start_at_once_make_one_log(tmp_path: Path) -> None:
    async with processes(tmp_path / "new") as group:
        started = [await group.start("?partitions=1", wait=False) for _ in range(4)]
        assert [await process.answer() for process in started] == ["open"] * 4
        ids = await asyncio.gather(*(process.ask("append", str(process.pid)) for process in started))
        assert sorted(ids) == [0, 1, 2, 3]
        assert host_of(tmp_path / "new") in [process.pid for process in started]


async def test_who_may_not_host_does_not_take_over(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host = await group.start()
        worker = await group.start("?host=no")
        await worker.ask("append", "x")
        await host.kill()
        await worker.tell("append", "y")
        with pytest.raises(TimeoutError):
            await worker.answer(within_s=1.0)
        assert host_of(tmp_path) is None
        await group.start()
        assert await worker.answer() == 1


async def test_a_stopped_host_keeps_the_log_and_goes_on_when_it_is_continued(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host = await group.start()
        guest = await group.start()
        assert await guest.ask("append", "before") == 0
        await host.stop()
        try:
            await guest.tell("append", "meanwhile")
            # Longer than it takes to call a silent peer dead.
            with pytest.raises(TimeoutError):
                await guest.answer(within_s=SILENCE_S + 1.5)
            assert host_of(tmp_path) == host.pid
        finally:
            host.signal(signal.SIGCONT)
        assert await guest.answer() == 1
        assert await host.ask("append", "after") == 2
        assert await host.ask("read") == ["before", "meanwhile", "after"]
        assert host_of(tmp_path) == host.pid


async def test_a_stopped_guest_takes_over_when_it_is_continued_after_the_hosts_end(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host = await group.start()
        guest = await group.start()
        await host.ask("append", "a")
        await guest.stop()
        await host.kill()
        guest.signal(signal.SIGCONT)
        assert await guest.ask("append", "b") == 1


async def test_an_application_that_blocks_its_loop_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host = await group.start()
        guest = await group.start()
        await guest.ask("append", "a")
        await host.tell("block", 3)
        began_s = time.monotonic()
        for number in range(20):
            await guest.ask("append", str(number))
        assert time.monotonic() - began_s < 2.0


async def test_a_forked_child_does_not_hold_the_log_for_its_dead_parent(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host = await group.start()
        guest = await group.start()
        await guest.ask("append", "a")
        child = await host.ask("fork", 300)
        group.strangers.append(child)
        killed_s = time.monotonic()
        await host.kill()
        assert await guest.ask("append", "b") == 1
        assert time.monotonic() - killed_s < TAKE_OVER_S_MAX
        await until_hosted_by(tmp_path, guest.pid)
        assert Path(f"/proc/{child}").exists()


async def test_a_forked_child_that_opens_the_log_is_its_parents_guest(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host = await group.start()
        assert await host.ask("fork and append", "from the child") == 0
        assert await host.ask("read") == ["from the child"]
        assert host_of(tmp_path) == host.pid
