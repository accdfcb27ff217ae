"""A storage node in a simulated world, and an owner that sends the messages of the test's script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from polonaise.errors import PolonaiseError, error_of
from polonaise.host import Host
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.log import registers
from polonaise.log.batch import Batch, split
from polonaise.storage.node import StorageNode
from polonaise.storage.settings import StorageSettings
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_SERVER,
    WHOLE,
    Batches,
    Confirm,
    Copy,
    Digest,
    DigestIs,
    Done,
    GetRegisters,
    Identified,
    Identify,
    Join,
    LastSessionInfo,
    ReadBatches,
    Refused,
    RegistersAre,
    SessionInfo,
    Store,
    Stored,
    Truncate,
)
from polonaise_proving.stages.simulated import Configuration, World
from polonaise_proving.stages.simulated.process import Process
from polonaise_proving.stages.simulated.world import Machine
from rigs.log import KEY, PARTITION, crcs, life, segment_path
from rigs.scenarios import runs_tests

T = TypeVar("T")
M = TypeVar("M", bound=Message)
DIRECTORY = "storage"
DEADLINE_S = 20.0


class FixedAddresses:
    """The addresses of storage nodes whose names are their addresses."""

    def of(self, name: str) -> str:
        return name

    def why_not_reached(self, name: str, error: PolonaiseError) -> PolonaiseError:
        return error

    def look_again(self) -> None:
        pass


class Owner:
    """One connection of a server to the node, for one partition."""

    def __init__(self) -> None:
        self.link: Connection
        self.partition = PARTITION
        self.session = 0
        self.acknowledged = 0
        """The number of the last `Store` that is known to be synced."""
        self.refusals: list[tuple[int, PolonaiseError]] = []
        """The refused `Store`s: their numbers and errors."""
        self.told: list[PolonaiseError] = []
        """Why the copy has no part in the session any more, as the node told by itself."""
        self._heard = asyncio.Event()

    @classmethod
    async def connected(cls, host: Host, machine: str = "storage", key: bytes = KEY) -> Owner:
        owner = cls()
        owner.link = await connect(host, f"{machine}:1", lambda: owner._made(host, key), deadline_s=DEADLINE_S)
        return owner

    def _made(self, host: Host, key: bytes) -> Connection:
        return Connection(
            host,
            hello=hello(ROLE_SERVER, "a scripted server", cluster_key=key),
            peer_roles=(3,),
            on_message=self._on_message,
            on_closed=lambda *_: self._heard.set(),
        )

    def _on_message(self, _: Connection, message: Message, request: int, partition: int) -> None:
        assert partition == self.partition
        if isinstance(message, Stored):
            assert request >= self.acknowledged, "acknowledgements are cumulative"
            assert message.session == self.session
            self.acknowledged = request
        else:
            assert isinstance(message, Refused)
            error = error_of(message.code, message.text)
            if request:
                self.refusals.append((request, error))
            else:
                self.told.append(error)
        self._heard.set()

    async def ask(self, message: Message, kind: type[M]) -> M:
        answer = await self.link.request(message, partition=self.partition, deadline_s=DEADLINE_S)
        assert isinstance(answer, kind)
        return answer

    # ------------------------------------------------------------------ what an owner says

    async def fence(self, session: int) -> SessionInfo:
        info = await self.ask(LastSessionInfo(session), SessionInfo)
        self.session = session
        return info

    async def identify(self, name: str) -> str:
        answer = await self.link.request(Identify(name), deadline_s=DEADLINE_S)
        assert isinstance(answer, Identified)
        return answer.name

    async def truncate(self, last: int) -> Done:
        return await self.ask(Truncate(self.session, last), Done)

    async def copy(self, batches: Sequence[Batch]) -> Done:
        return await self.ask(Copy(self.session, payload=[b"".join(batch.view for batch in batches)]), Done)

    async def join(self, last: int, last_crc: int) -> Done:
        return await self.ask(Join(self.session, last, last_crc), Done)

    async def confirm(self, mark: int) -> Done:
        return await self.ask(Confirm(self.session, mark), Done)

    async def open(self, session: int) -> SessionInfo:
        """Fence and join with whatever the copy holds, which must be whole."""
        info = await self.fence(session)
        await self.join(info.max_synced, info.last_crc)
        return info

    def send(self, number: int, *batches: Batch, session: int | None = None) -> None:
        message = Store(self.session if session is None else session, -1, payload=[batch.view for batch in batches])
        self.link.send(message, request=number, partition=self.partition)

    async def settled(self, number: int) -> None:
        """Wait until the `Store` of this number, or a later one, is acknowledged. Raises the error of a refused one."""
        async with asyncio.timeout(DEADLINE_S):
            while self.acknowledged < number:
                if self.refusals:
                    raise self.refusals[0][1]
                if self.link.closed:
                    raise self.link.closed
                self._heard.clear()
                await self._heard.wait()

    async def store(self, number: int, *batches: Batch) -> None:
        self.send(number, *batches)
        await self.settled(number)

    async def store_each(self, batches: Sequence[Batch]) -> None:
        """Store these batches one after the other, with the numbers from 1 on."""
        for number, batch in enumerate(batches, 1):
            await self.store(number, batch)

    async def read(
        self,
        first: int,
        last: int,
        *,
        bytes_max: int = 1 << 20,
        with_data: bool = True,
        after_time_us: int = 0,
        part_last: int = WHOLE,
    ) -> list[Batch]:
        message = ReadBatches(self.session, first, last, bytes_max, with_data, after_time_us, part_last)
        answer = await self.ask(message, Batches)
        return split(answer.payload[0]) if answer.payload else []

    async def read_all(self) -> list[Batch]:
        found: list[Batch] = []
        while more := await self.read(found[-1].last + 1 if found else 0, 2**62):
            found += more
        return found

    async def bring_up(self, batches: Sequence[Batch], held: int = 0) -> None:
        """Copy to a replica what it lacks of these but the first `held`, have it join, and check what it holds."""
        await self.copy(batches[held:])
        await self.join(batches[-1].last, batches[-1].crc)
        assert crcs(await self.read_all()) == crcs(list(batches))

    async def registers(self) -> dict[bytes, bytes]:
        told = await self.ask(GetRegisters(self.session), RegistersAre)
        values: dict[bytes, bytes] = {}
        registers.apply(values, told.snapshot)
        return values

    async def digest(self, last: int) -> tuple[int, bytes]:
        told = await self.ask(Digest(self.session, 0, last), DigestIs)
        return told.last_crc, told.digest


class Node:
    """A storage node's machine, and its present process."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.disk = machine.disk
        self.process: Process
        self.node: StorageNode

    def start(
        self, *, may_fail: tuple[type[BaseException], ...] = (), crash_on_call: int = 0, **settings: Any
    ) -> Process:
        async def main(host: Host) -> None:
            given = {"directory": DIRECTORY, "listen": f"{self.machine.name}:1", **settings}
            self.node = StorageNode(host, StorageSettings(**given))
            await self.node.start()
            await asyncio.get_running_loop().create_future()

        self.process = self.machine.start(main, may_fail=may_fail)
        if crash_on_call:
            self.process.crash_on_call = crash_on_call
        return self.process

    async def restart(self, *, power_loss: bool = False, **settings: Any) -> None:
        if power_loss:
            self.machine.power_loss()
        else:
            self.process.crash()
        self.start(**settings)

    def fail_at(self, kind: str, number: int) -> None:
        """Let the disk fail its `number`-th "read", "write" or "sync" from now on, once, until `mend`."""
        fails, seen = self.disk.fails, 0

        def counting(what: str) -> bool:
            nonlocal seen
            seen += what == kind
            if what == kind and seen == number:
                self.disk._failures[kind] = 1
            return fails(what)

        self.disk.fails = counting  # type: ignore[method-assign]

    def mend(self) -> None:
        """End the faults of the disk."""
        self.disk.__dict__.pop("fails", None)
        self.disk.mend()

    def segment(self, first: int = 0) -> str:
        return segment_path(first)

    def segments(self) -> list[str]:
        return [path for path in self.disk.paths() if path.endswith(".seq")]


def simulate(
    script: Callable[[Host, Node], Coroutine[Any, Any, T]], *, seed: int = 1, started: bool = True, **settings: Any
) -> T:
    """Run a script as a server's process beside a storage node."""
    world = World(seed, Configuration())
    node = Node(world.machine("storage"))

    async def scenario() -> T:
        if started:
            node.start(**settings)
        return await serve(world, lambda host: script(host, node))

    return world.run(scenario())


simulated = runs_tests(simulate)
"""Decorator of tests that run as a server's process beside a storage node."""


async def serve(world: World, main: Callable[[Host], Awaitable[T]]) -> T:
    """Run one life of a server's process."""
    return await life(world.machine("server"), main)


async def connected(host: Host, machine: str = "storage", key: bytes = KEY) -> Owner:
    """Connect an owner as soon as the node listens."""
    for _ in range(200):
        with contextlib.suppress(PolonaiseError):
            return await Owner.connected(host, machine, key)
        await asyncio.sleep(0.01)
    return await Owner.connected(host, machine, key)


async def fenced(host: Host, session: int) -> tuple[Owner, SessionInfo]:
    """Return an owner who has fenced the sessions before, and what the node told it."""
    owner = await connected(host)
    return owner, await owner.fence(session)


async def opened(host: Host, session: int = 1) -> Owner:
    """Return an owner whose session has begun."""
    owner = await connected(host)
    await owner.open(session)
    return owner


async def filled(host: Host, batches: Sequence[Batch], *, at_once: int = 1) -> Owner:
    """Return an owner in session 1 whose batches are acknowledged; each sync covers `at_once` of them."""
    owner = await opened(host)
    for number in range(0, len(batches), at_once):
        await owner.store(number + 1, *batches[number : number + at_once])
    return owner
