"""Change the members of partitions while clients work, as operators do: one copy more, or one less."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.storagenodes import Cleaned, clean_storage
from polonaise.coordination.memberchanges import in_sync
from polonaise.coordination.values import PartitionValue
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.terms import PartitionId, StorageId
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import Cluster, Node

_LOOK_S: Final = 0.05
_TIMEOUT_S: Final = 1.0
"""Virtual seconds in which the coordinator has to answer a step of an edit, and a node to be cleaned, at all."""
_CLEANED_SHARE: Final = 0.7
"""Among the schedules with changes of members, the share of those in which nodes are cleaned of copies they gave up."""
_CLEAN_S: Final = 2.0
"""Virtual seconds that a node gets to empty a copy."""
_PROMISE: Final = "P1 durability"


class MemberChanges:
    """The operators of a cluster that has more storage nodes than copies, and the check of what they bring about.

    They add copies, remove them while enough others are in sync, take changes back, and have nodes empty the copies
    that they gave up, which may be given to them again at the same moment. By `force` they remove one
    while others are late, too, but only where the partition has as many members as it is to have, or more. In the end
    each partition has its first members again, whose disks the checkers look at.
    """

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._random: random.Random = cluster.world.random("members changing")
        self._spares = [cluster.storage_id(node) for node in cluster.spares]
        self._names = [*cluster.description.storage, *self._spares]
        self._forced: set[tuple[PartitionId, StorageId]] = set()
        """The copies that were ever to be removed by `force`: the check asks less of their removals."""
        emptying = cluster.world.random("copies emptied")
        self._emptying = emptying if emptying.random() < _CLEANED_SHARE else None
        """What is drawn from to choose nodes to be cleaned; None in schedules without that."""
        self.resting = False
        """Whether nothing is to be changed any more. The operators then bring back the first members."""
        cluster.named_nodes = True  # as an operator names a node that is to be added (`storage run --name`)
        cluster.partition_checks.append(self._written)

    async def run(self, node: Node, host: Host) -> None:
        """Change members until `resting` is set; then bring back the first ones."""
        one, another, third = (MemberEdits(self._cluster.coordinator(node, host), _TIMEOUT_S) for _ in range(3))
        pause_s = self._random.choice((0.1, 0.4, 1.0))
        while not self.resting:
            await asyncio.sleep(pause_s * (0.5 + self._random.random()))
            partition = self._random.randrange(self._cluster.knobs.partitions)
            with contextlib.suppress(PolonaiseError):
                for name in self._spares:
                    await one.describe(lambda description, name=name: description.with_node(name, name))  # type: ignore[misc]
                # Two at the same time, now and then: the second one is refused, or does another step.
                await asyncio.gather(
                    self._deed(one, partition),
                    *([self._deed(another, partition)] if self._random.random() < 0.3 else []),
                    *([self._clean_some(host, third, self._emptying)] if self._emptying is not None else []),
                )
        await self._bring_back(one)
        if self._emptying is not None:
            for name in self._names:
                await self._clean(host, third, name)
        await asyncio.get_running_loop().create_future()

    async def _deed(self, edits: MemberEdits, partition: PartitionId) -> None:
        """Change the members of a partition by one step: cancel a change that is under way, add a copy or remove one.

        A removal is forced only where the partition has as many members as it is to have, or more.
        """
        value = await edits.partition(partition)
        copies = len(self._cluster.description.storage)  # as described first: without the spares
        if value.next is not None:
            # Most often the owner gets the time that it needs.
            if self._random.random() < 0.2:
                self._cluster.world.faults.count("change_cancelled")
                await edits.cancel(partition)
            return
        name = self._random.choice(self._names)
        if name not in value.members:
            await edits.add_copy(partition, name)
            self._cluster.world.faults.count("copy_added")
            return
        force = len(value.members) >= copies > 1 and self._random.random() < 0.3
        if force:
            self._forced.add((partition, name))
        await edits.remove_copy(partition, name, force=force)
        self._cluster.world.faults.count("copy_removed")

    async def _clean_some(self, host: Host, edits: MemberEdits, chance: random.Random) -> None:
        """Have some node cleaned while members are being changed."""
        await asyncio.sleep(chance.choice((0.0, 0.02, 0.1)))
        await self._clean(host, edits, chance.choice(self._names))

    async def _clean(self, host: Host, edits: MemberEdits, name: StorageId) -> None:
        """Have a node empty the copies that it gave up, if it answers."""
        with contextlib.suppress(PolonaiseError):
            await clean_storage(host, edits, name, _TIMEOUT_S, _CLEAN_S, self._cleaned)

    def _cleaned(self, cleaned: Cleaned) -> None:
        faults = self._cluster.world.faults
        faults.count("copy_kept" if cleaned.trouble else "copy_emptied" if cleaned.bytes else "copy_empty_already")

    async def _bring_back(self, edits: MemberEdits) -> None:
        """Take steps towards the first members until none is left."""
        back = False
        while not back:
            await asyncio.sleep(_LOOK_S)
            back = await self._step_back(edits)

    async def _step_back(self, edits: MemberEdits) -> bool:
        """Take the next step towards the first members; return whether there is none left."""
        done = True
        with contextlib.suppress(PolonaiseError):
            for partition in range(self._cluster.knobs.partitions):
                value, first = await edits.partition(partition), self._cluster.description.storage
                missing = [name for name in first if name not in (value.next or value.members)]
                extra = [name for name in value.members if name not in first]
                if value.next is not None and any(n not in first and n not in value.members for n in value.next):
                    await edits.cancel(partition)
                elif value.next is None and missing:
                    await edits.add_copy(partition, missing[0])
                elif value.next is None and extra:
                    await edits.remove_copy(partition, extra[0])
                done = done and value.next is None and not missing and not extra
            return done
        return False

    # ------------------------------------------------------------------ the check

    def _written(self, partition: PartitionId, old: PartitionValue, new: PartitionValue) -> None:
        """Check each change of a partition's value: members become those that were asked for, and no needed copy goes.

        A copy is needed if without it fewer copies are in sync than the partition is to have or, where it is to be
        removed by `force`, if without it none is.
        """
        if old.members != new.members:
            self._members_changed(partition, old, new)
        if new.next is None or old.next is not None or len(new.next) > len(new.members):
            return
        (gone,) = {*new.members} - {*new.next}
        copies = len(self._cluster.description.storage)
        left = [name for name in in_sync(new) if name != gone]
        insisted = (partition, gone) in self._forced
        if len(left) < (1 if insisted else copies):
            seen = f"partition {partition} to give up {gone}, with {left} in sync"
            self._history.violated(_PROMISE, f"{copies} copies in sync without the one that is removed", seen)

    def _members_changed(self, partition: PartitionId, old: PartitionValue, new: PartitionValue) -> None:
        self._cluster.world.faults.count("members_changed")
        added = {*new.members} - {*old.members}
        engaged = in_sync(new)
        expected = f"the members {old.next} that were asked for, most of them and those added engaged"
        if new.members != old.next or not added <= {*engaged} or 2 * len(engaged) <= len(new.members):
            seen = f"partition {partition} with {new.members}, engaged {engaged}, after {old.members}"
            self._history.violated(_PROMISE, expected, seen)
