"""A cleaner of old files removes the sockets of an embedded log that lives: it is noticed, and new ones are made."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

import pytest

import polonaise

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("whole", [False, True], ids=["the sockets", "their directory"])
async def test_a_host_whose_sockets_are_removed_makes_new_ones(
    whole: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"embedded:{tmp_path}/log"
    with caplog.at_level(logging.WARNING):
        async with polonaise.connect(address, wait=20) as log:
            await log.append(b"first", partition=0)
            sockets = tmp_path / "log" / "sockets"
            if whole:
                shutil.rmtree(sockets)
            else:
                for name in os.listdir(sockets):
                    os.remove(sockets / name)
            async with asyncio.timeout(30):
                async with polonaise.connect(f"{address}?host=no", wait=20) as other:
                    await other.append(b"other", partition=0)
                await log.append(b"host", partition=0)
            assert log.failure is None
            assert [tx.data async for tx in log.read(0)] == [b"first", b"other", b"host"]
    told = "start again, with new sockets" if whole else "was removed while it was used, and was made again"
    assert told in caplog.text
