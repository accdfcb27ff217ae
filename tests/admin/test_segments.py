"""What an operator is told of files, of replicas compared by them, and of one that is made from another's."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from polonaise.admin.comparison import ComparisonReport, compare
from polonaise.admin.segments import PartitionReport, verify
from polonaise.admin.storagerecovery import recover_storage
from polonaise.errors import BadOption, HistoryTrimmed, NotFound, SegmentDamaged, WrongClusterKey
from polonaise.log.control import CONTROL_FILE, ControlSlot, Promises, TrimMark
from polonaise.log.partitionlog import PartitionLog
from polonaise.log.segment import FRAME_BYTES, REMOVED
from polonaise.storage import files
from polonaise.storage.files import find, name_in
from polonaise.storage.offline import batches_of, bounds_in, dump, each_unwaited
from rigs.faults import raises_code
from rigs.storagefiles import batch, flip, make_storage, overwrite, promise, segments, work_on


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


@pytest.mark.parametrize(
    ("missing", "damaged", "told"),
    [([1], 6, "missing"), ([2], 12, "17 had been synced"), ([0, 1, 2], 0, "17 had been synced")],
    ids=["one amid others", "the last", "all"],
)
def test_a_missing_segment_is_damage(storage: Path, missing: list[int], damaged: int, told: str) -> None:
    for path in [segments(storage)[number] for number in missing]:
        path.unlink()
    (report,) = verified(storage)
    (damage,) = report.damages
    assert damage.transaction == damaged
    assert told in damage.what


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


def compared(*directories: Path) -> list[ComparisonReport]:
    return asyncio.run(compare([str(directory) for directory in directories]))


def go_on(
    storage: Path, batches: int, body: bytes | None = None, *, count: int = 2, confirmed: int = -1, trim: int = 0
) -> None:
    """Append so many batches to partition 0 of a storage directory, have it trimmed, and told what is committed."""

    async def work(log: PartitionLog) -> None:
        for _ in range(batches):
            await log.append([batch(log.last + 1, log.last_crc, 0, [], False, body, count)])
        if trim:
            await log.trim(trim)

    work_on(storage, work)
    promise(storage, lambda slot: slot.save(replace(slot.promises, confirmed=confirmed)))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two replicas with the same ten transactions."""
    one = make_storage(tmp_path / "a", batches=5)
    return one, Path(shutil.copytree(one, tmp_path / "b"))


def test_replicas_that_are_the_same_are_said_to_be(pair: tuple[Path, Path]) -> None:
    (report,) = compared(*pair)
    assert (report.partition, report.same, report.difference, report.contradiction) == (0, 9, None, "")
    assert [(each.first, each.last, each.damage) for each in report.replicas] == [(0, 9, "")] * 2
    assert report.well


def test_a_replica_that_holds_more_is_no_fault(pair: tuple[Path, Path]) -> None:
    go_on(pair[1], 2, confirmed=7)
    (report,) = compared(*pair)
    assert (report.same, report.difference, report.well) == (9, None, True)
    assert [each.last for each in report.replicas] == [9, 13]
    assert [each.bounds.confirmed for each in report.replicas] == [-1, 7]


@pytest.mark.parametrize(("marks", "is_contradiction"), [((9, 9), False), ((13, 9), False), ((11, 10), True)])
def test_ends_that_differ_are_a_contradiction_only_where_both_are_committed(
    pair: tuple[Path, Path], marks: tuple[int, int], is_contradiction: bool
) -> None:
    go_on(pair[0], 2, b"one", confirmed=marks[0])
    go_on(pair[1], 1, b"another", confirmed=marks[1])
    (report,) = compared(*pair)
    assert report.difference is not None
    assert (report.same, report.difference.first) == (9, 10)
    assert report.difference.sides == ((str(pair[0]),), (str(pair[1]),))
    assert [each.last for each in report.replicas] == [13, 11], "they are read to their ends all the same"
    assert bool(report.contradiction) == is_contradiction == (not report.well)


def test_two_of_three_agree(pair: tuple[Path, Path], tmp_path: Path) -> None:
    third = Path(shutil.copytree(pair[0], tmp_path / "c"))
    for directory, body in ((pair[0], b"same"), (pair[1], b"other"), (third, b"same")):
        go_on(directory, 2, body)
    (report,) = compared(*pair, third)
    assert report.difference is not None
    assert report.difference.sides == ((str(pair[0]), str(third)), (str(pair[1]),))


def test_batches_that_begin_elsewhere_differ(pair: tuple[Path, Path]) -> None:
    """The same ids, cut into other batches, are not the same log."""
    go_on(pair[0], 1, count=1)
    go_on(pair[1], 1, count=2)
    (report,) = compared(*pair)
    assert report.difference is not None
    assert (report.same, report.difference.first) == (9, 10)


def test_a_replica_trimmed_into_the_middle_of_anothers_batch_differs(pair: tuple[Path, Path]) -> None:
    go_on(pair[0], 1, count=4)
    go_on(pair[1], 3, count=1)
    go_on(pair[1], 1, trim=11)  # one segment at a time
    go_on(pair[1], 0, trim=11)
    (report,) = compared(*pair)
    assert [(each.first, each.last) for each in report.replicas] == [(0, 13), (11, 14)]
    assert report.difference is not None
    assert report.difference.first == 10


def test_a_trimmed_replica_is_compared_from_where_it_begins(pair: tuple[Path, Path]) -> None:
    go_on(pair[1], 0, confirmed=9, trim=6)
    (report,) = compared(*pair)
    assert [(each.first, each.last) for each in report.replicas] == [(0, 9), (6, 9)]
    assert (report.same, report.difference, report.well) == (9, None, True)


def test_a_damaged_replica_is_compared_up_to_its_damage(pair: tuple[Path, Path]) -> None:
    flip(segments(pair[0])[1], 400)
    (report,) = compared(*pair)
    damaged, whole = report.replicas
    assert 5 <= damaged.last < 9
    assert "can't be had" in damaged.damage
    assert (whole.last, whole.damage) == (9, "")
    assert (report.same, report.difference, report.well) == (damaged.last, None, False)


def test_a_partition_that_only_one_holds_is_told(tmp_path: Path) -> None:
    reports = compared(make_storage(tmp_path / "a", partitions=2), make_storage(tmp_path / "b"))
    assert [len(report.replicas) for report in reports] == [2, 1]
    assert reports[1].same == -1


def test_what_can_not_be_compared_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for wrong in (pair[:1], (pair[0], pair[0])):
        with pytest.raises(BadOption, match="two storage directories or more"):
            compared(*wrong)
    with pytest.raises(NotFound):
        compared(pair[0], tmp_path / "nowhere")
    control = pair[1] / "polonaise-storage.ctl"
    raw = control.read_bytes()
    control.unlink()
    with raises_code("control_file_missing"):
        compared(*pair)
    control.write_bytes(raw)
    other = make_storage(tmp_path / "other", key=bytes(16))
    with pytest.raises(WrongClusterKey, match="different logs"):
        compared(pair[0], other)


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
