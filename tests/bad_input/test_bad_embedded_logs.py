"""An embedded log's address, or its directory, that is not as it should be: a fault with a code and advice, and
nothing in the directory is changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import polonaise
from polonaise.errors import (
    AccessDenied,
    AppendExpired,
    AppendUnknown,
    BadOption,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    DirectoryInUse,
    DiskFull,
    NotADirectory,
    NotInitialized,
    PolonaiseError,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.host.files import try_lock
from polonaise.node import hostelection
from rigs.embedded import append_once
from rigs.faults import raises_code
from rigs.privileges import unprivileged
from rigs.programs import run_polonaise, run_program
from rigs.smalldisk import small_disk

pytestmark = pytest.mark.slow

SERVED_S = 60.0


async def refuses(address: str, kind: type[PolonaiseError] | str, naming: str) -> None:
    kept_by_others = set(hostelection._elections)
    with raises_code(kind if isinstance(kind, str) else kind.code, match=naming):
        await append_once(address)
    assert hostelection._elections.keys() <= kept_by_others


def contents(directory: Path) -> dict[str, bytes | None]:
    """Everything below it. Sockets and the host's lock mean nothing while nobody hosts."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if path.parent.name != "sockets" and path.name not in ("sockets", "host.lock")
    }


# ---------------------------------------------------------------------- the address


@pytest.mark.parametrize(
    ("rest", "naming"),
    [
        ("", "names no directory"),
        ("?storage=3", "names no directory"),
        ("a\0b", "names no directory"),
        ("{}?storage=0", "1 to 7"),
        ("{}?storage=-1", "1 to 7"),
        ("{}?storage=many", "1 to 7"),
        ("{}?storage=", "1 to 7"),
        ("{}?storage=8", "1 to 7"),
        ("{}?partitions=4097", "1 to 4096"),
        ("{}?partitions=²", "1 to 4096"),
        ("{}?partitions=0000000011234567", "1 to 4096"),
        ("{}?partitions=" + "1" * 4_301, "1 to 4096"),
        ("{}?host=perhaps", "host=no"),
        ("{}?color=red", "unknown or repeated option 'color'"),
        ("{}?storage=1&storage=3", "unknown or repeated option 'storage'"),
    ],
)
async def test_an_invalid_address(tmp_path: Path, rest: str, naming: str) -> None:
    await refuses("embedded:" + rest.format(tmp_path / "new"), BadOption, naming)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("made", "asked"), [("storage=1", "storage=3"), ("partitions=2", "partitions=4")])
async def test_the_sizes_that_a_log_was_made_with_are_for_good(tmp_path: Path, made: str, asked: str) -> None:
    await append_once(f"embedded:{tmp_path}?{made}")
    await refuses(f"embedded:{tmp_path}?{asked}", BadOption, "for good")
    async with polonaise.connect(f"embedded:{tmp_path}"):
        with pytest.raises(BadOption, match="for good"):
            await append_once(f"embedded:{tmp_path}?{asked}&host=no")


async def test_attaching_to_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    await refuses(f"embedded:{tmp_path / 'nowhere'}?host=no", NotInitialized, "leave host=no out")
    await refuses(f"embedded:{tmp_path}?host=no", NotInitialized, "leave host=no out")
    assert contents(tmp_path) == {}


# ---------------------------------------------------------------------- the directory


async def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    await refuses(f"embedded:{file}", NotADirectory, "is not a directory")
    await refuses(f"embedded:{file / 'below'}", NotADirectory, "is not a directory")
    assert file.read_text() == "mine"


async def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    await refuses(f"embedded:{tmp_path}", "not_embedded_log", r"thesis\.txt")
    assert contents(tmp_path) == {"thesis.txt": b"mine"}


async def test_a_log_that_lacks_only_its_marker_says_how_to_put_it_back(tmp_path: Path) -> None:
    log = tmp_path / "a log"
    await append_once(f"embedded:{log}")
    marker = log / "polonaise-embedded"
    marker.unlink()
    before = contents(log)
    for option in ("", "?host=no", "?storage=3"):
        await refuses(f"embedded:{log}{option}", "not_embedded_log", r"only the file polonaise-embedded .* put .* back")
    await refuses(f"file:{log}/coordinator", BadOption, "of an embedded log")
    for arguments in (["log", "health"], ["log", "create"], ["cluster", "recover", "--coordinator"]):
        told = run_polonaise(*arguments, f"embedded:{log}")
        assert "make one" not in told.stderr
        assert "choose an empty" not in told.stderr
        assert told.returncode
    assert contents(log) == before
    with raises_code("not_embedded_log") as refused:
        async with polonaise.connect(f"embedded:{log}"):
            pass
    command = str(refused.value).rpartition("with: ")[2]
    assert not run_program("sh", "-c", command).returncode
    async with polonaise.connect(f"embedded:{log}") as opened:
        assert [tx.data async for tx in opened.read(0)] == [b"x"]


async def test_an_emptied_file_that_names_the_fragment_store_is_not_taken_for_a_log_without_one(tmp_path: Path) -> None:
    log, store = tmp_path / "log", tmp_path / "store"
    await append_once(f"embedded:{log}?fragments={store}")
    (log / "fragments").write_bytes(b"\n")
    for option in ("", "?host=no", f"?fragments={store}"):
        await refuses(f"embedded:{log}{option}", BadOption, "is empty: write their address into it")
    (log / "fragments").write_text(f"{store}\n")
    async with polonaise.connect(f"embedded:{log}") as opened:
        assert (await opened.health(0))["fragments"] == str(store)


async def test_a_coordinators_directory(tmp_path: Path) -> None:
    await append_once(f"embedded:{tmp_path / 'log'}")
    await refuses(f"embedded:{tmp_path / 'log' / 'coordinator'}", "not_embedded_log", "file:PATH")


async def test_a_directory_of_another_version(tmp_path: Path) -> None:
    await append_once(f"embedded:{tmp_path}")
    (tmp_path / "polonaise-embedded").write_text("polonaise-embedded 2\n")
    before = contents(tmp_path)
    await refuses(f"embedded:{tmp_path}", UnsupportedFormat, "format 2")
    await refuses(f"embedded:{tmp_path}?host=no", UnsupportedFormat, "format 2")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("raw", [b"", b"\xff\0garbage", b"polonaise-embedded", b"polonaise-embedded one\n", b"x" * 500])
async def test_a_marker_that_does_not_read(tmp_path: Path, raw: bytes) -> None:
    await append_once(f"embedded:{tmp_path}")
    (tmp_path / "polonaise-embedded").write_bytes(raw)
    before = contents(tmp_path)
    await refuses(f"embedded:{tmp_path}", "not_embedded_log", "nothing was touched")
    assert contents(tmp_path) == before


async def test_a_damaged_coordinator(tmp_path: Path) -> None:
    await append_once(f"embedded:{tmp_path}")
    description = tmp_path / "coordinator" / "description"
    description.write_bytes(description.read_bytes()[:-1])
    before = contents(tmp_path)
    await refuses(f"embedded:{tmp_path}", CoordinatorDamaged, "restore")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "lost",
    [
        "description", "coordinator", "coordinator and a replica", "coordinator and a disk",
        "after a crash while it was made",
    ],
)  # fmt: skip
async def test_a_coordinator_that_is_lost_is_not_made_anew_beside_what_is_stored(tmp_path: Path, lost: str) -> None:
    log = tmp_path / "log"
    await append_once(f"embedded:{log}?storage=3")
    if lost == "description":
        for path in (log / "coordinator").iterdir():
            if path.is_file():
                path.unlink()
    else:
        shutil.rmtree(log / "coordinator")
    if lost == "coordinator and a replica":
        shutil.rmtree(log / "storage-0")
    if lost == "coordinator and a disk":
        for number in range(2):
            shutil.rmtree(log / f"storage-{number}")
        (log / "storage-2").rename(tmp_path / "aside")
        (log / "storage-2").symlink_to(tmp_path / "unmounted")
    if lost == "after a crash while it was made":
        (log / "coordinator").mkdir()
        (log / "coordinator" / "initializing").touch()
    before = contents(log)
    for option in ("", "?storage=3", "?host=no"):
        async with asyncio.timeout(SERVED_S):
            await refuses(
                f"embedded:{log}{option}", CoordinatorDamaged, f"{log}/coordinator/description is missing.*storage-2"
            )
        assert contents(log) == before


@pytest.mark.parametrize("broken_off", ["marked", "initializing", "directories"])
async def test_a_log_whose_making_was_broken_off_is_made_again(tmp_path: Path, broken_off: str) -> None:
    (tmp_path / "polonaise-embedded").write_text("polonaise-embedded 1\n")
    if broken_off != "marked":
        (tmp_path / "coordinator").mkdir()
        (tmp_path / "coordinator" / "initializing").touch()
        (tmp_path / "coordinator" / "partition-0").touch()
    if broken_off == "directories":
        (tmp_path / "storage-0").mkdir()
        (tmp_path / "storage-0" / "disk.lock").touch()
    await append_once(f"embedded:{tmp_path}")
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        assert [tx.data async for tx in log.read(0)] == [b"x"]


async def test_a_storage_directory_of_another_log(tmp_path: Path) -> None:
    await append_once(f"embedded:{tmp_path / 'a'}")
    await append_once(f"embedded:{tmp_path / 'b'}")
    (tmp_path / "a" / "storage-0").rename(tmp_path / "aside")
    (tmp_path / "b" / "storage-0").rename(tmp_path / "a" / "storage-0")
    before = contents(tmp_path / "a" / "storage-0")
    await refuses(f"embedded:{tmp_path / 'a'}", WrongClusterKey, f"{tmp_path}/a/storage-0 belongs to another cluster")
    assert contents(tmp_path / "a" / "storage-0") == before


async def test_a_storage_directory_that_another_process_has_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostelection, "_LEFTOVERS_S", 0.2)
    await append_once(f"embedded:{tmp_path}")
    lock = try_lock(str(tmp_path / "storage-0" / "disk.lock"))
    await refuses(f"embedded:{tmp_path}", DirectoryInUse, "storage-0")
    lock.release()
    await append_once(f"embedded:{tmp_path}")


# ---------------------------------------------------------------------- the machine


async def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    await append_once(f"embedded:{tmp_path / 'log'}")  # what is imported later may be out of reach
    os.chmod(tmp_path / "log", 0o500)
    os.chmod(tmp_path, 0o500)
    with unprivileged():
        await refuses(f"embedded:{tmp_path / 'log'}", AccessDenied, "let the user of this process")
        await refuses(f"embedded:{tmp_path / 'new'}", AccessDenied, "let the user of this process")
    os.chmod(tmp_path, 0o700)
    os.chmod(tmp_path / "log", 0o700)
    await append_once(f"embedded:{tmp_path / 'log'}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for very little."""
    with small_disk(tmp_path / "small", 512 * 1024) as place:
        yield place


async def test_a_disk_that_is_full_from_the_start(small: Path) -> None:
    (small / "filler").write_bytes(bytes(512 * 1024 - 4096))
    with pytest.raises((DiskFull, CoordinatorUnavailable), match="no space left"):
        await append_once(f"embedded:{small / 'log'}")
    (small / "filler").unlink()
    await append_once(f"embedded:{small / 'log'}")


async def test_a_disk_that_fills_up_loses_nothing_and_goes_on_when_there_is_room(small: Path) -> None:
    (small / "filler").write_bytes(bytes(256 * 1024))
    told: dict[int, bytes] = {}
    async with polonaise.connect(f"embedded:{small / 'log'}") as log:
        with contextlib.suppress(AppendExpired, AppendUnknown):
            for number in range(200):
                body = number.to_bytes(2, "big") * 2_000
                receipt = await log.run(lambda tx, body=body: tx.append(body), partition=0, timeout=1.0)
                told[receipt.id] = body
        assert 0 < len(told) < 200
        (small / "filler").unlink()
        receipt = await log.run(lambda tx: tx.append(b"room"), partition=0, timeout=SERVED_S)
        there = {tx.id: tx.data async for tx in log.read(0)}
        assert all(there[id] == body for id, body in told.items())
        assert there[receipt.id] == b"room"
