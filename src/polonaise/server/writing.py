"""One session in which the owner writes: the pipeline to the engaged replicas, and what it has proved."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from polonaise.coordination.values import PartitionValue
from polonaise.errors import ConnectionLost, DeadlineExceeded, PolonaiseError
from polonaise.host import Host
from polonaise.link.connection import Connection
from polonaise.server.protocol.commit import Acknowledgements
from polonaise.server.protocol.order import Order, Sealed
from polonaise.server.settings import ServerSettings
from polonaise.terms import PartitionId, StorageId, TransactionId
from polonaise.wire.messages import Confirm, Store

_NUMBERS_MAX: Final = 2**31 - 1
"""What a session sends is numbered below the request numbers of `Connection.request`."""
_QUESTIONS_MAX: Final = 10_000
"""Questions that wait for the next flight; more wait in the inbox."""

Proved = Callable[[TransactionId], None]
"""Called with the committed high-water mark that was proved after the question came in."""


class Question(NamedTuple):
    """Something to be answered once everything before it is decided."""

    proved: Proved
    expired: Callable[[PolonaiseError], None]
    until_s: float


class Flight(NamedTuple):
    """A batch, or a barrier, on its way to the replicas."""

    number: int
    batch: Sealed | None
    questions: Sequence[Question]


_PULSE: Final = Question(lambda _: None, lambda _: None, 0.0)


class Writing:
    """A session's pipeline.

    Numbers everything it sends 1, 2, 3, … and counts acknowledgements; `on_committed` gets each flight once, in
    order, when a quorum of the replicas *engaged* in this session has synced it. Any fault of an engaged replica ends
    the session: `ended` then says why, and nothing is sent any more.
    """

    def __init__(
        self,
        host: Host,
        settings: ServerSettings,
        partition: PartitionId,
        value: PartitionValue,
        engaged: Mapping[StorageId, Connection],
        order: Order,
        closing: TransactionId,
        on_committed: Callable[[Flight], None],
        on_room: Callable[[], None],
    ) -> None:
        self._host = host
        self._settings = settings
        self._partition = partition
        self.value = value
        self.session = value.session
        self.order = order
        self.closing = closing
        self.committed = closing
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.planned_end = False
        self._on_committed = on_committed
        self._on_room = on_room
        self._replicas = dict(engaged)
        self._acknowledgements = Acknowledgements(value.members, self._replicas)
        self._flights: deque[Flight] = deque()
        self._unsynced: deque[tuple[int, float]] = deque()
        self._questions: list[Question] = []
        self._last_number = 0
        self._sent_s = host.clock.monotonic_s()
        self._seal_scheduled = False

    @property
    def open(self) -> bool:
        return not self.ended.done()

    @property
    def engaged(self) -> Sequence[StorageId]:
        return list(self._replicas)

    def end(self, reason: str, *, planned: bool = False) -> None:
        """Write no more; `planned` unless a fault is the reason."""
        if not self.ended.done():
            self.planned_end = planned
            self.ended.set_result(reason)

    def start(self) -> None:
        """Tell the replicas up to where they are certainly clean. Only after the engagement was written."""
        for name, connection in self._replicas.items():
            if connection.closed is not None:
                self.end(f"{name}: {connection.closed}")
                return
            connection.send(Confirm(self.session, self.closing), partition=self._partition)

    # ------------------------------------------------------------------ sending

    @property
    def has_room(self) -> bool:
        """Whether more may be judged: what waits to be sent has a bound."""
        order, settings = self.order, self._settings
        return (
            order.forming_count < settings.batch_count_max
            and order.forming_bytes < settings.batch_bytes_max
            and len(self._questions) < _QUESTIONS_MAX
        )

    def prove(self, question: Question) -> None:
        """Answer when everything ordered so far is decided, proved by something that is sent from now on."""
        self._questions.append(question)

    def send_soon(self) -> None:
        """Send what was let in: at once while nothing is on its way, for then there is nothing to wait for.

        Otherwise at the end of this turn of the loop, so that what arrives together goes into one batch; and while the
        window is full, with the acknowledgement that makes room.
        """
        if not self.order.forming_count and not self._questions:
            return
        if not self._flights:
            self._seal()
        elif not self._seal_scheduled and len(self._flights) < self._settings.window:
            self._seal_scheduled = True
            asyncio.get_running_loop().call_soon(self._seal)

    def _seal(self) -> None:
        self._seal_scheduled = False
        if not self.open or len(self._flights) >= self._settings.window:
            return
        if self._last_number >= _NUMBERS_MAX:
            self.end("all its numbers are used", planned=True)
            return
        if self.order.forming_count:
            self._send(self.order.seal(self._host.clock.wall_us()))
        elif self._questions:
            self._send(None)
        else:
            return
        self._on_room()

    def _send(self, batch: Sealed | None) -> None:
        questions, self._questions = self._questions, []
        self._last_number += 1
        self._sent_s = self._host.clock.monotonic_s()
        self._flights.append(Flight(self._last_number, batch, questions))
        self._unsynced.append((self._last_number, self._sent_s))
        payload = () if batch is None else (batch.raw,)
        message = Store(self.session, self.committed, payload=payload)
        frame = message.frame(request=self._last_number, partition=self._partition)
        for connection in self._replicas.values():
            connection.send_frame(frame)

    # ------------------------------------------------------------------ acknowledgements

    def acknowledge(self, name: StorageId, connection: Connection, number: int) -> None:
        if not self.open or self._replicas.get(name) is not connection or number > self._last_number:
            return
        if not self._acknowledgements.acknowledge(name, number):
            return
        flights = self._flights
        while flights and flights[0].number <= self._acknowledgements.committed:
            flight = flights.popleft()
            if flight.batch is not None:
                self.committed = flight.batch.last
            self._on_committed(flight)
        self._seal()

    def fail(self, name: StorageId, connection: Connection, error: PolonaiseError) -> None:
        """Any fault of an engaged replica ends the session."""
        if self._replicas.get(name) is connection:
            self.end(f"{name}: {error}")

    def check(self) -> None:
        """Now and then: is every replica keeping up, and is an idle partition still alive?"""
        now = self._host.clock.monotonic_s()
        synced = min(self._acknowledgements.synced(name) for name in self._replicas)
        while self._unsynced and self._unsynced[0][0] <= synced:
            self._unsynced.popleft()
        if self._unsynced and now - self._unsynced[0][1] > self._settings.acknowledge_s_max:
            late = [name for name in self._replicas if self._acknowledgements.synced(name) < self._unsynced[0][0]]
            error = DeadlineExceeded(f"did not sync within {self._settings.acknowledge_s_max:g} s")
            for name in late:
                self._replicas[name].abort(error)
            self.end(f"{', '.join(late)}: {error}")
        for name, connection in self._replicas.items():
            if connection.closed is not None:
                self.fail(name, connection, ConnectionLost(str(connection.closed)))
        if now - self._sent_s > self._settings.pulse_s:
            self.prove(_PULSE)
            self.send_soon()

    # ------------------------------------------------------------------ the end

    def remains(self) -> tuple[list[Sealed], list[Question]]:
        """What was sent or sealed and is not decided, and the questions that are not answered."""
        if self.order.forming_count:
            self._flights.append(Flight(0, self.order.seal(self._host.clock.wall_us()), ()))
        batches = [flight.batch for flight in self._flights if flight.batch is not None]
        questions = [question for flight in self._flights for question in flight.questions] + self._questions
        self._flights.clear()
        self._questions = []
        return batches, questions
