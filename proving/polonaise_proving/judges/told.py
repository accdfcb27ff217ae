"""Judges whether a cluster's status tells of the faults of a step: the right culprits, and the right exit status."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from polonaise_proving.record.faultkinds import KINDS, Fault, NodeGroup, Telling, group_of

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
_SERVERS_CLOCK: Final = "the clock of this server"
_OWN_CLOCK: Final = ("its clock is", _SERVERS_CLOCK)
"""What only the lines of a node say whose own clock is wrong."""
_ELECTING: Final = "it has not joined a majority"
"""What is said of each ZooKeeper server while there is no leader: of no culprit."""
_LOST: Final = "lost on the way"
_NONE_REACHED: Final = "reaches none of the storage nodes"
_PAIR: Final = "does not reach it"
"""What a storage node's line says of a server that has no connection to it."""
_BLAMING: Final = (_CLOCK, _LOST, _PAIR)
"""Lines with these words blame the node whose lines they are, or one that they name."""
_REACHED: Final = (Telling.PAIR, Telling.NO_STORAGE, Telling.CLOCK)
"""What is told of nodes that whoever asks for the status reaches as before."""


def is_to_be_told(fault: Fault) -> bool:
    """Whether the status of the cluster has to tell of this fault while it lasts."""
    return group_of(fault.node) not in UNTOLD and _telling(fault) is not Telling.NOTHING


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
    """Whether a status has lines of the right kind on the culprit: anything else that it says of it may be old news."""
    if group_of(fault.node) is NodeGroup.ZOOKEEPER:
        why = status["coordinator"]["servers"].get(addresses[fault.node])
        return bool(why) and _ELECTING not in why
    found = [node for node in _nodes(status) if addresses[fault.node] == node["address"]]
    lines = [line for node in found for line in node["troubles"]]
    is_server = group_of(fault.node) is NodeGroup.SERVER
    telling = _telling(fault)
    if telling is Telling.NO_STORAGE:
        return any(_NONE_REACHED in line for line in lines)
    if telling is Telling.PAIR:
        at_storage = [line for node in status["storage"] if node["name"] == fault.other for line in node["troubles"]]
        return any(_PAIR in line and _names(line, _called(server)) for line in at_storage for server in found)
    # It is the servers that measure the clocks of storage nodes, and losses on the way to them.
    every = lines if is_server else [*lines, *(line for line in lines_in(status) if _names(line, [fault.node]))]
    if telling is Telling.CLOCK:
        return any((_SERVERS_CLOCK if is_server else _CLOCK) in line for line in every)
    away = any(node["troubles"] and not node["reachable"] for node in found)
    return away or (telling is Telling.LOSSES and any(_LOST in line for line in every))


def _accused(faults: Sequence[Fault], status: Mapping[str, Any], addresses: Mapping[str, str]) -> Iterator[str]:
    """Yield what is said of nodes to which it did not happen: by whoever asks, or by another node."""
    guilty = _names_of(faults, status, addresses)
    reached = _names_of([fault for fault in faults if _telling(fault) in _REACHED], status, addresses)
    clocks = _names_of([fault for fault in faults if _telling(fault) is Telling.CLOCK], status, addresses)
    for address, why in status["coordinator"]["servers"].items():
        if why and address not in guilty and _ELECTING not in why:
            yield f"ZooKeeper server {address} is blamed, and nothing befell it: {why}"
    pairs = [_names_of([fault], status, addresses) for fault in faults if _telling(fault) is Telling.PAIR]
    for node in _nodes(status):
        called = node["name"] or node["address"]
        if not node["reachable"] and node["address"] not in guilty:
            yield f"{called} is said not to be reached, and nothing befell it"
        if not node["reachable"] and node["address"] in reached:
            yield f"{called} is said not to be reached, and whoever asks does reach it"
        for line in node["troubles"]:
            blames = any(word in line for word in _BLAMING)
            if blames and node["address"] not in guilty and not _names(_one_by_one(line), guilty):
                yield f"{called} is blamed, and nothing befell it: {line}"
            elif _PAIR in line and any(node["address"] not in pair or not _names(line, pair) for pair in pairs):
                yield f"{called} is blamed, and only another pair is cut: {line}"
            elif any(word in line for word in _OWN_CLOCK) and node["address"] not in clocks:
                yield f"{called} is blamed for its clock, and nothing befell that: {line}"


def _telling(fault: Fault) -> Telling:
    return KINDS[fault.kind].telling


def _nodes(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*status["servers"], *status["storage"]]


def _names_of(faults: Sequence[Fault], status: Mapping[str, Any], addresses: Mapping[str, str]) -> set[str]:
    """Return everything by which a status may call the nodes that have these faults."""
    names = {name for fault in faults for name in (fault.node, fault.other) if name}
    names |= {addresses[name] for name in names if name in addresses}
    return names | {name for server in status["servers"] if server["address"] in names for name in _called(server)}


def _called(server: Mapping[str, Any]) -> list[str]:
    """Return what lines about other nodes call a server."""
    return [f"server {server['server']}", server["address"]]


def _one_by_one(line: str) -> str:
    """Return a line with "server 1, server 2" for "servers 1, 2"."""
    return re.sub(r"servers (\d+(?:, \d+)*)", lambda found: "server " + found[1].replace(", ", ", server "), line)


def _names(line: str, names: Collection[str]) -> bool:
    """Whether a line has one of these names in it, and not only a longer one."""
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line) for name in names)
