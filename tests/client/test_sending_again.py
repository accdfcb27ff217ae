"""What was sent on a mount that ended, and is not in the log, is sent again: once, in its order, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise import Group, Log
from polonaise.client.appends import Receipt
from polonaise.client.log import partitions_of
from polonaise.client.protocol.draft import Change, Expectation
from polonaise.client.protocol.locks import Lock
from polonaise.client.protocol.outstanding import (
    SENDS_MAX,
    AppendWindow,
    Outstanding,
    Pending,
    SentFrame,
    still_pending,
)
from polonaise.errors import (
    AppendFailed,
    BodyTooLarge,
    DataDamaged,
    FrameDamaged,
    FrameTooLarge,
    LockConflict,
    OutOfOrder,
    PolonaiseError,
    ProtocolError,
    TooManyLocks,
)
from polonaise.terms import ChangeKind, ExpectationKind, FailureReason, LockMode
from polonaise.wire.appends import AppendColumns, Operation, ReceivedAppends
from polonaise.wire.codec import NO_PARTITION
from polonaise.wire.messages import Append
from rigs.clients import World
from rigs.fakeserver import FakeLog, FakeMount, FakeServer
from rigs.waiting import wait_until


@pytest.fixture
async def client(world: World) -> Log:
    """A client that does not flush by itself while a test looks."""
    return await world.ready_client(settings={"idle_flush_s": 30})


async def held_appends(world: World, *bodies: bytes, **settings: int) -> list[Receipt]:
    """Append these bodies, each in a frame of its own, at a server that decides none of them; return the receipts."""
    client = await world.ready_client(settings={"idle_flush_s": 30, "frame_count_max": 1, **settings})
    world.server.hold = True
    receipts = [client.append(body) for body in bodies]
    await wait_until(lambda: len(world.server.held) == len(bodies))
    return receipts


async def test_a_lost_connection_fails_nothing(world: World) -> None:
    receipts = await held_appends(world, b"0", b"1", b"2")
    world.server.hold = False
    world.server.break_connections()
    assert [(await receipt).id for receipt in receipts] == [0, 1, 2]
    assert world.log.bodies() == [b"0", b"1", b"2"]


async def test_what_the_new_mount_is_fed_is_not_sent_again(world: World) -> None:
    receipts = await held_appends(world, b"0", b"1")
    mount, log, appends = world.server.held[0]
    log.fill(b"0", client=mount.client, sequence=appends.sequences[0])
    world.server.hold = False
    world.server.break_connections()
    assert [(await receipt).id for receipt in receipts] == [0, 1]
    assert world.log.bodies() == [b"0", b"1"]


async def test_of_a_frame_only_what_is_not_settled_is_sent_again(world: World, client: Log) -> None:
    world.server.hold = True
    receipts = [client.append(body) for body in (b"0", b"1", b"2")]
    await wait_until(lambda: world.server.held)
    ((mount, log, appends),) = world.server.held
    log.fill(b"0", client=mount.client, sequence=appends.sequences[0])
    world.server.hold = False
    world.server.break_connections()
    assert [(await receipt).id for receipt in receipts] == [0, 1, 2]
    assert [len(frame.sequences) for _, frame in world.server.heard.appends] == [3, 2]
    assert world.log.bodies() == [b"0", b"1", b"2"]


async def test_older_appends_are_sent_again_before_those_that_waited_for_the_mount(world: World) -> None:
    older = await held_appends(world, b"0", b"1")
    world.server.hold = False
    world.server.crash()
    (client,) = world.clients
    await wait_until(lambda: client.trouble(0) is not None)
    younger = client.append(b"2")
    world.server.restart()
    assert (await younger).id == 2
    assert [(await receipt).id for receipt in older] == [0, 1]
    assert world.log.bodies() == [b"0", b"1", b"2"]


async def test_sending_again_keeps_to_the_window_and_nothing_overtakes_it(world: World) -> None:
    receipts = await held_appends(world, *(b"%d" % number for number in range(20)))
    world.server.window_bytes = 3_000
    world.server.hold = False
    world.server.break_connections()
    (client,) = world.clients
    receipts.append(client.append(b"20"))
    await asyncio.gather(*receipts)
    assert world.log.bodies() == [b"%d" % number for number in range(21)]


async def test_a_flush_says_nothing_of_what_still_waits_to_be_sent_again(world: World) -> None:
    receipts = await held_appends(world, b"0", b"1", b"2")
    world.server.window_bytes = 1
    world.server.break_connections()
    # The first frame is sent, and held again; the others wait for the window.
    await wait_until(lambda: len(world.server.held) == 1)
    (client,) = world.clients
    flushing = asyncio.ensure_future(client.flush())
    await wait_until(lambda: world.server.held_flushes)
    world.server.release()
    assert await flushing == 2
    assert [(await receipt).id for receipt in receipts] == [0, 1, 2]


async def test_a_move_takes_locks_operations_and_groups_along(world: World, client: Log) -> None:
    world.server.hold = True
    locked = client.append(b"locked", locks=[Lock("account", 1, LockMode.WRITE)])
    changed = client.append(
        b"changed", expectations=[Expectation.absent(b"k")], changes=[Change.set(b"k", b"v")], high_water_mark=-1
    )
    grouped = client.append_group(Group.of([b"a", b"b"]))
    await wait_until(lambda: len(world.server.held) == 2)
    new = FakeServer(world.host, dict(world.logs), "server:2", generation=2)
    world.coordinator.assign(0, "server:2", 2)
    assert [(await receipt).id for receipt in (locked, changed, grouped)] == [0, 1, 2]
    assert world.log.bodies() == [b"locked", b"changed", b"a", b"b"]
    assert await client.register(b"k") == b"v"
    assert new.heard.mounts[0].generation_known == 2
    assert {message.generation for message, _ in new.heard.appends} == {2}
    assert world.server.heard.unmounts == 1
    (stream,) = [each for each in partitions_of(client).parts.links._streams.values() if not each.connection.closed]
    assert stream.address == "server:2"
    first = new.heard.appends[0][1]
    assert first.locks is not None
    assert bytes(first.locks.modes) == bytes([LockMode.WRITE])


async def test_an_append_under_an_older_generation_is_sent_again_under_the_new_one(world: World) -> None:
    client = await world.client()
    await client.append(b"0")
    world.server.generation = 2
    assert (await client.append(b"1")).id == 1
    assert [message.generation for message, _ in world.server.heard.appends] == [1, 1, 2]


async def test_what_is_sent_again_is_judged_anew(world: World, client: Log) -> None:
    """Meanwhile another client may have changed what the append was built on."""
    world.server.hold = True
    stale = client.append(b"stale", locks=[Lock("account", 1, LockMode.WRITE)], high_water_mark=-1)
    await wait_until(lambda: world.server.held)
    world.server.hold, world.server.refuse, world.server.refuse_value = False, FailureReason.LOCK_CONFLICT, 0
    world.log.fill(b"by another")
    world.server.break_connections()
    with pytest.raises(LockConflict):
        await stale


async def test_a_frame_that_ends_each_mount_is_not_sent_for_ever(world: World, client: Log) -> None:

    def poisoned(mount: FakeMount, log: FakeLog, message: Append) -> bool:
        if b"poison" in bytes(message.payload[0]):
            world.server.break_connections()
            return True
        return False

    world.server.on_append = poisoned
    with pytest.raises(AppendFailed, match="connection"):
        await client.append(b"poison")
    assert len(world.server.heard.appends) == SENDS_MAX
    assert (await client.append(b"harmless")).id == 0


async def test_appends_of_a_mount_that_ended_with_an_error_that_no_pause_mends_are_not_sent_again(
    world: World,
    client: Log,
) -> None:

    def broken(mount: FakeMount, log: FakeLog, message: Append) -> bool:
        if b"poison" in bytes(message.payload[0]):
            mount.connection.refuse(ProtocolError("a poisoned frame"))
            return True
        return False

    world.server.on_append = broken
    with pytest.raises(AppendFailed, match="a poisoned frame"):
        await client.append(b"poison")
    assert len(world.server.heard.appends) == 1
    assert (await client.append(b"harmless")).id == 0


@pytest.mark.parametrize(
    "damage",
    [
        FrameDamaged("the checksum of a frame does not fit"),
        FrameTooLarge("a frame of 4294967295 bytes"),
        DataDamaged("the data of an append changed on the way here"),
        OutOfOrder("not what follows"),
    ],
    ids=lambda damage: damage.code,
)
async def test_what_changed_on_its_way_to_the_server_fails_no_append(world: World, damage: PolonaiseError) -> None:
    client = await world.ready_client(settings={"idle_flush_s": 30})

    def refuse_once(mount: FakeMount, log: FakeLog, message: Append) -> bool:
        world.server.on_append = None
        mount.connection.refuse(damage, partition=NO_PARTITION if isinstance(damage, ProtocolError) else 0)
        return True

    world.server.on_append = refuse_once
    assert (await client.append(b"0")).id == 0
    assert len(world.server.heard.appends) == 2


@pytest.mark.parametrize("garbled", [bytes(64), b"\xff" * 64], ids=["no frame", "a huge frame"])
async def test_what_changed_on_its_way_to_the_client_fails_no_append_of_any_partition(
    two_partitions: World, garbled: bytes
) -> None:
    world = two_partitions
    client = await world.client(settings={"idle_flush_s": 30})
    for partition in (0, 1):
        await client.ready(partition)
    world.server.hold = True
    receipts = [client.append(b"x", partition=partition) for partition in (0, 1)]
    await wait_until(lambda: len(world.server.held) == 2)
    world.server.hold = False
    transport = world.server.held[0][0].connection._transport
    assert transport is not None
    transport.write(garbled)
    assert [(await receipt).id for receipt in receipts] == [0, 0]


@pytest.mark.parametrize("error", [BodyTooLarge("a large body"), TooManyLocks("2 locks")], ids=lambda error: error.code)
async def test_appends_that_the_server_refuses_for_what_they_are_are_not_sent_again(
    world: World, client: Log, error: PolonaiseError
) -> None:

    def refuse(mount: FakeMount, log: FakeLog, message: Append) -> bool:
        mount.connection.refuse(error, partition=0)
        return True

    world.server.on_append = refuse
    with pytest.raises(AppendFailed, match=error.text):
        await client.append(b"0")
    assert len(world.server.heard.appends) == 1


# ------------------------------------------------------------------ what is left of a frame

OPERATIONS = st.lists(
    st.tuples(st.sampled_from([ExpectationKind.ABSENT, 16 + ChangeKind.SET]), st.binary(max_size=3), st.binary()),
    max_size=2,
)
APPENDS = st.tuples(
    st.binary(max_size=6),
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.sampled_from(list(LockMode))), max_size=3),
    OPERATIONS,
)
"""A body, its locks, and its operations."""
GROUPS = st.tuples(st.lists(APPENDS, min_size=1, max_size=3), st.booleans())
"""Appends that commit as one, and whether they are settled."""


def columns_of(groups: Sequence[tuple[list[Any], int]]) -> AppendColumns:
    columns = AppendColumns()
    for appends, first in groups:
        for place, (body, locks, operations) in enumerate(appends):
            columns.add(
                first + place, first, place, body, len(body), locks,
                ends_group=place == len(appends) - 1, operations=operations,
            )  # fmt: skip
    return columns


def received(columns: AppendColumns) -> ReceivedAppends:
    """The frame as its receiver reads it."""
    sent = columns.message(1)
    return ReceivedAppends(Append(1, sent.count, sent.flags, columns=sent.columns, payload=[b"".join(sent.payload)]))


@pytest.mark.slow
@given(st.lists(GROUPS, min_size=1, max_size=6))
def test_what_is_left_of_a_frame_is_what_a_frame_of_the_pending_ones_would_be(
    groups: list[tuple[list[Any], bool]],
) -> None:
    first, placed, pending = 1, [], set[int]()
    for appends, settled in groups:
        placed.append((appends, first))
        if not settled:
            pending.update(range(first, first + len(appends)))
        first += len(appends)
    left = still_pending(columns_of(placed), pending.__contains__)
    expected = [(appends, at) for appends, at in placed if at in pending]
    if not expected:
        assert left is None
        return
    assert left is not None
    got, wanted = received(left), received(columns_of(expected))
    for name in ("sequences", "client_high_water_marks", "headers", "data", "data_crcs", "data_ends", "operations"):
        assert getattr(got, name) == getattr(wanted, name), name
    assert (got.group_ends is None, got.locks is None) == (wanted.group_ends is None, wanted.locks is None)
    if got.locks is not None:
        assert wanted.locks is not None
        assert [bytes(column) for column in got.locks] == [bytes(column) for column in wanted.locks]


def test_a_frame_of_which_nothing_is_settled_is_kept_as_it_is() -> None:
    columns = columns_of([([(b"x", [], [])], 1)])
    assert still_pending(columns, lambda sequence: True) is columns


class CountedWalks(list[Operation]):
    """Operations that count how often one of them is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Operation]:
        for operation in super().__iter__():
            self.looks += 1
            yield operation


def test_of_a_full_frame_every_operation_is_looked_at_once() -> None:
    """Once for each append took seconds of the event loop."""
    count = 4_096
    change = [(16 + ChangeKind.SET, b"k", b"v")]
    columns = columns_of([([(b"x", [], change)], sequence) for sequence in range(1, count + 1)])
    columns.operations = counted = CountedWalks(columns.operations)
    left = still_pending(columns, lambda sequence: sequence > 1)
    assert left is not None
    assert [o.position for o in left.operations] == list(range(count - 1))
    assert counted.looks == count


def test_a_window_gives_back_what_was_undecided_at_the_end_of_a_mount() -> None:
    window = AppendWindow()
    assert window.open(10_000) == []
    frames = [SentFrame(columns_of([([(b"x", [], [])], first)]), 100) for first in (1, 2, 3)]
    for frame in frames:
        window.sent(frame)
    window.decided_below(2)
    assert window.open(10_000) == frames[1:]
    assert [frame.sends for frame in frames] == [1, 1, 1]
    assert window.has_room
    assert window.open(10_000) == []


def test_pending_are_those_that_are_registered_and_not_settled() -> None:
    outstanding = Outstanding()
    single, group, last = Pending(), Pending(count=2), Pending()
    for entry in (single, group, last):
        outstanding.add(entry)
    outstanding.all_sent()
    outstanding.committed([2, 3], [0, 1])
    assert [outstanding.is_pending(sequence) for sequence in (1, 2, 3, 4)] == [False, False, False, True]
