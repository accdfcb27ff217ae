"""Replicas compared by their files: up to where they are the same, who holds more, and what can't be."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from polonaise.admin.comparison import ComparisonReport, compare
from polonaise.errors import BadOption, NotFound, WrongClusterKey
from polonaise.log.partitionlog import PartitionLog
from rigs.faults import raises_code
from rigs.storagefiles import batch, flip, make_storage, promise, segments, work_on


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
