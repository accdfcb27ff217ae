"""A log that a client is connected to: append to it, read it, follow it, ask how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from polonaise.errors import AppendUnknown, BadOption, PolonaiseError
from polonaise.terms import PartitionId, Transaction, TransactionId

if TYPE_CHECKING:
    from polonaise.client.log import Log
    from polonaise.client.protocol.draft import Change, Expectation
    from polonaise.client.protocol.locks import Lock
    from polonaise.client.receipt import Receipt

_MOMENT_S: Final = 1.0
"""For all partitions together, to become ready before they are asked how they are."""
_PENDING_MAX: Final = 1_024
"""Appends that are made before the fate of the first of them is told."""
_MERGED_MAX: Final = 256
"""Transactions of several followed partitions that wait to be taken."""


@dataclass(frozen=True, slots=True)
class HowToAppend:
    """What each transaction carries beside its body, and how long its fate is waited for."""

    partition: PartitionId
    header: int = 0
    locks: Sequence[Lock] = ()
    expectations: Sequence[Expectation] = ()
    changes: Sequence[Change] = ()
    high_water_mark: TransactionId | None = None
    """What the transactions were built on; None for what is committed when each is made."""
    timeout_s: float = 10.0

    @property
    def checked(self) -> bool:
        """Whether an append can be refused because of the one before it: then it has to wait for that."""
        return bool(self.locks or self.expectations) or self.high_water_mark is not None


class Condition(NamedTuple):
    """How a partition is, as the server that owns it says."""

    partition: PartitionId
    server: int
    ready: bool
    committed_high_water_mark: TransactionId
    engaged: list[str]
    """The storage nodes that take part; a commit needs a majority of all."""
    left_out: dict[str, str]
    """The others, and why."""
    waits_for: str
    """What keeps it from being ready; empty when it is."""

    @property
    def troubles(self) -> list[str]:
        """What is the matter, line by line; nothing when all is well."""
        lines = [self.waits_for] if self.waits_for else []
        return lines + [f"without {name}: {why}" for name, why in self.left_out.items()]


class Mark(NamedTuple):
    """How far a partition is."""

    partition: PartitionId
    committed_high_water_mark: TransactionId


async def high_water_marks(log: Log, partitions: Iterable[PartitionId], timeout_s: float) -> list[Mark]:
    """The committed high-water marks, each proved by its owner after it was asked."""
    marks = await log.high_water_marks(partitions, timeout=timeout_s)
    return [Mark(partition, mark) for partition, mark in marks.items()]


async def conditions(log: Log, partitions: Iterable[PartitionId], timeout_s: float) -> list[Condition]:
    """How partitions are: each server is asked once. Raises `DeadlineExceeded` where none answers.

    One that has only just begun, such as that of an embedded log which nobody else hosts, gets a moment to know.
    """
    found: dict[PartitionId, Condition] = {}
    wanted = list(partitions)
    until_s = asyncio.get_running_loop().time() + min(_MOMENT_S, timeout_s)
    for partition in wanted:
        if partition not in found:
            moment_s = until_s - asyncio.get_running_loop().time()
            if moment_s > 0:
                with suppress(PolonaiseError):
                    await log.ready(partition, timeout=moment_s)
            told = await log.health(partition, timeout=timeout_s)
            for number, health in told["partitions"].items():
                found[int(number)] = _condition(int(number), told, health)
    return [found[partition] for partition in wanted if partition in found]


def _condition(partition: PartitionId, told: dict[str, Any], health: dict[str, Any]) -> Condition:
    engaged = health.get("engaged", [])
    left_out = {
        name: node["error"] or ("is being brought up to date" if node["connected"] else "not tried yet")
        for name, node in told["storage"].items()
        if (health["ready"] and name not in engaged) or not node["connected"]
    }
    waits_for = "" if health["ready"] else health["waits_for"]
    return Condition(
        partition, told["server"], health["ready"], health["committed"], list(engaged), left_out, waits_for
    )


async def append(log: Log, bodies: AsyncIterable[bytes], how: HowToAppend) -> AsyncGenerator[Receipt, None]:
    """Append each body as a transaction of its own; their receipts, in order, once they are committed.

    Stops at the first that is not, and raises why (`LockConflict`, `ExpectationFailed`, `AppendFailed`, …), or
    `AppendUnknown` when that is not known in time; those behind it may be in the log then, unless appends are
    `checked`: each of these waits for the one before.
    """
    await log.ready(how.partition, timeout=how.timeout_s)
    if how.high_water_mark is not None:
        await _check_mark(log, how, how.high_water_mark)
    made: asyncio.Queue[Receipt | Exception | None] = asyncio.Queue(_PENDING_MAX)
    making = asyncio.create_task(_make(log, bodies, how, made))
    try:
        while (receipt := await made.get()) is not None:
            if isinstance(receipt, Exception):
                raise receipt
            yield await _fate(receipt, how)
    finally:
        making.cancel()
        await asyncio.wait([making])


async def _make(
    log: Log, bodies: AsyncIterable[bytes], how: HowToAppend, made: asyncio.Queue[Receipt | Exception | None]
) -> None:
    """Append what comes, as it comes: whoever types the bodies sees each fate before the next body."""
    try:
        async for body in bodies:
            await log.ready(how.partition, timeout=how.timeout_s)
            receipt = log.append(
                body,
                how.partition,
                header=how.header,
                high_water_mark=how.high_water_mark,
                locks=how.locks,
                expectations=how.expectations,
                changes=how.changes,
            )
            await made.put(receipt)
            if how.checked:
                await receipt.wait(None)
                if not receipt.committed:
                    return
                await log.wait_applied(receipt.id, how.partition)
        await made.put(None)
    except Exception as error:  # noqa: BLE001 - handed on to whoever asked for the appends
        await made.put(error)


async def _check_mark(log: Log, how: HowToAppend, mark: TransactionId) -> None:
    committed = await log.high_water_mark(how.partition, timeout=how.timeout_s)
    if not -1 <= mark <= committed:
        raise BadOption(f"nothing was built on {mark}: partition {how.partition} is committed up to {committed}")


async def _fate(receipt: Receipt, how: HowToAppend) -> Receipt:
    try:
        await receipt.wait(asyncio.get_running_loop().time() + how.timeout_s)
    except TimeoutError:
        raise AppendUnknown(
            f"an append to partition {how.partition} was sent and is not decided after {how.timeout_s:g} s: "
            "it may still commit; read the log before it is made again",
            receipt,
        ) from None
    return await receipt


async def read(
    log: Log,
    partitions: Sequence[PartitionId],
    *,
    after: TransactionId = -1,
    until: TransactionId | None = None,
    since: datetime | None = None,
    follow: bool = False,
    timeout_s: float,
) -> AsyncGenerator[Transaction, None]:
    """The transactions above `after`, or committed at `since` or later; one partition after the other.

    With `follow` it goes on for ever, and what the partitions commit comes as it comes.
    """
    if since is not None and (after != -1 or until is not None):
        raise BadOption("a reading begins at a time or at an id, not at both")

    def one(partition: PartitionId) -> AsyncIterator[Transaction]:
        if since is not None:
            return log.read_time(partition, since=since, follow=follow, timeout=timeout_s)
        return log.read(partition, after=after, until=until, follow=follow, timeout=timeout_s)

    async with aclosing(_all([one(partition) for partition in partitions], follow=follow)) as found:
        async for tx in found:
            yield tx


async def tail(
    log: Log, partitions: Sequence[PartitionId], *, count: int, follow: bool, timeout_s: float
) -> AsyncGenerator[Transaction, None]:
    """The last `count` transactions of each partition; with `follow`, then what comes."""
    marks = await high_water_marks(log, partitions, timeout_s)
    readings = [
        log.read(
            mark.partition,
            after=max(-1, mark.committed_high_water_mark - count),
            until=None if follow else mark.committed_high_water_mark,
            follow=follow,
            timeout=timeout_s,
        )
        for mark in marks
    ]
    async with aclosing(_all(readings, follow=follow)) as found:
        async for tx in found:
            yield tx


async def _all(readings: Sequence[AsyncIterator[Transaction]], *, follow: bool) -> AsyncGenerator[Transaction, None]:
    """One after the other; all at once if they never end."""
    if not follow or len(readings) == 1:
        for reading in readings:
            async for tx in reading:
                yield tx
        return
    async with aclosing(_merged(readings)) as merged:
        async for tx in merged:
            yield tx


async def _merged(readings: Sequence[AsyncIterator[Transaction]]) -> AsyncGenerator[Transaction, None]:
    """What any of them brings, as it comes; raises what any of them raises."""
    arrived: asyncio.Queue[Transaction | BaseException] = asyncio.Queue(_MERGED_MAX)

    async def pump(reading: AsyncIterator[Transaction]) -> None:
        try:
            async for tx in reading:
                await arrived.put(tx)
        except Exception as error:  # noqa: BLE001 - handed on to whoever reads
            await arrived.put(error)

    pumps = [asyncio.create_task(pump(reading)) for reading in readings]
    try:
        while True:
            found = await arrived.get()
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.wait(pumps)
