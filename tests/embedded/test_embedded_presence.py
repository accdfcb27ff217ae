"""The directory, sockets or fragment store of a log that is open, removed under it: noticed, and told."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

import polonaise
from polonaise.admin.archive import archive
from polonaise.errors import BadOption, DeadlineExceeded, NotFound, PolonaiseError, WrongClusterKey
from polonaise.fragments.mark import MARK, put_mark
from polonaise.fragments.store import open_store
from polonaise.host.files import DiskThreads, RealDisk
from polonaise.node import embedded, hostelection
from polonaise.node.embedded import parse_embedded
from rigs.faults import raises_code
from rigs.health import until_waits_for
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


@pytest.mark.slow
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
        with raises_code(
            "host_failed", match=f"{directory}/host.lock was removed, moved .* open the log again"
        ) as told:
            await log.append(b"after")
        assert "acknowledged is safe" not in str(told.value)
        with raises_code("host_failed"):
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["the sockets", "their directory"])
async def test_a_host_whose_sockets_are_removed_makes_new_ones(
    whole: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"embedded:{tmp_path}/log"
    with caplog.at_level(logging.WARNING):
        async with polonaise.connect(address, wait=20) as log:
            await log.append(b"first", partition=0)
            sockets = tmp_path / "log" / "sockets"
            if whole:
                shutil.rmtree(sockets)
            else:
                for name in os.listdir(sockets):
                    os.remove(sockets / name)
            async with asyncio.timeout(30):
                async with polonaise.connect(f"{address}?host=no", wait=20) as other:
                    await other.append(b"other", partition=0)
                await log.append(b"host", partition=0)
            assert log.failure is None
            assert [tx.data async for tx in log.read(0)] == [b"first", b"other", b"host"]
    told = "start again, with new sockets" if whole else "was removed while it was used, and was made again"
    assert told in caplog.text


def address(tmp_path: Path, store: Path | str | None = None) -> str:
    return f"embedded:{tmp_path / 'log'}" + (f"?fragments={quote(str(store), safe='')}" if store is not None else "")


async def store_of(log: polonaise.Log) -> str:
    await log.ready(0)
    return str((await log.health(0))["fragments"])


@pytest.mark.slow
async def test_the_store_is_remembered_for_the_processes_that_do_not_say_it(tmp_path: Path) -> None:
    store = tmp_path / "a store & more"
    async with polonaise.connect(address(tmp_path, store)) as log:
        assert await store_of(log) == str(store)
        await log.append(b"kept", 0)
        assert [each.fragment.last async for each in archive(log, open_store(str(store)), 0, rest=True)] == [0]
    async with polonaise.connect(address(tmp_path)) as log:
        assert await store_of(log) == str(store)
    async with polonaise.connect(address(tmp_path, store)) as log:
        assert await store_of(log) == str(store)


@pytest.mark.slow
async def test_while_its_store_is_not_there_nothing_is_appended_and_none_is_made(tmp_path: Path) -> None:
    """An older copy of a log would give ids out again, and an empty directory would tell that nothing was archived."""
    store, away = tmp_path / "store", tmp_path / "away"
    async with polonaise.connect(address(tmp_path, store)) as log:
        assert store.is_dir(), "made when it is first said"
        await log.append(b"kept", 0)
    store.rename(away)
    async with polonaise.connect(address(tmp_path)) as log:
        with pytest.raises(DeadlineExceeded):
            await log.ready(0, timeout=0.5)
        await until_waits_for(log, "no directory")
        assert not store.exists()
        store.mkdir()
        await until_waits_for(log, "has no _cluster.json")
        store.rmdir()
        away.rename(store)
        await log.ready(0, timeout=20)
        assert (await log.append(b"goes on", 0)).id == 1


@pytest.mark.slow
async def test_an_empty_directory_is_no_store_of_a_log_that_is_there_until_somebody_says_so(tmp_path: Path) -> None:
    """It may be where one is mounted as a rule; of a log that is made just now, nothing can be anywhere."""
    store, new = tmp_path / "store", tmp_path / "new"
    store.mkdir()
    async with polonaise.connect(address(new, store)) as log:
        await log.ready(0)
    async with polonaise.connect(address(tmp_path)) as log:
        await log.append(b"kept", 0)
        key = log.cluster_key
    with pytest.raises(WrongClusterKey, match="one per cluster"):
        async with polonaise.connect(address(tmp_path, store)):
            raise AssertionError("it was opened")
    (store / MARK).unlink()
    with pytest.raises(NotFound, match=r"mount what belongs there.*polonaise archive init LOG STORE"):
        async with polonaise.connect(address(tmp_path, store)):
            raise AssertionError("it was opened")
    await put_mark(open_store(str(store)), key)
    async with polonaise.connect(address(tmp_path, store)) as log:
        assert await store_of(log) == str(store)


async def test_another_store_than_the_one_it_has_is_refused_by_name(tmp_path: Path) -> None:
    async with polonaise.connect(address(tmp_path, tmp_path / "one")):
        with pytest.raises(
            BadOption, match=r"are in .*one, according to .*log/fragments, but the address has fragments=.*other"
        ):
            async with polonaise.connect(address(tmp_path, tmp_path / "other")):
                raise AssertionError("it was opened")
    with pytest.raises(BadOption, match="leave it out"):
        async with polonaise.connect(address(tmp_path, tmp_path / "other")):
            raise AssertionError("it was opened")


async def test_a_store_is_not_given_to_a_log_that_is_hosted_without(tmp_path: Path) -> None:
    async with polonaise.connect(address(tmp_path)) as log:
        assert await store_of(log) == ""
        with pytest.raises(BadOption, match="has no fragment store"):
            async with polonaise.connect(address(tmp_path, tmp_path / "late")):
                raise AssertionError("it was opened")
        assert await store_of(log) == ""
    async with polonaise.connect(address(tmp_path, tmp_path / "late")) as log:
        assert await store_of(log) == str(tmp_path / "late")


@pytest.mark.parametrize("said", ["fragments=", "fragments=%20", "fragments=a%00b", "fragments=a&fragments=b"])
def test_an_address_that_names_no_store_is_refused(said: str) -> None:
    with pytest.raises(BadOption, match="fragments"):
        parse_embedded(f"embedded:log?{said}")


def test_a_path_means_the_same_in_every_working_directory() -> None:
    assert parse_embedded("embedded:log?fragments=archive").fragments == str(Path.cwd() / "archive")
    assert parse_embedded("embedded:log?fragments=s3%3A%2F%2Fbucket%2Fbank").fragments == "s3://bucket/bank"
