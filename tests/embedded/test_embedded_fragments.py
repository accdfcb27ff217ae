"""An embedded log with a fragment store: one process says where it is, and from then on all of them know."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

import polonaise
from polonaise.admin.archive import archive
from polonaise.admin.logs import conditions
from polonaise.errors import BadOption, DeadlineExceeded, NotFound, WrongClusterKey
from polonaise.fragments.mark import MARK, put_mark
from polonaise.fragments.store import open_store
from polonaise.node.embedded import parse_embedded
from rigs.health import until_waits_for


def address(tmp_path: Path, store: Path | str | None = None) -> str:
    return f"embedded:{tmp_path / 'log'}" + (f"?fragments={quote(str(store), safe='')}" if store is not None else "")


async def store_of(log: polonaise.Log) -> str:
    await log.ready(0)
    return str((await log.health(0))["fragments"])


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
async def test_health_of_a_log_that_nobody_else_hosts_says_what_it_waits_for(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with polonaise.connect(address(tmp_path, store)) as log:
        await log.ready(0)
    store.rename(tmp_path / "away")
    async with polonaise.connect(address(tmp_path)) as log:
        (told,) = await conditions(log, [0], 10.0)
        assert not told.ready
        assert "fragment store" in told.waits_for


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
