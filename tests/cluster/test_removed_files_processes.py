"""Real storage nodes whose files are taken away while nobody appends: they miss them, and have them copied anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from polonaise.errors import SegmentDamaged
from polonaise.log.segment import SegmentHeader
from rigs.cluster import connected, running
from rigs.health import until_engaged
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow

NOTICED_S = 30.0
"""Half of an idle owner's pulse."""


def segments(directory: Path) -> dict[str, int]:
    """The files of a copy's segments, each with the CRC that the log had before it; none while they are changed."""
    try:
        return {path.name: SegmentHeader.decode(path.read_bytes()).previous_crc for path in directory.glob("*.seq")}
    except (FileNotFoundError, SegmentDamaged):
        return {}


def written(directory: Path) -> dict[str, int]:
    """When each file of a copy was written last."""
    try:
        return {path.name: path.stat().st_mtime_ns for path in directory.glob("*.seq")}
    except FileNotFoundError:
        return {}


def agrees(found: dict[str, int], before: dict[str, int]) -> bool:
    return all(found[name] == before[name] for name in found.keys() & before.keys())


@pytest.mark.parametrize("what", ["closed segment", "last segment", "directory"])
async def test_what_is_removed_under_an_idle_node_is_copied_anew_before_anybody_appends(
    tmp_path: Path, what: str
) -> None:
    with running(tmp_path / "cluster", segment_bytes=4096) as cluster:
        async with connected(cluster) as log:
            for number in range(30):
                await log.append(b"%d" % number + bytes(500), 0)
            await until_engaged(log, 3)
            copy = tmp_path / "cluster" / "storage-1" / "0"
            before, taken = segments(copy), tmp_path / "taken"
            assert len(before) > 3
            if what == "directory":
                shutil.move(copy, taken)
            else:
                shutil.move(copy / sorted(before)[1 if what == "closed segment" else -1], taken)
            left = written(copy)

            def is_being_copied() -> bool:
                return written(copy) not in ({}, left)

            # The owner does not count the copy from before it has it cut until it is whole.
            await wait_until(is_being_copied, "the copy is made anew", within_s=NOTICED_S, every_s=0.1)
            await until_engaged(log, 3)
            # Which batches share a segment is another matter: it goes by what came together.
            assert agrees(segments(copy), before)
            assert len(segments(copy)) >= len(before) - 1
