"""One suite for every object store: what is put is there, once, and what can't be done has an error of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from polonaise.errors import AccessDenied, BadOption, NotFound, StoreUnavailable
from polonaise.fragments.store import ObstoreStore, open_store


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObstoreStore:
    return open_store("memory:///" if request.param == "memory" else str(tmp_path / "store"))


async def test_what_is_put_is_got_whole_and_in_parts(store: ObstoreStore) -> None:
    assert await store.put_if_absent("0/a", b"abcdef")
    assert await store.get("0/a") == b"abcdef"
    assert await store.get_range("0/a", 2, 3) == b"cde"


async def test_an_empty_object_is_an_object(store: ObstoreStore) -> None:
    assert await store.put_if_absent("a", b"")
    assert await store.get("a") == b""


async def test_an_object_is_put_once(store: ObstoreStore) -> None:
    assert await store.put_if_absent("0/a", b"first")
    assert not await store.put_if_absent("0/a", b"second")
    assert await store.get("0/a") == b"first"


async def test_of_many_that_put_at_once_one_does(store: ObstoreStore) -> None:
    done = await asyncio.gather(*(store.put_if_absent("0/a", b"%d" % number) for number in range(20)))
    assert done.count(True) == 1
    assert await store.get("0/a") == b"%d" % done.index(True)


async def test_a_listing_is_of_one_prefix_and_sorted(store: ObstoreStore) -> None:
    for path in ("1/b", "1/a", "10/a", "2/a"):
        await store.put_if_absent(path, path.encode())
    assert [each.path for each in await store.list("1/")] == ["1/a", "1/b"]
    assert [each.path for each in await store.list()] == ["1/a", "1/b", "10/a", "2/a"]
    assert {each.bytes for each in await store.list("10/")} == {4}
    assert await store.list("3/") == []


async def test_a_long_listing_is_whole(store: ObstoreStore) -> None:
    await asyncio.gather(*(store.put_if_absent(f"0/{number:05d}", b"") for number in range(1_500)))
    assert len(await store.list("0/")) == 1_500


async def test_what_is_not_there(store: ObstoreStore) -> None:
    with pytest.raises(NotFound, match="0/a"):
        await store.get("0/a")
    with pytest.raises(NotFound, match="0/a"):
        await store.get_range("0/a", 0, 1)


async def test_deleting_is_deleting_whether_it_is_there_or_not(store: ObstoreStore) -> None:
    await store.put_if_absent("0/a", b"a")
    await store.delete("0/a")
    await store.delete("0/a")
    assert await store.list() == []
    assert await store.put_if_absent("0/a", b"b")


@pytest.mark.parametrize("url", ["", "foo://bucket", "file://elsewhere/path", "s3://", "a\0b"])
def test_a_store_that_cannot_be_meant(url: str) -> None:
    with pytest.raises(BadOption):
        open_store(url)


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadOption, match="no directory"):
            open_store(str(path))


def test_a_directory_that_may_not_be_made() -> None:
    with pytest.raises((AccessDenied, BadOption)):
        open_store("/proc/store")


async def test_a_directory_that_has_gone_or_become_a_file(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    (tmp_path / "store").rmdir()
    (tmp_path / "store").write_text("")
    with pytest.raises((StoreUnavailable, AccessDenied)):
        await store.put_if_absent("0/a", b"a")
