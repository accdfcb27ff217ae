"""A storage directory is made from another node's: only what is committed, verified, whole or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from polonaise.admin.storagerecovery import recover_storage
from polonaise.errors import BadOption, HistoryTrimmed, SegmentDamaged
from polonaise.log.control import ControlSlot
from polonaise.log.promises import Promises, TrimMark
from polonaise.storage.files import find, name_in
from polonaise.storage.offline import batches_of, bounds_in, each_unwaited
from rigs.storagefiles import flip, make_storage, promise, segments


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = make_storage(tmp_path / "a")
    confirm(made, 11)
    return made


def confirm(directory: Path, last: int) -> None:
    async def change(slot: ControlSlot) -> None:
        await slot.save(replace(slot.promises, fence=4, joined=4, prepared=last, confirmed=last))

    promise(directory, change)


def recovered(directory: Path, source: Path, name: str = "b") -> list[tuple[int, int]]:
    return [tuple(copy) for copy in asyncio.run(recover_storage(str(directory), str(source), name))]  # type: ignore[misc]


def test_the_committed_part_is_copied_and_the_copy_has_joined_no_session(source: Path, tmp_path: Path) -> None:
    assert recovered(tmp_path / "b", source) == [(0, 11)]
    (copy,), (original,) = find(str(tmp_path / "b")), find(str(source))
    assert name_in(copy) == "b"
    assert copy.control is not None
    assert copy.control.promises == Promises(confirmed=11)
    assert bounds_in(original).confirmed == 11
    told = [bytes(batch.view) for batch in each_unwaited(batches_of(copy))]
    assert told == [bytes(batch.view) for batch in each_unwaited(batches_of(original)) if batch.last <= 11]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_batch_of_which_an_id_is_confirmed_is_copied_whole(source: Path, tmp_path: Path) -> None:
    """Servers of earlier versions confirmed an id within a batch when they trimmed there."""
    (original,) = find(str(source))
    batch = next(batch for batch in each_unwaited(batches_of(original)) if batch.last > batch.first > 0)
    confirm(source, batch.first)
    assert recovered(tmp_path / "b", source) == [(0, batch.last)]
    (copy,) = find(str(tmp_path / "b"))
    assert copy.control is not None
    assert copy.control.promises == Promises(confirmed=batch.last)


def test_a_source_may_end_with_a_slash_as_shells_complete_it(source: Path, tmp_path: Path) -> None:
    (copy,) = asyncio.run(recover_storage(f"{tmp_path / 'b'}/", f"{source}/", "b"))
    assert tuple(copy) == (0, 11)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_leads_to_what_is_made(source: Path, tmp_path: Path, there: bool) -> None:
    (tmp_path / "disk").mkdir()
    if there:
        (tmp_path / "disk" / "b").mkdir()
    (tmp_path / "link").symlink_to("disk/b")
    assert recovered(tmp_path / "link", source) == [(0, 11)]
    assert (tmp_path / "link").is_symlink()
    assert find(str(tmp_path / "disk" / "b"))
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["b"]


def test_a_directory_that_is_not_empty_is_left_alone(source: Path, tmp_path: Path) -> None:
    other = make_storage(tmp_path / "b")
    before = sorted(path.name for path in other.iterdir())
    with pytest.raises(BadOption, match="is not empty: stop its node and move the directory away"):
        recovered(other, source)
    assert sorted(path.name for path in other.iterdir()) == before


def test_a_damaged_source_leaves_no_directory(source: Path, tmp_path: Path) -> None:
    flip(segments(source)[0], 300)
    with pytest.raises(SegmentDamaged):
        recovered(tmp_path / "b", source)
    assert not (tmp_path / "b").exists()
    with pytest.raises(BadOption, match="is left of a recovery that was interrupted"):
        recovered(tmp_path / "b", source)


def test_a_source_that_lacks_committed_ids_is_refused(source: Path, tmp_path: Path) -> None:
    confirm(source, 30)
    with pytest.raises(SegmentDamaged, match="30 is known to be"):
        recovered(tmp_path / "b", source)


def test_a_trimmed_source_is_refused(source: Path, tmp_path: Path) -> None:
    async def trim(slot: ControlSlot) -> None:
        await slot.begin_trim(TrimMark(6, 1))

    promise(source, trim)
    with pytest.raises(HistoryTrimmed, match="was trimmed below 6"):
        recovered(tmp_path / "b", source)


def test_the_sources_own_name_is_refused(source: Path, tmp_path: Path) -> None:
    recovered(tmp_path / "b", source)
    with pytest.raises(BadOption, match="two nodes must not have one name"):
        recovered(tmp_path / "c", tmp_path / "b", "b")
    with pytest.raises(BadOption, match="invalid name"):
        recovered(tmp_path / "c", source, "")
