"""All processes of a smoke test: an ensemble of ZooKeeper, a cluster, its clients and its archiver."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from polonaise.admin.cluster import Wellness
from polonaise.admin.localplan import LocalPlan, Wanted
from polonaise.admin.opening import observer_of
from polonaise.admin.zookeeper import ZooKeeperEnsemble, ZooKeeperPlace
from polonaise.errors import PolonaiseError
from polonaise.host.address import HostPort
from polonaise.node.local import HTTP_OFF, ZOOKEEPER_ROOT, ChildNode, make_cluster
from polonaise_proving.record.bankledger import database_of
from polonaise_proving.record.faultkinds import COUNTS, NodeGroup, nodes_of
from polonaise_proving.stages.hosts.clientjob import ClientJob
from polonaise_proving.stages.hosts.clocked import set_clock
from polonaise_proving.stages.hosts.hosts import Hosts
from polonaise_proving.stages.hosts.parts import ArchiverPart, ClientPart, NodePart, Part, ZooKeeperPart

PARTITIONS: Final = 4
SEGMENT_BYTES: Final = 1024 * 1024
"""Small segments, so that each replica has many."""
_SETTLE_S: Final = 1.0
"""The servers' `settle_s`. A server that was started again gets its share once servers and assignment have not
changed for a lease, which is longer than this. With the default, runs would only take longer."""
_LOOK_S: Final = 5.0


class Ports(NamedTuple):
    """The ports of all nodes, which stay the same when a run is resumed."""

    servers: tuple[int, ...]
    storage: tuple[int, ...]
    zookeeper: tuple[int, ...]
    """Three of each server: for clients, for peers, and for elections."""


def free_ports(hosts: Hosts) -> Ports:
    """Return free ports: on hosts of their own all nodes of a group have the same. Raises `AddressInUse`."""
    servers, storage, zookeeper = COUNTS[NodeGroup.SERVER], COUNTS[NodeGroup.STORAGE], COUNTS[NodeGroup.ZOOKEEPER]
    if hosts.network:
        return Ports((7000,) * servers, (7100,) * storage, (2181, 2888, 3888) * zookeeper)
    plan = LocalPlan.new(Wanted(coordinator="file", servers=servers, storage=storage + 3 * zookeeper))
    free = [int(address.rpartition(":")[2]) for address in plan.addresses.storage]
    at = tuple(int(address.rpartition(":")[2]) for address in plan.addresses.servers)
    return Ports(at, tuple(free[:storage]), tuple(free[storage:]))


class Town:
    """The processes of one run. Nothing runs before `start`."""

    def __init__(
        self, directory: Path, hosts: Hosts, ports: Ports, lives: dict[str, int], seed: int, rate: float
    ) -> None:
        """Decide where everything runs and with which options, and start nothing yet.

        `lives` says how often each client was started before; `rate` is that of each client, in operations a second.
        Raises `JavaMissing`, `ExtraMissing`, and what is wrong with the directory.
        """
        self.directory = directory
        self.hosts = hosts
        self.store = directory / "archive"
        self.clock_files: dict[str, Path] = {}
        """The file by which each storage node's and server's wall clock goes, by its name."""
        self._settings = directory / "settings.toml"
        zookeeper = nodes_of(NodeGroup.ZOOKEEPER)
        places = [
            ZooKeeperPlace(
                HostPort(hosts.address(name), ports.zookeeper[3 * number]),
                ports.zookeeper[3 * number + 1],
                ports.zookeeper[3 * number + 2],
                hosts.prefix(name),
            )
            for number, name in enumerate(zookeeper)
        ]
        self.ensemble = ZooKeeperEnsemble(directory / "zookeeper", places=places)
        self.coordinator = f"zookeeper://{self.ensemble.hosts}/{ZOOKEEPER_ROOT}"
        servers = self._addresses(NodeGroup.SERVER, ports.servers)
        self.log = f"polonaise://{','.join(servers.values())}"
        storage = self._addresses(NodeGroup.STORAGE, ports.storage)
        self.storage_directories = {name: directory / name for name in storage}
        self.zookeeper = [
            ZooKeeperPart(name, server) for name, server in zip(zookeeper, self.ensemble.servers, strict=True)
        ]
        self.storage = [self._storage(name, address) for name, address in storage.items()]
        self._storage_addresses = storage
        self._server_addresses = list(servers.values())
        self.addresses = {name: str(place.address) for name, place in zip(zookeeper, places, strict=True)}
        """The address of each node of the cluster and of its coordinator, by its name."""
        self.addresses |= servers | storage
        self.servers = [self._server(name, address) for name, address in servers.items()]
        self.clients = [
            ClientPart(
                ClientJob(self.log, str(directory), database_of(directory, name), name, lives.get(name, 0), seed, rate),
                directory / f"{name}.log",
                hosts.prefix(name),
            )
            for name in nodes_of(NodeGroup.CLIENT)
        ]
        name = nodes_of(NodeGroup.ARCHIVER)[0]
        self.archiver = ArchiverPart(name, directory / f"{name}.log", hosts.prefix(name), self.log, self.store)

    @property
    def parts(self) -> list[Part]:
        """All parts, in the order in which they are started; the archiver is not started by `start`."""
        return [*self.zookeeper, *self.storage, *self.servers, *self.clients, self.archiver]

    def part(self, name: str) -> Part:
        """Return the part of this name."""
        return next(part for part in self.parts if part.name == name)

    def _addresses(self, group: NodeGroup, ports: tuple[int, ...]) -> dict[str, str]:
        """Return the address of each node of a group, by its name."""
        return {name: f"{self.hosts.address(name)}:{port}" for name, port in zip(nodes_of(group), ports, strict=True)}

    def _storage(self, name: str, address: str) -> NodePart:
        arguments = ["storage", "run", "--directory", str(self.directory / name), "--name", name]
        arguments += ["--segment-bytes", str(SEGMENT_BYTES), "--http", HTTP_OFF, "--config", str(self._settings)]
        return self._node(name, arguments, address)

    def _server(self, name: str, address: str) -> NodePart:
        arguments = ["server", "run", "--coordinator", self.coordinator]
        arguments += ["--partitions", str(PARTITIONS), "--fragments", str(self.store), "--evidence"]
        arguments += ["--http", HTTP_OFF, "--config", str(self._settings)]
        return self._node(name, arguments, address)

    def _node(self, name: str, arguments: list[str], address: str) -> NodePart:
        log, clock = self.directory / f"{name}.log", self.directory / f"{name}.clock"
        self.clock_files[name] = clock
        prefix = [*self.hosts.prefix(name), sys.executable, "-m", "polonaise_proving.stages.hosts.clocked", str(clock)]
        node = ChildNode(name, arguments, log, address=address, apart=True, prefix=prefix)
        return NodePart(name, node)

    def start(self, started: Callable[[], None]) -> None:
        """Start the ensemble, the cluster, and the clients, which append nothing yet.

        Calls `started` once a process runs, and raises what that raises. Raises `ZooKeeperEnded`,
        `StartFailed`, `OSError`, and faults of the disk.
        """
        for clock in self.clock_files.values():
            set_clock(clock, 0.0)
        self._settings.write_text(f"[server]\nsettle_s = {_SETTLE_S:g}\n")
        self.ensemble.start(60.0)
        started()
        groups: list[list[Part]] = [[*self.storage], [*self.servers], [*self.clients]]
        for group in groups:
            for part in group:
                part.start()
                started()
            for part in group:
                part.wait_serving()
            if group == self.storage:
                make_cluster(self.coordinator, self._storage_addresses, PARTITIONS, str(self.store))

    def empty(self, name: str) -> None:
        """Remove all that a storage node has on its disk. The node must not run."""
        directory = self.storage_directories[name]
        gone = directory.with_name(f"{name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        directory.rename(gone)  # in one step: a disk that was emptied by half would be a damaged one
        shutil.rmtree(gone)

    def leader(self) -> str | None:
        """Return the name of the ZooKeeper server that leads the ensemble; None while there is none."""
        return next((part.name for part in self.zookeeper if part.is_leader()), None)

    async def status(self, timeout_s: float) -> dict[str, Any]:
        """Return the document of `polonaise cluster status`, with so much time for each wait.

        As an operator's, it is asked by a process that has read nothing before, and knows the servers' addresses.
        """
        async with observer_of(self.coordinator, timeout_s, self._server_addresses) as observer:
            return (await observer.look()).document()

    async def trouble(self) -> str:
        """Return what is wrong with the cluster; empty if every node and every partition is well."""
        try:
            async with observer_of(self.coordinator, _LOOK_S) as observer:
                status = await observer.look()
        except PolonaiseError as error:
            return str(error)
        if status.wellness is Wellness.WELL:
            return ""
        return status.coordinator_trouble or "; ".join(status.troubles[:3]) or "it is not well"

    def stop(self) -> None:
        """Stop the cluster gracefully: servers, storage nodes, then ZooKeeper. Raises what `Part.stop` raises."""
        for part in [*self.servers, *self.storage]:
            part.stop()
        self.ensemble.stop()

    def kill(self) -> None:
        """Kill everything, also what is stopped."""
        for part in self.parts:
            part.kill()
        self.ensemble.stop()
