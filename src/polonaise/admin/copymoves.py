"""Move copies of partitions between storage nodes, a step at a time, and see each step through to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from polonaise.admin.asking import ask_health, values_of
from polonaise.admin.memberedits import MemberEdits
from polonaise.admin.storagenodes import check_enough_without, check_marked, copies_on
from polonaise.coordination.memberchanges import Move, balance
from polonaise.coordination.values import ClusterDescription, PartitionValue
from polonaise.errors import BadOption, ChangePending, CopyNeeded, DeadlineExceeded, UnknownStorageNode
from polonaise.host import Clock, Host
from polonaise.node.condition import condition_of, server_troubles
from polonaise.server.protocol.commit import losses_that_stop, zones_that_stop
from polonaise.terms import PartitionId, StorageId
from polonaise.wire.messages import ROLE_SERVER, ROLE_STORAGE

_AT_ONCE_MAX: Final = 8
_LOOK_S: Final = 0.2
_TELL_S: Final = 5.0

Report = Callable[[PartitionId | None, str], None]
"""What is called with a partition (None: the whole work) and a line on how far the work is."""


class _Standstill:
    """Tells when no partition's members have changed for the time of a step, whoever changes them."""

    def __init__(self, clock: Clock, step_s: float) -> None:
        self._clock = clock
        self._step_s = step_s
        self._until_s = clock.monotonic_s() + step_s
        self._seen: object = None

    def look(self, values: Mapping[PartitionId, PartitionValue]) -> None:
        seen = {partition: (value.members, value.next) for partition, value in values.items()}
        if seen != self._seen:
            self._seen = seen
            self._until_s = self._clock.monotonic_s() + self._step_s

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic_s() >= self._until_s


def _spreading(description: ClusterDescription, values: Mapping[PartitionId, PartitionValue]) -> list[Move]:
    """Return the moves that would spread the copies, once the pending changes are made."""
    return balance(description, {p: value.next or value.members for p, value in values.items()})


class CopyMoves:
    """Carries out moves of copies. All of it may be broken off and repeated: it goes on from where the values are.

    A copy is added, caught up with by the partition's owner, and only then is the other one removed. A step that is not
    made within `step_s` seconds raises `DeadlineExceeded`, with what it waits for, and stays asked for; one that
    another operator takes back, `BadOption`; one that may not even be asked for, `CopyNeeded` or `ChangePending`. What
    others have done is done, and is not waited for.
    """

    def __init__(self, host: Host, edits: MemberEdits, *, step_s: float, timeout_s: float, report: Report) -> None:
        self._host = host
        self._edits = edits
        self._step_s = step_s
        self._timeout_s = timeout_s
        self._report = report

    async def add(self, partition: PartitionId, name: StorageId) -> None:
        """Add a copy of a partition on a storage node, and wait until it is in sync. Raises what `add_copy` raises."""
        await self._change(partition, name, self._edits.add_copy(partition, name), member=True)

    async def remove(self, partition: PartitionId, name: StorageId, *, force: bool | None = None) -> None:
        """Remove the copy on a storage node, and wait until it is no member; `force` and errors as in `remove_copy`."""
        await self._change(partition, name, self._edits.remove_copy(partition, name, force=force), member=False)

    async def replace(self, partition: PartitionId, source: StorageId, target: StorageId) -> None:
        """Move a copy from one storage node to another. What was done of it before is not done again.

        Raises what `add` and `remove` raise, and `BadOption` if neither node has a copy, if both are the same, or if
        too few copies would be left without that on `source`.
        """
        if source == target:
            raise BadOption(f"a copy can't move from {source} to itself: choose another storage node")
        began = False
        # Again when others have changed what it rests on: it ends when the copy is moved, or can't be any more.
        while source in (value := await self._settled(partition)).members:
            await self._check_enough_after(value, source, target)
            if not await self._move(Move(partition, source, target)):
                await asyncio.sleep(_LOOK_S)
            began = True
        if target not in value.members:
            raise BadOption(f"partition {partition} has no copy on {source}: it is on {', '.join(value.members)}")
        if not began:
            (await self._edits.description()).value.check_known(source)
            self._report(partition, f"the copy on {source} has been moved to {target} already")

    async def spare_lost(self, partition: PartitionId, source: StorageId, target: StorageId | None) -> str:
        """Return what a partition would have none to spare of any more, if a copy moved, or was removed (no `target`).

        Empty if as many nodes and zones may be lost then as before. Counts all members as engaged.
        """
        description = (await self._edits.description()).value
        value = await self._edits.partition(partition)
        added = () if target is None else (target,)
        after = tuple(dict.fromkeys((*(each for each in value.members if each != source), *added)))
        required = description.requirements().get(partition)
        before = value.members
        stopping: dict[str, Callable[[tuple[StorageId, ...]], list[str]]] = {
            "zone": lambda names: zones_that_stop(names, names, required, description.zones),
            "storage node": lambda names: losses_that_stop(names, names, required),
        }
        for noun, found in stopping.items():
            if lost := [each for each in found(after) if each not in found(before)]:
                return f"without {noun} {' or '.join(lost)} the partition would take no appends then; now it would"
        return ""

    async def _check_enough_after(self, value: PartitionValue, source: StorageId, target: StorageId) -> None:
        """Raise `BadOption` if a partition would have too few members once its copy on `source` was replaced.

        If both nodes are members, this is a move that was broken off only if there is a member too many.
        """
        copies = (await self._edits.description()).value.replication_factor
        left = {*value.members, target} - {source}
        if len(left) >= copies:
            return
        if target in value.members:
            raise BadOption(
                f"storage node {target} has a copy of the partition, and without {source} the partition would have "
                f"{len(left)} of the {copies} copies that it is to have: choose a node that has none"
            )
        raise BadOption(
            f"the partition has {len(value.members)} of the {copies} copies that it is to have, so none can be spared: "
            "add the others first (polonaise storage balance, or partition add-copy)"
        )

    async def balance(self) -> list[Move]:
        """Return the moves that would spread the copies over the nodes. Raises `BadOption` with too few nodes."""
        return _spreading(*await self._read())

    async def spread(self, told: Callable[[Move], None]) -> int:
        """Spread the copies over the nodes, and return how many moves that took; `told` is called with each.

        Other operators may change members meanwhile: it is planned again until nothing is left to move. Raises what
        `balance` and `carry_out` raise, the latter once no members have changed for the time of a step, and
        `DeadlineExceeded`.
        """
        count, seen = 0, set[Move]()
        standstill = _Standstill(self._host.clock, self._step_s)
        while True:
            description, values = await self._read()
            standstill.look(values)
            moves = _spreading(description, values)
            if not moves:
                return count
            for move in moves:
                if move not in seen:
                    told(move)
            seen.update(moves)
            count += len(await self._carried_out(moves, standstill))

    async def _read(self) -> tuple[ClusterDescription, dict[PartitionId, PartitionValue]]:
        description = (await self._edits.description()).value
        return description, await values_of(self._edits.partition, range(description.total))

    async def _carried_out(self, moves: Sequence[Move], standstill: _Standstill) -> list[Move]:
        """Carry out moves; return those that were made: if not all, it is to be planned again."""
        made: list[Move] = []
        try:
            made = await self.carry_out(moves)
        except (UnknownStorageNode, BadOption, ChangePending, CopyNeeded) as error:
            standstill.look((await self._read())[1])
            if standstill.is_over:
                raise
            self._report(None, f"planned again: {error.text}")
        if not made:
            if standstill.is_over:
                raise DeadlineExceeded(
                    f"{len(moves)} copies are to be moved, and none could be within {self._step_s:g} s: repeat the "
                    "command when nobody else changes the members"
                )
            await asyncio.sleep(_LOOK_S)
        return made

    async def carry_out(self, moves: Sequence[Move]) -> list[Move]:
        """Carry out moves, several at the same time, but one step at a time in each partition; return those made.

        One that others have made impossible is left out. After one that fails, or is left out, the later ones of its
        partition are left out; the others are carried out all the same, and one of the failures is raised.
        """
        made: list[Move] = []
        turns = asyncio.Semaphore(_AT_ONCE_MAX)
        by_partition: dict[PartitionId, list[Move]] = {}
        for each in moves:
            by_partition.setdefault(each.partition, []).append(each)

        async def in_order(group: list[Move]) -> None:
            for each in group:
                async with turns:
                    if not await self._move(each):
                        return
                    made.append(each)

        outcomes = await asyncio.gather(*map(in_order, by_partition.values()), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return made

    async def drain(self, name: StorageId) -> int:
        """Move every copy off a storage node, which may be dead, and give it no more; return how many were moved.

        Raises `UnknownStorageNode`, `CopyNeeded` if fewer nodes are left than each partition has copies (nothing is
        changed then), and what `carry_out` raises: then the node stays marked, and the command may be repeated. Raises
        `BadOption` if another operator takes the mark away.
        """

        def marked(description: ClusterDescription) -> ClusterDescription:
            after = description.drained(name)
            check_enough_without(description, name)
            return after

        await self._edits.describe(marked)
        moved, standstill = 0, _Standstill(self._host.clock, self._step_s)
        while True:
            described = (await self._edits.description()).value
            held = await copies_on(self._edits, name, described.total)
            if not held and name not in described.storage:
                return moved  # another operator has removed it, which takes that it holds none
            check_marked(described, name)
            if not held:
                await self._remove_surplus(described)
                return moved
            self._report(None, f"{len(held)} copies are left on {name}")
            for partition in held:
                await self._settled(partition)
            values = await values_of(self._edits.partition, range(described.total))
            standstill.look(values)
            planned = balance(described, {partition: value.members for partition, value in values.items()})
            # With the copies that these partitions lack: without them none could be spared.
            moves = [move for move in planned if move.source == name or (not move.source and move.partition in held)]
            if moves:
                moved += sum(move.source == name for move in await self._carried_out(moves, standstill))
            elif standstill.is_over:
                raise DeadlineExceeded(
                    f"storage node {name} holds, or is to get, copies of partitions {', '.join(map(str, held))}, and "
                    f"none could be moved within {self._step_s:g} s: others change them. Repeat the command"
                )
            else:
                await asyncio.sleep(_LOOK_S)

    async def _remove_surplus(self, described: ClusterDescription) -> None:
        """Remove copies that are too many: another operator may have moved the same copy elsewhere."""
        values = await values_of(self._edits.partition, range(described.total))
        copies = described.replication_factor
        surplus = {p: v.members for p, v in values.items() if len(v.members) > copies and not v.next}
        await self.carry_out([move for move in balance(described, surplus) if move.target is None])

    # ------------------------------------------------------------------ one move

    async def _move(self, move: Move) -> bool:
        """Make a move; return False if others have changed what it rests on, so that it is not made."""
        partition, source, target = move
        value = await self._settled(partition)
        # What this move takes away, another operator may have taken away already: then none is to be added for it.
        if source is not None and source not in value.members:
            return False
        if target is not None and target not in value.members:
            copies = (await self._edits.description()).value.replication_factor
            if source is None and len(value.members) >= copies:
                return False  # nor if there are enough by now
            if not await self._has_added(partition, target):
                return False
        return source is None or await self._has_removed(partition, source, target)

    async def _has_added(self, partition: PartitionId, name: StorageId) -> bool:
        """Add a copy, or see that others have; return False if they have begun another change."""
        try:
            await self.add(partition, name)
        except (ChangePending, BadOption) as error:
            if name in (await self._settled(partition)).members:
                return True
            if not isinstance(error, ChangePending):
                raise
            return False
        return True

    async def _has_removed(self, partition: PartitionId, name: StorageId, target: StorageId | None) -> bool:
        """Remove a copy, as soon as enough others are in sync. False if others have changed what allows it."""
        until_s = self._host.clock.monotonic_s() + self._step_s
        told_s = float("-inf")
        while True:
            members = (await self._settled(partition)).members
            if name not in members:
                self._report(partition, f"the copy on {name} was removed by another operator")
                return True
            copies = (await self._edits.description()).value.replication_factor
            if len(members) <= copies or (target is not None and target not in members):
                return False
            try:
                await self.remove(partition, name)
                return True
            except UnknownStorageNode:
                continue  # the members tell
            except (CopyNeeded, ChangePending) as error:
                now_s = self._host.clock.monotonic_s()
                if now_s >= until_s:
                    raise
                if now_s - told_s >= _TELL_S:
                    told_s = now_s
                    self._report(partition, f"waits: {error.text}")
            await asyncio.sleep(_LOOK_S)

    async def _is_asked(self, partition: PartitionId, name: StorageId, *, member: bool) -> bool:
        """Whether a change that is pending, or was just made, makes a storage node a member, or none any more."""
        value = await self._edits.partition(partition)
        if value.next is None:
            return (name in value.members) == member
        return (name in value.next) == member and (name in value.members) != member

    async def _settled(self, partition: PartitionId) -> PartitionValue:
        """Return a partition's value once no change is pending in it."""
        return await self._once(partition, lambda value: value.next is None)

    async def _change(
        self, partition: PartitionId, name: StorageId, asking: Awaitable[object], *, member: bool
    ) -> None:
        """Ask for a change, if it is not asked for already, and wait until the storage node is a member, or none.

        Raises what asking raises, `DeadlineExceeded`, and `BadOption` if the change was taken back.
        """
        what = f"adding a copy on {name}" if member else f"removing the copy on {name}"
        line = what
        try:
            await asking
        except ChangePending:
            if not await self._is_asked(partition, name, member=member):
                raise
            line = f"a copy on {name} is being added" if member else f"the copy on {name} is being removed"
            line += " already"
        self._report(partition, line)  # not before: it may have been refused

        def is_over(value: PartitionValue) -> bool:
            asked = value.next is not None and (name in value.next) == member
            return (name in value.members) == member or not asked

        value = await self._once(partition, is_over)
        if (name in value.members) != member:
            raise BadOption(
                f"partition {partition}: {what} was cancelled by another operator: its members are "
                f"{', '.join(value.members)}. Repeat the command if it is to be done all the same"
            )

    async def _once(self, partition: PartitionId, is_over: Callable[[PartitionValue], bool]) -> PartitionValue:
        """Wait until the pending change is over, and return the partition's value. Raises `DeadlineExceeded`."""
        clock = self._host.clock
        until_s, tell_s = clock.monotonic_s() + self._step_s, clock.monotonic_s() + _TELL_S
        while True:
            value = await self._edits.partition(partition)
            if is_over(value):
                return value
            now_s = clock.monotonic_s()
            if now_s >= min(until_s, tell_s):
                why = await self._waits_for(partition, value)
                if now_s >= until_s:
                    raise DeadlineExceeded(
                        f"partition {partition}: its members {', '.join(value.members)} did not become "
                        f"{', '.join(value.next or ())} within {self._step_s:g} s: {why}. The change stays asked for: "
                        "mend what it waits for and repeat the command, or take it back (polonaise partition "
                        "cancel-change)"
                    )
                tell_s = now_s + _TELL_S
                self._report(partition, why)
            await asyncio.sleep(_LOOK_S)

    async def _waits_for(self, partition: PartitionId, value: PartitionValue) -> str:
        """Return what a pending change waits for: the node that is to get a copy, or the owner, is asked."""
        description = (await self._edits.description()).value
        for name in value.next or ():
            if name not in value.members:
                address = description.address_of(name)
                told = await ask_health(self._host, address, ROLE_STORAGE, description.key, self._timeout_s)
                if not isinstance(told, dict):
                    return f"waits for storage node {name}, which does not answer: {told}"
        owner = (await self._edits.assignment()).owner_of(partition)
        if owner is None:
            return "waits for an owner: start a server"
        health = await ask_health(self._host, owner.address, ROLE_SERVER, description.key, self._timeout_s)
        if not isinstance(health, dict):
            return f"waits for server {await self._edits.server_said(owner.server)}, which does not answer: {health}"
        try:
            condition = condition_of(partition, health, health["partitions"][str(partition)])
            found = [*condition.troubles, *server_troubles(health)]
        except (LookupError, TypeError, AttributeError):
            return f"waits for server {await self._edits.server_said(owner.server)} to serve the partition"
        return "; ".join([condition.change or "waits for the owner to see the change", *found])
