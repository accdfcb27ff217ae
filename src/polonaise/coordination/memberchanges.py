"""The rules for changes of a partition's members, and the plans that spread copies over storage nodes.

From the coordinator's values to those that are to be written by compare-and-set. The owner of the partition makes the
change at the start of a session (`server.protocol.recovery`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from polonaise.coordination.values import ClusterDescription, PartitionValue, Requirement
from polonaise.errors import BadOption, ChangePending, CopyNeeded, UnknownStorageNode
from polonaise.redaction import redacted
from polonaise.terms import PartitionId, StorageId, counted

COPIES_MAX: Final = 9
"""Each append waits for more than half of them."""


def in_sync(value: PartitionValue) -> tuple[StorageId, ...]:
    """Return the members engaged in the last session that began: it may have ended once a later one is claimed."""
    return tuple(n for n in value.members if n in value.engagements and value.engagements[n].unresolved)


def with_copy(value: PartitionValue, description: ClusterDescription, name: StorageId) -> PartitionValue:
    """Return the value that asks for one more copy, on the storage node `name`. Raises `ChangePending`,
    `UnknownStorageNode`, and `BadOption` for a node that has a copy or is being drained, and for more than `COPIES_MAX`
    copies."""
    _check_nothing_pending(value)
    if name not in description.storage:
        raise UnknownStorageNode(
            f"the cluster has no storage node {redacted(name)!r}; its storage nodes are "
            f"{', '.join(description.storage)}. Add it with `polonaise storage add NAME HOST:PORT`"
        )
    if name in value.members:
        raise BadOption(f"storage node {name} has a copy of the partition: choose a node that has none")
    if name in description.draining:
        raise BadOption(f"storage node {name} is being drained: choose another one, or stop draining it")
    if len(value.members) >= COPIES_MAX:
        raise BadOption(f"the partition has {len(value.members)} copies, and may have no more: remove one first")
    return replace(value, next=(*value.members, name))


def without_copy(
    value: PartitionValue,
    name: StorageId,
    copies: int,
    *,
    required: Requirement | None = None,
    force: bool | None = None,
) -> PartitionValue:
    """Return the value that asks for the copy on storage node `name` to be given up. Raises `ChangePending`,
    `UnknownStorageNode` if there is no copy, and `CopyNeeded` unless `copies` other copies are engaged and in sync;
    with `force` a single other one in sync is enough (None: the operator can't choose it, and is not told of it). In
    any case the other copies have to meet what is `required` of commits."""
    _check_nothing_pending(value)
    if name not in value.members:
        raise UnknownStorageNode(
            f"storage node {redacted(name)!r} has no copy of the partition: those that have one are "
            f"{', '.join(value.members)}"
        )
    left = tuple(each for each in value.members if each != name)
    sound = [each for each in in_sync(value) if each != name]
    if not left or not sound:
        raise CopyNeeded(
            f"{name} has the last copy that is in sync: add another one first, and wait until it is in sync"
        )
    # Refused with `force` as well: the owner would not make the change, for no session could start after it.
    if required is not None and (lack := required.lack_of(left)):
        raise CopyNeeded(
            f"without {name} commits would lack what they need: {lack}. Add a copy first, or require less (polonaise "
            "cluster require, or topic require)"
        )
    if len(sound) < copies and not force:
        forced = (
            f". With --force it would survive the loss of {max(0, len(sound) - len(left) // 2 - 1)} of them without a "
            f"pause, and {min(len(sound) - 1, len(left) // 2)} without losing transactions"
        )
        raise CopyNeeded(
            f"without {name} the partition would have {len(sound)} copies in sync ({', '.join(sound)}), and it is to "
            f"have {copies}: add a copy first, or wait until one is in sync again{'' if force is None else forced}"
        )
    return replace(value, next=left)


def check_unneeded(value: PartitionValue, name: StorageId, copies: int) -> None:
    """Return if storage node `name` is to have no copy of the partition, and so many others are in sync.

    They have to be in sync in the session that was claimed last: while one is being started, those of the one before
    stand as engaged, and may all be dead. What the copy still holds may then be the last trace of a commit.

    Raises `CopyNeeded` otherwise, and `ChangePending` while the members or the log's end are being changed.
    """
    if name in value.members:
        raise CopyNeeded(f"{name} has one of the partition's copies")
    _check_nothing_pending(value)
    if any(reset.is_pending for reset in value.resets):
        raise ChangePending("the head of its log is being reset")
    sound = [each for each in in_sync(value) if value.engagements[each].session == value.session]
    if len(sound) < copies:
        raise CopyNeeded(
            f"of its copies on {', '.join(value.members)}, {len(sound)} are in sync: that on {name} may be needed"
        )


def cancelled(value: PartitionValue) -> PartitionValue:
    """Return the value without its pending change. Safe at any time: the members are as before until it is made."""
    return replace(value, next=None)


def _check_nothing_pending(value: PartitionValue) -> None:
    if value.next is not None:
        raise ChangePending(
            f"its members {', '.join(value.members)} are being changed to {', '.join(value.next)} already: wait until "
            "that is made (polonaise partition describe), or cancel it (polonaise partition cancel-change)"
        )


class Move(NamedTuple):
    """A change of where one copy of a partition lies."""

    partition: PartitionId
    source: StorageId | None
    """The node that gives its copy up, if one does."""
    target: StorageId | None
    """The node that gets a copy, if one does."""


def balance(description: ClusterDescription, members: Mapping[PartitionId, Collection[StorageId]]) -> list[Move]:
    """Return the moves that spread the copies over the nodes and zones: none if they are spread already.

    Afterwards each partition has `replication_factor` copies, none of them on a node that is drained or gone, in as
    many zones as the factor allows; and, where zones leave a choice, nodes have equally many copies but for one. A copy
    moves only if that makes one of these better. The same values give the same moves.

    Raises `BadOption` if there are fewer nodes than copies.
    """
    placement = _Placement(description, members)
    for names in placement.placed.values():
        placement.fill(names)
    while placement.improve():
        pass
    placed = placement.placed
    return [move for partition, names in placed.items() for move in _moves(partition, members[partition], names)]


def usable_nodes(description: ClusterDescription) -> list[StorageId]:
    """Return the storage nodes that may get copies; raises `BadOption` if there are fewer than copies."""
    usable = [name for name in description.storage if name not in description.draining]
    factor = description.replication_factor
    if len(usable) < factor:
        raise BadOption(
            f"{counted(len(usable), 'storage node')} left for {counted(factor, 'copy', 'copies')} of each "
            "partition: add a node first (polonaise storage add NAME HOST:PORT)"
        )
    return usable


def first_members(
    description: ClusterDescription, members: Mapping[PartitionId, Collection[StorageId]], new: Collection[PartitionId]
) -> dict[PartitionId, tuple[StorageId, ...]]:
    """Return the members of new partitions, placed by the rules of `balance`; no copy in `members` moves."""
    placement = _Placement(description, members)
    chosen: dict[PartitionId, tuple[StorageId, ...]] = {}
    for partition in sorted(new):
        names: list[StorageId] = []
        placement.fill(names)
        chosen[partition] = tuple(sorted(names, key=placement.usable.index))
    return chosen


class _Placement:
    """The copies of partitions on usable storage nodes, while they are being placed."""

    def __init__(self, description: ClusterDescription, members: Mapping[PartitionId, Collection[StorageId]]) -> None:
        self.usable = usable_nodes(description)
        self._factor = description.replication_factor
        self._zone = {name: description.zones.get(name, "") for name in self.usable}
        self.placed = {partition: [n for n in names if n in self._zone] for partition, names in sorted(members.items())}
        """The nodes with a copy, by partition, without those that are drained or gone."""
        self._load = Counter(dict.fromkeys(self.usable, 0))
        for names in self.placed.values():
            self._load.update(names)

    def fill(self, names: list[StorageId]) -> None:
        """Add or remove copies of a partition, until it has as many as it is to have."""
        load, usable = self._load, self.usable
        while len(names) > self._factor:
            most = max(names, key=lambda n: (self._crowd(names, n), load[n], usable.index(n)))
            names.remove(most)
            load[most] -= 1
        while len(names) < self._factor:
            free = [n for n in usable if n not in names]
            least = min(free, key=lambda n: (self._crowd(names, n), load[n], usable.index(n)))
            names.append(least)
            load[least] += 1

    def improve(self) -> bool:
        better = False
        for names in self.placed.values():
            while self._moved_one(names):
                better = True
        return better

    def _crowd(self, names: Collection[StorageId], name: StorageId) -> int:
        return sum(self._zone[other] == self._zone[name] for other in names if other != name)

    def _moved_one(self, names: list[StorageId]) -> bool:
        """Move one of a partition's copies, and so make zones or else loads more even; return whether one was moved."""
        load, usable = self._load, self.usable
        for source in sorted(names, key=lambda n: (-load[n], usable.index(n))):
            for target in sorted((n for n in usable if n not in names), key=lambda n: (load[n], usable.index(n))):
                rest = [n for n in names if n != source]
                crowding = self._crowd(rest, target) - self._crowd(names, source)
                if crowding < 0 or (crowding == 0 and load[source] > load[target] + 1):
                    names[names.index(source)] = target
                    load[source] -= 1
                    load[target] += 1
                    return True
        return False


def _moves(partition: PartitionId, before: Collection[StorageId], after: Collection[StorageId]) -> list[Move]:
    """Return the moves between two sets of members, those of lacking copies first: none is removed too early."""
    gone = [name for name in before if name not in after]
    new = [name for name in after if name not in before]
    longest = max(len(gone), len(new))
    sources: list[StorageId | None] = [*[None] * (longest - len(gone)), *gone]
    targets: list[StorageId | None] = [*new, *[None] * (longest - len(new))]
    return [Move(partition, source, target) for source, target in zip(sources, targets, strict=True)]
