"""Read the metrics of a server from its state, on request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from polonaise.client.protocol.groupleases import GROUP_LEASES, told_groups
from polonaise.host import Clock
from polonaise.node.condition import lacking_copies
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.samples import Detail, Samples
from polonaise.node.reasons import OF_SERVERS, Reason, ServerTold, server_reasons
from polonaise.server.protocol.commit import losses_that_stop
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.serverhealth import OwnHealth, ServerMeasures
from polonaise.server.startingserver import AnyServer
from polonaise.terms import NO_SESSION, NO_TRANSACTION, ClientId, FailureReason, StorageId

STATES: Final = ("ready", "starting", "failing", "blocked", "stopped")
"""Values of the label `state`."""


class SeenPartition(NamedTuple):
    """The figures of one partition at one moment."""

    state: str
    waiting: tuple[int, int]
    in_flight: int
    engaged: list[StorageId]
    late: list[StorageId]
    lacks_copies: bool
    """Whether its session has fewer members than the partition is to have."""
    replica_lag: dict[StorageId, int]
    mounts: int
    feed_lag: dict[ClientId, int]
    """By client the transactions that its mount was not fed; empty before the owner knows what is committed."""
    reasons: set[Reason]
    """The reasons in its health; what storage nodes found is theirs to tell."""


def state_of(owner: PartitionOwner, now_s: float) -> str:
    """Return one of `STATES`; `ready` exactly if the partition's health says so."""
    if owner.stopped is not None:
        return "stopped"
    if owner.readiness.blocked is not None:
        return "blocked"
    if owner.session is None:
        return "starting"
    return "failing" if owner.readiness.trouble(now_s) else "ready"


def look_at(owner: PartitionOwner, now_s: float, copies: int, connected: Mapping[StorageId, bool]) -> SeenPartition:
    """Return the figures of a partition, which is to have so many copies, at this moment."""
    session = owner.session
    engaged = list(session.engaged) if session is not None else []
    late = [name for name in session.value.members if name not in session.engaged] if session is not None else []
    lag: dict[StorageId, int] = {}
    if session is not None:
        sent = session.sent
        lag = {name: sent - session.reached(name) for name in engaged}
        reached = owner.readiness.reached
        lag |= {name: max(0, sent - reached.get(name, NO_TRANSACTION)) for name in late}
    state, mounts, committed = state_of(owner, now_s), owner.feeds.mounts, owner.proved
    feed_lag = {}
    if committed is not None:
        feed_lag = {client: max(0, committed + 1 - mount.next_id) for client, mount in mounts.items()}
    return SeenPartition(
        state,
        owner.waiting,
        session.in_flight if session is not None else 0,
        engaged,
        late,
        session is not None and len(session.value.members) < copies,
        lag,
        len(mounts),
        feed_lag,
        _reasons(owner, copies, connected, ready=state == "ready"),
    )


def _reasons(owner: PartitionOwner, copies: int, connected: Mapping[StorageId, bool], *, ready: bool) -> set[Reason]:
    """Return what `condition_of` finds by the partition's health, without making that document: it takes long."""
    found = set() if ready else {Reason.PARTITION_NOT_READY}
    session = owner.session
    if session is None:
        return found if all(connected.values()) else {*found, Reason.REPLICA_LEFT_OUT}
    members, engaged, required = session.value.members, session.engaged, session.value.required
    if any((ready and name not in engaged) or not connected.get(name, True) for name in members):
        found.add(Reason.REPLICA_LEFT_OUT)
    if lacking_copies(members, session.value.next, copies, len(connected)):
        found.add(Reason.COPIES)
    if ready and required is not None and required.told and losses_that_stop(members, list(engaged), required):
        found.add(Reason.NO_SPARE)
    return found


_TURN_PARTITIONS: Final = 100
_TURN_PARTITIONS_LISTED: Final = 25
"""The most partitions read in one turn of the event loop, without and with metrics of each one."""


async def server_samples(server: AnyServer, clock: Clock, detail: Detail) -> Samples:
    samples = Samples()
    measures = server.measures()
    totals, connected = measures.totals, {name: node["connected"] for name, node in measures.own.storage.items()}
    partitions = list(server.partitions.values())
    # All of these are counted, even those that leave while this runs: the totals read above lack theirs.
    listed = detail.partitions.lists(len(partitions))
    samples.add(metrics.LISTED, int(listed))
    mounts = sum(len(served.owner.feeds.mounts) for served in partitions)
    clients_listed = detail.clients.lists(mounts)
    turn = _TURN_PARTITIONS_LISTED if listed else _TURN_PARTITIONS
    sums = _Sums()
    for number, served in enumerate(partitions, 1):
        seen = look_at(served.owner, clock.monotonic_s(), server.replication_factor, connected)
        sums.add(served, seen)
        for name, count in served.totals().items():  # in a fraction of the time that `Counter.update` takes
            totals[name] += count
        if listed:
            _add_partition(samples, served, seen)
        _add_groups(samples, served, clock.monotonic_s())
        if clients_listed:
            for client, lag in seen.feed_lag.items():
                samples.add(metrics.CLIENT_LAG, lag, served.partition, client)
        if number % turn == 0:
            await asyncio.sleep(0)
    samples.add_read(metrics.READ_OF_SERVER, measures)
    _add_totals(samples, server, measures)
    _add_archive(samples, measures, clock)
    _add_reasons(samples, server, measures.own, sums.reasons)
    sums.add_to(samples)
    return samples


def _add_reasons(samples: Samples, server: AnyServer, own: OwnHealth, of_partitions: Set[Reason]) -> None:
    found = {*of_partitions, *(reason for reason, _ in server_reasons(ServerTold(own, bool(server.partitions))))}
    if not server.followed:
        found.add(Reason.COORDINATOR)
    if own.fragments_missing:
        found.add(Reason.FRAGMENTS_MISSING)
    if own.fragments_failed:
        found.add(Reason.FRAGMENTS_UNREADABLE)
    if own.fragments_scrub is not None and own.fragments_scrub["unrepaired"] and server.partitions:
        found.add(Reason.FRAGMENT_DAMAGE)
    samples.add_reasons(found, OF_SERVERS)


def _add_totals(samples: Samples, server: AnyServer, measures: ServerMeasures) -> None:
    add, own, totals = samples.add, measures.own, measures.totals
    samples.add_histogram(metrics.APPEND_SECONDS, measures.latencies)
    for reason in FailureReason:
        add(metrics.FAILED, totals[f"failed_{reason.name.lower()}"], reason.name.lower())
    for code, count in sorted(measures.refused.items()):
        add(metrics.REFUSED, count, code)
    unsure = {"before_session": totals["conflicts_before_session"], "table": totals["conflicts_by_table"]}
    add(metrics.CONFLICTS, totals["conflicts"] - sum(unsure.values()), "certain")
    for certainty, count in unsure.items():
        add(metrics.CONFLICTS, count, certainty)
    for name, node in own.storage.items():
        add(metrics.CONNECTED, int(node["connected"]), name)
        if "resent_to" in node:
            add(metrics.RESENT, node["resent_to"], name)
    if server.followed or own.coordinator:
        add(metrics.COORDINATOR_TROUBLE, int(bool(own.coordinator)))
    for address, serves in measures.coordinator_servers.items():
        add(metrics.COORDINATOR_SERVER_UP, int(serves), address)
    if measures.cluster is not None:
        add(metrics.OWNED, len(server.partitions), measures.cluster.label)
        add(metrics.CLUSTER_PARTITIONS, measures.cluster.total, measures.cluster.label)
    for name, offset_s in own.clock["storage"].items():
        add(metrics.CLOCK_OFFSET, offset_s, name)


def _add_archive(samples: Samples, measures: ServerMeasures, clock: Clock) -> None:
    add, archive, scrub = samples.add, measures.archive, measures.own.fragments_scrub
    if archive is not None and archive.due_us is not None:
        age_s = (clock.wall_us() - archive.due_us) / 1e6 if archive.due_us else 0.0
        add(metrics.ARCHIVE_LAG_SECONDS, max(0.0, age_s))
    if scrub is not None:
        add(metrics.FRAGMENT_ROUNDS, scrub["rounds"])
        add(metrics.FRAGMENTS_DAMAGED, scrub["found"])
        add(metrics.FRAGMENTS_REPAIRED, scrub["repaired"])
        if scrub["started_us"]:
            add(metrics.FRAGMENTS_DONE, scrub["fragments"])
            add(metrics.FRAGMENTS_OF, scrub["fragments_of"])
        if scrub["started_us"] or scrub["unrepaired"]:
            add(metrics.FRAGMENTS_UNREPAIRED, scrub["unrepaired"])
        if scrub["started_us"] or scrub["trouble"]:
            add(metrics.FRAGMENTS_TROUBLE, int(bool(scrub["trouble"])))


class _Sums:
    def __init__(self) -> None:
        self.reasons: set[Reason] = set()
        self._states: Counter[str] = Counter()
        self._still = 0
        self._under_replicated = self._falling_behind = self._inbox = self._inbox_bytes = self._in_flight = 0
        self._mounts = self._mounts_behind = self._feed_lag = self._feed_lag_unknown = 0
        self._engaged: Counter[StorageId] = Counter()
        self._late: Counter[StorageId] = Counter()
        self._behind: dict[StorageId, int] = {}
        self._cache_bytes = self._locks = self._lock_tables = 0

    def add(self, served: ServedPartition, seen: SeenPartition) -> None:
        self.reasons |= seen.reasons
        self._states[seen.state] += 1
        if served.times_stand_still:
            self._still += 1
            self.reasons.add(Reason.TIMES_STAND_STILL)
        self._under_replicated += bool(seen.late) or seen.lacks_copies
        self._falling_behind += len(served.owner.readiness.falling_behind)
        self._inbox += seen.waiting[0]
        self._inbox_bytes += seen.waiting[1]
        self._in_flight += seen.in_flight
        self._mounts += seen.mounts
        self._feed_lag_unknown += seen.mounts - len(seen.feed_lag)
        for lag in seen.feed_lag.values():
            self._mounts_behind += lag > 0
            self._feed_lag = max(self._feed_lag, lag)
        for name in seen.engaged:
            self._engaged[name] += 1
        for name in seen.late:
            self._late[name] += 1
        for name, lag in seen.replica_lag.items():
            self._behind[name] = max(lag, self._behind.get(name, 0))
        self._cache_bytes += served.owner.cache.bytes
        if served.owner.session is not None:
            table = served.owner.session.order.locks
            self._locks += table.size if table.exact else 0
            self._lock_tables += not table.exact

    def add_to(self, samples: Samples) -> None:
        add = samples.add
        for state in STATES:
            add(metrics.PARTITIONS, self._states[state], state)
        add(metrics.TIMES_STAND_STILL, self._still)
        add(metrics.UNDER_REPLICATED, self._under_replicated)
        add(metrics.INBOX, self._inbox)
        add(metrics.INBOX_BYTES, self._inbox_bytes)
        add(metrics.IN_FLIGHT, self._in_flight)
        add(metrics.MOUNTS, self._mounts)
        if not self._feed_lag_unknown or self._feed_lag:
            add(metrics.MOUNTS_BEHIND, self._mounts_behind)
            add(metrics.FEED_LAG, self._feed_lag)
        for name in sorted({*self._engaged, *self._late}):
            add(metrics.REPLICA_PARTITIONS, self._engaged[name], name, "engaged")
            add(metrics.REPLICA_PARTITIONS, self._late[name], name, "late")
            if name in self._behind:
                add(metrics.REPLICA_LAG, self._behind[name], name)
        add(metrics.FALLING_BEHIND, self._falling_behind)
        add(metrics.CACHE_BYTES, self._cache_bytes)
        add(metrics.LOCKS, self._locks)
        add(metrics.LOCK_TABLES, self._lock_tables)


def _add_groups(samples: Samples, served: ServedPartition, now_s: float) -> None:
    """Add the metrics of the groups of workers whose leases are with this owner."""
    for name, group in told_groups(served.owner.leases.held(GROUP_LEASES, now_s)).items():
        labels = served.partition, name
        samples.add(metrics.GROUP_MEMBERS, len(group.members), *labels)
        samples.add(metrics.GROUP_PARTITIONS, len(group.workers), *labels)
        hindered = sum(bool(worker.told.get("trouble")) for worker in group.workers.values())
        samples.add(metrics.GROUP_HINDERED, hindered, *labels)
        unknown = sum(worker.number("lag") is None for worker in group.workers.values())
        samples.add(metrics.GROUP_LAG_UNKNOWN, unknown, *labels)
        if (lag := group.lag) is not None:
            samples.add(metrics.GROUP_LAG, lag, *labels)


def _add_partition(samples: Samples, served: ServedPartition, seen: SeenPartition) -> None:
    owner, session, number = served.owner, served.owner.session, served.partition
    counts = owner.counts

    def add(metric: metrics.Metric, value: float) -> None:
        samples.add(metric, value, number)

    add(metrics.PARTITION_READY, int(seen.state == "ready"))
    add(metrics.PARTITION_GENERATION, owner.generation)
    add(metrics.PARTITION_SESSION, NO_SESSION if session is None else session.id)
    if owner.proved is not None:
        add(metrics.PARTITION_MARK, owner.proved)
    add(metrics.PARTITION_TRANSACTIONS, counts["committed_transactions"])
    add(metrics.PARTITION_BYTES, counts["committed_bytes"])
    add(metrics.PARTITION_FAILED, sum(served.failures_told))
    add(metrics.PARTITION_CONFLICTS, counts["conflicts"])
    add(metrics.PARTITION_SESSIONS, counts["sessions"])
    add(metrics.PARTITION_INBOX_BYTES, seen.waiting[1])
    add(metrics.PARTITION_IN_FLIGHT, seen.in_flight)
    add(metrics.PARTITION_ENGAGED, len(seen.engaged))
    add(metrics.PARTITION_MEMBERS, len(seen.engaged) + len(seen.late))
    add(metrics.PARTITION_MOUNTS, seen.mounts)
    if seen.feed_lag or not seen.mounts:
        add(metrics.PARTITION_FEED_LAG, max(seen.feed_lag.values(), default=0))
    for name, lag in seen.replica_lag.items():
        samples.add(metrics.PARTITION_REPLICA_LAG, lag, number, name)
