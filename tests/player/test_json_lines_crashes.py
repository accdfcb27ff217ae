"""A target in a file of JSON lines whose process or machine dies at any point: each entry stays once and in order."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from polonaise.checksum import crc32
from polonaise.errors import PolonaiseError, ViewUnavailable, ViewUnfit
from polonaise.host import Buffer, Disk, File, Host
from polonaise.player.jsonlines import JsonLinesTarget
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, RoutedEntry
from polonaise_proving.stages.simulated import Configuration, World
from polonaise_proving.stages.simulated.disk import SimulatedDisk
from rigs.deliverycalls import SOURCE, StreamCalls, batch_of, stream

DIRECTORY, PATH = "lines", "lines/entries.jsonl"
PARTITIONS = 3
ENTRIES = [b"entry %d " % number + b"x" * (number * 37 % 90) if number % 4 else None for number in range(24)]
"""Those of each partition; each fourth one is a dummy."""
FINAL_EPOCH = 50


class Shipment:
    """What a player sends, and what it was told, over all lives of the target."""

    def __init__(self) -> None:
        self.acknowledged = dict.fromkeys(range(PARTITIONS), -1)
        self.fence = NO_FENCE
        """The highest fence that was accepted, and answered."""
        self.delivered = False

    async def run(self, target: JsonLinesTarget, epoch: int, disk: SimulatedDisk) -> None:
        """Be the player of this epoch: offer a stream, and send what the target lacks, three entries at a time."""
        if self.fence > NO_FENCE:
            assert not (await target.accept(self.fence, SOURCE)).accepted, "the fence is kept"
        session = StreamCalls(target, Fence(epoch, 1))
        acceptance = await session.greet()
        assert acceptance.accepted
        assert self.fence < acceptance.kept
        self.fence = acceptance.kept
        for partition, through in self.acknowledged.items():
            assert acceptance.applied.get(partition, -1) >= through, "what was acknowledged is kept"
        applied = {partition: acceptance.applied.get(partition, -1) for partition in range(PARTITIONS)}
        check(disk.contents(PATH), applied)
        for partition, last in applied.items():
            self.acknowledged[partition] = last
        await asyncio.gather(*(self._send(session, partition) for partition in range(PARTITIONS)))
        self.delivered = True

    async def _send(self, session: StreamCalls, partition: int) -> None:
        while (last := self.acknowledged[partition]) < len(ENTRIES) - 1:
            through = min(last + 3, len(ENTRIES) - 1)
            entries = [RoutedEntry(id, ENTRIES[id]) for id in range(last + 1, through + 1)]
            told = await session.take(DeliveryBatch(partition, last, entries))
            assert told.last == through
            self.acknowledged[partition] = through


def check(held: bytes, applied: dict[int, int]) -> None:
    """The file has exactly the entries up to these ids, each once, those of a partition in order, and nothing else."""
    assert held == b"" or held.endswith(b"\n")
    found: dict[int, list[tuple[int, str]]] = {}
    for line in held.splitlines():
        said = json.loads(line)
        found.setdefault(said["partition"], []).append((said["id"], said["payload"]))
    for partition, last in applied.items():
        payloads = [(id, payload.decode()) for id, payload in enumerate(ENTRIES[: last + 1]) if payload is not None]
        assert found.get(partition, []) == payloads


class SyncedApart:
    """A disk whose writes are synced by a call of their own, before which a process can die."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def open(self, path: str, *, create: bool = False, append: bool = False) -> File:
        file: Any = FileSyncedApart(await self._disk.open(path, create=create, append=append))
        return cast(File, file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class FileSyncedApart:
    def __init__(self, file: File) -> None:
        self._file = file

    async def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        await self._file.write(offset, buffers)
        if sync:
            await self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def live(
    seed: int,
    *,
    crash_on_call: int = 0,
    power_loss: Collection[int] = (),
    inflict: Callable[[SimulatedDisk], None] | None = None,
) -> int:
    """Two lives of the target that crash at a call to the disk, one that ends, and one that only looks.

    The machine loses power after those lives of which `power_loss` has the epochs.
    """
    world = World(seed, Configuration())
    machine = world.machine("a")
    shipment = Shipment()
    calls = 0

    async def life(epoch: int, crash_on_call: int = 0) -> None:
        nonlocal calls
        errors: list[BaseException] = []

        async def main(host: Host) -> None:
            disk = cast(Disk, SyncedApart(host.disk))
            target = JsonLinesTarget(PATH, decode=bytes.decode, disk=disk)
            try:
                await shipment.run(target, epoch, machine.disk)
            except ViewUnavailable:
                if inflict is None:
                    raise
            except BaseException as error:
                errors.append(error)
                raise
            finally:
                await target.close()

        process = machine.start(main, may_fail=(AssertionError, PolonaiseError))
        process.crash_on_call = process.calls + crash_on_call if crash_on_call else None
        await process.ended()
        calls = process.calls
        assertions = [error for error in errors if isinstance(error, AssertionError | PolonaiseError)]
        if assertions:
            raise assertions[0]
        if not crash_on_call:
            assert process.left_open == []

    async def prepared(host: Host) -> None:
        await host.disk.make_directory(DIRECTORY)
        await host.disk.sync_directory("")

    async def scenario() -> None:
        await machine.start(prepared).ended()
        for epoch in (1, 2):
            if inflict is not None:
                inflict(machine.disk)
            await life(epoch, crash_on_call)
            if epoch in power_loss:
                machine.power_loss()
            machine.disk.mend()
        await life(FINAL_EPOCH)
        assert shipment.delivered
        await life(FINAL_EPOCH + 1)
        check(machine.disk.contents(PATH), dict.fromkeys(range(PARTITIONS), len(ENTRIES) - 1))

    world.run(scenario())
    return calls


@functools.cache
def calls_of_a_life() -> int:
    """The calls of one that has everything to do, at least."""
    world = World(0, Configuration())
    machine = world.machine("a")

    async def main(host: Host) -> None:
        await host.disk.make_directory(DIRECTORY)
        target = JsonLinesTarget(PATH, decode=bytes.decode, disk=cast(Disk, SyncedApart(host.disk)))
        await Shipment().run(target, 1, machine.disk)
        await target.close()

    async def scenario() -> int:
        process = machine.start(main)
        await process.ended()
        return process.calls

    return world.run(scenario())


AFTER_WHICH = {"killed": (), "power loss": (1, 2), "killed, then power loss": (2,)}
"""After which of the lives that crash the machine loses power."""


def every_crash(power_loss: Collection[int], seeds: int) -> None:
    for call in range(1, calls_of_a_life() + 1):
        for seed in range(seeds):
            live(call + 1_000 * seed, crash_on_call=call, power_loss=power_loss)


@pytest.mark.slow
@pytest.mark.parametrize("power_loss", AFTER_WHICH.values(), ids=AFTER_WHICH)
def test_a_target_that_dies_at_any_call_keeps_its_word(power_loss: Collection[int]) -> None:
    assert calls_of_a_life() > 30
    every_crash(power_loss, 6)


@pytest.mark.exhaustive  # of calls of the disk
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("power_loss", AFTER_WHICH.values(), ids=AFTER_WHICH)
@pytest.mark.parametrize("fault", ["fail_syncs", "fail_writes", "fail_reads", "fill"])
def test_a_disk_that_fails_or_is_full_loses_and_doubles_nothing(
    fault: str, seed: int, power_loss: Collection[int]
) -> None:
    def inflict(disk: SimulatedDisk) -> None:
        if fault == "fill":
            disk.fill(seed * 113)
        else:
            getattr(disk, fault)(1)

    live(seed, inflict=inflict, power_loss=power_loss, crash_on_call=seed * 3)


# ---------------------------------------------------------------------- the files, cut and damaged at every byte


class Pair(NamedTuple):
    """What both files hold at a moment."""

    lines: bytes
    memory: bytes

    @classmethod
    def at(cls, path: Path) -> Pair:
        return cls(path.read_bytes(), memory_of(path).read_bytes())

    def put(self, path: Path) -> None:
        path.write_bytes(self.lines)
        memory_of(path).write_bytes(self.memory)


def memory_of(path: Path) -> Path:
    return path.with_name(path.name + ".memory")


async def told_by(path: Path) -> dict[int, int]:
    """Return what a target on these files says that it has applied."""
    target = JsonLinesTarget(path)
    try:
        acceptance = await target.accept(Fence(9, 9), SOURCE)
        assert acceptance.accepted
        return dict(acceptance.applied)
    finally:
        await target.close()


async def a_step(path: Path) -> tuple[Pair, Pair]:
    """Return both files before and after a step of two lines."""
    target = JsonLinesTarget(path)
    calls = await stream(target)
    await calls.take(batch_of(-1, ["a", "b"]))
    before = Pair.at(path)
    await calls.take(batch_of(1, ["c", "d"]))
    await target.close()
    return before, Pair.at(path)


def without_end(memory: bytes) -> bytes:
    """Return the memory without its last line, which says that the lines of the last step are there."""
    return memory[: memory.rindex(b"\n", 0, -1) + 1]


async def refused(path: Path, put: Pair, why: str) -> None:
    """The files are refused, and left as they are."""
    put.put(path)
    with pytest.raises(ViewUnfit, match=why):
        await told_by(path)
    assert Pair.at(path) == put


@pytest.mark.slow
async def test_lines_that_are_torn_at_any_byte_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    before, after = await a_step(path)
    memory = without_end(after.memory)
    for size in range(len(before.lines), len(after.lines) + 1):
        for torn in (after.lines[:size], after.lines[:size].ljust(len(after.lines), b"\0")):
            Pair(torn, memory).put(path)
            is_whole = torn == after.lines
            assert await told_by(path) == {0: 3 if is_whole else 1}
            assert path.read_bytes() == (after.lines if is_whole else before.lines)


async def test_what_is_no_part_of_the_step_that_was_noted_is_somebody_elses(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    before, after = await a_step(path)
    noted = without_end(after.memory)
    others = b"somebody's\n"
    for memory, lines in ((before.memory, before.lines), (noted, after.lines), (after.memory, after.lines)):
        await refused(path, Pair(lines + others, memory), f"has {len(lines + others)} bytes, and {len(lines)} were")
    for left in (others, before.lines, after.lines[len(before.lines) :][:-1] + others):
        await refused(path, Pair(before.lines + left, noted), f"and {len(before.lines)} were written")
    # What was acknowledged is missed, once it is known that it was there.
    await refused(path, Pair(after.lines[:-1], after.memory), f"and {len(after.lines)} were written")
    # Steps are noted before their lines are written.
    await refused(path, Pair(after.lines, before.memory), f"and {len(before.lines)} were written")


async def test_a_file_that_is_gone_is_missed_as_soon_as_a_step_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    target = JsonLinesTarget(path)
    await (await stream(target)).take(batch_of(-1, ["a"]))
    await target.close()
    memory_of(path).write_bytes(without_end(memory_of(path).read_bytes()))
    path.unlink()
    with pytest.raises(ViewUnfit, match="is gone"):
        await told_by(path)
    assert not path.exists()


async def test_what_is_left_of_a_step_is_cut_once(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    before, after = await a_step(path)
    Pair(after.lines[:-1], without_end(after.memory)).put(path)
    assert await told_by(path) == {0: 1}
    left = after.lines[len(before.lines) :][:-1]
    await refused(path, Pair(before.lines + left, memory_of(path).read_bytes()), "were written")


def of_an_earlier_version(memory: bytes) -> bytes:
    """Return the memory as versions wrote it that noted a step behind its lines."""
    first, *steps = (json.loads(line.partition(b" ")[2]) for line in memory.splitlines())
    assert first.pop("noted_first")
    told = [{key: each[key] for key in each if key != "begins"} for each in steps if each["applied"]]
    texts = [json.dumps(each).encode() for each in (first, *told)]
    return b"".join(b"%08x %s\n" % (crc32(text), text) for text in texts)


@pytest.mark.slow
async def test_files_of_an_earlier_version_are_read_and_what_lies_behind_them_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    before, after = await a_step(path)
    for size in range(len(before.lines), len(after.lines) + 1):
        Pair(after.lines[:size], of_an_earlier_version(before.memory)).put(path)
        assert await told_by(path) == {0: 1}
        assert path.read_bytes() == before.lines
    # From then on it is of this one.
    await refused(path, Pair(after.lines, memory_of(path).read_bytes()), "were written")
    Pair(after.lines, of_an_earlier_version(after.memory)).put(path)
    assert await told_by(path) == {0: 3}


@pytest.mark.slow
async def test_a_memory_that_is_torn_at_any_byte_counts_without_its_last_step(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    before, after = await a_step(path)
    noted = without_end(after.memory)
    start = len(without_end(before.memory))  # a step is noted in the place of the end of the one before
    for size in range(start, len(noted) + 1):
        for torn in (
            noted[:size],
            noted[:size].ljust(len(noted), b"\0"),
            noted[:size] + before.memory[size:],
        ):
            before._replace(memory=torn).put(path)
            assert await told_by(path) == {0: 1}
            assert path.read_bytes() == before.lines
    for size in range(len(noted), len(after.memory) + 1):
        for torn in (after.memory[:size], after.memory[:size].ljust(len(after.memory), b"\0")):
            after._replace(memory=torn).put(path)
            assert await told_by(path) == {0: 3}
            assert path.read_bytes() == after.lines


@pytest.mark.slow
async def test_a_memory_that_is_damaged_anywhere_is_refused_or_counts_by_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "entries.jsonl"
    _, after = await a_step(path)
    outcomes = []
    for place in range(len(after.memory)):
        damaged = bytearray(after.memory)
        damaged[place] ^= 1
        put = after._replace(memory=bytes(damaged))
        put.put(path)
        said = await asyncio.gather(told_by(path), return_exceptions=True)
        if isinstance(said[0], ViewUnfit):
            assert "is damaged" in str(said[0]) or "another program has changed it" in str(said[0])
            assert Pair.at(path) == put, "left as it is"
            outcomes.append("refused")
        else:
            assert (said[0], path.read_bytes()) == ({0: 3}, after.lines)
            outcomes.append("whole")
    end = len(without_end(after.memory))
    assert set(outcomes[:end]) == {"refused"}
    assert set(outcomes[end:]) == {"whole"}
