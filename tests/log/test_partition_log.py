"""One partition's log on one disk: what it keeps, what it gives back, what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from polonaise.errors import DiskFailed, DiskFull, LogForked, OutOfOrder
from polonaise.host import Host
from polonaise.log import registers
from polonaise.log.partitionlog import LogSettings, digest
from polonaise_proving.stages.simulated.world import Machine
from rigs.faults import raises_code
from rigs.log import SEGMENT, Maker, Open, alive, contents, crcs, in_one_life, life, opened_on, simulate, simulated


@simulated
async def test_what_was_appended_is_read_back_after_a_restart(machine: Machine) -> None:
    made = Maker().batches(5, count=3)

    async with opened_on(machine) as opened:
        await opened.log.append(made[:2])
        await opened.log.append(made[2:])
        assert crcs(await contents(opened.log)) == crcs(made)
        await opened.close()
    async with opened_on(machine) as opened:
        assert (opened.log.last, opened.log.last_crc) == (14, made[-1].crc)
        assert crcs(await contents(opened.log)) == crcs(made)
        assert not opened.slot.promises.may_have_lost


@simulated
async def test_segments_roll_and_reading_crosses_them(machine: Machine) -> None:
    made = Maker().batches(40, size=100)

    async with opened_on(machine, LogSettings(segment_bytes_max=1500)) as opened:
        await opened.append_each(made)
        assert len(opened.log.segments) > 5
        assert crcs(await contents(opened.log)) == crcs(made)
    async with opened_on(machine) as opened:
        assert opened.log.last == 39
        assert crcs(await contents(opened.log, 300)) == crcs(made)


@pytest.mark.parametrize("last", [-1, 0, 5, 20, 38, 39])
@simulated
async def test_a_cut_removes_what_is_above_and_the_log_goes_on_from_there(machine: Machine, *, last: int) -> None:
    made = Maker().batches(40, size=100, changes=[(b"k", b"v")])
    kept = made[: last + 1]

    async def cut(host: Host) -> list[tuple[int, int, int]]:
        opened = await Open.on(host, LogSettings(segment_bytes_max=1500))
        await opened.append_each(made)
        await opened.log.cut(last)
        assert (opened.log.last, opened.log.last_crc) == (last, kept[-1].crc if kept else 0)
        assert crcs(await contents(opened.log)) == crcs(kept)
        assert opened.log.registers_snapshot() == (registers.encode([(b"k", b"v")]) if kept else b"")
        more = Maker(last, opened.log.last_crc).batches(30, size=100, salt=1)
        await opened.append_each(more)
        return crcs(kept + more)

    async def read(host: Host) -> list[tuple[int, int, int]]:
        return crcs(await contents((await Open.on(host)).log))

    assert await life(machine, cut) == await life(machine, read)


@pytest.mark.parametrize(
    ("confirmed", "last", "end"),
    [
        pytest.param(-1, 1, -1, id="nothing of the first batch is confirmed"),
        pytest.param(2, 3, 2, id="the batch before is confirmed"),
        pytest.param(3, 3, 5, id="the batch holds a confirmed id"),
        pytest.param(4, 3, 5, id="confirmed above the cut"),
        pytest.param(8, 7, 8, id="all of it is confirmed"),
        pytest.param(14, 16, 14, id="in the last batch"),
        pytest.param(15, 16, 17, id="the last batch holds a confirmed id"),
    ],
)
@pytest.mark.parametrize("segment_bytes_max", [400, 1000, 100_000])
@simulated
async def test_a_cut_inside_of_a_batch_leaves_all_of_it_if_an_id_in_it_is_confirmed_and_else_nothing(
    machine: Machine, *, segment_bytes_max: int, confirmed: int, last: int, end: int
) -> None:
    made = Maker().batches(6, count=3, size=50, changes=[(b"k", b"v")])
    kept = [batch for batch in made if batch.last <= end]
    settings = LogSettings(segment_bytes_max=segment_bytes_max)

    async with opened_on(machine, settings) as opened:
        await opened.append_each(made)
        await opened.slot.save(replace(opened.slot.promises, confirmed=confirmed))
        await opened.log.cut(last)
        assert (opened.log.last, opened.log.last_crc) == (end, kept[-1].crc if kept else 0)
    async with opened_on(machine, settings) as opened:
        assert crcs(await contents(opened.log)) == crcs(kept)
        assert not opened.slot.promises.may_have_lost
        await opened.log.append([Maker(end, opened.log.last_crc).batch()])


@in_one_life
async def test_batches_that_do_not_follow_are_refused(machine: Machine, opened: Open) -> None:
    maker = Maker()
    first, second, third = maker.batches(3)
    with pytest.raises(OutOfOrder):
        await opened.log.append([second])
    await opened.log.append([first])
    with pytest.raises(OutOfOrder):
        await opened.log.append([second, second])
    with pytest.raises(OutOfOrder):
        await opened.log.append([Maker(0, first.crc, partition=4).batch()])
    with pytest.raises(LogForked):
        await opened.log.append([Maker(0, first.crc ^ 1).batch()])
    await opened.log.append([second, third])
    assert opened.log.last == 2


@simulated
async def test_registers_are_those_after_the_last_batch_across_rolls_restarts_and_cuts(machine: Machine) -> None:
    maker = Maker()
    made = [maker.batch(size=60, changes=[(b"n", str(n).encode()), (b"%d" % n, None)]) for n in range(30)]

    async with opened_on(machine, LogSettings(segment_bytes_max=1000)) as opened:
        await opened.append_each(made)
    async with opened_on(machine) as opened:
        for last in (29, 28, 17, 3):
            await opened.log.cut(last)
            assert opened.log.registers_snapshot() == registers.encode([(b"n", str(last).encode())])


@in_one_life
async def test_reading_stops_at_the_bound_but_gives_one_batch_at_least(machine: Machine, opened: Open) -> None:
    made = Maker().batches(10, count=2, size=100)
    await opened.log.append(made)
    one = made[0].length + 32

    async def firsts(first: int, last: int, bytes_max: int, after_time_us: int = 0) -> list[int]:
        return [b.first for b in await opened.log.read(first, last, bytes_max, after_time_us)]

    assert await firsts(0, 19, 1) == [0]
    assert await firsts(0, 19, 3 * one) == [0, 2, 4]
    assert await firsts(5, 19, 2 * one) == [4, 6]
    assert await firsts(0, 6, 1 << 20) == [0, 2, 4]
    assert await firsts(0, 7, 1 << 20) == [0, 2, 4, 6]
    assert await firsts(20, 30, 1 << 20) == []
    assert await firsts(-1, 30, 1 << 20) == []
    assert await firsts(19, 2**63 - 1, 1 << 20) == [18]
    assert await firsts(0, 0, 1 << 20) == []
    assert await firsts(0, 19, 1 << 20, after_time_us=9_000) == [10, 12, 14, 16, 18]
    assert await firsts(0, 19, 1 << 20, after_time_us=18_001) == []
    assert await firsts(16, 19, 1 << 20, after_time_us=1) == [16, 18]


@pytest.mark.parametrize("time_us", [0, 1, 1000, 12_345, 30_000, 38_001, 39_000, 39_001])
@simulated
async def test_a_commit_time_is_found_across_segments(machine: Machine, *, time_us: int) -> None:
    made = Maker().batches(40, size=100)

    async with opened_on(machine, LogSettings(segment_bytes_max=1500)) as opened:
        await opened.append_each(made)
        expected = [batch.first for batch in made if batch.commit_time_us >= max(time_us, 1)][:1]
        found = await opened.log.read(0, 39, 1, after_time_us=time_us)
        assert [batch.first for batch in found] == (expected if time_us else [0])


@simulated
async def test_open_files_and_indexes_of_sealed_segments_are_bounded(machine: Machine) -> None:
    from polonaise.log.segmentreader import SegmentCache

    async with alive(machine) as host:
        cache = SegmentCache(capacity=2)
        opened = await Open.on(host, LogSettings(segment_bytes_max=500), cache=cache)
        made = Maker().batches(40, size=100)
        await opened.append_each(made)
        assert crcs(await contents(opened.log)) == crcs(made)
        assert len(opened.log.segments) >= 10
        assert len(cache) <= 3
        await opened.close()
        assert len(cache) == 0


@in_one_life(settings=LogSettings(segment_bytes_max=1500))
async def test_digests_are_equal_exactly_for_equal_logs(machine: Machine, opened: Open) -> None:
    made = Maker().batches(20, count=2, size=50)
    await opened.append_each(made)
    whole = await digest(opened.log, 0, 39)
    before = await digest(opened.log, 0, 37)
    assert whole[0] == made[-1].crc
    assert before != whole
    with pytest.raises(OutOfOrder):
        await digest(opened.log, 0, 38)
    with pytest.raises(OutOfOrder):
        await digest(opened.log, 0, 41)
    await opened.log.cut(37)
    assert await digest(opened.log, 0, 37) == before
    assert (await digest(opened.log, 0, -1))[0] == 0


@simulated
async def test_disk_full_refuses_the_append_and_leaves_no_partial_bytes(machine: Machine) -> None:
    made = Maker().batches(4, size=1000)

    async with opened_on(machine) as opened:
        await opened.log.append(made[:2])
        length = opened.log.segments[-1].end
        machine.disk.fill(500)
        with pytest.raises(DiskFull):
            await opened.log.append(made[2:])
        assert len(machine.disk.contents(SEGMENT)) == length
        assert not opened.log.untrusted
        machine.disk.free()
        await opened.log.append(made[2:])
        assert crcs(await contents(opened.log)) == crcs(made)


@simulated
async def test_disk_full_while_rolling_refuses_the_append_and_the_log_goes_on_when_there_is_room(
    machine: Machine,
) -> None:
    made = Maker().batches(30, size=100)

    async with opened_on(machine, LogSettings(segment_bytes_max=500)) as opened:
        refused = 0
        for batch in made:
            machine.disk.fill(len(batch.view) + 32)
            try:
                await opened.log.append([batch])
            except DiskFull:
                refused += 1
                machine.disk.free()
                await opened.log.append([batch])
        assert refused
        assert crcs(await contents(opened.log)) == crcs(made)


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_after_a_failed_sync_what_was_synced_before_is_believed_and_nothing_else(seed: int, power_loss: bool) -> None:
    """Whether the bytes came to the disk, or only read back from the cache, or are gone with the power."""

    async def scenario(machine: Machine) -> None:
        made = Maker().batches(6, size=1000)

        async with opened_on(machine) as opened:
            await opened.log.append(made[:3])
            machine.disk.fail_syncs(1)
            with pytest.raises(DiskFailed):
                await opened.log.append(made[3:5])
            assert opened.log.last == 2
            assert (opened.slot.promises.untrusted_above, opened.slot.promises.may_have_lost) == (2, False)
            with raises_code("partition_unavailable"):
                await opened.log.append(made[3:5])
            assert crcs(await contents(opened.log)) == crcs(made[:3])
        if power_loss:
            machine.power_loss()
        async with opened_on(machine) as opened:
            assert (opened.log.last, opened.slot.promises.may_have_lost) == (2, False)
            with raises_code("partition_unavailable"):
                await opened.log.append(made[3:5])
            await opened.log.cut(2)
            assert not opened.log.untrusted
            await opened.log.append(made[3:5])
        machine.power_loss()
        async with alive(machine) as host:
            assert crcs(await contents((await Open.on(host)).log)) == crcs(made[:5])

    simulate(scenario, seed)


@simulated
async def test_a_cut_below_a_failed_sync_that_was_broken_off_is_no_loss(machine: Machine) -> None:
    """It is ordered by an owner that knows what the log is: what it has removed already is not missed."""
    made = Maker().batches(12, size=400)

    async with opened_on(machine, LogSettings(segment_bytes_max=1_000)) as opened:
        await opened.append_each(made[:11])
        machine.disk.fail_syncs(1)
        with pytest.raises(DiskFailed):
            await opened.log.append(made[11:])
    paths = len(machine.disk.paths())
    async with opened_on(machine) as opened:
        cutting = asyncio.create_task(opened.log.cut(3))
        while len(machine.disk.paths()) > paths - 2:
            await asyncio.sleep(0.0001)
        cutting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cutting
        assert opened.log.broken is not None
    async with opened_on(machine) as opened:
        assert (opened.log.last, opened.slot.promises.may_have_lost) == (3, False)
        await opened.log.cut(3)
        await opened.log.append(made[4:6])
        assert crcs(await contents(opened.log)) == crcs(made[:6])
