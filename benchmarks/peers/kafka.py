"""Kafka: three processes that are brokers and controllers, one partition on all of them; librdkafka's client."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

from benchmarks.loads import Load, Missing
from benchmarks.peers import install
from benchmarks.peers.figures import Configuration
from benchmarks.peers.peer import GRACE_S
from benchmarks.peers.processes import Server, free_ports, listens, run, stop_all, until

COPIES = 3
JAVA_OPTIONS = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
SETTINGS = """
process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.quorum.voters={voters}
log.dirs={data}
auto.create.topics.enable=false
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
"""
SYNCED = "log.flush.interval.messages=1\n"
LINGER_FROM = 1_024
"""From so many outstanding on, the producer waits 1 ms to fill a batch, which makes it faster; below, 0 ms."""


class Kafka:
    warming_s = (20.0, 5.0)

    def __init__(self, *, synced: bool) -> None:
        self._synced = synced
        self.python = Path()
        """The Python that has Kafka's client, once it is installed."""
        self._java: list[object] = []
        self._brokers: list[Server] = []
        self._ports: list[int] = []
        self.configuration = Configuration(
            peer="kafka",
            name="Kafka, `log.flush.interval.messages=1`" if synced else "Kafka, its default",
            acknowledged=(
                "all replicas in sync, normally all three, have synced it"
                if synced
                else "all replicas in sync, normally all three, have it in the page cache"
            ),
            durable=synced,
            client="C (librdkafka) from Python; `acks=all`, idempotent, `linger.ms` 0, with 1,024 outstanding 1",
        )

    def install(self) -> str:
        java = install.tool("java", "Kafka", "openjdk-17-jre-headless")
        jars = install.kafka_jars()
        self._java = [java, "-cp", f"{jars}/*", *JAVA_OPTIONS]
        self.python = install.kafka_python()
        named = list(jars.glob("kafka-server-[0-9]*.jar"))
        if not named:
            raise Missing("Kafka's jars are not all there; remove build/peers and run it again")
        return f"Kafka {named[0].stem.removeprefix('kafka-server-')}"

    def start(self, directory: Path) -> None:
        ports = free_ports(2 * COPIES)
        self._ports, controls = ports[:COPIES], ports[COPIES:]
        voters = ",".join(f"{node}@127.0.0.1:{control}" for node, control in enumerate(controls, 1))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        homes = []
        for node, (port, control) in enumerate(zip(self._ports, controls, strict=True), 1):
            home = directory / f"broker-{node}"
            home.mkdir(parents=True)
            text = SETTINGS.format(node=node, port=port, control=control, voters=voters, data=home / "data")
            (home / "server.properties").write_text(text + (SYNCED if self._synced else ""))
            homes.append(home)
        for home in homes:
            format_it = ["format", "--cluster-id", cluster, "--config", home / "server.properties"]
            run([*self._java, "kafka.tools.StorageTool", *format_it], 60, directory=home)
        for home in homes:
            command = [*self._java, "kafka.Kafka", home / "server.properties"]
            self._brokers.append(Server(home.name, command, home / "output"))
        until("the brokers listen", lambda: all(map(listens, self._ports)), servers=self._brokers)
        self._client("--create", seconds=60)

    def load(self, outstanding: int, seconds: float) -> Load:
        linger = "1" if outstanding >= LINGER_FROM else "0"
        words = ["--outstanding", str(outstanding), "--seconds", str(seconds), "--linger-ms", linger]
        measured = json.loads(self._client(*words, seconds=seconds + GRACE_S))
        return Load.measured(measured["count"], measured["took_s"], measured["latencies_ms"])

    def withdraw(self, accounts: int, outstanding: int, seconds: float) -> Load:
        raise Missing("Kafka refuses no message for what has changed since something was read")

    def stop(self) -> None:
        stop_all(self._brokers)
        self._brokers = []

    @property
    def servers(self) -> str:
        """The addresses of the brokers, for clients."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def _client(self, *words: str, seconds: float) -> str:
        command = [self.python, "-m", "benchmarks.peers.kafka_load", "--servers", self.servers, *words]
        return run(command, seconds, directory=install.ROOT)
