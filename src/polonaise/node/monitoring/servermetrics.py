"""The metrics of a server, read from its state when somebody asks."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, NamedTuple

from polonaise.host import Clock
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.detail import Detail
from polonaise.node.monitoring.samples import Samples
from polonaise.server.node import Server
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.servedpartition import ServedPartition
from polonaise.terms import NO_SESSION, ClientId, FailureReason, StorageId

_TURN_PARTITIONS: Final = 100
"""The most partitions that are looked at in one turn of the loop: others have theirs between them."""
STATES: Final = ("ready", "starting", "failing", "blocked", "stopped")


class _SeenPartition(NamedTuple):
    """What is told of one partition, and summed up for the server."""

    state: str
    waiting: tuple[int, int]
    in_flight: int
    engaged: list[StorageId]
    late: list[StorageId]
    replica_lag: dict[StorageId, int]
    feed_lag: dict[ClientId, int]


def state_of(owner: PartitionOwner, now_s: float) -> str:
    """Return the state of a partition: one of `STATES`. It is `ready` when its health says so."""
    if owner.stopped is not None:
        return "stopped"
    if owner.readiness.blocked is not None:
        return "blocked"
    if owner.session is None:
        return "starting"
    return "failing" if owner.readiness.trouble(now_s) else "ready"


def _look_at(owner: PartitionOwner, now_s: float) -> _SeenPartition:
    session = owner.session
    engaged = list(session.engaged) if session is not None else []
    late = [name for name in session.value.members if name not in session.engaged] if session is not None else []
    lag: dict[StorageId, int] = {}
    if session is not None:
        sent = session.sent
        lag = {name: sent - session.reached(name) for name in engaged}
        lag |= {name: max(0, sent - last) for name, last in owner.readiness.reached.items() if name in late}
    return _SeenPartition(
        state_of(owner, now_s),
        owner.waiting,
        session.in_flight if session is not None else 0,
        engaged,
        late,
        lag,
        {client: max(0, owner.committed + 1 - mount.next_id) for client, mount in owner.feeds.mounts.items()},
    )


async def server_samples(server: Server, clock: Clock, detail: Detail) -> Samples:
    """Read the metrics of a server."""
    samples = Samples()
    _add_totals(samples, server)
    partitions = list(server.partitions.values())
    listed = detail.partitions.lists(len(partitions))
    samples.add(metrics.LISTED, int(listed))
    mounts = sum(len(served.owner.feeds.mounts) for served in partitions)
    clients_listed = detail.clients.lists(mounts)
    looked: list[_SeenPartition] = []
    for number, served in enumerate(partitions, 1):
        seen = _look_at(served.owner, clock.monotonic_s())
        looked.append(seen)
        if listed:
            _add_partition(samples, served, seen)
        if clients_listed:
            for client, lag in seen.feed_lag.items():
                samples.add(metrics.CLIENT_LAG, lag, served.partition, client)
        if number % _TURN_PARTITIONS == 0:
            await asyncio.sleep(0)
    _add_sums(samples, partitions, looked)
    return samples


def _add_totals(samples: Samples, server: Server) -> None:
    """Add what the server itself has counted."""
    measures = server.measures()
    totals = measures.totals
    add = samples.add
    add(metrics.TRANSACTIONS, totals["committed_transactions"])
    add(metrics.BATCHES, totals["committed_batches"])
    add(metrics.BYTES, totals["committed_bytes"])
    samples.add_histogram(metrics.APPEND_SECONDS, measures.latencies)
    for reason in FailureReason:
        add(metrics.FAILED, totals[f"failed_{reason.name.lower()}"], reason.name.lower())
    add(metrics.VOID, totals["void_appends"])
    for code, count in sorted(measures.refused.items()):
        add(metrics.REFUSED, count, code)
    unsure = {"before_session": totals["conflicts_before_session"], "table": totals["conflicts_by_table"]}
    add(metrics.CONFLICTS, totals["conflicts"] - sum(unsure.values()), "certain")
    for certainty, count in unsure.items():
        add(metrics.CONFLICTS, count, certainty)
    add(metrics.SESSIONS, totals["sessions"])
    add(metrics.FAULTS, totals["faults"])
    add(metrics.CACHE_HITS, totals["cache_hits"])
    add(metrics.CACHE_MISSES, totals["cache_misses"])
    add(metrics.CONNECTIONS, measures.connections)
    add(metrics.CONNECTIONS_BYTES, measures.connections_bytes)
    add(metrics.CUT_OFF, measures.connections_cut_off)
    add(metrics.REQUESTS, measures.requests)
    for name, connected in measures.storage_connected.items():
        add(metrics.CONNECTED, int(connected), name)
    add(metrics.COORDINATOR_TROUBLE, int(bool(measures.coordinator_trouble)))
    add(metrics.COORDINATOR_ERRORS, measures.coordinator_errors)
    if measures.cluster is not None:
        add(metrics.OWNED, len(server.partitions), measures.cluster.label)
        add(metrics.CLUSTER_PARTITIONS, measures.cluster.partitions, measures.cluster.label)
    scrub = measures.fragments_scrub
    if scrub is not None:
        add(metrics.FRAGMENT_ROUNDS, scrub["rounds"])
        add(metrics.FRAGMENTS_DONE, scrub["fragments"])
        add(metrics.FRAGMENTS_OF, scrub["fragments_of"])
        add(metrics.FRAGMENTS_DAMAGED, scrub["found"])
        add(metrics.FRAGMENTS_REPAIRED, scrub["repaired"])
        add(metrics.FRAGMENTS_UNREPAIRED, scrub["unrepaired"])
        add(metrics.FRAGMENTS_TROUBLE, int(bool(scrub["trouble"])))


def _add_sums(samples: Samples, partitions: list[ServedPartition], looked: list[_SeenPartition]) -> None:
    """Add what is summed up over the partitions at this moment."""
    add = samples.add
    states = Counter(each.state for each in looked)
    for state in STATES:
        add(metrics.PARTITIONS, states[state], state)
    add(metrics.UNDER_REPLICATED, sum(bool(each.late) for each in looked))
    add(metrics.INBOX, sum(each.waiting[0] for each in looked))
    add(metrics.INBOX_BYTES, sum(each.waiting[1] for each in looked))
    add(metrics.IN_FLIGHT, sum(each.in_flight for each in looked))
    lags = [lag for each in looked for lag in each.feed_lag.values()]
    add(metrics.MOUNTS, len(lags))
    add(metrics.MOUNTS_BEHIND, sum(lag > 0 for lag in lags))
    add(metrics.FEED_LAG, max(lags, default=0))
    engaged = Counter(name for each in looked for name in each.engaged)
    late = Counter(name for each in looked for name in each.late)
    behind: dict[StorageId, int] = {}
    for each in looked:
        for name, lag in each.replica_lag.items():
            behind[name] = max(lag, behind.get(name, 0))
    for name in sorted({*engaged, *late}):
        add(metrics.REPLICA_PARTITIONS, engaged[name], name, "engaged")
        add(metrics.REPLICA_PARTITIONS, late[name], name, "late")
        if name in behind:
            add(metrics.REPLICA_LAG, behind[name], name)
    add(metrics.CACHE_BYTES, sum(served.owner.cache.bytes for served in partitions))
    tables = [served.owner.session.order.locks for served in partitions if served.owner.session is not None]
    add(metrics.LOCKS, sum(table.size for table in tables if table.exact))
    add(metrics.LOCK_TABLES, sum(not table.exact for table in tables))


def _add_partition(samples: Samples, served: ServedPartition, seen: _SeenPartition) -> None:
    """Add the metrics of one partition."""
    owner, session, number = served.owner, served.owner.session, served.partition
    counts = owner.counts

    def add(metric: metrics.Metric, value: float) -> None:
        samples.add(metric, value, number)

    add(metrics.PARTITION_READY, int(seen.state == "ready"))
    add(metrics.PARTITION_GENERATION, owner.generation)
    add(metrics.PARTITION_SESSION, NO_SESSION if session is None else session.id)
    add(metrics.PARTITION_MARK, owner.committed)
    add(metrics.PARTITION_TRANSACTIONS, counts["committed_transactions"])
    add(metrics.PARTITION_BYTES, counts["committed_bytes"])
    add(metrics.PARTITION_FAILED, sum(served.failures_told))
    add(metrics.PARTITION_CONFLICTS, counts["conflicts"])
    add(metrics.PARTITION_SESSIONS, counts["sessions"])
    add(metrics.PARTITION_INBOX_BYTES, seen.waiting[1])
    add(metrics.PARTITION_IN_FLIGHT, seen.in_flight)
    add(metrics.PARTITION_ENGAGED, len(seen.engaged))
    add(metrics.PARTITION_MEMBERS, len(seen.engaged) + len(seen.late))
    add(metrics.PARTITION_MOUNTS, len(seen.feed_lag))
    add(metrics.PARTITION_FEED_LAG, max(seen.feed_lag.values(), default=0))
    for name, lag in seen.replica_lag.items():
        samples.add(metrics.PARTITION_REPLICA_LAG, lag, number, name)
