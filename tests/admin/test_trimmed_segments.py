"""Looking offline at a partition whose beginning was trimmed: that is no damage, and what is lost still is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from polonaise.admin.segments import PartitionReport, verify
from polonaise.storage.files import find
from rigs.storagefiles import make_storage, segments, work_on


def trimmed(directory: Path) -> Path:
    """Nine batches of two transactions, three to a segment; the first segment was dropped."""
    make_storage(directory)
    work_on(directory, lambda log: log.trim(6))
    return directory


def report(directory: Path) -> PartitionReport:
    (files,) = find(str(directory))
    return asyncio.run(verify(files))


def test_a_trimmed_partition_is_well(tmp_path: Path) -> None:
    found = report(trimmed(tmp_path / "storage"))
    assert (found.damages, found.last) == ((), 17)
    assert [segment.first for segment in found.segments] == [6, 12]


def test_what_a_broken_off_trim_has_left_is_no_part_of_it(tmp_path: Path) -> None:
    first = make_storage(tmp_path / "whole")
    kept = segments(first)[0].read_bytes()
    directory = trimmed(tmp_path / "storage")
    (directory / "0" / segments(first)[0].name).write_bytes(kept)
    found = report(directory)
    assert (found.damages, found.last) == ((), 17)


def test_a_segment_that_is_missing_behind_a_trim_is_damage(tmp_path: Path) -> None:
    directory = trimmed(tmp_path / "storage")
    segments(directory)[0].unlink()
    (damage,) = report(directory).damages
    assert damage.transaction == 6
    assert "missing" in damage.what
