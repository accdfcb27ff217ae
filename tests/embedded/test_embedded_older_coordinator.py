"""An older copy of the coordinator alone is refused, however often it is tried."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import polonaise
from polonaise.errors import ConsistencyLost


async def appended(directory: Path, data: bytes) -> int:
    async with polonaise.connect(f"embedded:{directory}") as log:
        await log.high_water_mark(0)
        receipt = await log.append(data, partition=0)
        return receipt.id


@pytest.mark.parametrize("restarts", [1, 2, 3])
async def test_an_older_copy_of_the_coordinator_is_refused_until_the_latest_is_back(
    tmp_path: Path, restarts: int
) -> None:
    directory, older, latest = tmp_path / "log", tmp_path / "older", tmp_path / "latest"
    await appended(directory, b"before the copy")
    shutil.copytree(directory / "coordinator", older)
    for number in range(restarts):
        last = await appended(directory, b"%d" % number)
    (directory / "coordinator").rename(latest)
    shutil.copytree(older, directory / "coordinator")
    for _ in range(restarts + 2):
        with pytest.raises(ConsistencyLost, match="restore its latest state"):
            await appended(directory, b"never")
    shutil.rmtree(directory / "coordinator")
    latest.rename(directory / "coordinator")
    assert await appended(directory, b"after") == last + 1
