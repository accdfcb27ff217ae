"""The number of partitions that a batch is divided by stays what its first attempt agreed on."""

from __future__ import annotations

import asyncio

import polonaise.testing
from polonaise.spark.agreedcount import AgreedCounts, agreed_count, counts_key
from rigs.faults import raises_code


def test_numbers_of_batches() -> None:
    counts = AgreedCounts(-1, ()).with_batch(3, 2).with_batch(4, 2).with_batch(7, 5)
    assert counts == AgreedCounts(7, ((3, 2), (7, 5)))
    assert [counts.of(batch) for batch in (0, 3, 4, 6, 7)] == [2, 2, 2, 2, 5]
    assert AgreedCounts.parse(counts.pack(), "app") == counts
    for value in (b"", b"x", counts.pack()[:-1], AgreedCounts(3, ()).pack(), AgreedCounts(3, ((1, 0),)).pack()):
        with raises_code("sink_state_damaged", match="how the batches of 'app' are divided"):
            AgreedCounts.parse(value, "app")


def test_few_changes_are_remembered() -> None:
    counts = AgreedCounts(-1, ())
    for batch in range(200):
        counts = counts.with_batch(batch, batch + 1)
    assert len(counts.runs) == 64
    assert counts.of(199) == 200


async def test_a_repetition_and_all_tasks_of_a_batch_take_what_was_agreed() -> None:
    async with polonaise.testing.log(partitions=4) as log:
        log.partition_count = 2
        assert await asyncio.gather(*(agreed_count(log, "app", 1, 10.0) for _ in range(5))) == [2] * 5
        log.partition_count = 4
        assert await agreed_count(log, "app", 1, 10.0) == 2
        assert await agreed_count(log, "app", 2, 10.0) == 4
        assert await agreed_count(log, "app", 1, 10.0) == 2
        assert await agreed_count(log, "other", 1, 10.0) == 4
        assert list(await log.list_registers(b"spark/", 0)) == sorted([counts_key("app"), counts_key("other")])
