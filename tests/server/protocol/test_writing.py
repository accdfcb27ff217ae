"""When a session sends: at once while nothing is on its way, together with what else comes otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from orderrig import Tx, frame, order_of

from polonaise.coordination.values import PartitionValue
from polonaise.host import Buffer
from polonaise.host.real import RealHost
from polonaise.link.connection import Connection
from polonaise.log.batch import Batch
from polonaise.server.settings import ServerSettings
from polonaise.server.writing import Flight, Writing
from polonaise.wire import codec
from polonaise.wire.frame import Frames
from polonaise.wire.messages import Store


@dataclass
class Replica:
    """A connection that keeps what it is given: the ids of each batch."""

    closed: None = None
    batches: list[range] = field(default_factory=list)

    def send_frame(self, buffers: Sequence[Buffer]) -> None:
        (received,) = Frames(1 << 20).feed(b"".join(buffers))
        store = codec.decode(received)
        assert isinstance(store, Store)
        batch = Batch.parse(store.payload[0])
        self.batches.append(range(batch.first, batch.last + 1))


class Session:
    """A session on A, B and C with a window of two, and what was committed in it."""

    def __init__(self) -> None:
        self.replicas = {name: Replica() for name in "ABC"}
        self.committed: list[int] = []
        self.host = RealHost()
        self._sequence = 0
        engaged = {name: cast(Connection, replica) for name, replica in self.replicas.items()}
        self.writing = Writing(
            self.host, ServerSettings(window=2), 2, PartitionValue(1, 4, ("A", "B", "C")), engaged, order_of(), -1,
            on_committed=self._on_committed, on_room=lambda: None,
        )  # fmt: skip

    def _on_committed(self, flight: Flight) -> None:
        assert flight.batch is not None
        self.committed.append(flight.batch.last)

    def append(self) -> None:
        self._sequence += 1
        self.writing.order.judge(1, frame(Tx(b"x"), first_sequence=self._sequence))
        self.writing.send_soon()

    def acknowledge(self, number: int, *names: str) -> None:
        for name in names:
            self.writing.acknowledge(name, cast(Connection, self.replicas[name]), number)

    @property
    def sent(self) -> list[range]:
        (sent,) = {tuple(replica.batches) for replica in self.replicas.values()}
        return list(sent)


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    session = Session()
    yield session
    session.host.close()


async def test_what_arrives_while_nothing_is_on_its_way_goes_out_at_once(session: Session) -> None:
    session.append()
    assert session.sent == [range(1)]


async def test_what_arrives_behind_it_in_the_same_turn_goes_out_together(session: Session) -> None:
    for _ in range(4):
        session.append()
    assert session.sent == [range(1)]
    await asyncio.sleep(0)
    assert session.sent == [range(1), range(1, 4)]


async def test_a_full_window_is_waited_for_without_turns_of_the_loop(session: Session) -> None:
    for _ in range(3):
        session.append()
        await asyncio.sleep(0)
    assert session.sent == [range(1), range(1, 2)]
    session.acknowledge(1, "A")
    assert session.committed == []
    session.acknowledge(1, "C")
    assert session.committed == [0]
    assert session.sent == [range(1), range(1, 2), range(2, 3)]
