"""The coordinator of a simulated cluster: one service in memory, a backend for each process, and faults between them.

Unless a scenario makes it, the service never forgets and never lies, like a ZooKeeper ensemble; faults happen on the
way to it. A request goes its own way once it is sent: it may arrive after its caller has given up or died, and its
answer may be lost although the change was made. Requests of one client arrive in order, so that a caller who reads
again sees what its earlier requests have done.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias, TypeVar

from polonaise.coordination.backend import Entry, missing
from polonaise.coordination.coordinator import first_entries
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import DESCRIPTION, ClusterDescription
from polonaise.errors import CoordinatorUnavailable, PolonaiseError
from polonaise_proving.record.faultcounts import FaultCounts

_APART_S: Final = 1e-6
"""The least time between the arrivals of two requests of one client, which keeps them in order."""

_EARLY_CHANCE: Final = 0.01
"""The chance, drawn at each contact, that the session ends early if no other contact follows in time."""

T = TypeVar("T")
Predicate: TypeAlias = Callable[[], bool]
Snapshot: TypeAlias = dict[str, Entry]


@dataclass(frozen=True, slots=True)
class CoordinatorConfiguration:
    """How slow and how faulty the way to the coordinator is. With the defaults nothing fails by itself."""

    latency_s: float = 0.0005
    """The least virtual seconds that a request or an answer travels."""
    jitter_s: float = 0.002
    """The upper bound of what is added to `latency_s`: drawn uniformly between 0 and this."""
    unavailable_chance: float = 0.0
    """The chance that a request is refused, and not carried out."""
    lost_result_chance: float = 0.0
    """The chance that a request is carried out but its caller is told that the coordinator is unavailable."""
    timeout_s: float = 0.5
    """Virtual seconds from the loss of a request or of its answer until the client stops waiting for the answer."""


class Sessions:
    """The service's sessions with processes: each ends some time after the last request of its process has arrived.

    Most end late, as sessions do at ZooKeeper, which looks for silent ones only now and then. Few end early, as if an
    operator had ended them.
    """

    def __init__(self, source: random.Random, session_s: float) -> None:
        self.session_s = session_s
        """The seconds that a session lasts after each contact, as its process was told."""
        self._random = source

    def ends_s(self, contact_s: float) -> float:
        """Return when a session really ends that has no other contact after this one."""
        if self._random.random() < _EARLY_CHANCE:
            return contact_s + self.session_s * self._random.uniform(0.1, 1.0)
        return contact_s + self.session_s * self._random.uniform(1.0, 1.6)


class SimulatedCoordinator:
    """The service that all backends share. Made once per schedule; it outlives every process."""

    def __init__(
        self,
        source: random.Random,
        faults: FaultCounts,
        configuration: CoordinatorConfiguration | None = None,
        *,
        leases: bool = False,
        sessions: Sessions | None = None,
    ) -> None:
        """Make an empty service.

        With `leases`, servers tell by each other's renewals which of them live, as in production; without leases,
        the service itself knows which processes live. With `sessions`, there are leases, and a process whose session
        has ended counts as dead besides.
        """
        self.leases = leases or sessions is not None
        self.sessions = sessions
        self.configuration = configuration or CoordinatorConfiguration()
        self.faults = faults
        self.on_written: list[Callable[[str, bytes, bytes], None]] = []
        """Checks that are called with the key, the former and the new contents when a compare-and-set succeeds."""
        self._random = source
        self._values: Snapshot = {}
        self._names: dict[str, tuple[Entry, SimulatedBackend]] = {}
        self._watching: list[tuple[str, asyncio.Future[None]]] = []
        self._looks = 0

    # -------------------------------------------------------------- for scenarios

    def snapshot(self) -> Snapshot:
        """Return a copy of all values, as a backup would have them."""
        return dict(self._values)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace all values by a backup, without notice to the clients; an empty backup wipes the coordinator."""
        self._values = dict(snapshot)

    def damage(self, name: str) -> None:
        """Make the value of this name (`description`, `assignment`, `partition-0`, …) unreadable."""
        entry = self._values[name]
        self._values[name] = entry._replace(contents=entry.contents[:-1])

    def initialize(self, description: ClusterDescription) -> None:
        """Make the cluster at once, without the delay of a request."""
        self.create(first_entries(description))

    # -------------------------------------------------------------- for backends

    def delay_s(self) -> float:
        return self.configuration.latency_s + self._random.random() * self.configuration.jitter_s

    def strikes(self, chance: float) -> bool:
        return chance > 0.0 and self._random.random() < chance

    def create(self, entries: Mapping[str, Entry]) -> bool:
        if self._values:
            return False
        self._values = dict(entries)
        return True

    def delete(self, description: Entry) -> bool:
        if self._values.get(DESCRIPTION) != description:
            return False
        self._values = {}
        return True

    def add(self, entries: Mapping[str, Entry]) -> bool:
        self._values = {**entries, **self._values}
        return True

    def read(self, key: str) -> Entry | None:
        return self._values.get(key)

    def compare_and_set(self, key: str, contents: bytes, present: Entry | None, least: int = -1) -> Entry | None:
        entry = self._values.get(key)
        if entry is None:
            raise missing(_place(key))
        if entry.version < least or (present is not None and entry != present):
            return None
        changed = self._values[key] = Entry(entry.cluster_key, entry.version + 1, contents)
        for check in self.on_written:
            check(key, entry.contents, contents)
        for watched, watcher in self._watching:
            if watched == key and not watcher.done():
                watcher.set_result(None)
        return changed

    async def changed(self, key: str, version: int) -> None:
        entry = self._values.get(key)
        if entry is None or entry.version != version:
            return
        watch = key, asyncio.get_running_loop().create_future()
        self._watching.append(watch)
        try:
            await watch[1]
        finally:
            self._watching.remove(watch)

    def register(self, name: str, entry: Entry, backend: SimulatedBackend) -> bool:
        self.bury()
        _, holder = self._names.setdefault(name, (entry, backend))
        return holder is backend

    def renew(self, name: str, backend: SimulatedBackend) -> bool:
        self.bury()
        entry, holder = self._names.get(name, (None, None))
        if entry is None or holder is not backend:
            return False
        self._names[name] = entry._replace(version=entry.version + 1), backend
        return True

    def tell(self, name: str, contents: bytes, backend: SimulatedBackend) -> bool:
        self.bury()
        entry, holder = self._names.get(name, (None, None))
        if entry is not None and holder is backend:
            self._names[name] = entry._replace(contents=contents), backend
        return holder is backend

    def leave(self, name: str, backend: SimulatedBackend) -> bool:
        is_holder = name in self._names and self._names[name][1] is backend
        if is_holder:
            del self._names[name]
        return is_holder

    def registered(self, folder: str) -> dict[str, Entry]:
        """Return the entries of the names in `folder` whose processes live and whose sessions last, by number.

        Without leases, every call returns all entries as just renewed, because the simulator itself decides which
        processes count as living.
        """
        self.bury()
        self._looks += 1
        return {
            name.removeprefix(f"{folder}/"): entry if self.leases else entry._replace(version=self._looks)
            for name, (entry, _) in self._names.items()
            if name.startswith(f"{folder}/")
        }

    def bury(self) -> None:
        """Remove the names of processes that do not live, or whose sessions have ended."""
        self._names = {name: held for name, held in self._names.items() if held[1].is_member()}


class SimulatedBackend:
    """The coordinator's backend in one process: its way to the service."""

    def __init__(self, service: SimulatedCoordinator, is_alive: Predicate, is_reachable: Predicate) -> None:
        """Make the backend of a process.

        `is_alive` tells whether the process lives, and `is_reachable` whether messages pass between the process and the
        service at this moment.
        """
        self.is_alive = is_alive
        self._service = service
        self._is_reachable = is_reachable
        self._last_arrival_s = 0.0
        self._own: set[str] = set()
        self.contact_s = 0.0
        """When the last request of the process arrived that was not refused, in virtual seconds; 0 before the first."""
        self._ends_s = inf
        """When its session ends, unless another request arrives; infinity without sessions, or before the first."""
        self.trouble = ""

    def __str__(self) -> str:
        return "the simulation"

    def place(self, key: str) -> str:
        return _place(key)

    has_servers = False
    found_again_s = 0.0
    renewed_us: int | None = None

    async def servers(self, timeout_s: float) -> Mapping[str, str]:
        """Return nothing: the simulated store consists of no servers."""
        return {}

    @property
    def holds_s(self) -> float:
        """A name holds for a lease, or for a session if that is shorter; without either, while its process lives."""
        service = self._service
        if not service.leases:
            return inf
        return min(LEASE_S, service.sessions.session_s if service.sessions is not None else inf)

    def is_member(self) -> bool:
        """Whether the process lives, as far as the service knows, and its session has not ended."""
        return self.is_alive() and asyncio.get_running_loop().time() < self._ends_s

    def _heard(self) -> None:
        """Take note that a request of the process has arrived."""
        self.contact_s = asyncio.get_running_loop().time()
        if self._service.sessions is not None:
            self._service.bury()  # a session that has ended does not go on
            self._ends_s = self._service.sessions.ends_s(self.contact_s)

    async def create(self, entries: Mapping[str, Entry]) -> bool:
        return await self._call(lambda: self._service.create(entries), changes=True)

    async def delete(self, description: Entry) -> bool:
        return await self._call(lambda: self._service.delete(description), changes=True)

    async def add(self, entries: Mapping[str, Entry]) -> None:
        await self._call(lambda: self._service.add(entries), changes=True)

    async def read(self, key: str) -> Entry | None:
        return await self._call(lambda: self._service.read(key))

    async def compare_and_set(self, key: str, contents: bytes, present: Entry | None, least: int = -1) -> Entry | None:
        return await self._call(lambda: self._service.compare_and_set(key, contents, present, least), changes=True)

    async def changed(self, key: str, version: int) -> None:
        await self._service.changed(key, version)

    async def register(self, name: str, entry: Entry) -> bool:
        taken = await self._call(lambda: self._service.register(name, entry, self), changes=True)
        if taken:
            self._own.add(name)
        return taken

    async def renew(self, name: str) -> bool:
        if name not in self._own:
            return False
        return not self._service.leases or await self._call(lambda: self._service.renew(name, self))

    async def tell(self, name: str, contents: bytes) -> None:
        if name in self._own:
            await self._call(lambda: self._service.tell(name, contents, self), changes=True)

    async def leave(self, name: str) -> None:
        if name in self._own:
            await self._call(lambda: self._service.leave(name, self), changes=True)
            self._own.discard(name)

    async def registered(self, folder: str) -> dict[str, Entry]:
        return await self._call(lambda: self._service.registered(folder))

    async def close(self) -> None:
        """Remove the registrations of this process, if the service can be reached."""
        own, self._own = self._own, set()
        if self._is_reachable():
            for name in sorted(own):
                self._service.leave(name, self)

    # -------------------------------------------------------------- the way there and back

    async def _call(self, work: Callable[[], T], *, changes: bool = False) -> T:
        """Let the service run `work` and return its result. Raises `CoordinatorUnavailable`, or what `work` raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        arrival_s = max(loop.time() + self._service.delay_s(), self._last_arrival_s + _APART_S)
        self._last_arrival_s = arrival_s
        loop.call_at(arrival_s, self._arrive, work, changes, answer, context=Context())
        return await answer

    def _arrive(self, work: Callable[[], T], changes: bool, answer: asyncio.Future[T]) -> None:
        """Carry out a request that has arrived, and send its answer.

        It runs in an empty context, which belongs to no process: a request outlives the process that sent it.
        """
        service, faults = self._service, self._service.faults
        if not self._is_reachable():
            faults.count("coordinator_unreachable")
            _refuse_later(service.configuration.timeout_s, answer, "not reached")
            return
        if service.strikes(service.configuration.unavailable_chance):
            faults.count("coordinator_unavailable")
            _refuse_later(service.delay_s(), answer, "refused the request")
            return
        if answer.done() or not self.is_alive():
            faults.count("coordinator_orphaned")
        self._heard()
        changed = False
        try:
            result = work()
            settle = functools.partial(answer.set_result, result)
            changed = changes and result is not None and result is not False
        except PolonaiseError as error:
            settle = functools.partial(answer.set_exception, error)
        lost = service.strikes(service.configuration.lost_result_chance)
        _later(service.delay_s(), self._return, answer, settle, changed, lost)

    def _return(self, answer: asyncio.Future[T], settle: Callable[[], None], changed: bool, lost: bool) -> None:
        """Call `settle` to give the answer to the caller, unless the answer is lost on its way."""
        if lost or not self._is_reachable():
            if changed:
                self._service.faults.count("coordinator_lost_result")
            _refuse_later(self._service.configuration.timeout_s, answer, "gave no answer")
        elif not answer.done():
            settle()


def _refuse_later(delay_s: float, answer: asyncio.Future[T], why: str) -> None:
    def refuse() -> None:
        if not answer.done():
            message = f"the simulated coordinator {why}: if this was a change, read again"
            answer.set_exception(CoordinatorUnavailable(message))

    _later(delay_s, refuse)


def _later(delay_s: float, callback: Callable[..., object], *arguments: object) -> None:
    """Call `callback` after `delay_s` virtual seconds, in a context that belongs to no process."""
    asyncio.get_running_loop().call_later(delay_s, callback, *arguments, context=Context())


def _place(key: str) -> str:
    return f"{key} at the simulated coordinator"
