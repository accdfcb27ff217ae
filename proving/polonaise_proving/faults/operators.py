"""Operators who change a cluster while clients work, and checks of what they bring about.

They add copies to partitions, or remove them; move storage nodes to other addresses, and tell the cluster in time,
late, twice, or wrongly; and require copies and zones of commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.requiring import require, set_zone
from polonaise.admin.storagenodes import Cleaned, clean_storage
from polonaise.coordination import Coordinator
from polonaise.coordination.memberchanges import in_sync
from polonaise.coordination.values import PartitionValue
from polonaise.errors import PolonaiseError
from polonaise.host import Host
from polonaise.terms import PartitionId, StorageId
from polonaise_proving.judges.moments import left_in_sync, members_as_asked, needed_copies
from polonaise_proving.record.observations import History
from polonaise_proving.stages.simulated.cluster import Cluster, Node
from polonaise_proving.stages.simulated.process import Process

_LOOK_S: Final = 0.05
_TIMEOUT_S: Final = 1.0
"""Virtual seconds that an operator's command waits for each answer, and for partitions to follow."""
_CLEANED_SHARE: Final = 0.7
"""Among the schedules with changes of members, the share of those in which nodes are cleaned of copies they gave up."""
_CLEAN_S: Final = 2.0
"""Virtual seconds that a node gets to empty a copy."""
_PORT: Final = 9100
"""The port below those that storage nodes move to: each move takes the next one."""
_AGAIN_S: Final = 0.2
"""Virtual seconds between two tries to tell the cluster something."""

_Deed = Callable[["StorageMoves", Coordinator, Coordinator, Node], Awaitable[None]]


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
            self._cluster.world.faults.count("members_changed")
            self._history.violations.extend(members_as_asked(partition, old, new, in_sync(new)))
        if new.next is None or old.next is not None or len(new.next) > len(new.members):
            return
        (gone,) = {*new.members} - {*new.next}
        copies = len(self._cluster.description.storage)
        left = [name for name in in_sync(new) if name != gone]
        insisted = (partition, gone) in self._forced
        self._history.violations.extend(left_in_sync(partition, gone, left, 1 if insisted else copies))


class StorageMoves:
    """The operator of a cluster whose storage nodes move: a process with two ways to the coordinator.

    The second one stands for another operator, who edits the description at the same time.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._random: random.Random = cluster.world.random("operator")
        self._port = _PORT
        self._moving: dict[str, Process | None] = {}
        """By name of a node that was given another address: its process then, which listens at the one before."""
        self.resting = False
        """Whether nothing is to be moved any more. The operator then corrects all addresses in the description."""
        # Without given names, a wiped disk would take its name from the first server that reaches it, at an address
        # that may be wrong; to mend that, an operator would have to wipe it again, besides the disks that faults spoil.
        cluster.named_nodes = True

    async def run(self, node: Node, host: Host) -> None:
        """Move storage nodes until `resting` is set; then tell the cluster where each of them is."""
        one, another = self._cluster.coordinator(node, host), self._cluster.coordinator(node, host)
        pause_s = self._random.choice((0.2, 0.6, 1.5))
        while not self.resting:
            await asyncio.sleep(pause_s * (0.5 + self._random.random()))
            deed = self._random.choice(_DEEDS)
            with contextlib.suppress(PolonaiseError):
                await deed(self, one, another, self._random.choice(self._cluster.storage))
        for each in self._cluster.storage:
            # It goes on where it was if the operator was not answered, or died, after telling the cluster ahead.
            if each.process is not None and each.process is self._moving.get(each.name):
                each.crash()
            await self._tell_until_told(one, each)
        await asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------ deeds

    async def move(self, one: Coordinator, another: Coordinator, node: Node) -> None:
        """Start a node at another address, and tell the cluster before, after, or twice at the same time."""
        if self._random.random() < 0.3:
            await self._tell(one, node, self._new_place(node))
            await asyncio.sleep(self._random.choice((0.0, 0.3)))
            node.crash()
            return
        place = self._new_place(node)
        node.crash()
        await asyncio.sleep(self._random.choice((0.0, 0.2, 1.5)))
        if self._random.random() < 0.5:
            await self._tell(one, node, place)
        else:
            await asyncio.gather(self._tell(one, node, place), self._tell(another, node, place))

    async def take_for_another(self, one: Coordinator, another: Coordinator, node: Node) -> None:
        """Tell the cluster that a node is where another one is; after a while, tell the truth."""
        others = [each for each in self._cluster.storage if each is not node]
        if not others:
            return
        self._cluster.world.faults.count("wrong_address")
        await self._tell(one, node, self._cluster.places[self._random.choice(others).name])
        node.crash()  # servers look at an address only to connect, so make them connect
        await asyncio.sleep(self._random.choice((0.3, 1.0, 3.0)))
        await self._tell_until_told(one, node)

    async def exchange(self, one: Coordinator, another: Coordinator, node: Node) -> None:
        """Tell the cluster, as two operators, that two nodes have exchanged their addresses; later, the truth."""
        others = [each for each in self._cluster.storage if each is not node]
        if not others:
            return
        other = self._random.choice(others)
        self._cluster.world.faults.count("wrong_address")
        places = self._cluster.places
        await asyncio.gather(
            self._tell(one, node, places[other.name]),
            self._tell(another, other, places[node.name]),
        )
        self._random.choice((node, other)).crash()
        await asyncio.sleep(self._random.choice((0.3, 1.0, 3.0)))
        await self._tell_until_told(one, node)
        await self._tell_until_told(one, other)

    # ------------------------------------------------------------------ what an operator does

    def _new_place(self, node: Node) -> str:
        """Have a node listen at an address that nobody has had, from its next start on; return the address."""
        self._port += 1
        self._cluster.world.faults.count("storage_moved")
        self._cluster.places[node.name] = f"{node.name}:{self._port}"
        self._moving[node.name] = node.process
        return self._cluster.places[node.name]

    async def _tell(self, coordinator: Coordinator, node: Node, address: str) -> None:
        """Tell the cluster where a node is, by compare-and-set. Raises what the coordinator raises."""
        name: StorageId = self._cluster.storage_id(node)
        while True:
            current = await coordinator.description()
            if await coordinator.set_description(current.value.moved(name, address), current.version) is not None:
                return

    async def _tell_until_told(self, coordinator: Coordinator, node: Node) -> None:
        """Tell the cluster where a node really is, until the coordinator has taken it."""
        while True:
            try:
                await self._tell(coordinator, node, self._cluster.places[node.name])
            except PolonaiseError:
                await asyncio.sleep(_AGAIN_S)
            else:
                return


_DEEDS: Final[tuple[_Deed, ...]] = (
    StorageMoves.move,
    StorageMoves.move,
    StorageMoves.take_for_another,
    StorageMoves.exchange,
)


class RequirementChanges:
    """The operator who changes the requirement of a cluster with several storage nodes, and the check that it holds."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._random: random.Random = cluster.world.random("requirement")
        self.resting = False
        """Whether nothing is to be required any more. The operator then takes the requirement back."""
        self.taken_back = False
        """Whether every partition has a session without a requirement again."""

    async def run(self, node: Node, host: Host) -> None:
        """Require more and less until `resting` is set; then take the requirement back."""
        coordinator = self._cluster.coordinator(node, host)
        nodes = len(self._cluster.storage)
        pause_s = self._random.choice((0.1, 0.3, 0.8))
        zones = ("north", "south", "")
        while not self.resting:
            await asyncio.sleep(pause_s * (0.5 + self._random.random()))
            with contextlib.suppress(PolonaiseError):
                if self._random.random() < 0.3:
                    name = self._cluster.storage_id(self._random.choice(self._cluster.storage))
                    await set_zone(host, coordinator, name, self._random.choice(zones), _TIMEOUT_S)
                    continue
                copies = self._random.choice((0, nodes // 2 + 1, nodes, nodes))
                if self._random.random() < 0.5:
                    await self._require_blindly(coordinator, copies)
                else:
                    await require(host, coordinator, copies, self._random.choice((0, 0, 1, 2)), _TIMEOUT_S)
                self._cluster.world.faults.count("requirement_changed")
        while not self.taken_back:
            with contextlib.suppress(PolonaiseError):
                self.taken_back = not (await require(host, coordinator, 0, 0, _TIMEOUT_S)).waiting
            await asyncio.sleep(_AGAIN_S)
        await asyncio.get_running_loop().create_future()

    async def _require_blindly(self, coordinator: Coordinator, copies: int) -> None:
        """Write a requirement of copies without the command's look at who is there, as if nodes went down after it.

        Without a requirement of zones: with one that no zones can meet, nothing would be committed until it is changed.
        """
        current = await coordinator.description()
        await coordinator.set_description(current.value.requiring(copies, 0), current.version)

    def check(self, partition: PartitionId, spoilt: Collection[str]) -> None:
        """Check that what applications were told as committed is durable on the replicas that commits needed.

        To be called at the moment when one is told so: the other replicas catch up soon after.

        An engaged replica has everything that was committed before its session, and so what a requirement demands of a
        session holds for all that is told while it lasts. A spoilt disk may have held it, and counts as holding it.
        """
        told, value = self._history.told[partition], self._cluster.partition_value(partition)
        if value.required is None:
            return
        engaged = self._engaged(value)
        holding = [
            name for name, node in engaged.items() if node.name in spoilt or node.durable_last(partition) >= told
        ]
        lack = value.required.lack_of(holding)
        self._history.violations.extend(needed_copies(partition, told, lack, engaged, holding))

    def _engaged(self, value: PartitionValue) -> dict[str, Node]:
        engaged = {name for name, each in value.engagements.items() if each.unresolved}
        nodes = (*self._cluster.storage, *self._cluster.spares)
        return {name: node for node in nodes if (name := self._cluster.storage_id(node)) in engaged}
