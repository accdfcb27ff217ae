"""The simulated network: links between machines, and the connections that run over them.

A link is directed and belongs to two machines; everything random about it comes from its own generator. Within a
connection bytes keep their order, between connections there is none. A partition loses nothing by itself: bytes are
held back and arrive after it has healed, unless the connection is given up on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from polonaise.errors import AddressInUse, BadOption, ConnectionLost
from polonaise.host import Listener, ProtocolFactory
from polonaise.host.address import UnixPath, parse_address
from polonaise.simulator import trace
from polonaise.simulator.loop import Future
from polonaise.simulator.transport import Pipe, SimulatedTransport

if TYPE_CHECKING:
    from polonaise.simulator.process import Process
    from polonaise.simulator.world import Machine, World

Machines: TypeAlias = "str | Machine | Iterable[str | Machine]"
Endpoint: TypeAlias = tuple[str, int | str]
"""A machine and a port of it, or a path."""

_EVERYWHERE: Final = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "::")
_FIRST_FREE_PORT: Final = 49_152


class Partition:
    """One cut through the network, to be counted when it first holds something back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.felt = False


class Link:
    """The way from one machine to another."""

    def __init__(self, network: SimulatedNetwork, source: str, target: str) -> None:
        self.name = f"{source}->{target}"
        self.source, self.target = source, target
        self.blocked: Partition | None = None
        self.extra_s = 0.0
        self.flips = network.configuration.flip_chance > 0.0
        """Whether bytes may have to be flipped."""
        self.flips_due = 0
        self._network = network
        self._faults = network.world.faults
        self._random: random.Random = network.world.random(f"link/{self.name}")
        self.draw = self._random.random
        local = source == target
        configuration = network.configuration
        self._base_s = configuration.loopback_s if local else configuration.latency_s
        self._jitter_s = configuration.loopback_s if local else configuration.jitter_s

    def latency_s(self) -> float:
        """How long the next thing takes."""
        delay = self._base_s + self._jitter_s * self.draw() + self.extra_s
        if self.extra_s:
            self._faults.count("delay")
        configuration = self._network.configuration
        if self.strikes(configuration.delay_chance):
            self._faults.count("delay")
            delay += configuration.delay_s * self.draw()
        return delay

    def retransmit_s(self) -> float:
        """How long after healing the sender's next try comes."""
        return self.latency_s() + 0.2 * self.draw()

    def strikes(self, chance: float) -> bool:
        """Whether a thing of this chance happens; without a chance nothing is drawn."""
        return chance > 0.0 and self.draw() < chance

    def flip(self, data: bytes) -> bytes:
        """The data with one bit wrong, if one is due."""
        if self.flips_due:
            self.flips_due -= 1
        elif not self.strikes(self._network.configuration.flip_chance):
            return data
        damaged = bytearray(data)
        damaged[int(self.draw() * len(damaged))] ^= 1 << int(self.draw() * 8)
        self._faults.count("byte_flip")
        return bytes(damaged)


class SimulatedListener:
    """What accepts connections at an endpoint."""

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
    """The network as one process reaches it."""

    def __init__(self, process: Process, network: SimulatedNetwork) -> None:
        self._process = process
        self._network = network

    async def listen(self, address: str, factory: ProtocolFactory) -> Listener:
        self._process.call()
        return self._network.listen(self._process, address, factory)

    async def connect(self, address: str, factory: ProtocolFactory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        self._process.call()
        network = self._network
        endpoint = network.endpoint(self._process.machine, address)
        if endpoint[0] not in network.world.machines:
            raise ConnectionLost(f"no machine is called {endpoint[0]!r}")
        dial = _Dial(network, self._process, endpoint, address, factory)
        transport, protocol = await dial.future
        return transport, protocol


class _Dial:
    """One attempt to connect, from the first packet to the answer."""

    def __init__(
        self, network: SimulatedNetwork, process: Process, endpoint: Endpoint, address: str, factory: ProtocolFactory
    ) -> None:
        self._network = network
        self._loop = network.loop
        self._process = process
        self._endpoint = endpoint
        self._address = address
        self._factory = factory
        self._there = network.link(process.machine.name, endpoint[0])
        self._back = network.link(endpoint[0], process.machine.name)
        self._tries = 0
        self.future: Future = self._loop.create_future()
        self._loop.at(self._loop.now + self._there.latency_s(), self._reach)

    def _reach(self) -> None:
        """The first packet gets there, or not."""
        if self.future.done() or self._process.dead:
            return
        machine = self._network.world.machines[self._endpoint[0]]
        for link in (self._there, self._back):
            if link.blocked is not None:
                self._network.felt(link.blocked)
                self._again()
                return
        if not machine.powered:
            self._again()
            return
        listener = self._network.listeners.get(self._endpoint)
        answer_at = self._loop.now + self._back.latency_s()
        if listener is None:
            self._loop.at(answer_at, self._fail, f"nobody listens at {self._address}")
            return
        transport = self._network.pair(self._process, listener, self._there, self._back)
        self._loop.at(answer_at, self._answered, transport)

    def _again(self) -> None:
        self._tries += 1
        if self._tries >= self._network.configuration.connect_tries:
            self._fail(f"no answer from {self._address}")
            return
        wait = 2.0 ** (self._tries - 1) * (0.8 + 0.4 * self._there.draw())
        self._loop.at(self._loop.now + wait, self._reach)

    def _fail(self, why: str) -> None:
        if not self.future.done() and not self._process.dead:
            self.future.set_exception(ConnectionLost(why))

    def _answered(self, transport: SimulatedTransport) -> None:
        if transport.gone:
            return
        if self._back.blocked is not None:
            self._network.felt(self._back.blocked)
            self._loop.at(self._loop.now + 1.0, self._answered, transport)
        elif self.future.done():
            transport.kernel_close()
        else:
            self._loop.enter(self._process, self._establish, transport)

    def _establish(self, transport: SimulatedTransport) -> None:
        if self.future.done():
            transport.kernel_close()
            return
        protocol = self._factory()
        transport.establish(protocol)
        self.future.set_result((transport, protocol))


class SimulatedNetwork:
    """All links and connections of a world, and what can be done to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop
        self.configuration = world.configuration.network
        self.listeners: dict[Endpoint, SimulatedListener] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._connections: dict[Pipe, Pipe] = {}
        """Each living connection by one of its pipes, with the other."""
        self._stalled: dict[Pipe, None] = {}
        self._random = world.random("network")
        self._subject = world.trace.subject("network")
        self._ports: dict[str, int] = {}

    # -------------------------------------------------------------- for scenarios

    def partition(self, these: Machines, those: Machines, *, both: bool = True) -> None:
        """Cut the way from each of `these` to each of `those`, and with `both` the way back.

        Bytes and connects are held back. Some connections end meanwhile, as one of the two ends runs into a time-out,
        and some when the partition heals.
        """
        cut = Partition("partition_two_way" if both else "partition_one_way")
        self.world.trace.add(trace.PARTITION, self._subject, int(both))
        for source, target in self._pairs(these, those, both=both):
            self.link(source, target).blocked = cut
        for forth, back in list(self._connections.items()):
            for pipe in (forth, back):
                if pipe.link.blocked is cut and pipe.link.strikes(self.configuration.partition_reset_chance / 2):
                    self.loop.at(self.loop.now + 5.0 * pipe.link.draw(), self._time_out, pipe, cut)

    def heal(self, these: Machines | None = None, those: Machines | None = None) -> None:
        """Take away the cuts between these and those, in both directions; without arguments all of them."""
        self.world.trace.add(trace.HEAL, self._subject)
        if these is None or those is None:
            links = list(self._links.values())
        else:
            links = [self.link(*pair) for pair in self._pairs(these, those, both=True)]
        healed = [link for link in links if link.blocked is not None]
        for link in healed:
            link.blocked = None
        for pipe in self._revive():
            if pipe.link in healed and pipe.link.strikes(self.configuration.partition_reset_chance):
                self.reset_connection(pipe)

    def delay(self, these: Machines, those: Machines, seconds: float) -> None:
        """From now on everything between these and those takes so much longer; 0 ends it."""
        for pair in self._pairs(these, those, both=True):
            self.link(*pair).extra_s = seconds

    def reset(self, these: Machines, those: Machines) -> int:
        """Break the connections between these and those; what is on its way is partly lost. Returns how many."""
        pairs = dict.fromkeys(self._pairs(these, those, both=True))
        broken = [forth for forth in self._connections if (forth.link.source, forth.link.target) in pairs]
        for pipe in broken:
            self.reset_connection(pipe)
        return len(broken)

    def flip_bytes(self, source: str | Machine, target: str | Machine, count: int = 1) -> None:
        """Each of the next `count` chunks on this way arrives with one bit wrong."""
        link = self.link(_name(source), _name(target))
        link.flips = True
        link.flips_due += count

    def calm(self) -> None:
        """From now on the network works, and nothing in it fails by itself."""
        self.heal()
        for link in self._links.values():
            link.extra_s = 0.0
            link.flips_due = 0
        self.configuration = replace(self.configuration, delay_chance=0.0, reset_chance=0.0, flip_chance=0.0)

    @property
    def connections(self) -> int:
        """How many connections stand, half-open ones included."""
        return len(self._connections)

    # -------------------------------------------------------------- for the ports

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self, source, target)
        return link

    def endpoint(self, machine: Machine, address: str) -> Endpoint:
        """What an address means on a machine."""
        parsed = parse_address(address)
        if isinstance(parsed, UnixPath):
            return machine.name, parsed.path
        return (machine.name if parsed.host in _EVERYWHERE else parsed.host), parsed.port

    def listen(self, process: Process, address: str, factory: ProtocolFactory) -> SimulatedListener:
        name, port = self.endpoint(process.machine, address)
        if name != process.machine.name:
            raise BadOption(f"{address!r} is no address of this machine, which is {process.machine.name!r}")
        if port == 0:
            port = self._ports[name] = self._ports.get(name, _FIRST_FREE_PORT) + 1
        if (name, port) in self.listeners:
            raise AddressInUse(f"{address!r} is in use: stop the process that listens there or choose another port")
        listener = SimulatedListener(self, process, (name, port), factory)
        self.listeners[name, port] = listener
        return listener

    def pair(self, process: Process, listener: SimulatedListener, there: Link, back: Link) -> SimulatedTransport:
        """Connect a process with a listener: the accepting end stands at once, the other is returned."""
        forth_pipe, back_pipe = Pipe(self, there, back), Pipe(self, back, there)
        number = self._ports[there.source] = self._ports.get(there.source, _FIRST_FREE_PORT) + 1
        near = (there.source, number)
        far = (listener.endpoint[0], listener.endpoint[1] if isinstance(listener.endpoint[1], int) else 0)
        self._connections[forth_pipe] = back_pipe
        transport = SimulatedTransport(process, forth_pipe, back_pipe, near, far)
        accepted = SimulatedTransport(listener.process, back_pipe, forth_pipe, far, near)
        self.world.trace.add(trace.CONNECT, process.subject, number)
        self.loop.enter(listener.process, self._accept, accepted, listener)
        return transport

    def _accept(self, transport: SimulatedTransport, listener: SimulatedListener) -> None:
        self.world.trace.add(trace.ACCEPT, listener.process.subject)
        transport.establish(listener.factory())

    # -------------------------------------------------------------- for the machinery

    def process_ended(self, process: Process, *, powerless: bool) -> None:
        for endpoint in [endpoint for endpoint, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[endpoint]
        for transport in list(process.transports):
            if powerless:
                transport.vanish()
            else:
                transport.kernel_close(killed=True)

    def powered_on(self, machine: Machine) -> None:
        """The machine answers again: what peers kept trying to send it arrives, and is refused."""
        self._revive()

    def stall(self, pipe: Pipe, link: Link) -> None:
        """The pipe waits for the link to carry again."""
        self._stalled[pipe] = None
        if link.blocked is not None:
            self.felt(link.blocked)

    def felt(self, cut: Partition) -> None:
        if not cut.felt:
            cut.felt = True
            self.world.faults.count(cut.name)

    def reset_connection(self, pipe: Pipe) -> None:
        """Both ends hear that the connection is broken, some of what was on its way never arrives."""
        ends = (pipe.source, pipe.target)
        if all(end.gone for end in ends):
            return
        self.world.faults.count("reset")
        for direction in (ends[0].outgoing, ends[1].outgoing):
            direction.lose_some()
            direction.end(ConnectionResetError("connection reset by the network"))

    def end_gone(self, transport: SimulatedTransport) -> None:
        """Forget the connection once neither end exists."""
        if transport.outgoing.target.gone:
            self._connections.pop(transport.outgoing, None)
            self._connections.pop(transport.incoming, None)

    def _time_out(self, pipe: Pipe, cut: Partition) -> None:
        if pipe.link.blocked is cut and cut.felt and not pipe.source.gone:
            self.world.faults.count("reset")
            pipe.source.time_out()

    def _revive(self) -> list[Pipe]:
        stalled, self._stalled = list(self._stalled), {}
        for pipe in stalled:
            pipe.revive()
        return stalled

    def _pairs(self, these: Machines, those: Machines, *, both: bool) -> list[tuple[str, str]]:
        pairs = [(a, b) for a in _names(these) for b in _names(those) if a != b]
        return pairs + [(b, a) for a, b in pairs] if both else pairs


def _name(machine: str | Machine) -> str:
    return machine if isinstance(machine, str) else machine.name


def _names(machines: Machines) -> list[str]:
    if isinstance(machines, str) or not isinstance(machines, Iterable):
        return [_name(machines)]
    return [_name(machine) for machine in machines]
