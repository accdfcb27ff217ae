"""What every disk promises, the machine's and the simulated one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from polonaise.errors import Closed, DirectoryInUse, DiskFailed, NotADirectory, NotFound
from polonaise.host import Disk, Host
from polonaise.host.real import RealHost
from polonaise_proving.stages.simulated import World
from rigs.scenarios import run_alone, runs_tests_on

Given = Callable[[Disk, str], Awaitable[None]]


def on_the_machine(given: Given, directory: Path, *, syncs_in_loop: bool = False) -> None:
    with contextlib.closing(RealHost(syncs_in_loop=syncs_in_loop)) as host:
        asyncio.run(given(host.disk, str(directory)))  # type: ignore[arg-type]


def syncing_in_the_loop(given: Given, directory: Path) -> None:
    on_the_machine(given, directory, syncs_in_loop=True)


def simulated(given: Given, _: Path) -> None:
    async def main(host: Host) -> None:
        await host.disk.make_directory("data")
        await given(host.disk, "data")

    run_alone(World(1), main)


on_every_disk = runs_tests_on(on_the_machine, syncing_in_the_loop, simulated)


@on_every_disk
async def test_a_small_file_is_loaded_whole(disk: Disk, root: str) -> None:
    with pytest.raises(NotFound):
        await disk.load(f"{root}/a")
    file = await disk.open(f"{root}/a", create=True)
    assert await disk.load(f"{root}/a") == b""
    await file.write(0, [b"one", bytes(100_000)])
    assert await disk.load(f"{root}/a") == b"one" + bytes(100_000)
    await file.close()


@on_every_disk
async def test_a_disk_tells_its_space(disk: Disk, root: str) -> None:
    space = await disk.space(root)
    assert space.total_bytes >= space.free_bytes > 0
    with pytest.raises(NotFound):
        await disk.space(f"{root}/nothing")


@on_every_disk
async def test_what_was_written_reads_back(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True)
    await file.write(3, [b"one", bytearray(b"two"), memoryview(b"three")], sync=True)
    assert await file.read(0, 100) == b"\0\0\0onetwothree"
    assert await file.read(6, 3) == b"two"
    assert await file.read(14, 10) == b""
    assert await file.read(50, 10) == b""
    assert await file.size() == 14
    await file.sync()
    await file.close()


@on_every_disk
async def test_more_buffers_than_one_call_of_the_system_takes_are_all_written(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True)
    await file.write(0, [b"%04d" % number for number in range(5000)] + [b""])
    assert await file.read(0, 40_000) == b"".join(b"%04d" % number for number in range(5000))
    await file.write(0, [])
    await file.close()


@on_every_disk
async def test_a_file_is_cut_and_extended_with_zeros(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True)
    await file.write(0, [b"abcdef"])
    await file.truncate(2)
    await file.truncate(4)
    assert await file.read(0, 10) == b"ab\0\0"
    await file.close()


@on_every_disk
async def test_a_file_that_is_opened_to_append_has_no_holes_whoever_cuts_it(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True, append=True)
    other = await disk.open(f"{root}/a")
    await file.write(0, [b"abc", b"def"], sync=True)
    await other.truncate(2)
    await file.write(6, [b"ghi", b"", b"jkl"], sync=True)
    assert await file.read(0, 10) == b"abghijkl"
    await other.write(8, [b"X"])
    await file.write(8, [b"%04d" % number for number in range(3000)])
    assert await file.read(0, 20_000) == b"abghijklX" + b"".join(b"%04d" % number for number in range(3000))
    await file.truncate(3)
    assert await file.size() == 3
    for each in (file, other):
        await each.close()


@on_every_disk
async def test_a_missing_file_or_directory_is_not_found(disk: Disk, root: str) -> None:
    for call in (
        disk.open(f"{root}/none"),
        disk.open(f"{root}/none/a", create=True),
        disk.list(f"{root}/none"),
        disk.remove(f"{root}/none"),
        disk.rename(f"{root}/none", f"{root}/b"),
        disk.sync_directory(f"{root}/none"),
    ):
        with pytest.raises(NotFound):
            await call
    assert not await disk.exists(f"{root}/none")


@on_every_disk
async def test_a_directory_is_no_file(disk: Disk, root: str) -> None:
    with pytest.raises(DiskFailed):
        await disk.open(root)


@on_every_disk
async def test_no_directory_is_made_at_or_below_a_file(disk: Disk, root: str) -> None:
    await (await disk.open(f"{root}/file", create=True)).close()
    for path in (f"{root}/file", f"{root}/file/deeper"):
        with pytest.raises(NotADirectory):
            await disk.make_directory(path)
    with pytest.raises(NotADirectory):
        await disk.list(f"{root}/file")


@on_every_disk
async def test_names_are_listed_sorted(disk: Disk, root: str) -> None:
    for name in ("c", "a", "b"):
        await (await disk.open(f"{root}/{name}", create=True)).close()
    await disk.make_directory(f"{root}/d/e")
    await disk.make_directory(f"{root}/d/e")
    await disk.sync_directory(root)
    assert await disk.list(root) == ["a", "b", "c", "d"]
    assert await disk.list(f"{root}/d") == ["e"]
    assert await disk.exists(f"{root}/d/e")


@on_every_disk
async def test_a_rename_replaces_its_target(disk: Disk, root: str) -> None:
    for name in ("old", "new"):
        file = await disk.open(f"{root}/{name}", create=True)
        await file.write(0, [name.encode()])
        await file.close()
    await disk.rename(f"{root}/new", f"{root}/old")
    assert await disk.list(root) == ["old"]
    file = await disk.open(f"{root}/old")
    assert await file.read(0, 10) == b"new"
    await file.close()


@on_every_disk
async def test_an_open_file_outlives_its_name(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True)
    await disk.remove(f"{root}/a")
    await file.write(0, [b"still"], sync=True)
    assert await file.read(0, 10) == b"still"
    assert await disk.list(root) == []
    await file.close()


@on_every_disk
async def test_a_name_that_leads_elsewhere_or_nowhere_is_told_from_what_it_led_to(disk: Disk, root: str) -> None:
    await disk.make_directory(f"{root}/d")
    file = await disk.open(f"{root}/d/a", create=True)
    held, directory = await disk.identity(f"{root}/d/a"), await disk.identity(f"{root}/d")
    assert None not in (held, directory)
    assert held != directory
    await file.write(0, [b"more"], sync=True)
    assert (await disk.identity(f"{root}/d/a"), await disk.identity(f"{root}/d")) == (held, directory)
    await disk.remove(f"{root}/d/a")
    assert await disk.identity(f"{root}/d/a") is None
    other = await disk.open(f"{root}/d/a", create=True)
    assert await disk.identity(f"{root}/d/a") not in (held, None)
    await disk.rename(f"{root}/d", f"{root}/e")
    assert await disk.identity(f"{root}/d/a") is None
    assert await disk.identity(f"{root}/e") == directory
    names = [f"{root}/{name}" for name in ("e", "d", "e/a")]
    assert await disk.identities(names) == [await disk.identity(name) for name in names]
    await file.close()
    await other.close()


@on_every_disk
async def test_the_number_of_an_entry_changes_with_the_file_that_has_the_name(disk: Disk, root: str) -> None:
    files = [await disk.open(f"{root}/{name}", create=True) for name in ("a", "b")]
    await disk.make_directory(f"{root}/c")
    before = await disk.entries(root)
    assert {*before} == {"a", "b", "c"}
    await files[0].write(0, [b"more"], sync=True)
    assert await disk.entries(root) == before
    await disk.rename(f"{root}/b", f"{root}/a")
    assert await disk.entries(root) == {"a": before["b"], "c": before["c"]}
    with pytest.raises(NotFound):
        await disk.entries(f"{root}/none")
    for file in files:
        await file.close()


@on_every_disk
async def test_a_directory_is_locked_once(disk: Disk, root: str) -> None:
    lock = await disk.lock(f"{root}/lock")
    with pytest.raises(DirectoryInUse):
        await disk.lock(f"{root}/lock")
    lock.release()
    lock.release()
    (await disk.lock(f"{root}/lock")).release()


@on_every_disk
async def test_a_closed_file_refuses(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True)
    await file.close()
    await file.close()
    with pytest.raises(Closed):
        await file.write(0, [b"late"])


@on_every_disk
async def test_overlapping_calls_are_all_done(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True)
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(file.write(number * 4, [b"%04d" % number], sync=number % 3 == 0))
    assert await file.read(0, 100) == b"".join(b"%04d" % number for number in range(20))
    await file.close()


@on_every_disk
async def test_closing_waits_for_what_is_under_way(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True)
    writes = [asyncio.create_task(file.write(number, [b"x"], sync=True)) for number in range(8)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(file.close())
    await asyncio.gather(*writes, closing)
    again = await disk.open(f"{root}/a")
    assert await again.read(0, 100) == b"x" * 8
    await again.close()


@on_every_disk
async def test_a_cancelled_write_leaves_the_file_usable(disk: Disk, root: str) -> None:
    file = await disk.open(f"{root}/a", create=True)
    writing = asyncio.create_task(file.write(0, [b"perhaps"], sync=True))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await file.write(100, [b"surely"], sync=True)
    assert await file.read(100, 6) == b"surely"
    await file.close()
