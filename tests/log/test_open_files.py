"""Only so many files are open at a time, whatever is used; and one sync serves all who ask for it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from polonaise.errors import Closed, DiskFailed, NotFound
from polonaise.host import Host
from polonaise.log.control import ControlFile
from polonaise.log.openfiles import OpenFiles, SharedSync
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.log.segmentreader import SegmentCache
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import DIRECTORY, KEY, Maker, Open, crcs, in_one_life, simulate
from rigs.scenarios import runs_tests
from rigs.unretrieved import errors_nobody_took


@runs_tests
def on_a_host(given: Callable[[Host, Process], Awaitable[None]]) -> None:
    async def scenario(machine: Machine) -> None:
        async def main(host: Host) -> None:
            await host.disk.make_directory("data")
            await given(host, process)

        process = machine.start(main)
        await process.ended()

    simulate(scenario)


@on_a_host
async def test_what_was_used_longest_ago_is_closed_and_opened_again_when_it_is_asked_for(
    host: Host, process: Process
) -> None:
    files = OpenFiles(host.disk, 3)
    kept = [await files.open(f"data/{number}", create=True) for number in range(5)]
    assert process.handles == ["data/2", "data/3", "data/4"]
    for number, file in enumerate(kept):
        await file.write(0, [b"%d" % number], sync=True)
    assert process.handles == ["data/2", "data/3", "data/4"]
    await kept[2].size()
    assert await kept[0].read(0, 10) == b"0"
    assert sorted(process.handles) == ["data/0", "data/2", "data/4"]
    for number, file in enumerate(kept):
        assert await file.read(0, 10) == b"%d" % number
    for file in kept:
        await file.close()
    assert process.handles == []
    assert len(files) == 0
    with pytest.raises(Closed):
        await kept[0].read(0, 1)


@on_a_host
async def test_another_file_in_the_place_of_one_that_was_closed_is_not_taken_for_it(
    host: Host, process: Process
) -> None:
    files = OpenFiles(host.disk, 1)
    first = await files.open("data/0", create=True)
    await first.write(0, [b"0"], sync=True)
    second = await files.open("data/1", create=True)
    assert await first.read(0, 10) == b"0", "opened again, it is the same"
    await second.size()
    await host.disk.rename("data/0", "data/moved")
    other = await host.disk.open("data/0", create=True)
    await other.write(0, [b"1"], sync=True)
    await other.close()
    with pytest.raises(NotFound, match="was replaced"):
        await first.read(0, 10)
    await host.disk.rename("data/moved", "data/0")
    assert await first.read(0, 10) == b"0"
    await first.close()
    await second.close()
    assert process.handles == []


@in_one_life
async def test_promises_that_are_too_late_for_a_closed_control_file_stop_no_process(
    machine: Machine, opened: Open
) -> None:
    await opened.close()
    with pytest.raises(Closed):
        await opened.slot.save(opened.slot.promises)


@on_a_host
async def test_however_many_are_used_at_the_same_time_only_so_many_are_open(host: Host, process: Process) -> None:
    files = OpenFiles(host.disk, 3)
    kept = [await files.open(f"data/{number}", create=True) for number in range(40)]
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(process.handles))
            await asyncio.sleep(0.0001)

    watching = asyncio.ensure_future(watch())
    tasks = [asyncio.ensure_future(file.write(0, [b"%d" % number])) for number, file in enumerate(kept)]
    await asyncio.sleep(0.001)
    for task in tasks[5:15]:
        task.cancel()  # while they wait, or are just let in: the others' turn comes nevertheless
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(result is None for result in done) >= 30
    for number in (0, 20, 39):
        assert await kept[number].read(0, 10) == b"%d" % number
    watching.cancel()
    assert most <= 3 + 1  # one is opened before another is closed for it


@on_a_host
async def test_files_in_use_are_not_closed_and_many_who_use_one_open_it_once(host: Host, process: Process) -> None:
    files = OpenFiles(host.disk, 1)
    kept = [await files.open(f"data/{number}", create=True) for number in range(4)]
    async with asyncio.TaskGroup() as group:
        for number, file in enumerate(kept):
            for position in range(10):
                group.create_task(file.write(4 * position, [b"%04d" % number], sync=position == 9))
    await (await files.open("data/5", create=True)).close()
    assert len(process.handles) == len(files) <= 1
    for number, file in enumerate(kept):
        assert await file.read(0, 100) == b"%04d" % number * 10


@on_a_host
async def test_a_file_that_is_closed_while_it_is_opened_again_stays_closed(host: Host, process: Process) -> None:
    files = OpenFiles(host.disk, 1)
    first = await files.open("data/1", create=True)
    await files.open("data/2", create=True)
    reading = asyncio.create_task(first.read(0, 1))
    await asyncio.sleep(0)
    await first.close()
    with pytest.raises(Closed):
        await reading
    assert process.handles == []  # the other one had made room


@on_a_host
async def test_a_missing_file_is_not_found_at_once(host: Host, process: Process) -> None:
    with pytest.raises(NotFound):
        await OpenFiles(host.disk, 1).open("data/none")


@on_a_host
async def test_a_sync_serves_all_who_ask_before_it_begins_and_never_one_who_asks_later(
    host: Host, process: Process
) -> None:
    begun: list[int] = []
    written = 0

    async def sync() -> None:
        begun.append(written)
        await asyncio.sleep(1.0)

    shared = SharedSync(sync)

    async def ask(number: int) -> None:
        nonlocal written
        written = number
        await shared()
        assert begun[-1] >= number

    async with asyncio.TaskGroup() as group:
        for number in range(1, 101):
            group.create_task(ask(number))
            await asyncio.sleep(0.01)
    assert len(begun) <= 3
    assert not shared.busy


@on_a_host
async def test_a_sync_that_fails_fails_for_all_whom_it_served_and_the_next_is_another(
    host: Host, process: Process
) -> None:
    outcomes = iter([OSError("full"), None])

    async def sync() -> None:
        await asyncio.sleep(0.1)
        if (error := next(outcomes)) is not None:
            raise error

    shared = SharedSync(sync)
    told = await asyncio.gather(shared(), shared(), return_exceptions=True)
    assert [type(each) for each in told] == [OSError, OSError]
    await shared()


async def test_a_sync_that_fails_when_all_who_asked_have_given_up_is_an_error_of_nobodys() -> None:
    ends = asyncio.Event()

    async def sync() -> None:
        await ends.wait()
        raise DiskFailed("the disk has gone")

    shared = SharedSync(sync)
    with errors_nobody_took() as told:
        asking = asyncio.ensure_future(shared())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        ends.set()
        while shared.busy:
            await asyncio.sleep(0)
        del asking, shared
    assert told == []


@on_a_host
async def test_many_logs_have_few_files_open_and_lose_nothing_by_it(host: Host, process: Process) -> None:
    control = await ControlFile.open(host, DIRECTORY, KEY)
    files, cache = OpenFiles(host.disk, 4), SegmentCache(2)
    makers = [Maker(partition=partition) for partition in range(20)]
    logs: list[PartitionLog] = []
    for partition in range(20):
        slot = await control.create(partition)
        directory = control.partition_directory(partition)
        logs.append(await PartitionLog.open(host, directory, slot, LogSettings(700), cache, files))
    made = [[maker.batch(size=150) for _ in range(8)] for maker in makers]
    for number in range(8):
        for partition, log in enumerate(logs):
            await log.append([made[partition][number]])
            assert len(process.handles) <= 4 + 2
    for partition, log in enumerate(logs):
        await log.cut(5)
        held = [await log.read(first, 5, 1) for first in range(6)]
        assert crcs([batch for batches in held for batch in batches]) == crcs(made[partition][:6])
        assert len(process.handles) <= 4 + 2
    for log in logs:
        await log.close()
    await control.close()
    assert process.handles == []
