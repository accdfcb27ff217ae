"""Free the room that copies take on a storage node which gave them up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from polonaise.admin.asking import connected, health_on, not_named, values_of
from polonaise.admin.memberedits import MemberEdits
from polonaise.coordination.memberchanges import check_unneeded
from polonaise.errors import (
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
from polonaise.terms import NO_SESSION, PartitionId, StorageId
from polonaise.wire.messages import EMPTYING_VERSION, ROLE_SERVER, ROLE_STORAGE, CopyEmptied, EmptyCopy

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
    assert connection.peer is not None
    if connection.peer.version_max < EMPTYING_VERSION:
        raise UnsupportedVersion(f"storage node {name} is too old to empty copies: upgrade it, then repeat the command")
