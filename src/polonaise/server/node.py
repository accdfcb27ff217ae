"""The server process: it owns partitions, and answers clients."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from polonaise.coordination import Coordinator
from polonaise.coordination.values import Assignment, ClusterDescription, Registration, Versioned
from polonaise.errors import (
    Closed,
    CoordinatorDamaged,
    CoordinatorNewer,
    CoordinatorOutdated,
    NotOwner,
    PolonaiseError,
    ProtocolError,
    UnknownPartition,
    WrongClusterKey,
    fresh,
)
from polonaise.histogram import Histogram
from polonaise.host import Host, Listener, certificate_expired, network_trouble, unreachable
from polonaise.link.budget import Budget
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import ANY_CLUSTER, hello
from polonaise.patience import SyncPatience
from polonaise.server import trimming
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.archivewatch import ArchiveWatch
from polonaise.server.assignment import Candidate, LivingServers, assign, owned_by
from polonaise.server.clusteranswers import ClusterAnswers
from polonaise.server.connectionrequests import ConnectionRequests
from polonaise.server.coordinatortrouble import CoordinatorTrouble, answered_within
from polonaise.server.copyturns import CopyTurns
from polonaise.server.expectedservers import ExpectedServersWatch
from polonaise.server.fragmentscrub import FragmentScrubbing
from polonaise.server.givenup import GivenUpPartitions
from polonaise.server.healthwarnings import HealthWarnings
from polonaise.server.measures import ServerMeasures
from polonaise.server.memberwatch import MemberWatch
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol.givingup import GivingUp, Struggle
from polonaise.server.protocol.ownerhealth import health_of
from polonaise.server.protocol.readiness import ReadinessChanges
from polonaise.server.protocol.ticks import Ticks
from polonaise.server.requirements import Requirements
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.serverclock import ServerClock
from polonaise.server.servermembership import ServerMembership
from polonaise.server.settings import ServerSettings
from polonaise.server.sharedparts import SharedParts
from polonaise.server.startturns import StartTurns
from polonaise.server.storageaddresses import StorageAddresses
from polonaise.server.storagehealth import StorageHealth
from polonaise.server.storagelinks import StorageLink, StorageLinks
from polonaise.server.storewatch import StoreWatch
from polonaise.server.valuenotes import ValueNotes
from polonaise.terms import PartitionId, ServerId, StorageId, counted
from polonaise.wire.codec import Message
from polonaise.wire.frame import NO_PARTITION
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, AssignmentIs, Fetch, Health, HealthIs, Read, TrimLog

_log = logging.getLogger(__name__)
_REQUESTS_MAX = 64
"""The most unanswered requests of one connection, without those that owners answer: while it has so many, nothing is
read from it."""
_MAKING_MAX = 4
"""The most answers of all connections that are put together in memory at the same time."""
_ASSIGNMENT = "the assignment can't be read"
_BALANCE = "the assignment can't be changed"
_DESCRIPTION_S = 60.0
"""Seconds after which the description is read again unasked: who grew a topic may have died before assigning it."""
_GIVING_UP = "the partitions that this server gives up can't be told"
_LOOK_S = 1.0
"""The interval, in seconds, at which this server looks which partitions it can't serve."""
_NAMED_MAX = 8
"""The most partitions that a line of the log names."""
_TICK_S = 0.25
"""The interval, in seconds, at which partitions that are not at rest are told the time: a deadline may be noticed this
much late."""


class Server:
    """Runs one server: after `start` it serves until `close`."""

    def __init__(
        self,
        host: Host,
        coordinator: Coordinator,
        settings: ServerSettings | None = None,
        open_history: Callable[[bytes], ArchivedHistory] | None = None,
    ) -> None:
        """Make a server that is not started.

        `open_history` opens the fragment store, given the cluster's key; None for a server without fragments.
        """
        self._host = host
        self._coordinator = coordinator
        self._settings = settings or ServerSettings()
        self._open_history = open_history
        self._history: ArchivedHistory | None = None
        self._scrubbing: FragmentScrubbing | None = None
        self._archive: ArchiveWatch | None = None
        self._store: StoreWatch | None = None
        self.id = 0
        """The server's id, unique in the cluster and given out by the coordinator; 0 before `start`."""
        self._listener: Listener | None = None
        self._living: LivingServers
        """The living servers, as this one sees them; from `start` on."""
        self._trouble = CoordinatorTrouble(host.clock)
        self._cluster = ClusterAnswers(host, coordinator, self._settings, self._trouble)
        self._addresses: StorageAddresses
        """Where the storage nodes are reached; unset before `start`."""
        self._links = StorageLinks(self._link)
        self._storage_health = StorageHealth(host, self._links)
        self._clock = ServerClock(host, self._settings, self._links, lambda: self._membership.coordinator_clock)
        self._shared: SharedParts
        """What each partition is given; from `start` on."""
        self.partitions: dict[PartitionId, ServedPartition] = {}
        """The partitions that the followed assignment gives this server, also those that have stopped by themselves."""
        self._past: Counter[str] = Counter()
        """The totals of partitions that are not in `partitions` any more."""
        self._latencies = Histogram()
        self._refused: Counter[str] = Counter()
        self._membership = ServerMembership(host, coordinator, self._trouble, self._stop_owning)
        self.followed = False
        """Whether the server serves the partitions that an assignment gives it, if any: False before it has read one,
        after `close`, and while its registration may have run out."""
        self._giving_up = GivingUp(self._settings.give_up_s)
        self._given_up_told = GivenUpPartitions(host, coordinator, self._settings.coordinator_s_max, self.partitions)
        self.given_up: frozenset[PartitionId] = frozenset()
        """The partitions that this server has given up, and tells the others."""
        self._unable: frozenset[PartitionId] = frozenset()
        """The partitions that this server tells the others that it is unable to serve: those that it has given up, and
        while its fragment store is away or its certificate has expired, those that it could not begin to serve."""
        self._owned: frozenset[PartitionId] = frozenset()
        """The partitions that the assignment gave this server that it followed last."""
        self._looked_s = 0.0
        self._expired = ""
        """Why no client connects any more: the certificate had expired at the last look. Empty if it had not, and
        without TLS."""
        self._telling: asyncio.Task[None] | None = None
        self._ticks = Ticks()
        self._changes = ReadinessChanges()
        self._struggles: dict[PartitionId, Struggle] = {}
        """The partitions that fail or have failed, at the last look at all partitions."""
        self._struggles_at = 0
        """The count of changes at that look."""
        self._requirements = Requirements(coordinator)
        self._expected = ExpectedServersWatch(coordinator, self._settings.name, self._trouble)
        self._starts = StartTurns(self._settings, self._storage_majority_connected)
        self._copies = CopyTurns(host, self._settings, self._latencies)
        self._connections: dict[Connection, ConnectionRequests] = {}
        self._budget = Budget(self._settings.connections_bytes_max)
        self._making = asyncio.Semaphore(_MAKING_MAX)
        """Held while an answer is put together in memory; once it is sent, the budget counts it."""
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------ life

    @property
    def address(self) -> str:
        """The address at which clients reach this server. Raises `Closed` before `start`."""
        if self._listener is None:
            raise Closed("the server is not started")
        return self._listener.address

    @property
    def _registration(self) -> Registration:
        """This server's entry among the living servers."""
        return Registration(self.id, self.address, self._settings.preferred, self._unable)

    async def start(self) -> None:
        """Listen, register, and start the tasks, above all the one that keeps the assignment and follows it.

        The server registers the address at which it listens, and so only after it has begun to listen: a server that
        others can find must take connections.
        """
        described = await self._coordinator.description()
        self._cluster.learn_description(described)
        self._requirements.begin(described)
        self._addresses = StorageAddresses(self._host, self._coordinator, self._description)
        if self._open_history is not None:
            self._history = self._open_history(self._description.key)
        self._shared = SharedParts(
            self._host, self._coordinator, self._settings, self._links, self._starts, self._copies, self._ticks,
            self._changes, self._history, self._latencies, self._clock, self._requirements,
            SyncPatience(self._settings.coordinator_s_max, 4 * self._settings.coordinator_s_max),
        )  # fmt: skip
        self.id = await self._coordinator.unique_id()
        self._cluster.server, self._cluster.partitions = self.id, self._description.partitions
        self._listener = await self._host.network.listen(self._settings.listen, self._accept)
        for name in self._description.storage:
            _ = self._links[name]  # connects while the first session start still asks the coordinator
        self._living = LivingServers(self.id, self._settings.settle_s)
        await self._membership.register(self._registration)
        warnings = HealthWarnings(
            self._host, self._settings, lambda: [served.owner for _, served in sorted(self.partitions.items())],
            self._links, self._changes, lambda: self.not_owning,
        )  # fmt: skip
        members = MemberWatch(
            self._host.clock,
            self._coordinator,
            self._settings,
            self.partitions,
            self._links,
            self._addresses,
            self._trouble,
        )
        self._tasks = [
            self._host.spawn(self._watch_assignment(), "assignment"),
            self._host.spawn(warnings.watch(), "warnings"),
            self._host.spawn(self._tick(), "tick"),
            self._host.spawn(self._membership.keep(), "lease"),
            self._host.spawn(self._membership.watch(), "tenure"),
            self._host.spawn(self._requirements.follow(members.hurry, self._follow_requirement), "requirement"),
        ]
        if self._settings.name or self._coordinator.has_servers:
            self._tasks.append(self._host.spawn(self._expected.run(self.id, self.address), "expected servers"))
        if self._settings.notes_s:
            notes = ValueNotes(
                self._host, self._coordinator, self._settings, self._cluster, self._links, self.partitions,
                self._changes, self._expected, self._trouble,
            )  # fmt: skip
            self._tasks.append(self._host.spawn(notes.run(), "notes of the coordinator's values"))
        if self._settings.members_look_s:
            self._tasks.append(self._host.spawn(members.run(), "members"))
        if self._history is not None:
            self._store = StoreWatch(self._history, self._settings.store_look_s)
            self._tasks.append(self._host.spawn(self._store.run(), "fragment store"))
            look_s, missing_look_s = self._settings.archive_look_s, self._settings.store_look_s
            fragment_bytes = self._settings.archive_fragment_bytes
            self._archive = ArchiveWatch(self._history, look_s, missing_look_s, fragment_bytes, self._readers)
            self._tasks.append(self._host.spawn(self._archive.run(), "archive"))
            self._scrubbing = FragmentScrubbing(self._host, self._settings, self._history, self._readers)
            self._tasks.append(self._host.spawn(self._scrubbing.run(), "scrub of the fragments"))
        _log.info("server %d listens on %s", self.id, self.address, extra=self._fields)

    def _readers(self) -> dict[PartitionId, PartitionReader]:
        return {partition: served.reader for partition, served in self.partitions.items()}

    @property
    def _description(self) -> ClusterDescription:
        """The cluster's description as it was last read; from `start` on."""
        assert self._cluster.described is not None
        return self._cluster.described.value

    @property
    def replication_factor(self) -> int:
        """How many copies each partition is to have; 0 before `start`."""
        return 0 if self._cluster.described is None else self._cluster.described.value.replication_factor

    @property
    def _fields(self) -> dict[str, int]:
        """The fields of a line in the log (`node.logformat`)."""
        return {"server": self.id}

    def _link(self, name: StorageId) -> StorageLink:
        """Make the link to a storage node, not started."""
        key = self._description.key
        return StorageLink(self._host, name, self.id, key, self._settings, self._links, self._addresses)

    def _storage_majority_connected(self) -> bool:
        """Whether as many storage nodes are connected as are a majority of a partition's copies.

        With fewer, hardly any partition can start a session.
        """
        return 2 * self._storage_connected > self.replication_factor

    @property
    def _most_storage_connected(self) -> bool:
        """Whether most storage nodes are connected, too: else many partitions can't start a session, and whose copies
        are where is not known here."""
        return self._storage_majority_connected() and 2 * self._storage_connected > len(self._links)

    @property
    def _storage_connected(self) -> int:
        return sum(link.session is not None for link in self._links.values())

    async def close(self) -> None:
        """Stop serving. The next owner of each partition decides the fate of the appends in flight."""
        self.followed = False
        if self._telling is not None:
            self._telling.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:  # ended first: one that is registering this server could do so after it has left
            await asyncio.wait(self._tasks, timeout=self._settings.farewell_s_max)
        # While the sessions still hold: replicas note only from their session's owner what is committed.
        try:
            await asyncio.gather(*(served.confirm() for served in self.partitions.values()))
            await self._hand_over()
        finally:  # a caller that gives up waiting gets a closed server all the same: open sockets would outlive it
            await self._end()

    async def _hand_over(self) -> None:
        """Leave the cluster, and give this server's partitions to the others, if the coordinator answers in time.

        If it does not, the others take the partitions once they see that this server is gone.
        """
        if not self._membership.registered:
            return
        try:
            async with asyncio.timeout(self._settings.coordinator_s_max):
                # First: the others would give the partitions back to a server that is still a member.
                await self._membership.leave()
                written = None
                while written is None:  # another server may just have changed it: look at that
                    current = await self._coordinator.assignment()
                    members = [each for each in await self._coordinator.members() if each.server != self.id]
                    others = self._living.candidates(members, current.value, self._host.clock.monotonic_s())
                    written = await self._assign(current, others, rebalance=False)
        except (PolonaiseError, TimeoutError) as error:  # whatever the coordinator says: the server ends as cleanly
            why = str(error) or "the coordinator gave no answer"  # a timeout says nothing
            _log.warning("server %d handed over nothing: %s", self.id, why)

    async def _end(self) -> None:
        """Close everything, and leave the cluster at the end."""
        # Before the connections are closed: over these the clients are told to look elsewhere.
        for served in self.partitions.values():
            served.close(NotOwner("the server is shutting down: read the assignment again"))
        if self._listener:
            await self._listener.close()
        for connection in list(self._connections):
            connection.close()
        for link in self._links.values():
            link.close()
        if self._links:
            self._addresses.close()
        # Last, because others take the partitions over as soon as this server has left.
        await self._membership.leave()

    async def _watch_assignment(self) -> None:
        """Follow the assignment for ever: keep it balanced over the living servers, and serve what is this server's."""
        pause_s = self._settings.retry_s_min
        followed: Assignment | None = None
        before: tuple[dict[ServerId, Candidate], bool, int, int] = {}, False, 0, 0
        while True:
            try:
                stretch = await self._membership.held(self._settings.coordinator_s_max)
                current = await self._coordinator.assignment()
                members = await self._members()
                now_s = self._host.clock.monotonic_s()
                names_new = max(current.value.owners, default=-1) >= self._description.total
                if names_new or now_s - self._cluster.described_s >= _DESCRIPTION_S:
                    await self._cluster.read_description()
                total = self._description.total
                candidates = self._living.candidates(members, current.value, now_s)
                quiet = self._living.quiet(now_s)
                # Looked at besides the assignment, which stays as it is when an owner dies, the quiet begins, the
                # cluster grows, or the registration has run out meanwhile.
                now = candidates, quiet, total, stretch
                if current.value is not followed or now != before or self._trouble.is_failing(_BALANCE):
                    written = await self._assign(current, candidates, rebalance=quiet)
                    if written is None:  # another server was faster: look at what it wrote
                        continue
                    self._membership.check()
                    if stretch != self._membership.stretch:  # what was read before may not be believed any more
                        continue
                    self._follow(written.value)
                    self._membership.owns_again()
                    self._cluster.learn(written)
                    self.followed = True
                    current, followed, before = written, written.value, now
                else:
                    self._cluster.learn(current)
                pause_s = self._settings.retry_s_min
                self._trouble.succeeded(_ASSIGNMENT)
                try:
                    async with asyncio.timeout(self._settings.coordinator_s_max / 5):
                        await self._coordinator.assignment_after(current.version)
                except TimeoutError:
                    pass
            except Closed:
                raise
            except (CoordinatorDamaged, WrongClusterKey) as error:
                self._cluster.note_trouble(str(error))
                # Running sessions may go on: replicas fence them if they are deposed. New ones need the coordinator.
                self._trouble.failed(_ASSIGNMENT, error, level=logging.ERROR, **self._fields)
                if isinstance(error, CoordinatorNewer):
                    await self._step_aside()
                pause_s = self._settings.retry_s_max
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
            except PolonaiseError as error:  # whatever the coordinator says: it is no reason to end
                self._cluster.note_trouble(str(error))
                self._trouble.failed(_ASSIGNMENT, error, **self._fields)
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
                pause_s = min(2 * pause_s, self._settings.retry_s_max)

    async def _members(self) -> list[Registration]:
        """Read the living servers, and register this one again if it is not among them.

        While its clock is off, and others are there, it leaves them instead: it could start no sessions.
        """
        members = await self._coordinator.members()
        others = [member for member in members if member.server != self.id]
        if others and self._clock.unfit_s > self._settings.clock_patience_s:
            await self._step_aside()
            return others
        # This server was taken for dead while it was paused or cut off, or its clock is right again. Unless it
        # registers again, others take its partitions each time it takes them back.
        if len(others) == len(members):
            await self._membership.register_again()
            members.append(self._registration)
        return members

    async def _step_aside(self) -> None:
        """Leave the members, so that servers that can do what this one can't take over what it owns.

        It can't read the coordinator's values, and as a member would be given partitions that it does not learn of; or
        its clock is off. Until another server takes its partitions it goes on with them: if it is the only one, nobody
        else would. It registers again once it can do that again.
        """
        if self._membership.left:
            return
        try:
            await self._membership.leave()
        except PolonaiseError as error:
            _log.warning("server %d could not leave the members: %s", self.id, error, extra=self._fields)

    async def _assign(
        self, current: Versioned[Assignment], candidates: Mapping[ServerId, Candidate], *, rebalance: bool
    ) -> Versioned[Assignment] | None:
        """Write the assignment for these servers, and return it; None if another server has written one first.

        If the current one is right already, nothing is written, and it is returned.
        """
        # Whoever grew a topic may have assigned partitions that are not known here yet: they stay assigned.
        total = max(self._description.total, max(current.value.owners, default=-1) + 1)
        assignment = assign(current.value, candidates, total, rebalance=rebalance)
        self._trouble.not_needed(_BALANCE)
        if assignment == current.value:
            return current
        try:
            return await self._coordinator.set_assignment(assignment, current.version)
        except CoordinatorOutdated as error:
            # What is there is followed: partitions whose latest state nobody has any more may be among the others.
            self._trouble.failed(_BALANCE, error, level=logging.ERROR, **self._fields)
            return current

    def _follow(self, assignment: Assignment) -> None:
        """Serve the partitions that the assignment gives this server, and no others."""
        mine = owned_by(assignment, self.id)
        self._owned = frozenset(mine)
        for partition, served in list(self.partitions.items()):
            # Another generation is another owner, even on the same server: it has to start a session of its own.
            if partition not in mine or mine[partition].generation != served.generation:
                served.close(NotOwner(f"partition {partition} has another owner now: read the assignment again"))
                del self.partitions[partition]
                self._past.update(served.totals())
        for partition, owned in sorted(mine.items(), key=itemgetter(0)):
            if partition not in self.partitions:
                served = self.partitions[partition] = ServedPartition(self._shared, partition, owned.generation)
                served.start()

    def _follow_requirement(self) -> None:
        """Have each partition act by the requirement and the zones that were just read, from a new session on."""
        for served in list(self.partitions.values()):
            served.follow_requirement()

    def _stop_owning(self) -> None:
        """Own nothing any more, because others may own it by now. They decide the fate of appends in flight."""
        self.followed = False
        for partition, served in list(self.partitions.items()):
            served.close(NotOwner(f"partition {partition}: {self.not_owning}"))
            del self.partitions[partition]
            self._past.update(served.totals())

    @property
    def not_owning(self) -> str:
        """Why this server owns nothing, if its registration may have run out, until it owns again; empty otherwise."""
        return self._membership.not_owning

    @property
    def waits_for(self) -> str:
        """What this server, which does not follow an assignment, waits for: nearly always its coordinator."""
        if self.not_owning:
            return self.not_owning
        if trouble := self._coordinator_trouble:
            return f"the server has not read the assignment yet: {trouble}"
        if not self.id:
            return f"the server waits for an answer of the coordinator, {self._coordinator}"
        return f"the server has not read the assignment yet from {self._coordinator}, or it is stopping"

    async def _tick(self) -> None:
        """Tell the partitions the time, for ever: those at rest a few at a time, in turns."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._clock.look()
            self._look_at_struggles()
            for partition in self._ticks.due(self.partitions):
                self.partitions[partition].tick()

    def _look_at_struggles(self) -> None:
        """Look once a second which partitions this server can't serve; tell the others when that has changed."""
        now_s = self._host.clock.monotonic_s()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._expired = certificate_expired(self._host.network, self._host.clock.wall_us())
        if self._struggles_at != self._changes.count:
            self._struggles_at = self._changes.count
            fare = ((partition, served.struggle) for partition, served in self.partitions.items())
            self._struggles = {partition: struggle for partition, struggle in fare if struggle is not None}
        given_up = self._giving_up.look(
            now_s,
            self.partitions,
            self._struggles,
            Struggle(bool(self.not_owning or self._expired), self._membership.stretch),
            self._owned,
            connected=self._most_storage_connected,
        )
        self._given_up_told.note(given_up, self.not_owning or self._expired, self.id)
        unable = given_up | self._not_to_be_started
        if (given_up, unable) == (self.given_up, self._unable):
            self._trouble.not_needed(_GIVING_UP)  # there is nothing to be told any more
        elif self._telling is None or self._telling.done():
            self._telling = self._host.spawn(self._tell_unable(given_up, unable), "partitions that are given up")

    @property
    def _not_to_be_started(self) -> frozenset[PartitionId]:
        """The partitions that this server could not begin to serve now: its certificate has expired, so that no client
        connects to it, or its fragment store is away.

        Not those that it owns, and gives up after a grace if its certificate has expired; nor without the store those
        of which it has had a session: it needs no store for the next one.
        """
        able = set(range(self._description.total))
        if self._expired:
            able &= self._owned
        if self.store_trouble:
            able &= {each for each, served in self.partitions.items() if served.owner.counts["sessions"]}
        return frozenset(range(self._description.total)).difference(able)

    @property
    def _fragments_missing(self) -> dict[str, str]:
        """The partitions with ids that nothing holds any more, as JSON has them, each with the first of these ids."""
        gone = {} if self._archive is None or self._archive.lag is None else self._archive.lag.gone
        return {str(partition): what for partition, what in gone.items() if partition in self.partitions}

    @property
    def _fragments_failed(self) -> dict[str, str]:
        """The partitions of which a read of the fragments failed by a mistake of ours, as JSON has them, and why."""
        failed = {} if self._history is None else self._history.failed
        return {str(partition): why for partition, (_, why) in failed.items() if partition in self.partitions}

    @property
    def store_trouble(self) -> str:
        """Why the fragment store can't be used; empty if it can, without one, and before the first look."""
        return (self._store and self._store.trouble) or ""

    @property
    def _not_served_again(self) -> list[PartitionId]:
        """The partitions that this server has given up, but for those that it serves again.

        Others are told of these for a while, too, so that none comes back too early.
        """
        given_up = ((partition, self.partitions.get(partition)) for partition in sorted(self.given_up))
        return [partition for partition, served in given_up if served is None or served.owner.session is None]

    async def _tell_unable(self, given_up: frozenset[PartitionId], unable: frozenset[PartitionId]) -> None:
        """Tell the others which partitions this server can't serve; after a failure, the next look tells them again."""
        try:
            async with answered_within(self._settings.coordinator_s_max, self._coordinator):
                await self._membership.tell(replace(self._registration, unable=unable))
        except PolonaiseError as error:
            self._trouble.failed(_GIVING_UP, error, **self._fields)
            return
        self._trouble.succeeded(_GIVING_UP)
        self._unable = unable
        if given_up == self.given_up:
            return
        self.given_up = given_up
        listed = ", ".join(map(str, sorted(given_up)[:_NAMED_MAX])) + (" …" if len(given_up) > _NAMED_MAX else "")
        news = (
            f"gives up {counted(len(given_up), 'partition')} that it can't serve: {listed}"
            if given_up
            else "gives up nothing"
        )
        _log.log(logging.WARNING if given_up else logging.INFO, "server %d %s", self.id, news, extra=self._fields)

    # ------------------------------------------------------------------ connections

    def _accept(self) -> Connection:
        """Make the connection for a client that has just connected, or for whoever asks for health as a server."""
        return Connection(
            self._host,
            hello=hello(ROLE_SERVER, f"server {self.id}", cluster_key=self._description.key, node=self.id),
            peer_roles=(ROLE_CLIENT, ROLE_SERVER),
            on_message=self._on_message,
            on_closed=self._on_closed,
            on_greeted=self._on_greeted,
            settings=self._settings.link,
            accepted=True,
            tells_strangers=(ROLE_CLIENT, ROLE_SERVER),
            budget=self._budget,
        )

    def _on_greeted(self, connection: Connection) -> None:
        """Begin to serve a client that has said hello."""
        self._connections[connection] = ConnectionRequests()

    def _on_closed(self, connection: Connection, error: PolonaiseError) -> None:
        """End the client's mounts on this connection, and cancel its requests that wait for something."""
        requests = self._connections.pop(connection, None)
        if requests is None or connection.peer is None:
            return
        for task in list(requests.waits):
            task.cancel()
        for served in self.partitions.values():
            served.disconnected(connection)

    def _on_message(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        """Handle a client's message. Raises the error with which it is refused, after counting the refusal."""
        try:
            self._handle(connection, message, request, partition)
        except PolonaiseError as error:
            self._refused[error.code] += 1
            raise

    def _handle(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        """Bring a message to an owner; answer reads, trims, health requests and those about the cluster in tasks.

        Raises the error with which the message is refused.
        """
        # An operator with a server's certificate, such as that of `storage clean`; a client's is needed for all else.
        if connection.peer_role == ROLE_SERVER and not isinstance(message, Health):
            name = type(message).__name__
            raise ProtocolError(f"whoever is no client may ask a server for its health only, and sent {name}")
        stranger = connection.peer is not None and connection.peer.cluster_key == ANY_CLUSTER
        asked = self._cluster.answering(message, stranger=stranger)
        if asked is not None:
            self._answer(connection, partition, request, *asked)
            return
        if stranger:
            raise WrongClusterKey("this client has named no cluster: say hello with the cluster key, then ask for more")
        if isinstance(message, Health):
            # With a partition, only its owner answers, so that a client finds the right server. Without one, any server
            # tells how it is, even while it owns nothing.
            if partition != NO_PARTITION and partition not in self.partitions:
                raise self._not_owner(partition)
            self._answer(connection, partition, request, self._health_answer(), self._storage_health.ask())
            return
        self._membership.check()
        if partition != NO_PARTITION and partition >= self._description.total:
            self._answer(connection, partition, request, self._refusal(partition), self._cluster.read_description())
            return
        served = self._served(partition)
        # Somebody waits for this partition now: its session start goes before those that nobody waits for.
        if served.owner.session is None:
            self._starts.want(served)
        match message:
            case Read():
                waiting = served.reader.wait(message)
                self._answer(connection, partition, request, served.reader.read(message), waiting)
            case Fetch():
                self._answer(connection, partition, request, served.reader.fetch(message))
            case TrimLog():
                self._answer(connection, partition, request, trimming.trim(served.reader, message))
            case _:
                served.receive(connection, message, request)

    def _served(self, partition: PartitionId) -> ServedPartition:
        """Return a partition that this server owns and that takes requests. Raises the reason if there is none."""
        served = self.partitions.get(partition)
        stopped = served.owner.stopped if served is not None else None
        if stopped is not None and not isinstance(stopped, NotOwner):
            raise fresh(stopped)
        if served is None or stopped is not None:
            raise self._not_owner(partition)
        if served.owner.readiness.blocked is not None:
            raise fresh(served.owner.readiness.blocked)
        return served

    async def _refusal(self, partition: PartitionId) -> Message:
        """Raise the error for a partition that this server did not know when it was asked."""
        raise self._not_owner(partition)

    def _not_owner(self, partition: PartitionId) -> PolonaiseError:
        """Return the error for a partition that this server does not own: `UnknownPartition` or `NotOwner`."""
        if not 0 <= partition < self._description.total:
            return UnknownPartition(
                f"there is no partition {partition}: this cluster has partitions 0 to {self._description.total - 1}"
            )
        # The cause, if there is one: that it owns nothing follows from it, and no other server may own anything either.
        if not self.followed:
            return NotOwner(f"partition {partition}: {self.waits_for}")
        return NotOwner(f"server {self.id} does not own partition {partition}: read the assignment again")

    # ------------------------------------------------------------------ requests

    def _answer(
        self,
        connection: Connection,
        partition: PartitionId,
        request: int,
        answering: Coroutine[Any, Any, Message],
        wait: Coroutine[Any, Any, object] | None = None,
    ) -> None:
        """Answer a request in a task of its own, once `wait` has ended.

        While a connection has `_REQUESTS_MAX` such requests unanswered, nothing is read from it. And an answer is made
        only when little is unsent of those before: a client that does not read must not fill this server's memory.
        """
        requests = self._connections[connection]
        requests.waiting += 1
        if requests.waiting >= _REQUESTS_MAX:
            connection.pause("requests")

        async def run() -> None:
            try:
                # Waiting takes no memory, so it takes no turn either: a long poll must not hold up other requests.
                if wait is not None:
                    await requests.wait(wait, connection)
                async with requests.turn:
                    # Before `_making`, which all connections share: a slow client must not hold it.
                    await connection.wait_writable()
                    async with self._making:
                        answer = await answering
                    # All who ask are sent the same rows, which are in memory anyway. But each once: of those that
                    # don't read, the buffers may hold copies.
                    shared = isinstance(answer, AssignmentIs) and not connection.unsent_bytes
                    connection.send(answer, request=request, partition=partition, shared=shared)
            except PolonaiseError as error:
                self._refused[error.code] += 1
                connection.refuse(error, request=request, partition=partition)
            finally:
                answering.close()  # never begun, if something above has failed
                requests.waiting -= 1
                if requests.waiting < _REQUESTS_MAX:
                    connection.resume("requests")

        self._host.spawn(run(), f"request of {connection.peer_name}")

    # ------------------------------------------------------------------ health

    @property
    def past_totals(self) -> Counter[str]:
        """The totals of the partitions that are not in `partitions` any more, summed up: a copy."""
        return Counter(self._past)

    @property
    def _coordinator_trouble(self) -> str:
        """What fails at the coordinator; or else, before any operation has failed, why it can't be reached now."""
        return self._trouble.present(self._coordinator)

    def measures(self) -> ServerMeasures:
        """Return what can be measured of this server as a whole; more of each partition is in `partitions`."""
        return ServerMeasures(
            cluster=None if self._cluster.described is None else self._cluster.described.value,
            latencies=self._latencies,
            refused=self._refused,
            connections=len(self._connections),
            connections_bytes=self._budget.total,
            connections_cut_off=self._budget.cut_off,
            requests=sum(requests.waiting for requests in self._connections.values()),
            storage_connected={name: link.session is not None for name, link in self._links.items()},
            storage_resent={name: link.resent for name, link in self._links.items()},
            coordinator_errors=self._trouble.errors,
            missing_servers=None if self._expected.seen is None else len(self._expected.missing),
            given_up=len(self._given_up_told.told(self._not_served_again)),
            coordinator_servers={name: not why for name, why in self._expected.coordinator_servers.items()},
            coordinator_trouble=self._coordinator_trouble,
            fragments_scrub=self._scrubbing.health() if self._scrubbing is not None else None,
            store_trouble=None if self._store is None else self._store.trouble,
            archive=None if self._archive is None else self._archive.lag,
            copies=self._copies.health(),
            clock=self._clock.health(),
        )

    async def checked_health(self) -> dict[str, Any]:
        """Return `health`, after the storage nodes were asked for theirs, which takes about half a second at most."""
        await self._storage_health.ask()
        return self.health()

    async def _health_answer(self) -> HealthIs:
        """Return this server's health as a message."""
        return HealthIs(json.dumps({**self.health(), "tasks": len(asyncio.all_tasks())}).encode())

    def health(self) -> dict[str, Any]:
        """Return the health of this server, its partitions and its storage nodes, as a JSON-ready document."""
        now, owned = self._clock.now(), sorted(self.partitions.items())
        return {
            **self.own_health(),
            "partitions": {str(partition): health_of(served.owner, now) for partition, served in owned},
        }

    def own_health(self) -> dict[str, Any]:
        """Return what `health` says beside the partitions, of which there may be thousands."""
        return {
            "server": self.id,
            "name": self._settings.name,
            "missing_servers": self._expected.missing,
            "namesake": self._expected.trouble,
            "coordinator_servers": self._expected.coordinator_troubles(),
            "coordinator": self._coordinator_trouble,
            "not_owning": self.not_owning,
            "given_up": self._not_served_again,
            "given_up_why": {str(each): why for each, why in self._given_up_told.told(self._not_served_again).items()},
            "tls": network_trouble(self._host.network),
            "unreachable": unreachable(self._host.network),
            "clock": self._clock.health(),
            "fragments": str(self._history or ""),
            "fragments_trouble": self.store_trouble,
            "fragments_missing": self._fragments_missing,
            "fragments_failed": self._fragments_failed,
            "required": self._requirements.told,
            "topics_required": self._requirements.told_of_topics,
            "fragments_scrub": self._scrubbing.health() if self._scrubbing is not None else None,
            "copies": self._copies.health(),
            "replication_factor": self.replication_factor,
            "storage": {
                name: {
                    # Not what a node said before it went.
                    **({} if link.session is None else self._storage_health.answers.get(name, {})),
                    "address": link.address,
                    "connected": link.session is not None,
                    "connected_at": None if link.session is None else link.session_address,
                    "error": str(link.last_error or link.bulk_error or ""),
                    "silent_s": link.silent_s,
                    **({} if link.resent is None else {"resent_to": link.resent}),
                }
                for name, link in self._links.items()
            },
        }
