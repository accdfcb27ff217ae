"""Measure how fast clients append to a log and follow it, for `polonaise bench`."""

from __future__ import annotations

import asyncio
import random
import secrets
import struct
import time
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from polonaise.errors import AppendUnknown, BadOption, DeadlineExceeded, PolonaiseError, Retry
from polonaise.terms import PartitionId

if TYPE_CHECKING:
    from polonaise.client.log import Log

Connect = Callable[[], AbstractAsyncContextManager["Log"]]
"""Opens one client of the log."""

_LOCK_NAME: Final = "polonaise-bench"
_MARK: Final = struct.Struct("<8sQ")
"""The beginning of each body: the run that it is of, and its number among its client's appends."""
SIZE_MIN: Final = _MARK.size
"""The least bytes of a body."""
_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Load:
    """What a benchmark appends, and how."""

    transactions: int
    """The transactions that each producing client appends."""
    clients: int = 1
    """The clients, each with connections of its own: producers or consumers."""
    size: int = 100
    """The bytes of each body: `SIZE_MIN` at least."""
    interval_s: float = 0.0
    """The average pause of a client between the beginnings of two appends, in seconds; drawn from 0 to twice that."""
    outstanding: int = 64
    """The most appends of a client whose fate is open."""
    lock_pool: int = 0
    """The number of different locks; 0 for appends without locks."""
    locks: int = 1
    """The WRITE locks of each transaction, drawn from the pool, if there is one."""
    partitions: Sequence[PartitionId] = (0,)
    """The partitions, which each client appends to by turns."""
    timeout_s: float = 10.0
    """The longest that one append may take; a consumer waits as long, and for the producer's longest pause besides."""
    seed: int = 1
    """The seed from which locks and pauses are drawn."""

    def check(self) -> None:
        """Raise `BadOption` for a load that can't be run."""
        if self.size < SIZE_MIN:
            raise BadOption(f"a body of {self.size} bytes is too short to be told apart: give {SIZE_MIN} or more")
        if self.lock_pool and self.locks > self.lock_pool:
            raise BadOption(
                f"{self.locks} locks a transaction can't be drawn from a pool of {self.lock_pool}: make the pool larger"
            )
        if not self.partitions:
            raise BadOption("no partition is named: give one at least")


@dataclass(slots=True)
class Measured:
    """What a benchmark has measured."""

    seconds: float = 0.0
    """The seconds from the start of all clients' work to its end."""
    body_bytes: int = 0
    """The bytes of the bodies that were committed or, of consumers, received by all of them together."""
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    """The latency of each commit or, of consumers, of each arrival at one of them, in seconds."""
    again: int = 0
    """How often a transaction was made again, because of a lock conflict or a failure that may pass."""
    failed: Counter[str] = field(default_factory=Counter)
    """The number of appends that were not known to be committed in the end, by error code."""
    fault: PolonaiseError | None = None
    """A failure that would come again with every append; None without one."""

    @property
    def transactions(self) -> int:
        """The number of commits or, of consumers, of arrivals: one transaction arrives at each consumer."""
        return len(self.latencies_s)

    def document(self) -> dict[str, Any]:
        """Return the measurement as a JSON-ready document; latencies are in milliseconds."""
        ordered = sorted(self.latencies_s)
        seconds = max(self.seconds, 1e-9)
        latencies = {f"p{each:g}": _percentile(ordered, each) * 1000 for each in _PERCENTILES}
        mean = sum(ordered) / len(ordered) if ordered else 0.0
        return {
            "transactions": self.transactions,
            "seconds": round(self.seconds, 6),
            "transactions_per_s": round(self.transactions / seconds, 3),
            "bytes_per_s": round(self.body_bytes / seconds, 3),
            "latency_ms": {
                "mean": round(mean * 1000, 6),
                **{name: round(value, 6) for name, value in latencies.items()},
                "max": round((ordered[-1] if ordered else 0.0) * 1000, 6),
            },
            "made_again": self.again,
            "failed": dict(self.failed),
        }


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the least value that at least `percent` of these ordered values don't exceed; 0 without values."""
    if not ordered:
        return 0.0
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


async def bench_producers(connect: Connect, load: Load) -> Measured:
    """Append to the log with several clients at once, and measure from each append to its commit.

    Appends with locks are transaction contexts, which run again after a conflict. Failures are counted, but one that
    would come again with every append, such as `BodyTooLarge`, is raised. Also raises `BadOption` for an invalid load,
    `DeadlineExceeded` if a partition is not ready within `Load.timeout_s` seconds, and what connecting raises.
    """
    load.check()
    measured = Measured()
    async with AsyncExitStack() as closing:
        logs = [await closing.enter_async_context(connect()) for _ in range(load.clients)]
        await _mounted(logs, load)
        run, began_s = secrets.token_bytes(8), time.monotonic()
        await _together([_produce(log, load, run, number, measured) for number, log in enumerate(logs)])
        measured.seconds = time.monotonic() - began_s
    return measured


async def bench_consumers(connect: Connect, load: Load) -> Measured:
    """Follow the log with several clients while another one appends; measure from each append to each arrival.

    Each consumer receives every transaction of the run. Raises what `bench_producers` does, and `DeadlineExceeded` if
    no transaction of the run comes for `Load.timeout_s` and the producer's longest pause: one whose append failed never
    comes.
    """
    load.check()
    produced, consumed = Measured(), Measured()
    async with AsyncExitStack() as closing:
        producer = await closing.enter_async_context(connect())
        consumers = [await closing.enter_async_context(connect()) for _ in range(load.clients)]
        await _mounted([producer], load)
        marks = {each: await producer.high_water_mark(each, timeout=load.timeout_s) for each in load.partitions}
        run, sent_s = secrets.token_bytes(8), dict[int, float]()
        shares = Counter(load.partitions[number % len(load.partitions)] for number in range(load.transactions))
        began_s = time.monotonic()
        await _together(
            [
                _produce(producer, load, run, 0, produced, sent_s),
                *(
                    _consume(log, partition, marks[partition], count, load, run, sent_s, consumed)
                    for log in consumers
                    for partition, count in shares.items()
                ),
            ]
        )
        consumed.seconds = time.monotonic() - began_s
    return consumed


async def _mounted(logs: Sequence[Log], load: Load) -> None:
    """Wait until every partition takes appends of every client, which is not to be measured."""
    for log in logs:
        for partition in load.partitions:
            await log.ready(partition, timeout=load.timeout_s)


async def _produce(
    log: Log, load: Load, run: bytes, client: int, measured: Measured, sent_s: dict[int, float] | None = None
) -> None:
    """Append one client's share. `sent_s`, if given, takes the time at which each append began, by its number."""
    source = random.Random(f"{load.seed}/{client}")
    room = asyncio.Semaphore(load.outstanding)
    rest = bytes(load.size - SIZE_MIN)
    next_s = time.monotonic()
    tasks: set[asyncio.Task[None]] = set()
    try:
        for number in range(load.transactions):
            if load.interval_s:
                next_s += load.interval_s * 2 * source.random()
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            await room.acquire()
            if measured.fault is not None:
                break
            partition = load.partitions[number % len(load.partitions)]
            locks = source.sample(range(load.lock_pool), load.locks) if load.lock_pool else ()
            if sent_s is not None:
                sent_s[number] = time.monotonic()
            body = _MARK.pack(run, number) + rest
            task = asyncio.create_task(_append(log, load, partition, body, locks, measured))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: room.release())
        await asyncio.gather(*tasks)
        if measured.fault is not None:
            raise measured.fault
    finally:
        for task in list(tasks):
            task.cancel()


async def _append(
    log: Log, load: Load, partition: PartitionId, body: bytes, locks: Sequence[int], measured: Measured
) -> None:
    began_s = time.monotonic()
    runs = 0

    def context(tx: Any) -> None:
        nonlocal runs
        runs += 1
        for lock in locks:
            tx.write_lock(_LOCK_NAME, lock)
        tx.append(body)

    try:
        if locks:
            await log.run(context, partition=partition, timeout=load.timeout_s)
        else:
            async with asyncio.timeout(load.timeout_s):
                await log.append(body, partition)
    except TimeoutError:
        measured.failed["deadline_exceeded"] += 1
    except PolonaiseError as error:
        if error.retry is Retry.NEVER and not isinstance(error, AppendUnknown):
            measured.fault = error
        measured.failed[error.code] += 1
    else:
        measured.latencies_s.append(time.monotonic() - began_s)
        measured.body_bytes += len(body)
    measured.again += max(0, runs - 1)


async def _consume(
    log: Log,
    partition: PartitionId,
    after: int,
    count: int,
    load: Load,
    run: bytes,
    sent_s: dict[int, float],
    measured: Measured,
) -> None:
    """Follow one partition until `count` transactions of the run have come. Raises `DeadlineExceeded`."""
    longest_s = load.timeout_s + 2 * load.interval_s * len(load.partitions)
    now_s = asyncio.get_running_loop().time
    try:
        # Not the reader's own time-out: while it follows, an owner that answers that nothing is new is soon enough.
        async with asyncio.timeout(longest_s) as limit:
            async for transaction in log.read(partition, after=after, follow=True):
                data = bytes(transaction.data)
                if len(data) >= SIZE_MIN and data.startswith(run):
                    measured.latencies_s.append(time.monotonic() - sent_s[_MARK.unpack_from(data)[1]])
                    measured.body_bytes += len(data)
                    count -= 1
                    if not count:
                        return
                    limit.reschedule(now_s() + longest_s)
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"partition {partition} still lacks {count} of the run's transactions after {longest_s:g} s without one: "
            "their appends failed, or the partition is not ready: look at `polonaise log health`"
        ) from error


async def _together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run these at once; if one raises, cancel the others and raise the same."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
