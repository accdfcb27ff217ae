"""Tells a coordinator that nobody has made a cluster at from one that has lost its data, by asking the storage nodes: a
new cluster in the place of a lost one would have servers refuse what may be the only copy of the log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from typing import Final

from polonaise.coordination import Coordinator
from polonaise.errors import (
    CertificateRefused,
    CoordinatorLost,
    NotInitialized,
    PolonaiseError,
    ProtocolError,
    WrongClusterKey,
    fresh,
)
from polonaise.host import Host
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import ANY_CLUSTER, hello
from polonaise.terms import StorageId
from polonaise.wire.messages import ROLE_OPERATOR, ROLE_SERVER, ROLE_STORAGE, NotedAre, TellNoted

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
    assert connection.peer is not None
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
