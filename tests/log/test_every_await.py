"""What can be seen of a log at every await of whatever changes it, and what a task leaves that is cancelled there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from polonaise.errors import PolonaiseError
from polonaise.host import Disk, Host
from polonaise.log import registers, tail
from polonaise.log.batch import Batch
from polonaise.log.control import ControlFile
from polonaise.log.openfiles import OpenFiles
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.log.segment import DamageFound
from polonaise.log.segmentreader import SegmentCache
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import (
    DIRECTORY,
    KEY,
    PARTITION,
    Maker,
    Open,
    crcs,
    in_one_life,
    opened_on,
    segment_path,
    simulate,
    simulated,
)

SMALL = LogSettings(segment_bytes_max=700)
EVERYTHING = 2**62
READS_MAX = 3


class Watch:
    """Looks at a log after every step of the event loop, and reads it beside each of its calls to the disk."""

    def __init__(self, log: PartitionLog, held: list[Batch], reads: int) -> None:
        """`reads`: how many ids are read beside each call; a segment that is read is not closed meanwhile."""
        self.log = log
        self.reads = reads
        self.held = {batch.last: batch for batch in held}
        """By their ends, whatever the log may hold by now: one batch for each id."""
        self.least = log.last
        """What has to be there."""
        self.looks = 0
        self.answered = 0
        self._reads: list[asyncio.Task[None]] = []
        self._wrong: list[str] = []
        self._loop: Any = asyncio.get_running_loop()
        self._call_soon = self._loop.call_soon
        self._disk: Any = log._host.disk

    def __enter__(self) -> Watch:
        def call_soon(callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
            def step(*args: Any) -> None:
                callback(*args)
                self._look()

            return self._call_soon(step, *args, context=context)

        submit = self._disk.submit

        def reading_beside(*args: Any, **kwargs: Any) -> Any:
            if asyncio.current_task() not in self._reads:
                asked = (0, self.least // 2, self.least)[: self.reads]
                self._reads += [asyncio.create_task(self._read(each)) for each in asked]
                if self.reads == READS_MAX:
                    self._reads.append(asyncio.create_task(self._read_by_time(self.least - 1)))
            return submit(*args, **kwargs)

        self._loop.call_soon = call_soon
        self._disk.submit = reading_beside
        return self

    def __exit__(self, *_: object) -> None:
        del self._loop.call_soon, self._disk.submit

    async def settled(self) -> None:
        """Raises unless all that was seen and read was right."""
        await asyncio.gather(*self._reads)
        assert not self._wrong
        assert self.looks > 10
        assert self.answered > 0 or not self.reads

    def _look(self) -> None:
        log = self.log
        if log.broken is not None:
            return
        self.looks += 1
        if log.last < self.least or (log.last_crc != self.held[log.last].crc if log.last >= 0 else log.last_crc):
            self._wrong.append(f"it ends at {log.last} with {log.last_crc:#x}")
        following = log.segments[0].first if log.segments else -1
        if following > log.first:
            self._wrong.append(f"it begins at {following}, not at {log.first}")
        for each in log.segments:
            if each.first != following:
                self._wrong.append(f"a segment from {each.first} where {following} follows")
            following = each.last + 1
        if following != log.last + 1:
            self._wrong.append(f"segments up to {following - 1}, and it ends at {log.last}")
        values: dict[bytes, bytes] = {}
        registers.apply(values, log.registers_snapshot())
        if values != ({b"end": b"%d" % log.last} if log.last >= 0 else {}):
            self._wrong.append(f"registers {values} at {log.last}")

    async def _read(self, first: int) -> None:
        try:
            batches = await self.log.read(first, EVERYTHING, 1 << 20)
        except PolonaiseError as error:
            if error.code not in ("partition_unavailable", "history_trimmed"):
                raise
            return
        self.answered += 1
        if not batches or crcs(batches[:1]) != crcs([self.held[first]]):
            self._wrong.append(f"a read of {first} was answered {crcs(batches)}, and {self.least} is held")

    async def _read_by_time(self, id: int) -> None:
        try:
            batches = await self.log.read(0, EVERYTHING, 1, after_time_us=1000 * id)
        except PolonaiseError as error:
            if error.code not in ("partition_unavailable", "history_trimmed"):
                raise
            return
        self.answered += 1
        if not batches or batches[0].first != id:
            self._wrong.append(f"a read from the time of {id} on was answered {crcs(batches)}")


def made_batches(number: int) -> list[Batch]:
    maker = Maker()
    return [maker.batch(size=60, changes=[(b"end", b"%d" % position)]) for position in range(number)]


def watched(change: Callable[[Open, Watch, list[Batch]], Awaitable[None]], capacity: int) -> None:
    """Watch a log of twelve batches in several segments while it is changed."""
    for reads in range(READS_MAX + 1):
        _watched(change, capacity, reads)


def _watched(change: Callable[[Open, Watch, list[Batch]], Awaitable[None]], capacity: int, reads: int) -> None:

    async def scenario(machine: Machine) -> None:
        async def main(host: Host) -> None:
            made = made_batches(40)
            opened = await Open.on(host, SMALL, cache=SegmentCache(capacity))
            await opened.append_each(made[:12])
            assert len(opened.log.segments) >= 3
            watch = Watch(opened.log, made, reads)
            with watch:
                await change(opened, watch, made)
            await watch.settled()

        await machine.start(main).ended()

    simulate(scenario)


CAPACITIES = pytest.mark.parametrize("capacity", [0, 1, 32])


@pytest.mark.slow
@CAPACITIES
def test_a_log_that_rolls_has_all_that_it_holds_at_every_moment(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "CHECKPOINT_BATCHES", 2)

    async def rolls(opened: Open, watch: Watch, made: list[Batch]) -> None:
        segments = len(opened.log.segments)
        for batch in made[12:]:
            await opened.log.append([batch])
            watch.least = batch.last
        assert len(opened.log.segments) >= segments + 5

    watched(rolls, capacity)


@pytest.mark.slow
@CAPACITIES
@pytest.mark.parametrize("last", [11, 10, 7, 3])
def test_a_log_that_is_cut_has_what_is_kept_or_is_not_to_be_used(last: int, capacity: int) -> None:
    async def cuts(opened: Open, watch: Watch, made: list[Batch]) -> None:
        watch.least = last
        await opened.slot.record_failed_sync(last)
        await opened.log.cut(last)
        await opened.append_each(made[last + 1 :])

    watched(cuts, capacity)


@pytest.mark.slow
@CAPACITIES
def test_a_log_that_is_trimmed_has_what_is_left(capacity: int) -> None:
    async def trims(opened: Open, watch: Watch, made: list[Batch]) -> None:
        while opened.log.may_trim(10):
            await opened.log.trim(10)
        assert 0 < opened.log.first < 10
        for batch in made[12:]:
            await opened.log.append([batch])
            watch.least = batch.last

    watched(trims, capacity)


@pytest.mark.slow
@CAPACITIES
def test_a_log_that_is_read_again_after_damage_has_what_is_good_or_is_not_to_be_used(capacity: int) -> None:
    async def loses(opened: Open, watch: Watch, made: list[Batch]) -> None:
        watch.least = 5
        await opened.log.lose_above(5, "damage")
        assert opened.log.last == 5
        await opened.log.cut(5)
        await opened.append_each(made[6:])

    watched(loses, capacity)


@pytest.mark.slow
@CAPACITIES
def test_a_log_that_is_closed_has_everything_until_it_can_not_be_used(capacity: int) -> None:
    async def closes(opened: Open, watch: Watch, made: list[Batch]) -> None:
        await opened.log.append([made[12]])
        watch.least = 12
        await opened.log.append([made[13]])
        watch.least = 13
        await opened.log.close()
        with pytest.raises(PolonaiseError):
            await opened.log.read(0, 13, 1 << 20)

    watched(closes, capacity)


@pytest.mark.slow
@simulated
async def test_a_segment_that_grows_while_its_index_is_asked_for_is_read_to_its_end_ever_after(
    machine: Machine,
) -> None:
    """A search by time lists the segments, and comes to the last one when that is sealed, longer, and closed."""
    made = made_batches(40)
    async with opened_on(machine, SMALL, SegmentCache(1)) as opened:
        await opened.append_each(made[:7])
        growing = opened.log.segments[-1]
        await opened.log.read(0, 0, 1)  # no room in the cache for another one
        machine.disk.slow(0.2)
        asked = asyncio.create_task(opened.log.read(0, EVERYTHING, 1 << 20, after_time_us=6_000))
        await asyncio.sleep(0.001)
        machine.disk.slow(0.0)
        await opened.append_each(made[7:16])
        sealed = next(each for each in opened.log.segments if each.first == growing.first)
        assert sealed.last > growing.last
        assert (await asked)[0].first == 6
        held = await opened.log.read(sealed.first, sealed.last, 1 << 20)
        assert (held[0].first, held[-1].last) == (sealed.first, sealed.last)


@pytest.mark.slow
@in_one_life(settings=SMALL)
async def test_damage_that_is_examined_while_the_segment_is_sealed_hides_nothing_that_follows(
    machine: Machine, opened: Open
) -> None:
    made = made_batches(40)
    await opened.append_each(made[:7])
    growing = opened.log.segments[-1]
    path = segment_path(growing.first)
    machine.disk.flip_bit(path, growing.header.data_start + 40)
    machine.disk.slow(0.2)
    asked = asyncio.create_task(opened.log.read(growing.first, EVERYTHING, 1 << 20))
    await asyncio.sleep(0.25)  # the bad bytes are read, and are looked at again
    machine.disk.slow(0.0)
    machine.disk.flip_bit(path, growing.header.data_start + 40)  # they were wrong on their way only
    await opened.append_each(made[7:16])
    sealed = next(each for each in opened.log.segments if each.first == growing.first)
    assert sealed.last > growing.last
    try:
        assert (await asked)[0].first == growing.first
    except DamageFound:
        pytest.fail("the bytes are good")
    held = await opened.log.read(sealed.first, sealed.last, 1 << 20)
    assert (held[0].first, held[-1].last) == (sealed.first, sealed.last)


@pytest.mark.slow
@simulated
async def test_logs_that_are_given_one_cache_share_it(machine: Machine) -> None:
    cache = SegmentCache(0)
    async with opened_on(machine, SMALL, cache):
        assert len(cache) == 1


Work = Callable[[Host, SegmentCache], Awaitable[Callable[[], Awaitable[None]]]]
"""Prepares something, and returns what is cancelled."""


NO_CALLS = ("entries", "identity")
"""What the simulated disk answers at once, and a real one in a thread, so that a task may be cancelled meanwhile."""


class Cut:
    """Cancels a task at its call of this number: while that is under way, or when its outcome is on the way."""

    def __init__(self, host: Host, number: int, late: bool) -> None:
        self._disk: Any = host.disk
        self._left = number
        self._late = late
        self.task: asyncio.Task[None]

    async def through(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether it was cut short."""
        submit, loop = self._disk.submit, asyncio.get_running_loop()

        def counting(*args: Any, **kwargs: Any) -> Any:
            return self._counted(submit(*args, **kwargs))

        async def waiting(call: Callable[[str], Awaitable[Any]], path: str) -> Any:
            future = loop.create_future()
            loop.call_soon(lambda: future.done() or future.set_result(None))
            await self._counted(future)
            return await call(path)

        async def run() -> None:
            await work()

        self._disk.submit = counting
        for name in NO_CALLS:
            setattr(self._disk, name, partial(waiting, getattr(self._disk, name)))
        self.task = asyncio.create_task(run())
        try:
            await asyncio.wait([self.task])
        finally:
            for name in ("submit", *NO_CALLS):
                delattr(self._disk, name)
        await asyncio.sleep(0.1)
        if not self.task.cancelled():
            self.task.result()
        return self.task.cancelled()

    def _counted(self, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        if asyncio.current_task() is self.task:
            self._left -= 1
            if not self._left and self._late:
                future.add_done_callback(lambda _: self.task.cancel())
            elif not self._left:
                asyncio.get_running_loop().call_soon(self.task.cancel)
        return future


async def opens(
    host: Host, cache: SegmentCache, partition: int = PARTITION, disk: Disk | None = None
) -> Callable[[], Awaitable[None]]:
    control = await ControlFile.open(host, DIRECTORY, KEY)

    async def work() -> None:
        slot = await control.load(partition)
        assert slot is not None
        log = await PartitionLog.open(host, control.partition_directory(partition), slot, SMALL, cache, disk)
        await log.close()

    return work


async def opens_an_empty_log(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    """Its first segment is made anew."""
    control = await ControlFile.open(host, DIRECTORY, KEY)
    if await control.load(PARTITION + 1) is None:
        slot = await control.create(PARTITION + 1)
        await (await PartitionLog.open(host, control.partition_directory(PARTITION + 1), slot, SMALL)).close()
    await control.close()
    return await opens(host, cache, PARTITION + 1)


async def opens_with_few_files(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    return await opens(host, cache, disk=OpenFiles(host.disk, 1))


async def opens_control(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        control = await ControlFile.open(host, DIRECTORY, KEY)
        await control.close()

    return work


async def reads(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    opened = await Open.on(host, SMALL, cache=cache)

    async def work() -> None:
        for first in (0, 4, 8, 11, 1):
            await opened.log.read(first, 11, 1 << 20)

    return work


async def rolls_and_cuts(host: Host, cache: SegmentCache) -> Callable[[], Awaitable[None]]:
    opened = await Open.on(host, SMALL, cache=cache)

    async def work() -> None:
        try:
            await opened.append_each(Maker(opened.log.last, opened.log.last_crc).batches(4, size=60))
            await opened.log.cut(5)
        finally:
            await opened.log.close()

    return work


@pytest.mark.exhaustive  # of moments
@pytest.mark.parametrize("late", [False, True], ids=["during a call", "when its outcome is on the way"])
@pytest.mark.parametrize("capacity", [0, 32])
@pytest.mark.parametrize(
    "prepare", [opens, opens_an_empty_log, opens_with_few_files, opens_control, reads, rolls_and_cuts]
)
def test_what_was_opened_is_closed(prepare: Work, capacity: int, late: bool) -> None:
    async def write(host: Host) -> None:
        opened = await Open.on(host, SMALL)
        await opened.append_each(Maker().batches(12, size=60))
        await opened.close()

    async def cut_short(machine: Machine, number: int) -> bool:
        cut = False

        async def main(host: Host) -> None:
            nonlocal cut
            cache = SegmentCache(capacity)
            work = await prepare(host, cache)
            cut = await Cut(host, number, late).through(work)
            known = [path for path in process.handles if path.endswith(".seq")]
            assert len(known) == len(cache), known
            assert not [path for path in process.handles if path.endswith((".idx", ".new"))]
            if prepare is opens_control:
                assert not process.handles
            with contextlib.suppress(PolonaiseError):
                if prepare is not opens_control:
                    return
                await (await ControlFile.open(host, DIRECTORY, KEY)).close()

        process: Process = machine.start(main)
        await process.ended()
        return cut

    async def scenario(machine: Machine) -> int:
        await machine.start(write).ended()
        number = 1
        while await cut_short(machine, number):
            number += 1
        return number

    assert simulate(scenario) > 5
