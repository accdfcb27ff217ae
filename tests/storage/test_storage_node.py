"""A storage node as its owners meet it: whole sessions over simulated connections and disks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polonaise.errors import (
    BatchDamaged,
    ConnectionLost,
    Fenced,
    NotJoined,
    OutOfOrder,
    PolonaiseError,
    ProtocolError,
    UnknownPartition,
    WrongClusterKey,
)
from polonaise.host import Host
from polonaise.link.protocol.greeting import ANY_CLUSTER
from polonaise.node.condition import storage_troubles
from polonaise.storage.partitionreplica import PartitionReplica
from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED
from polonaise.wire.messages import Batches, Copy, CutForReset, Done, Flush, ReadBatches, SessionInfo, Store, Stored
from rigs.log import KEY, Maker, crcs
from rigs.storage import Node, Owner, connected, fenced, filled, opened, simulate, simulated

OTHER_KEY = bytes(range(1, 17))


@simulated(segment_bytes_max=2_000)
async def test_a_session_from_the_fence_to_the_last_acknowledgement(host: Host, node: Node) -> None:
    maker = Maker()
    made = maker.batches(30, size=100, count=2)
    owner, info = await fenced(host, 1)
    assert info == SessionInfo(1, NO_SESSION, NO_TRANSACTION, NO_TRANSACTION, NO_TRANSACTION, 0, UNRESOLVED)
    assert await owner.join(-1, 0) == Done(-1, 0)
    for number, batch in enumerate(made, 1):
        owner.send(number, batch)
    owner.send(31)
    await owner.settled(31)
    assert await owner.confirm(39) == Done(59, made[-1].crc)
    assert crcs(await owner.read_all()) == crcs(made)
    for power_loss in (False, True):
        await node.restart(power_loss=power_loss)
        owner = await connected(host)
        session = 2 + power_loss
        assert await owner.fence(session) == SessionInfo(session, 1, -1, 39, 59, made[-1].crc, UNRESOLVED)
        assert crcs(await owner.read_all()) == crcs(made)


@simulated
async def test_a_late_copy_is_cut_copied_to_and_joins(host: Host, node: Node) -> None:
    maker = Maker()
    good = maker.batches(10)
    dirty = Maker(4, good[4].crc).batches(4, salt=1)
    owner = await opened(host)
    await owner.store(1, *good[:5], *dirty)
    await owner.confirm(3)
    later, info = await fenced(host, 2)
    assert (info.joined, info.max_synced, info.confirmed) == (1, 8, 3)
    assert await later.truncate(4) == Done(4, good[4].crc)
    assert await later.copy(good[5:8]) == Done(7, good[7].crc)
    assert await later.copy(good[8:]) == Done(9, good[9].crc)
    with pytest.raises(OutOfOrder):
        await later.copy(good[8:])
    await later.join(9, good[9].crc)
    assert crcs(await later.read_all()) == crcs(good)
    await later.store(1, maker.batch())


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("mark", "last"), [(3, 5), (4, 5), (5, 5)])
@simulated
async def test_a_copy_that_is_confirmed_within_a_batch_keeps_all_of_that_batch_when_it_is_cut(
    host: Host, node: Node, *, mark: int, last: int, restarted: bool
) -> None:
    made = Maker().batches(4, count=3)
    owner = await opened(host)
    await owner.store(1, *made)
    await owner.confirm(mark)
    if restarted:
        await node.restart()
    later, info = await fenced(host, 2)
    assert (info.confirmed, info.max_synced) == (mark, 11)
    with pytest.raises(OutOfOrder):
        await later.truncate(2)
    assert await later.truncate(mark) == Done(last, made[1].crc)
    assert await later.copy(made[2:]) == Done(11, made[3].crc)
    await later.join(11, made[3].crc)


@simulated
async def test_a_copy_that_is_cut_within_a_batch_of_which_nothing_is_confirmed_keeps_nothing_of_it(
    host: Host, node: Node
) -> None:
    made = Maker().batches(4, count=3)
    owner = await opened(host)
    await owner.store(1, *made)
    await owner.confirm(2)
    later, _ = await fenced(host, 2)
    assert await later.truncate(4) == Done(2, made[0].crc)
    assert await later.ask(CutForReset(2, 1, NO_SESSION), Done) == Done(2, made[0].crc)
    assert (await later.fence(2)).confirmed == 1


@simulated
async def test_a_read_that_was_at_the_disk_while_a_newer_session_fenced_and_cut_is_refused(
    host: Host, node: Node, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, was_read, goes_on = PartitionReplica._read, asyncio.Event(), asyncio.Event()

    async def held(self: PartitionReplica, *asked: Any) -> Any:
        answer = await read(self, *asked)
        was_read.set()
        await goes_on.wait()
        return answer

    made = Maker().batches(3)
    old, new = await connected(host), await connected(host)
    await old.open(1)
    await old.store(1, *made)
    monkeypatch.setattr(PartitionReplica, "_read", held)
    answer = asyncio.ensure_future(old.read(0, 2))
    await was_read.wait()
    await new.fence(2)
    await new.truncate(0)
    goes_on.set()
    with pytest.raises(Fenced):
        await answer


@simulated
async def test_a_newer_session_fences_the_older_in_everything_it_may_ask(host: Host, node: Node) -> None:
    made = Maker().batches(6)
    old, new = await connected(host), await connected(host)
    await old.open(4)
    await old.store(1, *made[:3])
    assert (await new.fence(5)).max_synced == 2
    old.send(2, made[3])
    with pytest.raises(Fenced):
        await old.settled(2)
    for asked in (
        old.fence(4), old.truncate(2), old.copy(made[3:4]), old.join(2, made[2].crc), old.confirm(2),
        old.read(0, 2), old.registers(), old.digest(2),
    ):  # fmt: skip
        with pytest.raises(Fenced):
            await asked
    assert crcs(await new.read_all()) == crcs(made[:3])


def test_the_answer_to_a_fence_comes_after_every_append_of_an_older_session_that_is_ever_acknowledged() -> None:
    async def script(host: Host, node: Node) -> None:
        made = Maker().batches(40, size=2_000)
        old, new = await connected(host), await connected(host)
        await old.open(1)
        node.disk.slow(0.002)
        for number, batch in enumerate(made, 1):
            old.send(number, batch)
        await old.settled(1)
        info = await new.fence(2)
        await asyncio.sleep(1)
        assert 1 <= old.acknowledged <= info.max_synced + 1
        assert crcs(await new.read_all()) == crcs(made[: info.max_synced + 1])

    for seed in range(8):
        simulate(script, seed=seed)


@simulated
async def test_a_reconnected_owner_has_no_part_in_the_session_until_it_starts_another(host: Host, node: Node) -> None:
    made = Maker().batches(4)
    owner = await opened(host)
    await owner.store(1, made[0])
    owner.link.close()
    again = await connected(host)
    assert (await again.fence(1)).joined == 1
    again.send(2, made[1])
    with pytest.raises(NotJoined):
        await again.settled(2)
    again.refusals.clear()
    await again.open(2)
    await again.store(1, made[1])


@simulated
async def test_a_second_connection_of_the_owner_asks_but_does_not_append(host: Host, node: Node) -> None:
    made = Maker().batches(4)
    owner, bulk = await connected(host), await connected(host)
    await owner.open(1)
    await owner.store(1, *made[:2])
    bulk.session = 1
    assert crcs(await bulk.read_all()) == crcs(made[:2])
    bulk.send(2, made[2])
    with pytest.raises(NotJoined):
        await bulk.settled(2)
    bulk.link.close()
    await asyncio.sleep(0.1)
    await owner.store(2, made[2])


# ------------------------------------------------------------------ whose node it is


@simulated(cluster_key=KEY)
async def test_a_server_of_another_cluster_is_refused(host: Host, node: Node) -> None:
    await (await connected(host)).open(1)
    for key in (OTHER_KEY, ANY_CLUSTER):
        with pytest.raises((WrongClusterKey, ConnectionLost)):
            await (await Owner.connected(host, key=key)).fence(9)
    assert (await (await connected(host)).fence(2)).fence == 2


@simulated(cluster_key=KEY)
async def test_a_refused_server_of_another_cluster_is_told_of_in_health_for_a_while_and_rarely_in_the_log(
    host: Host, node: Node, *, caplog: pytest.LogCaptureFixture
) -> None:
    await connected(host)
    assert node.node.health()["refused"] == ""
    for _ in range(20):
        with pytest.raises(WrongClusterKey, match="Keep that directory, which may be the only copy"):
            await Owner.connected(host, key=OTHER_KEY)
        await asyncio.sleep(5)
    health = node.node.health()
    assert "a scripted server" in health["refused"]
    assert "belongs to another cluster than that server" in health["refused"]
    assert storage_troubles(health) == [health["refused"]]
    logged = [each.message for each in caplog.records if "a scripted server" in each.message]
    assert len(logged) == 2, "of 20 in 100 s"
    await asyncio.sleep(60)
    assert node.node.health()["refused"] == ""


@simulated
async def test_a_new_node_becomes_one_of_the_first_servers_cluster_for_good(host: Host, node: Node) -> None:
    await (await connected(host)).open(1)
    await node.restart(power_loss=True)
    assert (await (await connected(host)).fence(2)).joined == 1
    with pytest.raises((WrongClusterKey, ConnectionLost)):
        await (await Owner.connected(host, key=OTHER_KEY)).fence(9)


@pytest.mark.parametrize("spare", [0, 200, 520, 1_024, 5_000, 5_500, 6_000, 6_200])
@simulated
async def test_a_partition_that_found_no_room_is_made_when_there_is_some(host: Host, node: Node, *, spare: int) -> None:
    owner = await connected(host)
    owner.partition = 0
    await owner.open(1)
    owner.partition = 3
    node.disk.fill(spare)
    try:
        await owner.fence(1)
    except PolonaiseError as error:
        assert error.code == "disk_full"  # noqa: PT017
    node.disk.free()
    await owner.open(1)
    await owner.store(1, *Maker().batches(3))
    await node.restart(power_loss=True)
    info = await (await connected(host)).fence(2)
    assert (info.max_synced, info.lost_above) == (2, UNRESOLVED)


# ------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize("partition", [-1, 4, 2**31 - 1, -(2**31)])
@simulated(partitions_max=4)
async def test_a_partition_that_the_node_does_not_take_is_refused(host: Host, node: Node, *, partition: int) -> None:
    owner = await connected(host)
    owner.partition = partition
    with pytest.raises(UnknownPartition):
        await owner.fence(1)
    with pytest.raises(UnknownPartition):
        await owner.read(0, 1)


@simulated
async def test_a_partition_that_was_never_here_is_made_by_a_session_and_by_nothing_else(host: Host, node: Node) -> None:
    owner = await connected(host)
    for asked in (owner.truncate(0), owner.confirm(0), owner.read(0, 1), owner.digest(0), owner.registers()):
        with pytest.raises(UnknownPartition):
            await asked
    assert not node.segments()
    await owner.open(1)
    assert len(node.segments()) == 1
    await node.restart()
    assert (await (await connected(host)).fence(1)).joined == 1


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Stored(1, 1), id="an answer as a request"),
        pytest.param(Flush(), id="a client's message"),
        pytest.param(Done(1, 1), id="an answer to nothing"),
        pytest.param(Batches(1), id="batches that nobody asked for"),
    ],
)
@simulated
async def test_what_no_server_says_closes_its_connection_only(
    host: Host, node: Node, *, message: Stored | Flush | Done | Batches
) -> None:
    good, bad = await connected(host), await connected(host)
    await good.open(1)
    bad.link.send(message, request=7, partition=3)
    await asyncio.sleep(0.5)
    assert isinstance(bad.link.closed, ProtocolError)
    await good.store(1, Maker().batch())


@simulated
async def test_batches_that_arrive_damaged_are_never_stored(host: Host, node: Node) -> None:
    owner = await opened(host)
    made = Maker().batches(3, size=100)
    for change in range(0, made[1].length, 7):
        raw = bytearray(made[1].view)
        raw[change] ^= 0x10
        message = Store(1, -1, payload=[made[0].view, bytes(raw)])
        owner.link.send(message, request=change + 1, partition=3)
        with pytest.raises(BatchDamaged):
            await owner.settled(change + 1)
        owner.refusals.clear()
    await owner.fence(2)
    with pytest.raises(BatchDamaged):
        await owner.ask(Copy(2, payload=[made[0].view, b"PLNB"]), Done)
    with pytest.raises(BatchDamaged):
        await owner.ask(Copy(2, payload=[made[0].without_data()]), Done)
    assert (await owner.fence(2)).max_synced == -1
    await owner.copy(made)


EDGES = (-(2**63), -1, 0, 1, 5, 2**62, 2**63 - 1)


@simulated
async def test_no_number_in_a_request_harms_the_node(host: Host, node: Node) -> None:
    owner = await opened(host)
    await owner.store(1, *Maker().batches(6, size=100))
    for first in EDGES:
        for last in EDGES:
            for bytes_max in (0, 2**32 - 1):
                for time_us in (0, -1, 3_000, 2**63 - 1):
                    await owner.ask(ReadBatches(1, first, last, bytes_max, 255, time_us), Batches)
                for part_last in EDGES:
                    await owner.ask(ReadBatches(1, first, last, bytes_max, 1, 0, part_last), Batches)
        try:
            await owner.digest(first)
        except OutOfOrder:
            assert first > 5 or first < -1
    assert (await owner.fence(2)).lost_above == UNRESOLVED


# ------------------------------------------------------------------ reading


@simulated(segment_bytes_max=3_000)
async def test_ranges_are_read_across_segments_with_and_without_bodies(host: Host, node: Node) -> None:
    made = Maker().batches(40, size=200, count=2)
    owner = await filled(host, made)
    assert len(node.segments()) > 4
    assert crcs(await owner.read_all()) == crcs(made)
    one = made[0].length + 32

    async def firsts(first: int, last: int, bytes_max: int = 1 << 20, after_time_us: int = 0) -> list[int]:
        found = await owner.read(first, last, bytes_max=bytes_max, after_time_us=after_time_us)
        return [batch.first for batch in found]

    assert await firsts(0, 79, 2 * one) == [0, 2]
    assert await firsts(1, 4) == [0, 2]
    assert await firsts(3, 5) == [2, 4]
    assert await firsts(80, 90) == []
    assert (await firsts(0, 79, after_time_us=50_000))[:1] == [50]
    bare = await owner.read(0, 5, with_data=False)
    assert crcs(bare) == crcs(made[:3])
    assert not any(batch.has_data for batch in bare)


@simulated(segment_bytes_max=3_000)
async def test_each_batch_is_in_the_part_of_a_range_that_it_begins_in(host: Host, node: Node) -> None:
    """However a range is divided: parts have no batch in common, and leave out none but for an answer's end."""
    maker = Maker()
    made = [maker.batch(size=100, count=1 + number % 4) for number in range(40)]
    owner = await filled(host, made)
    assert len(node.segments()) > 4
    last, one = made[-1].last, made[3].length
    for width in (1, 2, 3, 5, 17, 200):
        found: list[int] = []
        for first in range(0, last + 1, width):
            part_last = min(first + width - 1, last)
            wanted = [batch.first for batch in made if first <= batch.first <= part_last]
            got = await owner.read(first, last, part_last=part_last)
            assert [batch.first for batch in got] == wanted[: len(got)]
            small = await owner.read(first, last, part_last=part_last, bytes_max=one)
            assert [batch.first for batch in small] == wanted[: len(small)]
            assert not got or small
            # An answer ends with its segment: what is left begins where a batch does.
            while len(got) < len(wanted):
                rest = await owner.read(wanted[len(got)], last, part_last=part_last)
                assert rest[0].first == wanted[len(got)]
                got += rest
            found += [batch.first for batch in got]
        assert found == [batch.first for batch in made]
    assert await owner.read(0, made[1].last, part_last=last) != []
    assert (await owner.read(0, made[1].last, part_last=last))[-1].first == made[1].first, "none beyond the end"


@simulated(segment_bytes_max=1_000)
async def test_registers_are_told_across_rolls_and_cuts(host: Host, node: Node) -> None:
    maker = Maker()
    made = [maker.batch(size=60, changes=[(b"n", b"%d" % n), (b"odd", b"1" if n % 2 else None)]) for n in range(30)]
    owner = await filled(host, made)
    assert len(node.segments()) > 3
    assert await owner.registers() == {b"n": b"29", b"odd": b"1"}
    for session, last in ((2, 28), (3, 13), (4, 2)):
        await owner.fence(session)
        await owner.truncate(last)
        odd = {b"odd": b"1"} if last % 2 else {}
        assert await owner.registers() == {b"n": b"%d" % last, **odd}
        await node.restart(segment_bytes_max=1_000)
        owner = await connected(host)
        await owner.fence(session)
        assert await owner.registers() == {b"n": b"%d" % last, **odd}


@simulated
async def test_replicas_with_the_same_log_have_the_same_digest_wherever_their_segments_end(
    host: Host, node: Node
) -> None:
    other = Node(node.machine.world.machine("other"))
    other.start(segment_bytes_max=700)
    made = Maker().batches(20, size=100)
    one, two = await connected(host), await connected(host, "other")
    await one.open(1)
    await one.store(1, *made)
    await two.fence(1)
    for batch in made[:19]:
        await two.copy([batch])
    assert len(other.segments()) > len(node.segments())
    assert await one.digest(18) == await two.digest(18)
    with pytest.raises(OutOfOrder):
        await two.digest(19)
    await two.copy(Maker(18, made[18].crc).batches(1, salt=1))
    assert (await one.digest(19))[1] != (await two.digest(19))[1]
