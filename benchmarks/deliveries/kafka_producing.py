"""The transaction manager, and Kafka's player, of the paper's designs with Kafka. Runs in Kafka's own environment.

Entries go to the topics of their targets, without a transaction or in one; or whole transactions go to one topic, and
the player, in a thread of its own, reads each and writes its entries in one transaction.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from benchmarks.deliveries.children import Handler, answer, usage
from benchmarks.deliveries.form import Workload, entries_of
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CREATE_S = 45.0
COMMIT_S = 60.0
REPLICAS = 3


def create(servers: str, topics: list[str]) -> None:
    """Make topics of one partition, on three brokers, which sync each message; return when all are ready."""
    admin = AdminClient({"bootstrap.servers": servers})
    deadline_s = time.monotonic() + CREATE_S
    configuration = {"flush.messages": "1", "min.insync.replicas": "2"}
    wanted = [NewTopic(topic, num_partitions=1, replication_factor=REPLICAS, config=configuration) for topic in topics]
    for made in admin.create_topics(wanted).values():
        made.result(CREATE_S)
    while True:
        there = admin.list_topics(timeout=10).topics
        partitions = [there[topic].partitions.get(0) if topic in there else None for topic in topics]
        if all(each is not None and each.leader >= 0 and len(each.isrs) == REPLICAS for each in partitions):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the topics have no {REPLICAS} replicas in sync within {CREATE_S:g} s")
        time.sleep(0.2)


class Failures:
    """What could not be delivered to the brokers."""

    def __init__(self) -> None:
        self._first = ""

    def told(self, error: Any, _message: Any) -> None:
        """Note the answer to a message."""
        if error is not None:
            self._first = self._first or str(error)

    def check(self) -> None:
        """Raise the first one."""
        if self._first:
            raise RuntimeError(f"a message was not delivered: {self._first}")


def producer(servers: str, transactional: str = "") -> Any:
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 0,
        "message.timeout.ms": 20_000,
    }
    if transactional:
        settings["transactional.id"] = transactional
    made = Producer(settings)
    if transactional:
        made.init_transactions(COMMIT_S)
    return made


class Player:
    """The paper's Kafka player: reads the topic of whole transactions, and writes their entries exactly once."""

    def __init__(self, servers: str, source: str, topics: dict[str, str]) -> None:
        settings = {"bootstrap.servers": servers, "group.id": f"player-{source}", "enable.auto.commit": False}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(source, 0, OFFSET_BEGINNING)])
        self._producer = producer(servers, f"player-{source}")
        self._topics = topics
        self._over = threading.Event()
        self.failure = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                message = self._consumer.poll(0.1)
                if message is not None:
                    self._pass_on(message)
        except Exception as error:  # noqa: BLE001 - told to whoever asks
            self.failure = str(error)
        finally:
            self._consumer.close()

    def _pass_on(self, message: Any) -> None:
        if message.error() is not None:
            raise RuntimeError(message.error())
        self._producer.begin_transaction()
        for name, payload in entries_of(message.value()):
            self._producer.produce(self._topics[name], payload)
        next_one = TopicPartition(message.topic(), message.partition(), message.offset() + 1)
        self._producer.send_offsets_to_transaction([next_one], self._consumer.consumer_group_metadata(), COMMIT_S)
        self._producer.commit_transaction(COMMIT_S)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class Producing:
    """Commits transactions as one of the designs has it."""

    def __init__(self) -> None:
        self._player: Player | None = None
        self._producer: Any = None
        self._topics: dict[str, str] = {}
        self._log = ""
        self._transactional = False

    async def open(self, servers: str, topics: dict[str, str], *, transactional: bool = False, log: str = "") -> None:
        """Make the topics, by target. With `log`, the name of a topic, transactions go there first."""
        create(servers, [*topics.values(), *([log] if log else [])])
        self._topics, self._log, self._transactional = topics, log, transactional
        if log:
            self._player = Player(servers, log, topics)
        self._producer = producer(servers, f"manager-{min(topics.values())}" if transactional else "")

    async def commit(self, workload: dict[str, int], rate: float, first: int, seconds: float) -> dict[str, Any]:
        """Commit transactions at a rate for some time; in Kafka's transactions, each once the one before is committed.

        Return how many there were, and how many a second.
        """
        transactions = Workload(**workload).transactions()
        failures = Failures()
        began_s = time.monotonic()
        count = 0
        while count < rate * seconds and time.monotonic() < began_s + 2 * seconds:
            while (pause_s := began_s + count / rate - time.monotonic()) > 0:
                self._producer.poll(min(pause_s, 0.01))
            data = transactions.transaction(first + count)
            if self._log:
                self._producer.produce(self._log, data, on_delivery=failures.told)
            else:
                self._write(data, failures)
            self._producer.poll(0)
            failures.check()
            count += 1
        self._producer.flush(COMMIT_S)
        failures.check()
        return {"count": count, "per_second": count / (time.monotonic() - began_s)}

    def _write(self, data: bytes, failures: Failures) -> None:
        if self._transactional:
            self._producer.begin_transaction()
        for name, payload in entries_of(data):
            self._producer.produce(self._topics[name], payload, on_delivery=failures.told)
        if self._transactional:
            self._producer.commit_transaction(COMMIT_S)

    async def check(self) -> None:
        """Raise what stopped the player."""
        if self._player is not None and self._player.failure:
            raise RuntimeError(self._player.failure)

    async def close(self) -> None:
        if self._player is not None:
            self._player.close()


async def main() -> None:
    producing = Producing()
    handlers: dict[str, Handler] = {
        "open": producing.open,
        "commit": producing.commit,
        "check": producing.check,
        "usage": usage,
    }
    await answer(handlers, producing.close)


if __name__ == "__main__":
    asyncio.run(main())
