"""Change a storage node's address in the cluster's description, by which servers find the node from then on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polonaise.admin.asking import ask_named, trouble_in
from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.storagenodes import copies_on
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import BadOption
from polonaise.host import Host
from polonaise.node.addresses import check_storage_address
from polonaise.redaction import redacted
from polonaise.terms import StorageId


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
    copies_missing: int = 0
    """How many copies the cluster has on the node, if the disk of the node that answers holds none at all; else 0."""

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
            "copies_missing": self.copies_missing,
        }


async def move_storage(
    host: Host, coordinator: Coordinator, name: StorageId, address: str, timeout_s: float
) -> StorageMove:
    """Change the address of a storage node in the cluster's description. The same address again changes nothing.

    The node at the new address is asked first: a server, and a storage node with another name or of another cluster, is
    refused. If nobody answers, the change is made all the same; and so it is for one whose disk is empty, since a lost
    disk is replaced like that, but the outcome tells how many copies are not on it. Each wait, for the coordinator or
    for the node, ends after `timeout_s` seconds.

    Raises, with nothing changed: `BadOption` for an address that is invalid or that another storage node has,
    `UnknownStorageNode`, `wrong_storage_node`, `WrongRole`, `WrongClusterKey`, and `NotInitialized` if the coordinator
    knows no cluster. Raises `CoordinatorUnavailable`, after which the change may have been made: the move may be
    repeated.
    """
    check_storage_address(address)
    edits = MemberEdits(coordinator, timeout_s)
    current = (await edits.description()).value
    before = _checked(current, name, address)
    told = await ask_named(host, name, address, current.key, timeout_s)
    missing = 0
    if isinstance(told, dict) and told.get("partitions") == 0:  # an older version does not tell it
        missing = len(await copies_on(edits, name, current.total))

    def moved(description: ClusterDescription) -> ClusterDescription:
        nonlocal before
        before = _checked(description, name, address)
        return description if before == address else description.moved(name, address)

    await edits.describe(moved)
    return StorageMove(name, before, address, trouble_in(told), missing)


def _checked(description: ClusterDescription, name: StorageId, address: str) -> str:
    """Return the present address of a storage node, after checking that it may be moved to `address`.

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
