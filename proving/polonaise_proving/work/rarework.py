"""Rare work: steps of applications that most seeds do without.

Some of them speak to servers as no client of this library does, but as the protocol allows.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Final, cast

from polonaise.client.producer import Producer
from polonaise.client.protocol.group import Group
from polonaise.client.protocol.locks import Lock
from polonaise.errors import AppendUnknown, Closed, PolonaiseError, ProducerFenced
from polonaise.log.producers import KEY_PREFIX, OPEN, pack_request
from polonaise.terms import ChangeKind, LockMode, PartitionId, TransactionId
from polonaise.wire.appends import CHANGE, AppendColumns, Operation
from polonaise_proving.record.observations import Kind
from polonaise_proving.work.application import UNWANTED_HEADER
from polonaise_proving.work.workload import (
    ClientLife,
    Step,
    judged_by,
    list_registers,
    next_produced,
    open_producer,
    produce_next,
)

_NOBODY_HAS: Final = 99
"""More copies than any simulated cluster has storage nodes: an append that needs them is never written."""
_THINGS: Final = 6
_AGES: Final = (0, 0, 1, 3, 8)
"""The numbers of ids, one drawn per transaction, by which a mark in a group lies below the applied high-water mark."""


class MarkedGroup(Group):
    """A group whose transactions were built on different states, and which is judged by the oldest of them."""

    marks: Sequence[TransactionId] = ()

    def columns(
        self, sequence: int, client_high_water_mark: TransactionId, operations: Sequence[tuple[int, bytes, bytes]]
    ) -> AppendColumns:
        columns = super().columns(sequence, client_high_water_mark, operations)
        columns.client_high_water_marks = array("q", self.marks)
        return columns


class Opening(Group):
    """An append that opens a producer under a given epoch, without a look at who has opened it meanwhile."""

    epoch = 0
    key = b""

    def columns(
        self, sequence: int, client_high_water_mark: TransactionId, operations: Sequence[tuple[int, bytes, bytes]]
    ) -> AppendColumns:
        columns = super().columns(sequence, client_high_water_mark, operations)
        columns.operations = [Operation(0, CHANGE + ChangeKind.PRODUCE, self.key, pack_request(self.epoch, OPEN))]
        return columns


async def append_marked_group(session: ClientLife, partition: PartitionId) -> None:
    """Append a group whose transactions have locks and marks of their own."""
    random = session.random
    count, applied = random.randrange(2, 5), session.log.applied(partition)
    marks = [max(-1, applied - random.choice(_AGES)) for _ in range(count)]
    locks = [
        [Lock("thing", random.randrange(_THINGS), LockMode(random.randrange(3))) for _ in range(random.randrange(3))]
        for _ in range(count)
    ]
    attempt = session.invoke(partition, Kind.GROUP, [b""] * count)
    attempt.mark, attempt.marks, attempt.locks = min(marks), marks, [judged_by(each) for each in locks]
    headers = [random.randrange(UNWANTED_HEADER + 1) for _ in range(count)]
    group = cast(MarkedGroup, MarkedGroup.of(attempt.bodies, headers, locks))
    group.marks = marks
    await session.append(attempt, lambda: session.log.append_group(group, partition))


async def open_twice(session: ClientLife, partition: PartitionId) -> None:
    """Open a producer anew while the earlier one goes on: nothing of the earlier one may be accepted any more."""
    async with session.producing:
        older = session.producers.get(partition) or await open_producer(session, partition)
        newer = await open_producer(session, partition)
        attempt, number = next_produced(session, partition)
        going_on = session.random.choice(((_append_fenced,), (_open_late,), (_open_late, _append_fenced)))
        rivals = [rival(session, partition, older, number, attempt.bodies[0]) for rival in going_on]
        results = await asyncio.gather(produce_next(session, partition, newer), *rivals, return_exceptions=True)
        if isinstance(results[0], ProducerFenced):
            session.history.violated("P6 fate", f"{newer.name} to be open in epoch {newer.epoch}", str(results[0]))
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def _append_fenced(
    session: ClientLife, partition: PartitionId, older: Producer, number: int, body: bytes
) -> None:
    try:
        transaction = await older.append(number, body, timeout=session.timeout_s())
    except (ProducerFenced, AppendUnknown, Closed):
        return
    _taken(session, older, f"number {number} as {transaction}")


async def _open_late(session: ClientLife, partition: PartitionId, older: Producer, number: int, body: bytes) -> None:
    """Send the opening of the older producer again, as a message that is sent twice may come late."""
    opening = cast(Opening, Opening.of([b""]))
    opening.epoch, opening.key = older.epoch, KEY_PREFIX + older.name.encode()
    try:
        async with asyncio.timeout(session.timeout_s()):
            receipt = await session.log.append_group(opening, partition)
    except (TimeoutError, PolonaiseError):
        return
    _taken(session, older, f"its opening again, as {receipt.id}")


async def append_copied(session: ClientLife, partition: PartitionId) -> None:
    """Append what needs copies: success means that it has them, and what nobody could have is never written."""
    copies = session.random.choice((1, 2, 3, 3, 3, 5, _NOBODY_HAS))
    attempt = session.invoke(partition, Kind.PLAIN, [b""])
    receipt = await session.append(attempt, lambda: session.log.append(attempt.bodies[0], partition, copies=copies))
    if copies == _NOBODY_HAS and receipt is not None and receipt.committed:
        expected = f"an append that needs {copies} copies to be refused, and nothing to be written"
        session.history.violated("P1 durability", expected, str(attempt))


def _taken(session: ClientLife, older: Producer, what: str) -> None:
    session.history.violated("P6 fate", f"nothing more of {older.name} in epoch {older.epoch}", what)


RARE_STEPS: Final[tuple[tuple[Step, int], ...]] = (
    (append_marked_group, 6),
    (open_twice, 4),
    (list_registers, 3),
    (append_copied, 8),
)
