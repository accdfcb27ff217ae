"""Bytes that rot under a storage node: never served, recorded before they are touched, mended by the next session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any
from zlib import crc32

import pytest

from polonaise.errors import (
    AddressInUse,
    ControlFileDamaged,
    DirectoryInUse,
    DiskFailed,
    PolonaiseError,
    SegmentDamaged,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.host import Host
from polonaise.log.batch import Batch, padded
from polonaise.log.control import SECTOR_BYTES, encode_header
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES, SegmentHeader
from polonaise.terms import UNRESOLVED
from rigs.faults import raises_code
from rigs.log import CONTROL, KEY, PARTITION, Maker, crcs, remove_entry
from rigs.storage import Node, Owner, connected, fenced, filled, simulate, simulated

pytestmark = pytest.mark.slow

COPIES = SECTOR_BYTES + PARTITION * 3 * SECTOR_BYTES


async def mended(owner: Owner, batches: list[Batch], *, lost_above: int) -> None:
    """A session makes the copy with this loss whole again: cut at the loss, copied to, joined."""
    info = await owner.fence(50)
    assert info.lost_above == lost_above
    assert info.max_synced <= info.lost_above
    held = info.max_synced + 1
    assert info.last_crc == (batches[held - 1].crc if held else 0)
    assert crcs(await owner.read_all()) == crcs(batches[:held])
    with raises_code("partition_unavailable"):
        await owner.copy(batches[held:])
    with raises_code("partition_unavailable"):
        await owner.join(info.max_synced, info.last_crc)
    await owner.truncate(info.max_synced)
    await owner.copy(batches[held:])
    await owner.join(len(batches) - 1, batches[-1].crc)
    assert crcs(await owner.read_all()) == crcs(batches)
    assert (await owner.fence(50)).lost_above == UNRESOLVED


def offsets(batches: list[Batch]) -> list[int]:
    """Where each batch's frame begins in a first segment."""
    found = [HEADER_BYTES]
    for batch in batches:
        found.append(found[-1] + FRAME_BYTES + batch.length)
    return found


# ------------------------------------------------------------------ found at the start


# Rot of the very last sync together with a loss of power is the risk that remains.
@pytest.mark.parametrize(
    ("place", "power_loss"),
    [*((place, False) for place in range(6)), *((place, True) for place in range(5))],
    ids=lambda each: ("power loss" if each else "killed") if isinstance(each, bool) else None,
)
def test_a_bit_that_flipped_below_the_evidence_makes_the_copy_say_that_it_may_have_lost(
    place: int, power_loss: bool
) -> None:
    made = Maker().batches(6, size=64)
    starts = offsets(made)

    async def script(host: Host, node: Node) -> None:
        await filled(host, made)
        await asyncio.sleep(0.2)
        node.machine.power_loss() if power_loss else node.process.crash()
        node.disk.flip_bit(node.segment(), flipped)
        node.start()
        owner, info = await fenced(host, 2)
        assert (info.lost_above, info.max_synced) == (place - 1, place - 1)
        with raises_code("partition_unavailable"):
            await owner.copy(made[place:])
        await node.restart(power_loss=True)
        await mended(await connected(host), made, lost_above=place - 1)
        await node.restart(power_loss=True)
        assert (await (await connected(host)).fence(51)).max_synced == 5

    for flipped in range(starts[place], starts[place + 1], 23):
        simulate(script, seed=flipped)


def test_the_end_of_the_log_that_is_gone_is_missed() -> None:
    made = Maker().batches(6, size=64)
    starts = offsets(made)

    async def script(host: Host, node: Node) -> None:
        await filled(host, made)
        await asyncio.sleep(0.2)
        node.process.crash()
        node.disk.truncate(node.segment(), length)
        node.start()
        held = sum(start <= length for start in starts[1:])
        await mended(await connected(host), made, lost_above=held - 1)

    for length in range(HEADER_BYTES, starts[-1], 61):
        simulate(script, seed=length)


SIX = Maker().batches(6, size=64)


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize(
    "rubbish",
    [
        pytest.param(b"\0", id="a byte"),
        pytest.param(b"PLNF", id="a magic"),
        pytest.param(bytes(700), id="zeros"),
        pytest.param(b"PLNF" + b"\xff" * 600, id="a magic and noise"),
        pytest.param(b"".join(batch.view for batch in SIX), id="batches without frames"),
    ],
)
@simulated
async def test_bytes_above_all_evidence_are_a_torn_tail_and_cut(
    host: Host, node: Node, *, rubbish: bytes, at_once: int
) -> None:
    made = SIX
    await filled(host, made, at_once=at_once)
    await asyncio.sleep(0.2)
    node.process.crash()
    path = node.segment()
    end = padded(len(node.disk.contents(path).rstrip(b"\0")))  # behind it may be zeros that are set aside
    node.disk.file(path).write(end, rubbish)
    node.start()
    owner, info = await fenced(host, 2)
    assert (info.lost_above, info.max_synced) == (UNRESOLVED, 5)
    assert len(node.disk.contents(path)) == end, "cut, so that nothing of it is ever read"
    await owner.join(5, made[5].crc)
    await owner.store(1, Maker(5, made[5].crc).batch())


@pytest.mark.parametrize("header", [False, True], ids=["gone", "without header"])
@pytest.mark.parametrize("which", ["the first", "a middle", "the last"])
@simulated(segment_bytes_max=1_000)
async def test_a_segment_that_is_gone_or_has_no_header_is_missed(
    host: Host, node: Node, *, which: str, header: bool
) -> None:
    made = Maker().batches(12, size=200)
    await filled(host, made)
    await asyncio.sleep(0.2)
    node.process.crash()
    paths = node.segments()
    path = paths[{"the first": 0, "a middle": len(paths) // 2, "the last": -1}[which]]
    if header:
        node.disk.zero_sector(path, 0)
    else:
        remove_entry(node.disk, path)
    node.start(segment_bytes_max=1_000)
    await mended(await connected(host), made, lost_above=int(path[-24:-4]) - 1)


# ------------------------------------------------------------------ found by a read


@pytest.mark.parametrize("place", [0, 5, 17, 29])
@simulated(segment_bytes_max=2_000)
async def test_damage_that_a_read_meets_is_recorded_before_it_is_told(host: Host, node: Node, *, place: int) -> None:
    made = Maker().batches(30, size=200)
    owner = await filled(host, made)
    path, offset = place_of(node, made[place])
    node.disk.flip_bit(path, offset + 70)
    with pytest.raises(SegmentDamaged):
        await owner.read(made[place].first, made[place].last)
    await node.restart(power_loss=True, segment_bytes_max=2_000)
    await mended(await connected(host), made, lost_above=place - 1)


def place_of(node: Node, batch: Batch) -> tuple[str, int]:
    for path in node.segments():
        offset = node.disk.contents(path).find(bytes(batch.view))
        if offset >= 0:
            return path, offset
    raise AssertionError("not on the disk")


@simulated
async def test_a_copy_that_met_damage_acknowledges_nothing_more_in_its_session(host: Host, node: Node) -> None:
    made = Maker().batches(8, size=200)
    owner = await filled(host, made[:7])
    path, offset = place_of(node, made[3])
    node.disk.flip_bit(path, offset + 70)
    with pytest.raises(SegmentDamaged):
        await owner.digest(6)
    for batches in ((), (made[7],)):
        owner.send(9, *batches)
        with pytest.raises(PolonaiseError) as told:
            await owner.settled(9)
        assert told.value.code in ("partition_unavailable", "segment_damaged", "not_joined")
        owner.refusals.clear()
    await mended(owner, made, lost_above=2)


@pytest.mark.parametrize("seed", range(12))
def test_damage_that_a_read_meets_while_appends_are_under_way_takes_its_turn(seed: int) -> None:
    made = Maker().batches(40, size=200)

    async def script(host: Host, node: Node) -> None:
        owner, reader = await filled(host, made[:10]), await connected(host)
        reader.session = 1
        path, offset = place_of(node, made[seed % 10])
        node.disk.flip_bit(path, offset + 70)
        for number, batch in enumerate(made[10:], 11):
            owner.send(number, batch)
        await asyncio.sleep(0.0003 * seed)
        reads: list[Coroutine[Any, Any, list[Batch]]] = [reader.read(first, first) for first in range(10)]
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert any(getattr(one, "code", "") in ("segment_damaged", "partition_unavailable") for one in found)
        await asyncio.sleep(1)
        assert node.process.alive
        assert owner.refusals or owner.acknowledged == 40
        acknowledged = owner.acknowledged
        await node.restart(power_loss=True, segment_bytes_max=2_000)
        await mended(await connected(host), made[: max(acknowledged, 10)], lost_above=seed % 10 - 1)

    simulate(script, seed=seed, segment_bytes_max=2_000)


@pytest.mark.parametrize("what", ["a batch", "the registers at the start"])
@simulated(segment_bytes_max=2_000)
async def test_a_cut_that_meets_damage_records_it_and_the_next_attempt_goes_on(
    host: Host, node: Node, *, what: str
) -> None:
    maker = Maker()
    made = [maker.batch(size=200, changes=[(b"n", b"%d" % n)]) for n in range(30)]
    await filled(host, made)
    owner = await connected(host)
    path, offset = place_of(node, made[12])
    first = int(path[-24:-4])
    node.disk.flip_bit(path, offset + 70 if what == "a batch" else HEADER_BYTES + 3)
    await owner.fence(2)
    with pytest.raises(SegmentDamaged):
        await owner.truncate(13)
    await mended(owner, made, lost_above=11 if what == "a batch" else first - 1)


@simulated
async def test_a_cut_in_the_last_segment_below_damaged_registers_is_no_mistake_of_ours(host: Host, node: Node) -> None:
    maker = Maker()
    made = [maker.batch(size=200, changes=[(b"n", b"%d" % n)]) for n in range(12)]
    await filled(host, made)
    owner = await connected(host)
    path, offset = place_of(node, made[2])
    node.disk.flip_bit(path, offset + 70)
    await owner.fence(2)
    with pytest.raises(SegmentDamaged):
        await owner.truncate(8)
    assert node.process.alive
    with raises_code("partition_unavailable"):
        await owner.join(-1, 0)
    await mended(owner, made, lost_above=1)


@pytest.mark.parametrize("kind", ["sync", "write"])
@pytest.mark.parametrize("failing", range(1, 9))
@simulated(segment_bytes_max=2_000, may_fail=(DiskFailed,))
async def test_a_cut_that_the_disk_did_not_carry_out_is_made_again(
    host: Host, node: Node, *, kind: str, failing: int
) -> None:
    made = Maker().batches(30, size=200)
    await filled(host, made)
    owner, _ = await fenced(host, 2)
    node.fail_at(kind, failing)
    with contextlib.suppress(PolonaiseError):
        await owner.truncate(4)
    node.mend()
    if node.process.dead:
        node.start(segment_bytes_max=2_000)
        owner = await connected(host)
        owner.session = 2
    with pytest.raises(PolonaiseError):
        await owner.join(-1, 0)
    info = await owner.fence(2)
    assert info.max_synced >= 4
    assert crcs(await owner.read_all()) == crcs(made[: info.max_synced + 1])
    await owner.truncate(4)
    assert crcs(await owner.read_all()) == crcs(made[:5])
    await owner.copy(made[5:])
    await owner.join(29, made[29].crc)


# ------------------------------------------------------------------ the control file, and whose directory it is


@simulated
async def test_one_rotten_copy_of_the_promises_forgets_nothing(host: Host, node: Node) -> None:
    for session in range(1, 7):
        owner = await connected(host)
        await owner.open(session)
        await owner.confirm(-1)
        await node.restart(power_loss=bool(session % 2))
        node.process.crash()
        node.disk.flip_bit(CONTROL, COPIES + session % 2 * SECTOR_BYTES + 40 + session)
        node.start()
        info = await (await connected(host)).fence(session)
        assert (info.fence, info.joined, info.lost_above) == (session, session, UNRESOLVED)


@simulated
async def test_both_copies_damaged_refuse_the_partition_and_not_the_node(host: Host, node: Node) -> None:
    made = Maker().batches(3)
    owner = await filled(host, made)
    node.process.crash()
    before = node.disk.snapshot()
    for place in (0, 1):
        node.disk.zero_sector(CONTROL, COPIES // SECTOR_BYTES + place)
    node.start()
    owner = await connected(host)
    for _ in range(2):
        with pytest.raises(ControlFileDamaged):
            await owner.fence(2)
    with pytest.raises(ControlFileDamaged):
        await owner.read(0, 2)
    owner.partition = 4
    await owner.open(1)
    node.process.crash()
    node.disk.restore(before)
    node.start()
    assert crcs(await _read_all(host)) == crcs(made), "nothing was touched"


async def _read_all(host: Host) -> list[Batch]:
    owner, _ = await fenced(host, 60)
    return await owner.read_all()


def of_another_format(node: Node) -> None:
    raw = bytearray(encode_header(KEY, 0)[:124])
    raw[4] = 2
    node.disk.overwrite(CONTROL, 0, bytes(raw) + crc32(raw).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("damage", "code", "settings"),
    [
        pytest.param(lambda node: remove_entry(node.disk, CONTROL), "control_file_missing", {}, id="missing"),
        pytest.param(lambda node: node.disk.truncate(CONTROL, 0), ControlFileDamaged.code, {}, id="empty"),
        *(
            pytest.param(
                lambda node, at=at: node.disk.flip_bit(CONTROL, at), ControlFileDamaged.code, {}, id=f"bit {at}"
            )
            for at in (0, 4, 9, 20, 125)
        ),
        pytest.param(of_another_format, UnsupportedFormat.code, {}, id="another format"),
        pytest.param(
            lambda node: None, WrongClusterKey.code, {"cluster_key": bytes(range(2, 18))}, id="another cluster's"
        ),
    ],
)
def test_a_node_does_not_start_in_a_directory_whose_control_file_is_not_its_own_and_whole(
    damage: Callable[[Node], object], code: str, settings: dict[str, Any]
) -> None:
    async def script(host: Host, node: Node) -> None:
        await filled(host, Maker().batches(3))
        node.process.crash()
        damage(node)
        await node.start(may_fail=(PolonaiseError,), **settings).ended()
        assert node.process.failure.code == code

    simulate(script)


@simulated
async def test_a_directory_is_taken_by_one_process(host: Host, node: Node) -> None:
    await (await connected(host)).open(1)
    first = node.process
    await node.start(may_fail=(DirectoryInUse,), listen="storage:2").ended()
    assert isinstance(node.process.failure, DirectoryInUse)
    assert first.alive


@simulated
async def test_an_address_that_is_taken_leaves_the_directory_as_it_was(host: Host, node: Node) -> None:
    await (await connected(host)).open(1)
    names = node.disk.paths()
    await node.start(may_fail=(AddressInUse,), directory="another").ended()
    assert isinstance(node.process.failure, AddressInUse)
    assert node.disk.paths() == names


@simulated
async def test_a_segment_of_another_cluster_makes_its_partition_unusable_and_is_left_alone(
    host: Host, node: Node
) -> None:
    await filled(host, Maker().batches(3))
    node.process.crash()
    header = SegmentHeader.decode(node.disk.contents(node.segment())[:HEADER_BYTES])
    node.disk.overwrite(node.segment(), 0, header._replace(cluster_key=bytes(16)).encode())
    before = node.disk.contents(node.segment())
    node.start()
    with pytest.raises(WrongClusterKey):
        await (await connected(host)).fence(2)
    assert node.disk.contents(node.segment()) == before
