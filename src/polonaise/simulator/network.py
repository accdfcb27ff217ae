"""The simulated network: links between machines, and the connections that run over them.

A link leads from one machine to another, in one direction; everything random about it comes from its own generator.
Bytes of one connection keep their order; those of two connections have none between them. A network partition loses
nothing by itself: as with TCP, bytes are held back and arrive after it has healed, unless one end gives the connection
up before. What arrives, arrives by way of `transport`.
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
"""A machine's name, and a port of it or the path of a Unix socket on it."""

_EVERYWHERE: Final = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "::")
_FIRST_FREE_PORT: Final = 49_152


class Partition:
    """One cut through the network, counted as a fault once it holds something back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.felt = False
        """Whether it has held something back: a cut through which nothing wanted to go has shown nothing."""


class Link:
    """The way from one machine to another, in one direction."""

    def __init__(self, network: SimulatedNetwork, source: str, target: str) -> None:
        self.name = f"{source}->{target}"
        self.source, self.target = source, target
        self.blocked: Partition | None = None
        """The cut that lets nothing through; None while the link carries."""
        self.extra_s = 0.0
        """Seconds that everything takes longer, by `SimulatedNetwork.delay`."""
        self.flips = network.configuration.flip_chance > 0.0
        """Whether a bit may ever have to be flipped: spares most links a test for each chunk."""
        self.flips_due = 0
        """Chunks that are still to arrive with one bit wrong, by `SimulatedNetwork.flip_bytes`."""
        self._network = network
        self._faults = network.world.faults
        self._random: random.Random = network.world.random(f"link/{self.name}")
        self.draw = self._random.random
        local = source == target
        configuration = network.configuration
        self._base_s = configuration.loopback_s if local else configuration.latency_s
        self._jitter_s = configuration.loopback_s if local else configuration.jitter_s

    def latency_s(self) -> float:
        """Draw the seconds that the next chunk or packet is on its way."""
        delay = self._base_s + self._jitter_s * self.draw() + self.extra_s
        if self.extra_s:
            self._faults.count("delay")
        configuration = self._network.configuration
        if self.strikes(configuration.delay_chance):
            self._faults.count("delay")
            delay += configuration.delay_s * self.draw()
        return delay

    def retransmit_s(self) -> float:
        """Draw the seconds after which held-back bytes arrive once the link carries again.

        TCP sends again after growing pauses, so the next try comes a while after the healing.
        """
        return self.latency_s() + 0.2 * self.draw()

    def strikes(self, chance: float) -> bool:
        """Whether something that has this chance happens now. A chance of 0 draws nothing from the generator."""
        return chance > 0.0 and self.draw() < chance

    def flip(self, data: bytes) -> bytes:
        """Return the data, with one bit wrong if that is due or drawn."""
        if self.flips_due:
            self.flips_due -= 1
        elif not self.strikes(self._network.configuration.flip_chance):
            return data
        damaged = bytearray(data)
        damaged[int(self.draw() * len(damaged))] ^= 1 << int(self.draw() * 8)
        self._faults.count("byte_flip")
        return bytes(damaged)


class SimulatedListener:
    """The listener at one endpoint: a process, and what makes the protocol of each connection that it accepts."""

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
        """Let the first packet arrive at the other machine, or get lost."""
        # The future is done early only if the caller was cancelled.
        if self.future.done() or self._process.dead:
            return
        machine = self._network.world.machines[self._endpoint[0]]
        # One way that is cut is enough: the answer would not come back, and a real connection stands only with it.
        for link in (self._there, self._back):
            if link.blocked is not None:
                self._network.felt(link.blocked)
                self._again()
                return
        # A machine without power refuses nothing. It is silent, which takes longer to notice.
        if not machine.powered:
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
            self._network.felt(self._back.blocked)
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

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop
        self.configuration = world.configuration.network
        self.listeners: dict[Endpoint, SimulatedListener] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._connections: dict[Pipe, Pipe] = {}
        """Every living connection: the pipe from the connecting end, and the pipe to it."""
        self._stalled: dict[Pipe, None] = {}
        """Pipes that hold something back until a link carries again. In order, which a set has not."""
        self._random = world.random("network")
        self._subject = world.trace.subject("network")
        self._ports: dict[str, int] = {}

    # -------------------------------------------------------------- for scenarios

    def partition(self, these: Machines, those: Machines, *, both: bool = True) -> None:
        """Cut the way from each of `these` to each of `those`, and if `both`, also the way back.

        Bytes and connects are held back. Some connections end meanwhile, because one of the two ends runs into a
        time-out, and some end when the partition heals.
        """
        # One cut for all its links, so that it counts as one fault. A later cut takes over the links that it shares.
        cut = Partition("partition_two_way" if both else "partition_one_way")
        self.world.trace.add(trace.PARTITION, self._subject, int(both))
        for source, target in self._pairs(these, those, both=both):
            self.link(source, target).blocked = cut
        # Half of the chance for each of the two pipes: the configured one is per connection.
        for forth, back in list(self._connections.items()):
            for pipe in (forth, back):
                if pipe.link.blocked is cut and pipe.link.strikes(self.configuration.partition_reset_chance / 2):
                    self.loop.at(self.loop.now + 5.0 * pipe.link.draw(), self._time_out, pipe, cut)

    def heal(self, these: Machines | None = None, those: Machines | None = None) -> None:
        """Remove the cuts between `these` and `those`, in both directions; without arguments, all cuts."""
        self.world.trace.add(trace.HEAL, self._subject)
        if these is None or those is None:
            links = list(self._links.values())
        else:
            links = [self.link(*pair) for pair in self._pairs(these, those, both=True)]
        healed = [link for link in links if link.blocked is not None]
        # All links first: whether a pipe goes on depends on its way back, too.
        for link in healed:
            link.blocked = None
        for pipe in self._revive():
            if pipe.link in healed and pipe.link.strikes(self.configuration.partition_reset_chance):
                self.reset_connection(pipe)

    def delay(self, these: Machines, those: Machines, seconds: float) -> None:
        """Let everything between `these` and `those` take `seconds` longer from now on; 0 ends it."""
        for pair in self._pairs(these, those, both=True):
            self.link(*pair).extra_s = seconds

    def reset(self, these: Machines, those: Machines) -> int:
        """Break the connections between `these` and `those`, and return how many those were.

        Part of what is on its way is lost.
        """
        pairs = dict.fromkeys(self._pairs(these, those, both=True))
        broken = [forth for forth in self._connections if (forth.link.source, forth.link.target) in pairs]
        for pipe in broken:
            self.reset_connection(pipe)
        return len(broken)

    def flip_bytes(self, source: str | Machine, target: str | Machine, count: int = 1) -> None:
        """Let each of the next `count` chunks from `source` to `target` arrive with one bit wrong."""
        link = self.link(_name(source), _name(target))
        link.flips = True
        link.flips_due += count

    def calm(self) -> None:
        """End all faults of the network: from now on nothing in it fails, neither on request nor by itself."""
        self.heal()
        for link in self._links.values():
            link.extra_s = 0.0
            link.flips_due = 0
        self.configuration = replace(self.configuration, delay_chance=0.0, reset_chance=0.0, flip_chance=0.0)

    @property
    def connections(self) -> int:
        """The number of connections that stand, half-open ones included."""
        return len(self._connections)

    # -------------------------------------------------------------- for the ports

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self, source, target)
        return link

    def endpoint(self, machine: Machine, address: str) -> Endpoint:
        """Return the endpoint that an address means to a process of `machine`: `localhost` is that machine itself."""
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
        """Connect a process with a listener. The accepting end stands at once; return the connecting end."""
        forth_pipe, back_pipe = Pipe(self, there, back), Pipe(self, back, there)
        number = self._ports[there.source] = self._ports.get(there.source, _FIRST_FREE_PORT) + 1
        near = (there.source, number)
        far = (listener.endpoint[0], listener.endpoint[1] if isinstance(listener.endpoint[1], int) else 0)
        self._connections[forth_pipe] = back_pipe
        transport = SimulatedTransport(process, forth_pipe, back_pipe, near, far)
        accepted = SimulatedTransport(listener.process, back_pipe, forth_pipe, far, near)
        self.world.trace.add(trace.CONNECT, process.subject, number)
        # A paused listener accepts when it goes on. Until then bytes arrive, as a kernel takes them, and are not read.
        self.loop.enter(listener.process, self._accept, accepted, listener)
        return transport

    def _accept(self, transport: SimulatedTransport, listener: SimulatedListener) -> None:
        self.world.trace.add(trace.ACCEPT, listener.process.subject)
        transport.establish(listener.factory())

    # -------------------------------------------------------------- for the machinery

    def process_ended(self, process: Process, *, powerless: bool) -> None:
        for endpoint in [endpoint for endpoint, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[endpoint]
        # A kernel closes what its dead process had open, so peers hear of it. Without power there is no kernel.
        for transport in list(process.transports):
            if powerless:
                transport.vanish()
            else:
                transport.kernel_close(killed=True)

    def powered_on(self, machine: Machine) -> None:
        """Let what peers kept sending to this machine arrive, now that it answers again: it is refused.

        No connection outlives a loss of power, and the peers learn that only now.
        """
        self._revive()

    def stall(self, pipe: Pipe, link: Link) -> None:
        """Note that the pipe holds something back until the link carries again."""
        self._stalled[pipe] = None
        if link.blocked is not None:
            self.felt(link.blocked)

    def felt(self, cut: Partition) -> None:
        if not cut.felt:
            cut.felt = True
            self.world.faults.count(cut.name)

    def reset_connection(self, pipe: Pipe) -> None:
        """Break a connection: some of what is on its way never arrives, and then both ends get an error."""
        ends = (pipe.source, pipe.target)
        if all(end.gone for end in ends):
            return
        self.world.faults.count("reset")
        for direction in (ends[0].outgoing, ends[1].outgoing):
            direction.lose_some()
            direction.end(ConnectionResetError("connection reset by the network"))

    def end_gone(self, transport: SimulatedTransport) -> None:
        """Forget the connection of this end if the other end is gone, too."""
        if transport.outgoing.target.gone:
            self._connections.pop(transport.outgoing, None)
            self._connections.pop(transport.incoming, None)

    def _time_out(self, pipe: Pipe, cut: Partition) -> None:
        # Only if this very cut still stands and has held something back: an idle connection sees no time-out.
        if pipe.link.blocked is cut and cut.felt and not pipe.source.gone:
            self.world.faults.count("reset")
            pipe.source.time_out()

    def _revive(self) -> list[Pipe]:
        """Ask every stalled pipe to go on, and return them all. Those that can't stall again."""
        stalled, self._stalled = list(self._stalled), {}  # a new one first: pipes enter themselves while this runs
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
