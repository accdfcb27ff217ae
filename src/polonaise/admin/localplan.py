"""The plan of a local cluster, kept in a file, so that the cluster comes back as the same one, at the same ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from polonaise.admin.settingkeys import NEW_PARTITIONS, NEW_SERVERS, NEW_STORAGE
from polonaise.admin.zookeeper import check_free
from polonaise.errors import AddressInUse, BadOption, UnsupportedFormat, fault
from polonaise.host import write_whole
from polonaise.host.address import HostPort, parse_address
from polonaise.host.files import with_own_errors
from polonaise.host.real import RealHost
from polonaise.node.addresses import MARKER
from polonaise.node.local import LocalAddresses

PLAN: Final = "cluster.json"
"""The file that marks a directory as that of a local cluster."""
LOCK: Final = "lock"
"""The file that a running `cluster start` holds locked."""
NODES_LOCK: Final = "nodes.lock"
"""The file that the cluster's processes hold locked, too: they may outlive a killed `cluster start` for a moment."""
LOG_SUFFIX: Final = ".log"
STORAGE_PREFIX: Final = "storage-"
COORDINATOR: Final = "coordinator"
"""The directory of a coordinator of the kind `file`; one of the kind `zookeeper` is named like its kind."""
HOST: Final = "127.0.0.1"
ZOOKEEPER: Final = "zookeeper"
FILE: Final = "file"
_FORMAT: Final = 1
_PORTS: Final = range(10_000, 31_000)
"""Where free ports are looked for: below those that systems give to outgoing connections."""
_TRIES: Final = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of `cluster start` that say what the plan is to be; None for those that were not given."""

    coordinator: str | None = None
    storage: int | None = None
    servers: int | None = None
    partitions: int | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """The plan of a local cluster: the number of its partitions, and the address of each process."""

    partitions: int
    addresses: LocalAddresses

    @property
    def coordinator(self) -> str:
        """The kind of the coordinator: `zookeeper` or `file`."""
        return FILE if self.addresses.zookeeper is None else ZOOKEEPER

    def every_address(self) -> Iterator[HostPort]:
        for text in (self.addresses.zookeeper, *self.addresses.storage, *self.addresses.servers):
            if text is not None:
                address = parse_address(text)
                assert isinstance(address, HostPort)
                yield address

    @classmethod
    def new(cls, wanted: Wanted) -> LocalPlan:
        """Return the plan of a new cluster, with defaults for all that is not wanted otherwise.

        Raises `AddressInUse` if the wanted ports, or else enough ports, are not free, and `BadOption` if they don't
        exist.
        """
        storage, servers = wanted.storage or NEW_STORAGE, wanted.servers or NEW_SERVERS
        has_zookeeper = (wanted.coordinator or ZOOKEEPER) == ZOOKEEPER
        ports = _ports(servers + storage + has_zookeeper, wanted.port)
        texts = [str(HostPort(HOST, port)) for port in ports]
        zookeeper = texts[-1] if has_zookeeper else None
        addresses = LocalAddresses(tuple(texts[servers : servers + storage]), tuple(texts[:servers]), zookeeper)
        return cls(wanted.partitions or NEW_PARTITIONS, addresses)

    def started_again(self, wanted: Wanted) -> LocalPlan:
        """Return this cluster's plan for another start: other servers, and ports of servers and ZooKeeper, if wanted.

        Raises `BadOption` if anything else is to be changed or the ports can't be had, and `AddressInUse`.
        """
        is_of = (
            ("coordinator", self.coordinator, wanted.coordinator),
            ("storage nodes", len(self.addresses.storage), wanted.storage),
            ("partitions", self.partitions, wanted.partitions),
        )
        for what, is_now, other in is_of:
            if other is not None and other != is_now:
                raise BadOption(
                    f"this cluster's {what} can't be changed to {other}: it was made with {is_now}; leave the option "
                    "out, or choose another directory"
                )
        servers = self.addresses.servers
        count = wanted.servers or len(servers)
        if wanted.port is not None and str(HostPort(HOST, wanted.port)) != servers[0]:
            return self._moved(wanted.port, count)
        more = _ports(count - len(servers), None) if count > len(servers) else []
        kept = (*servers[:count], *(str(HostPort(HOST, port)) for port in more))
        return replace(self, addresses=replace(self.addresses, servers=kept))

    def _moved(self, port: int, servers: int) -> LocalPlan:
        """Return this plan with so many servers, followed by its ZooKeeper, at ports in a row from `port` on.

        Storage nodes stay where the cluster's description has them. Raises `AddressInUse`, `BadOption`.
        """
        has_zookeeper = self.addresses.zookeeper is not None
        texts = [str(HostPort(HOST, each)) for each in _ports(servers + has_zookeeper, port)]
        if taken := set(texts) & set(self.addresses.storage):
            raise BadOption(
                f"invalid --port {port}: {len(texts)} ports are needed, and the cluster's own storage node has "
                f"{sorted(taken)[0]}; choose another one"
            )
        zookeeper = texts[-1] if has_zookeeper else None
        return replace(self, addresses=LocalAddresses(self.addresses.storage, tuple(texts[:servers]), zookeeper))

    def check_free(self) -> None:
        """Raise `AddressInUse`, with what to do, if another process listens at an address of the plan."""
        for address in self.every_address():
            try:
                check_free(address)
            except AddressInUse as error:
                way_out = (
                    "stop the process that listens there, because storage nodes keep their addresses"
                    if str(address) in self.addresses.storage
                    else "stop the process that listens there, or move the servers and the coordinator with --port"
                )
                raise AddressInUse(f"{address} is in use: {way_out}") from error

    def encode(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, raw: bytes, path: Path) -> Self:
        """Return the plan in a file's contents. Raises `UnsupportedFormat`, `cluster_file_damaged`."""
        try:
            fields = json.loads(raw)
            version = int(fields["format"])
            if version > _FORMAT:
                raise UnsupportedFormat(
                    f"{path} is of format {version}; this version of Polonaise reads {_FORMAT}: run the newer one"
                )
            addresses = fields["addresses"]
            zookeeper = addresses["zookeeper"]
            plan = cls(
                int(fields["partitions"]),
                LocalAddresses(
                    _texts(addresses["storage"]),
                    _texts(addresses["servers"]),
                    None if zookeeper is None else _texts([zookeeper])[0],
                ),
            )
            if not plan.addresses.storage or not plan.addresses.servers:
                raise ValueError("it names no storage nodes, or no servers")
            list(plan.every_address())
        except (ValueError, LookupError, TypeError, AssertionError, RecursionError, BadOption) as error:
            raise fault(
                "cluster_file_damaged",
                f"{path} is damaged: {error}; restore it, or start the nodes one by one (polonaise storage run, "
                "polonaise server run): what they keep is beside it",
            ) from error
        return plan


def plan_in(directory: Path) -> LocalPlan | None:
    """Return the plan of the cluster in a directory. None if there is no directory, or the cluster was never started.

    Raises `BadOption` for a directory without a plan that holds more than locks, nodes' logs, and an unfinished plan;
    `cluster_file_damaged`, `UnsupportedFormat`, `NotADirectory`, and other faults of the disk.
    """
    path = directory / PLAN
    if not os.path.lexists(directory):
        return None
    names = set(with_own_errors(str(directory), lambda: os.listdir(directory)))
    if PLAN in names:
        return LocalPlan.decode(with_own_errors(str(path), path.read_bytes), path)
    if {name for name in names if not name.endswith(LOG_SUFFIX)} - {LOCK, NODES_LOCK, f"{PLAN}.new"}:
        raise BadOption(f"{directory} {_kind_of(directory, names)}: name a new or an empty directory")
    return None


def forget_plan(directory: Path) -> None:
    """Remove the plan of a cluster none of whose servers ever started, and its nodes' directories, but no log files."""

    def remove() -> None:
        for path in directory.iterdir():
            made = path.name in (COORDINATOR, ZOOKEEPER) or path.name.startswith(STORAGE_PREFIX)
            if made and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
        (directory / PLAN).unlink()  # last: if a removal fails, the directory still counts as a cluster's

    with_own_errors(str(directory), remove)


def write_plan(directory: Path, plan: LocalPlan) -> None:
    """Write the plan, durably and whole."""
    host = RealHost()
    try:
        asyncio.run(write_whole(host.disk, str(directory), PLAN, [plan.encode()]))
    finally:
        host.close()


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError("an address is no text")
    return tuple(values)


def _kind_of(directory: Path, names: set[str]) -> str:
    if MARKER in names:
        return f"is an embedded log (embedded:{directory})"
    if "polonaise-storage.ctl" in names:
        return "is the directory of a storage node"
    return f"is not that of a cluster: it holds {', '.join(sorted(names)[:3])}, and no {PLAN}"


def _ports(count: int, first: int | None) -> list[int]:
    """Return `count` free ports in a row, from `first` on if given. Raises `AddressInUse`, `BadOption`."""
    if first is not None:
        if first + count > 65_536:
            raise BadOption(f"invalid --port {first}: {count} ports are needed, and there are none above 65535")
        return _free_from(first, count)
    for _ in range(_TRIES):
        start = random.randrange(_PORTS.start, _PORTS.stop - count)
        with contextlib.suppress(AddressInUse):
            return _free_from(start, count)
    raise AddressInUse(f"no {count} ports in a row are free from {_PORTS.start} to {_PORTS.stop}: choose with --port")


def _free_from(first: int, count: int) -> list[int]:
    ports = list(range(first, first + count))
    for port in ports:
        check_free(HostPort(HOST, port))
    return ports
