"""Hostile peers that come in numbers, ask without end and never read: memory and good clients' waits stay bounded."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time

import pytest
from hostilerig import Peer, Target, assert_served, bytes_of, greet, mount, one_append, raw_frame

import polonaise
from polonaise.wire.codec import Message
from polonaise.wire.messages import Fetch, Flush, Health, HighWaterMark, Ping, Read

pytestmark = pytest.mark.slow


async def test_who_asks_and_never_listens_is_not_served_without_end(server: Target) -> None:
    questions = [Health(), HighWaterMark(), Ping(), Read(0, 2**32 - 1, 0, 1, 0), Flush()]

    async def ask(question: Message) -> None:
        async with greet(server) as peer:
            peer.say(mount(credit=0), partition=0)
            many = bytes_of(question, request=1, partition=0) * 2_000
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(8):
                    while True:
                        peer.writer.write(many)
                        await peer.writer.drain()

    await asyncio.gather(*[ask(question) for question in questions for _ in range(2)])


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
            await asyncio.sleep(1)  # time for the damage to be done


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
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        await assert_served(server.cluster)
        print(f"one small append beside a flood: {1e3 * (time.monotonic() - began_s):.0f} ms")  # noqa: T201
        await asyncio.gather(*floods)
