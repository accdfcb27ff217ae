"""The leases of groups of workers: their names, what their notes tell, and how members share partitions by them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from polonaise.client.protocol.arguments import wrong
from polonaise.terms import PartitionId
from polonaise.wire.leases import ListedLease

GROUP_LEASES: Final = "group/"
"""The prefix of the names of the leases of worker groups: an application's own begin otherwise."""
_MEMBER, _PARTITION = "member", "partition"
_GROUP: Final = "[A-Za-z0-9._-]{1,100}"
"""A group's name."""
_NAME: Final = re.compile(rf"{GROUP_LEASES}({_GROUP})/({_MEMBER}|{_PARTITION})/([0-9]{{1,20}})")


class ToldWorker:
    """What the lease of a member, or of a partition that a member works on, tells."""

    def __init__(self, holder: int, note: bytes) -> None:
        self.holder: Final = holder
        self.note: Final = note

    @cached_property
    def told(self) -> dict[str, Any]:
        """What its note says; empty if that can't be read. A member's has `by` and `lease_s`, a partition's what
        `PartitionWork.health` returns."""
        try:
            told = json.loads(self.note)
        except (ValueError, RecursionError):
            return {}
        return told if isinstance(told, dict) else {}

    def number(self, name: str) -> int | None:
        """Return a whole number from the note, such as `lag`; None if it has none."""
        found = self.told.get(name)
        return found if isinstance(found, int) and not isinstance(found, bool) else None


@dataclass(frozen=True)
class ToldGroup:
    """What the leases of one group tell, at one moment."""

    members: Mapping[int, ToldWorker] = field(default_factory=dict)
    workers: Mapping[PartitionId, ToldWorker] = field(default_factory=dict)
    """The members that work on partitions."""

    @property
    def lag(self) -> int | None:
        """The transactions that these partitions are behind, in total; None if that is not known."""
        return total_lag(worker.number("lag") for worker in self.workers.values()) if self.workers else None


def total_lag(lags: Iterable[int | None]) -> int | None:
    """Return the sum; None if one is not known: it may be the largest."""
    total = 0
    for lag in lags:
        if lag is None:
            return None
        total += lag
    return total


def checked_group_name(name: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(_GROUP, name):
        raise wrong("name", name, "a group's name has 1 to 100 letters of ASCII, digits, '.', '_' and '-'")
    return name


def lease_prefix(group: str) -> str:
    return f"{GROUP_LEASES}{group}/"


def member_lease(group: str, holder: int) -> str:
    return f"{lease_prefix(group)}{_MEMBER}/{holder}"


def partition_lease(group: str, partition: PartitionId) -> str:
    return f"{lease_prefix(group)}{_PARTITION}/{partition}"


def told_groups(leases: Iterable[ListedLease]) -> dict[str, ToldGroup]:
    """Return by name, in order, the groups that these leases are of. Other leases are passed over."""
    told: dict[str, dict[str, dict[int, ToldWorker]]] = {}
    for lease in leases:
        if (named := _NAME.fullmatch(lease.name)) is None:
            continue
        name, kind, number = named.groups()
        told.setdefault(name, {_MEMBER: {}, _PARTITION: {}})[kind][int(number)] = ToldWorker(lease.holder, lease.note)
    return {name: ToldGroup(told[name][_MEMBER], told[name][_PARTITION]) for name in sorted(told)}


class NextMove(NamedTuple):
    """The next step of one member towards its share."""

    wanted: tuple[PartitionId, ...]
    """Partitions that nobody has and this member asks for."""
    surplus: tuple[PartitionId, ...]
    """Partitions that it gives up."""


def next_move(partitions: int, members: Collection[int], held: Mapping[PartitionId, int], me: int) -> NextMove:
    """Return the next step of the member `me`, given who has which of so many partitions.

    Each member decides for itself, from a list of leases. Lists of different moments do no harm: a lease keeps each
    partition with one member, and the decisions only have to come to rest. Shares differ by one at most; the members
    that have the most get the larger ones, so that few partitions change hands.
    """
    counts = dict.fromkeys(sorted({*members, me}), 0)
    for holder in held.values():
        if holder in counts:
            counts[holder] += 1
    least, larger = divmod(partitions, len(counts))
    by_count = sorted(counts, key=lambda member: (-counts[member], member))
    shares = {member: least + (place < larger) for place, member in enumerate(by_count)}
    mine = sorted(partition for partition, holder in held.items() if holder == me)
    if len(mine) >= shares[me]:
        return NextMove((), tuple(mine[shares[me] :]))
    # Free partitions are dealt out in the order of members, so that no two ask for the same one.
    free = [partition for partition in range(partitions) if partition not in held]
    for member, count in counts.items():
        lacking = max(0, shares[member] - count)
        if member == me:
            return NextMove(tuple(free[:lacking]), ())
        free = free[lacking:]
    raise AssertionError("a member is among the members")
