"""Use a log that a client is connected to: append to it, read it, follow it, and learn its partitions' condition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from polonaise.errors import AlreadyInitialized, AppendUnknown, BadOption, DeadlineExceeded, PolonaiseError
from polonaise.host.real import RealClock
from polonaise.log.registers import GROUPS, PRODUCERS, SPARK_SINKS
from polonaise.node import embedded
from polonaise.node.condition import judged
from polonaise.node.reasons import Condition
from polonaise.redaction import redacted_address
from polonaise.terms import PartitionId, Transaction, TransactionId

if TYPE_CHECKING:
    from polonaise.client.appends import Receipt
    from polonaise.client.log import Log
    from polonaise.client.protocol.draft import Change, Expectation
    from polonaise.client.protocol.locks import Lock

_MOMENT_S: Final = 1.0
"""Seconds that all partitions together get to become ready before their condition is requested."""
_PENDING_MAX: Final = 1_024
"""The most receipts that wait in the queue, behind the one whose fate is awaited."""
_MERGED_MAX: Final = 256
"""The most transactions of several followed partitions that wait to be taken."""


class TimeLimit:
    """Counts how long an answer may still be waited for: all waits up to the first answer together, then each anew."""

    LEAST_S: Final = 0.1
    """The seconds that a wait gets at least, even if none are left: what is there already is taken."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.until_s = float("inf")
        """The time of the loop at which the limit is reached; never before `begin`."""

    def begin(self) -> None:
        """Begin to count, or count anew, for an answer came."""
        self.until_s = asyncio.get_running_loop().time() + self.timeout_s

    def left_s(self) -> float:
        """Return the seconds that are left, rounded for messages."""
        left_s = self.until_s - asyncio.get_running_loop().time()
        return max(self.LEAST_S, round(left_s, 1))

    def pass_over(self, seconds: float) -> None:
        """Do not count so many seconds until now, in which nothing was asked."""
        self.until_s = min(self.until_s + seconds, asyncio.get_running_loop().time() + self.timeout_s)


@dataclass(frozen=True, slots=True)
class HowToAppend:
    """Options of `append`: what each transaction carries beside its body, and how long to wait for its fate."""

    partition: PartitionId
    header: int = 0
    locks: Sequence[Lock] = ()
    expectations: Sequence[Expectation] = ()
    changes: Sequence[Change] = ()
    high_water_mark: TransactionId | None = None
    """The client high-water mark of the transactions; None for how far the client's feed has come."""
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(10.0))

    @property
    def checked(self) -> bool:
        """Whether each append may be refused because of the one before it, and so waits for its fate."""
        return bool(self.locks or self.expectations) or self.high_water_mark is not None


class Register(NamedTuple):
    partition: PartitionId
    key: bytes
    value: bytes

    @property
    def keeper(self) -> str:
        """The part of the library that keeps the register; empty for an application's own."""
        return next((keeper for prefix, keeper in _KEEPERS.items() if self.key.startswith(prefix)), "")


_KEEPERS: Final = {PRODUCERS: "a producer", SPARK_SINKS: "the Spark sink", GROUPS: "a worker group"}


async def conditions(
    log: Log,
    partitions: Iterable[PartitionId],
    timeout_s: float,
    silent: Callable[[PartitionId, DeadlineExceeded], None] | None = None,
    moment_s: float = _MOMENT_S,
) -> list[Condition]:
    """Return the condition of each partition, by its number in the log, with one request per server.

    Raises what `Log.health` raises, and `ProtocolError` for a health document of another form. If a server does not
    answer within `timeout_s` seconds, `silent`, if given, is called in place of raising `DeadlineExceeded`, with the
    first partition of that server, and what is known by then is returned. The partitions first get up to `moment_s`
    seconds, all together, to become ready: a server may have only just started.
    """
    known: dict[PartitionId, Condition] = {}
    requested = list(partitions)
    # Servers tell the cluster's ids, which the partitions of a topic have besides their numbers in it.
    numbers = {log.id_of(partition): partition for partition in requested}
    limit = TimeLimit(timeout_s)
    limit.begin()
    until_s = asyncio.get_running_loop().time() + min(moment_s, timeout_s)
    for partition in requested:
        if partition not in known:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s > 0:
                with suppress(PolonaiseError):
                    await log.ready(partition, timeout=left_s)
            try:
                answer = await log.health(partition, timeout=limit.left_s())
                limit.begin()
            except DeadlineExceeded as error:
                if silent is None:
                    raise
                silent(partition, error)
                break
            for id, condition in judged(answer, f"the owner of partition {partition} answered, but its").items():
                if (number := numbers.get(id)) is not None:
                    known[number] = condition._replace(partition=number)
    return [known[partition] for partition in requested if partition in known]


async def what_keeps(log: Log, limit: TimeLimit) -> dict[str, list[PartitionId]]:
    """Return why partitions take no appends, by the word of their owners, each reason with its partitions.

    Asks when half of the time that is left is over without an answer to what else is asked. Empty if that answer came,
    or if nothing is told.
    """
    until_s, left_s = limit.until_s, limit.left_s()
    await asyncio.sleep(left_s / 2)
    if limit.until_s != until_s:
        return {}
    whys: dict[str, list[PartitionId]] = {}
    with suppress(PolonaiseError):
        partitions = range(log.partition_count)
        for condition in await conditions(log, partitions, 0.4 * left_s, lambda *_: None, moment_s=0.0):
            if condition.waits_for:
                whys.setdefault(condition.waits_for, []).append(condition.partition)
    return whys if limit.until_s == until_s else {}


async def registers(
    log: Log, partitions: Iterable[PartitionId], prefix: bytes, limit: TimeLimit
) -> AsyncGenerator[Register, None]:
    """Yield the registers whose keys begin with `prefix`, by partition and key."""
    for partition in partitions:
        listed = await log.list_registers(prefix, partition, timeout=limit.left_s())
        limit.begin()
        for key, value in listed.items():
            yield Register(partition, key, value)


async def append(log: Log, bodies: AsyncIterable[bytes], how: HowToAppend) -> AsyncGenerator[Receipt, None]:
    """Append each body as a transaction of its own, and yield the receipts, in order, each once it is committed.

    Raises `BadOption` for a client high-water mark below -1 or above the committed one, and `DeadlineExceeded` if the
    partition is not ready in time. Stops at the first append that is not committed, and raises why (`LockConflict`,
    `ExpectationFailed`, `AppendFailed`, …), or `AppendUnknown` if its fate is not known in time. Later appends may be
    in the log then, unless appends are `checked`.
    """
    await log.ready(how.partition, timeout=how.limit.left_s())
    if how.high_water_mark is not None:
        committed = await log.high_water_mark(how.partition, timeout=how.limit.left_s())
        if not -1 <= how.high_water_mark <= committed:
            raise BadOption(
                f"invalid client high-water mark {how.high_water_mark}: partition {how.partition} is committed up to "
                f"id {committed}; give an id from -1 to that"
            )
    made: asyncio.Queue[Receipt | Exception | None] = asyncio.Queue(_PENDING_MAX)
    making = asyncio.create_task(_make(log, bodies, how, made))
    try:
        while (receipt := await made.get()) is not None:
            if isinstance(receipt, Exception):
                raise receipt
            known = await _fate(log, receipt, how)
            how.limit.begin()
            yield known
    finally:
        making.cancel()
        await asyncio.wait([making])


async def _make(
    log: Log, bodies: AsyncIterable[bytes], how: HowToAppend, made: asyncio.Queue[Receipt | Exception | None]
) -> None:
    """Append each body as it comes, and put its receipt into `made`; at the end put None, or the error that ended it.

    Does not wait for further bodies: a person who types them sees each fate.
    """
    loop = asyncio.get_running_loop()
    input_s = loop.time()
    try:
        async for body in bodies:
            how.limit.pass_over(loop.time() - input_s)
            await log.ready(how.partition, timeout=how.limit.left_s())
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
                    return  # `append` awaits this receipt too, and raises why: it takes nothing more from the queue
                await log.wait_applied(receipt.id, how.partition)
            input_s = loop.time()
        await made.put(None)
    except Exception as error:  # noqa: BLE001 - raised by `append`, which takes it from the queue
        await made.put(error)


async def _fate(log: Log, receipt: Receipt, how: HowToAppend) -> Receipt:
    try:
        await receipt.wait(how.limit.until_s)
    except TimeoutError:
        trouble = log.trouble(how.partition)
        because = f"; last error: {trouble.text}" if trouble is not None else ""
        raise AppendUnknown(
            f"an append to partition {how.partition} was sent and is not decided after {how.limit.timeout_s:g} s: "
            f"it may still commit; read the log before you repeat it{because}",
            receipt,
        ) from None
    return await receipt


async def read(
    log: Log,
    partitions: Sequence[PartitionId],
    *,
    after: TransactionId = -1,
    until: TransactionId | None = None,
    since: datetime | timedelta | None = None,
    follow: bool = False,
    limit: TimeLimit,
) -> AsyncGenerator[Transaction, None]:
    """Yield the transactions above id `after`, or committed at `since` or later: one partition after the other.

    A `since` that says how long ago is counted by a server's clock. Ends with id `until` (inclusive) of each partition,
    or with what is committed when its reading begins. With `follow` those of several partitions are merged in the order
    of their arrival, and without `until` there is no end. Raises `BadOption` for `since` together with `after` or
    `until`, and what `Log.read` raises.
    """
    if since is not None and (after != -1 or until is not None):
        raise BadOption("`since` can't be combined with `after` or `until`: start at a time or at an id")
    if not follow or isinstance(since, timedelta):
        # The first answer, with which a server's clock is known as well. Who follows needs none: a log that can't prove
        # its end just now is read and waited for all the same.
        await log.high_water_marks(partitions, timeout=limit.left_s())
    since_time = None if since is None else time_by(since, log.clock_ahead_s)

    def reading(partition: PartitionId) -> AsyncIterator[Transaction]:
        if since_time is not None:
            return log.read_time(partition, since=since_time, follow=follow, timeout=limit.timeout_s)
        return log.read(partition, after=after, until=until, follow=follow, timeout=limit.timeout_s)

    async with aclosing(_all(list(map(reading, partitions)), follow=follow)) as transactions:
        async for tx in transactions:
            yield tx


def time_by(when: datetime | timedelta, clock_ahead_s: float | None = None) -> datetime:
    """Return a time, which may be given as how long ago it was, in UTC.

    `clock_ahead_s` is how far this machine's clock is ahead of the one that counts, in seconds, if that is known.
    """
    if isinstance(when, datetime):
        return when
    now = datetime.fromtimestamp(RealClock().wall_us() / 1e6, UTC)
    return now - timedelta(seconds=clock_ahead_s or 0.0) - when


async def tail(
    log: Log, partitions: Sequence[PartitionId], *, count: int, follow: bool, limit: TimeLimit
) -> AsyncGenerator[Transaction, None]:
    """Yield the last `count` transactions of each partition; with `follow`, also later ones, merged as by `read`."""
    marks = await log.high_water_marks(partitions, timeout=limit.left_s())
    readings = [
        log.read(
            partition,
            after=await _before_last(log, partition, mark, count, limit.timeout_s),
            until=None if follow else mark,
            follow=follow,
            timeout=limit.timeout_s,
        )
        for partition, mark in marks.items()
    ]
    async with aclosing(_all(readings, follow=follow)) as transactions:
        async for tx in transactions:
            yield tx


async def _before_last(
    log: Log, partition: PartitionId, mark: TransactionId, count: int, timeout_s: float
) -> TransactionId:
    """Return the id after which there are `count` transactions of applications up to `mark`; -1 if there are fewer."""
    upto, step = mark, count
    while count and upto >= 0:
        after = max(-1, upto - step)
        ids: list[TransactionId] = []
        async with aclosing(
            log.read_batches(partition, after=after, until=upto, with_data=False, timeout=timeout_s)
        ) as batches:
            async for batch in batches:
                ids += [
                    batch.first + index
                    for index, generation in enumerate(batch.generations.tolist())
                    if generation >= 0 and after < batch.first + index <= upto
                ]
        if len(ids) >= count:
            return ids[-count] - 1
        # Only now further back, for what is further back may have been trimmed; and ever further, for the library may
        # have written many in a row.
        count, upto, step = count - len(ids), after, 2 * step
    return upto


async def _all(readings: Sequence[AsyncIterator[Transaction]], *, follow: bool) -> AsyncGenerator[Transaction, None]:
    if not follow or len(readings) == 1:
        for reading in readings:
            async for tx in reading:
                yield tx
        return
    async with aclosing(_merged(readings)) as merged:
        async for tx in merged:
            yield tx


async def _merged(readings: Sequence[AsyncIterator[Transaction]]) -> AsyncGenerator[Transaction, None]:
    # Bounded: a reading that brings more than is taken has to wait. None is the end of a reading.
    arrived: asyncio.Queue[Transaction | BaseException | None] = asyncio.Queue(_MERGED_MAX)

    async def pump(reading: AsyncIterator[Transaction]) -> None:
        try:
            async for tx in reading:
                await arrived.put(tx)
            await arrived.put(None)
        except Exception as error:  # noqa: BLE001 - raised below, in the reader's task
            await arrived.put(error)

    pumps = [asyncio.create_task(pump(reading)) for reading in readings]
    going_on = len(pumps)
    try:
        while going_on:
            arrival = await arrived.get()
            if isinstance(arrival, BaseException):
                raise arrival
            if arrival is None:
                going_on -= 1
            else:
                yield arrival
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.wait(pumps)


def new_embedded_address(address: str, partitions: int | None, storage: int | None) -> str:
    """Return the address that makes an embedded log of these numbers of partitions and storage directories.

    None stands for what the address has. Raises `BadOption` for an address that makes no log or gives a number as well,
    and `AlreadyInitialized` if there is a log already.
    """
    if not address.startswith(embedded.SCHEME):
        raise BadOption(
            f"{redacted_address(address)!r}: write embedded:PATH; the log of a cluster is made when its storage nodes "
            "and servers start"
        )
    parsed = embedded.parse_embedded(address)
    if not parsed.may_host:
        raise BadOption(f"{redacted_address(address)!r}: host=no never makes a log: leave it out")
    if embedded.is_there(address):
        raise AlreadyInitialized(f"{parsed.directory} holds a log already: append to it, or choose another directory")
    options = []
    for name, option, in_address in (
        ("partitions", partitions, parsed.partitions),
        ("storage", storage, parsed.storage),
    ):
        if option is not None and in_address is not None:
            raise BadOption(f"{name} is given twice, by --{name} and in the address: give it once")
        options += [] if option is None else [f"{name}={option}"]
    complete = address + ("&" if "?" in address else "?") + "&".join(options) if options else address
    embedded.parse_embedded(complete)
    return complete
