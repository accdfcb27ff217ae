"""Simulated connections: the asyncio transports that processes use, and the pipes between them.

A connection is two pipes, one for each direction, and a transport at each end. Bytes that a process has written but the
window has no room for lie in its transport, and die with the process. Bytes in a pipe are on their way, and arrive even
if the writer is killed; a reset, or a loss of power at the writer's machine, may drop some of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeAlias

from polonaise_proving.record.faultcounts import FaultCounts
from polonaise_proving.record.trace import Event
from polonaise_proving.stages.simulated.environment import Environment, NetworkConfiguration
from polonaise_proving.stages.simulated.process import Process

Item: TypeAlias = bytes | OSError | None
"""What travels: bytes, the end of the stream (None), or the breaking of the connection."""

_HIGH_WATER: Final = 64 * 1024
"""Unsent bytes above which a protocol is asked to pause writing, unless it says otherwise: asyncio's own default."""


class Partition:
    """One cut through the network, counted as a fault once it holds something back."""

    def __init__(self, name: str, faults: FaultCounts) -> None:
        self._name = name
        self._faults = faults
        self.felt = False
        """Whether the cut has held something back. A cut that never did has tested nothing."""

    def hold_back(self) -> None:
        """Note that the cut holds something back."""
        if not self.felt:
            self.felt = True
            self._faults.count(self._name)


class BlackHole(Partition):
    """A place on the way that drops large packets and tells nobody, as with a wrong MTU.

    Whoever sends one sends it again and again, and what is behind it in its stream waits.
    """

    def __init__(self, faults: FaultCounts, bytes_max: int) -> None:
        super().__init__("black_hole", faults)
        self.bytes_max = bytes_max
        """The most bytes of a chunk that passes."""


class Link:
    """The way from one machine to another, in one direction."""

    def __init__(self, environment: Environment, configuration: NetworkConfiguration, source: str, target: str) -> None:
        self.name = f"{source}->{target}"
        self.source, self.target = source, target
        self.configuration = configuration
        self.blocked: Partition | None = None
        """The cut that lets nothing through; None while the link carries."""
        self.black_hole: BlackHole | None = None
        """What swallows large chunks; None while those of every size pass."""
        self.extra_s = 0.0
        """Seconds by which everything is delayed; set by `SimulatedNetwork.delay`."""
        self.flips = configuration.flip_chance > 0.0
        """Whether this link may ever flip a bit; False spares a test for each chunk."""
        self.flips_due = 0
        """The number of next chunks that arrive with one bit wrong; raised by `SimulatedNetwork.flip_byte`."""
        self._faults = environment.faults
        self.draw = environment.random(f"link/{self.name}").random
        local = source == target
        self._base_s = configuration.loopback_s if local else configuration.latency_s
        self._jitter_s = configuration.loopback_s if local else configuration.jitter_s

    def latency_s(self) -> float:
        """Draw the seconds that the next chunk or packet travels."""
        delay = self._base_s + self._jitter_s * self.draw() + self.extra_s
        if self.extra_s:
            self._faults.count("delay")
        if self.strikes(self.configuration.delay_chance):
            self._faults.count("delay")
            delay += self.configuration.delay_s * self.draw()
        return delay

    def retransmit_s(self) -> float:
        """Draw the seconds after which held-back bytes arrive once the link carries again.

        TCP sends again after growing pauses, so the next try comes a while after the healing.
        """
        return self.latency_s() + 0.2 * self.draw()

    def strikes(self, chance: float) -> bool:
        """Draw whether something with this chance happens now. A chance of 0 takes nothing from the generator."""
        return chance > 0.0 and self.draw() < chance

    def flip(self, data: bytes) -> bytes:
        """Return the data, with one bit wrong if that is due or drawn."""
        if self.flips_due:
            self.flips_due -= 1
        elif not self.strikes(self.configuration.flip_chance):
            return data
        damaged = bytearray(data)
        damaged[int(self.draw() * len(damaged))] ^= 1 << int(self.draw() * 8)
        self._faults.count("byte_flip")
        return bytes(damaged)


class Connections:
    """The open connections of a simulated world, half-open ones included, and the pipes that are stalled."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.powerless: set[str] = set()
        """Names of the machines without power, which answer nothing."""
        self.standing: dict[Pipe, Pipe] = {}
        """Every connection of which an end is open: its pipe from the connecting end, mapped to its pipe back."""
        self.transports: dict[SimulatedTransport, None] = {}
        """The ends whose processes live and have not been told yet that the connection is over."""
        self._stalled: dict[Pipe, None] = {}
        """Pipes that hold something back until a link carries again, or a machine has power again. A dict, because a
        set would have no order."""

    def stall(self, pipe: Pipe, link: Link) -> None:
        """Note that the pipe holds something back until the link carries again and its target has power."""
        self._stalled[pipe] = None
        if link.blocked is not None:
            link.blocked.hold_back()

    def revive(self) -> list[Pipe]:
        """Ask every stalled pipe to go on, and return all of them. A pipe that can't go on stalls again."""
        stalled, self._stalled = list(self._stalled), {}  # a new one first: pipes enter themselves while this runs
        for pipe in stalled:
            pipe.revive()
        return stalled

    def reset(self, pipe: Pipe) -> None:
        """Break a connection: some of what is on its way may never arrive, and then both ends get an error."""
        ends = (pipe.source, pipe.target)
        if all(end.gone for end in ends):
            return
        self.environment.faults.count("reset")
        for direction in (ends[0].outgoing, ends[1].outgoing):
            direction.lose_some()
            direction.put(ConnectionResetError("connection reset by the network"))

    def end_gone(self, transport: SimulatedTransport) -> None:
        """Forget the connection of this end if the other end is gone, too."""
        if transport.outgoing.target.gone:
            self.standing.pop(transport.outgoing, None)
            self.standing.pop(transport.incoming, None)

    def process_ended(self, process: Process, *, powerless: bool) -> None:
        """Close what a dead process had open, as its kernel does, so that peers hear of it; without power, silently."""
        for transport in [transport for transport in self.transports if transport.process is process]:
            del self.transports[transport]
            if powerless:
                transport.vanish()
            else:
                transport.kernel_close(killed=True)


class Pipe:
    """One direction of a connection, with what is on its way in it, in order."""

    def __init__(self, connections: Connections, link: Link, back: Link) -> None:
        self.connections = connections
        self._loop = connections.environment.loop
        self.link = link
        self._back = back
        self.source: SimulatedTransport
        self.target: SimulatedTransport
        self.room = link.configuration.window_bytes
        """Bytes that may still be sent before the receiver has read some."""
        self._owed = 0
        """Bytes that the receiver has read while the link back was cut: the sender has not learned it yet."""
        self._flying: deque[tuple[float, Item]] = deque()
        """The items on their way, each with the virtual time at which it arrives unless it is held back."""
        self._last_ready = 0.0
        self._armed = False
        """Whether a call of `_arrive` is due, by a timer or once the pipe is stalled no more."""
        self._stalled = False
        self._ended = False

    def send(self, data: bytes) -> None:
        """Put bytes on their way; there must be `room` for them."""
        self.room -= len(data)
        link = self.link
        if len(data) > 1 and link.strikes(link.configuration.split_chance):
            cut = 1 + int(link.draw() * (len(data) - 1))
            self.put(data[:cut])
            data = data[cut:]
        self.put(data)
        if link.strikes(link.configuration.reset_chance):
            # Not at once: the writer is in the middle of its call, and a real reset comes from outside of it.
            self._loop.soon(self.connections.reset, self)

    def answer_as_gone(self) -> None:
        """Send a reset, once, because the end that this pipe leads from is gone.

        Bytes came for it since, or lay there unread; or its process was killed.
        """
        if not self._ended:
            self._ended = True
            self.put(ConnectionResetError("connection reset by peer"))

    def lose_some(self) -> None:
        """Lose what is on its way, except a first part of random length, which may be all or nothing of it."""
        keep = int(self.link.draw() * (len(self._flying) + 1))
        while len(self._flying) > keep:
            self._flying.pop()

    def credit(self, size: int) -> None:
        """Give `size` bytes of room back, which the receiver has read; the sender learns it over the link back."""
        if self._back.blocked is not None:
            self._owed += size
            self.connections.stall(self, self._back)
        elif size:
            self.room += size
            self.source.room_came()

    def revive(self) -> None:
        """Let what was held back go on if the links carry again; else stall again."""
        if self._back.blocked is None:
            owed, self._owed = self._owed, 0
            self.credit(owed)
        elif self._owed:  # another link was healed
            self.connections.stall(self, self._back)
        if not self._stalled:
            return
        if self.link.blocked is None and self.link.target not in self.connections.powerless:
            self._stalled = False
            self._loop.at(self._loop.now + self.link.retransmit_s(), self._arrive)
        else:
            self.connections.stall(self, self.link)

    def put(self, item: Item) -> None:
        """Put an item behind all that is on its way."""
        # A stream: what was sent later never arrives earlier, however short its way.
        ready = self._loop.now + self.link.latency_s()
        if ready < self._last_ready:
            ready = self._last_ready
        self._last_ready = ready
        self._flying.append((ready, item))
        if not self._armed:
            self._armed = True
            self._loop.at(ready, self._arrive)

    def _arrive(self) -> None:
        link = self.link
        # Judged on arrival and not when it was sent: a cut holds back also what is on its way. `_armed` stays true,
        # so that nothing that is sent meanwhile overtakes it.
        if link.blocked is not None or link.target in self.connections.powerless:
            self._stalled = True
            self.connections.stall(self, link)
            return
        flying, now = self._flying, self._loop.now
        while flying and flying[0][0] <= now:
            item = flying[0][1]
            hole = link.black_hole
            if hole is not None and type(item) is bytes and len(item) > hole.bytes_max:
                hole.hold_back()
                self._stalled = True
                self.connections.stall(self, link)
                return
            flying.popleft()
            if link.flips and type(item) is bytes:
                item = link.flip(item)
            self.target.arrive(item)
        if flying:
            self._loop.at(flying[0][0], self._arrive)
        else:
            self._armed = False


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, which keeps the promises of asyncio's own transports.

    Where asyncio and uvloop differ, it behaves as the stricter of them: writing after `connection_lost` is an error.
    """

    def __init__(
        self, process: Process, outgoing: Pipe, incoming: Pipe, local: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        super().__init__({"peername": peer, "sockname": local})
        self.process = process
        self.outgoing = outgoing
        self.incoming = incoming
        outgoing.source = incoming.target = self
        self.gone = False
        """Whether the kernel has closed this end, so that bytes for it are answered with a reset."""
        self._connections = outgoing.connections
        self._loop = process.environment.loop
        self._trace = process.environment.trace
        self._subject = self._trace.subject(f"{process.name} {local[0]}:{local[1]}-{peer[0]}:{peer[1]}")
        self._protocol: asyncio.BaseProtocol | None = None
        self._arrived: deque[Item] = deque()
        """What has arrived but was not read by the process."""
        self._draining = False
        """Whether a call of `_drain` is due."""
        self._reading = False
        self._broken: OSError | None = None
        """The breaking of the connection, of which the kernel knows first; None if the network has not broken it."""
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high = _HIGH_WATER
        self._low = _HIGH_WATER // 4
        self._writer_paused = False
        self._flushing = False
        """Whether a call of `_flush` is due."""
        self._eof_asked = False
        self._eof_sent = False
        # A transport ends in three steps, as asyncio's do: no new writes, then nothing read or written at all, then
        # the protocol has been told.
        self._closing = False
        self._lost = False
        self._finished = False
        self._connections.transports[self] = None

    def __hash__(self) -> int:
        return self._subject

    # -------------------------------------------------------------- asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    @property
    def established(self) -> bool:
        """Whether the process has been given the connection: of one that it asked for, the kernel knows before that."""
        return self._protocol is not None

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._drain_soon()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._check_unfinished()
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(
                f"invalid write buffer limits: high ({high}) must be at least low ({low}), and low at least 0"
            )
        self._high, self._low = high, low
        self._pause_writer_if_full()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if type(data) is not bytes:
            if not isinstance(data, bytes | bytearray | memoryview):
                raise TypeError(f"bytes-like object expected, not {type(data).__name__}")
            data = bytes(data)
        self._write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._check_unfinished()
        if self.process.dead or self._closing or self._eof_asked:
            return
        self.process.call()
        self._eof_asked = True
        if not self._unsent:
            self._send_eof()

    def close(self) -> None:
        if self.process.dead or self._closing:
            return
        self.process.call()
        self._closing = True
        if not self._unsent:
            self._lose(None)

    def abort(self) -> None:
        if self.process.dead or self._lost:
            return
        self.process.call()
        self._lose(None)

    def _check_unfinished(self) -> None:
        if self._finished:
            raise RuntimeError("the connection was lost: this transport is of no more use")

    def _write(self, data: bytes) -> None:
        self._check_unfinished()
        if self.process.dead:  # a `finally` block of the dead: it reaches nothing
            return
        self.process.call()
        if self._eof_asked:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        if self._broken is not None:
            self._lose(self._broken)
            return
        room = self.outgoing.room
        if not self._unsent and len(data) <= room:
            self.outgoing.send(data)
            return
        if not self._unsent and room:
            self.outgoing.send(data[:room])
            data = data[room:]
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self._pause_writer_if_full()

    def _pause_writer_if_full(self) -> None:
        if self._unsent_bytes > self._high and not self._writer_paused:
            self._writer_paused = True
            self.get_protocol().pause_writing()

    def _lose(self, error: OSError | None) -> None:
        """Stop reading and writing, drop what is unsent, and tell the protocol in a later turn of the loop.

        A protocol may be in the middle of a call of this transport, so it must not be told at once.
        """
        if self._lost:
            return
        self._lost = self._closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._loop.soon(self._loop.enter, self.process, self._connection_lost, error)

    def _connection_lost(self, error: OSError | None) -> None:
        self._finished = True
        self.kernel_close()
        self._connections.transports.pop(self, None)
        self.get_protocol().connection_lost(error)

    def _send_eof(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self.outgoing.put(None)

    # -------------------------------------------------------------- for the network, inside the process

    def establish(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the connection, which is open now, to its protocol, and let the protocol read."""
        self._protocol = protocol
        protocol.connection_made(self)
        if not self._closing:
            self._loop.soon(self._loop.enter, self.process, self.resume_reading)

    def _drain(self) -> None:
        """Give the protocol what has arrived, as long as it reads."""
        self._draining = False
        arrived = self._arrived
        protocol = self.get_protocol()
        assert isinstance(protocol, asyncio.Protocol)
        while arrived and self._reading and not self._closing:
            item = arrived.popleft()
            if type(item) is bytes:
                item = self._merged(item)
                self.incoming.credit(len(item))
                self._trace.add(Event.DELIVER, self._subject, 0, item)
                protocol.data_received(item)
            elif item is None:
                self._trace.add(Event.END_OF_STREAM, self._subject)
                if not protocol.eof_received():
                    self.close()
            else:
                assert isinstance(item, OSError)
                self._trace.add(Event.RESET, self._subject)
                self._lose(item)

    def _merged(self, item: bytes) -> bytes:
        """Return the bytes alone or joined with those behind them: a real read returns whatever has come so far."""
        arrived = self._arrived
        if not arrived or type(arrived[0]) is not bytes:
            return item
        if not self.incoming.link.strikes(self.incoming.link.configuration.merge_chance):
            return item
        parts = [item]
        while arrived and type(arrived[0]) is bytes:
            parts.append(arrived.popleft())  # type: ignore[arg-type]
        return b"".join(parts)

    def _flush(self) -> None:
        """Send what waited for room, as far as there is room now."""
        self._flushing = False
        outgoing = self.outgoing
        while self._unsent and outgoing.room:
            data = self._unsent.popleft()
            rest = data[outgoing.room :]
            if rest:
                self._unsent.appendleft(rest)
                data = data[: outgoing.room]
            self._unsent_bytes -= len(data)
            outgoing.send(data)
        if self._writer_paused and self._unsent_bytes <= self._low and not self._lost:
            self._writer_paused = False
            self.get_protocol().resume_writing()
        if not self._unsent:
            if self._eof_asked:
                self._send_eof()
            if self._closing:
                self._lose(None)

    # -------------------------------------------------------------- for the network, in the kernel

    def arrive(self, item: Item) -> None:
        """Take what has come through the incoming pipe."""
        if self.gone:
            if type(item) is bytes:  # the end of a stream needs no answer
                self.outgoing.answer_as_gone()
            return
        # Known at once to the kernel, so that the next write fails, even while the process does not read.
        if isinstance(item, OSError):
            self._broken = item
        self._arrived.append(item)
        if self._reading:
            self._drain_soon()

    def room_came(self) -> None:
        """Note that there is room in the outgoing pipe again, and send soon what waits for it."""
        if not self.gone and self._unsent and not self._flushing:
            self._flushing = True
            self._loop.soon(self._loop.enter, self.process, self._flush)

    def kernel_close(self, *, killed: bool = False) -> None:
        """Close this end, because the process closed the connection or has died (`killed`).

        The peer gets the end of the stream, or a reset if bytes lay unread, or a reset by chance if the process was
        killed. It gets nothing if the connection was broken already.
        """
        if self.gone:
            return
        self.gone = True
        unread = any(type(item) is bytes for item in self._arrived)
        self._arrived.clear()
        # Peers must bear both ends of a killed process, whether it has left bytes unread or not: so draw one.
        if self._broken is None:
            if unread or (killed and self.outgoing.link.strikes(0.5)):
                self.outgoing.answer_as_gone()
            else:
                self._send_eof()
        self._connections.end_gone(self)

    def vanish(self) -> None:
        """Drop this end, because its machine lost power: the peer hears nothing, and part of what was sent is lost."""
        self.gone = True
        self._arrived.clear()
        self.outgoing.lose_some()
        self._connections.end_gone(self)

    def time_out(self) -> None:
        """Give this end up, as a kernel does that gets no answer: the process gets an error, the peer hears nothing."""
        if not self.gone and self._broken is None:
            self.arrive(TimeoutError("connection timed out"))

    def _drain_soon(self) -> None:
        if not self._draining and self._arrived:
            self._draining = True
            self._loop.soon(self._loop.enter, self.process, self._drain)
