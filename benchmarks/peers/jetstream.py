"""NATS JetStream: three servers, one stream with three replicas in files; a client in Go at the stream's leader."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.loads import Load
from benchmarks.peers import install
from benchmarks.peers.figures import Configuration
from benchmarks.peers.peer import BODY_BYTES, GRACE_S
from benchmarks.peers.processes import Server, free_ports, listens, run, stop_all, until

COPIES = 3
SETTINGS = """
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{
  store_dir: "{data}"
  {sync}
}}
cluster {{
  name: peers
  listen: "127.0.0.1:{route}"
  routes: [{routes}]
}}
"""


class JetStream:
    warming_s = (2.0, 1.0)

    def __init__(self, *, synced: bool) -> None:
        self._synced = synced
        self._programs = Path()
        self._servers: list[Server] = []
        self._urls: dict[str, str] = {}
        self.configuration = Configuration(
            peer="nats",
            name="NATS JetStream, `sync_interval: always`" if synced else "NATS JetStream, its default",
            acknowledged=(
                "two of three replicas have synced it"
                if synced
                else "two of three replicas have it in the page cache, which is synced every two minutes"
            ),
            durable=synced,
            client="Go, connected to the stream's leader",
            locks="a subject for each account, `Nats-Expected-Last-Subject-Sequence`" if synced else "",
        )

    def install(self) -> str:
        self._programs = install.nats_programs()
        printed = run([self._programs / "nats-server", "--version"], 30)
        return f"NATS {printed.split()[-1].removeprefix('v')}"

    def start(self, directory: Path) -> None:
        ports = free_ports(2 * COPIES)
        listening, routing = ports[:COPIES], ports[COPIES:]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routing)
        self._urls = {f"server-{number}": f"nats://127.0.0.1:{port}" for number, port in enumerate(listening)}
        for name, port, route in zip(self._urls, listening, routing, strict=True):
            home = directory / name
            home.mkdir(parents=True)
            sync = "sync_interval: always" if self._synced else ""
            text = SETTINGS.format(name=name, port=port, data=home / "data", sync=sync, route=route, routes=routes)
            (home / "server.conf").write_text(text)
            command = [self._programs / "nats-server", "--config", home / "server.conf"]
            self._servers.append(Server(name, command, home / "output"))
        until("the servers listen", lambda: all(map(listens, listening)), servers=self._servers)
        self._client("-create", seconds=60)

    def load(self, outstanding: int, seconds: float) -> Load:
        return self._measure(0, outstanding, seconds)

    def withdraw(self, accounts: int, outstanding: int, seconds: float) -> Load:
        return self._measure(accounts, outstanding, seconds)

    def _measure(self, accounts: int, outstanding: int, seconds: float) -> Load:
        words = [f"-outstanding={outstanding}", f"-accounts={accounts}", f"-seconds={seconds}", f"-size={BODY_BYTES}"]
        measured = json.loads(self._client(*words, seconds=seconds + GRACE_S))
        return Load.measured(measured["count"], measured["took_s"], measured["latencies_ms"])

    def stop(self) -> None:
        stop_all(self._servers)
        self._servers = []

    def _client(self, *words: str, seconds: float) -> str:
        """Run our program in Go with the addresses of all servers. Return what it prints."""
        servers = ",".join(f"{name}={url}" for name, url in self._urls.items())
        return run([self._programs / "nats-load", f"-servers={servers}", *words], seconds)
