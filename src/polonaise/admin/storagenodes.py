"""Add storage nodes to a running cluster, take away those that hold no copies, and free what given-up copies took."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from polonaise.admin.asking import ask_named, connected, health_on, not_named, trouble_in, values_of
from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.requiring import check_zone
from polonaise.coordination import Coordinator
from polonaise.coordination.memberchanges import check_unneeded
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import (
    BadOption,
    ChangePending,
    ConnectionLost,
    CopyNeeded,
    DeadlineExceeded,
    Fenced,
    PolonaiseError,
    UnknownPartition,
    UnsupportedVersion,
)
from polonaise.host import Host
from polonaise.link.connection import Connection
from polonaise.node.addresses import check_storage_address, check_storage_name
from polonaise.redaction import redacted
from polonaise.terms import NO_SESSION, PartitionId, StorageId, counted
from polonaise.wire.messages import EMPTYING_VERSION, ROLE_SERVER, ROLE_STORAGE, CopyEmptied, EmptyCopy


@dataclass(frozen=True, slots=True)
class StorageAdded:
    """The outcome of adding a storage node."""

    name: StorageId
    address: str
    changed: bool
    """Whether the description was changed: not if the node was one of the cluster's, and was not being drained."""
    trouble: str
    """Why the node was not found there, where it may be started later; empty if it answers."""

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "address": self.address, "changed": self.changed, "trouble": self.trouble}


async def add_storage(
    host: Host, edits: MemberEdits, name: StorageId, address: str, zone: str, timeout_s: float
) -> StorageAdded:
    """Add a storage node to the cluster's description; from then on it may be given copies. It has none yet.

    A node that is being drained is used again. The node is asked first: a server, and a storage node with another name
    or of another cluster, is refused, one that does not answer is not. Raises, with nothing changed, `BadOption` for a
    name, a zone or an address that is invalid or another node's, or if the node is one of the cluster's with another
    address or zone; `wrong_storage_node`, `WrongRole`, `WrongClusterKey`. Raises `CoordinatorUnavailable`, after which
    the command may be repeated.
    """
    check_storage_name(name)
    check_storage_address(address)
    check_zone(zone)
    before = (await edits.description()).value
    _check_new(before, name, address, zone)
    trouble = trouble_in(await ask_named(host, name, address, before.key, timeout_s))

    def added(description: ClusterDescription) -> ClusterDescription:
        _check_new(description, name, address, zone)
        return description.with_node(name, address, zone)

    after = await edits.describe(added)
    return StorageAdded(name, address, after != before, trouble)


def _check_new(description: ClusterDescription, name: StorageId, address: str, zone: str) -> None:
    """Raise `BadOption` for the address of another node, and for another address or zone of a node of the cluster."""
    present = description.zones.get(name, "")
    if name in description.storage and zone not in ("", present):
        # Not changed here: the commits of the cluster may need the zone that it has.
        raise BadOption(
            f"storage node {name} is one of the cluster's, in {f'zone {present}' if present else 'no zone'}: to tell "
            f"the cluster of another zone, use `polonaise storage zone {name} {zone}`"
        )
    for other, taken in description.nodes.items():
        if other == name and taken != address:
            raise BadOption(
                f"storage node {name} is one of the cluster's, at {taken}: to tell the cluster of another address, use "
                f"`polonaise storage move {name} HOST:PORT`"
            )
        if other != name and taken == address:
            raise BadOption(f"{redacted(address)} is the address of storage node {other}: give the new node its own")


async def remove_storage(edits: MemberEdits, name: StorageId) -> None:
    """Take a storage node that holds no copies out of the cluster's description. Its files stay on its disk.

    Raises, with nothing changed, `UnknownStorageNode`, and `CopyNeeded` if it holds copies or is to get one, or if too
    few nodes would be left. Raises `BadOption` if another operator uses the node again meanwhile.
    """
    before = (await edits.description()).value
    before.check_known(name)
    _refuse_held(name, await copies_on(edits, name, before.total))
    ours = False

    def marked(description: ClusterDescription) -> ClusterDescription:
        nonlocal ours
        after = description.drained(name)
        ours = after is not description
        if ours:
            check_enough_without(description, name)
        return after

    # Marked before the partitions are looked at again, so that no copy is given to it after that:
    # `MemberEdits.add_copy` looks at the mark when it has asked for one, and partitions that are added to a topic from
    # here on get none on it.
    after = await edits.describe(marked)
    held = await copies_on(edits, name, after.total)
    if held and ours:
        await edits.describe(lambda description: _unmarked(description, name))
    _refuse_held(name, held)

    def removed(description: ClusterDescription) -> ClusterDescription:
        check_marked(description, name)
        return description.without_node(name)

    await edits.describe(removed)


def check_enough_without(description: ClusterDescription, name: StorageId) -> None:
    """Raise `CopyNeeded` if fewer nodes than a partition has copies could be given any without this one."""
    left = [each for each in description.storage if each != name and each not in description.draining]
    if len(left) < description.replication_factor:
        others = [each for each in description.draining if each != name]
        drained = f", as {' and '.join(others)} {'is' if len(others) == 1 else 'are'} being drained" if others else ""
        raise CopyNeeded(
            f"without {name} the cluster has {counted(len(left), 'storage node')} ({', '.join(left)}) for "
            f"{counted(description.replication_factor, 'copy', 'copies')} of each partition{drained}: add another one "
            f"first (polonaise storage add NAME HOST:PORT{', which also ends a drain' if others else ''})"
        )


def check_marked(description: ClusterDescription, name: StorageId) -> None:
    """Raise `BadOption` unless this storage node is being drained, `UnknownStorageNode` if it is none any more."""
    description.check_known(name)
    if name not in description.draining:
        raise BadOption(
            f"storage node {name} is not being drained any more: another operator uses it again. Repeat the command if "
            "it is to give up its copies all the same"
        )


def _refuse_held(name: StorageId, held: list[PartitionId]) -> None:
    if held:
        more = f" and {len(held) - 5} more" if len(held) > 5 else ""
        raise CopyNeeded(
            f"storage node {name} holds, or is to get, copies of partitions {', '.join(map(str, held[:5]))}{more}: "
            f"drain it first (polonaise storage drain {name})"
        )


def _unmarked(description: ClusterDescription, name: StorageId) -> ClusterDescription:
    if name not in description.draining:
        return description
    return description.with_node(name, description.address_of(name))


async def copies_on(edits: MemberEdits, name: StorageId, partitions: int) -> list[PartitionId]:
    """Return the partitions of which this storage node has a copy, or is to get one."""
    values = await values_of(edits.partition, range(partitions))
    return [each for each, value in values.items() if name in value.members or name in (value.next or ())]


@dataclass(frozen=True, slots=True)
class StorageMove:
    """The outcome of moving a storage node to another address."""

    name: StorageId
    before: str
    """The address that the description had before."""
    after: str
    """The address that the description has now."""
    trouble: str
    """Why the node was not found there, where it may be started later; empty if it answers."""
    copies_missing: int = 0
    """How many copies the cluster has on the node, if the disk of the node that answers holds none at all; else 0."""

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def document(self) -> dict[str, Any]:
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
    refused. If nobody answers, the change is made all the same; and so it is for an empty disk, since a lost disk is
    replaced like that. Each wait ends after `timeout_s` seconds.

    Raises, with nothing changed: `BadOption` for an address that is invalid or that another storage node has,
    `UnknownStorageNode`, `wrong_storage_node`, `WrongRole`, `WrongClusterKey`, and `NotInitialized` if the coordinator
    knows no cluster. Raises `CoordinatorUnavailable`, after which the change may have been made and may be repeated.
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
    """Return the present address of a storage node, if it may be moved to `address`. Raises as `move_storage`."""
    description.check_known(name)
    nodes = description.nodes
    for other, taken in nodes.items():
        if other != name and taken == address:
            raise BadOption(
                f"{redacted(address)} is the address of storage node {other}: move that one first. To exchange the "
                "addresses of two nodes, first move one of them to an address that nobody has"
            )
    return nodes[name]


_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What became of one copy that a storage node still has, although it is no member of the partition any more."""

    partition: PartitionId
    bytes: int
    """The bytes that were freed; 0 if the copy was empty already or kept, or its fate is not known."""
    trouble: str
    """Why the copy was kept, or that its fate is not known; empty if it was emptied."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


async def clean_storage(
    host: Host, edits: MemberEdits, name: StorageId, timeout_s: float, step_s: float, report: Callable[[Cleaned], None]
) -> None:
    """Empty every copy on a storage node of which the node is no member any more, while the cluster goes on.

    `report` is told of each copy that was there. The node gets `timeout_s` seconds to answer at all, and `step_s` for
    each copy. Raises `UnknownStorageNode`, what keeps the node from answering, `wrong_storage_node`,
    `UnsupportedVersion` of a node that is too old, `CoordinatorUnavailable`, and `CoordinatorOutdated` while nodes
    don't believe the coordinator.
    """
    await edits.may_change()  # by an older copy's values, copies seem unneeded that are members by now
    description = (await edits.description()).value
    description.check_known(name)
    values = await values_of(edits.partition, range(description.total))
    others = [partition for partition, value in values.items() if name not in value.members]
    if not others:
        return
    address = description.address_of(name)
    # In the role of a server: no other may destroy what a node stores. With TLS that takes a server's certificate.
    async with connected(host, address, ROLE_STORAGE, ROLE_SERVER, description.key, timeout_s) as connection:
        await _check(connection, name, address, timeout_s)
        turns = asyncio.Semaphore(_AT_ONCE)

        async def clean(partition: PartitionId) -> None:
            async with turns:
                try:
                    freed = await empty_copy(connection, edits, partition, name, description.replication_factor, step_s)
                except UnknownPartition:
                    return  # it was never there
                except (ConnectionLost, DeadlineExceeded) as error:
                    report(Cleaned(partition, 0, f"it is not known whether it was emptied: {error}"))
                except PolonaiseError as error:
                    report(Cleaned(partition, 0, f"kept: {error}"))
                else:
                    report(Cleaned(partition, freed, ""))

        await asyncio.gather(*map(clean, others))


async def empty_copy(
    connection: Connection, edits: MemberEdits, partition: PartitionId, name: StorageId, copies: int, step_s: float
) -> int:
    """Have the storage node `name` empty its copy of a partition, unless it may be needed; return the bytes freed.

    Raises what `check_unneeded` raises, `UnknownPartition` if the partition was never there, and `Fenced` if the node
    has been told of a later session since the partition's value was read.
    """
    # Read for each copy anew, just before: the session in the value is the one in which the copy is not needed. Were it
    # made a member of a later one at this moment, then either that session finds it empty, and fills it, or the copy
    # has been told of that session, and refuses.
    value = await edits.partition(partition)
    try:
        check_unneeded(value, name, copies)
    except (CopyNeeded, ChangePending):
        # Is there a copy at all? No copy is emptied for this session, and one that was never there is told as that.
        with contextlib.suppress(Fenced):
            await connection.request(EmptyCopy(NO_SESSION), partition=partition, deadline_s=step_s)
        raise
    answer = await connection.request(EmptyCopy(value.session), partition=partition, deadline_s=step_s)
    if not isinstance(answer, CopyEmptied):
        raise CopyNeeded(f"{connection.peer_name} answered with {type(answer).__name__}: look at the copy")
    return answer.bytes


async def _check(connection: Connection, name: StorageId, address: str, timeout_s: float) -> None:
    if (other := not_named(name, address, await health_on(connection, timeout_s))) is not None:
        raise other
    if connection.peer.version_max < EMPTYING_VERSION:
        raise UnsupportedVersion(f"storage node {name} is too old to empty copies: upgrade it, then repeat the command")
