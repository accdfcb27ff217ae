"""What is not in the paper: as many deliveries as there can be, a target that is stopped, and one that lacks much."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.deliveries.children import Child, resident_mb
from benchmarks.deliveries.delays import Delays
from benchmarks.deliveries.form import LATE, Workload, late_transaction
from benchmarks.deliveries.pace import at_rate
from benchmarks.deliveries.rig import LOOK_S, Delivered, Log, delivered, deliveries
from benchmarks.loads import Missing

OUTSTANDING = 256
"""The appends that are not committed yet at any time, when the log is to be as quick as it can."""
FILLING = 2_000
"""The appends that are outstanding while the log is filled."""
CATCH_UP_S = 600.0
"""The longest that a target may take to catch up."""


@dataclass(frozen=True)
class Saturation:
    """How many deliveries there were a second: while the log was written, and of a log written before."""

    written_per_second: float
    """The transactions that were committed a second, meanwhile."""
    while_written: float
    from_log: float
    memory_mb: float
    """The player's resident memory in the end."""


async def saturation(log: Log, transport: str, workload: Workload, seconds: float, processes: int) -> Saturation:
    """Append as quickly as the log takes it for some seconds; then deliver the same again, with another player."""
    transactions = workload.transactions()
    number = 0
    mark = await log.mark()

    async def keep(until_s: float) -> None:
        nonlocal number
        while time.monotonic() < until_s:
            number += 1
            await log.client.append(transactions.transaction(number - 1), partition=0)

    async with delivered(log, transport, workload.names, processes) as setup:
        began_ns = time.monotonic_ns()
        await asyncio.gather(*(keep(time.monotonic() + seconds) for _ in range(OUTSTANDING)))
        written_s = (time.monotonic_ns() - began_ns) / 1e9
        expected = transactions.expected(0, number)
        total = sum(expected.values())
        await setup.all_received(expected, CATCH_UP_S)
        ended_ns = max(each["last_ns"] for each in (await setup.collect()).values())
        while_written = 1e9 * total / (ended_ns - began_ns)
        memory_mb = (await setup.sender.ask("usage"))["memory_mb"]
    async with delivered(log, transport, workload.names, processes, after=mark) as setup:
        await setup.all_received(expected, CATCH_UP_S)
        notes = await setup.collect()
        began_ns = min(each["first_ns"] for each in notes.values())
        ended_ns = max(each["last_ns"] for each in notes.values())
        from_log = 1e9 * total / (ended_ns - began_ns)
    return Saturation(number / written_s, while_written, from_log, memory_mb)


@dataclass(frozen=True)
class Stopped:
    """What one stopped target means for the others, for the player's memory, and for itself when it is back."""

    stopped_s: float
    before: Delays
    meanwhile: Delays
    """Of the other targets, while one is stopped."""
    catching_up: Delays | None
    """Of the other targets, from its return until it has caught up; None if that took no time."""
    memory_before_mb: float
    memory_most_mb: float
    lacked: int
    """The entries that the target lacked when it came back."""
    back_s: float
    """How long after its return it got the first of them."""
    caught_up_s: float
    """How long after its return it had them all."""


async def stopped_target(
    log: Log, transport: str, workload: Workload, rate: float, seconds: float, stopped_s: float, processes: int
) -> Stopped:
    """Stop the process of one target for a while, under the paper's load."""
    victim, *others = workload.names
    transactions = workload.transactions()
    phase_of: list[str] = []
    """The phase of each transaction, by number."""
    phase = "warming"
    receipts = []
    most_mb = 0.0

    def append(number: int) -> None:
        phase_of.append(phase)
        receipts.append(log.client.append(transactions.transaction(number), partition=0))

    async with delivered(log, transport, workload.names, processes, alone=[victim]) as setup:
        host = setup.hosts[victim]
        endless = 10**9
        load = asyncio.create_task(at_rate(append, rate, 0, endless))

        async def last(how_long_s: float) -> None:
            """Let the phase last, and watch the player's memory."""
            nonlocal most_mb
            until_s = time.monotonic() + how_long_s
            while time.monotonic() < until_s:
                if load.done():
                    load.result()
                most_mb = max(most_mb, resident_mb(setup.sender.pid))
                await asyncio.sleep(min(0.5, how_long_s))

        try:
            await last(seconds / 5)
            phase = "before"
            most_mb = 0.0
            await last(seconds)
            before_mb, most_mb = most_mb, 0.0
            host.signal(signal.SIGSTOP)
            phase = "stopped"
            await last(stopped_s)
            phase = "catching up"
            returned_s = time.monotonic()
            host.signal(signal.SIGCONT)
            had = (await setup.counts([host]))[victim]
            lacked = transactions.expected(0, len(phase_of))[victim] - had
            back_s = await _until(setup, [host], victim, had + 1, returned_s)
            caught_up_s = await _until(setup, [host], victim, had + lacked, returned_s)
            phase = "after"
            await last(seconds)
        finally:
            host.signal(signal.SIGCONT)  # or it could not be ended
            load.cancel()
        await asyncio.gather(*receipts)
        await setup.all_received(transactions.expected(0, len(phase_of)), CATCH_UP_S)
        notes = await setup.collect()
    times = deliveries({name: notes[name] for name in others})

    def of(*phases: str) -> Delays | None:
        found = [each for each in times if phase_of[each.number] in phases]
        return Delays.of(found) if found else None

    before, meanwhile = of("before"), of("stopped")
    if before is None or meanwhile is None:
        raise Missing("nothing was delivered")
    figures = (before_mb, most_mb, lacked, back_s, caught_up_s)
    return Stopped(stopped_s, before, meanwhile, of("catching up"), *figures)


async def _until(setup: Delivered, of: Iterable[Child], target: str, count: int, since_s: float) -> float:
    """Wait until a target has received so many entries; return how long that took since `since_s`."""
    while (await setup.counts(of))[target] < count:
        if time.monotonic() > since_s + CATCH_UP_S:
            raise Missing(f"{target} has not caught up within {CATCH_UP_S:g} s")
        await asyncio.sleep(LOOK_S)
    return time.monotonic() - since_s


@dataclass(frozen=True)
class Behind:
    """How quickly a target that lacked much caught up, and what that meant for the others."""

    entries: int
    per_second: float
    before: Delays
    """Of the other targets, before the late one was added."""
    meanwhile: Delays
    memory_most_mb: float


async def fill(log: Log, entries: int) -> None:
    """Append as many transactions for the late target alone."""
    for first in range(0, entries, FILLING):
        numbers = range(first, min(first + FILLING, entries))
        await asyncio.gather(*(log.client.append(late_transaction(number), partition=0) for number in numbers))


async def behind(
    log: Log, transport: str, workload: Workload, rate: float, seconds: float, entries: int, processes: int
) -> Behind:
    """Add a target that lacks so many entries to a player that is at work."""
    mark = await log.mark()
    await fill(log, entries)
    transactions = workload.transactions()
    since: list[int] = []
    """The number of the first transaction after the late target was added."""
    numbers = 0
    receipts = []

    def append(number: int) -> None:
        nonlocal numbers
        numbers = number + 1
        receipts.append(log.client.append(transactions.transaction(number), partition=0))

    async with delivered(log, transport, workload.names, processes, alone=[LATE]) as setup:
        load = asyncio.create_task(at_rate(append, rate, 0, 10**9))
        most_mb = 0.0
        try:
            await asyncio.sleep(seconds * 6 / 5)
            since.append(numbers)
            began_ns = time.monotonic_ns()
            await setup.sender.ask("add", name=LATE, address=setup.addresses[LATE], after=mark)
            while (await setup.counts([setup.hosts[LATE]]))[LATE] < entries:
                if time.monotonic_ns() > began_ns + CATCH_UP_S * 1e9:
                    raise Missing(f"the late target has not caught up within {CATCH_UP_S:g} s")
                if load.done():
                    load.result()
                most_mb = max(most_mb, resident_mb(setup.sender.pid))
                await asyncio.sleep(0.1)
            since.append(numbers)
        finally:
            load.cancel()
        await asyncio.gather(*receipts)
        await setup.all_received({**transactions.expected(0, numbers), LATE: entries}, CATCH_UP_S)
        notes = await setup.collect()
    took_s = (notes[LATE]["last_ns"] - began_ns) / 1e9
    times = deliveries({name: each for name, each in notes.items() if name != LATE})
    warming = int(since[0] / 6)
    return Behind(
        entries,
        entries / took_s,
        Delays.of(each for each in times if warming <= each.number < since[0]),
        Delays.of(each for each in times if since[0] <= each.number < since[1]),
        most_mb,
    )
