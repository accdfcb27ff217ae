"""What an operator is told of files: nothing of whole or trimmed ones, and of damaged ones where it begins."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from polonaise.admin.segments import PartitionReport, verify
from polonaise.errors import BadOption, NotFound, SegmentDamaged
from polonaise.log.control import CONTROL_FILE
from polonaise.log.segment import FRAME_BYTES, REMOVED
from polonaise.storage import files
from polonaise.storage.offline import dump
from rigs.faults import raises_code
from rigs.storagefiles import flip, make_storage, overwrite, segments, work_on


def verified(path: Path) -> list[PartitionReport]:
    async def work() -> list[PartitionReport]:
        return [await verify(found) for found in files.find(str(path))]

    return asyncio.run(work())


def offsets(path: Path) -> list[int]:
    async def work() -> list[int]:
        (found,) = files.find(str(path))
        return [each.offset async for each in dump(found)]

    return asyncio.run(work())


def first_damaged(storage: Path) -> int:
    """The first transaction of the only partition that can't be read."""
    (report,) = verified(storage)
    return report.damages[0].transaction


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return make_storage(tmp_path / "storage")


def test_whole_files_are_good_and_counted(storage: Path) -> None:
    (report,) = verified(storage)
    assert not report.damages
    assert report.last == 17
    assert [(each.first, each.last, each.batches, each.transactions) for each in report.segments] == [
        (0, 5, 3, 6),
        (6, 11, 3, 6),
        (12, 17, 3, 6),
    ]
    assert sum(each.registers_changed for each in report.segments) == 4
    assert report.segments[0].first_commit_time_us == 1_000_000
    assert report.segments[2].last_commit_time_us == 17_000_000
    assert all(each.sessions == 1 and each.unsynced_bytes == 0 for each in report.segments)


def test_a_storage_directory_a_partition_and_a_segment_are_the_same_files(tmp_path: Path) -> None:
    storage = make_storage(tmp_path / "storage", partitions=2)
    assert [report.partition for report in verified(storage)] == [0, 1]
    (report,) = verified(storage / "1")
    assert (report.partition, report.last) == (1, 17)
    (report,) = verified(segments(storage, 1)[1])
    assert (report.last, report.damages) == (11, ())
    assert report.segments[0].partition == 1


def test_a_copy_of_a_partition_without_its_control_file_can_be_verified(storage: Path, tmp_path: Path) -> None:
    os.rename(storage / "0", tmp_path / "a copy")
    (report,) = verified(tmp_path / "a copy")
    assert (report.partition, report.last, report.damages) == (None, 17, ())


@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_flipped_bit_is_named_by_its_batch(storage: Path, segment: int, place: int) -> None:
    path = segments(storage)[segment]
    offset = offsets(path)[place]
    flip(path, offset + FRAME_BYTES + 70)
    (report,) = verified(storage)
    damage = report.damages[0]
    assert (damage.path, damage.offset) == (str(path), offset)
    assert damage.transaction == 6 * segment + 2 * place
    assert report.last == damage.transaction - 1


def test_a_damaged_frame_header_and_preamble_are_damage_too(storage: Path) -> None:
    flip(segments(storage)[0], 3)
    flip(segments(storage)[1], 130)
    (report,) = verified(storage)
    assert [(damage.transaction, damage.offset) for damage in report.damages] == [(0, 0), (6, 128)]


def test_a_body_that_its_writer_summed_otherwise_is_damage_in_a_batch_that_is_whole(tmp_path: Path) -> None:
    storage = make_storage(tmp_path / "storage", bad_body_at=8)
    (report,) = verified(storage)
    (damage,) = report.damages
    assert damage.transaction == 8
    assert "CRC" in damage.what


def test_a_missing_segment_is_damage(storage: Path) -> None:
    segments(storage)[1].unlink()
    (report,) = verified(storage)
    (damage,) = report.damages
    assert damage.transaction == 6
    assert "missing" in damage.what


def test_a_missing_last_segment_is_known_from_the_control_file(storage: Path) -> None:
    segments(storage)[2].unlink()
    (report,) = verified(storage)
    (damage,) = report.damages
    assert damage.transaction == 12
    assert "17 had been synced" in damage.what


def test_that_all_segments_are_missing_is_damage_too(storage: Path) -> None:
    for path in segments(storage):
        path.unlink()
    assert first_damaged(storage) == 0


def test_a_synced_end_that_was_cut_off_is_damage(storage: Path) -> None:
    path = segments(storage)[2]
    os.truncate(path, path.stat().st_size - 1)
    assert first_damaged(storage) == 16


def test_an_unfinished_write_at_the_end_is_none(storage: Path) -> None:
    path = segments(storage)[2]
    size = path.stat().st_size
    overwrite(path, size, b"PLNF and what comes of a write that never ended")
    (report,) = verified(storage)
    assert not report.damages
    assert report.segments[2].unsynced_bytes == path.stat().st_size - size


def test_zeros_at_the_end_are_room_that_is_set_aside(storage: Path) -> None:
    path = segments(storage)[2]
    size = path.stat().st_size
    os.truncate(path, size + 1_000)
    (report,) = verified(storage)
    assert not report.damages
    assert (report.segments[2].bytes, report.segments[2].unsynced_bytes) == (size, 0)


@pytest.mark.parametrize("more", [bytes(1_000), b"more"])
def test_bytes_behind_the_end_of_a_sealed_segment_are_damage_zeros_included(storage: Path, more: bytes) -> None:
    path = segments(storage)[0]
    overwrite(path, path.stat().st_size, more)
    assert first_damaged(storage) == 6


def test_a_segment_of_another_log_under_the_right_name_is_damage(storage: Path, tmp_path: Path) -> None:
    other = make_storage(tmp_path / "other", per_segment=3, batches=5, bad_body_at=4)
    segments(storage)[1].write_bytes(segments(other)[1].read_bytes())
    assert first_damaged(storage) == 6


def test_a_removed_segment_whose_name_came_back_is_not_the_logs(storage: Path) -> None:
    (storage / "0" / f"{18:020d}.seq").write_bytes(REMOVED)
    (report,) = verified(storage)
    assert not report.damages
    assert report.segments[-1].removed


def test_verifying_changes_nothing(storage: Path) -> None:
    segments(storage)[0].with_suffix(".idx").unlink()

    def state() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in storage.rglob("*")}

    before = state()
    for path in (storage, storage / "0", segments(storage)[0]):
        verified(path)
    assert state() == before


def test_a_dump_stops_at_damage_and_says_so(storage: Path) -> None:
    path = segments(storage)[1]
    flip(path, offsets(path)[1] + FRAME_BYTES + 70)
    with pytest.raises(SegmentDamaged, match="can't be had is 8"):
        offsets(storage)


def test_what_is_no_storage_is_refused(tmp_path: Path, storage: Path) -> None:
    with pytest.raises(NotFound):
        files.find(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadOption, match="not a storage directory"):
        files.find(str(tmp_path / "empty"))
    with pytest.raises(BadOption, match="not a segment"):
        files.find(str(storage / CONTROL_FILE))
    (storage / CONTROL_FILE).unlink()
    with raises_code("control_file_missing"):
        files.find(str(storage))


# ------------------------------------------------------------------ a partition whose beginning was trimmed


def trimmed(directory: Path) -> Path:
    """Nine batches of two transactions, three to a segment; the first segment was dropped."""
    make_storage(directory)
    work_on(directory, lambda log: log.trim(6))
    return directory


def test_a_trimmed_partition_is_well(tmp_path: Path) -> None:
    (found,) = verified(trimmed(tmp_path / "storage"))
    assert (found.damages, found.last) == ((), 17)
    assert [segment.first for segment in found.segments] == [6, 12]


def test_what_a_broken_off_trim_has_left_is_no_part_of_it(tmp_path: Path) -> None:
    first = make_storage(tmp_path / "whole")
    kept = segments(first)[0].read_bytes()
    directory = trimmed(tmp_path / "storage")
    (directory / "0" / segments(first)[0].name).write_bytes(kept)
    (found,) = verified(directory)
    assert (found.damages, found.last) == ((), 17)


def test_a_segment_that_is_missing_behind_a_trim_is_damage(tmp_path: Path) -> None:
    directory = trimmed(tmp_path / "storage")
    segments(directory)[0].unlink()
    (found,) = verified(directory)
    (damage,) = found.damages
    assert damage.transaction == 6
    assert "missing" in damage.what
