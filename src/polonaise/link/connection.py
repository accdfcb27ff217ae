"""A framed connection between two nodes, the same on both sides."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, cast

from polonaise.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    HistoryTrimmed,
    InvariantViolated,
    Overloaded,
    PolonaiseError,
    ProtocolError,
    Retry,
    UnsupportedVersion,
    WrongClusterKey,
    WrongRole,
    error_of,
    fresh,
)
from polonaise.host import Buffer, Host
from polonaise.link.budget import Budget
from polonaise.wire import codec
from polonaise.wire.codec import Message
from polonaise.wire.frame import FRAME_BYTES_MAX, NO_PARTITION, Frame, Frames
from polonaise.wire.messages import (
    PROTOCOL_VERSION,
    Hello,
    Ping,
    Pong,
    Refused,
)

ANY_CLUSTER: Final = bytes(16)
"""The key of a side that does not know its cluster yet. Who was connected to accepts it only if its own is this."""

_UNREAD: Final = "unread answers"
_TURN_FRAMES_MAX: Final = 8
"""Messages of a peer that connected, in one turn of the loop: others have their turn before more of its own."""
_TOGETHER_BYTES: Final = 65_536
"""Small messages are booked together, or the booking would take more memory than they do."""
_ONE_PIECE_BYTES: Final = 4_096
"""A frame up to this size is written as one piece: that is less work than to write several."""
_ROLE_NAMES: Final = {1: "client", 2: "server", 3: "storage node"}


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Bounds and deadlines of a connection, in seconds and bytes."""

    heartbeat_s: float = 1.0
    """A ping goes out when nothing else was sent for this long."""
    silence_s_max: float = 5.0
    """A peer that says nothing for this long is dead."""
    hello_s_max: float = 5.0
    frame_s_max: float = 30.0
    """The longest that one frame may take to arrive once it has begun."""
    unread_s_max: float = 60.0
    """A peer that is full of unread bytes and takes none of them for this long is cut off."""
    linger_s_max: float = 5.0
    """How long a closed connection may take to send what it still has to say."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    unsent_bytes_high: int = 4 * 1024 * 1024
    """Above this, writers are asked to wait."""
    unsent_bytes_tight: int = 128 * 1024
    """The same, while all connections together hold more than half of what they may."""
    unread_bytes_max: int = 8 * 1024 * 1024
    """A peer that connected and leaves this much unread is not read either until it does: its requests can't pile up
    as answers."""
    unsent_bytes_max: int = 256 * 1024 * 1024
    """A peer that lets this much pile up is cut off."""


OnMessage = Callable[["Connection", Message, int, int], None]
"""(connection, message, request number, partition), for everything that is not an answer to a request of ours.

A `PolonaiseError` it raises is sent back as `Refused`; a `ProtocolError` closes the connection too; an
`InvariantViolated` is our own mistake and stops the node.
"""
OnClosed = Callable[["Connection", PolonaiseError], None]


class Connection(asyncio.Protocol):
    """One connection. Say hello, check the peer's, then messages both ways.

    Promises: nothing is delivered before the peer's hello was checked, nor while reading is paused; answers reach the
    request they belong to or the request fails; after `on_closed` nothing is delivered any more. What is sent may be
    lost: only an answer proves.

    The side that was connected to (`accepted`) says hello second and only to a peer of its own cluster: whoever finds
    the port does not learn the cluster key there. And it stops reading a peer that does not read. Only this side does,
    or two that wait for each other to read would wait for ever.
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
        budget: Budget | None = None,
    ) -> None:
        self._host = host
        self._hello = hello
        self._peer_roles = peer_roles
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_greeted = on_greeted
        self._settings = settings or LinkSettings()
        self._accepted = accepted
        self._budget = budget
        self._frames = Frames()
        self._held: deque[Frame] = deque()
        """What has arrived and waits for the end of a pause, or for its turn: at most what one read brought."""
        self._held_bytes = 0
        self._delivering = False
        """The next turn of what is held is scheduled."""
        self._transport: asyncio.Transport | None = None
        self._requests: dict[int, asyncio.Future[Message]] = {}
        self._last_request = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading_paused: set[str] = set()
        self._beat: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._own: deque[tuple[int, int]] = deque()
        """Of what was sent and is in memory for this peer alone: where it ends in the stream, and its size."""
        self._own_bytes = 0
        self._tight = False
        self._given_bytes = 0
        self._taken_bytes = 0
        self._taken_s = 0.0
        self._peer_name = "an ungreeted peer"
        self._heard_s = 0.0
        self._sent_s = 0.0
        self._frame_began_s: float | None = None
        self._greeted = asyncio.get_running_loop().create_future()
        self._greeted.add_done_callback(_retrieve)
        self.peer: Hello | None = None
        """The other side's hello, once it has been checked."""
        self.closed: PolonaiseError | None = None
        """Why the connection is closed; None while it is open."""

    # ------------------------------------------------------------------ saying

    @property
    def peer_name(self) -> str:
        """What the peer calls itself, fit for a line of a log."""
        return self._peer_name

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def writable(self) -> bool:
        return self._writable.is_set()

    async def wait_writable(self) -> None:
        """Until the peer has taken enough of what was sent. Raises when the connection closes meanwhile."""
        while not self._writable.is_set():  # of those who waited together, the first may have filled it up again
            await self._writable.wait()
        if self.closed:
            raise self.closed.with_traceback(None)

    def send(self, message: Message, *, request: int = 0, partition: int = NO_PARTITION, shared: bool = False) -> None:
        """Send without waiting; silently nothing on a closed connection (the closing is told through `on_closed`).

        `shared`: the payload is in memory anyway, and not on account of this connection.
        """
        self.send_frame(message.frame(request=request, partition=partition), shared=shared)

    def send_frame(self, frame: Sequence[Buffer], *, shared: bool = False) -> None:
        """As `send`, for what several connections are sent alike: it is encoded once for all of them."""
        if self.closed or self._transport is None:
            return
        size = sum(map(len, frame))
        if size <= _ONE_PIECE_BYTES:
            self._transport.write(b"".join(frame))
        else:
            self._transport.writelines(frame)
        self._given_bytes += size
        if self._budget is not None and not shared:
            self._own_bytes += size
            if self._own and self._own[-1][1] < _TOGETHER_BYTES:
                size += self._own.pop()[1]
            self._own.append((self._given_bytes, size))
        self._sent_s = self._host.clock.monotonic_s()
        unsent = self._transport.get_write_buffer_size()
        if unsent > self._settings.unsent_bytes_max:
            self.abort(Overloaded(f"{self.peer_name} does not read what it is sent"))
            return
        if self._accepted and unsent > self._settings.unread_bytes_max and not self._writable.is_set():
            self.pause(_UNREAD)
        self._book(unsent)

    def _book(self, unsent: int) -> None:
        """Tell the budget, if any, what is in memory for this connection; keep a smaller share when that is tight."""
        if self._budget is None or self.closed or self._transport is None:
            return
        taken = self._given_bytes - unsent
        while self._own and self._own[0][0] <= taken:
            self._own_bytes -= self._own.popleft()[1]
        self._budget.book(self, self._frames.kept_bytes + self._held_bytes + self._own_bytes)
        if self._budget.tight != self._tight and not self.closed:
            self._tight = self._budget.tight
            high = self._settings.unsent_bytes_tight if self._tight else self._settings.unsent_bytes_high
            self._transport.set_write_buffer_limits(high=high)

    def refuse(
        self, error: PolonaiseError, *, request: int = 0, partition: int = NO_PARTITION, detail: int = 0
    ) -> None:
        self.send(Refused(detail=detail, code=error.code, text=error.text), request=request, partition=partition)

    def _next_request(self) -> int:
        """A fresh request number. The lower half of the numbers belongs to conversations that count by themselves."""
        self._last_request = (self._last_request + 1) & 0x7FFF_FFFF
        return 0x8000_0000 | self._last_request

    async def request(self, message: Message, *, partition: int = NO_PARTITION, deadline_s: float) -> Message:
        """Send and wait for the answer. Raises what the peer refused with, `DeadlineExceeded` or `ConnectionLost`."""
        if self.closed:
            raise self._lost(self.closed)
        number = self._next_request()
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._requests[number] = answer
        try:
            self.send(message, request=number, partition=partition)
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self.peer_name} did not answer {type(message).__name__} within {deadline_s:g} s"
            ) from None
        finally:
            self._requests.pop(number, None)

    # ------------------------------------------------------------------ flow of what comes in

    def pause(self, reason: str) -> None:
        """Deliver nothing until every reason to pause is gone; the peer's writes then block."""
        if not self._reading_paused and not self._held and self._transport and not self.closed:
            self._transport.pause_reading()
        self._reading_paused.add(reason)

    def resume(self, reason: str) -> None:
        if reason not in self._reading_paused:
            return
        self._reading_paused.discard(reason)
        if not self._reading_paused and self._transport and not self.closed:
            self._heard_s = self._host.clock.monotonic_s()
            if self._frame_began_s is not None:
                self._frame_began_s = self._heard_s  # what it could not go on with was not the peer's delay
            if self._held:
                self._deliver_soon()
            else:
                self._transport.resume_reading()

    def _deliver_soon(self) -> None:
        if not self._delivering:
            self._delivering = True
            asyncio.get_running_loop().call_soon(self._deliver_held)

    def _deliver_held(self) -> None:
        """One turn of what is held; when all of it was delivered, read on."""
        self._delivering = False
        try:
            for _ in range(_TURN_FRAMES_MAX):
                if not self._held or self._reading_paused or self.closed:
                    break
                frame = self._held.popleft()
                self._held_bytes -= len(frame.head) + len(frame.payload)
                self._receive(frame)
        except ProtocolError as error:
            self.refuse(error)
            self._close_for(error)
        if self._reading_paused or self.closed or not self._transport:
            return
        if self._held:
            self._deliver_soon()
        else:
            self._heard_s = self._host.clock.monotonic_s()
            self._transport.resume_reading()

    # ------------------------------------------------------------------ life

    async def greeted(self) -> Hello:
        """Wait for the peer's checked hello."""
        return cast(Hello, await asyncio.shield(self._greeted))

    def close(self, error: PolonaiseError | None = None) -> None:
        """Close, because of `error` if there is one, after what was sent has gone out: a refusal, for example."""
        self._close_for(error or Closed("closed by this side"))

    def abort(self, error: PolonaiseError) -> None:
        """Close at once because of `error`; if it is closed and still has something to send, that is dropped."""
        if self._transport:
            self._transport.abort()
        self._end(error)

    def _end(self, error: PolonaiseError) -> None:
        if self.closed:
            return
        self.closed = error
        self._held.clear()
        self._held_bytes = 0
        self._frames = Frames()  # an unfinished frame is not to live until the garbage is collected
        self._writable.set()
        if self._beat:
            self._beat.cancel()
        if not self._greeted.done():
            self._greeted.set_exception(error)
        waiting, self._requests = self._requests, {}
        lost = self._lost(error)
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(lost)
                _retrieve(answer)
        if self._on_closed:
            self._on_closed(self, self.closed)

    def _lost(self, error: PolonaiseError) -> PolonaiseError:
        """What a request is told when `error` has closed the connection."""
        if error.retry is Retry.AGAIN or isinstance(error, Closed):
            return fresh(error)
        # What closed the connection, a garbled frame most likely, was no fault of the request.
        return ConnectionLost(f"the connection to {self.peer_name} ended: {error}")

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._settings.unsent_bytes_high)
        self._heard_s = self._sent_s = self._frame_began_s = self._host.clock.monotonic_s()
        if not self._accepted:
            self.send(self._hello)
        self._schedule_beat()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger:
            self._linger.cancel()
        if self._budget is not None:
            self._budget.release(self)
        self._end(ConnectionLost(f"the connection to {self.peer_name} broke" + (f": {exc}" if exc else "")))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self.resume(_UNREAD)

    def data_received(self, data: bytes) -> None:
        now = self._heard_s = self._host.clock.monotonic_s()
        try:
            turn_left = _TURN_FRAMES_MAX if self._accepted else -1
            received = frames = self._frames.feed(data)
            while frames:
                for frame in frames:
                    if self.closed:
                        return
                    if self._reading_paused or self._held or turn_left == 0:
                        self._held.append(frame)
                        self._held_bytes += len(frame.head) + len(frame.payload)
                    else:
                        turn_left -= 1
                        self._receive(frame)
                frames = self._frames.feed(b"") if self._frames.unfinished else []
        except ProtocolError as error:
            self.refuse(error)
            self._close_for(error)
            return
        if self.peer is not None:
            if not self._frames.unfinished:
                self._frame_began_s = None
            elif received or self._frame_began_s is None:
                self._frame_began_s = now
            self._book(self.unsent_bytes)
        if self._held and not self._reading_paused and self._transport and not self._delivering:
            self._transport.pause_reading()
            self._deliver_soon()

    def _close_for(self, error: PolonaiseError) -> None:
        """Close because of `error`, letting what was sent go out, if the peer takes it within a bounded time."""
        if self._transport and not self.closed:
            self._transport.close()
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(self._settings.linger_s_max, self._transport.abort)
        self._end(error)

    def _receive(self, received: Frame) -> None:
        message = codec.decode(received)
        if self.peer is None:
            self._greet(message)
            return
        kind = type(message)
        if kind is Ping:
            self.send(Pong())
            return
        if kind is Pong:
            return
        if kind is Hello:
            raise ProtocolError("hello twice")
        if received.request and (answer := self._requests.get(received.request)) is not None:
            self._answer(answer, message)
            return
        if isinstance(message, Refused) and not received.request and received.partition < 0:
            self._close_for(fault_in(message))
            return
        try:
            self._on_message(self, message, received.request, received.partition)
        except ProtocolError:
            raise
        except InvariantViolated as error:
            self._host.fail(error)
            raise
        except PolonaiseError as error:
            self.refuse(error, request=received.request, partition=received.partition)

    def _answer(self, answer: asyncio.Future[Message], message: Message) -> None:
        if answer.done():
            return
        if isinstance(message, Refused):
            error = fault_in(message)
            error.add_note(f"refused by {self.peer_name}, detail {message.detail}")
            answer.set_exception(error)
        else:
            answer.set_result(message)

    def _greet(self, message: Message) -> None:
        if isinstance(message, Refused) and not self._accepted:
            self._close_for(fault_in(message))
            return
        if not isinstance(message, Hello):
            raise ProtocolError(f"{type(message).__name__} before hello")
        mine = self._hello
        if message.version_min > mine.version_max or message.version_max < mine.version_min:
            raise UnsupportedVersion(
                f"the peer speaks protocol {message.version_min} to {message.version_max}, "
                f"this side {mine.version_min} to {mine.version_max}: upgrade the older one"
            )
        if message.role not in self._peer_roles:
            raise WrongRole(
                f"a {_ROLE_NAMES.get(message.role, 'stranger')} on a connection for a "
                f"{' or '.join(_ROLE_NAMES[role] for role in self._peer_roles)}: check the address"
            )
        if not self._belongs(message.cluster_key):
            error = WrongClusterKey("the peer belongs to another cluster: check the address, or the directory")
            self.refuse(error)
            self._close_for(error)
            return
        self.peer = message
        self._peer_name = _printable(message.name, 100) or f"a {_ROLE_NAMES[message.role]}"
        self._frames.bytes_max = self._settings.frame_bytes_max
        self._frame_began_s = None
        if not self._greeted.done():
            self._greeted.set_result(message)
        if self._accepted:
            self.send(mine)
        if self._on_greeted:
            self._on_greeted(self)

    def _belongs(self, key: bytes) -> bool:
        """Whether a peer with this cluster key may be talked to."""
        mine = self._hello.cluster_key
        return key == mine or mine == ANY_CLUSTER or (key == ANY_CLUSTER and not self._accepted)

    # ------------------------------------------------------------------ heartbeats

    def _schedule_beat(self) -> None:
        self._beat = asyncio.get_running_loop().call_later(self._settings.heartbeat_s, self._check)

    def _check(self) -> None:
        """Once per heartbeat: is the peer alive, does it make progress, does it hear from us?"""
        if self.closed:
            return
        settings, now = self._settings, self._host.clock.monotonic_s()
        if self.peer is None:
            if now - self._heard_s > settings.hello_s_max or now - (self._frame_began_s or now) > settings.hello_s_max:
                self.abort(ConnectionLost("the peer did not say hello"))
                return
        elif (
            not self._reading_paused
            and self._frame_began_s is not None
            and now - self._frame_began_s > settings.frame_s_max
        ):
            self.abort(ConnectionLost(f"{self.peer_name} did not finish a frame in {settings.frame_s_max:g} s"))
            return
        elif not self._reading_paused and not self._held and now - self._heard_s > settings.silence_s_max:
            self.abort(ConnectionLost(f"{self.peer_name} was silent for {settings.silence_s_max:g} s"))
            return
        if not self._takes(now):
            self.abort(Overloaded(f"{self.peer_name} reads nothing of what it is sent"))
            return
        self._book(self.unsent_bytes)
        if self.peer is not None and now - min(self._sent_s, self._heard_s) >= settings.heartbeat_s * 0.9:
            self.send(Ping())
        self._schedule_beat()

    def _takes(self, now: float) -> bool:
        """Whether the peer reads what it is sent, or has not had long enough to."""
        taken = self._given_bytes - self.unsent_bytes
        if self.writable or taken != self._taken_bytes:
            self._taken_bytes, self._taken_s = taken, now
        return now - self._taken_s <= self._settings.unread_s_max


def _printable(text: str, length_max: int = 2_000) -> str:
    """A peer's words without control characters and of bounded length: they end up in messages and logs."""
    text = text if len(text) <= length_max else f"{text[:length_max]}…"
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def fault_in(refused: Refused) -> PolonaiseError:
    """The fault that a peer names, in words that are fit for a log."""
    error = error_of(_printable(refused.code, 100), _printable(refused.text))
    if isinstance(error, HistoryTrimmed):
        error.first = max(0, refused.detail)
    return error


def _retrieve(future: asyncio.Future[Message]) -> None:
    """Mark an exception as seen: whoever waits gets it, and nobody may be waiting any more."""
    if not future.cancelled():
        future.exception()


async def connect(host: Host, address: str, make: Callable[[], Connection], *, deadline_s: float) -> Connection:
    """A greeted connection to `address`. Raises `ConnectionLost`, or what either side refused with.

    Bytes that are no hello are a `ConnectionLost`, too: they may have been changed on their way, so whoever connects
    tries again.
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
    except TimeoutError:
        raise ConnectionLost(f"{address} did not answer within {deadline_s:g} s") from None
    except (UnsupportedVersion, WrongRole):
        raise
    except ProtocolError as error:
        raise ConnectionLost(f"{address} was not understood, or did not understand, as Polonaise: {error}") from None
    finally:
        if made and not greeted:
            made[-1].abort(ConnectionLost(f"{address} did not say hello"))


def hello(role: int, name: str, *, cluster_key: bytes = ANY_CLUSTER, node: int = 0) -> Hello:
    """The hello of this version of Polonaise."""
    return Hello(
        version_min=PROTOCOL_VERSION,
        version_max=PROTOCOL_VERSION,
        role=role,
        node=node,
        cluster_key=cluster_key,
        name=name,
    )
