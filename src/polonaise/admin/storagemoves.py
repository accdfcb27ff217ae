"""Change a storage node's address in the cluster's description, by which servers find the node from then on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from polonaise.admin.asking import ask_health, not_named
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import BadOption, CoordinatorUnavailable, WrongClusterKey
from polonaise.host import Host
from polonaise.node.addresses import check_storage_address
from polonaise.redaction import redacted
from polonaise.terms import StorageId
from polonaise.wire.messages import ROLE_STORAGE

_TRIES_MAX: Final = 10
"""How often the change is tried while others change the description at the same time."""


@dataclass(frozen=True, slots=True)
class StorageMove:
    """The outcome of moving a storage node to another address."""

    name: StorageId
    before: str
    """The address that the description had before."""
    after: str
    """The address that the description has now."""
    trouble: str
    """Why the node was not found at its address, where it may be started later; empty if it answers there."""

    @property
    def changed(self) -> bool:
        """Whether the description was changed."""
        return self.before != self.after

    def document(self) -> dict[str, Any]:
        """Return the outcome as a JSON-ready document."""
        return {
            "name": self.name,
            "before": self.before,
            "address": self.after,
            "changed": self.changed,
            "trouble": self.trouble,
        }


async def move_storage(
    host: Host, coordinator: Coordinator, name: StorageId, address: str, timeout_s: float
) -> StorageMove:
    """Change the address of a storage node in the cluster's description. The same address again changes nothing.

    The node at the new address is asked first: one with another name or of another cluster is refused. If nobody
    answers, the change is made all the same. Each wait, for the coordinator or for the node, ends after `timeout_s`
    seconds.

    Raises, with nothing changed: `BadOption` for an address that is invalid or that another storage node has,
    `UnknownStorageNode`, `WrongStorageNode`, `WrongClusterKey`, and `NotInitialized` if the coordinator knows no
    cluster. Raises `CoordinatorUnavailable`, after which the change may have been made: the move may be repeated.
    """
    check_storage_address(address)
    for _ in range(_TRIES_MAX):
        try:
            moved = await _try(host, coordinator, name, address, timeout_s)
        except TimeoutError:
            raise CoordinatorUnavailable(
                f"the coordinator did not answer within {timeout_s:g} s. The change may have been made: correct the "
                "coordinator's address or start it, then repeat the command"
            ) from None
        if moved is not None:
            return moved
    raise CoordinatorUnavailable(
        f"the description of the cluster was changed by others {_TRIES_MAX} times meanwhile, and not by this command: "
        "look who does so, then repeat it"
    )


async def _try(
    host: Host, coordinator: Coordinator, name: StorageId, address: str, timeout_s: float
) -> StorageMove | None:
    """Try the move once; return None if others changed the description meanwhile. Also raises `TimeoutError`."""
    async with asyncio.timeout(timeout_s):
        current = await coordinator.description()
    before = check_move(current.value, name, address)
    told = await ask_health(host, address, ROLE_STORAGE, current.value.key, timeout_s)
    if isinstance(told, WrongClusterKey):
        raise told
    if (other := not_named(name, address, told)) is not None:
        raise other
    if before != address:
        async with asyncio.timeout(timeout_s):
            if await coordinator.set_description(current.value.moved(name, address), current.version) is None:
                return None
    return StorageMove(name, before, address, "" if isinstance(told, dict) else str(told))


def check_move(description: ClusterDescription, name: StorageId, address: str) -> str:
    """Check that a storage node may be moved to `address`, and return its present address.

    Raises `UnknownStorageNode`, and `BadOption` if another node has that address.
    """
    description.check_known(name)
    nodes = description.nodes
    for other, taken in nodes.items():
        if other != name and taken == address:
            raise BadOption(
                f"{redacted(address)} is the address of storage node {other}: move that one first. To exchange the "
                "addresses of two nodes, first move one of them to an address that nobody has"
            )
    return nodes[name]
