"""The directory of a log that is open, removed under it: noticed, told, and nothing acknowledged any more."""

from __future__ import annotations

import asyncio
import gc
import shutil
from functools import partial
from pathlib import Path

import pytest

import polonaise
from polonaise.errors import HostFailed, NotFound, PolonaiseError
from polonaise.host.files import RealDisk
from polonaise.host.threads import DiskThreads
from polonaise.node import embedded, hostelection
from polonaise.node.embedded import parse_embedded
from rigs.waiting import PATIENCE_S, time_passes, wait_until

NOTICED_S_MAX = 10.0
"""Generous: it is looked for every second."""


async def refused(log: polonaise.Log) -> PolonaiseError:
    """Why the log takes nothing any more."""

    async def refusal() -> PolonaiseError | None:
        try:
            await log.run(lambda tx: tx.append(b"lost"), partition=0, timeout=2.0)
        except PolonaiseError as error:
            return error
        return None

    error = await wait_until(refusal, "what nobody will ever read is refused", within_s=NOTICED_S_MAX)
    assert error is not None
    return error


@pytest.mark.parametrize("what", ["host.lock", ""], ids=["lock", "everything"])
async def test_a_host_whose_directory_was_removed_stops(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hostelection, "_PRESENCE_S", 0.02)
    kept_by_others = set(hostelection._elections)
    directory = tmp_path / "log"
    address = f"embedded:{directory}"
    async with polonaise.connect(address) as log:
        await log.append(b"before")
        if what:
            (directory / what).unlink()
        else:
            shutil.rmtree(directory)
        await refused(log)
        with pytest.raises(HostFailed, match=f"{directory}/host.lock was removed, moved .* open the log again") as told:
            await log.append(b"after")
        assert "acknowledged is safe" not in str(told.value)
        with pytest.raises(HostFailed):
            await log.health(0)
    assert hostelection._elections.keys() <= kept_by_others
    gc.collect()
    assert "never retrieved" not in caplog.text, "what tasks meet without their disk means nothing"
    assert not [record for record in caplog.records if record.exc_info and record.exc_info[0]]
    async with polonaise.connect(address) as log:
        held = [tx.data async for tx in log.read(0, timeout=PATIENCE_S)]
        assert held[:1] == ([b"before"] if what else [])
        await log.append(b"goes on")


def logged(caplog: pytest.LogCaptureFixture, what: str) -> bool:
    return what in caplog.text


@pytest.mark.parametrize("left", [None, b"", b"polonaise-embedded 2\n"], ids=["removed", "emptied", "replaced"])
async def test_a_small_file_that_is_removed_or_changed_is_written_again_by_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, left: bytes | None
) -> None:
    monkeypatch.setattr(embedded, "_KEPT_LOOK_S", 0.02)
    directory, store = tmp_path / "log", tmp_path / "store"
    async with polonaise.connect(f"embedded:{directory}?fragments={store}") as log:
        await log.append(b"before")
        for name in ("polonaise-embedded", "fragments"):
            file = directory / name
            was = file.read_bytes()
            if left is None:
                file.unlink()
            else:
                file.write_bytes(left)
            await wait_until(partial(logged, caplog, f"{file} was removed or changed"), "that is logged")
            assert file.read_bytes() == was
    async with polonaise.connect(f"embedded:{directory}") as log:
        assert [tx.data async for tx in log.read(0, timeout=PATIENCE_S)] == [b"before"]
        assert (await log.health(0))["fragments"] == str(store)


async def test_nothing_is_written_into_a_directory_whose_lock_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_KEPT_LOOK_S", 0.01)
    threads = DiskThreads(1)
    keeping = asyncio.create_task(embedded.keep_files(RealDisk(threads), str(tmp_path), {"mark": "1"}, beside="lock"))
    try:
        await time_passes(0.2)
        assert not list(tmp_path.iterdir())
        (tmp_path / "lock").touch()
        await wait_until((tmp_path / "mark").exists, "it is written where the lock is", within_s=NOTICED_S_MAX)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        threads.close()


@pytest.mark.slow  # looks for a second; what a storage node does is tried in virtual time
@pytest.mark.parametrize("count", [1, 3])
async def test_a_removed_storage_directory_is_told_and_does_not_count(count: int, tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}?storage={count}") as log:
        await log.append(b"before")
        gone = tmp_path / "storage-0"
        shutil.rmtree(gone)
        if count == 1:
            await refused(log)
        else:
            for _ in range(20):
                await log.append(b"goes on")
                await time_passes(0.1)
        health = await log.health(0)
        assert f"{gone} was removed, moved or replaced" in health["storage"]["unix:storage-0"]["error"]
        assert health["partitions"]["0"]["ready"] == (count == 3)
        assert not gone.exists()
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        if count == 3:
            assert len([tx async for tx in log.read(0, timeout=PATIENCE_S)]) == 21


def test_a_directory_that_vanishes_before_its_election_is_a_fault_with_a_name(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="open the log again"):
        hostelection.take(parse_embedded(f"embedded:{tmp_path}/gone"))
