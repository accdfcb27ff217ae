"""Processes of two versions share an embedded log, whichever of them hosts it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import polonaise
from rigs.oldversion import old_client
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow

SECONDS = 60


async def told(process: asyncio.subprocess.Process) -> bytes:
    """Wait until the old process says of one more append that it is committed."""
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), SECONDS)
    assert line, "the process has ended"
    return line.strip()


async def ended(process: asyncio.subprocess.Process) -> set[bytes]:
    """Let the old process end, and return what it has said since."""
    assert process.stdin is not None
    process.stdin.close()
    said, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 0
    return set(said.split())


async def bodies(log: polonaise.Log) -> set[bytes]:
    return {tx.data for partition in range(2) for tx in [each async for each in log.read(partition, timeout=SECONDS)]}


async def test_an_old_host_serves_new_processes_and_leaves_the_log_to_them(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}?partitions=2"
    async with old_client(address) as process:
        first = await told(process)
        async with polonaise.connect(address) as log:
            await log.append(b"attached", 0)
            assert {first, b"attached"} <= await bodies(log)
            more = await ended(process)
            await log.append(b"hosting", 0)
            assert {first, b"attached", b"hosting", *more} <= await bodies(log)


async def test_a_new_host_serves_old_processes_and_leaves_the_log_to_them(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}?partitions=2"
    async with polonaise.connect(address) as log:
        await log.append(b"hosting", 0)
        async with old_client(address) as process:
            first = await told(process)
            await wait_until(lambda: _holds(log, first), "the host has what the other process was told")
            await log.close()
            for _ in range(20):  # more than the old process had said before the host went
                await told(process)
            more = await ended(process)
    async with polonaise.connect(address) as log:
        assert {b"hosting", first, *more} <= await bodies(log)


async def _holds(log: polonaise.Log, body: bytes) -> bool:
    return body in await bodies(log)
