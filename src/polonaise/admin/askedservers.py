"""What servers tell of their cluster when the coordinator can't be read: who owns what, and the storage nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from polonaise.admin.asking import ask_health, connected
from polonaise.coordination.values import Assignment, ClusterDescription, Owner
from polonaise.errors import PolonaiseError, ProtocolError
from polonaise.host import Host
from polonaise.link.connection import ANY_CLUSTER, Connection
from polonaise.wire.assignments import parse_assignment
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_CLIENT,
    ROLE_SERVER,
    AssignmentIs,
    ClusterIs,
    DescribeCluster,
    GetAssignment,
)

M = TypeVar("M", bound=Message)


class AskedServers(NamedTuple):
    """What a server has told of its cluster."""

    description: ClusterDescription
    """Its key, its storage nodes with their addresses, and its partitions: those of topics count as the log's own."""
    assignment: Assignment


async def ask_servers(host: Host, addresses: Iterable[str], timeout_s: float) -> AskedServers | None:
    """Return what the first of the servers at these addresses tells that answers; None if none does."""
    for address in addresses:
        try:
            return await _ask(host, address, timeout_s)
        except PolonaiseError:
            continue  # the next one may know
    return None


async def _ask(host: Host, address: str, timeout_s: float) -> AskedServers:
    async with connected(host, address, ROLE_SERVER, ROLE_CLIENT, ANY_CLUSTER, timeout_s) as connection:
        assert connection.peer is not None
        key = connection.peer.cluster_key
        partitions = (await _answer(connection, DescribeCluster(), ClusterIs, timeout_s)).partitions
        rows = parse_assignment(await _answer(connection, GetAssignment(-1, 0), AssignmentIs, timeout_s))
    assignment = Assignment({each.partition: Owner(each.server, each.address, each.generation) for each in rows})
    health = await ask_health(host, address, ROLE_SERVER, key, timeout_s)
    if not isinstance(health, dict):
        raise health
    try:
        nodes = {str(name): str(node["address"]) for name, node in health["storage"].items()}
    except (AttributeError, LookupError, TypeError):
        raise ProtocolError("its health names no storage nodes: it may be of another version") from None
    total = max(partitions, max(assignment.owners, default=-1) + 1)
    return AskedServers(ClusterDescription.new(key, total, nodes), assignment)


async def _answer(connection: Connection, request: Message, kind: type[M], timeout_s: float) -> M:
    answer = await connection.request(request, deadline_s=timeout_s)
    if not isinstance(answer, kind):
        raise ProtocolError(f"the node did not answer with {kind.__name__}: it may be of another version")
    return answer
