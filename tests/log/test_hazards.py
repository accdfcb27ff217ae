"""The hazards that were found in the storage of Waltz 0.13 (`docs/references.md`), (a) to (g), each tried on ours."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import cast
from zlib import crc32

import pytest

from polonaise.errors import DiskFailed, PolonaiseError
from polonaise.host import Host
from polonaise.link.connection import Connection
from polonaise.log import tail
from polonaise.log.batch import Batch
from polonaise.log.control import ControlFile
from polonaise.log.partitionlog import LogSettings, PartitionLog
from polonaise.log.segment import SegmentHeader, frame_header
from polonaise.storage.partitionreplica import PartitionReplica
from polonaise.storage.settings import StorageSettings
from polonaise.wire.codec import Message
from polonaise.wire.messages import LastSessionInfo, SessionInfo
from polonaise_proving.stages.simulated import Configuration, World
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import (
    DIRECTORY,
    KEY,
    PARTITION,
    SEGMENT,
    Maker,
    Open,
    alive,
    contents,
    crcs,
    life,
    opened_on,
    remove_entry,
    simulate,
    simulated,
    write_synced,
)

pytestmark = pytest.mark.slow

SMALL = LogSettings(segment_bytes_max=900)


def die_at_every_call(
    writes: Callable[[Host, list[Batch]], Awaitable[None]],
    check: Callable[[Host, list[Batch]], Awaitable[None]],
    *,
    seeds: int = 1,
) -> None:
    """Run `writes`, which notes what was acknowledged, and die at each of its calls in turn; then `check`."""
    call, dies = 0, True
    while dies:
        call += 1
        dies = False
        for seed in range(seeds):
            for power_loss in (False, True):
                dies |= _die_at(call, 1_000 * seed + call, power_loss, writes, check)
    assert call > 10


def _die_at(
    call: int,
    seed: int,
    power_loss: bool,
    writes: Callable[[Host, list[Batch]], Awaitable[None]],
    check: Callable[[Host, list[Batch]], Awaitable[None]],
) -> bool:
    """Whether it came so far as to die."""
    world = World(seed, Configuration())
    machine = world.machine("disk")
    acknowledged: list[Batch] = []

    async def scenario() -> bool:
        async def main(host: Host) -> None:
            await writes(host, acknowledged)

        process = machine.start(main)
        process.crash_on_call = call
        await process.ended()
        if power_loss:
            machine.power_loss()
        await life(machine, lambda host: check(host, acknowledged))
        return process.calls == call

    return world.run(scenario())


async def appends(host: Host, acknowledged: list[Batch], number: int = 8) -> None:
    opened = await Open.on(host, SMALL)
    maker = Maker(opened.log.last, opened.log.last_crc)
    for batch in maker.batches(number, size=150):
        await opened.log.append([batch])
        acknowledged.append(batch)
    await opened.close()


async def goes_on(host: Host, acknowledged: list[Batch]) -> None:
    """Everything acknowledged is there, nothing is missed, and the log rolls on."""
    opened = await Open.on(host, SMALL)
    assert not opened.slot.promises.may_have_lost
    assert crcs(await contents(opened.log))[: len(acknowledged)] == crcs(acknowledged)
    segments = len(opened.log.segments)
    more: list[Batch] = []
    maker = Maker(opened.log.last, opened.log.last_crc)
    for batch in maker.batches(8, size=150, salt=1):
        await opened.log.append([batch])
        more.append(batch)
    assert len(opened.log.segments) > segments
    assert crcs(await contents(opened.log))[-8:] == crcs(more)


# ------------------------------------------------------------------ (a)


@pytest.mark.parametrize(("bound", "value"), [("CHECKPOINT_BYTES", 300), ("CHECKPOINT_BATCHES", 2)])
def test_hazard_a_an_index_is_a_whole_checkpoint_or_none_whenever_the_power_goes(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    """Waltz begins its recovery at an index entry that was written after the checkpoint's flush."""
    monkeypatch.setattr(tail, bound, value)
    die_at_every_call(appends, goes_on)


@pytest.mark.parametrize("damage", ["nothing", "gone", "empty", "zeros", "entries", "header", "longer", "another's"])
@simulated
async def test_hazard_a_whatever_is_in_the_index_file_the_log_is_what_its_segments_say(
    machine: Machine, *, damage: str
) -> None:
    acknowledged: list[Batch] = []
    await life(machine, lambda host: appends(host, acknowledged))
    disk = machine.disk
    indexes = [path for path in disk.paths() if path.endswith(".idx")]
    assert len(indexes) >= 3
    for path in indexes:
        if damage == "gone":
            remove_entry(disk, path)
        elif damage == "empty":
            disk.truncate(path, 0)
        elif damage == "zeros":
            disk.overwrite(path, 0, bytes(len(disk.contents(path))))
        elif damage == "entries":
            disk.flip_bit(path, 128 + 9)
        elif damage == "header":
            disk.flip_bit(path, 50)
        elif damage == "longer":
            disk.file(path).write(len(disk.contents(path)), b"\xff" * 240)
        elif damage == "another's":
            disk.overwrite(path, 0, disk.contents(indexes[0]))
    await life(machine, lambda host: goes_on(host, acknowledged))


# ------------------------------------------------------------------ (b), (c)


@simulated
async def test_hazard_b_an_index_without_its_segment_does_not_block_the_roll(machine: Machine) -> None:
    acknowledged: list[Batch] = []
    await life(machine, lambda host: appends(host, acknowledged))
    for first in range(5, 40):
        machine.disk.create(f"{DIRECTORY}/{PARTITION}/{first:020d}.idx").write(0, b"left over")
    await life(machine, lambda host: goes_on(host, acknowledged))


@pytest.mark.parametrize("left", [b"", b"PLNS", bytes(128)])
@simulated
async def test_hazard_c_a_segment_that_was_never_finished_is_swept(machine: Machine, *, left: bytes) -> None:
    acknowledged: list[Batch] = []
    await life(machine, lambda host: appends(host, acknowledged))
    for first in (0, 8, 9):
        machine.disk.create(f"{DIRECTORY}/{PARTITION}/{first:020d}.seq.new").write(0, left)
    await life(machine, lambda host: goes_on(host, acknowledged))
    assert not any(path.endswith(".new") for path in machine.disk.paths())


@simulated
async def test_hazard_c_a_segment_without_a_header_is_damage_and_the_rest_is_read(machine: Machine) -> None:
    acknowledged: list[Batch] = []
    await life(machine, lambda host: appends(host, acknowledged))
    last = [path for path in machine.disk.paths() if path.endswith(".seq")][-1]
    machine.disk.truncate(last, 0)

    async with opened_on(machine) as opened:
        held = int(last[-24:-4])
        assert crcs(await contents(opened.log)) == crcs(acknowledged[:held])
        assert opened.slot.promises.lost_above == held - 1


# ------------------------------------------------------------------ (d)


@pytest.mark.parametrize("claimed", [0, 1, 63, 64, 4_096, 2**26, 2**26 + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("where", ["frame", "batch"])
@simulated
async def test_hazard_d_no_length_is_believed_before_its_checksum(
    machine: Machine, *, claimed: int, where: str
) -> None:
    """Waltz reads a garbage length behind a matching id, and allocates it."""
    made = Maker().batches(5)

    async with opened_on(machine) as opened:
        await opened.log.append(made[:4])
        await opened.close()
    raw = machine.disk.contents(SEGMENT)
    end = len(raw)
    header = SegmentHeader.decode(raw[:128])
    batch = bytearray(made[4].view)
    frame = frame_header(made[4], offset=end, synced=end, seed=header.seed)
    if where == "frame":
        changed = struct.pack("<I", claimed) + frame[12:]
        frame = frame[:4] + struct.pack("<I", crc32(changed, header.seed)) + changed
    else:
        struct.pack_into("<I", batch, 8, claimed)
    write_synced(machine, SEGMENT, end, frame + batch)
    async with opened_on(machine) as opened:
        assert opened.log.last == 3
        assert not opened.slot.promises.may_have_lost
        assert len(machine.disk.contents(SEGMENT)) == end


# ------------------------------------------------------------------ (e)


def test_hazard_e_a_partition_whose_making_was_broken_off_is_made_again_and_harms_no_other() -> None:
    """Waltz extends its control file first and writes the promises later: in between all is lost for ever."""

    async def make(host: Host, acknowledged: list[Batch]) -> None:
        opened = await Open.on(host)
        batch = Maker().batch()
        await opened.log.append([batch])
        acknowledged.append(batch)
        for other in (0, 1, 9, 2):
            await opened.control.create(other)

    async def look(host: Host, acknowledged: list[Batch]) -> None:
        opened = await Open.on(host)
        assert crcs(await contents(opened.log))[: len(acknowledged)] == crcs(acknowledged)
        for other in (0, 1, 9, 2):
            slot = await opened.control.load(other) or await opened.control.create(other)
            assert slot.promises.fence == -1

    die_at_every_call(make, look, seeds=2)


# ------------------------------------------------------------------ (f)


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", range(1, 30))
def test_hazard_f_a_directory_made_by_a_process_that_died_is_made_durable_by_the_next(call: int) -> None:
    async def scenario(machine: Machine) -> None:
        acknowledged: list[Batch] = []

        async def only_promises(host: Host) -> None:
            control = await ControlFile.open(host, DIRECTORY, KEY)
            await control.create(PARTITION)

        process = machine.start(only_promises)
        process.crash_on_call = call
        await process.ended()
        await life(machine, lambda host: appends(host, acknowledged))
        machine.power_loss()
        await life(machine, lambda host: goes_on(host, acknowledged))

    for seed in range(4):
        simulate(scenario, seed)


# ------------------------------------------------------------------ (g)


class Line:
    """A connection that only remembers what it was told."""

    closed = None

    def __init__(self) -> None:
        self.told: list[int] = []
        self.refused = 0

    def send(self, message: Message, *, request: int = 0, partition: int = -1) -> None:
        assert isinstance(message, SessionInfo)
        assert message.fence == request, "who is answered holds the fence, at this moment"
        self.told.append(message.fence)

    def refuse(self, error: PolonaiseError, *, request: int = 0, partition: int = -1, detail: int = 0) -> None:
        assert (error.code, detail > request) == ("fenced", True)
        self.refused += 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_hazard_g_sessions_that_come_at_once_are_compared_and_set_one_after_the_other(seed: int) -> None:
    """Waltz raises its session with a compare and a set that two threads may interleave."""

    async def scenario(machine: Machine) -> None:
        lines = [Line() for _ in range(4)]

        async def fence(host: Host) -> None:
            control = await ControlFile.open(host, DIRECTORY, KEY)

            async def open_log() -> PartitionLog:
                slot = await control.create(PARTITION)
                return await PartitionLog.open(host, control.partition_directory(PARTITION), slot)

            replica = PartitionReplica(host, PARTITION, StorageSettings(DIRECTORY), open_log)
            asked = list(range(1, 21))
            host.random.shuffle(asked)
            for number, session in enumerate(asked):
                line = lines[number % len(lines)]
                replica.take(cast(Connection, line), LastSessionInfo(session), session)
                if host.random.random() < 0.5:
                    await asyncio.sleep(0.001 * host.random.random())
            await asyncio.sleep(1)
            assert sum(len(line.told) + line.refused for line in lines) == 20
            await replica.close()
            await control.close()

        await life(machine, fence)
        for line in lines:
            assert line.told == sorted(line.told)
        assert max(max(line.told, default=0) for line in lines) == 20

    simulate(scenario, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8))
def test_hazard_e_partitions_that_are_made_at_the_same_time_do_not_cut_each_other_off(seed: int) -> None:
    """Each asked how long the control file is and made it longer: the later one made it shorter again."""
    numbers = (1, 6, 2, 5, 3, 4)

    async def scenario(machine: Machine) -> None:
        async with alive(machine) as host:
            control = await ControlFile.open(host, DIRECTORY, KEY)

            async def create(number: int, after_s: float) -> None:
                await asyncio.sleep(after_s)
                await control.create(number)

            await asyncio.gather(*(create(number, position * 0.00003) for position, number in enumerate(numbers)))
        machine.power_loss()
        async with alive(machine) as host:
            control = await ControlFile.open(host, DIRECTORY, KEY)
            for number in numbers:
                assert await control.load(number) is not None

    simulate(scenario, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(12))
def test_a_partition_that_is_made_while_the_sync_of_another_fails_is_there_or_was_never_made(seed: int) -> None:
    """Of two syncs at the same time the system tells one that something was lost, which may be the other one's."""

    async def scenario(machine: Machine) -> None:
        made: set[int] = set()

        async def live(host: Host) -> None:
            control = await ControlFile.open(host, DIRECTORY, KEY)

            async def create(number: int, after_s: float) -> None:
                await asyncio.sleep(after_s)
                await control.create(number)
                made.add(number)

            machine.disk.fail_appends(1)
            creating = (create(number, number * 0.00005) for number in range(3))
            await asyncio.wait_for(asyncio.gather(*creating, return_exceptions=True), 1.0)

        process = machine.start(live, may_fail=(DiskFailed,))
        await process.ended()
        assert len(made) < 3
        machine.power_loss()
        async with alive(machine) as host:
            control = await ControlFile.open(host, DIRECTORY, KEY)
            for number in range(3):
                loaded = await control.load(number)  # raises if there is a directory without promises
                assert loaded is not None or number not in made

    simulate(scenario, seed)
