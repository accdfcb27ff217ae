"""Runs a storage node or a server as a process, until the process is told to stop; says where the node listens.

A server does not start at a coordinator that has lost its data, which storage nodes tell from one that nobody has made
a cluster at: a new cluster in the place of a lost one would have servers refuse what may be the only copy of the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import (
    AlreadyInitialized,
    BadOption,
    CertificateRefused,
    ConnectionLost,
    CoordinatorLost,
    ExtraMissing,
    NotInitialized,
    PolonaiseError,
    ProtocolError,
    WrongClusterKey,
    fault,
    fresh,
)
from polonaise.host import Host, unreachable
from polonaise.host.address import HostPort, is_every_interface, parse_address
from polonaise.host.tls import TlsIdentity
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import ANY_CLUSTER, hello
from polonaise.node.addresses import coordinator_at
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.node import Server
from polonaise.server.settings import ServerSettings
from polonaise.server.startingserver import AnyServer, StartingServer
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings
from polonaise.terms import StorageId, counted
from polonaise.wire.messages import ROLE_OPERATOR, ROLE_SERVER, ROLE_STORAGE, NotedAre, TellNoted

if TYPE_CHECKING:
    from polonaise.fragments.store import ObjectStore
    from polonaise.node.monitoring.face import ObservedNode


LOOK_S: Final = 3.0
"""So long each storage node has to answer."""
_ASKED_MAX: Final = 64


async def why_none(host: Host, coordinator: Coordinator, nodes: Mapping[StorageId, str]) -> PolonaiseError:
    """Return the error for a coordinator without a cluster, after these storage nodes were asked what they hold."""
    found = await look_at(host, nodes, LOOK_S)
    if holding := [name for name, error in found.items() if isinstance(error, WrongClusterKey)]:
        return lost(coordinator, holding)
    silent = [name for name, error in found.items() if error is not None]
    unknown = f" (nobody knows of {', '.join(silent)}: no answer)" if silent else ""
    return NotInitialized(
        f"no cluster in {coordinator}: correct the address; or, if this is to be a new cluster, make it: polonaise "
        f"cluster create{unknown}. If there was one, its coordinator has lost its data: polonaise cluster recover"
    )


def lost(coordinator: object, holding: Collection[str]) -> CoordinatorLost:
    """Return the error for a coordinator without a cluster, while these storage nodes hold the data of one."""
    belong = (
        f"storage node{'s' if len(holding) > 1 else ''} {', '.join(holding)} belong{'' if len(holding) > 1 else 's'}"
    )
    return CoordinatorLost(
        f"the coordinator {coordinator} holds no cluster, but {belong} to one: the "
        "coordinator has lost its data, or this is another one's address. Nothing was changed, and the log is on the "
        "storage nodes: leave their directories as they are. Correct the address, or start what holds its coordinator "
        "(polonaise cluster start, if that has made it). Only if its data are lost, make them again: polonaise cluster "
        "recover (docs/operations.md). For another, new cluster give the nodes new directories"
    )


async def by_own_names(host: Host, nodes: Mapping[StorageId, str], look_s: float) -> list[str]:
    """Return these storage nodes by the names that they were given, with those in their directories if these differ."""

    async def own(given: StorageId, address: str) -> str:
        try:
            connection = await _connected(ROLE_SERVER, host, address, look_s)
            try:
                told = await connection.request(TellNoted(), deadline_s=look_s)
            finally:
                connection.close()
            name = json.loads(told.document)["name"] if isinstance(told, NotedAre) else None
        except (PolonaiseError, ValueError, LookupError, TypeError):
            name = None
        return given if name in (None, given) else f"{given} (whose directory is that of {name})"

    return list(await asyncio.gather(*(own(*each) for each in nodes.items())))


async def look_at(host: Host, nodes: Mapping[StorageId, str], look_s: float) -> dict[StorageId, PolonaiseError | None]:
    """Ask each of these storage nodes whether it belongs to a cluster.

    Returns by name None for one that does not, `WrongClusterKey` for one that does, and else why it is not known.
    """
    turns = asyncio.Semaphore(_ASKED_MAX)

    async def ask(address: str) -> PolonaiseError | None:
        async with turns:
            return await _look(host, address, look_s)

    answers = await asyncio.gather(*map(ask, nodes.values()))
    return dict(zip(nodes, answers, strict=True))


async def _look(host: Host, address: str, look_s: float) -> PolonaiseError | None:
    answer = await _look_as(ROLE_OPERATOR, host, address, look_s)
    # With TLS an operator has a client's certificate, and a server its own.
    if isinstance(answer, CertificateRefused):
        answer = await _look_as(ROLE_SERVER, host, address, look_s)
    return answer


async def _look_as(role: int, host: Host, address: str, look_s: float) -> PolonaiseError | None:
    try:
        connection = await _connected(role, host, address, look_s)
    except PolonaiseError as error:
        return error
    key = connection.peer.cluster_key
    connection.close()
    return None if key == ANY_CLUSTER else fresh(WrongClusterKey("it belongs to a cluster"))


async def _connected(role: int, host: Host, address: str, look_s: float) -> Connection:
    # Without a key of its own: a node that has a cluster refuses whoever does not name it, and a new one does not.
    greeting = hello(role, "operator", cluster_key=ANY_CLUSTER)

    def make() -> Connection:
        return Connection(host, hello=greeting, peer_roles=(ROLE_STORAGE,), on_message=_refuse_unasked)

    return await connect(host, address, make, deadline_s=look_s)


def _refuse_unasked(_: Connection, message: object, request: int, partition: int) -> None:
    raise ProtocolError(f"a storage node sent {type(message).__name__} to somebody who did not ask for it")


_log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.1
_LOOK_S: Final = 1.0
_UNREACHABLE_LOOKS: Final = 10
"""So many looks in a row may find that nobody can connect before the node ends, for others to take over."""

Ready = Callable[[str], None]
"""Called once, with the node's address, when the node serves."""


def history_in(fragments: str | None) -> Callable[[bytes], ArchivedHistory] | None:
    """Return a function that opens the history in a fragment store; without one its libraries are not needed."""
    if fragments is None:
        return None
    try:
        from polonaise.fragments.history import open_history
    except ImportError as error:
        raise ExtraMissing(f"fragments need {error.name}: pip install 'polonaise[fragments]'") from error

    return lambda cluster_key: open_history(fragments, cluster_key)


async def give_store(fragments: str, cluster_key: bytes) -> None:
    """Make and mark the fragment store of a log that had none; from now on the store has to exist.

    Raises `BadOption`, `AccessDenied`, `ExtraMissing`, and what `fragments.mark.claim` raises.
    """
    store = _open(fragments)
    from polonaise.fragments.mark import claim

    await claim(store, cluster_key)


def _open(fragments: str) -> ObjectStore:
    history_in(fragments)  # raises, by name, if the extra is missing
    from polonaise.fragments.store import open_store

    return open_store(fragments)


async def _until_cancelled(host: Host) -> None:
    """Wait until the host cancels this; raise `address_gone` once nobody could connect for long."""
    looks = 0
    while looks < _UNREACHABLE_LOOKS:
        await asyncio.sleep(_LOOK_S)
        looks = looks + 1 if unreachable(host.network) else 0
    raise fault(
        "address_gone",
        f"this node ends, so that others can take over and it can be started again: {unreachable(host.network)}",
    )


class Http(NamedTuple):
    """Where a node serves `/live`, `/ready`, `/health` and `/metrics`."""

    listen: str
    listening: Ready
    """Called once with the address, when the node serves."""


@asynccontextmanager
async def serving_its_health(
    host: Host, http: Http | None, observe: Callable[[], ObservedNode]
) -> AsyncIterator[Callable[[], None]]:
    """Serve a node's health and metrics during the `async with` block, if that is wished (`check_http` first).

    The block gets a function to call when the node serves. HTTP is there before: an address in use is told before
    anything is made, and a node that takes long to start says so.
    """
    if http is None:
        yield lambda: None
        return
    from polonaise.node.monitoring.running import serving_http

    async with serving_http(host, http.listen, observe()) as address:
        yield lambda: http.listening(address)


def check_http(http: Http | None) -> None:
    """Raise `ExtraMissing` if HTTP is wished and its libraries are missing, `BadOption` for a wrong address."""
    if http is None:
        return
    parse_address(http.listen)
    try:
        from polonaise.node.monitoring import running as running
    except ImportError as error:
        raise ExtraMissing(f"--http needs {error.name}: pip install 'polonaise[metrics]'") from error


async def run_storage(host: Host, settings: StorageSettings, ready: Ready, http: Http | None = None) -> None:
    """Run a storage node until cancelled. Raises what `StorageNode.start` and listening for `http` raise."""
    check_http(http)
    node = StorageNode(host, settings)

    def observed() -> ObservedNode:
        from polonaise.node.monitoring.face import ObservedStorage

        return ObservedStorage(node, host, settings.directory)

    async with serving_its_health(host, http, observed) as serves:
        await node.start()
        try:
            ready(node.address)
            serves()
            await _until_cancelled(host)
        finally:
            await node.close()


async def cluster_at(
    coordinator: Coordinator, nodes: Mapping[StorageId, str], partitions: int, fragments: str | None = None
) -> ClusterDescription:
    """Return the description of the cluster; make one of these storage nodes and partitions if there is none.

    `nodes` has the storage nodes' addresses by name, in order; `fragments`, a new cluster's store, is marked as its
    own. Raises what the coordinator, opening and marking the store raise.
    """
    try:
        return await coordinator.describe()
    except NotInitialized:
        pass
    # Opened first: a cluster whose store can't be opened is not to be made.
    store = None if fragments is None else _open(fragments)
    description = ClusterDescription.new(secrets.token_bytes(16), partitions, nodes)
    try:
        await coordinator.initialize(description)
    except AlreadyInitialized:  # another server was faster
        return await coordinator.describe()
    if store is not None:
        from polonaise.fragments.mark import put_mark

        await put_mark(store, description.key)
    return description


async def create_cluster(
    host: Host,
    coordinator: Coordinator,
    nodes: Mapping[StorageId, str],
    partitions: int,
    fragments: str | None = None,
    look_s: float = LOOK_S,
) -> ClusterDescription:
    """Make a cluster of these storage nodes, which all have to answer and to hold nothing; return its description.

    `nodes` has their addresses by name, in order; those that were just started get `look_s` seconds until they listen.
    `fragments` is the address of the fragment store, which is marked as the cluster's. Raises `AlreadyInitialized`,
    `CoordinatorLost` if a storage node holds a cluster's data, `ConnectionLost` if one does not answer, and what the
    coordinator and the store raise. Nothing is made then.
    """
    try:
        await coordinator.describe()
    except NotInitialized:
        pass
    else:
        raise AlreadyInitialized(f"{coordinator} holds a cluster: use it, or choose another place")
    until_s = host.clock.monotonic_s() + look_s
    found = await look_at(host, nodes, look_s)
    while (not_yet := [name for name, error in found.items() if isinstance(error, ConnectionLost)]) and (
        left_s := until_s - host.clock.monotonic_s()
    ) > 0:
        await asyncio.sleep(_AGAIN_S)
        found |= await look_at(host, {name: nodes[name] for name in not_yet}, left_s)
    if holding := [name for name, error in found.items() if isinstance(error, WrongClusterKey)]:
        raise lost(coordinator, await by_own_names(host, {name: nodes[name] for name in holding}, look_s))
    if away := {name: error for name, error in found.items() if error is not None}:
        raise ConnectionLost(
            f"no cluster was made, because it is not known whether these storage nodes hold another one's data: "
            f"{'; '.join(f'{name}: {error}' for name, error in away.items())}. Start them, or correct their addresses"
        )
    return await cluster_at(coordinator, nodes, partitions, fragments)


def check_storage_nodes(description: ClusterDescription, nodes: Mapping[StorageId, str]) -> None:
    """Raise `BadOption` if the storage nodes that a server was told of are not those of its cluster.

    A node is found by its name, or else by its address. One with another address is only warned of: it has moved, or is
    yet to be moved, and a server that did not start for that would be missing. Nor is a list refused that is older than
    nodes that were added or removed, as long as it has one of the cluster's.
    """
    names = {address: name for name, address in description.nodes.items()}
    names |= {name: name for name in description.storage}
    known = [names.get(name, names.get(address)) for name, address in nodes.items()]
    twice = len({*known} - {None}) < len(known) - known.count(None)
    others = None in known or len(known) != len(description.storage)
    if twice or not {*known} - {None} or (others and description.copies is None):
        raise BadOption(
            f"this cluster's storage nodes are {_listed(description.nodes)}, but --storage has {_listed(nodes)}: leave "
            "--storage out. A node that is reached at another address now is told so with `polonaise storage move NAME "
            "HOST:PORT`"
        )
    if others:
        _log.warning(
            "--storage has %s, and this cluster's storage nodes are %s by now, which count: correct --storage, or "
            "leave it out", _listed(nodes), _listed(description.nodes),
        )  # fmt: skip
    for name, address in nodes.items():
        present = description.nodes.get(name, address)
        if present != address:
            _log.warning(
                "--storage has %s for storage node %s, whose address in the cluster's description is %s, and that "
                "counts: correct --storage or leave it out, or tell the cluster with polonaise storage move %s %s",
                address, name, present, name, address,
            )  # fmt: skip


def _listed(nodes: Mapping[StorageId, str]) -> str:
    return ", ".join(name if name == address else f"{name}={address}" for name, address in nodes.items())


def check_server_address(listen: str) -> None:
    """Raise `BadOption` for a text that is no address, and for one that stands for every interface: clients are sent to
    the address that a server registers.
    """
    if is_every_interface(parse_address(listen)):
        raise BadOption(
            f"a server can't listen at {listen}: it tells clients the address at which it listens, and that is none "
            "that they could connect to. Give the address under which they reach it (--listen HOST:PORT)"
        )


async def run_server(
    host: Host,
    coordinator_address: str,
    nodes: Mapping[StorageId, str],
    partitions: int | None,
    settings: ServerSettings,
    ready: Ready,
    fragments: str | None = None,
    http: Http | None = None,
    tls: TlsIdentity | None = None,
) -> None:
    """Run a server of a cluster that exists, until cancelled.

    `nodes` has the storage nodes' addresses by name: they are compared with the cluster's description, and asked what
    they hold if the coordinator has none. `fragments` is the address of the fragment store; `tls` is the host's
    identity, for ZooKeeper. Raises `BadOption` for options that are invalid, or that contradict the existing cluster;
    `NotInitialized` if there is none, or `CoordinatorLost` if the storage nodes hold the data of one; `ExtraMissing`
    without a library; and what listening, the coordinator and the fragment store raise.
    """
    check_http(http)
    check_server_address(settings.listen)
    coordinator = coordinator_at(host, coordinator_address, tls)
    settings = _named(settings)
    server: AnyServer = StartingServer(host, coordinator, settings)

    def observed() -> ObservedNode:
        from polonaise.node.monitoring.face import ObservedServer

        return ObservedServer(lambda: server, host.clock)

    async with serving_its_health(host, http, observed) as serves:
        await _check_cluster(host, coordinator, nodes, partitions)
        server = running = await Server.start(host, coordinator, settings, history_in(fragments))
        try:
            ready(running.address)
            serves()
            await _until_cancelled(host)
        finally:
            await running.close()
            # Last, because the server leaves the cluster through it.
            await coordinator.close()


def _named(settings: ServerSettings) -> ServerSettings:
    """Return the settings with a name: that of the address, unless one was given or the system chooses the port."""
    address = parse_address(settings.listen)
    lasts = not isinstance(address, HostPort) or address.port != 0
    return replace(settings, name=settings.name or (settings.listen if lasts else ""))


async def _check_cluster(
    host: Host, coordinator: Coordinator, nodes: Mapping[StorageId, str], partitions: int | None
) -> None:
    """Compare the cluster with what this server was told of it; none is made, for its data may have been lost."""
    try:
        description = await coordinator.describe()
    except NotInitialized:
        raise await why_none(host, coordinator, nodes) from None
    if partitions is not None and partitions != description.partitions:
        raise BadOption(
            f"this cluster was made with {counted(description.partitions, 'partition')}, for good: --partitions "
            f"{partitions} can't change that"
        )
    if nodes:
        check_storage_nodes(description, nodes)
