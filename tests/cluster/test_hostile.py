"""Hostile bytes on the open ports of running processes (P12).

Whatever comes: the process lives, its memory stays bounded, its log holds no traceback, and somebody who behaves is
served. Both ports get everything; what needs a cluster key gets the right one, so that it reaches as deep as it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator

import pytest

from polonaise.errors import PolonaiseError
from polonaise.wire import codec
from polonaise.wire.codec import FRAME_BYTES_MAX, Frames, Message
from polonaise.wire.messages import (
    AssignmentIs,
    ClusterIs,
    DescribeCluster,
    Flush,
    GetAssignment,
    GetRegister,
    Health,
    Hello,
    HighWaterMark,
    Ping,
    Unmount,
)
from rigs.hostile import (
    Peer,
    Target,
    assert_served,
    bytes_of,
    dial,
    greet,
    mount,
    raw_frame,
)

pytestmark = pytest.mark.slow

LIMITS = {"B": (0, 1, 255), "H": (0, 65_535), "I": (0, 1, 2**31, 2**32 - 1)} | {
    kind: (-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1) for kind, bits in (("i", 32), ("q", 64))
}
"""The values of a field that are worth trying, by its type on the wire."""


# ---------------------------------------------------------------------- connections


SHORT = (b"", b"SSH-2.0-OpenSSH_9.6\r\n")
"""Less than a frame's header can't be judged before the time for a hello is over."""


async def test_who_says_nothing_or_too_slowly_is_cut_off(target: Target) -> None:
    async def silent(said: bytes) -> None:
        async with dial(target) as peer:
            peer.say(said)
            await peer.ended(15)

    async def byte_by_byte() -> None:
        async with dial(target) as peer:
            ended = asyncio.create_task(peer.ended(15))
            for byte in bytes_of(target.hello()):
                if (await asyncio.wait([ended], timeout=0.25))[0]:
                    break
                peer.say(bytes([byte]))
            await ended

    began_s = time.monotonic()
    await asyncio.gather(*[silent(said) for said in SHORT * 10], *[byte_by_byte() for _ in range(20)])
    assert time.monotonic() - began_s < 12


async def test_connections_that_end_anywhere_in_a_frame_harm_nobody(target: Target) -> None:
    said = bytes_of(target.hello()) + bytes_of(Ping()) + bytes_of(HighWaterMark(), request=1, partition=0)
    for count in range(len(said) + 1):
        for reset in (False, True):
            async with dial(target) as peer:
                peer.say(said[:count])
                if reset:
                    peer.reset()
                elif peer.writer.can_write_eof():
                    peer.writer.write_eof()
    await assert_served(target.cluster)


async def test_a_half_closed_connection_is_closed(target: Target) -> None:
    async with greet(target) as peer:
        peer.writer.write_eof()
        assert await peer.ended() == []


FOREIGN = {
    "TLS": bytes.fromhex("16030100f8010000f40303") + bytes(range(241)),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "zeros": bytes(10_000),
    "ones": b"\xff" * 10_000,
    "noise": random.Random(1).randbytes(100_000),
}


@pytest.mark.parametrize("protocol", FOREIGN)
async def test_another_protocol_is_turned_away_at_once(target: Target, protocol: str) -> None:
    async with dial(target) as peer:
        peer.say(FOREIGN[protocol])
        began_s = time.monotonic()
        await peer.ended(8)
        assert time.monotonic() - began_s < 2


async def test_a_storm_of_reconnects_is_weathered(target: Target) -> None:
    async def storm(count: int) -> None:
        for number in range(count):
            async with dial(target) as peer:
                if number % 2:
                    peer.say(target.hello())
                if number % 3 == 0:
                    peer.reset()

    await asyncio.gather(*[storm(200) for _ in range(10)])
    await assert_served(target.cluster)


async def test_a_thousand_idle_connections_cost_little(target: Target) -> None:
    async with contextlib.AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(dial(target)) for _ in range(1_200)]
        for peer in idle[:600]:
            peer.say(target.hello())
        for peer in idle[:600]:
            assert isinstance(await peer.hear(), Hello)


# ---------------------------------------------------------------------- frames


FRAMES = {
    "length 0": bytes(24),
    "length 23": raw_frame(3, length=23),
    "length -1": raw_frame(3, length=2**32 - 1),
    "length 2**31-1": raw_frame(3, length=2**31 - 1),
    "just over the limit": raw_frame(3, length=64 * 2**20 + 1),
    "head longer than the frame": raw_frame(3, b"abc", head_bytes=4),
    "head of 4 GB": raw_frame(3, head_bytes=2**32 - 1),
    "head shorter than its fields": raw_frame(10, b"abc"),
    "bytes left over": raw_frame(3, b"abc"),
    "a payload where there is none": raw_frame(3, b"", b"abc"),
    "wrong checksum": raw_frame(3, crc=1),
    "unknown flags": raw_frame(3, flags=0x8000),
    "unknown type": raw_frame(9_999),
    "type 0": raw_frame(0),
    "text longer than its frame": raw_frame(2, bytes(8) + b"\xff\xff" + b"ab"),
    "text that is not UTF-8": raw_frame(2, bytes(8) + b"\x02\x00\xff\xfe\x00\x00"),
    "a blob of 4 GB": raw_frame(25, b"\xff\xff\xff\xffabc"),
    "a truncated header": raw_frame(3)[:23] + raw_frame(3),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", FRAMES)
async def test_a_broken_frame_closes_its_connection_before_and_after_the_hello(target: Target, case: str) -> None:
    async with dial(target) as peer:
        peer.say(FRAMES[case])
        await peer.ended()
    async with greet(target) as peer:
        peer.say(FRAMES[case])
        codes = await peer.ended()
        assert codes
        assert set(codes) <= {"protocol_error", "frame_too_large", "frame_damaged"}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        pytest.param({"version_min": 0, "version_max": 0}, "unsupported_version", id="past version"),
        pytest.param({"role": 3}, "wrong_role", id="role"),
        pytest.param({"cluster_key": b"k" * 16}, "wrong_cluster_key", id="cluster key"),
    ],
)
async def test_a_hello_that_says_something_wrong_is_refused(
    target: Target, wrong: dict[str, object], code: str
) -> None:
    async with dial(target) as peer:
        peer.say(target.hello(**wrong))
        assert code in await peer.ended()


async def test_a_key_is_told_to_those_who_name_none_and_to_nobody_else(target: Target) -> None:
    async def heard(peer: Peer) -> bytes:
        found = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1):
                while piece := await peer.reader.read(65_536):
                    found += piece
        return found

    async with dial(target) as peer:
        assert target.key not in await heard(peer), "said before anything was heard"
    for key in (bytes(16), b"k" * 16):
        async with dial(target) as peer:
            peer.say(target.hello(cluster_key=key))
            assert (target.key in await heard(peer)) == (not any(key))


async def test_who_has_named_no_key_gets_no_further_than_what_the_cluster_is(server: Target) -> None:
    async with greet(server, cluster_key=bytes(16)) as peer:
        assert isinstance(await peer.answer(DescribeCluster()), ClusterIs)
        for message in (HighWaterMark(), Health(), GetRegister(b"x"), Flush(), Unmount(), mount()):
            assert await peer.refused(message) == "wrong_cluster_key"


async def test_who_asks_for_the_assignment_and_reads_no_answer_is_not_read_either(server: Target) -> None:
    async with greet(server) as silent:
        for number in range(20_000):
            silent.say(GetAssignment(-1, 0), request=1 + number)
        for number in range(1_000):
            silent.say(GetAssignment(2**62, 2**32 - 1), request=20_001 + number)
        async with greet(server) as peer:
            assert isinstance(await peer.answer(GetAssignment(-1, 0)), AssignmentIs)


# ---------------------------------------------------------------------- fields


def extremes(kind: type[Message]) -> Iterator[Message]:
    """Messages of a kind with each field in turn at its limits, and with garbage for what varies in length."""
    forms = dict(zip(kind._FIXED_NAMES, kind._FIXED.format.lstrip("<").replace("16s", "k"), strict=True))
    usual = {name: bytes(16) if form == "k" else 0 for name, form in forms.items()}
    usual |= {name: "" if form == "text" else b"" for name, form in kind._VARIABLE}
    yield kind(**usual)
    for name, form in forms.items():
        for value in LIMITS.get(form, (b"\xff" * 16,)):
            yield kind(**{**usual, name: value})
    garbage = (b"\xff" * 8, bytes(8), bytes(65_536), random.Random(2).randbytes(1_000))
    for name, form in kind._VARIABLE:
        for value in garbage:
            yield kind(**{**usual, name: value.decode("latin-1") if form == "text" else value})
    if "payload" in kind.__dataclass_fields__:
        for value in garbage:
            yield kind(**usual, payload=[value])


def harmless(message: Message, target: Target) -> bool:
    """Who has the key may raise the fence: then appends stop until the coordinator has counted as far, rightly so."""
    return target.name == "server" or getattr(message, "session", 0) < 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", codec.kinds(), ids=[kind.__name__ for kind in codec.kinds().values()])
async def test_every_message_with_every_field_at_its_limits_is_survived(target: Target, number: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        peer: Peer | None = None
        for message in extremes(codec.kinds()[number]):
            if not harmless(message, target):
                continue
            for partition in (0, 1, -1, 2**31 - 1, -(2**31)):
                if peer is None or peer.reader.at_eof() or peer.writer.is_closing():
                    await stack.aclose()
                    peer = await stack.enter_async_context(greet(target))
                    if target.name == "server":
                        peer.say(mount(), partition=0)
                for request in (0, 2**32 - 1):
                    peer.say(message, partition=partition, request=request)
                with contextlib.suppress(TimeoutError):
                    await peer.hear(0.002)
    await assert_served(target.cluster)


def raises_the_fence(raw: bytes, target: Target) -> bool:
    """Whether a flipped byte has made one of the messages that no peer with the key is harmless with."""
    try:
        return any(not harmless(codec.decode(frame), target) for frame in Frames(FRAME_BYTES_MAX).feed(raw))
    except PolonaiseError:
        return False


async def test_frames_with_flipped_bytes_are_survived(target: Target) -> None:
    source = random.Random(3)
    valid = [m for kind in codec.kinds().values() for m in extremes(kind) if harmless(m, target)]
    for _ in range(150):
        async with dial(target) as peer:
            if source.random() < 0.8:
                peer.say(target.hello())
            for message in source.sample(valid, 4):
                raw = bytearray(bytes_of(message, request=source.choice((0, 1, 2**32 - 1)), partition=0))
                for _ in range(source.choice((0, 1, 1, 4))):
                    raw[source.randrange(len(raw))] = source.randrange(256)
                kind, _, length = raw[4] | raw[5] << 8, 0, len(raw)
                if source.random() < 0.7:
                    # The checksum made right again: what was flipped is to be met behind it.
                    raw = bytearray(raw_frame(kind, bytes(raw[24:length])))
                    if raises_the_fence(bytes(raw), target):
                        continue
                peer.say(bytes(raw))
            with contextlib.suppress(TimeoutError):
                await peer.hear(0.005)
    await assert_served(target.cluster)
