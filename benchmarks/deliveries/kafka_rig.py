"""The same transactions through Kafka, in the paper's three designs: with one level of topics, or with two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.deliveries.children import Child
from benchmarks.deliveries.delays import Delays, Delivery
from benchmarks.deliveries.form import Workload
from benchmarks.deliveries.rig import LOOK_S, SETTLE_S
from benchmarks.loads import Missing
from benchmarks.peers.kafka import Kafka

PLAIN, TRANSACTIONS, TWO_LEVELS = "Kafka", "Kafka, transactions", "Kafka, log topic and player"
DRAIN_S = 900.0
"""The longest that targets may take to receive what was committed: Kafka's player may be slow."""
DESIGNS = (PLAIN, TRANSACTIONS, TWO_LEVELS)


@dataclass(frozen=True)
class KafkaRun:
    """The delays of a run, and the transactions that were committed a second."""

    delays: Delays
    per_second: float


@contextmanager
def brokers(directory: Path) -> Iterator[tuple[Kafka, str]]:
    """Run three brokers; topics say that they sync each message. Raises `Missing` where they can't be had."""
    kafka = Kafka(synced=False)
    version = kafka.install()
    try:
        kafka.start(directory)
        yield kafka, version
    finally:
        kafka.stop()


async def measured_kafka(
    kafka: Kafka, design: str, workload: Workload, rate: float, seconds: float, processes: int, label: str
) -> KafkaRun:
    """Return the delays under a load of some seconds, after a fifth as many that do not count.

    `label` is a new one each time: topics are named after it.
    """
    topics = {name: f"{label}-{name}" for name in workload.names}
    names = list(topics)
    children: list[Child] = []
    try:
        manager = await Child.start("kafka_producing", python=kafka.python)
        children.append(manager)
        log = f"{label}-log" if design == TWO_LEVELS else ""
        await manager.ask(
            "open",
            within_s=2 * SETTLE_S,
            servers=kafka.servers,
            topics=topics,
            transactional=design == TRANSACTIONS,
            log=log,
        )
        consumers = [await Child.start("kafka_consuming", python=kafka.python) for _ in range(processes)]
        children += consumers
        for place, consumer in enumerate(consumers):
            group = {name: topics[name] for name in names[place::processes]}
            await consumer.ask("open", servers=kafka.servers, topics=group, committed=design != PLAIN)
        load: dict[str, Any] = {"workload": workload.plain(), "rate": rate, "within_s": 3 * seconds + SETTLE_S}
        warming = (await manager.ask("commit", **load, first=0, seconds=seconds / 5))["count"]
        await _all_received(manager, consumers, workload.transactions().expected(0, warming))
        told = await manager.ask("commit", **load, first=warming, seconds=seconds)
        await _all_received(manager, consumers, workload.transactions().expected(0, warming + told["count"]))
        notes = [each for consumer in consumers for each in (await consumer.ask("collect")).values()]
    finally:
        for child in children:
            await child.stop()
    times = (Delivery(*times) for each in notes for times in each["times"])
    return KafkaRun(Delays.of(each for each in times if each.number >= warming), told["per_second"])


async def _all_received(manager: Child, consumers: list[Child], expected: dict[str, int]) -> None:
    """Wait until each target has received as many entries. Raises `Missing` if that takes too long."""
    deadline_s = time.monotonic() + DRAIN_S
    while True:
        counts: dict[str, int] = {}
        for consumer in consumers:
            counts |= await consumer.ask("counts")
        if counts == expected:
            return
        await manager.ask("check")
        if time.monotonic() > deadline_s:
            raise Missing(f"Kafka's targets have received {sum(counts.values())} of {sum(expected.values())} entries")
        await asyncio.sleep(LOOK_S)
