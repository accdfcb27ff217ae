"""A log in memory goes on after the sessions that its owner ends of itself, with all that it held."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import polonaise
from polonaise import testing
from polonaise.testing import memorypartition

CHECKPOINT = 10


async def test_a_log_goes_on_after_its_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        memorypartition, "_SETTINGS", replace(memorypartition._SETTINGS, checkpoint_transactions=CHECKPOINT)
    )
    async with testing.log() as log, asyncio.timeout(20):
        for number in range(4 * CHECKPOINT):
            change = polonaise.Change.set(b"number", b"%d" % number)
            receipt = await log.append(b"%d" % number, changes=[change], locks=[polonaise.Lock("it", number)])
            assert receipt.id == number
            assert await log.register(b"number") == b"%d" % number
        await asyncio.gather(*(log.append(b"at once") for _ in range(4 * CHECKPOINT)))
        await log.append_group(polonaise.Group.of([b"together"] * 3 * CHECKPOINT))
        bodies = [tx.data async for tx in log.read()]
    count = 4 * CHECKPOINT
    assert bodies == [*(b"%d" % number for number in range(count)), *[b"at once"] * count, *[b"together"] * 30]
