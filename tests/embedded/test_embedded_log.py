"""A log in a directory, in this process: no set-up, the same API, and one host however many logs are open."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.admin import logs
from polonaise.errors import (
    AppendExpired,
    ControlFileDamaged,
    CoordinatorUnavailable,
    DirectoryInUse,
    InvariantViolated,
    PolonaiseError,
    TooManyOpenFiles,
)
from polonaise.host.files import RealLock, try_lock
from polonaise.node import hostelection
from rigs.embedded import append_once, host_of
from rigs.faults import raises_code
from rigs.health import condition_when
from rigs.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


async def bodies(log: polonaise.Log, partition: int = 0) -> list[bytes]:
    return [tx.data async for tx in log.read(partition, timeout=PATIENCE_S)]


def open_sockets() -> set[str]:
    """The Unix sockets of this process that are connected or listen."""
    with open("/proc/net/unix") as table:
        known = {f"socket:[{line.split()[6]}]" for line in table if "storage-" in line or "server-" in line}
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.exists(link) or os.path.islink(link)} & known


async def test_a_log_is_there_as_soon_as_it_is_opened_and_still_there_when_opened_again(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'new' / 'bank'}"
    async with polonaise.connect(address) as log:
        assert (await log.append(b"first", partition=0)).id == 0
        receipt = await log.run(lambda tx: tx.append(b"second"), partition=0, timeout=PATIENCE_S)
        assert receipt.id == 1
    async with polonaise.connect(address) as log:
        assert await bodies(log) == [b"first", b"second"]
        assert (await log.append(b"third")).id == 2


async def test_a_relative_path_is_that_of_the_moment_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    async with polonaise.connect("embedded:bank") as log:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await log.append(b"x")
        async with polonaise.connect(f"embedded:{tmp_path / 'bank'}?host=no") as other:
            assert await bodies(other) == [b"x"]


async def test_size_is_chosen_at_creation_and_found_again(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}?storage=3&partitions=4") as log:
        assert log.partition_count == 4
        for partition in range(4):
            await log.append(f"p{partition}".encode(), partition=partition)
        health = await log.health(0)
        assert len(health["partitions"]["0"]["engaged"]) == 3
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        assert log.partition_count == 4
        assert await bodies(log, 3) == [b"p3"]
    async with polonaise.connect(f"embedded:{tmp_path}?partitions=4&storage=3&host=yes") as log:
        assert await bodies(log, 2) == [b"p2"]


async def test_one_of_three_storage_directories_may_be_lost(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}?storage=3"
    async with polonaise.connect(address) as log:
        for number in range(10):
            await log.append(str(number).encode())
    (tmp_path / "storage-1").rename(tmp_path / "lost")
    async with polonaise.connect(address) as log:
        assert len(await bodies(log)) == 10
        await log.append(b"goes on")


def damage(directory: Path) -> None:
    with (directory / "polonaise-storage.ctl").open("r+b") as file:
        file.seek(40)
        file.write(b"zzzzzzzz")


def lose_control_file(directory: Path) -> None:
    (directory / "polonaise-storage.ctl").unlink()


def replace_by_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("mine")


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in [directory, *directory.rglob("*")] if path.is_file()}


async def condition(log: polonaise.Log, engaged: int) -> logs.Condition:
    """How partition 0 is, as soon as so many storage nodes take part and it is known why the others don't."""
    return await condition_when(
        log, lambda told: len(told.engaged) == engaged and "not tried yet" not in str(told.troubles)
    )


@pytest.mark.parametrize(
    "spoil",
    [
        damage,
        pytest.param(lose_control_file, marks=pytest.mark.slow),
        pytest.param(replace_by_a_file, marks=pytest.mark.slow),
    ],
)
async def test_one_of_three_storage_directories_may_be_unusable_and_health_says_why(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    address, bad = f"embedded:{tmp_path / 'log'}?storage=3", tmp_path / "log" / "storage-1"
    async with polonaise.connect(address) as log:
        for number in range(10):
            await log.append(str(number).encode())
    shutil.copytree(bad, tmp_path / "backup")
    spoil(bad)
    before = files_in(bad)
    async with polonaise.connect(address) as log:
        assert len(await bodies(log)) == 10
        await log.append(b"goes on")
        told = await condition(log, engaged=2)
        assert told.ready
        assert list(told.left_out) == ["unix:storage-1"]
        assert str(bad) in told.left_out["unix:storage-1"]
        assert told.troubles
    assert files_in(bad) == before
    shutil.rmtree(bad) if bad.is_dir() else bad.unlink()
    shutil.move(tmp_path / "backup", bad)
    async with polonaise.connect(address) as log:
        assert len(await bodies(log)) == 11
        assert (await condition(log, engaged=3)).troubles == []


async def test_a_storage_directory_that_there_is_no_descriptor_for_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out, it would stay so until the log is opened again, although nothing is wrong with it."""
    from polonaise.host.files import _RealFile

    address, bad = f"embedded:{tmp_path}?storage=3", str(tmp_path / "storage-1")
    await append_once(address)
    opened = _RealFile.__init__

    def exhausted(self: _RealFile, threads: Any, path: str, *rest: Any) -> None:
        if path.startswith(bad):
            raise OSError(errno.EMFILE, "Too many open files")
        opened(self, threads, path, *rest)

    with monkeypatch.context() as planted:
        planted.setattr(_RealFile, "__init__", exhausted)
        with pytest.raises(TooManyOpenFiles, match=r"storage-1.*raise its limit of open files"):
            async with polonaise.connect(address):
                pass
    async with polonaise.connect(address) as log:
        assert (await condition(log, engaged=3)).troubles == []


async def test_health_says_why_a_storage_node_cannot_use_a_partition(tmp_path: Path) -> None:
    address, bad = f"embedded:{tmp_path / 'log'}?storage=3", tmp_path / "log" / "storage-1" / "0"
    for made in (address, f"embedded:{tmp_path / 'other'}"):
        await append_once(made)
    shutil.rmtree(bad)
    shutil.copytree(tmp_path / "other" / "storage-0" / "0", bad)
    async with polonaise.connect(address) as log:
        await log.append(b"goes on")
        said = (await condition(log, engaged=2)).left_out["unix:storage-1"]
        assert said.startswith("[wrong_cluster_key]")
        assert f"{bad}/" in said


async def test_without_a_quorum_of_storage_directories_each_that_is_unusable_is_named(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}?storage=3"
    await append_once(address)
    damage(tmp_path / "storage-1")
    lose_control_file(tmp_path / "storage-2")
    with pytest.raises(ControlFileDamaged, match=r"2 of 3 .*/storage-1/.*control_file_missing.*/storage-2 without"):
        async with polonaise.connect(address):
            pass


async def test_two_logs_of_one_process_share_one_host(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "bank")
    first = polonaise.connect(f"embedded:{tmp_path / 'bank'}")
    async with first as log:
        await log.append(b"a")
        second = polonaise.connect(f"embedded:{link}")
        other = await second.__aenter__()
        hosts = [thread for thread in threading.enumerate() if thread.name.startswith("host ")]
        assert len(hosts) == 1
    # The first one's end is none of the host.
    assert host_of(tmp_path / "bank") == os.getpid()
    generation = (await other.append(b"b", partition=0)).id
    assert generation == 1
    await second.__aexit__(None, None, None)
    assert host_of(tmp_path / "bank") is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("host ")]


async def test_a_directory_with_a_long_and_deep_path_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*[f"{level}-{'x' * 60}" for level in range(12)], "a name with spaces and ü")
    assert len(os.fsencode(deep)) > 700
    async with polonaise.connect(f"embedded:{deep}?storage=3") as log:
        await log.append(b"deep")
        async with polonaise.connect(f"embedded:{deep}?host=no") as other:
            assert await bodies(other) == [b"deep"]


async def test_a_directory_may_be_moved_while_nobody_has_it_open(tmp_path: Path) -> None:
    await append_once(f"embedded:{tmp_path / 'here'}")
    (tmp_path / "here").rename(tmp_path / "there")
    async with polonaise.connect(f"embedded:{tmp_path / 'there'}") as log:
        assert await bodies(log) == [b"x"]


async def test_what_a_dead_host_left_does_not_matter(tmp_path: Path) -> None:
    await append_once(f"embedded:{tmp_path}")
    with socket.socket(socket.AF_UNIX) as stale, socket.socket(socket.AF_UNIX) as living:
        stale.bind(str(tmp_path / "sockets" / "server-00000000"))
        # A forked child of the dead host would still listen here.
        living.bind(str(tmp_path / "sockets" / "storage-0"))
        living.listen()
        (tmp_path / "host.lock").write_text("999999999\n")
        async with polonaise.connect(f"embedded:{tmp_path}") as log:
            assert await bodies(log) == [b"x"]


async def test_a_log_that_was_begun_and_not_made_is_made(tmp_path: Path) -> None:
    (tmp_path / "host.lock").touch()
    (tmp_path / "polonaise-embedded.new").write_text("polon")
    await append_once(f"embedded:{tmp_path}")
    assert not (tmp_path / "polonaise-embedded.new").exists()


async def test_who_only_attaches_waits_while_nobody_hosts_and_says_so(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}"
    await append_once(address)
    async with polonaise.connect(f"{address}?host=no") as worker:
        with pytest.raises(polonaise.PolonaiseError, match="nobody hosts the embedded log"):
            await worker.ready(0, timeout=0.3)
        with pytest.raises(AppendExpired):
            await worker.run(lambda tx: tx.append(b"early"), partition=0, timeout=0.3)
        assert host_of(tmp_path) is None
        waiting = asyncio.create_task(worker.run(lambda tx: tx.append(b"y"), partition=0, timeout=PATIENCE_S))
        async with polonaise.connect(address) as log:
            assert (await waiting).id == 1
            assert await bodies(log) == [b"x", b"y"]


async def test_appends_under_way_when_the_host_closes_have_a_true_fate(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}"
    async with polonaise.connect(address) as log:
        await log.ready(0)
        receipts = [log.append(str(number).encode(), partition=0) for number in range(200)]
        await receipts[0]
    fates = await asyncio.gather(*receipts, return_exceptions=True)
    async with polonaise.connect(address) as log:
        there = await bodies(log)
    for number, fate in enumerate(fates):
        times = there.count(str(number).encode())
        assert times <= 1
        if not isinstance(fate, BaseException):
            assert times == 1
    assert len(set(there)) == len(there)


@pytest.mark.parametrize("mistake", [InvariantViolated("planted"), ZeroDivisionError("planted")])
async def test_a_mistake_in_the_nodes_ends_them_alone_and_the_application_is_told(
    tmp_path: Path, mistake: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polonaise.server.protocol.owner import PartitionOwner

    address = f"embedded:{tmp_path}"
    kept_by_others, sockets = set(hostelection._elections), open_sockets()
    async with polonaise.connect(address) as log:
        await log.append(b"before")

        def stumble(*_: object) -> None:
            raise mistake

        with monkeypatch.context() as planted:
            planted.setattr(PartitionOwner, "append", stumble)
            with pytest.raises(PolonaiseError) as told:
                await log.run(lambda tx: tx.append(b"fatal"), partition=0, timeout=PATIENCE_S)
        with raises_code("host_failed", match="open the log again"):
            await log.run(lambda tx: tx.append(b"after"), partition=0, timeout=PATIENCE_S)
        assert told.value.code in ("host_failed", "append_unknown")
        # Nothing of it is left in the way: not for another process, and not for this one.
        async with polonaise.connect(address) as again:
            assert (await bodies(again))[0] == b"before"
            await again.append(b"goes on", partition=0)
    assert hostelection._elections.keys() <= kept_by_others
    assert open_sockets() <= sockets


async def test_a_mistake_before_the_nodes_serve_is_told_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polonaise.server.node import Server

    async def stumbles(*_: object) -> Server:
        raise ZeroDivisionError("planted")

    kept_by_others = set(hostelection._elections)
    monkeypatch.setattr(Server, "start", stumbles)
    with raises_code("host_failed", match="planted"):
        async with polonaise.connect(f"embedded:{tmp_path}"):
            pass
    assert hostelection._elections.keys() <= kept_by_others


async def test_a_process_that_only_asks_who_hosts_is_not_taken_for_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polonaise.server.node import Server

    asks = [True]

    def locked_at_first(path: str) -> RealLock:
        if asks:
            asks.clear()
            raise DirectoryInUse("planted: `who_hosts` has it for an instant")
        return try_lock(path)

    async def fails(*_: object) -> Server:
        raise CoordinatorUnavailable("planted: it may be there again later")

    monkeypatch.setattr(hostelection, "try_lock", locked_at_first)
    monkeypatch.setattr(Server, "start", fails)
    with pytest.raises(CoordinatorUnavailable, match="planted"):
        async with asyncio.timeout(PATIENCE_S), polonaise.connect(f"embedded:{tmp_path}"):
            pass


async def guest_at(directory: Path) -> tuple[hostelection.HostElection, asyncio.Task[polonaise.Log], polonaise.Log]:
    """The seat of a log that waits for a host which is there; its opening, and the log itself."""
    kept_by_others = set(hostelection._elections)
    guest = polonaise.connect(f"embedded:{directory}")
    opening = asyncio.create_task(guest.__aenter__())
    await wait_until(lambda: hostelection._elections.keys() - kept_by_others)
    (taken,) = (hostelection._elections[seat] for seat in hostelection._elections.keys() - kept_by_others)
    await asyncio.wrap_future(taken.settled)
    return taken, opening, guest


@pytest.mark.parametrize("what", [pytest.param("the lock", marks=pytest.mark.slow), "a loop"])
async def test_a_moment_without_descriptors_costs_a_guest_nothing_but_the_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    tries = threading.Event()

    def no_lock(path: str) -> None:
        tries.set()
        raise TooManyOpenFiles("planted")

    def no_loop() -> None:
        tries.set()
        raise OSError(errno.EMFILE, "Too many open files")

    host = try_lock(str(tmp_path / "host.lock"))
    taken, opening, guest = await guest_at(tmp_path)
    with monkeypatch.context() as planted:
        if what == "the lock":
            planted.setattr(hostelection, "try_lock", no_lock)
        else:
            planted.setattr(hostelection, "loop_factory", lambda: no_loop)
            host.release()
        await asyncio.to_thread(tries.wait, PATIENCE_S)
        tries.clear()
        await asyncio.to_thread(tries.wait, PATIENCE_S)  # and again: so it has not given up
        assert taken.failure is None
    host.release()
    log = await opening
    assert (await log.append(b"x", partition=0)).id == 0
    await guest.__aexit__(None, None, None)


async def test_a_disk_that_breaks_a_promise_stops_the_nodes_and_not_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polonaise.errors import DiskFailed
    from polonaise.host import files

    address = f"embedded:{tmp_path}"
    async with polonaise.connect(address) as log:
        await log.append(b"kept")

    write = files._write

    def fails(descriptor: int, offset: int, buffers: object) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".ctl"):
            raise OSError(5, "planted")
        write(descriptor, offset, buffers)  # type: ignore[arg-type]

    with monkeypatch.context() as planted:
        planted.setattr(files, "_write", fails)
        async with polonaise.connect(address) as log:
            with raises_code("host_failed", match="planted") as told:
                await log.run(lambda tx: tx.append(b"lost"), partition=0, timeout=PATIENCE_S)
            assert isinstance(told.value.__cause__, DiskFailed)
    async with polonaise.connect(address) as log:
        assert (await bodies(log))[0] == b"kept"
