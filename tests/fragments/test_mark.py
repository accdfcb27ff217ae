"""Whose a store is, and whether it is there at all: an empty directory may be one that is not mounted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from polonaise.errors import DiskFull, FragmentDamaged, NotFound, WrongClusterKey
from polonaise.fragments.mark import MARK, claim, is_marked, mark_of, put_mark
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import open_store

MINE, OTHERS = bytes(range(16)), bytes(16)


async def test_a_store_that_is_made_is_claimed_for_good(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    made = open_store(place)
    assert not await is_marked(made, MINE)
    await claim(made, MINE)
    assert (tmp_path / "store" / MARK).read_bytes() == mark_of(MINE)
    later = open_store(place)
    assert await is_marked(later, MINE)
    await claim(later, MINE)
    for ask in (is_marked, claim, put_mark):
        with pytest.raises(
            WrongClusterKey, match=f"belongs to cluster {MINE.hex()}, and this is cluster {OTHERS.hex()}"
        ):
            await ask(later, OTHERS)
    assert (tmp_path / "store" / MARK).read_bytes() == mark_of(MINE)


async def test_a_directory_that_was_there_is_claimed_by_nobody_unless_it_is_said(tmp_path: Path) -> None:
    found = open_store(str(tmp_path))
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(NotFound, match=r"mount what belongs there.*archive init"):
        await claim(found, MINE)
    assert not (tmp_path / MARK).exists()
    await put_mark(found, MINE)
    await claim(found, MINE)


async def test_a_store_of_objects_can_not_be_away_unnoticed() -> None:
    store = open_store("memory:///")
    await claim(store, MINE)
    assert await is_marked(store, MINE)


@pytest.mark.parametrize("said", [b"", b"\xff", b"[]", b'{"cluster_key": 7}', b'{"cluster_key": "xyz"}', b"{}"])
async def test_a_mark_that_cant_be_read_is_named_and_believed_by_nobody(tmp_path: Path, said: bytes) -> None:
    (tmp_path / MARK).write_bytes(said)
    for ask in (is_marked, claim, put_mark):
        with pytest.raises(FragmentDamaged, match=rf"{MARK} in .* can't be read: remove it.*archive init"):
            await ask(open_store(str(tmp_path)), MINE)


async def test_a_store_that_was_copied_is_as_good(tmp_path: Path) -> None:
    await claim(open_store(str(tmp_path / "store")), MINE)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert await is_marked(open_store(str(tmp_path / "copy")), MINE)


async def test_a_directory_that_was_made_in_vain_is_not_there_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be one that was there before."""
    place = str(tmp_path / "store")
    full = open_store(place)

    async def fails(path: str, data: bytes) -> bool:
        raise DiskFull(path)

    monkeypatch.setattr(full, "put_if_absent", fails)
    with pytest.raises(DiskFull):
        await claim(full, MINE)
    assert not (tmp_path / "store").exists()
    await claim(open_store(place), MINE)


def test_the_mark_is_no_fragment() -> None:
    assert FragmentName.parse(MARK) is None
