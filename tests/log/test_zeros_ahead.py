"""Zeros that are written ahead of the log: room that is set aside, never part of the log, and never mistaken for it."""

from __future__ import annotations

import pytest

from polonaise.errors import DiskFailed, DiskFull
from polonaise.log.batch import padded
from polonaise.log.control import SyncEvidence
from polonaise.log.partitionlog import LogSettings
from polonaise.log.segment import FRAME_BYTES, DamageFound, SegmentHeader, scan
from polonaise.log.tail import SMALL_WRITE_BYTES, ZEROS_BYTES_MAX, empty_scan
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import SEGMENT, Maker, Open, contents, crcs, in_one_life, opened_on, simulated, write_synced

SMALL = LogSettings(segment_bytes_max=2_000)


def zeros_at_the_end(machine: Machine, path: str = SEGMENT) -> int:
    raw = machine.disk.contents(path)
    return len(raw) - padded(len(raw.rstrip(b"\0")))  # a batch may end with zeros of its own, up to its alignment


@in_one_life
async def test_most_small_appends_leave_the_length_of_the_file_as_it_is(machine: Machine, opened: Open) -> None:
    lengths = []
    for batch in Maker().batches(300, size=100):
        await opened.log.append([batch])
        lengths.append(len(machine.disk.contents(SEGMENT)))
        assert zeros_at_the_end(machine) <= ZEROS_BYTES_MAX
    assert len(set(lengths)) < 30


@in_one_life
async def test_zeros_ahead_are_at_most_a_share_of_the_segment(machine: Machine, opened: Open) -> None:
    for batch in Maker().batches(20, size=100):
        await opened.log.append([batch])
        assert zeros_at_the_end(machine) <= len(machine.disk.contents(SEGMENT)) / 2


@in_one_life
async def test_a_large_append_writes_no_zeros_behind_it(machine: Machine, opened: Open) -> None:
    await opened.append_each(Maker().batches(4, size=SMALL_WRITE_BYTES))
    assert not zeros_at_the_end(machine)


@pytest.mark.parametrize("power_loss", [False, True])
@simulated
async def test_after_a_crash_zeros_ahead_are_cut_and_nothing_is_missed(machine: Machine, *, power_loss: bool) -> None:
    made = Maker().batches(60, size=100)

    async with opened_on(machine) as opened:
        await opened.append_each(made[:50])
    assert zeros_at_the_end(machine)
    if power_loss:
        machine.power_loss()
    async with opened_on(machine) as opened:
        assert not zeros_at_the_end(machine)
        assert not opened.log.damage
        assert not opened.slot.promises.may_have_lost
        await opened.append_each(made[50:])
        assert crcs(await contents(opened.log)) == crcs(made)


@in_one_life
async def test_a_log_that_is_closed_leaves_no_zeros_behind(machine: Machine, opened: Open) -> None:
    await opened.append_each(Maker().batches(50, size=100))
    assert zeros_at_the_end(machine)
    await opened.close()
    assert not zeros_at_the_end(machine)


@pytest.mark.parametrize("power_loss", [False, True])
@simulated
async def test_a_segment_that_is_full_ends_where_the_next_one_says(machine: Machine, *, power_loss: bool) -> None:
    made = Maker().batches(40, size=100)

    async with opened_on(machine, SMALL) as opened:
        await opened.append_each(made)
        assert len(opened.log.segments) > 2
        assert not zeros_at_the_end(machine)
    if power_loss:
        machine.power_loss()
    async with opened_on(machine, SMALL) as opened:
        assert not opened.log.damage
        assert crcs(await contents(opened.log)) == crcs(made)


@simulated
async def test_when_the_end_of_a_full_segment_is_in_doubt_no_next_one_is_begun(machine: Machine) -> None:
    made = Maker().batches(40, size=100)

    async with opened_on(machine, SMALL) as opened:
        for batch in made:
            before = zeros_at_the_end(machine)
            if opened.log.segments[-1].end >= SMALL.segment_bytes_max and before:
                machine.disk.fail_syncs(1)
                with pytest.raises(DiskFailed):
                    await opened.log.append([batch])
                assert len(opened.log.segments) == 1
                assert opened.log.untrusted
                break
            await opened.log.append([batch])
        else:
            pytest.fail("no segment became full while zeros were left")


@simulated
async def test_a_disk_that_has_room_for_the_log_and_for_no_zeros_takes_the_log(machine: Machine) -> None:
    made = Maker().batches(200, size=100)

    async with opened_on(machine) as opened:
        await opened.append_each(made[:50])
        machine.disk.fill(5 * (made[0].length + FRAME_BYTES))
        with pytest.raises(DiskFull):
            await opened.append_each(made[50:])
        held = await contents(opened.log)
        assert len(held) > 54
        assert crcs(held) == crcs(made[: len(held)])
        assert machine.disk.used_bytes() + held[-1].length + FRAME_BYTES > (machine.disk.capacity_bytes or 0)
        machine.disk.free()
        await opened.append_each(made[len(held) :])
        assert crcs(await contents(opened.log)) == crcs(made)


@simulated
async def test_a_synced_batch_that_became_zeros_is_missed(machine: Machine) -> None:
    """What stands behind the log looks the same: only what was noted of the sync tells them apart."""
    made = Maker().batches(50, size=100)

    async with opened_on(machine) as opened:
        await opened.append_each(made)
        await opened.close()
    length = len(machine.disk.contents(SEGMENT))
    gone = made[-1].length + made[-2].length + 64
    write_synced(machine, SEGMENT, length - gone, bytes(gone))
    async with opened_on(machine) as opened:
        assert opened.log.last < made[-1].last
        assert opened.slot.promises.may_have_lost


@pytest.mark.parametrize("filled", [b"\0", b"\xff"])
@simulated
async def test_a_cut_into_a_sealed_segment_finds_batches_that_became_zeros(machine: Machine, *, filled: bytes) -> None:
    made = Maker().batches(40, size=100)

    async with opened_on(machine, SMALL) as opened:
        await opened.append_each(made)
        sealed = opened.log.segments[0]
        assert len(opened.log.segments) > 1
        gone = sum(made[id].length + FRAME_BYTES for id in (sealed.last - 1, sealed.last))
        machine.disk.file(SEGMENT).write(sealed.end - gone, filled * gone)
        with pytest.raises(DamageFound) as found:
            await opened.log.cut(sealed.last - 1)
        assert found.value.last_good == sealed.last - 2


@simulated
async def test_a_cut_that_reads_the_segment_again_says_where_batches_became_zeros(machine: Machine) -> None:
    """The last batch that is to stay was read just before: they become zeros in between."""
    maker = Maker()
    made = [*maker.batches(9, size=100), maker.batch(changes=[(b"key", b"value")])]

    async with opened_on(machine) as opened:
        await opened.append_each(made)
        start = sum(batch.length + FRAME_BYTES for batch in made[5:]) + zeros_at_the_end(machine)
        start = len(machine.disk.contents(SEGMENT)) - start
        begin_cut = opened.slot.begin_cut

        async def begun(evidence: SyncEvidence) -> None:
            await begin_cut(evidence)
            machine.disk.file(SEGMENT).write(start, bytes(sum(batch.length + FRAME_BYTES for batch in made[5:9])))

        opened.slot.begin_cut = begun  # type: ignore[method-assign]
        with pytest.raises(DamageFound, match=f"zeros at offset {start}$") as found:
            await opened.log.cut(made[8].last)
        assert found.value.last_good == made[4].last


@simulated
async def test_a_cut_between_the_ends_of_batches_is_no_damage(machine: Machine) -> None:
    made = Maker().batches(20, count=3, size=100)

    async with opened_on(machine, SMALL) as opened:
        await opened.append_each(made)
        assert opened.log.segments[0].last > 5
        await opened.log.cut(4)
        assert (opened.log.last, opened.log.last_crc) == (2, made[0].crc)


class ReadWhileWritten:
    """A file of which the first look shows zeros from `end` on, and later ones what has been written there since."""

    def __init__(self, raw: bytes, end: int) -> None:
        self._raw = raw
        self._end = end
        self._looks = 0

    async def read(self, offset: int, length: int) -> bytes:
        self._looks += 1
        raw = self._raw if self._looks > 1 else self._raw[: self._end].ljust(len(self._raw), b"\0")
        return raw[offset : offset + length]


@pytest.mark.parametrize("torn_by", [0, 20, 60])
@simulated
async def test_what_a_node_writes_while_its_file_is_read_is_no_damage(machine: Machine, *, torn_by: int) -> None:
    made = Maker().batches(30, size=100)

    async with opened_on(machine) as opened:
        await opened.append_each(made)
        await opened.close()
    raw = machine.disk.contents(SEGMENT)
    header = SegmentHeader.decode(raw)
    end = len(raw) - sum(batch.length + FRAME_BYTES for batch in made[20:])
    found = await scan(ReadWhileWritten(raw, end + torn_by), header, empty_scan(header, b""), len(raw))
    assert (found.bad, found.last) == ("", made[-1].last)
    damaged = raw[:end] + bytes(8) + raw[end + 8 :]
    found = await scan(ReadWhileWritten(damaged, len(raw)), header, empty_scan(header, b""), len(raw))
    assert found.bad
    assert not found.torn
