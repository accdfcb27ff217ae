"""The coordinator: what servers and clients ask of it, and its rules, whatever backend keeps the values."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar, cast

from polonaise.coordination.backend import (
    Backend,
    Entry,
    damaged,
    deleted,
    lacking,
    missing,
    newer,
    not_following,
    outdated,
)
from polonaise.coordination.lease import Leases
from polonaise.coordination.seen import CALM_S, SeenValues
from polonaise.coordination.topics import TopicPartitions
from polonaise.coordination.values import (
    ASSIGNMENT,
    DESCRIPTION,
    EXPECTED,
    MEMBERS,
    UNIQUE_ID,
    UNIQUE_ID_MAX,
    Assignment,
    Beginning,
    ClusterDescription,
    CoordinatorValue,
    ExpectedServer,
    ExpectedServers,
    PartitionValue,
    Registration,
    UniqueIds,
    Versioned,
    partition_key,
)
from polonaise.errors import (
    AlreadyInitialized,
    BadOption,
    Closed,
    CoordinatorDamaged,
    CoordinatorLost,
    CoordinatorNewer,
    CoordinatorUnavailable,
    DirectoryInUse,
    NotInitialized,
    PolonaiseError,
    UnknownPartition,
    WrongClusterKey,
    fault,
)
from polonaise.host import Clock
from polonaise.recoverycommand import recovery_of
from polonaise.redaction import redacted
from polonaise.terms import ClusterTopics, PartitionId, ServerId, SessionId, StorageId, counted

_registration_in: Final = functools.lru_cache(maxsize=256)(Registration.decode)
"""Every server looks at all registrations again and again, and they seldom change."""

T = TypeVar("T")
V = TypeVar("V", bound=CoordinatorValue)


def first_entries(description: ClusterDescription, beginning: Beginning | None = None) -> dict[str, Entry]:
    beginning = beginning or Beginning()
    initial = PartitionValue.initial(description.storage)
    values: dict[str, tuple[int, bytes]] = {
        partition_key(partition): (beginning.version, beginning.partitions.get(partition, initial).encode())
        for partition in range(description.total)
    }
    values[ASSIGNMENT] = beginning.version, beginning.assignment.encode()
    values[UNIQUE_ID] = beginning.unique_id, UniqueIds().encode()
    if beginning.expected is not None:
        values[EXPECTED] = beginning.version, beginning.expected.encode()
    values[DESCRIPTION] = beginning.version, description.encode()
    return {key: Entry(description.key, *value) for key, value in values.items()}


class Membership:
    """The registration of this process, until `leave`, its death, or the end of its lease (`coordination.lease`)."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._name = name
        self.left = False

    @property
    def holds_s(self) -> float:
        """The least seconds for which the registration holds, from the beginning of its last renewal on."""
        return self._backend.holds_s

    @property
    def renewed_us(self) -> int | None:
        """When it was renewed last, by the coordinator's clock, in microseconds UTC; None if unknown."""
        return self._backend.renewed_us

    async def renew(self) -> bool:
        """Renew the lease; return False if the registration is gone, and has to be made again. To be called every
        `lease.renew_every_s`, by a task that would hang if the process did not work."""
        return await self._backend.renew(self._name)

    async def tell(self, registration: Registration) -> None:
        """Replace what the registration says; it must be of the same server."""
        await self._backend.tell(self._name, registration.encode())

    async def leave(self) -> None:
        """End the registration. Doing so twice is no error."""
        self.left = True
        await self._backend.leave(self._name)


class Coordinator:
    """The coordinator of a cluster: a value per partition, the assignment of partitions, and the description.

    Values are changed by compare-and-set only, but for the counter of unique ids. Every call may raise
    `CoordinatorUnavailable`; after a *change* that means the change may or may not have been made, and the caller reads
    again before it does anything else.

    A value that is missing, damaged, of another cluster, or older than this process has seen it, is refused
    (`CoordinatorDamaged` and its kinds, `WrongClusterKey`) and never taken for an empty one: a lost or older value can
    let two owners write in one session. One that a newer version of Polonaise wrote is refused as `CoordinatorNewer`.
    From a value on that was older, no other one is believed or changed either (`coordination.seen`); names are, so that
    a server's registration goes on to hold.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._closed = False
        self._description: ClusterDescription | None = None
        """The first description that this process has read or made: its key and number of own partitions hold for
        good."""
        self._total = 0
        """The most partitions that a description had which this process has read or made."""
        self._seen = SeenValues(CALM_S + backend.found_again_s)
        self._memberships: dict[ServerId, Membership] = {}
        self._leases = Leases()
        self._ask: Callable[[], Awaitable[None]] | None = None

    def __str__(self) -> str:
        """Return the coordinator's address, for messages, without secrets."""
        return redacted(str(self._backend))

    @property
    def has_servers(self) -> bool:
        """Whether the coordinator consists of servers that can fail one by one, as `servers` tells."""
        return self._backend.has_servers

    async def servers(self, timeout_s: float) -> Mapping[str, str]:
        """Return why each server of the coordinator does not serve, as `Backend.servers`."""
        return await self._backend.servers(timeout_s)

    def ask_before_changes(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Have `ask` called before each change of a cluster's values, which is not made if that raises. For operators,
        who can't know by themselves that they see an older copy. It may read values."""
        self._ask = ask

    async def ask_first(self) -> None:
        """Ask what `ask_before_changes` was given, ahead of a change for which the coordinator has a time limit: nodes
        that are silent are no silence of the coordinator's."""
        if self._ask is not None:
            await self._ask()

    async def may_change(self) -> None:
        """Raise why nothing may be changed by this process at present. Every change calls it; callers need it only for
        what they change elsewhere, by the coordinator's values."""
        await self.ask_first()
        await self._check_belief()
        if calm_s := self._seen.calm_s(self._clock.monotonic_s()):
            raise CoordinatorUnavailable(
                f"{self}: what this process had seen is there again only now, after an older state was. For "
                f"{calm_s:.1f} s more this process changes nothing, so that others see that, too. Nothing was changed: "
                "try again"
            )

    # -------------------------------------------------------------- the cluster

    async def initialize(self, description: ClusterDescription, beginning: Beginning | None = None) -> None:
        """Make the cluster, with every partition's initial value or the `beginning` of a restored log. Raises
        `AlreadyInitialized` if one exists."""
        self._check_open()
        if not await self._backend.create(first_entries(description, beginning)):
            raise AlreadyInitialized(f"{self._backend} holds a cluster: use it, or choose another place")
        self._description, self._total = description, description.total

    async def delete(self, key: bytes) -> None:
        """Delete the cluster with this key: its description and all other values. Its storage nodes keep their disks.
        Raises `NotInitialized`, `WrongClusterKey` for a cluster with another key, and `cluster_in_use` while servers
        are registered, or if the description was changed meanwhile: nothing was deleted then."""
        present = await self.description()
        if present.value.key != key:
            raise WrongClusterKey(
                f"the cluster in {self._backend} has the key {present.value.key.hex()}, and {key.hex()} was to be "
                "deleted: nothing was deleted"
            )
        # Not `members`: a server that hangs may go on, and would do so without a cluster.
        if servers := sorted(map(int, await self._backend.registered(MEMBERS))):
            raise fault(
                "cluster_in_use",
                f"the cluster in {self._backend} has servers that are registered: {', '.join(map(str, servers))}. Stop "
                "them first; one that was killed is registered for a few seconds more. Nothing was deleted",
            )
        await self.may_change()
        known = self._seen.known(DESCRIPTION)
        assert known is not None
        if not await self._backend.delete(known.entry):
            raise fault(
                "cluster_in_use",
                f"the cluster in {self._backend} was changed meanwhile: nothing was deleted. Look who is at work on "
                "it, and delete it again",
            )
        self._description, self._total = None, 0
        self._seen.forget()

    async def describe(self) -> ClusterDescription:
        """Return the cluster's description. Raises what `description` raises."""
        return (await self.description()).value

    async def description(self) -> Versioned[ClusterDescription]:
        """Return the cluster's description with its version. Without a cluster, raises `NotInitialized`; or
        `CoordinatorLost` if this process has known one here, or servers of one are registered."""
        return await self._believed(self._look_at_description)

    async def _look_at_description(self) -> Versioned[ClusterDescription]:
        self._check_open()
        place = self._backend.place(DESCRIPTION)
        # Before the read, for the same reason as in `_look`.
        floor = self._seen.version(DESCRIPTION)
        entry = await self._backend.read(DESCRIPTION)
        if entry is None:
            if self._description is not None:
                raise deleted(place)
            raise await self._none()
        description = self._learn(DESCRIPTION, entry, floor, ClusterDescription)
        if description.key != entry.cluster_key:
            raise damaged(place, "it has two different cluster keys")
        if self._description is None:
            self._description = description
        self._total = max(self._total, description.total)
        return Versioned(entry.version, description)

    async def _none(self) -> NotInitialized | CoordinatorLost:
        """Return the error for a place without a cluster. Servers that have lost theirs register there again."""
        with contextlib.suppress(CoordinatorUnavailable, CoordinatorDamaged):
            if servers := sorted(map(int, await self._backend.registered(MEMBERS))):
                return CoordinatorLost(
                    f"the coordinator {self._backend} holds no cluster, but servers of one are registered there "
                    f"({', '.join(map(str, servers))}): the coordinator has lost its data. Nothing was changed. The "
                    "log is on the storage nodes: leave their directories as they are, and restore the whole "
                    f"coordinator as it was last, or make its values again ({recovery_of(self._backend)}). For "
                    "another, new cluster stop these servers, or choose another place"
                )
        return NotInitialized(
            f"no cluster in {self._backend}: correct the address, or make the cluster (polonaise cluster create). "
            f"If there was one, its coordinator has lost its data: {recovery_of(self._backend)}"
        )

    async def description_changed(self, version: int) -> None:
        """Return once the description's version is above `version`, or earlier."""
        self._check_open()
        await self._backend.changed(DESCRIPTION, version)

    async def set_description(
        self, value: ClusterDescription, expected_version: int
    ) -> Versioned[ClusterDescription] | None:
        """Replace the description if its version is `expected_version`; return it with the new one, or None. Raises
        `BadOption` for one with another key or number of own partitions, or in which a topic lacks partitions that it
        has: replicas and files hang on these; and for one with fewer storage nodes than copies, or that can't be read
        again."""
        present = await self.description()
        if present.version != expected_version:
            return None
        cluster = present.value
        for what, here, there in (
            ("key", cluster.key.hex(), value.key.hex()),
            ("number of partitions", cluster.partitions, value.partitions),
        ):
            if here != there:
                raise BadOption(
                    f"the description of {self._backend} can't change: its {what} is {here}, that of the new one is "
                    f"{there}. Nothing was changed; what may change is its storage nodes, their addresses and zones, "
                    "what commits need, and that topics grow"
                )
        for name, ids in cluster.topics.items():
            if value.topics.get(name, ())[: len(ids)] != ids:
                raise BadOption(
                    f"the description of {self._backend} can't change: topic {name} would lose partitions, or their "
                    "order. Nothing was changed; read the description again"
                )
        if len(value.storage) < value.replication_factor or not value.storage:
            raise BadOption(
                f"the description of {self._backend} can't have {counted(len(value.storage), 'storage node')} for "
                f"{value.replication_factor} copies of each partition: nothing was changed"
            )
        # The last line of defence: with a description that nobody can read the whole cluster would stand still.
        try:
            ClusterDescription.decode(value.encode())
        except CoordinatorDamaged as error:
            raise BadOption(
                f"the description of {self._backend} can't become one that nobody can read: {error.text}. Nothing was "
                "changed"
            ) from error
        return await self._set(DESCRIPTION, value, expected_version)

    async def topic(self, name: str, known: TopicPartitions | None = None, total: int = 0) -> TopicPartitions:
        """Return the partitions of a topic as they are now. Raises `UnknownTopic`. `known` and `total` matter to
        clients that ask servers (`client.discovery`)."""
        read = await self.description()
        return read.value.partitions_of(name, read.version)

    async def topics(self) -> ClusterTopics:
        """Return the partitions of the cluster, its own ones and its topics', as they are now."""
        return (await self.describe()).shape

    async def make_partitions(
        self, members: Mapping[PartitionId, tuple[StorageId, ...]], usable: Collection[StorageId]
    ) -> bool:
        """Make the first values of partitions that the description is about to name; return whether all are there.
        Those that an unfinished call has left are taken up if they have as many members, all of them among `usable`,
        and get these members otherwise. False, if one was changed meanwhile, or is in use: read the description
        again."""
        cluster = await self._cluster()
        wanted = {partition_key(each): PartitionValue.initial(names) for each, names in members.items()}
        await self._add({key: Entry(cluster.key, 0, value.encode()) for key, value in wanted.items()})
        for key, value in wanted.items():
            there = await self._get(key, PartitionValue)
            found = there.value.members
            if there.value != PartitionValue.initial(found):
                return False
            # Not needlessly: the description may name them by now, and an operator may have looked who has copies.
            if len(found) == len(value.members) and {*found} <= {*usable}:
                continue
            if await self._set(key, value, there.version) is None:
                return False
        return True

    async def unique_id(self) -> int:
        """Return a number that was never given out before: 1 or more, and below 2**31. A number that no caller got is
        not used again. Raises `PolonaiseError` when none is left."""
        await self._cluster()
        entry = None
        while entry is None:  # until the counter does not change from an older state to the latest one between the two
            seen = self._seen.version(UNIQUE_ID)
            # The entry's version is the number. Nothing is compared but that it is none that was given out before, so
            # that callers need not try again: each of them gets a version of its own.
            value = UniqueIds(self._clock.wall_us())
            entry = await self._replaced(UNIQUE_ID, value.encode(), None, least=seen)
            if entry is None:
                await self._get(UNIQUE_ID, UniqueIds)
        self._judge(UNIQUE_ID, entry, seen + 1, value)
        if entry.version > UNIQUE_ID_MAX:
            raise PolonaiseError(f"all {UNIQUE_ID_MAX} unique ids of {self._backend} have been given out")
        return entry.version

    @property
    def trouble(self) -> str:
        """Why the coordinator can't be reached at present, for messages: a deadline may be over before the backend says
        it."""
        return self._backend.trouble

    async def unique_ids_given(self) -> int:
        """Return the number up to which unique ids were given out."""
        return (await self._get(UNIQUE_ID, UniqueIds)).version

    async def close(self) -> None:
        """End this process's registrations, and its use of the backend; later calls raise `Closed`. A directory
        finishes the changes under way. At ZooKeeper one that takes several requests may end with `Closed` between two
        of them, as if the process had died there."""
        self._closed = True
        await self._backend.close()

    # -------------------------------------------------------------- values

    async def partition(self, partition: PartitionId) -> Versioned[PartitionValue]:
        """Return the partition's value. Raises `UnknownPartition`."""
        return await self._get(await self._partition_key(partition), PartitionValue)

    async def set_partition(
        self, partition: PartitionId, value: PartitionValue, expected_version: int
    ) -> Versioned[PartitionValue] | None:
        """Replace the value if its version is `expected_version`; return the new one with its version, or None. Raises
        `UnknownPartition`."""
        return await self._set(await self._partition_key(partition), value, expected_version)

    async def prove_older(self, partition: PartitionId, session: SessionId) -> None:
        """Change no assignment until the partition's value knows of this session, of which its replicas know. The
        coordinator was put back to an older state, which a process that saw nothing later can't see. What is moved
        there can't be served once the latest state is back; other partitions may go on where nobody has that any
        more."""
        self._seen.prove_older(await self._partition_key(partition), session)

    async def assignment(self) -> Versioned[Assignment]:
        """Return the assignment, the same object for as long as nobody changes it."""
        return await self._get(ASSIGNMENT, Assignment)

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        """Return the assignment once its version is above `version`."""
        while True:
            try:
                current = await self.assignment()
            except asyncio.CancelledError as cancelled:
                cancelled.add_note(f"{self} gave no answer")  # else it would pass for the wait for a change
                raise
            if current.version > version:
                return current
            await self._backend.changed(ASSIGNMENT, current.version)

    async def set_assignment(self, value: Assignment, expected_version: int) -> Versioned[Assignment] | None:
        """Replace the assignment if its version is still `expected_version`; return it with its new version, else None.
        Raises `CoordinatorOutdated` while a partition's value lacks a session of `prove_older`."""
        for key in self._seen.proved:
            await self._get(key, PartitionValue)
            if session := self._seen.proved.get(key):
                raise lacking(self._backend.place(key), session)
        return await self._set(ASSIGNMENT, value, expected_version)

    # -------------------------------------------------------------- members

    async def register(self, registration: Registration) -> Membership:
        """Announce this process as a member, until it dies. Doing so again changes nothing. Raises `DirectoryInUse`
        when another living process has registered under this server id, and `CoordinatorUnavailable` while a session
        that this process has lost still has the registration."""
        cluster = await self._cluster()
        server = registration.server
        name = _member(server)
        if not await self._backend.register(name, Entry(cluster.key, 0, registration.encode())):
            if self._is_mine(server):
                raise CoordinatorUnavailable(
                    f"{self._backend.place(name)}: a former session of this process still has the registration of "
                    f"server {server}, and ends by itself within seconds; if it does not, another process is this "
                    "server, too: start this one again"
                )
            raise DirectoryInUse(
                f"{self._backend.place(name)}: another living process is server {server}; start this server again: "
                "it takes a new id"
            )
        if not self._is_mine(server):
            self._memberships[server] = Membership(self._backend, name)
        return self._memberships[server]

    async def members(self) -> list[Registration]:
        """Return the members of this cluster that are registered, alive and working, by their server ids."""
        cluster = await self._cluster()
        registered = await self._backend.registered(MEMBERS)
        now_s = self._clock.monotonic_s()
        # One that does not read has no contents, and no key: it is refused, because it may be one of this cluster's.
        entries = {
            int(name): entry
            for name, entry in registered.items()
            if not entry.contents or entry.cluster_key == cluster.key
        }
        self._leases.keep_only(entries)
        return [
            self._registration(server, entry, cluster.key)
            for server, entry in sorted(entries.items())
            # A process that asks is alive: its own lease is not judged.
            if self._is_mine(server) or not self._leases.has_run_out(server, entry.version, now_s)
        ]

    async def server_addresses(self) -> set[str]:
        """Return the addresses of the servers that are registered or expected."""
        expected = (await self.expected_servers()).value.servers.values()
        return {each.address for each in expected} | {each.address for each in await self.members()}

    async def expected_servers(self) -> Versioned[ExpectedServers]:
        """Return which servers the cluster is to have; version -1 if no server has had a name yet."""
        await self._cluster()
        if await self._backend.read(EXPECTED) is None and self._seen.known(EXPECTED) is None:
            return Versioned(-1, ExpectedServers())
        return await self._get(EXPECTED, ExpectedServers)

    async def expect_server(self, name: str, server: ExpectedServer) -> None:
        """Note that the cluster is to have this server, until `forget_server`."""
        await self._change_expected({name: server})

    async def forget_server(self, name: str) -> None:
        """Note that the cluster is not to have a server of this name any more."""
        await self._change_expected({name: None})

    async def _change_expected(self, changes: Mapping[str, ExpectedServer | None]) -> None:
        while True:  # until nobody else is faster
            present = await self.expected_servers()
            changed = {**present.value.servers, **changes}
            value = ExpectedServers({name: each for name, each in changed.items() if each is not None})
            if value == present.value:
                return
            if present.version < 0:
                key = (await self._cluster()).key
                await self._add({EXPECTED: Entry(key, 0, ExpectedServers().encode())})
            elif await self._set(EXPECTED, value, present.version) is not None:
                return

    def _is_mine(self, server: ServerId) -> bool:
        return server in self._memberships and not self._memberships[server].left

    def _registration(self, server: ServerId, entry: Entry, cluster_key: bytes) -> Registration:
        try:
            registration = _registration_in(entry.contents)
        except CoordinatorDamaged:
            registration = None
        if registration is None or registration.server != server or entry.cluster_key != cluster_key:
            raise CoordinatorDamaged(
                f"{self._backend.place(_member(server))}: the registration of a living server is damaged: restart "
                f"server {server}"
            )
        return registration

    # -------------------------------------------------------------- reading and changing

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the coordinator in {self._backend} was closed by this process")

    async def _cluster(self) -> ClusterDescription:
        """Return the description, perhaps from memory: for what never changes, its key and own partitions."""
        self._check_open()
        return self._description or await self.describe()

    async def _partition_key(self, partition: PartitionId) -> str:
        await self._cluster()
        if partition >= self._total:
            await self.describe()  # a topic may have grown since it was read
        if not 0 <= partition < self._total:
            raise UnknownPartition(f"no partition {partition} in a cluster of {counted(self._total, 'partition')}")
        return partition_key(partition)

    async def _get(self, key: str, kind: type[V]) -> Versioned[V]:
        """Read a value, and refuse one that must not be believed, be it for what other values are by now."""
        await self._cluster()
        return await self._believed(lambda: self._look(key, kind))

    async def _believed(self, look: Callable[[], Awaitable[T]]) -> T:
        """Return what `look` reads, once nothing is doubted; raise why it is not believed."""
        while True:
            found = await look()
            if not self._seen.doubted:
                return found
            await self._check_belief()

    async def _look(self, key: str, kind: type[V]) -> Versioned[V]:
        """Read a value, and refuse one that must not be believed by itself."""
        # Before the read: answers to two reads may overtake each other, and the older one is right all the same.
        floor = self._seen.version(key)
        entry = await self._backend.read(key)
        if entry is None:
            raise await self._missing(key)
        return Versioned(entry.version, self._learn(key, entry, floor, kind))

    async def _check_belief(self) -> None:
        """Raise why the coordinator is not believed, if a value went back and is not back yet."""
        for key in self._seen.doubted:
            known = self._seen.known(key)
            if key == DESCRIPTION:
                await self._look_at_description()
            elif known is not None and key in self._seen.doubted:  # not if all were made again
                await self._look(key, type(known.value))

    async def _set(self, key: str, value: V, expected_version: int) -> Versioned[V] | None:
        await self._cluster()
        if self._seen.known(key) is None or self._seen.version(key) != expected_version:
            await self._get(key, type(value))  # so that a damaged value is refused, and never replaced
        known = self._seen.known(key)
        assert known is not None
        if known.entry.version != expected_version:
            return None
        entry = await self._replaced(key, value.encode(), known.entry)
        if entry is None:
            return None
        self._seen.remember(key, entry, value)
        return Versioned(entry.version, value)

    async def _add(self, entries: Mapping[str, Entry]) -> None:
        await self.may_change()
        await self._backend.add(entries)

    async def _replaced(self, key: str, contents: bytes, present: Entry | None, least: int = -1) -> Entry | None:
        """Replace an entry as the backend does; if one is missing, the error says whether its cluster is."""
        await self.may_change()
        try:
            return await self._backend.compare_and_set(key, contents, present, least)
        except CoordinatorDamaged:
            if await self._backend.read(key) is None:
                raise await self._missing(key) from None
            raise

    async def _missing(self, key: str) -> CoordinatorDamaged:
        if await self._backend.read(DESCRIPTION) is None:
            return deleted(self._backend.place(DESCRIPTION))
        return missing(self._backend.place(key))

    def _learn(self, key: str, entry: Entry, floor: int, kind: type[V]) -> V:
        """Return the value of an entry that may be believed. `floor`: see `SeenValues.went_back`."""
        known = self._seen.known(key)
        if known is not None and self._seen.is_as_known(key, entry, self._clock.monotonic_s()):
            return cast(V, known.value)
        self._check_age(key, entry, floor)
        try:
            value = kind.decode(entry.contents)
        except CoordinatorNewer as error:
            raise newer(self._backend.place(key), error.text) from error
        except CoordinatorDamaged as error:
            raise damaged(self._backend.place(key), error.text) from error
        self._judge(key, entry, floor, value)
        return value

    def _judge(self, key: str, entry: Entry, floor: int, value: CoordinatorValue) -> None:
        """Remember an entry that may be believed, and refuse another one."""
        self._check_age(key, entry, floor)
        seen = self._seen.version(key)
        if not self._seen.follows(key, entry, value, self._clock.monotonic_s()):
            raise not_following(self._backend.place(key), seen, entry.version)
        self._seen.remember(key, entry, value)

    def _check_age(self, key: str, entry: Entry, floor: int) -> None:
        place = self._backend.place(key)
        if self._description is not None and entry.cluster_key != self._description.key:
            raise WrongClusterKey(
                f"{place} belongs to cluster {entry.cluster_key.hex()}, this process to cluster "
                f"{self._description.key.hex()}: the coordinator was replaced while this process ran"
            )
        if self._seen.went_back(key, entry.version, floor):
            raise outdated(place, floor, entry.version)


def _member(server: ServerId) -> str:
    return f"{MEMBERS}/{server}"
