"""What the simulator's looks, notes and checks see: they neither miss what is there nor count what is not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polonaise.errors import AppendUnknown, ConnectionLost
from polonaise.fragments.format import FragmentWriter
from polonaise.fragments.protocol.names import FragmentName
from polonaise.host import Host
from polonaise.log.batch import Batch, Columns, seal
from polonaise.log.control import NO_EVIDENCE, Promises, PromiseSector, TrimMark
from polonaise.log.partitionlog import LogSettings
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES, SegmentHeader
from polonaise_proving.judges.archivecheck import ArchiveCheck
from polonaise_proving.judges.checkers import CommitTimes
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog, durable_last, read_replica
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.fragmentaudit import archived_up_to, batches_below
from polonaise_proving.record.observations import History, Kind
from polonaise_proving.record.partitionrecord import Fate
from polonaise_proving.stages.simulated import Configuration, World
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from polonaise_proving.stages.simulated.world import Machine
from polonaise_proving.work import workload
from polonaise_proving.work.application import HEADER_FILTER, UNWANTED_HEADER
from rigs.log import DIRECTORY, PARTITION, SEGMENT, Maker, Open, alive, life, simulated
from rigs.scenarios import in_a_world

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


KEY = bytes(16)


def batch(first: int, last: int, after: Batch | None = None, body: bytes = b"body") -> Batch:
    columns = Columns()
    for id in range(first, last + 1):
        columns.add(1, 1, id, 0, body)
    raw = seal(
        columns, partition=0, first=first, session=1, generation=1, commit_time_us=1,
        previous_crc=after.crc if after else 0,
    )  # fmt: skip
    return Batch.parse(raw)


def archive(*spans: tuple[Batch, ...]) -> dict[FragmentName, bytes]:
    """Fragments, each with these batches."""
    fragments = {}
    for batches in spans:
        writer = FragmentWriter(KEY)
        for each in batches:
            writer.add(each)
        raw = writer.finish()[1]
        name = FragmentName(0, batches[0].first, batches[-1].last, hashlib.sha256(raw).hexdigest())
        fragments[name] = raw
    return fragments


class Copies:
    """A storage node that has trimmed everything below an id."""

    name = "storage-0"

    def __init__(self, trimmed: int = 0, confirmed: int = -1, batches: tuple[Batch, ...] = ()) -> None:
        self._trimmed, self._confirmed, self._batches = trimmed, confirmed, batches

    def promised(self, partition: int) -> PromiseSector:
        return PromiseSector(0, 1, 0, Promises(confirmed=self._confirmed), NO_EVIDENCE, TrimMark(self._trimmed, 0))

    def replica(self, partition: int) -> DiskReplica:
        return DiskReplica(self.name, [*self._batches], self._trimmed)


A = batch(0, 1)
B = batch(2, 4, A)
C = batch(5, 5, B)


def test_the_archive_reaches_as_far_as_no_id_is_missing() -> None:
    assert archived_up_to({}, 0) == -1
    assert archived_up_to(archive((B,)), 0) == -1
    assert archived_up_to(archive((A,), (C,)), 0) == 1
    assert archived_up_to(archive((A, B), (B,), (B, C)), 0) == 5
    assert archived_up_to(archive((A, B)), 1) == -1, "those of another partition do not count"


def test_what_was_trimmed_is_read_from_fragments_once_though_these_overlap() -> None:
    read = batches_below(archive((A,), (A, B), (B, C)), 0, 5)
    assert [(each.first, each.last) for each in read] == [(0, 1), (2, 4)]


def test_a_trimmed_id_that_no_fragment_has_is_found() -> None:
    with pytest.raises(Violation, match="no fragment has 2"):
        batches_below(archive((A,), (C,)), 0, 5)


@pytest.mark.parametrize(
    ("copies", "found"),
    [
        (Copies(2, 4), []),
        (Copies(0), []),
        (Copies(5, 5), ["nothing to be trimmed above 1, where the archive ends"]),
        (Copies(2, 1), ["nothing to be trimmed from 1 on, the confirmed mark"]),
    ],
    ids=["archived and confirmed", "nothing trimmed", "not archived", "not confirmed"],
)
def test_what_must_not_be_trimmed_is_found(copies: Copies, found: list[str]) -> None:
    check = ArchiveCheck(lambda: archive((A,)), [copies], 1)
    assert [each.expected for each in check.check_trims()] == found


def test_a_mark_within_a_batch_is_found_and_told_once() -> None:
    check = ArchiveCheck(dict, [Copies(confirmed=3, batches=(A, B))], 1)
    assert [each.promise for each in check.check_marks()] == ["P11 availability"]
    assert list(check.check_marks()) == []
    assert list(ArchiveCheck(dict, [Copies(confirmed=4, batches=(A, B))], 1).check_marks()) == []


def test_a_fragment_that_holds_something_else_than_the_log_is_found() -> None:
    fragments = archive((A, batch(2, 4, A, b"other")))
    found = list(ArchiveCheck(lambda: fragments, [], 1).check(FinalLog(0, [A, B, C])))
    assert [each.seen for each in found] == ["others from 2 on"]
    assert list(ArchiveCheck(lambda: archive((A, B)), [], 1).check(FinalLog(0, [A, B, C]))) == []


DAY_US = 86_400_000_000


class Scene:
    """What is known of one partition, and the true time."""

    def __init__(self) -> None:
        self.history, self.true_us = History(1), 0
        self.history.true_us = lambda: self.true_us
        self.judge = CommitTimes(self.history, partitions=1, off_s_max=10.0)

    def known(self, id: int, at: int) -> None:
        self.true_us = at
        self.history._is_committed(0, id)

    def wrong(self, *times_us: int) -> list[str]:
        """What is found in a log of one batch at each of these times, whose first ids are 0, 1, …"""
        batches = [SimpleNamespace(first=id, last=id, commit_time_us=at) for id, at in enumerate(times_us)]
        log: Any = SimpleNamespace(partition=0, batches=batches, bodies=[None] * len(batches))
        return [found.seen.partition(" were")[0] for found in self.judge.check(log)]


def test_a_commit_time_behind_the_moment_at_which_somebody_knew_of_it_is_wrong() -> None:
    scene = Scene()
    scene.known(1, 1)
    scene.known(2, 2)
    assert scene.wrong(1, 1, 2) == []
    assert scene.wrong(1, DAY_US, DAY_US) == ["1 to 1", "2 to 2"]


@pytest.mark.parametrize("kept", [-1, 0, 1, 4])
def test_what_was_known_of_the_log_before_a_reset_of_the_head_judges_nothing_of_the_log_after(kept: int) -> None:
    scene = Scene()
    for id in range(5):
        scene.known(id, id)
    scene.history.head_reset(0, kept, kept, (), ())
    before = list(range(kept + 1))
    assert scene.wrong(*before, *[DAY_US] * (4 - kept)) == [], "nobody knows of the log after it yet"
    scene.known(6, DAY_US)
    after = [DAY_US] * (6 - kept)
    assert scene.wrong(*before, *after) == []
    assert scene.wrong(*before, *(3 * at for at in after)) == [f"{id} to {id}" for id in range(kept + 1, 7)]


class EndingLog:
    """A log that ends while the first append is under way; the test is over with the second one."""

    def __init__(self) -> None:
        self.appends = 0

    def applied(self, partition: int) -> int:
        return -1

    async def ready(self, partition: int) -> None: ...

    async def append(self, body: bytes, partition: int, *, high_water_mark: int) -> Any:
        self.appends += 1
        if self.appends > 1:
            raise asyncio.CancelledError
        raise AppendUnknown("its client was closed")


async def test_a_last_append_of_unknown_fate_is_not_noted_as_failed() -> None:
    history = History(1)
    session = SimpleNamespace(
        application=SimpleNamespace(producing={0: None}, who="one"),
        history=history,
        log=EndingLog(),
        invoke=lambda partition, kind, rests: history.invoke("one", partition, Kind(kind), rests, 0),
        failed=lambda attempt, error: history.failed(attempt, str(error), None),
    )
    with pytest.raises(asyncio.CancelledError):
        await workload.last_step(cast(Any, session), 0)
    assert history.tries[0].fate is Fate.UNKNOWN


def test_a_filter_lets_bodies_come_be_fetched_and_be_left() -> None:
    mask, value = HEADER_FILTER
    matching = [header & mask == value for header in range(UNWANTED_HEADER + 1)]
    assert any(matching)
    assert not all(matching[:UNWANTED_HEADER]), "some that are wanted have to be fetched"
    assert not matching[UNWANTED_HEADER], "some that are not wanted have to be left"


async def works(host: Host) -> None:
    """Writes and sends for ever, whatever comes of it."""
    file = await host.disk.open("a", create=True)
    await host.network.listen("localhost:1", asyncio.Protocol)
    await asyncio.sleep(1)
    while True:
        await file.write(0, [host.random.randbytes(2000)], sync=True)
        for number in range(3):
            with contextlib.suppress(ConnectionLost):
                transport, _ = await host.network.connect(f"m{number}:1", asyncio.Protocol)
                transport.write(bytes(500))
                transport.close()
        await asyncio.sleep(0.1)


@in_a_world
async def test_the_data_centre_loses_power_at_once(world: World) -> None:
    processes = [world.machine(f"m{number}").start(works) for number in range(3)]
    await asyncio.sleep(2)
    world.power_loss_all()
    assert not any(process.alive for process in processes)
    assert world.faults["power_loss"] == 3


@in_a_world(configuration=Configuration(record=True))
async def test_a_recorded_trace_is_readable(world: World) -> None:
    process = world.machine("m0").start(works)
    await asyncio.sleep(0.5)
    world.trace.note("half a second")
    process.crash()
    assert world.trace.lines is not None
    events = [line.split(maxsplit=1)[1] for line in world.trace.lines]
    assert events[0].split() == ["start", "m0/1", "0"]
    assert events[-2].split() == ["note", "half", "a", "second"]
    assert events[-1].split() == ["crash", "m0/1", "0"]
