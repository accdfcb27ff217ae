"""How much a client has undecided at an owner: never more than it was told, and what waits goes out when it may."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.client.appends import PartitionAppends
from polonaise.client.protocol.draft import Draft
from polonaise.client.protocol.window import AppendWindow, SentFrame
from polonaise.wire.appends import AppendColumns, inbox_bytes
from rigs.clients import World
from rigs.waiting import time_passes, wait_until


def frame(sequence: int, size: int) -> SentFrame:
    columns = AppendColumns()
    columns.add(sequence, -1, 0, b"", 0)
    return SentFrame(columns, size)


@given(st.lists(st.tuples(st.integers(1, 5_000), st.booleans()), max_size=60), st.integers(0, 20_000))
def test_no_more_than_the_window_is_undecided_but_for_one_frame(steps: list[tuple[int, bool]], window: int) -> None:
    kept, undecided, sequence = AppendWindow(), dict[int, int](), 0
    kept.open(window)
    for size, decides in steps:
        if decides and undecided:
            oldest = min(undecided)
            del undecided[oldest]
            kept.decided_below(oldest + 1)
        fits = kept.fits(size)
        assert fits == (not undecided or sum(undecided.values()) + inbox_bytes(size) <= window)
        if fits:
            sequence += 1
            undecided[sequence] = inbox_bytes(size)
            kept.sent(frame(sequence, size))


def test_a_new_mount_begins_with_the_whole_window() -> None:
    window = AppendWindow()
    window.open(3_000)
    window.sent(frame(1, 2_000))
    assert not window.fits(10)
    window.open(3_000)
    assert window.fits(10)


async def test_what_the_window_has_no_room_for_waits_and_goes_out_in_order(world: World) -> None:
    world.server.window_bytes = 6_000
    world.server.hold = True
    client = await world.client(settings={"frame_bytes_max": 1_000})
    await client.ready(0)
    receipts = [client.append(b"%03d" % number + bytes(900), 0) for number in range(10)]
    receipts.append(client.append(b"010", 0))
    receipts += [client.append(b"%03d" % number + bytes(900), 0) for number in range(11, 20)]
    heard = world.server.heard.appends
    await wait_until(lambda: heard)
    while len(world.log.bodies()) < 20:
        await wait_until(lambda: world.server.held)
        await time_passes(0.01)  # for more to come, if it may
        undecided = sum(inbox_bytes(appends.size) for _, _, appends in world.server.held)
        assert 0 < undecided <= 6_000
        world.server.release(hold=True)
    await asyncio.gather(*receipts)
    assert [body[:3] for body in world.log.bodies()] == [b"%03d" % number for number in range(20)]


async def test_a_flush_waits_for_what_the_window_has_no_room_for(world: World) -> None:
    world.server.window_bytes = 1
    client = await world.client(settings={"frame_bytes_max": 1_000})
    await client.ready(0)
    receipts = [client.append(bytes(900), 0) for _ in range(8)]
    assert await client.flush(0) == 7
    assert all(receipt.done for receipt in receipts)


async def test_a_partition_that_stands_still_does_not_hold_up_the_others(two_partitions: World) -> None:
    """They share a connection: of the one that stands still, no more is under way than its window."""
    world = two_partitions
    world.server.on_append = lambda mount, log, message: log.partition == 0
    world.server.window_bytes = 10_000
    client = await world.client(settings={"idle_flush_s": 60.0, "frame_bytes_max": 1_000})
    await client.ready(0)
    await client.ready(1)
    stuck = [client.append(bytes(900), 0) for _ in range(200)]
    for _ in range(5):
        await client.append(b"on and on", 1)
    sent = sum(appends.size for _, appends in world.server.heard.appends)
    assert sent < 20_000
    assert not any(receipt.done for receipt in stuck)


@pytest.mark.parametrize("bodies", [1, 3])
async def test_appends_of_many_contexts_go_out_in_parts_while_the_loop_runs_the_others(
    world: World, bodies: int
) -> None:
    """With three bodies at a time, the number of unsent transactions is never exactly 512."""
    client = await world.client()
    await client.ready(0)
    sent_when_run: list[int] = []

    def context(tx: Draft, number: int) -> None:
        sent_when_run.append(client._appends_of(0, ())._outstanding.sent)
        for part in range(bodies):
            tx.append(b"%04d" % (number + part))

    await asyncio.gather(*(client.run(context, number, partition=0) for number in range(0, 1_200, bodies)))
    assert sent_when_run[0] == 0
    assert 0 < sent_when_run[-1] < 1_200, "the server had some of them before the last one was built"
    assert world.log.bodies() == [b"%04d" % number for number in range(1_200)]


async def test_a_full_window_is_not_tried_again_for_each_append(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.server.window_bytes = 1
    world.server.hold = True
    client = await world.client(settings={"frame_bytes_max": 1_000})
    await client.ready(0)
    tries: list[int] = []
    send_all = PartitionAppends._send_all
    monkeypatch.setattr(PartitionAppends, "_send_all", lambda *args: (tries.append(1), send_all(*args)))

    def context(tx: Draft, number: int) -> None:
        for _ in range(3):
            tx.append(b"%04d" % number)

    running = asyncio.gather(*(client.run(context, number, partition=0) for number in range(1_000)))
    await wait_until(lambda: world.server.held)
    assert len(tries) < 5
    world.server.release()
    await running
    assert len(world.log.bodies()) == 3_000


async def test_contexts_that_find_no_room_in_the_window_wait_in_their_order(world: World) -> None:
    world.server.window_bytes = 6_000
    client = await world.client(settings={"frame_bytes_max": 1_000})
    await client.ready(0)
    await asyncio.gather(
        *(client.run(lambda tx, number: tx.append(b"%04d" % number), number, partition=0) for number in range(1_200))
    )
    assert world.log.bodies() == [b"%04d" % number for number in range(1_200)]
