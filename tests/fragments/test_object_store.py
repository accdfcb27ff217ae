"""One suite for every object store: what is put is there, once, and what can't be done has an error of ours."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import pytest

from polonaise.errors import (
    AccessDenied,
    BadOption,
    DiskFailed,
    DiskFull,
    NotFound,
    PolonaiseError,
    StoreUnavailable,
)
from polonaise.fragments import store as stores
from polonaise.fragments.ranges import RangeFile
from polonaise.fragments.store import ObstoreStore, open_store
from rigs.privileges import unprivileged


class S3:
    """An S3 server in this process, reached as any other: by URL and the environment's credentials."""

    def __init__(self, server: Any) -> None:
        self._server = server
        host, port = server.get_host_and_port()
        self._url = f"http://{host}:{port}"

    def environment(self, key: str = "anybody") -> dict[str, str]:
        return {
            "AWS_ENDPOINT": self._url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def make_bucket(self, name: str) -> None:
        self._ask("PUT", f"/{name}")

    def reset(self) -> None:
        self._ask("POST", "/moto-api/reset")

    def demand_credentials(self, after: int) -> None:
        """After so many requests each must come from somebody whom the server knows; there is nobody."""
        self._ask("POST", "/moto-api/reset-auth", str(after).encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> None:
        headers = {"Content-Type": "text/plain"}
        with urlopen(Request(self._url + path, method=method, data=body, headers=headers), timeout=30):
            pass


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield S3(server)
    server.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    s3_server.make_bucket("bucket")
    yield s3_server
    s3_server.demand_credentials(10**9)
    s3_server.reset()


@pytest.fixture(params=["directory", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObstoreStore:
    if request.param == "s3":
        request.getfixturevalue("s3")
        return open_store("s3://bucket/some/prefix")
    return open_store("memory:///" if request.param == "memory" else str(tmp_path / "store"))


async def test_what_is_put_is_got_whole_and_in_parts(store: ObstoreStore) -> None:
    assert await store.put_if_absent("0/a", b"abcdef")
    assert await store.get("0/a") == b"abcdef"
    assert await store.get_range("0/a", 2, 3) == b"cde"
    source = store.source("0/a", 6)
    if isinstance(source, RangeFile):
        with source:
            assert source.read() == b"abcdef"
    else:
        assert Path(source).read_bytes() == b"abcdef"


async def test_an_object_is_compared_with_what_it_should_be(store: ObstoreStore) -> None:
    large = os.urandom(3 * 1024 * 1024 + 17)
    for path, data in (("0/large", large), ("0/small", b"abc"), ("0/empty", b"")):
        await store.put_if_absent(path, data)
        assert await store.holds(path, data)
        assert not await store.holds(path, data + b"x")
    assert not await store.holds("0/large", large[:-1])
    for place in (0, 1024 * 1024, len(large) - 1):
        other = bytearray(large)
        other[place] ^= 1
        assert not await store.holds("0/large", bytes(other))
    with pytest.raises(NotFound, match="0/nothing"):
        await store.holds("0/nothing", b"")


async def test_of_a_part_that_an_object_does_not_have_comes_what_it_has(store: ObstoreStore) -> None:
    await store.put_if_absent("empty", b"")
    await store.put_if_absent("short", b"0123456789")
    for offset, length in ((0, 0), (0, 8), (4, 8)):
        assert await store.get_range("empty", offset, length) == b""
    for offset, length, there in ((3, 0, b""), (8, 5, b"89"), (10, 5, b""), (90, 5, b"")):
        assert await store.get_range("short", offset, length) == there
    with pytest.raises(NotFound):
        await store.get_range("absent", 90, 5)


@pytest.mark.parametrize("path", ["a//b", "../above", "a/./b", "half \ud800"])
async def test_a_name_that_no_store_takes_is_a_fault(store: ObstoreStore, path: str) -> None:
    for asked in (store.get(path), store.get_range(path, 0, 1), store.put_if_absent(path, b"1"), store.list(path)):
        with pytest.raises(StoreUnavailable):
            await asked


async def test_an_empty_object_is_an_object(store: ObstoreStore) -> None:
    assert await store.put_if_absent("a", b"")
    assert await store.get("a") == b""


async def test_an_object_is_put_once(store: ObstoreStore) -> None:
    assert await store.put_if_absent("0/a", b"first")
    assert not await store.put_if_absent("0/a", b"second")
    assert await store.get("0/a") == b"first"


async def test_an_object_is_replaced_as_a_whole_and_one_that_is_not_there_is_made(store: ObstoreStore) -> None:
    assert await store.put_if_absent("0/a", b"damaged")
    large = bytes(range(256)) * 30_000
    await store.replace("0/a", large)
    assert await store.get("0/a") == large
    await store.replace("0/a", b"short")
    assert await store.get("0/a") == b"short"
    await store.replace("0/b", b"new")
    assert [each.path for each in await store.list()] == ["0/a", "0/b"]


async def test_of_many_that_put_at_once_one_does(store: ObstoreStore) -> None:
    done = await asyncio.gather(*(store.put_if_absent("0/a", b"%d" % number) for number in range(20)))
    assert done.count(True) == 1
    assert await store.get("0/a") == b"%d" % done.index(True)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is synced from now on, as `identity` tells it."""
    found: list[tuple[int, int]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        status = os.fstat(descriptor)
        found.append((status.st_dev, status.st_ino))

    monkeypatch.setattr(os, "fsync", noted)
    return found


def identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def on_the_way_to(path: Path) -> list[tuple[int, int]]:
    """All names on the way to a path, from itself up to the mount point."""
    names = [path, *path.parents]
    return [identity(name) for name in names[: 1 + next(n for n, name in enumerate(names) if name.is_mount())]]


async def test_an_object_of_a_directory_is_synced_with_the_names_on_the_way_to_it(
    tmp_path: Path, synced: list[tuple[int, int]]
) -> None:
    store = open_store(str(tmp_path / "new" / "store"))
    assert await store.put_if_absent("0/a", b"first")
    place = tmp_path / "new" / "store" / "0" / "a"
    assert synced == on_the_way_to(place)
    synced.clear()
    # Whoever put it, or made the store, may have died before it was on the disk.
    assert not await store.put_if_absent("0/a", b"second")
    assert synced == on_the_way_to(place)
    synced.clear()
    await store.replace("0/a", b"third")
    assert synced == on_the_way_to(place)


async def test_names_above_a_mount_point_and_those_of_others_are_not_synced(
    tmp_path: Path, synced: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "mount" / "others" / "store"))
    await store.put_if_absent("0/a", b"first")
    synced.clear()
    opened = os.open

    def denied(path: Path, flags: int) -> int:
        if path == tmp_path / "mount" / "others":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags)

    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "mount")
    monkeypatch.setattr(os, "open", denied)
    await store.make_durable("0/a")
    place = tmp_path / "mount" / "others" / "store"
    assert synced == [identity(path) for path in (place / "0" / "a", place / "0", place, tmp_path / "mount")]


async def test_an_object_that_somebody_else_left_there_can_be_made_durable(
    tmp_path: Path, synced: list[tuple[int, int]]
) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "a").write_bytes(b"copied")
    await store.make_durable("0/a")
    assert synced == on_the_way_to(tmp_path / "0" / "a")
    with pytest.raises(NotFound, match="0/b"):
        await store.make_durable("0/b")


async def test_a_listing_is_of_one_prefix_and_sorted(store: ObstoreStore) -> None:
    for path in ("1/b", "1/a", "10/a", "2/a"):
        await store.put_if_absent(path, path.encode())
    assert [each.path for each in await store.list("1/")] == ["1/a", "1/b"]
    assert [each.path for each in await store.list()] == ["1/a", "1/b", "10/a", "2/a"]
    assert {each.bytes for each in await store.list("10/")} == {4}
    assert await store.list("3/") == []


async def test_a_long_listing_is_whole(store: ObstoreStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_LIST_CHUNK", 10)
    names = [f"0/{number:05d}" for number in range(25)]
    await asyncio.gather(*(store.put_if_absent(name, b"") for name in names))
    assert [each.path for each in await store.list("0/")] == names


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
def test_an_invalid_store(url: str) -> None:
    with pytest.raises(BadOption):
        open_store(url)


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadOption, match="no directory"):
            open_store(str(path))


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (errno.EACCES, AccessDenied),
        (errno.EPERM, AccessDenied),
        (errno.EROFS, AccessDenied),
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EIO, DiskFailed),
        (errno.ENAMETOOLONG, DiskFailed),
    ],
)
def test_a_directory_that_cannot_be_made_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fault: type[PolonaiseError]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(fault, match=f"{tmp_path}/store") as raised:
        open_store(f"{tmp_path}/store")
    assert type(raised.value) is fault, "AccessDenied is a DiskFailed, too"


def test_a_directory_where_none_can_be_made() -> None:
    with pytest.raises(DiskFailed, match="takes no directories there"):
        open_store("/proc/store")


async def test_a_directory_that_has_gone_or_become_a_file(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    (tmp_path / "store").rmdir()
    (tmp_path / "store").write_text("")
    with pytest.raises((StoreUnavailable, AccessDenied)):
        await store.put_if_absent("0/a", b"a")


async def test_a_directory_without_permission() -> None:
    with TemporaryDirectory() as place:  # pytest's own ones are out of reach for others
        Path(place).chmod(0o755)
        store = open_store(f"{place}/store")
        await store.put_if_absent("0/a", b"a")
        for directory in (f"{place}/store/0", f"{place}/store"):
            Path(directory).chmod(0o555)
        with unprivileged():
            assert [each.path for each in await store.list()] == ["0/a"]
            with pytest.raises(AccessDenied, match="let this user"):
                await store.put_if_absent("0/b", b"b")


@pytest.mark.slow
async def test_a_bucket_without_permission(s3: S3) -> None:
    store = open_store("s3://bucket/some/prefix")
    await store.put_if_absent("0/a", b"a")
    s3.demand_credentials(0)
    for refused in (
        store.put_if_absent("0/b", b"b"),
        store.get("0/a"),
        store.get_range("0/a", 0, 1),
        store.list(),
        store.delete("0/a"),
    ):
        with pytest.raises(AccessDenied, match="s3://bucket/some/prefix refuses"):
            await refused
    s3.demand_credentials(10**9)
    assert [each.path for each in await store.list()] == ["0/a"]


@pytest.mark.slow
async def test_a_bucket_that_is_not_there(s3: S3) -> None:
    store = open_store("s3://elsewhere/some/prefix")
    for missing in (store.put_if_absent("0/a", b"a"), store.list()):
        with pytest.raises(NotFound, match="s3://elsewhere/some/prefix does not exist"):
            await missing
