"""A segment file put back, or taken away, behind the node's back: whole, of this partition, and not of this log.

The node removes a segment by spoiling it first, so that a name which comes back names nothing. Here nothing was spoilt:
that the file does not go on where the one before it ends is all that tells.
"""

from __future__ import annotations

import pytest

from polonaise.log.batch import Batch
from polonaise.log.partitionlog import LogSettings
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import Maker, contents, crcs, opened_on, remove_entry, segment_path, simulated

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
