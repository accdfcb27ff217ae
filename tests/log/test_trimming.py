"""What is trimmed is gone on somebody's word, and by nothing else; a segment of another life is no part of the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polonaise.errors import HistoryTrimmed
from polonaise.host import Host
from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.log.control import NOTHING_TRIMMED
from polonaise.log.partitionlog import LogSettings, digest
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES
from polonaise_proving.stages.simulated import Configuration, World
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import (
    DIRECTORY,
    PARTITION,
    Maker,
    Open,
    alive,
    contents,
    crcs,
    in_one_life,
    life,
    opened_on,
    remove_entry,
    segment_path,
    simulated,
)

ROLLS = LogSettings(segment_bytes_max=1_500)
LOG = Maker().batches(40, size=100, changes=[(b"k", b"v")])


async def write(host: Host) -> None:
    opened = await Open.on(host, ROLLS)
    await opened.append_each(LOG)
    await opened.close()


async def trim_all(opened: Open, before: int) -> None:
    while opened.log.may_trim(before):
        await opened.log.trim(before)


def segments(machine: Machine) -> list[int]:
    return [int(path[-24:-4]) for path in machine.disk.paths() if path.endswith(".seq")]


@pytest.mark.parametrize("before", [0, 1, 10, 20, 39])
@simulated
async def test_whole_segments_below_an_id_go_and_the_rest_stays_as_it_was(machine: Machine, *, before: int) -> None:
    await life(machine, write)
    there = segments(machine)

    async with opened_on(machine, ROLLS) as opened:
        await trim_all(opened, before)
        assert opened.log.first == max(first for first in there if first <= before)
        assert crcs(await contents(opened.log, 400)) == crcs(LOG[opened.log.first :])
        assert opened.log.registers_snapshot() == registers.encode([(b"k", b"v")])
        first = opened.log.first
    assert segments(machine) == [each for each in there if each >= first]

    async with opened_on(machine, ROLLS) as opened:
        assert (opened.log.first, opened.log.last) == (first, 39)
        assert crcs(await contents(opened.log, 400)) == crcs(LOG[first:])
        assert not opened.slot.promises.may_have_lost
        assert opened.log.registers_snapshot() == registers.encode([(b"k", b"v")])


@in_one_life
async def test_the_segment_that_is_written_is_never_trimmed(machine: Machine, opened: Open) -> None:
    await opened.log.append(LOG[:5])
    await trim_all(opened, 5)
    assert (opened.log.first, opened.log.last) == (0, 4)


@simulated
async def test_what_was_trimmed_is_refused_by_name_and_not_taken_for_damage(machine: Machine) -> None:
    await life(machine, write)

    async with opened_on(machine, ROLLS) as opened:
        whole = await digest(opened.log, 20, 39)
        await trim_all(opened, 20)
        first = opened.log.first
        with pytest.raises(HistoryTrimmed, match=f"below {first}"):
            await opened.log.read(first - 1, 39, 1_000)
        with pytest.raises(HistoryTrimmed):
            await digest(opened.log, 0, 39)
        assert await digest(opened.log, 20, 39) == whole
        assert not opened.slot.promises.may_have_lost


@simulated
async def test_a_search_by_time_is_refused_when_the_answer_may_have_been_trimmed(machine: Machine) -> None:
    await life(machine, write)

    async with opened_on(machine, ROLLS) as opened:
        await trim_all(opened, 20)
        first = opened.log.first
        time_us = LOG[first].commit_time_us
        with pytest.raises(HistoryTrimmed):
            await opened.log.read(0, 39, 1, time_us)  # the one before may be of the same time
        (found,) = await opened.log.read(0, 39, 1, time_us + 1)
        assert found.first == first + 1
        (found,) = await opened.log.read(first, 39, 1, 1)
        assert found.first == first


@simulated
async def test_a_cut_above_the_trim_keeps_it_and_the_log_goes_on(machine: Machine) -> None:
    await life(machine, write)

    async with opened_on(machine, ROLLS) as opened:
        await trim_all(opened, 20)
        first = opened.log.first
        await opened.log.cut(first - 1)
        assert (opened.log.first, opened.log.last) == (first, first - 1)
        assert opened.log.last_crc == LOG[first - 1].crc
        await opened.log.append(LOG[first:])
        assert crcs(await contents(opened.log, 400)) == crcs(LOG[first:])

    async with opened_on(machine, ROLLS) as opened:
        assert crcs(await contents(opened.log, 400)) == crcs(LOG[first:])


@simulated
async def test_a_cut_below_the_trim_leaves_a_log_that_begins_anew(machine: Machine) -> None:
    await life(machine, write)

    async with opened_on(machine, ROLLS) as opened:
        await trim_all(opened, 20)
        await opened.log.cut(opened.log.first - 2)
        assert (opened.log.first, opened.log.last, opened.log.last_crc) == (0, -1, 0)
        assert opened.slot.trimmed == NOTHING_TRIMMED

    async with opened_on(machine, ROLLS) as opened:
        assert not opened.slot.promises.may_have_lost
        assert (opened.log.first, opened.log.last) == (0, -1)
        await opened.log.append(LOG)
        assert crcs(await contents(opened.log)) == crcs(LOG)


async def _trimmed(machine: Machine) -> int:
    await life(machine, write)

    async def trim(host: Host) -> int:
        opened = await Open.on(host, ROLLS)
        await trim_all(opened, 20)
        await opened.close()
        return opened.log.first

    return await life(machine, trim)


async def _lose(machine: Machine, lost: list[int]) -> None:
    async with alive(machine) as host:
        for first in lost:
            await host.disk.remove(segment_path(first))
        await host.disk.sync_directory(f"{DIRECTORY}/{PARTITION}")


@pytest.mark.parametrize("which", ["first of an untrimmed log", "first that was kept", "all", "header of the first"])
@simulated
async def test_a_lost_segment_is_a_loss_and_no_trim(machine: Machine, *, which: str) -> None:
    if which == "first of an untrimmed log":
        await life(machine, write)
        await _lose(machine, [0])
    else:
        first = await _trimmed(machine)
        if which == "header of the first":
            machine.disk.overwrite(segment_path(first), 0, bytes(64))
        else:
            await _lose(machine, segments(machine) if which == "all" else [first])

    async with opened_on(machine, ROLLS) as opened:
        assert opened.slot.promises.may_have_lost
        assert (opened.slot.promises.lost_above, opened.log.last) == (-1, -1)
        assert opened.log.damage
        assert await opened.log.read(0, 39, 1_000) == []
        # Once it is decided that the copy is made anew, it begins at the beginning.
        await opened.log.cut(-1)
        assert opened.slot.trimmed == NOTHING_TRIMMED
        await opened.log.append(LOG)
        assert crcs(await contents(opened.log)) == crcs(LOG)
        await opened.close()

    async with alive(machine) as host:
        assert crcs(await contents((await Open.on(host, ROLLS)).log)) == crcs(LOG)


@simulated
async def test_another_segment_in_place_of_the_first_that_was_kept_is_damage(machine: Machine) -> None:
    other = Maker().batches(40, size=100, salt=1, changes=[(b"k", b"v")])
    first = await _trimmed(machine)
    elsewhere = machine.world.machine("another")

    async with alive(elsewhere) as host:
        opened = await Open.on(host, ROLLS)
        await opened.append_each(other)
    machine.disk.overwrite(segment_path(first), 0, bytes(elsewhere.disk.file(segment_path(first)).durable))

    async with opened_on(machine, ROLLS) as opened:
        assert opened.slot.promises.may_have_lost


@pytest.mark.slow
@pytest.mark.parametrize("power_loss", [False, True])
def test_a_node_that_dies_at_any_call_of_a_trim_has_trimmed_or_not_and_lost_nothing(power_loss: bool) -> None:
    seen: set[int] = set()
    for number in range(1, 200):
        died = _die_at(number, power_loss, seen.add)
        if not died:
            break
    assert not died, "the sweep has to reach the end of the trim"
    assert len(seen) >= 3, f"nothing, some and all of it were trimmed: {seen}"


def _die_at(number: int, power_loss: bool, see: Callable[[int], None]) -> bool:
    """Whether the process died, at its call of this number."""
    world = World(number, Configuration())
    machine = world.machine("disk")

    async def scenario() -> bool:
        await life(machine, write)
        finished: list[bool] = []

        async def trim(host: Host) -> None:
            opened = await Open.on(host, ROLLS)
            process.crash_on_call = process.calls + number
            await trim_all(opened, 20)
            process.crash_on_call = None
            finished.append(True)

        process = machine.start(trim)
        await process.ended()
        if power_loss:
            machine.power_loss()

        async with opened_on(machine, ROLLS) as opened:
            see(opened.log.first)
            assert opened.log.first == opened.slot.trimmed.first <= 20
            assert segments(machine) == [each.first for each in opened.log.segments]
            assert crcs(await contents(opened.log, 400)) == crcs(LOG[opened.log.first :])
            assert not opened.slot.promises.may_have_lost
            assert opened.log.registers_snapshot() == registers.encode([(b"k", b"v")])
            await trim_all(opened, 20)
            assert crcs(await contents(opened.log, 400)) == crcs(LOG[opened.log.first :])
        return not finished

    return world.run(scenario())


BATCH = 200
"""Bytes of data in each batch, if it has no reason to be of another size."""
ENDLESS = LogSettings()


async def written(machine: Machine, per_segment: int) -> list[Batch]:
    """A log of nine batches, so many to a segment."""
    made = Maker().batches(9, size=BATCH)

    async with opened_on(machine, LogSettings(segment_batches_max=per_segment)) as opened:
        await opened.append_each(made)
        await opened.close()
    return made


async def goes_on(
    machine: Machine, kept: list[Batch], *, sizes: list[int], settings: LogSettings = ENDLESS
) -> list[Batch]:
    """The log after a cut and further batches of these sizes, of another session."""
    maker = Maker(kept[-1].last, kept[-1].crc)
    more = [maker.batch(session=2, size=size, salt=1) for size in sizes]

    async with opened_on(machine, settings) as opened:
        await opened.log.cut(kept[-1].last)
        await opened.append_each(more)
        await opened.close()
    return [*kept, *more]


def put_back(machine: Machine, first: int, stale: bytes) -> None:
    assert segment_path(first) not in machine.disk.paths()
    machine.disk.create(segment_path(first)).write(0, stale)


async def ends_with_a_loss(machine: Machine, held: list[Batch]) -> None:
    """What is held is read, nothing else, and the copy says that it can't tell what came after."""

    async with opened_on(machine) as opened:
        assert crcs(await contents(opened.log)) == crcs(held)
        assert opened.slot.promises.lost_above == held[-1].last


@pytest.mark.parametrize("sizes", [[], [BATCH // 2], [BATCH * 2], [BATCH] * 4], ids=str)
@simulated
async def test_a_segment_of_another_life_is_no_part_of_the_log_however_long_the_one_before_it_is_now(
    machine: Machine, *, sizes: list[int]
) -> None:
    made = await written(machine, per_segment=3)
    stale = machine.disk.contents(segment_path(3))
    held = await goes_on(machine, made[:2], sizes=sizes)
    put_back(machine, 3, stale)
    await ends_with_a_loss(machine, held)


@simulated
async def test_a_segment_does_not_go_on_from_another_than_the_one_before_it_though_both_end_at_the_same_offset(
    machine: Machine,
) -> None:
    made = await written(machine, per_segment=3)
    assert len(machine.disk.contents(segment_path(0))) == len(machine.disk.contents(segment_path(3)))
    remove_entry(machine.disk, segment_path(3))
    await ends_with_a_loss(machine, made[:3])


@simulated
async def test_a_segment_whose_neighbour_has_become_another_is_no_part_of_the_log_though_the_offset_fits(
    machine: Machine,
) -> None:
    made = await written(machine, per_segment=6)
    stale = machine.disk.contents(segment_path(6))
    end = len(machine.disk.contents(segment_path(0)))
    overhead = (end - HEADER_BYTES) // 6 - BATCH
    # Three batches in a segment of their own, that take as much room as the six did.
    large = 2 * (overhead + BATCH) - overhead
    held = await goes_on(
        machine, made[:2], sizes=[BATCH, large, large, large], settings=LogSettings(segment_batches_max=3)
    )
    assert len(machine.disk.contents(segment_path(3))) == end
    put_back(machine, 6, stale)
    await ends_with_a_loss(machine, held)


@simulated
async def test_a_stale_segment_of_just_the_right_length_is_not_believed_nor_what_follows_it(machine: Machine) -> None:
    """Which of the two is the stale one, nobody can tell."""
    made = await written(machine, per_segment=3)
    stale = machine.disk.contents(segment_path(3))
    held = await goes_on(machine, made[:4], sizes=[BATCH] * 4, settings=LogSettings(segment_batches_max=3))
    assert len(machine.disk.contents(segment_path(3))) == len(stale)
    assert machine.disk.contents(segment_path(3)) != stale
    machine.disk.overwrite(segment_path(3), 0, stale)
    await ends_with_a_loss(machine, held[:3])


@simulated
async def test_a_segment_whose_last_frame_has_rotted_is_kept_up_to_there(machine: Machine) -> None:
    made = await written(machine, per_segment=3)
    end = len(machine.disk.contents(segment_path(3)))
    machine.disk.overwrite(segment_path(3), end - (end - HEADER_BYTES) // 3, b"\0" * FRAME_BYTES)
    await ends_with_a_loss(machine, made[:5])
