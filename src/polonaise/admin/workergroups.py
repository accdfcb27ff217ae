"""What the groups of workers of a log are doing, as their leases and registers tell; and where one goes on from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from polonaise.client.log import Log
from polonaise.client.workergroup import COORDINATING, lease_prefix
from polonaise.client.workerprogress import parse_kept, register_of, replace_kept
from polonaise.errors import BadOption, DeadlineExceeded
from polonaise.log.registers import GROUPS
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.wire.leases import DURATION_MS_MIN, ListedLease

_GROUPS: Final = GROUPS.decode()
_NOBODY: Final = 0
"""A holder that has no lease, and asks for none."""


class ListedGroup(NamedTuple):
    """One group of a log."""

    name: str
    members: int
    """How many members are there at present."""
    partitions: int
    """How many partitions are worked on at present."""
    lag: int | None
    """How many transactions behind the log the partitions that are worked on are, in total; None if nobody knows."""


class WorkedPartition(NamedTuple):
    """One partition, as one group works on it."""

    partition: PartitionId
    member: int
    """The number of the member that works on it; 0 for none."""
    state: str
    epoch: int | None
    position: TransactionId | None
    """The last id that was handled; None if only a view's database knows."""
    committed: TransactionId
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
    leases = await _leases(log, _GROUPS, timeout_s)
    names = {lease.name.removeprefix(_GROUPS).partition("/")[0] for lease in leases}
    for partition in range(log.partition_count):
        names |= {key[len(GROUPS) :].decode() for key in await log.list_registers(GROUPS, partition, timeout=timeout_s)}
    found = []
    for name in sorted(names):
        own = [lease for lease in leases if lease.name.startswith(lease_prefix(name))]
        worked = [_told(lease) for lease in own if "/partition/" in lease.name]
        lags = [told["lag"] for told in worked if told.get("lag") is not None]
        found.append(ListedGroup(name, len(own) - len(worked), len(worked), sum(lags) if lags else None))
    return found


async def describe_group(log: Log, name: str, timeout_s: float) -> DescribedGroup:
    """Return what a group is doing. Raises `BadOption` if there is nothing of a group of that name."""
    prefix = lease_prefix(name)
    leases = await _leases(log, prefix, timeout_s)
    members = {lease.holder: _told(lease) for lease in leases if lease.name.startswith(f"{prefix}member/")}
    workers = {lease.name.removeprefix(f"{prefix}partition/"): lease for lease in leases if "/partition/" in lease.name}
    marks = await log.high_water_marks(range(log.partition_count), timeout=timeout_s)
    partitions = []
    kept = False
    for partition, committed in marks.items():
        register = await log.register(register_of(name), partition, timeout=timeout_s)
        kept = kept or register is not None
        worker = workers.get(str(partition))
        told = {} if worker is None else _told(worker)
        epoch, position = told.get("epoch"), told.get("position")
        if register is not None:
            epoch = epoch or parse_kept(register)[0]
            position = parse_kept(register)[1] if position is None else max(position, parse_kept(register)[1])
        partitions.append(
            WorkedPartition(
                partition,
                worker.holder if worker else _NOBODY,
                str(told.get("state", "")),
                epoch,
                position,
                committed,
                None if position is None else max(0, committed - position),
                str(told.get("trouble", "")),
            )
        )
    if not members and not workers and not kept:
        raise BadOption(f"no group {name!r}: none has joined, and no register of the log is a group's of that name")
    by = next((str(told.get("by", "")) for told in members.values()), "handler" if kept else "")
    return DescribedGroup(name, by, sorted(members), partitions)


async def reset_group(
    log: Log, name: str, partitions: Iterable[PartitionId], to: TransactionId | None, timeout_s: float
) -> dict[PartitionId, TransactionId]:
    """Have a group of handlers go on behind id `to` in these partitions, or behind the log's end (None).

    Workers that are there are fenced, and begin anew from there. Returns the new positions. Raises `BadOption` for a
    group with a view, whose database has the position, and for ids beyond the log.
    """
    members = await _leases(log, f"{lease_prefix(name)}member/", timeout_s)
    if members and _told(members[0]).get("by") != "handler":
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
                await replace_kept(log, partition, register_of(name), partial(_moved, position))
        except TimeoutError:
            raise DeadlineExceeded(f"partition {partition} has not taken the position within {timeout_s:g} s") from None
        done[partition] = position
    return done


def _moved(to: TransactionId, epoch: int, _: TransactionId) -> tuple[int, TransactionId]:
    """Return the next epoch, which fences the present worker, with another position."""
    return epoch + 1, to


async def _leases(log: Log, prefix: str, timeout_s: float) -> list[ListedLease]:
    _, listed = await log._requests.hold_leases(COORDINATING, _NOBODY, DURATION_MS_MIN / 1000, [], prefix, timeout_s)
    return listed


def _told(lease: ListedLease) -> dict[str, Any]:
    """Return what the note of a lease says; nothing if it is no worker's."""
    try:
        told = json.loads(lease.note)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
