"""The coordinator of a simulated cluster: one service in memory, a client object per process, and trouble between.

The service itself never forgets and never lies, as an ensemble does not; what goes wrong is the way to it. A request
is on its own way once it is sent: it may arrive after its caller has given up or died, and its answer may be lost
although the change was made. Requests of one client arrive in order, so that "read again" sees what went before.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from polonaise.coordination.lease import Leases
from polonaise.coordination.values import (
    Assignment,
    ClusterDescription,
    PartitionValue,
    Registration,
    Versioned,
)
from polonaise.errors import (
    AlreadyInitialized,
    Closed,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    DirectoryInUse,
    NotInitialized,
    PolonaiseError,
    UnknownPartition,
)
from polonaise.host import Host
from polonaise.simulator.loop import LIFE
from polonaise.terms import PartitionId, ServerId

UNAVAILABLE: Final = "coordinator_unavailable"
UNREACHABLE: Final = "coordinator_unreachable"
LOST_RESULT: Final = "coordinator_lost_result"
ORPHANED: Final = "coordinator_orphaned"
FAULTS: Final = (UNAVAILABLE, UNREACHABLE, LOST_RESULT, ORPHANED)

_DESCRIPTION: Final = "description"
_ASSIGNMENT: Final = "assignment"
_UNIQUE_ID: Final = "unique-id"
_APART_S: Final = 1e-6
"""Between two requests of a client that would arrive at once."""

T = TypeVar("T")
Question: TypeAlias = Callable[[], bool]
Snapshot: TypeAlias = dict[str, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class CoordinatorConfiguration:
    """How slow and how troubled the way to the coordinator is. With the defaults nothing fails by itself."""

    latency_s: float = 0.0005
    """The least that a request or an answer needs."""
    jitter_s: float = 0.002
    """Added evenly from 0 up to this."""
    unavailable_chance: float = 0.0
    """Per request: refused, and not made."""
    lost_result_chance: float = 0.0
    """Per request: made, and the caller is told that the coordinator is unavailable."""
    timeout_s: float = 0.5
    """How long a client waits for an answer that does not come."""


class SimulatedCoordinator:
    """What all clients share. Made once per schedule; it outlives every process."""

    def __init__(
        self, source: random.Random, configuration: CoordinatorConfiguration | None = None, *, leases: bool = False
    ) -> None:
        """`leases`: who has not renewed its membership in time is none that lives, for whoever looks."""
        self.leases = leases
        self.configuration = configuration or CoordinatorConfiguration()
        self.census = dict.fromkeys(FAULTS, 0)
        """What was really done to callers:

        a request refused; one stopped by a partition; a change made whose caller was told otherwise; a request that
        arrived after its caller was gone.
        """
        self._random = source
        self._values: Snapshot = {}
        self._members: dict[ServerId, tuple[Registration, SimulatedCoordinatorClient]] = {}
        self._watching: list[asyncio.Future[None]] = []
        self._beats: dict[ServerId, int] = {}

    def client(
        self, host: Host, *, is_alive: Question | None = None, is_reachable: Question | None = None
    ) -> SimulatedCoordinatorClient:
        """The coordinator as one process sees it.

        `is_alive`: whether the process is; by default that of the process whose code calls this. `is_reachable`:
        whether messages between the process and the coordinator pass at this moment; by default always.
        """
        return SimulatedCoordinatorClient(self, host, is_alive or _life_of_caller(), is_reachable or _always)

    # -------------------------------------------------------------- for scenarios

    def snapshot(self) -> Snapshot:
        """Everything that is kept, as a backup would have it."""
        return dict(self._values)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a backup back, behind everybody's back; an empty one wipes the coordinator."""
        self._values = dict(snapshot)

    def damage(self, name: str) -> None:
        """Make the value of this name (`description`, `assignment`, `partition-0`, …) unreadable."""
        version, raw = self._values[name]
        self._values[name] = version, raw[:-1]

    # -------------------------------------------------------------- for clients

    def delay_s(self) -> float:
        return self.configuration.latency_s + self._random.random() * self.configuration.jitter_s

    def strikes(self, chance: float) -> bool:
        return chance > 0.0 and self._random.random() < chance

    def read(self, name: str) -> tuple[int, bytes]:
        try:
            return self._values[name]
        except KeyError:
            if _DESCRIPTION not in self._values:
                raise NotInitialized("no cluster at the simulated coordinator: initialize one") from None
            raise CoordinatorDamaged(f"{name} is missing at the simulated coordinator: restore it") from None

    def initialize(self, description: ClusterDescription) -> bool:
        if self._values:
            raise AlreadyInitialized("the simulated coordinator holds a cluster")
        initial = PartitionValue.initial(description.storage).encode()
        self._values = {f"partition-{partition}": (0, initial) for partition in range(description.partitions)}
        self._values[_ASSIGNMENT] = 0, Assignment().encode()
        self._values[_UNIQUE_ID] = 0, b""
        self._values[_DESCRIPTION] = 0, description.encode()
        return True

    def compare_and_set(self, name: str, raw: bytes, expected_version: int) -> int | None:
        version, _ = self.read(name)
        if version != expected_version:
            return None
        self._values[name] = version + 1, raw
        if name == _ASSIGNMENT:
            for watcher in self._watching:
                if not watcher.done():
                    watcher.set_result(None)
        return version + 1

    def next_unique_id(self) -> int:
        number = self.read(_UNIQUE_ID)[0] + 1
        self._values[_UNIQUE_ID] = number, b""
        return number

    def enter(self, registration: Registration, client: SimulatedCoordinatorClient) -> bool:
        self.read(_DESCRIPTION)
        self._bury()
        _, holder = self._members.get(registration.server, (registration, client))
        if holder is not client:
            raise DirectoryInUse(f"another living process is server {registration.server}: take a new unique id")
        self._members[registration.server] = registration, client
        return True

    def renew(self, server: ServerId) -> None:
        self._beats[server] = self._beats.get(server, 0) + 1

    def beat_of(self, server: ServerId) -> bytes:
        """What this member has written last to renew its lease."""
        return self._beats.get(server, 0).to_bytes(8, "little")

    def leave(self, server: ServerId, client: SimulatedCoordinatorClient) -> bool:
        held = server in self._members and self._members[server][1] is client
        if held:
            del self._members[server]
        return held

    def living(self) -> list[Registration]:
        self.read(_DESCRIPTION)
        self._bury()
        return [self._members[server][0] for server in sorted(self._members)]

    def _bury(self) -> None:
        for server in [server for server, (_, client) in self._members.items() if not client.is_alive()]:
            del self._members[server]

    async def assignment_changed(self, version: int) -> None:
        """Until the assignment is another than that of this version."""
        if self.read(_ASSIGNMENT)[0] != version:
            return
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching.append(watcher)
        try:
            await watcher
        finally:
            self._watching.remove(watcher)


class SimulatedMembership:
    """A registration that ends when it is left, or with its process."""

    def __init__(self, client: SimulatedCoordinatorClient, server: ServerId) -> None:
        self._client = client
        self._server = server

    async def renew(self) -> None:
        """Without leases there is nothing to do: the simulator, which stops and cuts off processes, tells who works."""
        await self._client.renew(self._server)

    async def leave(self) -> None:
        """End the registration. Doing it twice is no error."""
        await self._client.leave(self._server)


class SimulatedCoordinatorClient:
    """The coordinator port of one process."""

    def __init__(self, service: SimulatedCoordinator, host: Host, is_alive: Question, is_reachable: Question) -> None:
        self.host = host
        """Whose client this is."""
        self.is_alive = is_alive
        self._service = service
        self._is_reachable = is_reachable
        self._last_arrival_s = 0.0
        self._closed = False
        self._seen: dict[str, int] = {}
        self._description: ClusterDescription | None = None
        self._registered: list[ServerId] = []
        self._leases = Leases()

    # -------------------------------------------------------------- the port

    async def initialize(self, description: ClusterDescription) -> None:
        await self._call(lambda: self._service.initialize(description), changes=True)

    async def describe(self) -> ClusterDescription:
        self._description = (await self._get(_DESCRIPTION, ClusterDescription.decode)).value
        return self._description

    async def partition(self, partition: PartitionId) -> Versioned[PartitionValue]:
        return await self._get(await self._partition_name(partition), PartitionValue.decode)

    async def set_partition(
        self, partition: PartitionId, value: PartitionValue, expected_version: int
    ) -> Versioned[PartitionValue] | None:
        name = await self._partition_name(partition)
        version = await self._compare_and_set(name, value.encode(), expected_version, PartitionValue.decode)
        return None if version is None else Versioned(version, value)

    async def assignment(self) -> Versioned[Assignment]:
        return await self._get(_ASSIGNMENT, Assignment.decode)

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        while True:
            current = await self.assignment()
            if current.version > version:
                return current
            await self._service.assignment_changed(current.version)

    async def set_assignment(self, value: Assignment, expected_version: int) -> Versioned[Assignment] | None:
        version = await self._compare_and_set(_ASSIGNMENT, value.encode(), expected_version, Assignment.decode)
        return None if version is None else Versioned(version, value)

    async def unique_id(self) -> int:
        return await self._call(self._service.next_unique_id, changes=True)

    async def register(self, registration: Registration) -> SimulatedMembership:
        """Announce this process. Doing it again changes nothing, so that a lost result is no trouble."""
        await self._call(lambda: self._service.enter(registration, self), changes=True)
        if registration.server not in self._registered:
            self._registered.append(registration.server)
        return SimulatedMembership(self, registration.server)

    async def members(self) -> list[Registration]:
        service = self._service
        living = await self._call(lambda: [(member, service.beat_of(member.server)) for member in service.living()])
        if not service.leases:
            return [member for member, _ in living]
        now_s = self.host.clock.monotonic_s()  # of who looks, when it has looked
        return [
            member
            for member, beat in living
            if member.server in self._registered or not self._leases.has_run_out(member.server, beat, now_s)
        ]

    async def renew(self, server: ServerId) -> None:
        if self._service.leases:
            await self._call(lambda: self._service.renew(server))

    async def leave(self, server: ServerId) -> None:
        if self._closed:
            return
        await self._call(lambda: self._service.leave(server, self), changes=True)
        if server in self._registered:
            self._registered.remove(server)

    async def close(self) -> None:
        """End this process's registrations, if the coordinator can be told; later calls raise `Closed`."""
        if not self._closed:
            self._closed = True
            if self._is_reachable():
                for server in self._registered:
                    self._service.leave(server, self)

    # -------------------------------------------------------------- reading and changing

    async def _partition_name(self, partition: PartitionId) -> str:
        description = self._description or await self.describe()
        if not 0 <= partition < description.partitions:
            raise UnknownPartition(f"partition {partition} of a cluster with {description.partitions} partitions")
        return f"partition-{partition}"

    async def _get(self, name: str, decode: Callable[[bytes], T]) -> Versioned[T]:
        return await self._call(lambda: self._read(name, decode))

    async def _compare_and_set(
        self, name: str, raw: bytes, expected_version: int, decode: Callable[[bytes], object]
    ) -> int | None:
        def change() -> int | None:
            self._read(name, decode)
            version = self._service.compare_and_set(name, raw, expected_version)
            if version is not None:
                self._seen[name] = version
            return version

        return await self._call(change, changes=True)

    def _read(self, name: str, decode: Callable[[bytes], T]) -> Versioned[T]:
        """A value, unless it has gone back to what it was: requests of one client arrive in order."""
        seen = self._seen.get(name, -1)
        try:
            version, raw = self._service.read(name)
        except NotInitialized as error:
            if self._seen:
                raise CoordinatorDamaged("the simulated coordinator was wiped under this process") from error
            raise
        if version < seen:
            raise CoordinatorDamaged(f"{name} went back from version {seen} to {version} at the simulated coordinator")
        try:
            value = decode(raw)
        except CoordinatorDamaged as error:
            raise CoordinatorDamaged(f"{name} at the simulated coordinator: {error.text}. Restore it") from error
        self._seen[name] = version
        return Versioned(version, value)

    # -------------------------------------------------------------- the way there and back

    async def _call(self, work: Callable[[], T], *, changes: bool = False) -> T:
        """Send `work` to the service, and wait for what it says."""
        if self._closed:
            raise Closed("the coordinator was closed by this process")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        arrival_s = max(loop.time() + self._service.delay_s(), self._last_arrival_s + _APART_S)
        self._last_arrival_s = arrival_s
        loop.call_at(arrival_s, self._arrive, loop, work, changes, answer, context=Context())
        return await answer

    def _arrive(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], T], changes: bool, answer: asyncio.Future[T]
    ) -> None:
        """The request is at the service. In a context of nobody's: it outlives the process that sent it."""
        service, census = self._service, self._service.census
        timeout_s = service.configuration.timeout_s
        if not self._is_reachable():
            census[UNREACHABLE] += 1
            self._later(loop, timeout_s, answer, _unavailable("not reached"))
            return
        if service.strikes(service.configuration.unavailable_chance):
            census[UNAVAILABLE] += 1
            self._later(loop, service.delay_s(), answer, _unavailable("refused the request"))
            return
        if answer.done() or not self.is_alive():
            census[ORPHANED] += 1
        changed = False
        try:
            result = work()
            settle = functools.partial(answer.set_result, result)
            changed = changes and result is not None and result is not False
        except PolonaiseError as error:
            settle = functools.partial(answer.set_exception, error)
        lost = service.strikes(service.configuration.lost_result_chance)
        loop.call_later(service.delay_s(), self._return, loop, answer, settle, changed, lost, context=Context())

    def _return(
        self,
        loop: asyncio.AbstractEventLoop,
        answer: asyncio.Future[T],
        settle: Callable[[], None],
        changed: bool,
        lost: bool,
    ) -> None:
        """The answer is at the client, unless it is lost; `settle` tells it."""
        if lost or not self._is_reachable():
            if changed:
                self._service.census[LOST_RESULT] += 1
            self._later(loop, self._service.configuration.timeout_s, answer, _unavailable("gave no answer"))
        elif not answer.done():
            settle()

    def _later(
        self, loop: asyncio.AbstractEventLoop, delay_s: float, answer: asyncio.Future[T], error: PolonaiseError
    ) -> None:
        def refuse() -> None:
            if not answer.done():
                answer.set_exception(error)

        loop.call_later(delay_s, refuse, context=Context())


def _unavailable(what: str) -> CoordinatorUnavailable:
    return CoordinatorUnavailable(f"the simulated coordinator {what}: if this was a change, read again")


def _life_of_caller() -> Question:
    life = LIFE.get()
    return lambda: life is None or not life.dead


def _always() -> bool:
    return True
