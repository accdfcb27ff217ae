"""A process of targets that read their topics in Kafka. Runs in Kafka's own environment, without Polonaise."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from benchmarks.deliveries.children import Handler, answer, usage
from benchmarks.deliveries.form import Notes
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

POLL_S = 0.1


class Consuming:
    """The targets of this process: one consumer reads all their topics, which takes fewer threads than one for each."""

    def __init__(self) -> None:
        self._notes: dict[str, Notes] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure = ""

    async def open(self, servers: str, topics: dict[str, str], committed: bool) -> None:
        """Read these topics, by name of the target; with `committed`, only what is of committed transactions."""
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"targets-{id(self)}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        self._notes = {topic: Notes() for topic in topics.values()}
        self._names = {topic: name for name, topic in topics.items()}
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics.values()])
        self._thread = threading.Thread(target=self._read, args=(consumer,))
        self._thread.start()

    def _read(self, consumer: Any) -> None:
        while not self._over.is_set():
            message = consumer.poll(POLL_S)
            now_ns = time.monotonic_ns()
            if message is None:
                continue
            if message.error() is not None:
                self._failure = str(message.error())
                continue
            self._notes[message.topic()].received([message.value()], now_ns)
        consumer.close()

    async def counts(self) -> dict[str, int]:
        """Return how many entries each target has received."""
        if self._failure:
            raise RuntimeError(self._failure)
        return {self._names[topic]: notes.count for topic, notes in self._notes.items()}

    async def collect(self) -> dict[str, Any]:
        """Return what each target has noted."""
        return {self._names[topic]: notes.told() for topic, notes in self._notes.items()}

    async def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


async def main() -> None:
    consuming = Consuming()
    handlers: dict[str, Handler] = {
        "open": consuming.open,
        "counts": consuming.counts,
        "collect": consuming.collect,
        "usage": usage,
    }
    await answer(handlers, consuming.close)


if __name__ == "__main__":
    asyncio.run(main())
