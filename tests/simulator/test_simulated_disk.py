"""The simulated disk: what a crash keeps, what a power loss may take, and what else disks do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from polonaise.errors import DirectoryInUse, DiskFailed, DiskFull, NotFound
from polonaise.host import Disk, File, Host
from polonaise_proving.stages.simulated import Configuration, DiskConfiguration, World
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from rigs.scenarios import in_a_world, run_alone

Work = Callable[[Host], Awaitable[None]]

SEEDS = range(60)


def after(end: str, work: Work, seed: int, configuration: DiskConfiguration | None = None) -> World:
    """The world after a process did its work and then its machine met its end; what is on disk is in `contents`."""
    world = World(seed, Configuration(disk=configuration or DiskConfiguration()))

    async def main(host: Host) -> None:
        await work(host)
        done.set()
        await asyncio.Event().wait()

    done = asyncio.Event()

    async def scenario() -> None:
        machine = world.machine("a")
        process = machine.start(main)
        await done.wait()
        if end == "power":
            machine.power_loss()
        else:
            process.crash()

    world.run(scenario())
    return world


def contents(world: World) -> dict[str, bytes]:
    disk = world.machine("a").disk
    return {path: disk.contents(path) for path in disk.paths()}


async def durable_file(disk: Disk, name: str, data: bytes) -> File:
    file = await disk.open(name, create=True)
    await file.write(0, [data], sync=True)
    await disk.sync_directory("")
    return file


@pytest.mark.parametrize("seed", range(5))
def test_what_was_synced_survives_a_power_loss(seed: int) -> None:
    async def work(host: Host) -> None:
        file = await durable_file(host.disk, "a", b"first")
        await file.write(5, [b"second"])
        await file.sync()

    assert contents(after("power", work, seed)) == {"a": b"firstsecond"}


def test_what_was_not_synced_survives_a_crash_but_not_every_power_loss() -> None:
    async def work(host: Host) -> None:
        file = await durable_file(host.disk, "a", b"first")
        await file.write(5, [b"second"])

    assert all(contents(after("crash", work, seed)) == {"a": b"firstsecond"} for seed in range(5))
    found = [contents(after("power", work, seed))["a"] for seed in SEEDS]
    assert all(data.startswith(b"first") for data in found)
    assert b"first" in found
    assert b"firstsecond" in found
    assert any(0 < len(data) - 5 < 6 for data in found)


def test_a_large_write_tears_at_sectors_and_at_bytes() -> None:
    async def work(host: Host) -> None:
        file = await durable_file(host.disk, "a", bytes(8192))
        await file.write(0, [b"x" * 8192])

    worlds = [after("power", work, seed) for seed in SEEDS]
    assert sum(world.faults["torn_write"] for world in worlds) > 5
    found = [contents(world)["a"] for world in worlds]
    sectors = [[data[at : at + 512] for at in range(0, 8192, 512)] for data in found]
    assert any(b"\0" * 512 in s and b"x" * 512 in s and s != sorted(s, reverse=True) for s in sectors)
    assert any(any(0 < sector.count(b"x") < 512 for sector in s) for s in sectors)


def test_writes_of_two_files_and_of_one_are_lost_in_any_order() -> None:
    async def work(host: Host) -> None:
        files = [await durable_file(host.disk, name, b"--") for name in ("a", "b")]
        for file in files:
            await file.write(0, [b"1"])
            await file.write(1, [b"2"])

    found = [contents(after("power", work, seed)) for seed in range(150)]
    assert {"a": b"-2", "b": b"--"} in found or {"a": b"-2", "b": b"1-"} in found
    assert {"a": b"--", "b": b"12"} in found
    assert {"a": b"12", "b": b"--"} in found


def test_a_sync_covers_what_was_written_when_it_began() -> None:
    async def work(host: Host) -> None:
        file = await durable_file(host.disk, "a", b"....")
        await file.write(0, [b"1"])
        syncing = asyncio.create_task(file.sync())
        await asyncio.sleep(0.0004)  # the call has begun, the disk is at work
        await file.write(1, [b"2"])
        assert not syncing.done()
        await syncing

    found = {contents(after("power", work, seed))["a"] for seed in SEEDS}
    assert found == {b"1...", b"12.."}


def test_a_name_that_was_not_synced_may_be_lost_with_its_file() -> None:
    async def work(host: Host) -> None:
        file = await host.disk.open("a", create=True)
        await file.write(0, [b"x"], sync=True)

    worlds = [after("power", work, seed) for seed in SEEDS]
    assert {"a" in contents(world) for world in worlds} == {True, False}
    assert all(("a" in contents(world)) != bool(world.faults["lost_directory_entry"]) for world in worlds)


def test_an_unsynced_rename_happened_whole_or_not_at_all() -> None:
    async def work(host: Host) -> None:
        await durable_file(host.disk, "new", b"new")
        await durable_file(host.disk, "old", b"old")
        await host.disk.rename("new", "old")

    found = [contents(after("power", work, seed)) for seed in SEEDS]
    assert {"old": b"new"} in found
    assert {"old": b"old", "new": b"new"} in found
    assert all(state in ({"old": b"new"}, {"old": b"old", "new": b"new"}) for state in found)


def test_an_unsynced_removal_may_come_undone() -> None:
    async def work(host: Host) -> None:
        await durable_file(host.disk, "a", b"x")
        await host.disk.remove("a")

    assert {len(contents(after("power", work, seed))) for seed in SEEDS} == {0, 1}


def test_a_directory_whose_name_was_not_synced_may_be_lost_with_all_in_it() -> None:
    async def work(host: Host) -> None:
        await host.disk.make_directory("d")
        await (await host.disk.open("d/a", create=True)).write(0, [b"x"], sync=True)
        await host.disk.sync_directory("d")
        if synced:
            await host.disk.sync_directory("")

    synced = False
    found = [contents(after("power", work, seed)) for seed in SEEDS]
    assert {} in found
    assert {"d/a": b"x"} in found
    synced = True
    assert all(contents(after("power", work, seed)) == {"d/a": b"x"} for seed in SEEDS)


def test_a_failed_sync_loses_some_of_what_still_reads_back() -> None:
    async def work(disk: Disk, machine: SimulatedDisk) -> None:
        file = await durable_file(disk, "a", b"--")
        await file.write(0, [b"1"])
        machine.fail_syncs()
        with pytest.raises(DiskFailed):
            await file.sync()
        assert await file.read(0, 2) == b"1-"
        await file.write(1, [b"2"])
        await file.sync()  # succeeds, and does not bring back what the failed one dropped

    found = set()
    for seed in range(30):
        world = running(work, seed)
        world.machine("a").power_loss()
        assert world.faults["failed_sync"] == 1
        found.add(contents(world)["a"])
    assert found == {b"12", b"-2"}


def running(work: Callable[[Disk, SimulatedDisk], Awaitable[None]], seed: int = 1) -> World:
    """A process at work while the scenario's hand is on its disk."""
    world = World(seed)

    async def main(host: Host) -> None:
        await work(host.disk, world.machine("a").disk)

    run_alone(world, main)
    return world


def test_syncs_fail_until_they_are_let_succeed() -> None:
    async def work(disk: Disk, machine: SimulatedDisk) -> None:
        file = await disk.open("a", create=True)
        machine.fail_syncs(None)
        for _ in range(3):
            with pytest.raises(DiskFailed):
                await file.write(0, [b"x"], sync=True)
        with pytest.raises(DiskFailed):
            await disk.sync_directory("")
        machine.fail_syncs(0)
        await file.write(0, [b"x"], sync=True)

    assert running(work).faults["failed_sync"] == 4


def test_reads_and_writes_fail() -> None:
    async def work(disk: Disk, machine: SimulatedDisk) -> None:
        file = await disk.open("a", create=True)
        machine.fail_writes()
        with pytest.raises(DiskFailed):
            await file.write(0, [b"x"])
        await file.write(0, [b"x"])
        machine.fail_reads()
        with pytest.raises(DiskFailed):
            await file.read(0, 1)
        assert await file.read(0, 1) == b"x"

    assert running(work).faults.injected() == {"failed_read": 1, "failed_write": 1}


def test_a_full_disk_takes_a_part_at_most_and_lets_old_bytes_be_overwritten() -> None:
    async def work(disk: Disk, machine: SimulatedDisk) -> None:
        file = await disk.open("a", create=True)
        await file.write(0, [b"x" * 1000])
        machine.fill(spare_bytes=100)
        with pytest.raises(DiskFull):
            await file.write(1000, [b"y" * 500])
        assert await file.size() <= 1100
        await file.write(0, [b"z" * 1000])
        machine.fill()
        with pytest.raises(DiskFull):
            await disk.open("b", create=True)
        machine.free()
        await file.write(1000, [b"y" * 500])
        await disk.open("b", create=True)

    assert running(work).faults.injected() == {"full_disk": 2}


def test_a_slow_disk_is_counted() -> None:
    async def work(host: Host) -> None:
        await durable_file(host.disk, "a", b"x")

    world = after("crash", work, 1, DiskConfiguration(spike_chance=1.0, spike_s=10))
    assert world.faults["delay"] >= 4
    assert world.now > 10_001


def test_a_write_under_way_at_a_crash_happened_or_not_or_in_part() -> None:
    async def work(host: Host) -> None:
        file = await durable_file(host.disk, "a", b"")
        pending.append(asyncio.create_task(file.write(0, [b"x" * 10])))
        await asyncio.sleep(0)

    pending: list[asyncio.Task[None]] = []
    sizes = {len(contents(after("crash", work, seed))["a"]) for seed in SEEDS}
    assert {0, 10} < sizes


@in_a_world
async def test_a_lock_is_free_again_when_its_holder_is_dead(world: World) -> None:
    answers: list[str] = []

    async def main(host: Host) -> None:
        try:
            await host.disk.lock("lock")
        except DirectoryInUse:
            answers.append("in use")
            return
        answers.append("locked")
        await asyncio.sleep(1e6)

    machine = world.machine("a")
    first = machine.start(main)
    await asyncio.sleep(1)
    await machine.start(main).ended()
    first.crash()
    machine.start(main)
    await asyncio.sleep(1)
    assert answers == ["locked", "in use", "locked"]


def test_nothing_under_way_happens_after_a_power_loss() -> None:
    answers: list[str] = []

    async def doomed(host: Host) -> None:
        file = await durable_file(host.disk, "a", b"old")
        late.append(asyncio.create_task(file.write(0, [b"new"])))
        late.append(asyncio.create_task(host.disk.lock("lock")))
        await asyncio.sleep(0)
        begun.set()
        await asyncio.sleep(1e6)

    async def heir(host: Host) -> None:
        await asyncio.sleep(1)
        await host.disk.lock("lock")
        answers.append("locked")

    async def scenario() -> None:
        machine = world.machine("a")
        machine.start(doomed)
        await begun.wait()
        machine.power_loss()
        await machine.start(heir).ended()

    for seed in range(20):
        world, begun = World(seed), asyncio.Event()
        late: list[asyncio.Task[object]] = []
        world.run(scenario())
        assert contents(world)["a"] == b"old"
    assert answers == ["locked"] * 20


def stored(world: World, data: bytes) -> SimulatedDisk:
    """The disk of machine a with a file of this data, and nobody running."""

    async def main(host: Host) -> None:
        await durable_file(host.disk, "a", data)

    run_alone(world, main)
    return world.machine("a").disk


def test_damage_at_rest_is_done_and_counted_only_when_it_changes_something() -> None:
    world = World(1)
    disk = stored(world, b"abc" + bytes(1021))
    disk.flip_bit("a", 0, 1)
    assert disk.contents("a")[:3] == b"cbc"
    disk.zero_sector("a", 1)
    assert world.faults.injected() == {"bit_flip": 1}
    disk.zero_sector("a", 0)
    assert disk.contents("a") == bytes(1024)
    disk.overwrite("a", 100, b"stale")
    disk.truncate("a", 512)
    disk.truncate("a", 9999)
    assert len(disk.contents("a")) == 512
    assert world.faults.injected() == {"bit_flip": 1, "corrupt_file": 3}
    world.machine("a").power_loss()
    assert disk.contents("a")[100:105] == b"stale"


def test_a_disk_can_be_set_back_and_wiped() -> None:
    world = World(1)
    disk = stored(world, b"old")
    snapshot = disk.snapshot()
    disk.restore(snapshot)
    assert world.faults["stale_disk"] == 0
    disk.overwrite("a", 0, b"new")
    disk.restore(snapshot)
    assert disk.contents("a") == b"old"
    assert world.faults["stale_disk"] == 1
    disk.wipe()
    disk.wipe()
    assert disk.paths() == []
    assert world.faults["wiped_disk"] == 1
    with pytest.raises(NotFound):
        disk.contents("a")


def test_a_disk_in_use_is_not_replaced() -> None:
    async def work(disk: Disk, machine: SimulatedDisk) -> None:
        with pytest.raises(RuntimeError):
            machine.wipe()

    running(work)
