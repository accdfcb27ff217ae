"""The framed connection between client, server and storage node, the same code on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol, cast

from polonaise.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    InvariantViolated,
    Overloaded,
    PolonaiseError,
    ProtocolError,
    Retry,
    UnsupportedVersion,
    WrongRole,
    fresh,
)
from polonaise.host import Buffer, Host, broken_off
from polonaise.host.tcpcounts import segment_counts
from polonaise.host.tls import refusal_in
from polonaise.host.unawaited import retrieve
from polonaise.link.protocol.greeting import PeerGreeting
from polonaise.link.protocol.measuring import ClockMeasuring, LossMeasuring
from polonaise.link.protocol.peertext import fault_in
from polonaise.link.protocol.traffic import AwaitedAnswers, FrameInbox, FrameOutbox
from polonaise.link.settings import LinkSettings
from polonaise.link.vouching import certificate_refused, tls_met
from polonaise.wire import codec
from polonaise.wire.codec import NO_PARTITION, Frame, Message
from polonaise.wire.messages import (
    CLOCK_VERSION,
    ROLE_SERVER,
    ROLE_STORAGE,
    AskTime,
    Hello,
    Ping,
    Pong,
    Refused,
    TimeIs,
    request_words,
)

_STEP_BYTES: Final = 65_536
"""Smaller changes are not booked: most connections hold next to nothing."""


class Holder(Protocol):
    """A connection: `peer_name` for messages, and `abort` to cut it off."""

    @property
    def peer_name(self) -> str: ...

    def abort(self, error: PolonaiseError) -> None: ...


class Budget:
    """Bounds the bytes that are held for all connections together: frames not handled yet, and answers not taken.

    Each has limits of its own, but there may be thousands. When half of the budget is used, every connection is given
    less at a time. When all of it is used, those that hold the most are cut off, until the rest fits: a peer that sends
    and reads as it should holds little.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Held at present, exact to a step of 64 KiB per connection."""
        self.cut_off = 0
        """How many connections were."""

    @property
    def tight(self) -> bool:
        """Whether more than half of the budget is used."""
        return self.total > self._bytes_max // 2

    def book(self, holder: Holder, held_bytes: int) -> None:
        """Note how many bytes a connection holds now; cut off the largest holders if that is too much."""
        before = self._held.get(holder, 0)
        if abs(held_bytes - before) < _STEP_BYTES:
            return
        self._held[holder] = held_bytes
        self.total += held_bytes - before
        while self.total > self._bytes_max:
            greediest = max(self._held, key=self._held.__getitem__)
            # Before the abort, which may book or release by itself.
            self.release(greediest)
            self.cut_off += 1
            greediest.abort(
                Overloaded(
                    f"all connections together hold more than {self._bytes_max} bytes, "
                    f"{greediest.peer_name} the most of them"
                )
            )

    def release(self, holder: Holder) -> None:
        """Forget a connection that is gone."""
        self.total -= self._held.pop(holder, 0)


GONE_S: Final = 1.0
_UNREAD: Final = "unread answers"
_ONE_PIECE_BYTES: Final = 4_096
"""The largest frame that is written as one piece: copying it is less work than writing several."""

_MEASURED: Final = frozenset({ROLE_SERVER, ROLE_STORAGE})
"""On the way to these peers, nodes of the cluster, losses are measured."""

_PING: Final = Ping().frame()
_PONG: Final = Pong().frame()

OnMessage = Callable[["Connection", Message, int, int], None]
"""Called with (connection, message, request number, partition) for each message but those of the connection itself:
greetings, heartbeats, answers to requests that still wait, and a `Refused` about the connection.

A `PolonaiseError` that the callback raises is sent back as `Refused`; a `ProtocolError` closes the connection as well;
an `InvariantViolated` is a mistake in this side's own code, and stops this side."""
OnClosed = Callable[["Connection", PolonaiseError], None]
"""Called once, with the reason."""


class Connection(asyncio.Protocol):
    """Carries messages both ways, after each side has said hello and checked the other's.

    Promises: nothing is delivered before the peer's hello was checked, nor while reading is paused; answers reach the
    request they belong to or the request fails; after `on_closed` nothing is delivered any more. What is sent may be
    lost: only an answer proves.

    The side that was connected to (`accepted`) says hello second and, once it has a cluster, only to a peer of that: a
    stranger does not learn the cluster key there, unless this node `tells_strangers`, as servers do. And it stops
    reading a peer that does not read; if both sides did, each could wait for the other for ever.
    """

    def __init__(
        self,
        host: Host,
        *,
        hello: Hello,
        peer_roles: Collection[int],
        on_message: OnMessage,
        on_closed: OnClosed | None = None,
        on_greeted: Callable[[Connection], None] | None = None,
        settings: LinkSettings | None = None,
        accepted: bool = False,
        tells_strangers: Collection[int] = (),
        budget: Budget | None = None,
    ) -> None:
        """Prepare a connection, which the network then calls as an `asyncio.Protocol`.

        `hello` is what this side says, and `peer_roles` are the roles that the peer may have. `on_greeted` is called
        when the peer's hello was checked. A peer in a role among `tells_strangers` need not know its cluster, and is
        told the cluster key. With a `budget` the memory that is held for this peer is booked there.
        """
        self._host = host
        self._greeting = PeerGreeting(hello, peer_roles, accepted=accepted, tells_strangers=tells_strangers)
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_greeted = on_greeted
        self._settings = settings or LinkSettings()
        self._budget = budget
        self._inbox = FrameInbox(self._greeting, self._settings)
        self._awaited: AwaitedAnswers[asyncio.Future[Message]] = AwaitedAnswers()
        self._outbox = FrameOutbox(self._greeting, self._settings)
        self._reading = True
        self._turn_set = False
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._beat: asyncio.TimerHandle | None = None
        self._beat_due_s = 0.0
        self._linger: asyncio.TimerHandle | None = None
        self.clock = ClockMeasuring(0.0 if accepted else self._settings.clock_s)
        """Measured by the side that has connected."""
        self.losses = LossMeasuring()
        self._greeted = asyncio.get_running_loop().create_future()
        self._greeted.add_done_callback(retrieve)
        self.closed: PolonaiseError | None = None
        """Why the connection is closed; None while it is open."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the transport has ended, which may have had something to send after the close."""
        self.refused = False
        """Whether the peer had said hello and then refused the connection."""

    def bar(self, error: PolonaiseError) -> None:
        """Have the peer refused with this error once it has said hello; for `host`, before the connection is made."""
        self._greeting.barred = error

    @property
    def is_greeted(self) -> bool:
        """Whether the peer's hello has been checked, which comes before all that is delivered."""
        return self._greeting.peer is not None

    @property
    def peer(self) -> Hello:
        """The peer's hello, once it has been checked."""
        peer = self._greeting.peer
        assert peer is not None, "nobody asks who the peer is before it has said hello"
        return peer

    @property
    def peer_role(self) -> int:
        """In the peer's hello; 0 until all of it but its cluster was found right."""
        return self._greeting.peer_role

    @property
    def peer_name(self) -> str:
        """What the peer is called in messages and logs."""
        return self._greeting.peer_name

    def call_peer(self, name: str) -> None:
        """Call the peer by a name that says more than the one that it gave itself."""
        self._greeting.peer_name = name

    @property
    def peer_address(self) -> str:
        """Where the peer connected from, or was connected to; empty if unknown."""
        found = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) and len(found) >= 2 else ""

    @property
    def silent_s(self) -> float:
        """For how many seconds nothing was heard of a peer that is late; 0 if it is not."""
        return self._inbox.silent_s(self._host.clock.monotonic_s())

    # ------------------------------------------------------------------ saying

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def writable(self) -> bool:
        """Whether little enough is unsent for more to be written."""
        return self._writable.is_set()

    async def wait_writable(self) -> None:
        """Wait until little enough is unsent; raises the reason if the connection is closed."""
        while not self._writable.is_set():  # of those who waited together, the first may have filled it up again
            await self._writable.wait()
        if self.closed:
            raise self.closed.with_traceback(None)

    def send(self, message: Message, *, request: int = 0, partition: int = NO_PARTITION, shared: bool = False) -> None:
        """Send a message without waiting; nothing happens on a closed connection.

        A `shared` payload is in memory anyway, and not booked on this connection.
        """
        self.send_frame(message.frame(request=request, partition=partition), shared=shared)

    def send_frame(self, frame: Sequence[Buffer], *, shared: bool = False) -> None:
        """Send what is encoded already, for several connections."""
        if self.closed or self._transport is None:
            return
        size = sum(map(len, frame))
        if size <= _ONE_PIECE_BYTES:
            self._transport.write(b"".join(frame))
        else:
            self._transport.writelines(frame)
        unsent, own = self._transport.get_write_buffer_size(), self._budget is not None and not shared
        if (refused := self._outbox.gave(size, unsent, self._host.clock.monotonic_s(), own=own)) is not None:
            self.abort(refused)
            return
        # Only while writers wait: it is `resume_writing` that ends this pause, and without a wait it never comes.
        if unsent and self._outbox.is_unread(unsent) and not self.writable:
            self.pause(_UNREAD)
        if self._budget is not None:
            self._book(unsent)

    def _book(self, unsent: int) -> None:
        if self._budget is None or self.closed or self._transport is None:
            return
        self._budget.book(self, self._inbox.kept_bytes + self._outbox.own_bytes(unsent))
        # Looked at again: the booking may have cut off this very connection.
        if not self.closed and (high := self._outbox.tighten(self._budget.tight)) is not None:
            self._transport.set_write_buffer_limits(high=high)

    def refuse(
        self, error: PolonaiseError, *, request: int = 0, partition: int = NO_PARTITION, detail: int = 0
    ) -> None:
        """Answer a request with a fault, which is the connection's without request and partition.

        `detail`: see `Refused`.
        """
        self.send(Refused(detail=detail, code=error.code, text=error.text), request=request, partition=partition)

    def turn_away(self, error: PolonaiseError) -> None:
        """Tell the peer why it is refused, and close."""
        self.refuse(error)
        self.close(error)

    async def request(self, message: Message, *, partition: int = NO_PARTITION, deadline_s: float) -> Message:
        """Send a request and return the answer to it.

        Raises what the peer refused with, `DeadlineExceeded` after `deadline_s` seconds, and `ConnectionLost` or
        another fault that closed the connection. After the last two it is unknown whether the peer has carried the
        request out.
        """
        if self.closed:
            raise self._lost(self.closed)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        number = self._awaited.begin(answer)
        try:
            self.send(message, request=number, partition=partition)
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self.peer_name} was asked for {request_words(message)} and did not answer within {deadline_s:g} s"
            ) from None
        finally:
            self._awaited.end(number)

    # ------------------------------------------------------------------ flow of what comes in

    def pause(self, reason: str) -> None:
        """Deliver nothing until every reason to pause is gone; meanwhile the peer's writes block."""
        self._inbox.pause(reason)
        self._follow_inbox()

    def resume(self, reason: str) -> None:
        """End one reason to pause; with the last one, deliver what was held, then read on."""
        if self._inbox.resume(reason, self._host.clock.monotonic_s()):
            self._follow_inbox()

    def _follow_inbox(self) -> None:
        """Have the transport read, and the next turn come, as the inbox wants it."""
        if self.closed or self._transport is None:
            return
        if self._inbox.reads is not self._reading:
            self._reading = not self._reading
            if self._reading:
                self._inbox.reads_on(self._host.clock.monotonic_s())
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        # A turn of their own, because the caller may be in the middle of handling another message.
        if self._inbox.has_turn and not self._turn_set:
            self._turn_set = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_set = False
        try:
            for frame in self._inbox.take_turn():
                self._receive(frame)
        except ProtocolError as error:
            self.turn_away(error)
        self._follow_inbox()

    # ------------------------------------------------------------------ life

    async def greeted(self) -> Hello:
        """Return the peer's hello once it is checked; raises the reason if the connection closes before that."""
        # Shielded, because several may wait: one that is cancelled must not cancel the greeting of the others.
        return cast(Hello, await asyncio.shield(self._greeted))

    def close(self, error: PolonaiseError | None = None) -> None:
        """Close because of `error`, after what was sent has gone out, if the peer takes it within `linger_s_max`."""
        if self._transport and not self.closed:
            self._transport.close()
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(self._settings.linger_s_max, self._transport.abort)
        self._end(error or Closed("closed by this side"))

    def abort(self, error: PolonaiseError) -> None:
        """Close at once, and drop what was not sent, even after `close`."""
        if self._transport:
            self._transport.abort()
        self._end(error)

    def _end(self, error: PolonaiseError) -> None:
        """Note that the connection is closed, fail all that wait for it, and call `on_closed`. Once."""
        if self.closed:
            return
        # First: whatever the calls below bring about finds the connection closed.
        self.closed = error
        self._inbox.end()
        # Those who wait to write look again, and find it closed.
        self._writable.set()
        if self._beat:
            self._beat.cancel()
        if not self._greeted.done():
            self._greeted.set_exception(error)
        lost = self._lost(error)
        for answer in self._awaited.end_all():
            if not answer.done():
                answer.set_exception(lost)
                retrieve(answer)
        if self._on_closed:
            self._on_closed(self, self.closed)

    def _lost(self, error: PolonaiseError) -> PolonaiseError:
        if error.retry is Retry.AGAIN or isinstance(error, Closed):
            return fresh(error)
        # What closed the connection, most likely a garbled frame, was no fault of the request: it may be tried again.
        return ConnectionLost(f"the connection to {self.peer_name} ended: {error}")

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Closed before it was made: its node takes nobody just now, or `connect` has given up waiting.
        if self.closed:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._settings.unsent_bytes_high)
        now = self._host.clock.monotonic_s()
        self._inbox.begin(now)
        self._outbox.begin(now)
        if not self._greeting.accepted:
            # Before this side's hello, which has the cluster key in it.
            if (refused := certificate_refused(self._transport, self._greeting.roles, self._host.clock)) is not None:
                self.close(refused)
                return
            self.send(self._greeting.mine)
        self._schedule_beat()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger:
            self._linger.cancel()
        if not self.gone.done():
            self.gone.set_result(None)
        if self._budget is not None:
            self._budget.release(self)
        why = f": {exc}" if exc else ""
        if self.is_greeted or self._greeting.accepted:
            lost = ConnectionLost(f"the connection to {self.peer_name} broke{why}")
        else:
            lost = ConnectionLost(
                f"the other side closed the connection before its hello{why}: it may be no node of Polonaise"
            )
        self._end(refusal_in(exc) or lost)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self.resume(_UNREAD)

    def data_received(self, data: bytes) -> None:
        """Deliver the messages that have arrived whole; hold those that wait for a turn or a pause's end."""
        try:
            for frame in self._inbox.take(data, self._host.clock.monotonic_s()):
                self._receive(frame)
        except ProtocolError as error:
            self.turn_away((self._greeting.peer is None and tls_met(error, data, self._host.clock)) or error)
            return
        if self._budget is not None and self._greeting.peer is not None:
            self._book(self.unsent_bytes)
        if self._inbox.has_turn:
            self._follow_inbox()

    def _receive(self, received: Frame) -> None:
        message = codec.decode(received)
        if self._greeting.peer is None:
            self._greet(message)
            return
        kind = type(message)
        if kind is Ping:
            self.send_frame(_PONG)
            return
        if kind is Pong:
            return
        if kind is AskTime:
            self.send(TimeIs(self._host.clock.wall_us()))
            return
        if isinstance(message, TimeIs):
            self.clock.answered(message.wall_us, self._host.clock.monotonic_s())
            return
        if kind is Hello:
            raise ProtocolError("the peer said hello twice")
        if received.request and (answer := self._awaited.waiting.get(received.request)) is not None:
            self._answer(answer, message)
            return
        if isinstance(message, Refused) and not received.request and received.partition < 0:
            self.refused = True
            self.close(fault_in(message))
            return
        try:
            self._on_message(self, message, received.request, received.partition)
        except ProtocolError:
            raise
        except InvariantViolated as error:
            # asyncio would only log it. The node has to stop before it tells anybody what may be wrong.
            self._host.fail(error)
            raise
        except PolonaiseError as error:
            self.refuse(error, request=received.request, partition=received.partition)

    def _answer(self, answer: asyncio.Future[Message], message: Message) -> None:
        if answer.done():  # cancelled, and not yet taken out of the requests
            return
        if isinstance(message, Refused):
            error = fault_in(message)
            error.add_note(f"refused by {self.peer_name}, detail {message.detail}")
            answer.set_exception(error)
        else:
            answer.set_result(message)

    def _greet(self, message: Message) -> None:
        """Have the peer's first message judged; the accepting side answers a hello that fits.

        A peer that is refused is told why; one that has refused this side is not, or two sides would refuse each other
        in turn.
        """
        if isinstance(message, Refused) and not self._greeting.accepted:
            self.close(fault_in(message))
            return
        said = self._greeting.hear(message)
        refused = (
            certificate_refused(self._transport, (said.role,), self._host.clock) or self._greeting.admit(said)
            if isinstance(said, Hello)
            else said
        )
        if refused is not None:
            self.turn_away(refused)
            return
        self._inbox.greeted()
        if not self._greeted.done():
            self._greeted.set_result(message)
        # Only now, to a peer that belongs here: the hello has the cluster key in it.
        if self._greeting.accepted:
            self.send(self._greeting.mine)
        else:
            self._ask_time(self._host.clock.monotonic_s())
        # After this side's hello, which has to be the first message that the peer gets.
        if self._on_greeted:
            self._on_greeted(self)

    # ------------------------------------------------------------------ heartbeats

    def _schedule_beat(self) -> None:
        self._beat = asyncio.get_running_loop().call_later(self._settings.heartbeat_s, self._check)
        self._beat_due_s = self._host.clock.monotonic_s() + self._settings.heartbeat_s

    def _check(self) -> None:
        if self.closed:
            return
        now = self._host.clock.monotonic_s()
        dead = self._inbox.overdue(now, now - self._beat_due_s)
        if (lost := dead or self._outbox.stuck(self.unsent_bytes, now, writable=self.writable)) is not None:
            self.abort(lost)
            return
        self._book(self.unsent_bytes)
        if self.peer_role in _MEASURED and (counts := segment_counts(self._transport)) is not None:
            self.losses.seen(now, counts.sent, counts.resent)
        if not self._ask_time(now) and self.is_greeted and self._outbox.ping_due(now, self._inbox.heard_s):
            self.send_frame(_PING)
        self._schedule_beat()

    def _ask_time(self, now: float) -> bool:
        """Ask the peer for its time if that is due; return whether it was asked."""
        if not self.is_greeted or self.peer.version_max < CLOCK_VERSION or not self.clock.due(now):
            return False
        self.send(AskTime())
        return True


async def connect(host: Host, address: str, make: Callable[[], Connection], *, deadline_s: float) -> Connection:
    """Connect to `address` within `deadline_s` seconds, and return the connection once both have said hello.

    Raises `ConnectionLost`, what either side refused with, such as `CertificateRefused`, `TlsRequired` or
    `TlsNotSpoken`, and `BadOption` for a text that is no address. A hello that can't be read is a `ConnectionLost` too:
    it may have been garbled on its way, and another try is worth it.
    """
    made: list[Connection] = []
    greeted = False

    def factory() -> Connection:
        made.append(make())
        return made[-1]

    try:
        async with asyncio.timeout(deadline_s):
            await host.network.connect(address, factory)
            await made[-1].greeted()
        greeted = True
        return made[-1]
    except TimeoutError as error:
        why = f": {told}" if (told := broken_off(error)) else ""
        raise ConnectionLost(f"{address} did not answer within {deadline_s:g} s{why}") from None
    except (UnsupportedVersion, WrongRole):
        raise
    except ProtocolError as error:
        raise ConnectionLost(
            f"{address} sent no hello that can be read, or could not read this side's: {error}. Is it the address of a "
            "Polonaise node?"
        ) from None
    finally:
        if made and not greeted:
            made[-1].abort(ConnectionLost(f"{address} did not say hello"))


async def gone(connections: Iterable[Connection]) -> None:
    """Wait until these connections, which were closed, have ended; after `GONE_S` seconds, end them.

    A program may close its event loop next, and what still waits for the peer would be left open.
    """
    ending = [connection for connection in connections if not connection.gone.done()]
    if not ending:
        return
    try:
        await asyncio.wait([connection.gone for connection in ending], timeout=GONE_S)
    finally:
        for connection in ending:
            if not connection.gone.done():
                connection.abort(Closed("closed by this side"))
