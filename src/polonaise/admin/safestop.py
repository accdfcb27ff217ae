"""Say whether a cluster goes on when one of its nodes is stopped now, and if not, what stops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from polonaise.admin.cluster import ClusterStatus, PartitionStatus, ServerStatus
from polonaise.coordination.values import Requirement
from polonaise.errors import BadOption
from polonaise.node.reasons import given_up_words
from polonaise.redaction import redacted
from polonaise.server.protocol.commit import stops
from polonaise.terms import PartitionId, StorageId, counted, in_ranges


class StopVerdict(NamedTuple):
    """What becomes of a cluster when one node is stopped now."""

    node: str
    """The node's name; of a server without one, its id, or the address by which it was asked for."""
    kind: str
    """`server`, `storage node` or `ZooKeeper server`."""
    stops: list[str]
    """What stops, or may stop because its state is not known, line by line."""

    def document(self) -> dict[str, object]:
        return {"node": self.node, "kind": self.kind, "safe": not self.stops, "stops": self.stops}


def safe_to_stop(status: ClusterStatus, name: str | None) -> list[StopVerdict]:
    """Return the verdict about the node with this name, address, or server id; about each node without a name.

    Raises `BadOption` for a node that the cluster does not have, and the coordinator's error if nothing is known.
    """
    if status.description is None:
        assert status.coordinator_error is not None
        raise status.coordinator_error
    required = _requirements(status)
    needed = {each.partition: _needed(status, each, required) for each in status.partitions}
    verdicts = [
        StopVerdict(each.name, "storage node", _without_storage(status, each.name, needed) + _unknown(status))
        for each in status.storage
        if name in (None, each.name, each.address)
    ]
    verdicts += [
        StopVerdict(
            _said(status, each) or name or str(each.server),
            "server",
            _without_server(status, each, required) + _unknown(status),
        )
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


def _without_storage(status: ClusterStatus, name: str, needed: Mapping[PartitionId, set[StorageId]]) -> list[str]:
    """Return what stops without this storage node: what needs it, also because others that are engaged can't write."""
    needing = [each for each in status.partitions if name in needed[each.partition]]
    if not needing:
        return []
    whys = dict[StorageId, str]()
    for each in needing:
        engaged = each.condition.engaged if each.condition is not None else ()
        found = _not_writing(status, each.partition)
        whys |= {other: why for other, why in found.items() if other in engaged and other != name}
    why = "; ".join(f"storage node {other} can't write: {why}" for other, why in whys.items())
    named = _named(each.partition for each in needing)
    return [f"{named} would take no appends until it is back{f' ({why})' if why else ''}"]


def _needed(
    status: ClusterStatus, partition: PartitionStatus, required: Mapping[PartitionId, Requirement]
) -> set[StorageId]:
    """Return the storage nodes each of which a ready partition needs, by its owner's word or by their own."""
    condition = partition.condition
    if condition is None or not condition.ready:
        return set()
    able = set(condition.engaged) - _not_writing(status, partition.partition).keys()
    needed = {name for name in condition.engaged if _stops(status, partition, able - {name}, required)}
    return needed.union(condition.stops_without)


def _not_writing(status: ClusterStatus, partition: PartitionId) -> dict[StorageId, str]:
    """Return why storage nodes can't write to this partition, or may soon not be able to, by what they tell."""
    whys = {each.name: [*each.unable, each.unusable.get(str(partition), "")] for each in status.storage}
    return {name: why for name, each in whys.items() if (why := "; ".join(filter(None, each)))}


def _requirements(status: ClusterStatus) -> Mapping[PartitionId, Requirement]:
    return {} if status.description is None else status.description.requirements()


def _stops(
    status: ClusterStatus,
    partition: PartitionStatus,
    left: Collection[StorageId],
    required: Mapping[PartitionId, Requirement],
) -> bool:
    # Without members from the owner, which has no session or is of an older version, all may have a copy.
    told = partition.condition.members if partition.condition is not None else ()
    members = told or [each.name for each in status.storage]
    return stops(members, [name for name in members if name in left], required.get(partition.partition))


def _said(status: ClusterStatus, server: ServerStatus) -> str:
    """Return a server's name, with number and address if another one has the same; empty if it has none."""
    namesakes = [each for each in status.servers if each.name == server.name != ""]
    return f"{server.server} ({server.name}) at {server.address}" if len(namesakes) > 1 else server.name


def _unknown(status: ClusterStatus) -> list[str]:
    """Return what is not known to go on, whichever node is stopped: the coordinator, and partitions not ready."""
    not_ready = [each.partition for each in status.partitions if each.condition is None or not each.condition.ready]
    lines = [f"{_named(not_ready)}: not ready, or not known to be, already"] if not_ready else []
    if status.coordinator_error is not None:
        lines.append(f"the coordinator can't be read, so nobody knows who would take over: {status.coordinator_error}")
    elif status.belief.doubt:
        lines.append(f"nobody could take over with this coordinator: {status.belief.doubt}")
    return lines


def _without_server(
    status: ClusterStatus, server: ServerStatus, required: Mapping[PartitionId, Requirement]
) -> list[str]:
    """Return what stops without this server: what it owns and no other one that is there is able to take over."""
    others = [each for each in status.servers if each.server != server.server and not each.trouble and each.registered]
    left: dict[str, list[PartitionId]] = {}
    for each in status.partitions:
        if each.owner is None or each.owner.server != server.server:
            continue
        found = {
            _said(status, other) or str(other.server): _why_not_taken(status, each, other, required) for other in others
        }
        why = "; ".join(f"server {name}: {why}" for name, why in found.items() if why)
        if not found:
            said = "no other server is there to take over"
        elif all(found.values()):
            said = f"no other server can take over ({why})"
        # By the rule of `server.assignment`: all of those that have given something up count the same then, and the one
        # that owns the fewest partitions gets it, for good.
        elif why and all(other.given_up for other in others):
            said = f"a server that can't serve it may take over ({why})"
        else:
            continue
        left.setdefault(said, []).append(each.partition)
    return [f"{_named(numbers)}: {said}" for said, numbers in left.items()]


def _why_not_taken(
    status: ClusterStatus,
    partition: PartitionStatus,
    server: ServerStatus,
    required: Mapping[PartitionId, Requirement],
) -> str:
    """Return why this server could not take this partition over, by what is told of both; empty if it could."""
    if server.unable:
        return "; ".join(server.unable)
    # What is open elsewhere was given up for a trouble of this server alone, and others may have it too. What is open
    # nowhere says nothing about it.
    closed = {each.partition for each in status.partitions if each.condition is not None and not each.condition.ready}
    if partition.partition in server.given_up or not closed.issuperset(server.given_up):
        return f"it could not serve {given_up_words(server.given_up)} lately"
    if _stops(status, partition, server.reached - _not_writing(status, partition.partition).keys(), required):
        lost = sorted({each.name for each in status.storage} - server.reached)
        return (
            f"it does not reach storage node{'s' * (len(lost) > 1)} {', '.join(lost)}" if lost else "too few can write"
        )
    return ""


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
    return f"partition{'s' if len(numbers) > 1 else ''} {in_ranges(numbers)}"
