"""Observe a whole cluster: its coordinator, servers, storage nodes and partitions, each with what is wrong with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from polonaise.admin.asking import (
    ASKED_MAX,
    Told,
    ask_health,
    ask_servers,
    health_of,
    not_named,
    stores_in,
    trouble_in,
)
from polonaise.admin.belief import (
    BELIEVED,
    Belief,
    disbelief,
    doubt_in,
    later_noted,
    later_promised,
    not_asked,
    outdated_at,
)
from polonaise.coordination import Coordinator
from polonaise.coordination.values import (
    Assignment,
    ClusterDescription,
    ExpectedServers,
    Owner,
    PartitionValue,
    Registration,
)
from polonaise.errors import (
    ConnectionLost,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    NotInitialized,
    PolonaiseError,
    ProtocolError,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.host import Host
from polonaise.node.condition import (
    UNREADABLE,
    another_form,
    condition_of,
    judged,
    server_troubles,
    storage_troubles,
    why_not_serving,
    why_not_writing,
)
from polonaise.node.reasons import Condition, ServerTold, why_not_reached
from polonaise.redaction import redacted_address
from polonaise.server.coordinatortrouble import with_trouble
from polonaise.server.expectedservers import coordinator_server_trouble, missing_server
from polonaise.storage.measures import StorageNodeHealth
from polonaise.terms import PartitionId, ServerId, StorageId, clock_words
from polonaise.wire.messages import ROLE_SERVER, ROLE_STORAGE

_MARKS_S: Final = 1.0
"""Seconds in which partitions' values are read to see whether they are marked as outdated: as a rule, all or none."""

_MADE_ANEW: Final = "its values were recovered or restored, and no server has been started since: start the servers"


_DOUBTED_SERVER: Final = (
    "it is not registered; the coordinator, which names it, is not believed: have that put right first"
)


class _AnotherServer(NotInitialized):
    pass


def _first(causes: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return lines with those of them in front that are causes, and causes that are not among them."""
    return [*causes, *(line for line in lines if line not in causes)]


class Wellness(IntEnum):
    """How well a cluster, a node or a partition is. The larger, the worse."""

    WELL = 0
    DEGRADED = 1
    """It works, but something is wrong: one more loss may be too many."""
    FAILED = 2
    """It does not work, or its state is unknown."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of a server, according to the coordinator and to the server itself."""

    server: ServerId
    address: str
    registered: bool | None
    """Whether the server is registered; None if that could not be read. If not, it will lose its partitions."""
    partitions: int | None
    """The number of partitions that the assignment gives to it; None if that could not be read."""
    trouble: str = ""
    """Why there is no health of the server to be read, such as that another one answers; empty if there is one."""
    told: Sequence[str] = ()
    """What is wrong according to the server itself, line by line."""
    name: str = ""
    """The name by which the cluster misses the server, or that it tells; empty if there is none."""
    unable: Sequence[str] = ()
    """Why the server could serve no partition of others, according to itself, line by line."""
    reached: frozenset[StorageId] = frozenset()
    """The storage nodes that the server reaches."""
    given_up: Sequence[PartitionId] = ()
    """The partitions that the server has given up lately, also those that another one serves since."""
    doubted: bool = False
    """Whether the coordinator that names the server is not believed."""

    @property
    def troubles(self) -> list[str]:
        """Everything that is wrong with the server, line by line, causes first."""
        lines, told = [self.trouble] if self.trouble else [], _first(self.unable, self.told)
        if self.registered is False and self.partitions:
            lines.append(
                "it owns partitions and is not registered: it stopped, or hangs and is to be restarted. It is listed, "
                "also once it was removed, until another server has them"
            )
        elif self.registered is False and self.trouble:
            lines.append(_DOUBTED_SERVER if self.doubted else missing_server(self.name, self.address))
        elif self.registered is False:
            why = f": {told.pop(0)}" if self.unable else ", and says nothing of why"
            lines.append(f"it runs, and has left the servers that may own partitions{why}")
        return [*lines, *told]

    @property
    def wellness(self) -> Wellness:
        """Degraded at worst, because another server can take over its partitions."""
        return Wellness.DEGRADED if self.troubles else Wellness.WELL

    def document(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "name": self.name,
            "address": self.address,
            "registered": self.registered,
            "reachable": not self.trouble,
            "partitions": self.partitions,
            "troubles": self.troubles,
        }


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """The status of a storage node, according to the node itself and to the servers."""

    name: str
    """Its name in the cluster's description."""
    address: str
    """Its address in the cluster's description."""
    trouble: str = ""
    """Why there is no health of it, such as that another one answers; empty if there is one."""
    directory: str | None = None
    """The storage directory; None if the node did not tell."""
    partitions: int | None = None
    """The number of partitions that have a copy on the node, or get one; None while not all owners tell."""
    free_bytes: int | None = None
    """The bytes of the directory's disk that the node may still use; None if it did not tell."""
    total_bytes: int | None = None
    """The size of the directory's disk, in bytes; None if the node did not tell."""
    told: Sequence[str] = ()
    """What is wrong according to the storage node itself, line by line."""
    not_connected: Mapping[ServerId, str] = field(default_factory=dict)
    """The servers without a connection to the storage node, each with the reason."""
    server_names: ExpectedServers = field(default_factory=ExpectedServers)
    draining: bool = False
    """Whether the storage node is being drained: it gets no more copies."""
    clock_ahead_s: Mapping[ServerId, float] = field(default_factory=dict)
    """How far the node's clock is ahead of that of a server, by servers whose own clocks are fit, where it is off."""
    known: int | None = None
    """The number of partitions that the node has files of, also given up ones; None if it did not tell."""
    unable: Sequence[str] = ()
    """Why the node can't write, to any partition, according to itself, line by line."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Why copies on the node can't be used, by the partition's number, according to the node itself."""

    @property
    def given_up(self) -> int | None:
        """The number of partitions whose copy on the node was given up; None if that is not known."""
        return None if self.partitions is None or self.known is None else max(self.known - self.partitions, 0)

    @property
    def troubles(self) -> list[str]:
        """Everything that is wrong with the storage node, line by line, causes first."""
        lines = [self.trouble, *self.unable] if self.trouble else [*self.unable]
        for server, why in self.not_connected.items():
            lines.append(f"server {self.server_names.said(server)} does not reach it: {why}")
        if self.clock_ahead_s:
            server, ahead_s = next(iter(self.clock_ahead_s.items()))
            whose = f"server {self.server_names.said(server)}"
            lines.append(f"its clock is {clock_words(ahead_s)} that of {whose}: set the clocks (NTP)")
        return _first(lines, self.told)

    @property
    def wellness(self) -> Wellness:
        """Degraded at worst, because a cluster works without a minority of them."""
        return Wellness.DEGRADED if self.troubles else Wellness.WELL

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "address": self.address,
            "reachable": not self.trouble,
            "draining": self.draining,
            "directory": self.directory,
            "partitions": self.partitions,
            "given_up": self.given_up,
            "free_bytes": self.free_bytes,
            "total_bytes": self.total_bytes,
            "troubles": self.troubles,
        }


_OF_CONDITION: Final[Mapping[str, Any]] = {
    "session": None, "committed_high_water_mark": None, "engaged": [], "behind": {}, "out": {}, "change": "",
}  # fmt: skip
"""What a partition's document has of its condition, with what stands there if that is unknown."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The status of a partition, according to the assignment and to its owner."""

    partition: PartitionId
    owner: Owner | None
    """The owner in the assignment; None while nobody owns the partition."""
    condition: Condition | None
    """The condition that the owner tells; None if there is no owner, or it tells none."""
    unknown: str = ""
    """Why there is no condition; empty if there is one."""
    owner_name: str = ""
    """The owner's name; empty for one without, or if that could not be read."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    """The other figures in the owner's health document, such as mounts and appends."""

    @property
    def troubles(self) -> list[str]:
        """Everything that is wrong with the partition, line by line."""
        return [self.unknown] if self.condition is None else self.condition.troubles

    @property
    def wellness(self) -> Wellness:
        if self.condition is None or not self.condition.ready:
            return Wellness.FAILED
        return Wellness.DEGRADED if self.condition.troubles else Wellness.WELL

    @property
    def state(self) -> str:
        """The state in a word or two: ready, degraded, not ready, or unknown."""
        if self.condition is None:
            return "unknown"
        return {Wellness.WELL: "ready", Wellness.DEGRADED: "degraded"}.get(self.wellness, "not ready")

    def document(self) -> dict[str, Any]:
        owner = self.owner
        return {
            "partition": self.partition,
            "state": self.state,
            "owner": None
            if owner is None
            else {"server": owner.server, "name": self.owner_name, "address": owner.address},
            "generation": None if owner is None else owner.generation,
            **{name: getattr(self.condition, name, unknown) for name, unknown in _OF_CONDITION.items()},
            "troubles": self.troubles,
        }


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The status of a whole cluster at one moment."""

    coordinator: str
    coordinator_error: PolonaiseError | None
    """Why the coordinator could not be read, so that what it said before counts; None if it was."""
    description: ClusterDescription | None
    """The cluster's description; None if the coordinator was never read."""
    servers: list[ServerStatus]
    storage: list[StorageStatus]
    partitions: list[PartitionStatus]
    coordinator_servers: Mapping[str, str]
    """Why each server that the coordinator consists of does not serve, by its address; empty for one that does."""
    took_s: float
    """The seconds that asking took."""
    belief: Belief = BELIEVED
    """Whether the nodes believe what the coordinator holds."""

    @property
    def wellness(self) -> Wellness:
        """How well the cluster is: failed unless every partition is surely ready, and what the coordinator has is
        whole.

        One that can't be reached from here is no failure by itself: the servers may reach it.
        """
        if self.description is None or not isinstance(self.coordinator_error, CoordinatorUnavailable | None):
            return Wellness.FAILED
        each = [status.wellness for group in (self.servers, self.storage, self.partitions) for status in group]
        return max(*each, Wellness.DEGRADED if self.coordinator_trouble or self.coordinator_troubles else Wellness.WELL)

    @property
    def troubles(self) -> list[str]:
        """Everything that is wrong with the cluster's parts, line by line."""
        groups = (self.partitions, self.servers, self.storage)
        return self.coordinator_troubles + [trouble for group in groups for each in group for trouble in each.troubles]

    @property
    def coordinator_trouble(self) -> str:
        """Why the coordinator could not be read, or is not believed, as text; empty if all is well."""
        return self.belief.doubt if self.coordinator_error is None else str(self.coordinator_error)

    @property
    def coordinator_troubles(self) -> list[str]:
        """A line for each server of the coordinator that does not serve."""
        return [coordinator_server_trouble(address, why) for address, why in self.coordinator_servers.items() if why]

    @property
    def states(self) -> dict[str, int]:
        """The number of partitions in each state."""
        return dict(Counter(each.state for each in self.partitions))

    @property
    def required(self) -> str:
        """What all commits need beside a quorum, by the cluster's description; empty if nothing, or if unknown."""
        demand = None if self.description is None else self.description.required
        return "" if demand is None else demand.told

    @property
    def topics_required(self) -> dict[str, str]:
        """What commits to a topic need, for each topic of which something is required."""
        demands = {} if self.description is None else self.description.topics_required
        return {topic: demand.told for topic, demand in demands.items() if demand.told}

    def common_troubles(self, count: int) -> list[tuple[str, int]]:
        """Return the most common troubles of partitions, `count` at most, each with the number of partitions."""
        return Counter(trouble for each in self.partitions for trouble in each.troubles).most_common(count)

    def document(self) -> dict[str, Any]:
        description = self.description
        return {
            "wellness": self.wellness.name.lower(),
            "cluster": None if description is None else description.key.hex(),
            "required": None if description is None else self.required,
            "topics_required": None if description is None else self.topics_required,
            "coordinator": {
                "address": redacted_address(self.coordinator),
                "trouble": self.coordinator_trouble,
                "servers": dict(self.coordinator_servers),
            },
            "servers": [each.document() for each in self.servers],
            "storage": [each.document() for each in self.storage],
            "partitions": [each.document() for each in self.partitions],
        }


@dataclass(slots=True)
class _LastRead:
    """What an observer has read from the coordinator last; None for what it could never read."""

    assignment: Assignment | None = None
    members: list[Registration] | None = None
    expected: ExpectedServers = field(default_factory=ExpectedServers)
    version: int | None = None
    """The description's."""

    @property
    def owners(self) -> Mapping[PartitionId, Owner]:
        return {} if self.assignment is None else self.assignment.owned

    @property
    def registered(self) -> dict[ServerId, str]:
        return {member.server: member.address for member in self.members or ()}

    @property
    def addresses(self) -> dict[ServerId, str]:
        """The address of each server that owns something, is registered, or is to be there."""
        expected = {each.server: each.address for each in self.expected.servers.values()}
        return expected | {owner.server: owner.address for owner in self.owners.values()} | self.registered


class ClusterObserver:
    """An observer that asks for a cluster's status as often as wanted, and remembers what the coordinator said last."""

    def __init__(
        self, host: Host, coordinator: Coordinator, address: str, timeout_s: float, servers: Sequence[str] = ()
    ) -> None:
        """Ask nobody yet. `address` is the coordinator's, for display; `timeout_s` bounds each wait, in seconds.

        `servers` are addresses of servers, which are asked for what can't be read from the coordinator.
        """
        self._servers = servers
        self._host = host
        self._coordinator = coordinator
        self._address = address
        self._timeout_s = timeout_s
        self._asking = asyncio.Semaphore(ASKED_MAX)
        self._description: ClusterDescription | None = None
        self._last = _LastRead()

    async def look(self) -> ClusterStatus:
        """Ask the coordinator and all nodes, and return the cluster's status.

        Takes at most twice the time limit and a second, twice more while no server answers, and once more for each
        further `ASKED_MAX` nodes that are silent. Raises `NotInitialized` if the coordinator knows no cluster,
        and `BadOption` if its address is that of something else.
        """
        began_s = self._host.clock.monotonic_s()
        error, ensemble = await asyncio.gather(self._read_coordinator(), self._coordinator.servers(self._timeout_s))
        if error is not None:
            await self._ask_servers_instead()
        description = self._description
        if description is None:
            return ClusterStatus(
                self._address, error, None, [], [], [], ensemble, self._host.clock.monotonic_s() - began_s
            )
        last = self._last
        addresses = last.addresses
        key = description.key
        asked_servers = [self._ask_server(server, address, key) for server, address in sorted(addresses.items())]
        asked_storage = [self._ask_storage(name, address, key) for name, address in description.nodes.items()]
        servers, storage = await asyncio.gather(asyncio.gather(*asked_servers), asyncio.gather(*asked_storage))
        answers = dict(zip(sorted(addresses), servers, strict=True))
        read = {server: ServerTold.of(answer) for server, answer in answers.items() if isinstance(answer, dict)}
        partitions = [self._partition_status(partition, answers, read) for partition in range(description.total)]
        stored = dict(zip(description.nodes, storage, strict=True))
        belief = await self._belief(description, answers, stored, partitions, known=error is None)
        owned = Counter(owner.server for owner in last.owners.values())
        copies, stores = _copies_in(description, last.owners, answers), stores_in(answers.values())
        return ClusterStatus(
            self._address,
            error,
            description,
            [
                _with_health(
                    ServerStatus(
                        server,
                        addresses[server],
                        None if last.members is None else server in last.registered,
                        None if last.assignment is None else owned[server],
                        name=last.expected.name_of(server),
                        doubted=bool(belief.doubt),
                    ),
                    answer,
                    stores,
                    known=error is None,
                )
                for server, answer in answers.items()
            ],
            [
                replace(
                    _storage_status(name, address, answer, answers),
                    partitions=None if copies is None else copies[name],
                    server_names=last.expected,
                    draining=name in description.draining,
                )
                for (name, address), answer in zip(description.nodes.items(), storage, strict=True)
            ],
            partitions,
            ensemble,
            self._host.clock.monotonic_s() - began_s,
            belief,
        )

    async def _belief(
        self,
        description: ClusterDescription,
        servers: Mapping[ServerId, Told],
        storage: Mapping[StorageId, Told],
        partitions: Sequence[PartitionStatus],
        *,
        known: bool,
    ) -> Belief:
        """Return whether the coordinator is believed. Each further source is asked only while none has a doubt."""
        last = self._last
        doubt = disbelief(servers, last.expected)
        if not doubt and known:
            # Of those that are ready their owners believe it; others may have none that could tell.
            unproved = [each.partition for each in partitions if each.condition is None or not each.condition.ready]
            doubt = await outdated_at(self._coordinator, unproved, min(self._timeout_s, _MARKS_S))
        # What the coordinator held at an earlier look says nothing of what it holds now.
        if not doubt and known and not any(isinstance(each, dict) for each in servers.values()):
            assert last.version is not None
            doubt = later_noted(storage, last.version)
            if not doubt:
                # Not of those that are silent: they would be as long once more.
                nodes = {name: each for name, each in description.nodes.items() if isinstance(storage[name], dict)}
                doubt = await later_promised(self._host, self._coordinator, description.key, nodes, self._timeout_s)
        return Belief(doubt) if doubt else Belief(unknown=not_asked(servers, storage, last.expected))

    async def partition_value(self, partition: PartitionId) -> PartitionValue:
        """Return what the coordinator keeps of a partition. Raises `UnknownPartition`, `CoordinatorUnavailable`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await self._coordinator.partition(partition)).value
        except TimeoutError:
            raise self._silence() from None

    async def _read_coordinator(self) -> PolonaiseError | None:
        """Read and keep the coordinator's values, but for the partitions'; return the error that kept some away."""
        try:
            async with asyncio.timeout(self._timeout_s):
                described = await self._coordinator.description()
                self._description, self._last.version = described.value, described.version
                self._last.assignment = (await self._coordinator.assignment()).value
                self._last.members = await self._coordinator.members()
                self._last.expected = (await self._coordinator.expected_servers()).value
                await self._coordinator.unique_ids_given()  # without them no new client gets in
        except TimeoutError:
            return self._silence()
        except (CoordinatorUnavailable, CoordinatorDamaged, WrongClusterKey, UnsupportedFormat) as error:
            return error
        return None

    async def _ask_servers_instead(self) -> None:
        """Learn from a server what the coordinator was never read for, and who owns what by now."""
        told = await ask_servers(
            self._host, dict.fromkeys((*self._last.addresses.values(), *self._servers)), self._timeout_s
        )
        if told is None or (self._description is not None and self._description.key != told.description.key):
            return
        self._last.assignment = told.assignment
        if self._description is None:
            self._description = told.description

    def _silence(self) -> CoordinatorUnavailable:
        return CoordinatorUnavailable(
            with_trouble(
                f"{redacted_address(self._address)} did not answer within {self._timeout_s:g} s: correct the "
                "address, start it, or give it more time with --timeout",
                self._coordinator,
            )
        )

    async def _ask_server(self, server: ServerId, address: str, key: bytes) -> Told:
        """Return a server's health document, or why there is none that can be read, or that another server answers."""
        answer = await self._ask(address, ROLE_SERVER, key)
        if not isinstance(answer, dict):
            return answer
        if not all(isinstance(answer.get(name), dict) for name in ("partitions", "storage")):
            return ProtocolError(
                "its health says nothing of partitions and storage nodes: it may be of another version"
            )
        if not _is_known(answer):
            return another_form("its")
        if answer.get("server") != server:
            return _AnotherServer(f"another server ({answer.get('server')}) answers at its address: this one has ended")
        return answer

    async def _ask_storage(self, name: StorageId, address: str, key: bytes) -> Told:
        answer = await self._ask(address, ROLE_STORAGE, key)
        if isinstance(answer, dict) and not _is_known_of_storage(answer):
            return another_form("its")
        return not_named(name, address, answer) or answer

    async def _ask(self, address: str, peer_role: int, key: bytes) -> Told:
        async with self._asking:
            return await ask_health(self._host, address, peer_role, key, self._timeout_s)

    def _partition_status(
        self, partition: PartitionId, answers: Mapping[ServerId, Told], read: Mapping[ServerId, ServerTold]
    ) -> PartitionStatus:
        """Return the status of a partition. `read` is what the `answers` tell, read once for all partitions."""
        if self._last.assignment is None:
            return PartitionStatus(partition, None, None, "who owns it could not be read from the coordinator")
        owner = self._last.owners.get(partition)
        if owner is None:
            why = _MADE_ANEW if partition in self._last.assignment.owners else "no server owns it: start one"
            return PartitionStatus(partition, None, None, f"{why} (polonaise server run)")
        answer, said = answers.get(owner.server), self._last.expected.said(owner.server)
        name = self._last.expected.name_of(owner.server)
        if not isinstance(answer, dict):
            return PartitionStatus(partition, owner, None, f"its owner, server {said}, does not answer: {answer}", name)
        health = answer["partitions"].get(str(partition))
        if health is None:
            return PartitionStatus(partition, owner, None, f"its owner, server {said}, does not serve it yet", name)
        counts = {name: value for name, value in health.items() if name not in _SHOWN}
        return PartitionStatus(
            partition,
            owner,
            condition_of(partition, answer, health, read[owner.server]),
            owner_name=name,
            counts=counts,
        )


_SHOWN: Final = frozenset(
    {"generation", "committed", "ready", "waits_for", "engaged", "session", "late", "members", "next", "added"}
)


def _is_known(answer: dict[str, Any]) -> bool:
    """Whether all that a status has of a server's health document can be read from this one, by reading it."""
    try:
        lines = [line for condition in judged(answer, "its").values() for line in condition.troubles]
        lines += doubt_in(answer), answer.get("fragments", "")
        lines += _with_health(ServerStatus(0, "", None, None), answer, (), known=False).document()["troubles"]
        for name in answer["storage"]:
            lines += _storage_status(name, "", ConnectionLost(""), {0: answer}).document()["troubles"]
        for health in answer["partitions"].values():
            _ = {*(health.get("members") or ()), *(health.get("next") or ())}
        return _are_texts(lines)
    except (ProtocolError, *UNREADABLE):
        return False


def _is_known_of_storage(answer: dict[str, Any]) -> bool:
    """Whether all that a status has of a storage node's health document can be read from this one, by reading it."""
    try:
        return _are_texts(replace(_storage_status("", "", answer, {}), partitions=0).document()["troubles"])
    except UNREADABLE:
        return False


def _are_texts(lines: Sequence[object]) -> bool:
    return all(isinstance(line, str) for line in lines)


def _with_health(status: ServerStatus, answer: Told, stores: Sequence[str], *, known: bool) -> ServerStatus:
    """Return a server's status with what it tells, but for the servers that it misses if the coordinator is `known`.

    `stores` are the fragment stores that servers have.
    """
    if not isinstance(answer, dict):
        trouble = str(answer)
        if isinstance(answer, _AnotherServer) and not status.doubted:
            trouble += (
                ". If it was given another name, or is gone for good, nobody has to miss this one: polonaise server "
                f"remove {status.server}"
            )
        return replace(status, trouble=trouble)
    missing = {} if known else answer.get("missing_servers", {})
    told = server_troubles({**answer, "missing_servers": missing, "coordinator_servers": []})
    if stores and not answer.get("fragments", stores[0]):
        told.append(
            "it was started without the fragment store that others have, so that it can't read what was trimmed, nor "
            f"see that archived ids are gone: start it with --fragments {stores[0]}"
        )
    name = answer.get("name")
    return replace(
        status,
        told=told,
        name=status.name or (name if isinstance(name, str) else ""),
        # Why it could serve no partition at all: what it has given up says nothing of others.
        unable=why_not_serving(ServerTold.of({**answer, "given_up_why": {}})),
        reached=frozenset(name for name, node in answer["storage"].items() if not why_not_reached(node)),
        given_up=tuple(answer.get("given_up", ())),
    )


def _storage_status(
    name: StorageId,
    address: str,
    answer: Told,
    servers: Mapping[ServerId, Told],
) -> StorageStatus:
    not_reached = {
        server: why
        for server, told in servers.items()
        if isinstance(told, dict) and (link := told["storage"].get(name)) is not None and (why := why_not_reached(link))
    }
    own: Mapping[str, Any] = answer if isinstance(answer, dict) else {}
    # What it has told a server lately, if it does not answer: an operator may reach the servers alone.
    heard = [told["storage"].get(name, {}) for told in servers.values() if isinstance(told, dict)]
    last = own if isinstance(answer, dict) else next((each for each in heard if "scrub" in each), {})
    disk = StorageNodeHealth.told(own).disk or {}
    return StorageStatus(
        name,
        address,
        trouble_in(answer),
        directory=own.get("directory"),
        known=own.get("partitions"),
        free_bytes=disk.get("free_bytes"),
        total_bytes=disk.get("total_bytes"),
        told=storage_troubles(own),
        not_connected=not_reached,
        clock_ahead_s=_clock_off(name, servers),
        unable=why_not_writing(last),
        unusable=StorageNodeHealth.told(last).unavailable,
    )


def _clock_off(name: StorageId, servers: Mapping[ServerId, Told]) -> dict[ServerId, float]:
    """Return how far a storage node's clock is ahead of that of each server, where that is more than its bound.

    A server whose own clock is off from those of most storage nodes tells nothing of theirs.
    """
    off = {}
    for server, told in servers.items():
        clock = told.get("clock") if isinstance(told, dict) else None
        if not isinstance(clock, dict) or clock.get("unfit"):
            continue
        measured, bound_s = clock.get("storage", {}), clock.get("bound_s", float("inf"))
        differing = {node: ahead_s for node, ahead_s in measured.items() if abs(ahead_s) > bound_s}
        if name in differing and 2 * len(differing) <= len(measured):
            off[server] = differing[name]
    return off


def _copies_in(
    description: ClusterDescription, owners: Mapping[PartitionId, Owner], answers: Mapping[ServerId, Told]
) -> Counter[StorageId] | None:
    """Return how many partitions have a copy on each node, or get one; None if an owner does not tell where."""
    copies: Counter[StorageId] = Counter()
    for partition in range(description.total):
        owner = owners.get(partition)
        health = None if owner is None else health_of(answers.get(owner.server), partition)
        if health is None or health.get("members") is None:
            return None
        copies.update({*health["members"], *(health.get("next") or ())})
    return copies
