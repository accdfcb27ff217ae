"""The coordinator of an embedded log that is lost, or an older copy: refused, and made again from its directories."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import polonaise
from polonaise.admin.coordinatorbackup import recover_embedded
from polonaise.errors import (
    AlreadyInitialized,
    ConsistencyLost,
    CoordinatorDamaged,
    DirectoryInUse,
    RecoveryUnsafe,
)
from polonaise.storage.clusternote import NOTE_FILE, decode_note
from rigs.faults import raises_code
from rigs.programs import output_of, run_polonaise
from rigs.waiting import wait_until


async def appended(directory: Path, *payloads: bytes, storage: int = 1) -> None:
    """Append to the log, and keep it open until the storage directories have noted the coordinator's values."""
    async with polonaise.connect(f"embedded:{directory}?storage={storage}") as log:
        for data in payloads:
            await log.append(data, partition=0)
        nodes = [directory / f"storage-{number}" / NOTE_FILE for number in range(storage)]
        await wait_until(
            lambda: all(path.exists() and "0" in decode_note(path.read_bytes())["partitions"] for path in nodes)
        )


async def read(directory: Path) -> list[bytes]:
    async with polonaise.connect(f"embedded:{directory}") as log:
        return [bytes(tx.data) async for tx in log.read(0)]


@pytest.mark.slow
@pytest.mark.parametrize("storage", [1, 3])
async def test_a_lost_coordinator_is_made_again_by_the_command_that_the_refusal_names(
    tmp_path: Path, storage: int
) -> None:
    directory = tmp_path / "log"
    await appended(directory, b"1", b"2", storage=storage)
    shutil.rmtree(directory / "coordinator")
    with pytest.raises(CoordinatorDamaged, match=f"cluster recover --coordinator embedded:{directory}"):
        await read(directory)
    said = output_of(run_polonaise("cluster", "recover", "--coordinator", f"embedded:{directory}"))
    assert "open the log" in said
    assert await read(directory) == [b"1", b"2"]
    await appended(directory, b"3", storage=storage)
    assert await read(directory) == [b"1", b"2", b"3"]


@pytest.mark.slow
async def test_an_older_copy_of_the_coordinator_is_moved_away_and_made_again(tmp_path: Path) -> None:
    directory, older = tmp_path / "log", tmp_path / "older"
    await appended(directory, b"1")
    shutil.copytree(directory / "coordinator", older)
    await appended(directory, b"2")
    shutil.rmtree(directory / "coordinator")
    older.rename(directory / "coordinator")
    with pytest.raises(ConsistencyLost, match="move it away"):
        await read_and_append(directory)
    with pytest.raises(AlreadyInitialized, match="move it away first"):
        await recover_embedded(f"embedded:{directory}", None, 3.0)
    (directory / "coordinator").rename(older)
    await recover_embedded(f"embedded:{directory}", None, 3.0)
    assert await read(directory) == [b"1", b"2"]


async def read_and_append(directory: Path) -> None:
    async with polonaise.connect(f"embedded:{directory}") as log:
        await log.high_water_mark(0)
        await log.append(b"never", partition=0)


async def test_nothing_is_made_while_a_copy_that_is_needed_is_away(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    await appended(directory, b"1", storage=3)
    shutil.rmtree(directory / "coordinator")
    for number in (1, 2):
        shutil.rmtree(directory / f"storage-{number}")
    with pytest.raises(RecoveryUnsafe, match=r"unix:storage-1, unix:storage-2"):
        await recover_embedded(f"embedded:{directory}", None, 3.0)
    assert not (directory / "coordinator" / "description").exists()
    assert not (directory / "storage-1").exists()


async def test_a_log_that_is_open_or_not_there_is_not_recovered(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path / 'log'}") as log:
        await log.append(b"1", partition=0)
        with pytest.raises(DirectoryInUse, match="close it everywhere first"):
            await recover_embedded(f"embedded:{tmp_path / 'log'}", None, 3.0)
    with raises_code("not_embedded_log", match="correct the path"):
        await recover_embedded(f"embedded:{tmp_path / 'nothing'}", None, 3.0)


async def appended_to(directory: Path, data: bytes) -> int:
    async with polonaise.connect(f"embedded:{directory}") as log:
        await log.high_water_mark(0)
        receipt = await log.append(data, partition=0)
        return receipt.id


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [1, 3])
async def test_an_older_copy_of_the_coordinator_is_refused_until_the_latest_is_back(
    tmp_path: Path, restarts: int
) -> None:
    directory, older, latest = tmp_path / "log", tmp_path / "older", tmp_path / "latest"
    await appended_to(directory, b"before the copy")
    shutil.copytree(directory / "coordinator", older)
    for number in range(restarts):
        last = await appended_to(directory, b"%d" % number)
    (directory / "coordinator").rename(latest)
    shutil.copytree(older, directory / "coordinator")
    for _ in range(restarts + 2):
        with pytest.raises(ConsistencyLost, match="restore its latest state"):
            await appended_to(directory, b"never")
    shutil.rmtree(directory / "coordinator")
    latest.rename(directory / "coordinator")
    assert await appended_to(directory, b"after") == last + 1
