"""What the simulator's looks at the disks see: they must neither miss what is there nor count what is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polonaise.host import Host
from polonaise.log.partitionlog import LogSettings
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES, SegmentHeader
from polonaise_proving.record.diskaudit import durable_last, read_replica
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import DIRECTORY, PARTITION, SEGMENT, Maker, Open, alive, life, simulated

PER_SEGMENT = 4
SECOND = f"{DIRECTORY}/{PARTITION}/{PER_SEGMENT:020d}.seq"


def spoil_nothing(_: SimulatedDisk) -> None:
    pass


def tear_the_last(disk: SimulatedDisk) -> None:
    """Its frame came to the disk, and of the batch as many bytes as it has, but not those."""
    raw = disk.contents(SECOND)
    disk.overwrite(SECOND, len(raw) - 100, bytes(100))


def cut_the_last_short(disk: SimulatedDisk) -> None:
    disk.truncate(SECOND, len(disk.contents(SECOND)) - 50)


def tear_the_first(disk: SimulatedDisk) -> None:
    start = SegmentHeader.decode(disk.contents(SECOND)).data_start
    disk.flip_bit(SECOND, start + FRAME_BYTES + 70)


def spoil_what_is_before(disk: SimulatedDisk) -> None:
    """The batches of the next segment are whole, and follow on nothing."""
    raw = disk.contents(SEGMENT)
    disk.overwrite(SEGMENT, len(raw) - 100, bytes(100))


def spoil_the_header(disk: SimulatedDisk) -> None:
    disk.flip_bit(SECOND, 60)


@pytest.mark.parametrize(
    ("spoil", "last"),
    [
        (spoil_nothing, 6),
        (tear_the_last, 5),
        (cut_the_last_short, 5),
        (tear_the_first, 3),
        (spoil_what_is_before, 2),
        (spoil_the_header, 3),
    ],
)
@simulated
async def test_the_last_id_that_is_durable_is_that_of_the_last_whole_batch_that_follows(
    machine: Machine, *, spoil: Callable[[SimulatedDisk], None], last: int
) -> None:
    async with alive(machine) as host:
        opened = await Open.on(host, LogSettings(segment_batches_max=PER_SEGMENT))
        await opened.append_each(Maker().batches(7, size=200))
    spoil(machine.disk)
    assert durable_last(machine.disk, DIRECTORY, PARTITION) == last


async def write_registers(host: Host, count: int) -> None:
    opened = await Open.on(host, LogSettings(segment_batches_max=PER_SEGMENT))
    maker = Maker()
    for number in range(count):
        await opened.log.append([maker.batch(changes=[(b"register", b"%d" % number)])])


@simulated
async def test_a_rotten_preamble_is_seen_and_the_batches_after_it_are_read(machine: Machine) -> None:
    await life(machine, lambda host: write_registers(host, 7))
    assert SegmentHeader.decode(machine.disk.contents(SECOND)).preamble_bytes
    assert not read_replica("a", machine.disk, DIRECTORY, PARTITION).bad
    machine.disk.flip_bit(SECOND, HEADER_BYTES + 3)
    replica = read_replica("a", machine.disk, DIRECTORY, PARTITION)
    assert SECOND in replica.bad
    assert "preamble" in replica.bad
    assert replica.last == 6


@simulated
async def test_a_preamble_before_no_batch_is_nobodys_promise(machine: Machine) -> None:
    """The scrub looks at it with the first batch, as soon as there is one."""
    await life(machine, lambda host: write_registers(host, 5))
    start = SegmentHeader.decode(machine.disk.contents(SECOND)).data_start
    machine.disk.truncate(SECOND, start)
    machine.disk.flip_bit(SECOND, HEADER_BYTES + 3)
    replica = read_replica("a", machine.disk, DIRECTORY, PARTITION)
    assert (replica.bad, replica.last) == ("", 3)
