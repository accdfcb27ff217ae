"""Hostile peers that come in numbers, ask without end and never read: memory and good clients' waits stay bounded."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator

import pytest

import polonaise
from polonaise.wire.codec import Message
from polonaise.wire.messages import Fetch, Flush, Health, HighWaterMark, Ping, Read
from rigs.goodprocess import TURNS_MAX, good_client, is_hardly_slower, rounded
from rigs.hostile import (
    Peer,
    Target,
    assert_served,
    bytes_of,
    dial,
    greet,
    mount,
    one_append,
    raw_frame,
    target_of,
)
from rigs.waiting import time_passes

pytestmark = pytest.mark.slow


async def test_who_asks_and_never_listens_is_not_served_without_end(server: Target) -> None:
    requests = [Health(), HighWaterMark(), Ping(), Read(0, 2**32 - 1, 0, 1, 0), Flush()]

    async def ask(request: Message) -> None:
        async with greet(server) as peer:
            peer.say(mount(credit=0), partition=0)
            many = bytes_of(request, request=1, partition=0) * 2_000
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(5):
                    while True:
                        peer.writer.write(many)
                        await peer.writer.drain()

    await asyncio.gather(*[ask(request) for request in requests for _ in range(2)])
    await assert_served(server.cluster)


async def test_frames_that_are_never_finished_are_bounded_over_all_connections(target: Target) -> None:
    piece = bytes(2**20)
    started = raw_frame(13, length=64 * 2**20)

    async def half(peer: Peer) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(5):
                peer.say(started)
                for _ in range(60):
                    peer.say(piece)
                    await peer.writer.drain()

    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(greet(target)) for _ in range(12)]
        await asyncio.gather(*map(half, peers))
        if target.name == "server":
            await assert_served(target.cluster)


async def test_answers_that_nobody_takes_are_bounded_over_all_connections(server: Target) -> None:
    """Many who ask for history, thousands of times in one packet, and never read."""
    async with polonaise.connect(server.cluster.coordinator) as log:
        for _ in range(48):  # more than the owner keeps in memory
            await log.append(bytes(2**20), partition=0)
    many = b"".join(bytes_of(Read(n, 2**32 - 1, 0, 1, 0), request=1 + n, partition=0) for n in range(2_000))
    bodies = b"".join(
        bytes_of(Fetch(struct.pack("<16q", *range(5, 21))), request=1 + n, partition=0) for n in range(500)
    )
    async with contextlib.AsyncExitStack() as stack:
        for number in range(30):
            peer = await stack.enter_async_context(greet(server))
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            peer.say((many, bodies, many + bodies)[number % 3])
        for _ in range(3):
            await assert_served(server.cluster)
            await time_passes(1)  # time for the damage to be done


async def test_a_subscriber_that_never_reads_holds_a_bounded_part_of_the_feed(server: Target) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(30):
            peer = await stack.enter_async_context(greet(server))
            peer.say(mount(-1), partition=0, request=1)
            assert await peer.hear() is not None
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        async with polonaise.connect(server.cluster.coordinator) as log:
            for _ in range(40):
                await log.append(bytes(2**20), partition=0)


async def test_mounts_without_end_are_survived(server: Target) -> None:
    async with greet(server) as peer:
        peer.say(b"".join(bytes_of(mount(-1, sequence), request=1, partition=0) for sequence in range(20_000)))
        await assert_served(server.cluster)


async def test_more_appends_than_the_disk_takes_are_slowed_down_not_collected(server: Target) -> None:
    """Requests faster than the disk: the flood waits in its own socket, and small appends are not starved."""
    flood = one_append(b"x" * 2**20, sequence=1)

    async def send(peer: Peer) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(4):
                while True:
                    peer.say(flood)
                    await peer.writer.drain()

    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(greet(server)) for _ in range(4)]
        for peer in peers:
            peer.say(mount(credit=0), partition=0, request=1)
        floods = [asyncio.create_task(send(peer)) for peer in peers]
        await time_passes(0.5)
        began_s = time.monotonic()
        await assert_served(server.cluster)
        print(f"one small append beside a flood: {1e3 * (time.monotonic() - began_s):.0f} ms")  # noqa: T201
        await asyncio.gather(*floods)


# ---------------------------------------------------------------------- what the others notice


async def knock(target: Target) -> None:
    """Come, say something wrong, go; again and again, about a hundred times per second."""
    wrong = [b"GET / HTTP/1.1\r\n\r\n", bytes(24), raw_frame(3, crc=1), b"\xff" * 1_000, b""]
    number = 0
    while True:
        number += 1
        with contextlib.suppress(ConnectionError):
            async with dial(target) as peer:
                if number % 2:
                    peer.say(target.hello())
                peer.say(wrong[number % len(wrong)])
                if number % 3 == 0:
                    peer.reset()
        await time_passes(0.01)


async def stay(target: Target, count: int) -> None:
    """Many connections that are greeted, keep alive, and do nothing else; some finish no frame."""
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(greet(target)) for _ in range(count)]
        while True:
            for number, peer in enumerate(peers):
                peer.say(raw_frame(13, length=1_000_000)[: number % 24] if number % 5 == 0 else bytes_of(Ping()))
                await time_passes(2 / count)


async def subscribe_and_never_read(target: Target, count: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            peer = await stack.enter_async_context(greet(target))
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            peer.say(mount(-1), partition=0, request=1)
        await asyncio.get_running_loop().create_future()


async def ask_at_once(target: Target) -> None:
    """A packet of a thousand requests now and then, whose answers nobody reads."""
    while True:
        async with greet(target) as peer:
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            peer.say(bytes_of(Health(), request=1) * 300 + bytes_of(HighWaterMark(), request=1, partition=0) * 300)
            await time_passes(1)


@pytest.mark.alone
@pytest.mark.parametrize("port", ["server", "storage"])
async def test_good_clients_hardly_notice_the_hostile_ones(server: Target, port: str) -> None:
    """The 99th percentile of a good client's appends stays within twice what it is without the others.

    Windows of a second with and without them take turns, and the best of each are compared: on a shared machine most
    of what disturbs a window is neither. The busier it is, the more of them it takes.
    """
    target = server if port == "server" else await target_of(server.cluster, "storage")
    calm: list[float] = []
    disturbed: list[float] = []
    async with good_client(server.cluster.coordinator) as client:
        for turn in range(TURNS_MAX):
            await client.windows(1)
            calm += await client.windows(2)
            async with hostility(target):
                await client.windows(1)
                disturbed += await client.windows(2)
            if turn and is_hardly_slower(calm, disturbed, 2):
                break
    print(f"p99 of appends in ms, calm: {rounded(calm)}; with hostile peers on the {port}: {rounded(disturbed)}")  # noqa: T201
    assert is_hardly_slower(calm, disturbed, 2)


@contextlib.asynccontextmanager
async def hostility(target: Target) -> AsyncIterator[None]:
    """Everything at once that goes on by itself."""
    kinds = [knock(target), stay(target, 300)]
    if target.name == "server":
        kinds += [subscribe_and_never_read(target, 20), ask_at_once(target)]
    hostile = [asyncio.create_task(kind) for kind in kinds]
    try:
        yield
    finally:
        for task in hostile:
            task.cancel()
        ended = await asyncio.gather(*hostile, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
