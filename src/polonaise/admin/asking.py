"""Ask a cluster's coordinator for values, and nodes for their health, for operators' commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from polonaise.coordination import Coordinator
from polonaise.coordination.rebuilding import NodeAnswer, Noted, Promised
from polonaise.coordination.values import Assignment, ClusterDescription, Owner, PartitionValue
from polonaise.errors import (
    CertificateRefused,
    PolonaiseError,
    ProtocolError,
    UnsupportedVersion,
    WrongClusterKey,
    WrongRole,
    fault,
)
from polonaise.host import Host
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import ANY_CLUSTER, hello
from polonaise.server.coordinatortrouble import answered_within
from polonaise.terms import PartitionId, ServerId, StorageId
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    NOTES_VERSION,
    ROLE_CLIENT,
    ROLE_OPERATOR,
    ROLE_SERVER,
    ROLE_STORAGE,
    AssignmentIs,
    ClusterIs,
    DescribeCluster,
    GetAssignment,
    Health,
    HealthIs,
    NotedAre,
    TellNoted,
)
from polonaise.wire.topics import parse_assignment

T = TypeVar("T")
M = TypeVar("M", bound=Message)

Told: TypeAlias = dict[str, Any] | PolonaiseError
"""A node's health document, or the error for which it could not be had."""

_AS: Final = {ROLE_SERVER: ROLE_CLIENT, ROLE_STORAGE: ROLE_OPERATOR}
"""The role in which an operator asks a node, by the node's role. With TLS either takes a client's certificate."""
_READS_MAX: Final = 16
ASKED_MAX: Final = 64
"""How many nodes are asked at the same time."""


def stores_in(told: Iterable[Told]) -> list[str]:
    """Return the fragment stores that servers name in their health documents; an error in place of one names none."""
    return sorted({each["fragments"] for each in told if isinstance(each, dict) and each.get("fragments")})


async def answered(coordinator: Coordinator, asking: Awaitable[T], timeout_s: float, more: str = "") -> T:
    """Return the coordinator's answer. Raises `CoordinatorUnavailable`, with `more` told, after `timeout_s` seconds."""
    silence = f"the coordinator, {coordinator}, did not answer within {timeout_s:g} s{more}"
    async with answered_within(timeout_s, coordinator, silence):
        return await asking


async def server_said(coordinator: Coordinator, server: ServerId, timeout_s: float) -> str:
    """Return a server's number and name for an error's message; the number alone if no name can be read."""
    try:
        return (await answered(coordinator, coordinator.expected_servers(), timeout_s)).value.said(server)
    except PolonaiseError:
        return str(server)


async def values_in(coordinator: Coordinator, partitions: Iterable[PartitionId]) -> dict[PartitionId, PartitionValue]:
    """Return the values that the coordinator has of these partitions, reading some of them at the same time."""

    async def read(partition: PartitionId) -> PartitionValue:
        return (await coordinator.partition(partition)).value

    return await values_of(read, partitions)


async def values_of(
    read: Callable[[PartitionId], Awaitable[PartitionValue]], partitions: Iterable[PartitionId]
) -> dict[PartitionId, PartitionValue]:
    """Return what `read` returns for each of these partitions, reading some of them at the same time."""
    reading = asyncio.Semaphore(_READS_MAX)

    async def one(partition: PartitionId) -> PartitionValue:
        async with reading:
            return await read(partition)

    numbers = list(partitions)
    return dict(zip(numbers, await asyncio.gather(*map(one, numbers)), strict=True))


async def ask_health(host: Host, address: str, role: int, cluster_key: bytes, timeout_s: float) -> Told:
    """Ask the node at this address, which must have this `role`, for its health, within `timeout_s` seconds.

    With a server's certificate it is asked as servers ask each other.
    """
    began_s = host.clock.monotonic_s()
    told = await _ask_as(_AS[role], host, address, role, cluster_key, timeout_s)
    if not isinstance(told, CertificateRefused):
        return told
    # `storage clean` and `cluster recover` have a server's certificate, by which nobody is let in as a client.
    left_s = max(0.0, timeout_s - (host.clock.monotonic_s() - began_s))
    answer = await _ask_as(ROLE_SERVER, host, address, role, cluster_key, left_s)
    return answer if isinstance(answer, dict) else told


async def _ask_as(own: int, host: Host, address: str, role: int, cluster_key: bytes, timeout_s: float) -> Told:
    began_s = host.clock.monotonic_s()
    try:
        async with connected(host, address, role, own, cluster_key, timeout_s) as connection:
            left_s = max(0.0, timeout_s - (host.clock.monotonic_s() - began_s))
            return await health_on(connection, left_s)
    except PolonaiseError as error:
        return error


async def health_on(connection: Connection, timeout_s: float) -> dict[str, Any]:
    """Ask a node for its health on this connection. Raises why it did not answer with that."""
    return _document_in(await connection.request(Health(), deadline_s=timeout_s))


@asynccontextmanager
async def connected(
    host: Host, address: str, role: int, own: int, cluster_key: bytes, timeout_s: float
) -> AsyncGenerator[Connection]:
    """Connect to the node at this address, in the role `own`, within `timeout_s` seconds; close it at the end.

    Raises why there is no connection to a node with the role `role`, of this cluster.
    """
    greeting = hello(own, "operator", cluster_key=cluster_key)

    def make() -> Connection:
        return Connection(host, hello=greeting, peer_roles=(role,), on_message=_refuse_unasked)

    connection = await connect(host, address, make, deadline_s=timeout_s)
    try:
        yield connection
    finally:
        connection.close()


async def ask_noted(host: Host, address: str, timeout_s: float) -> tuple[StorageId | None, NodeAnswer]:
    """Return the name of the storage node at this address, and what it has noted and promised.

    Raises why it did not tell within `timeout_s` seconds, or told nothing that can be understood.
    """
    began_s = host.clock.monotonic_s()
    # In the role of a server, as for whatever tells of a cluster's inside: with TLS that takes a server's certificate.
    async with connected(host, address, ROLE_STORAGE, ROLE_SERVER, ANY_CLUSTER, timeout_s) as connection:
        if connection.peer.version_max < NOTES_VERSION:
            raise UnsupportedVersion("the storage node is too old to tell: upgrade it, then repeat the command")
        left_s = max(0.0, timeout_s - (host.clock.monotonic_s() - began_s))
        told = await connection.request(TellNoted(), deadline_s=left_s)
    if not isinstance(told, NotedAre):
        raise ProtocolError(f"it answered with {type(told).__name__}")
    try:
        return _noted_in(told.document)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(
            f"what it has noted has another form ({type(error).__name__}): it may be of another version"
        ) from error


def _noted_in(raw: bytes) -> tuple[StorageId | None, NodeAnswer]:
    document = json.loads(raw)
    name = document["name"]
    if not isinstance(name, str | None):
        raise TypeError(f"its name is {name!r}")
    promised = {
        int(partition): None if each is None else Promised(int(each[0]), int(each[1]), bool(each[3]))
        for partition, each in document["promises"].items()
    }
    noted = Noted.of(document["note"])
    servers = {int(server): str(address) for server, address in document.get("servers", {}).items()}
    return name, NodeAnswer(bytes.fromhex(document["cluster"]), noted, promised, servers)


class AskedServers(NamedTuple):
    """What a server has told of its cluster."""

    description: ClusterDescription
    """Its key, its storage nodes with their addresses, and its partitions, as if none were in topics."""
    assignment: Assignment


async def ask_servers(host: Host, addresses: Iterable[str], timeout_s: float) -> AskedServers | None:
    """Return what the first of the servers at these addresses tells that answers; None if none does.

    All are asked at once, but no more than `ASKED_MAX`; each has `timeout_s` seconds.
    """
    asking = asyncio.Semaphore(ASKED_MAX)

    async def ask(address: str) -> AskedServers | None:
        try:
            async with asking, asyncio.timeout(timeout_s):
                return await _tell(host, address, timeout_s)
        except (PolonaiseError, TimeoutError):
            return None  # the next one may know

    tasks = [asyncio.create_task(ask(address), name=f"ask {address} for its cluster") for address in addresses]
    try:
        for task in tasks:
            if (told := await task) is not None:
                return told
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _tell(host: Host, address: str, timeout_s: float) -> AskedServers:
    async with connected(host, address, ROLE_SERVER, ROLE_CLIENT, ANY_CLUSTER, timeout_s) as connection:
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


def health_of(told: Told | None, partition: PartitionId) -> dict[str, Any] | None:
    """Return what a server's health document says of a partition; None if it says nothing, or there is none."""
    return told.get("partitions", {}).get(str(partition)) if isinstance(told, dict) else None


def trouble_in(told: Told) -> str:
    """Return why a node did not tell its health; empty if it did."""
    return "" if isinstance(told, dict) else str(told)


async def ask_named(host: Host, name: StorageId, address: str, cluster_key: bytes, timeout_s: float) -> Told:
    """Ask at this address for the storage node `name`; return its health, or the error for which there is none.

    Raises `wrong_storage_node`, `WrongRole`, and `WrongClusterKey` for another node.
    """
    told = await ask_health(host, address, ROLE_STORAGE, cluster_key, timeout_s)
    if isinstance(told, WrongClusterKey):
        raise told
    if isinstance(told, WrongRole):
        raise WrongRole(
            f"no storage node answers at {address}, but a node of another kind: check the address"
        ) from told
    if (other := not_named(name, address, told)) is not None:
        raise other
    return told


def not_named(name: StorageId, address: str, told: Told) -> PolonaiseError | None:
    """Return an error if the node that answers at `address` is not the storage node `name`; None if it may be.

    One that tells no name takes that by which a server reaches it, or is of an older version.
    """
    theirs = told.get("name") if isinstance(told, Mapping) else None
    if theirs is None or theirs == name:
        return None
    return fault(
        "wrong_storage_node",
        f"storage node {theirs} answers at {address}, and not {name}: correct the address with `polonaise storage move "
        f"NAME HOST:PORT`, or start {name} there with its own directory. If {name} answers at the address of "
        f"{theirs}, their directories were swapped: swap them back",
    )


def _document_in(answer: object) -> dict[str, Any]:
    try:
        document = json.loads(answer.document) if isinstance(answer, HealthIs) else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ProtocolError("the node did not answer with its health: it may be of another version")
    return document


def _refuse_unasked(_: Connection, message: object, request: int, partition: int) -> None:
    raise ProtocolError(f"a node sent {type(message).__name__} to an operator who did not ask for it")
