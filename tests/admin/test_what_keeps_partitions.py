"""An owner that waits itself says nothing to who waits for it: what keeps it is asked for besides."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.admin.logs import TimeLimit, what_keeps
from polonaise.client.log import Log
from polonaise.errors import DeadlineExceeded
from rigs.town import Town, in_a_town, in_an_application


def limit_of(seconds: float) -> TimeLimit:
    limit = TimeLimit(seconds)
    limit.begin()
    return limit


@in_a_town
async def test_disks_that_hang_are_told_to_who_waits_for_the_partition_within_its_time(town: Town) -> None:
    loop = asyncio.get_running_loop()

    async def one_that_waits(log: Log) -> None:
        began_s = loop.time()
        asking = asyncio.create_task(what_keeps(log, limit_of(6.0)))
        with pytest.raises(DeadlineExceeded) as given_up:
            await log.ready(0, timeout=6.0)
        assert "disk" not in given_up.value.text, "else nobody need be asked"
        assert asking.done()
        assert loop.time() - began_s < 6.1
        ((why, partitions),) = asking.result().items()
        assert why.startswith("the disks of ")
        assert why.endswith(" are slow: a sync takes seconds, and commits wait for it")
        assert partitions == [0]

    await town.append(b"first")
    for node in town.cluster.storage[1:]:
        node.machine.disk.slow(3_600.0)
    appending = asyncio.create_task(town.append(b"waits"))
    await asyncio.sleep(4.0)
    await town.application("other", one_that_waits)
    appending.cancel()


@in_an_application
async def test_nobody_is_asked_once_an_answer_has_come(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    asked = []
    log.health = lambda *_, **__: asked.append(0)  # type: ignore[method-assign, assignment]
    limit = limit_of(4.0)
    asking = asyncio.create_task(what_keeps(log, limit))
    await asyncio.sleep(1.0)
    limit.begin()
    assert await asking == {}
    assert not asked
