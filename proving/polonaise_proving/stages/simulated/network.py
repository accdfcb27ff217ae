"""The simulated network: links between machines, and the connections that run over them.

Bytes of one connection keep their order; those of two connections have none between them. A network partition loses
nothing by itself: as with TCP, bytes are held back and arrive after it has healed, unless the connection breaks
before. The two ends of a connection, and the bytes between them, are in `transport`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from polonaise.errors import AddressInUse, BadOption, ConnectionLost
from polonaise.host import Listener, ProtocolFactory
from polonaise.host.address import UnixPath, parse_address
from polonaise_proving.record.trace import Event
from polonaise_proving.stages.simulated.environment import Environment
from polonaise_proving.stages.simulated.loop import Future
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.transport import (
    BlackHole,
    Connections,
    Link,
    Partition,
    Pipe,
    SimulatedTransport,
)

Machines: TypeAlias = str | Iterable[str]
"""The name of a machine, or the names of several."""
Endpoint: TypeAlias = tuple[str, int | str]
"""A machine's name, and a port of it or the path of a Unix socket on it."""

_EVERYWHERE: Final = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "::")
_FIRST_FREE_PORT: Final = 49_152


class SimulatedListener:
    """The listener at one endpoint: a process, and the factory of the protocol of each connection that it accepts."""

    def __init__(
        self, network: SimulatedNetwork, process: Process, endpoint: Endpoint, factory: ProtocolFactory
    ) -> None:
        self.endpoint = endpoint
        self.process = process
        self.factory = factory
        self._network = network

    @property
    def address(self) -> str:
        machine, port = self.endpoint
        return f"{machine}:{port}" if isinstance(port, int) else str(UnixPath(port))

    async def close(self) -> None:
        self.process.call()
        if self._network.listeners.get(self.endpoint) is self:
            del self._network.listeners[self.endpoint]


class NetworkPort:
    """A process's way to the network: the port `host.Network`."""

    def __init__(self, process: Process, network: SimulatedNetwork, machine: str) -> None:
        self.process = process
        self.network = network
        self.machine = machine
        process.at_end.append(lambda powerless: network.process_ended(process, powerless=powerless))

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        self.process.call()
        return self.network.listen(self, address, factory)

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        self.process.call()
        endpoint = _endpoint(self.machine, address)
        if endpoint[0] not in self.network.machines:
            raise ConnectionLost(f"no machine is called {endpoint[0]!r}")
        dial = _Dial(self, endpoint, address, factory)
        transport, protocol = await dial.future
        return transport, protocol


class _Dial:
    """One attempt to connect, from the first packet to the answer."""

    def __init__(self, port: NetworkPort, endpoint: Endpoint, address: str, factory: ProtocolFactory) -> None:
        self._network = network = port.network
        self._loop = network.loop
        self._process = port.process
        self._endpoint = endpoint
        self._address = address
        self._factory = factory
        self._there = network.link(port.machine, endpoint[0])
        self._back = network.link(endpoint[0], port.machine)
        self._tries = 0
        self.future: Future = self._loop.create_future()
        self._loop.at(self._loop.now + self._there.latency_s(), self._reach)

    def _reach(self) -> None:
        """Let the first packet arrive at the other machine, or get lost."""
        # The future is done early only if the caller was cancelled.
        if self.future.done() or self._process.dead:
            return
        # One way that is cut is enough: the answer would not come back, and a real connection stands only with it.
        for link in (self._there, self._back):
            if link.blocked is not None:
                link.blocked.hold_back()
                self._again()
                return
        # A machine without power refuses nothing. It is silent, which takes longer to notice.
        if self._endpoint[0] in self._network.connections.powerless:
            self._again()
            return
        listener = self._network.listeners.get(self._endpoint)
        answer_at = self._loop.now + self._back.latency_s()
        if listener is None:
            self._loop.at(answer_at, self._fail, f"nobody listens at {self._address}")
            return
        # The accepting end stands now, the connecting one when the answer is back: in between only one of the two
        # processes knows of the connection, and either may die.
        transport = self._network.pair(self._process, listener, self._there, self._back)
        self._loop.at(answer_at, self._answered, transport)

    def _again(self) -> None:
        self._tries += 1
        if self._tries >= self._network.configuration.connect_tries:
            self._fail(f"no answer from {self._address}")
            return
        # 1, 2, 4, … seconds, as a kernel waits; uneven, so that several who try do not try at the same moments.
        wait = 2.0 ** (self._tries - 1) * (0.8 + 0.4 * self._there.draw())
        self._loop.at(self._loop.now + wait, self._reach)

    def _fail(self, why: str) -> None:
        if not self.future.done() and not self._process.dead:
            self.future.set_exception(ConnectionLost(why))

    def _answered(self, transport: SimulatedTransport) -> None:
        if transport.gone:  # the process has died, and with it this end
            return
        if self._back.blocked is not None:  # cut while the answer was on its way: it is sent again
            self._back.blocked.hold_back()
            self._loop.at(self._loop.now + 1.0, self._answered, transport)
        elif self.future.done():  # given up by the caller: else nobody would ever close this end
            transport.kernel_close()
        else:
            self._loop.enter(self._process, self._establish, transport)

    def _establish(self, transport: SimulatedTransport) -> None:
        if self.future.done():  # again: a paused process may be here much later, after it has given up
            transport.kernel_close()
            return
        protocol = self._factory()
        transport.establish(protocol)
        self.future.set_result((transport, protocol))


class SimulatedNetwork:
    """All links and connections of a world, and the faults that scenarios inflict on them."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.loop = environment.loop
        self.configuration = environment.configuration.network
        self.machines: set[str] = set()
        """Names of all machines."""
        self.connections = Connections(environment)
        self.listeners: dict[Endpoint, SimulatedListener] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._subject = environment.trace.subject("network")
        self._ports: dict[str, int] = {}
        environment.tellers.append(self._in_force)

    def _in_force(self) -> Iterator[str]:
        for link in self._links.values():
            if link.blocked is not None:
                yield f"{link.name} is cut"
            if link.black_hole is not None:
                yield f"{link.name} lets nothing of more than {link.black_hole.bytes_max} bytes pass"
            if link.extra_s:
                yield f"{link.name} takes {link.extra_s:g} s longer"

    # -------------------------------------------------------------- for scenarios

    def partition(self, these: Machines, those: Machines, *, both: bool = True) -> None:
        """Cut the way from each of `these` to each of `those`, and if `both`, also the way back.

        Bytes and connects are held back. Some connections end meanwhile, because one of the two ends runs into a
        time-out, and some end when the partition heals.
        """
        # One cut for all its links, so that it counts as one fault. A later cut takes over the links that it shares.
        cut = Partition("partition_two_way" if both else "partition_one_way", self.environment.faults)
        self.environment.trace.add(Event.PARTITION, self._subject, int(both))
        for source, target in _pairs(these, those, both=both):
            self.link(source, target).blocked = cut
        # Half of the chance for each of the two pipes: the configured one is per connection.
        for forth, back in list(self.connections.standing.items()):
            for pipe in (forth, back):
                if pipe.link.blocked is cut and pipe.link.strikes(self.configuration.partition_reset_chance / 2):
                    self.loop.at(self.loop.now + 5.0 * pipe.link.draw(), self._time_out, pipe, cut)

    def heal(self, these: Machines | None = None, those: Machines | None = None) -> None:
        """Remove the cuts between `these` and `those`, in both directions; without arguments, all cuts and holes."""
        self.environment.trace.add(Event.HEAL, self._subject)
        if these is None or those is None:
            links = list(self._links.values())
            for link in links:
                link.black_hole = None
        else:
            links = [self.link(*pair) for pair in _pairs(these, those, both=True)]
        healed = [link for link in links if link.blocked is not None]
        # All links first: whether a pipe goes on depends on its way back, too.
        for link in healed:
            link.blocked = None
        for pipe in self.connections.revive():
            if pipe.link in healed and pipe.link.strikes(self.configuration.partition_reset_chance):
                self.connections.reset(pipe)

    def black_hole(self, source: str, target: str, bytes_max: int) -> BlackHole:
        """Hold back every chunk of more than `bytes_max` bytes on one way, and what its stream has behind it.

        A hole that is there already gives way to this one.
        """
        hole = self.link(source, target).black_hole = BlackHole(self.environment.faults, bytes_max)
        return hole

    def fill(self, hole: BlackHole) -> None:
        """Let chunks of every size pass again where this hole is, if it is still there."""
        for link in self._links.values():
            if link.black_hole is hole:
                link.black_hole = None
                self.connections.revive()

    def delay(self, these: Machines, those: Machines, seconds: float) -> None:
        """Let everything between `these` and `those` take `seconds` longer from now on; 0 ends it."""
        for pair in _pairs(these, those, both=True):
            self.link(*pair).extra_s = seconds

    def reset(self, these: Machines, those: Machines) -> int:
        """Break the connections between `these` and `those`, and return how many these are.

        Some of the bytes on their way may be lost.
        """
        pairs = dict.fromkeys(_pairs(these, those, both=True))
        broken = [forth for forth in self.connections.standing if (forth.link.source, forth.link.target) in pairs]
        for pipe in broken:
            self.connections.reset(pipe)
        return len(broken)

    def flip_byte(self, source: str, target: str) -> None:
        """Let the next chunk from `source` to `target` arrive with one bit wrong."""
        link = self.link(source, target)
        link.flips = True
        link.flips_due += 1

    # -------------------------------------------------------------- for the ports

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self.environment, self.configuration, source, target)
        return link

    def listen(self, port: NetworkPort, address: str, factory: ProtocolFactory) -> SimulatedListener:
        name, number = _endpoint(port.machine, address)
        if name != port.machine:
            raise BadOption(f"{address!r} is no address of this machine, which is {port.machine!r}")
        if number == 0:
            number = self._ports[name] = self._ports.get(name, _FIRST_FREE_PORT) + 1
        if (name, number) in self.listeners:
            raise AddressInUse(f"{address!r} is in use: stop the process that listens there or choose another port")
        listener = SimulatedListener(self, port.process, (name, number), factory)
        self.listeners[name, number] = listener
        return listener

    def pair(self, process: Process, listener: SimulatedListener, there: Link, back: Link) -> SimulatedTransport:
        """Connect a process with a listener. The accepting end is open at once; return the connecting end."""
        forth_pipe, back_pipe = Pipe(self.connections, there, back), Pipe(self.connections, back, there)
        number = self._ports[there.source] = self._ports.get(there.source, _FIRST_FREE_PORT) + 1
        near = (there.source, number)
        far = (listener.endpoint[0], listener.endpoint[1] if isinstance(listener.endpoint[1], int) else 0)
        self.connections.standing[forth_pipe] = back_pipe
        transport = SimulatedTransport(process, forth_pipe, back_pipe, near, far)
        accepted = SimulatedTransport(listener.process, back_pipe, forth_pipe, far, near)
        self.environment.trace.add(Event.CONNECT, process.subject, number)
        # A paused listener accepts when it goes on. Until then bytes arrive, as a kernel takes them, and are not read.
        self.loop.enter(listener.process, self._accept, accepted, listener)
        return transport

    def _accept(self, transport: SimulatedTransport, listener: SimulatedListener) -> None:
        self.environment.trace.add(Event.ACCEPT, listener.process.subject)
        transport.establish(listener.factory())

    # -------------------------------------------------------------- for the machinery

    def process_ended(self, process: Process, *, powerless: bool) -> None:
        for endpoint in [endpoint for endpoint, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[endpoint]
        self.connections.process_ended(process, powerless=powerless)

    def powered_on(self, machine: str) -> None:
        """Let the bytes that peers kept sending to this machine arrive and be refused, because it answers again.

        No connection outlives a loss of power, and the peers learn that only now.
        """
        self.connections.powerless.discard(machine)
        self.connections.revive()

    def powered_off(self, machine: str) -> None:
        self.connections.powerless.add(machine)

    def _time_out(self, pipe: Pipe, cut: Partition) -> None:
        # Only if this very cut still stands and has held something back, on whichever connection: a cut that nobody has
        # felt ends none.
        if pipe.link.blocked is cut and cut.felt and not pipe.source.gone:
            self.environment.faults.count("reset")
            pipe.source.time_out()


def _endpoint(machine: str, address: str) -> Endpoint:
    """Return the endpoint that an address means to a process of `machine`: `localhost` is that machine itself."""
    parsed = parse_address(address)
    if isinstance(parsed, UnixPath):
        return machine, parsed.path
    return (machine if parsed.host in _EVERYWHERE else parsed.host), parsed.port


def _pairs(these: Machines, those: Machines, *, both: bool) -> list[tuple[str, str]]:
    pairs = [(a, b) for a in _names(these) for b in _names(those) if a != b]
    return pairs + [(b, a) for a, b in pairs] if both else pairs


def _names(machines: Machines) -> list[str]:
    return [machines] if isinstance(machines, str) else list(machines)
