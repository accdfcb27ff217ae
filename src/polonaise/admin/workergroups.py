"""What the groups of workers of a log are doing, as their leases and registers tell; and where one goes on from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from polonaise.client.log import Log, partitions_of
from polonaise.client.protocol.groupleases import (
    GROUP_LEASES,
    ToldGroup,
    ToldWorker,
    checked_group_name,
    lease_prefix,
    told_groups,
)
from polonaise.client.workergroup import COORDINATING
from polonaise.client.workerprogress import parse_kept, register_of, replace_kept
from polonaise.errors import BadOption, DeadlineExceeded, PolonaiseError
from polonaise.log.registers import GROUPS
from polonaise.redaction import redacted
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.wire.leases import DURATION_MS_MIN

_NOBODY: Final = 0
"""A holder that has no lease, and asks for none."""
_NOBODY_WORKS: Final = ToldWorker(_NOBODY, b"")


class ListedGroup(NamedTuple):
    """One group of a log."""

    name: str
    members: int
    """How many members are there at present."""
    partitions: int
    """How many partitions are worked on at present."""
    lag: int | None
    """How many transactions the group is behind the log; None if nobody knows, as where nobody works on a partition."""


class WorkedPartition(NamedTuple):
    """One partition, as one group works on it."""

    partition: PartitionId
    member: int
    """The number of the member that works on it; 0 for none."""
    state: str
    epoch: int | None
    position: TransactionId | None
    """The last id that was handled; None if only a view's database knows."""
    committed: TransactionId | None
    """None if the partition did not answer."""
    lag: int | None
    trouble: str


class DescribedGroup(NamedTuple):
    """One group of a log, with its members and partitions."""

    name: str
    by: str
    """`view` or `handler`; empty if nobody is there to tell."""
    members: list[int]
    partitions: list[WorkedPartition]


async def list_groups(log: Log, timeout_s: float) -> list[ListedGroup]:
    """Return the groups that have members at present, or have kept a position in a register."""
    groups = await _groups(log, GROUP_LEASES, timeout_s)
    names = set(groups)
    for partition in range(log.partition_count):
        names |= {key[len(GROUPS) :].decode() for key in await log.list_registers(GROUPS, partition, timeout=timeout_s)}
    told = {name: groups.get(name, ToldGroup()) for name in sorted(names)}
    return [
        ListedGroup(
            name,
            len(each.members),
            len(each.workers),
            each.lag if len(each.workers) >= log.partition_count else None,
        )
        for name, each in told.items()
    ]


async def describe_group(log: Log, name: str, timeout_s: float) -> DescribedGroup:
    """Return what a group is doing. Raises `BadOption` if there is nothing of a group of that name."""
    checked_group_name(name)
    group = (await _groups(log, lease_prefix(name), timeout_s)).get(name, ToldGroup())
    numbers = range(log.partition_count)
    found = await asyncio.gather(*(_worked(log, name, partition, group, timeout_s) for partition in numbers))
    partitions = [worked for worked, _ in found]
    kept = any(has_kept for _, has_kept in found)
    if not group.members and not group.workers and not kept:
        raise BadOption(f"no group {name!r}: none has joined, and no register of the log is a group's of that name")
    by = next((str(each.told.get("by", "")) for each in group.members.values()), "handler" if kept else "")
    return DescribedGroup(name, by, sorted(group.members), partitions)


async def _worked(
    log: Log, name: str, partition: PartitionId, group: ToldGroup, timeout_s: float
) -> tuple[WorkedPartition, bool]:
    """Return what a group does in a partition, with its trouble if that does not answer; whether it kept a position."""
    worker = group.workers.get(partition, _NOBODY_WORKS)
    told, epoch, position = worker.told, worker.number("epoch"), worker.number("position")
    trouble = str(told.get("trouble", ""))
    committed = register = None
    try:
        register = await log.register(register_of(name), partition, timeout=timeout_s)
        committed = await log.high_water_mark(partition, timeout=timeout_s)  # after any position was known
    except PolonaiseError as error:
        trouble = trouble or redacted(error)
    if register is not None:
        kept_epoch, kept_position = parse_kept(register)
        if position is None or kept_epoch > (epoch or 0):  # what the worker tells is older: it was replaced, or reset
            epoch, position = kept_epoch, kept_position
    lag = None if position is None or committed is None or position > committed else committed - position
    state = str(told.get("state", ""))
    return WorkedPartition(partition, worker.holder, state, epoch, position, committed, lag, trouble), bool(register)


async def reset_group(
    log: Log,
    name: str,
    partitions: Iterable[PartitionId],
    to: TransactionId | None,
    timeout_s: float,
    *,
    new: bool = False,
) -> dict[PartitionId, TransactionId]:
    """Have a group of handlers go on behind id `to` in these partitions, or behind the log's end (None).

    Workers that are there are fenced, and begin anew from there. Returns the new positions. Raises `BadOption` for a
    group with a view, whose database has the position, for ids beyond the log, for a name that no group can have, and,
    unless it is to be a `new` one, for a name that is no group's: it may be misspelt.
    """
    checked_group_name(name)
    partitions = list(partitions)
    group = (await _groups(log, lease_prefix(name), timeout_s)).get(name, ToldGroup())
    if not new and not group.members and not await _has_kept(log, name, timeout_s):
        raise BadOption(f"no group {name!r} has joined or kept a position: add --new if one is to begin there")
    if any(member.told.get("by") != "handler" for member in group.members.values()):
        raise BadOption(
            f"group {name!r} works with a view, and its position is in the view's database: change it there, together "
            "with what was applied"
        )
    marks = await log.high_water_marks(partitions, timeout=timeout_s)
    for partition, mark in marks.items():
        if to is not None and not NO_TRANSACTION <= to <= mark:
            raise BadOption(f"partition {partition} is committed up to {mark}: give an id from -1 to that")
    done = {}
    for partition, mark in marks.items():
        position = mark if to is None else to
        try:
            async with asyncio.timeout(timeout_s):
                await replace_kept(partitions_of(log), partition, register_of(name), partial(_moved, position))
        except TimeoutError:
            raise DeadlineExceeded(f"partition {partition} has not taken the position within {timeout_s:g} s") from None
        done[partition] = position
    return done


def _moved(to: TransactionId, epoch: int, _: TransactionId) -> tuple[int, TransactionId]:
    """Return the next epoch, which fences the present worker, with another position."""
    return epoch + 1, to


async def _has_kept(log: Log, name: str, timeout_s: float) -> bool:
    key = register_of(name)
    for partition in range(log.partition_count):
        if await log.register(key, partition, timeout=timeout_s) is not None:
            return True
    return False


async def _groups(log: Log, prefix: str, timeout_s: float) -> dict[str, ToldGroup]:
    """Return by name the groups of whose leases there are any, of those whose names begin with the prefix."""
    requests = partitions_of(log).parts.requests
    _, listed = await requests.hold_leases(COORDINATING, _NOBODY, DURATION_MS_MIN / 1000, [], prefix, timeout_s)
    return told_groups(listed)
