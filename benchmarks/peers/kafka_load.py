"""Keeps messages unanswered at a Kafka topic. Runs in a Python environment with Kafka's client and without Polonaise.

Prints how many were acknowledged and how long each waited, as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "transactions"
BODY = bytes(100)


def create(servers: str) -> None:
    """Make the topic, and return when its partition has a leader and three replicas in sync."""
    admin = AdminClient({"bootstrap.servers": servers})
    deadline = time.monotonic() + 45
    while len(admin.list_topics(timeout=10).brokers) < 3:
        if time.monotonic() > deadline:
            sys.exit("the brokers have not found each other within 45 s")
        time.sleep(0.2)
    for made in admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=3)]).values():
        made.result(30)
    while True:
        topic = admin.list_topics(TOPIC, timeout=10).topics[TOPIC]
        if topic.partitions and topic.partitions[0].leader >= 0 and len(topic.partitions[0].isrs) == 3:
            return
        if time.monotonic() > deadline:
            sys.exit("the topic has no three replicas in sync within 45 s")
        time.sleep(0.2)


def measure(servers: str, outstanding: int, seconds: float, linger_ms: float) -> dict[str, Any]:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": linger_ms,
            "message.timeout.ms": 20_000,
        }
    )
    sent: deque[float] = deque()
    latencies_ms: list[float] = []
    failures: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        """Note how long the oldest unanswered message has waited.

        Messages are answered in their order: there is one partition, and the producer is idempotent.
        """
        latencies_ms.append(1e3 * (time.perf_counter() - sent.popleft()))
        if error is not None:
            failures.append(str(error))

    def keep(count: int) -> None:
        while len(sent) < count:
            sent.append(time.perf_counter())
            producer.produce(TOPIC, BODY, on_delivery=delivered)
        producer.poll(1.0)
        if failures:
            sys.exit(f"a message was not delivered: {failures[0]}")

    while not latencies_ms:  # finds the leader and its producer's number
        keep(1)
    latencies_ms.clear()
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        keep(outstanding)
    while sent:
        keep(0)
    took_s = time.perf_counter() - began
    return {"count": len(latencies_ms), "took_s": took_s, "latencies_ms": latencies_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--create", action="store_true")
    parser.add_argument("--outstanding", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--linger-ms", type=float, default=0)
    options = parser.parse_args()
    if options.create:
        create(options.servers)
    else:
        json.dump(measure(options.servers, options.outstanding, options.seconds, options.linger_ms), sys.stdout)


if __name__ == "__main__":
    main()
