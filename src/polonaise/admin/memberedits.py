"""Change which storage nodes hold a partition's copies: one step at a time, by compare-and-set, begun or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from polonaise.admin.asking import server_said
from polonaise.coordination import Coordinator
from polonaise.coordination.memberchanges import cancelled, with_copy, without_copy
from polonaise.coordination.values import Assignment, ClusterDescription, PartitionValue, Versioned
from polonaise.errors import CoordinatorUnavailable, PolonaiseError, UnknownStorageNode
from polonaise.server.coordinatortrouble import known_of_silence
from polonaise.terms import PartitionId, ServerId, StorageId

T = TypeVar("T")

_TRIES_MAX: Final = 20
"""How often a change is tried while the partition's owner, or other operators, change the same value."""
_AGAIN_S: Final = 0.2
"""The pause before the coordinator is asked again after it gave no answer, in seconds."""


class MemberEdits:
    """Asks for changes of partitions' members, and of the cluster's storage nodes.

    A change that is asked for is in the partition's value as `next`; the owner makes it. Everything here raises
    `CoordinatorUnavailable` when the coordinator gives no answer for `timeout_s` seconds, and a change also when others
    are faster each time. Only if the message says so may a change have been asked for then.
    """

    def __init__(self, coordinator: Coordinator, timeout_s: float) -> None:
        self._coordinator = coordinator
        self._timeout_s = timeout_s

    async def add_copy(self, partition: PartitionId, name: StorageId) -> PartitionValue:
        """Ask for one more copy of a partition, on the storage node `name`; return the partition's value.

        Raises what `with_copy` raises, with nothing changed, and `UnknownStorageNode` if the node is removed or drained
        meanwhile.
        """
        description = await self.description()
        value = await self._change(partition, lambda value: with_copy(value, description.value, name))
        # The node may have been drained or removed since it was read. Whoever does so marks it first and looks at the
        # partitions then, so one of the two sees the other.
        now = (await self.description()).value
        if name not in now.storage or name in now.draining:
            await self._change(
                partition, lambda value: cancelled(value) if value.next and name in value.next else value
            )
            raise UnknownStorageNode(f"storage node {name} was removed or drained meanwhile: choose another one")
        return value

    async def remove_copy(
        self, partition: PartitionId, name: StorageId, *, force: bool | None = None
    ) -> PartitionValue:
        """Ask for the copy on storage node `name` to be given up; return the new value. Raises as `without_copy`."""
        description = (await self.description()).value
        copies, required = description.replication_factor, description.requirements().get(partition)
        return await self._change(
            partition, lambda value: without_copy(value, name, copies, required=required, force=force)
        )

    async def cancel(self, partition: PartitionId) -> PartitionValue:
        """Take back the change that is pending, unless it has been made by now; return the partition's value."""
        return await self._change(partition, cancelled)

    async def partition(self, partition: PartitionId) -> PartitionValue:
        return (await self._bounded(lambda: self._coordinator.partition(partition))).value

    async def description(self) -> Versioned[ClusterDescription]:
        return await self._bounded(self._coordinator.description)

    async def may_change(self) -> None:
        """Raise `CoordinatorOutdated` while the cluster's nodes don't believe what the coordinator holds."""
        await self._coordinator.may_change()

    async def server_said(self, server: ServerId) -> str:
        return await server_said(self._coordinator, server, self._timeout_s)

    async def assignment(self) -> Assignment:
        return (await self._bounded(self._coordinator.assignment)).value

    async def describe(self, make: Callable[[ClusterDescription], ClusterDescription]) -> ClusterDescription:
        """Change the description by compare-and-set, and return it. `make` may be called again, and may raise."""
        return await self._compare_and_set(
            "the description of the cluster", self.description, self._coordinator.set_description, make
        )

    async def _change(self, partition: PartitionId, make: Callable[[PartitionValue], PartitionValue]) -> PartitionValue:
        async def read() -> Versioned[PartitionValue]:
            return await self._bounded(lambda: self._coordinator.partition(partition))

        async def write(value: PartitionValue, version: int) -> Versioned[PartitionValue] | None:
            return await self._coordinator.set_partition(partition, value, version)

        return await self._compare_and_set(f"partition {partition}", read, write, make)

    async def _compare_and_set(
        self,
        what: str,
        read: Callable[[], Awaitable[Versioned[T]]],
        write: Callable[[T, int], Awaitable[Versioned[T] | None]],
        make: Callable[[T], T],
    ) -> T:
        """Change a value, and return it as it is then. Of two operators one is first; the other one's `make` decides.

        If the answer to the write is lost, the value is read until it is known whether it was written.
        """
        wanted: T | None = None
        for _ in range(_TRIES_MAX):
            current = await read()
            if wanted is not None and current.value == wanted:
                return wanted
            try:
                value = make(current.value)
            except PolonaiseError:
                if wanted is not None and _has_begun(current.value, wanted):
                    return current.value  # ours: its answer was lost, and the owner has changed the value since
                raise
            if value == current.value:
                return value
            try:
                await self._coordinator.ask_first()
                async with asyncio.timeout(self._timeout_s):
                    written = await write(value, current.version)
            except (TimeoutError, CoordinatorUnavailable):
                wanted = value
                await asyncio.sleep(_AGAIN_S)
                continue
            if written is not None:
                return written.value
        raise CoordinatorUnavailable(
            f"{what} was changed by others {_TRIES_MAX} times meanwhile, or the answers were lost. The change may have "
            "been made or asked for: look (polonaise storage list, polonaise partition describe), then repeat the "
            "command"
        )

    async def _bounded(self, ask: Callable[[], Awaitable[T]]) -> T:
        error: CoordinatorUnavailable | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await ask()
                    except CoordinatorUnavailable as failed:
                        error = failed
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError as over:
            known = error.text if error else known_of_silence(over, self._coordinator)
            why = f": {known}" if known else ""
            raise CoordinatorUnavailable(
                f"the coordinator, {self._coordinator}, did not answer within {self._timeout_s:g} s{why}: correct its "
                "address or start it, then repeat the command. A change that was asked for just before may have been "
                "taken"
            ) from error


def _has_begun(value: object, wanted: object) -> bool:
    """Whether a partition's value asks for the change that `wanted` asks for, or has it made already."""
    if not isinstance(value, PartitionValue) or not isinstance(wanted, PartitionValue):
        return False
    return wanted.next in (value.members, value.next)
