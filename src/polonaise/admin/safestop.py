"""Say whether a cluster goes on when one of its nodes is stopped now, and if not, what stops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from polonaise.admin.cluster import ClusterStatus, ServerStatus
from polonaise.errors import BadOption
from polonaise.redaction import redacted
from polonaise.terms import PartitionId, counted


class StopVerdict(NamedTuple):
    """What becomes of a cluster when one node is stopped now."""

    node: str
    """The node's name; of a server without one, its id, or the address by which it was asked for."""
    kind: str
    """`server`, `storage node` or `ZooKeeper server`."""
    stops: list[str]
    """What stops, or may stop because its state is not known, line by line; empty if nothing does."""

    def document(self) -> dict[str, object]:
        """Return the verdict as a JSON-ready document."""
        return {"node": self.node, "kind": self.kind, "safe": not self.stops, "stops": self.stops}


def safe_to_stop(status: ClusterStatus, name: str | None) -> list[StopVerdict]:
    """Return the verdict about the node with this name, address, or server id; about each node without a name.

    Raises `BadOption` for a node that the cluster does not have, and the coordinator's error if nothing is known.
    """
    if status.description is None:
        assert status.coordinator_error is not None
        raise status.coordinator_error
    verdicts = [
        StopVerdict(each.name, "storage node", _without_storage(status, each.name) + _unknown(status))
        for each in status.storage
        if name in (None, each.name, each.address)
    ]
    verdicts += [
        StopVerdict(each.name or name or str(each.server), "server", _without_server(status, each) + _unknown(status))
        for each in status.servers
        if name in (None, each.name, each.address, str(each.server))
    ]
    verdicts += [
        StopVerdict(address, "ZooKeeper server", _without_coordinator_server(status, address) + _unknown(status))
        for address in status.coordinator_servers
        if name in (None, address)
    ]
    if not verdicts:
        known = [each.name for each in status.storage] + [each.name or str(each.server) for each in status.servers]
        known += status.coordinator_servers
        raise BadOption(f"the cluster has no node {redacted(name)!r}; its nodes are {', '.join(known)}")
    return verdicts


def _without_storage(status: ClusterStatus, name: str) -> list[str]:
    """Return what stops without this storage node: what needs it."""
    needing = [
        each.partition
        for each in status.partitions
        if each.condition is not None and each.condition.ready and name in each.condition.stops_without
    ]
    return [f"{_named(needing)} would take no appends until it is back"] if needing else []


def _unknown(status: ClusterStatus) -> list[str]:
    """Return what is not known to go on, whichever node is stopped: the coordinator, and partitions not ready."""
    not_ready = [each.partition for each in status.partitions if each.condition is None or not each.condition.ready]
    lines = [f"{_named(not_ready)}: not ready, or not known to be, already"] if not_ready else []
    if status.coordinator_error is not None:
        lines.append(f"the coordinator can't be read, so nobody knows who would take over: {status.coordinator_error}")
    elif status.coordinator_disbelief:
        lines.append(f"nobody could take over with this coordinator: {status.coordinator_disbelief}")
    return lines


def _without_server(status: ClusterStatus, server: ServerStatus) -> list[str]:
    """Return what stops without this server: all that it owns, unless another one is there to take it over."""
    others = [each for each in status.servers if each.server != server.server and not each.trouble]
    if any(each.registered for each in others):
        return []
    owned = [each.partition for each in status.partitions if each.owner and each.owner.server == server.server]
    return [f"{_named(owned)}: no other server is there to take over"] if owned else []


def _without_coordinator_server(status: ClusterStatus, address: str) -> list[str]:
    """Return what stops without this server of the coordinator: all of it, unless a majority is left."""
    servers = status.coordinator_servers
    left = [other for other, why in servers.items() if other != address and not why]
    if 2 * len(left) > len(servers):
        return []
    return [
        f"{len(left)} of {counted(len(servers), 'ZooKeeper server')} would be left, which is no majority: all "
        "partitions stop once the leases of the servers run out"
    ]


def _named(partitions: Iterable[PartitionId]) -> str:
    """Return partitions in words, the numbers of neighbours as a range."""
    numbers = sorted(partitions)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"partition{'s' if len(numbers) > 1 else ''} {text}"
