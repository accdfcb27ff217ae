"""Judges whether a cluster's status tells of the faults of a step: the right culprits, and the right exit status."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from polonaise.smoke.protocol.faults import Fault, FaultKind, NodeGroup, group_of

TOLD_S: Final = 5.0
"""Seconds after its beginning within which a fault is told."""
UNTOLD: Final = {
    NodeGroup.CLIENT: "a client is no part of the cluster",
    NodeGroup.ARCHIVER: "a run of the archiver that ends is begun again by whoever runs it",
}
"""The groups whose faults the status of a cluster does not tell, each with the reason."""
_STATUSES: Final = {"well": 0, "degraded": 3, "failed": 1}
"""The exit status of `polonaise cluster status` for each wellness."""
_CLOCK: Final = "clock"
_LOST: Final = "lost on the way"
_NONE_REACHED: Final = "reaches none of the storage nodes"
_PAIR: Final = "does not reach it"
"""What a storage node's line says of a server that has no connection to it."""
_REACHED: Final = frozenset({FaultKind.CUT_PAIR, FaultKind.CUT_STORAGE, FaultKind.CLOCK})
"""The kinds whose nodes whoever asks for the status reaches as before."""


def is_to_be_told(fault: Fault) -> bool:
    """Whether the status of the cluster has to tell of this fault while it lasts."""
    return group_of(fault.node) not in UNTOLD


def untold(faults: Sequence[Fault], status: Mapping[str, Any], addresses: Mapping[str, str]) -> str:
    """Return what a status does not tell of these faults, or tells wrongly; empty if it is right.

    `status` is the document of `polonaise cluster status --json`, `addresses` are those of all nodes by their names.
    """
    wrong = [
        f"{fault} is not told" for fault in faults if is_to_be_told(fault) and not _tells(fault, status, addresses)
    ]
    right = _right_wellness(faults)
    if right and status["wellness"] not in right:
        codes = " or ".join(str(_STATUSES[each]) for each in right)
        wrong.append(f"the cluster is {status['wellness']} (exit status {_STATUSES[status['wellness']]}, not {codes})")
    return "; ".join([*wrong, *_accused(faults, status, addresses)])


def lines_in(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield all that a status says is wrong, line by line."""
    coordinator = status["coordinator"]
    if coordinator["trouble"]:
        yield coordinator["trouble"]
    yield from (f"ZooKeeper server {address} {why}" for address, why in coordinator["servers"].items() if why)
    for server in status["servers"]:
        yield from (f"server {server['address']}: {line}" for line in server["troubles"])
    for node in status["storage"]:
        yield from (f"storage node {node['name']}: {line}" for line in node["troubles"])
    for partition in status["partitions"]:
        yield from (f"partition {partition['partition']}: {line}" for line in partition["troubles"])


def _right_wellness(faults: Sequence[Fault]) -> tuple[str, ...]:
    """Return how well the cluster may be; empty if no fault is to be told, so that any is right.

    A quorum of each kind of node is left: partitions pause only while those of one server pass to others.
    """
    groups = {group for fault in faults if is_to_be_told(fault) for group in fault.groups}
    if not groups:
        return ()
    return ("degraded", "failed") if NodeGroup.SERVER in groups else ("degraded",)


def _tells(fault: Fault, status: Mapping[str, Any], addresses: Mapping[str, str]) -> bool:
    group = group_of(fault.node)
    if group is NodeGroup.ZOOKEEPER:
        return bool(status["coordinator"]["servers"].get(addresses[fault.node]))
    if group is NodeGroup.STORAGE:
        return _tells_of_storage(fault, status)
    found = [server for server in status["servers"] if server["address"] == addresses[fault.node]]
    lines = [line for server in found for line in server["troubles"]]
    if fault.kind is FaultKind.CUT_STORAGE:
        return any(_NONE_REACHED in line for line in lines)
    if fault.kind is FaultKind.CUT_PAIR:
        names = [name for server in found for name in _called(server)]
        at_storage = [line for node in status["storage"] if node["name"] == fault.other for line in node["troubles"]]
        return any(_names(line, [fault.other]) for line in lines) or any(_names(line, names) for line in at_storage)
    if fault.kind is FaultKind.CLOCK:
        return any(_CLOCK in line for line in lines)
    return bool(lines)


def _tells_of_storage(fault: Fault, status: Mapping[str, Any]) -> bool:
    own = any(node["troubles"] for node in status["storage"] if node["name"] == fault.node)
    if fault.kind is FaultKind.CLOCK:  # it is the servers that measure it
        return any(_CLOCK in line and _names(line, [fault.node]) for line in lines_in(status))
    if fault.kind is FaultKind.LOSE:  # the servers measure it, too
        return own or any(_LOST in line and _names(line, [fault.node]) for line in lines_in(status))
    return own


def _accused(faults: Sequence[Fault], status: Mapping[str, Any], addresses: Mapping[str, str]) -> Iterator[str]:
    """Yield the nodes that are said not to be reached, by whoever asks or by a server, although they are."""
    faulty = {name for fault in faults for name in (fault.node, fault.other) if name}
    guilty = faulty | {addresses[name] for name in faulty if name in addresses}
    reached = {name for fault in faults if fault.kind in _REACHED for name in (fault.node, fault.other) if name}
    there = reached | {addresses[name] for name in reached if name in addresses}
    for node in [*status["servers"], *status["storage"]]:
        known = {node["name"], node["address"]}
        if not node["reachable"] and not guilty & known:
            yield f"{node['name'] or node['address']} is said not to be reached, and nothing befell it"
        if not node["reachable"] and there & known:
            yield f"{node['name'] or node['address']} is said not to be reached, and only some others do not reach it"
    servers = [name for each in status["servers"] if guilty & {each["name"], each["address"]} for name in _called(each)]
    for node in status["storage"]:
        for line in node["troubles"]:
            if _PAIR in line and node["name"] not in guilty and not _names(line, servers):
                yield f"{node['name']} and a server are said not to reach each other, and nothing befell them: {line}"


def _called(server: Mapping[str, Any]) -> list[str]:
    """Return what lines about other nodes call a server."""
    return [f"server {server['server']}", server["address"]]


def _names(line: str, names: Sequence[str]) -> bool:
    """Whether a line has one of these names in it, and not only a longer one."""
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line) for name in names)
