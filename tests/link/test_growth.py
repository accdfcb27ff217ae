"""What four times as many messages cost is about four times as much, wherever they wait, come from, or go to.

Counted in calls of functions and steps of generators, which are the same on a busy machine; processor time is looked at
too, with a wide margin, because what a loop within the interpreter costs is no call.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from polonaise.errors import ConnectionLost
from polonaise.host.real import RealHost
from polonaise.link.connection import Budget, Connection
from polonaise.link.protocol.greeting import hello
from polonaise.wire.appends import AppendColumns, ReceivedAppends, decode_failures
from polonaise.wire.codec import Frames, Message
from polonaise.wire.fetches import encode_bodies, encode_fetch, parse_bodies, parse_fetch
from polonaise.wire.messages import (
    ROLE_CLIENT,
    ROLE_SERVER,
    Append,
    Bodies,
    HighWaterMark,
    HighWaterMarkIs,
    Ping,
)
from rigs.link import GREETING, KEY

FEW, TIMES = 600, 4
CALLS_MAX = 1.3 * TIMES
TIME_MAX = 2.5 * TIMES


class Deaf:
    """A transport whose peer reads nothing."""

    def __init__(self) -> None:
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.unsent += sum(map(len, parts))

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def wire(*messages: Message, request: int = 0) -> bytes:
    return b"".join(b"".join(message.frame(request=request)) for message in messages)


def greeted(heard: Callable[[Connection, Message, int, int], None], *, accepted: bool = True) -> Connection:
    """A connection after both hellos."""
    connection = Connection(
        RealHost(),
        hello=hello(ROLE_SERVER, "sam", cluster_key=KEY),
        peer_roles=(ROLE_CLIENT,),
        on_message=heard,
        accepted=accepted,
        budget=Budget(1 << 30),
    )
    connection.connection_made(Deaf())  # type: ignore[arg-type]
    connection.data_received(wire(GREETING))
    assert connection.is_greeted
    return connection


async def until_delivered(connection: Connection) -> None:
    while connection._inbox.has_turn:
        await asyncio.sleep(0)


def ended(connection: Connection) -> None:
    connection.abort(ConnectionLost("the test is over"))
    connection._host.close()


async def pings_in_one_read(count: int) -> Callable[[], Any]:
    connection, pings = greeted(lambda *_: None), wire(Ping()) * count

    async def work() -> None:
        connection.data_received(pings)
        await until_delivered(connection)
        ended(connection)

    return work


async def requests_that_wait_for_a_pause(count: int) -> Callable[[], Any]:
    def heard(asked: Connection, message: Message, request: int, partition: int) -> None:
        asked.send(HighWaterMarkIs(1, 1), request=request)

    connection, request = greeted(heard), wire(HighWaterMark(), request=1)

    async def work() -> None:
        connection.pause("busy")
        connection.data_received(request * count)
        for _ in range(count):
            connection.send(Ping())
        connection.resume("busy")
        await until_delivered(connection)
        ended(connection)

    return work


async def small_pieces(count: int) -> Callable[[], Any]:
    connection, pings = greeted(lambda *_: None, accepted=False), wire(Ping()) * (count // 8)

    async def work() -> None:
        for start in range(0, len(pings), 3):
            connection.data_received(pings[start : start + 3])
        ended(connection)

    return work


async def answers_from_the_newest_to_the_oldest(count: int) -> Callable[[], Any]:
    connection = greeted(lambda *_: None, accepted=False)

    async def work() -> None:
        asking = [asyncio.ensure_future(connection.request(HighWaterMark(), deadline_s=60)) for _ in range(count)]
        await asyncio.sleep(0)
        answers = [wire(HighWaterMarkIs(1, 1), request=number) for number in reversed(connection._awaited.waiting)]
        connection.data_received(b"".join(answers))
        await asyncio.gather(*asking)
        ended(connection)

    return work


async def one_frame_in_many_pieces(count: int) -> Callable[[], Any]:
    raw = b"".join(Bodies(1, payload=[bytes(64 * count)]).frame())

    def work() -> None:
        frames = Frames(1 << 30)
        assert sum(len(frames.feed(raw[start : start + 64])) for start in range(0, len(raw), 64)) == 1

    return work


async def appends_with_all_that_they_may_have(count: int) -> Callable[[], Any]:
    columns = AppendColumns()
    for number in range(count):
        columns.add(number, -1, 0, b"body", 0, [(number, 1)], operations=[(16, b"key", b"value")], ends_group=True)
    said = columns.message(1)
    received = Append(1, said.count, said.flags, said.columns, payload=[b"".join(said.payload)])
    return lambda: (columns.message(1), ReceivedAppends(received))


async def failures(count: int) -> Callable[[], Any]:
    return lambda: decode_failures(array("q", [1, 2]).tobytes().ljust(17, b"\1") * count)


async def fetched_bodies(count: int) -> Callable[[], Any]:
    def work() -> None:
        ids = parse_fetch(encode_fetch(range(count)))
        answer = encode_bodies([b"body"] * len(ids), [0] * len(ids))
        parse_bodies(Bodies(answer.count, payload=[b"".join(answer.payload)]), count)

    return work


async def cost_of(make: Callable[[int], Any], count: int) -> tuple[int, float]:
    """Calls, and processor seconds, of the work on so many."""
    calls = 0

    def counts(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    work = await make(count)
    sys.setprofile(counts)
    try:
        if asyncio.iscoroutine(done := work()):
            await done
    finally:
        sys.setprofile(None)
    took_s = []
    for _ in range(3):
        work = await make(count)
        began_s = time.process_time()
        if asyncio.iscoroutine(done := work()):
            await done
        took_s.append(time.process_time() - began_s)
    return calls, min(took_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pings_in_one_read,
        requests_that_wait_for_a_pause,
        small_pieces,
        answers_from_the_newest_to_the_oldest,
        one_frame_in_many_pieces,
        appends_with_all_that_they_may_have,
        failures,
        fetched_bodies,
    ],
    ids=lambda make: make.__name__,
)
async def test_the_cost_grows_with_the_number(make: Callable[[int], Any]) -> None:
    few, many = await cost_of(make, FEW), await cost_of(make, TIMES * FEW)
    assert many[0] < CALLS_MAX * few[0] + 100, "calls"
    assert many[1] < TIME_MAX * few[1] + 0.01, "processor seconds"
