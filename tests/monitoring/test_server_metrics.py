"""Each metric of a server and of storage nodes moves when it should, in a simulated cluster."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import polonaise
from polonaise.client.log import Log
from polonaise.coordination.values import Assignment
from polonaise.errors import CoordinatorUnavailable, ExpectationFailed, LockConflict
from polonaise.histogram import BOUNDS_S, Histogram
from polonaise.host.real import RealHost
from polonaise.node.addresses import coordinator_at
from polonaise.node.condition import conditions_in
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring import servermetrics
from polonaise.node.monitoring.face import ObservedServer, ObservedStorage
from polonaise.node.monitoring.samples import AUTO_MAX, Detail, Samples, SeriesListed
from polonaise.node.reasons import Reason
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.recovery import quorum
from polonaise.server.settings import ServerSettings
from polonaise.server.startingserver import StartingServer
from polonaise.terms import NO_SESSION, Transaction
from polonaise.wire.messages import Flush
from rigs.town import Town, held_down, in_an_application
from rigs.waiting import wait_until


def watched(town: Town) -> ObservedServer:
    return ObservedServer(lambda: town.server, town.server.parts.shared.host.clock)


async def of_server(town: Town) -> Samples:
    return await watched(town).samples(Detail())


async def of_storage(town: Town) -> Samples:
    node = town.cluster.stores[town.cluster.storage[0].name]
    return await ObservedStorage(node, node._host, node._settings.directory).samples(Detail())


async def owner_of_a_second_session(town: Town) -> PartitionOwner:
    """Wait until partition 0 has a session without a node that is away. Return its owner."""
    owner = town.server.partitions[0].owner
    await wait_until(lambda: owner.counts["sessions"] == 2, within_s=60.0, every_s=0.1)
    return owner


@in_an_application
async def test_every_metric_has_samples_that_hold_nothing_of_the_node(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    town.server.parts.connections.refused["not_owner"] += 1
    seen = {**await of_server(town), **await of_storage(town)}
    of_every_node = {metric for metric in metrics.METRICS if metric.name.startswith("polonaise_node_")}
    of_every_node.remove(metrics.NODE_DEGRADED)
    of_a_player = {metric for metric in metrics.METRICS if metric.name.startswith("polonaise_player_")}
    of_a_store = {metric for metric in metrics.METRICS if "fragment" in metric.name or "archive" in metric.name}
    of_a_group = {metric for metric in metrics.METRICS if metric.name.startswith("polonaise_group_")}
    # The simulated coordinator has no servers, and no clock; a server without a name looks for none that is missing;
    # and the simulated network does not count what is sent again.
    unknown = {metrics.COORDINATOR_SERVER_UP, metrics.COORDINATOR_CLOCK_OFFSET, metrics.MISSING_SERVERS, metrics.RESENT}
    assert set(metrics.METRICS) - set(seen) == of_every_node | of_a_store | of_a_player | of_a_group | unknown
    assert pickle.loads(pickle.dumps(seen)) == seen
    for metric, samples in seen.items():
        assert samples, metric.name
        assert all(len(labels) == len(metric.labels) for labels, _ in samples), metric.name


@in_an_application
async def test_groups_of_workers_are_told_with_what_they_lag_and_what_hinders_them(town: Town, log: Log) -> None:
    fails = True

    async def handle(tx: Transaction) -> None:
        if fails:
            raise LookupError("no such invoice")

    async def tell(metric: metrics.Metric, *values: float | None) -> None:
        """Wait until a metric of the group has one of these values; None for no sample."""
        async with asyncio.timeout(60.0):
            while (await of_server(town)).value(metric, 0, "billing") not in values:
                await asyncio.sleep(0.1)

    for number in range(3):
        await log.append(b"%d" % number, 0)
    async with log.group("billing", handler=handle):
        await tell(metrics.GROUP_MEMBERS, 1)
        await tell(metrics.GROUP_PARTITIONS, log.partition_count)
        await tell(metrics.GROUP_HINDERED, 1)
        await tell(metrics.GROUP_LAG, 3, 4)  # the member may have raised its epoch by a transaction
        fails = False
        await tell(metrics.GROUP_HINDERED, 0)
        await tell(metrics.GROUP_LAG, 0)
    await tell(metrics.GROUP_MEMBERS, None)
    assert (await of_server(town)).value(metrics.GROUP_LAG, 0, "billing") is None


@in_an_application
async def test_what_is_owned_is_told_beside_what_the_cluster_has(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    description = town.server.parts.shared.cluster.description
    cluster, partitions = description.key.hex()[:8], description.partitions
    seen = await of_server(town)
    assert seen.value(metrics.OWNED, cluster) == seen.value(metrics.CLUSTER_PARTITIONS, cluster) == partitions
    town.server.parts.following.follow(Assignment())
    seen = await of_server(town)
    assert (seen.value(metrics.OWNED, cluster), seen.value(metrics.CLUSTER_PARTITIONS, cluster)) == (0, partitions)


@in_an_application
async def test_what_an_owner_has_not_proved_yet_is_not_told_as_0(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    before = await of_server(town)
    assert before.value(metrics.PARTITION_MARK, 0) == before.value(metrics.FEED_LAG) == 0
    for node in town.cluster.storage[:2]:
        held_down(node)
    (server,) = town.cluster.servers
    server.crash()

    async def is_mounted() -> bool:
        return bool(town.cluster.running_servers) and bool((await of_server(town)).value(metrics.MOUNTS))

    await wait_until(is_mounted, within_s=60.0, every_s=0.1)
    seen = await of_server(town)
    assert seen.value(metrics.PARTITION_MOUNTS, 0) == 1
    unknown = (
        (metrics.FEED_LAG,),
        (metrics.MOUNTS_BEHIND,),
        (metrics.PARTITION_FEED_LAG, 0),
        (metrics.PARTITION_MARK, 0),
    )
    assert [seen.value(*each) for each in unknown] == [None] * 4
    for node in town.cluster.storage[:2]:
        node.let_up()
    await log.append(b"second", 0)
    seen = await of_server(town)
    assert [seen.value(*each) for each in unknown] == [0, 0, 0, 1]


@in_an_application
async def test_a_replica_of_which_nothing_is_known_lacks_everything(town: Town, log: Log) -> None:
    await log.append(b"all there", 0)
    away = town.cluster.storage[0]
    name = town.cluster.storage_id(away)
    held_down(away)
    owner = await owner_of_a_second_session(town)
    await log.append(b"without one", 0)
    owner.readiness.reached.pop(name, None)  # as after a start while it was away
    assert (await of_server(town)).value(metrics.PARTITION_REPLICA_LAG, 0, name) == 2
    away.let_up()


@in_an_application(partitions=4)
async def test_no_two_partitions_are_read_in_one_turn_of_the_loop_if_that_is_the_bound(town: Town, log: Log) -> None:
    for partition in range(4):
        await log.append(b"first", partition)
    turns, read_in = 0, []

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for served in town.server.partitions.values():

        def totals(own: Callable[[], dict[str, int]] = served.totals) -> dict[str, int]:
            read_in.append(turns)
            return own()

        served.totals = totals  # type: ignore[method-assign,assignment]
    counting = asyncio.create_task(count())
    before, servermetrics._TURN_PARTITIONS_LISTED = servermetrics._TURN_PARTITIONS_LISTED, 1
    try:
        seen = await of_server(town)
    finally:
        servermetrics._TURN_PARTITIONS_LISTED = before
        counting.cancel()
    assert len(set(read_in)) == len(read_in) == 4
    assert seen.value(metrics.TRANSACTIONS) == 4


async def test_a_server_that_waits_for_its_coordinator_names_it(tmp_path: Path) -> None:
    host = RealHost()
    coordinator = coordinator_at(host, f"file:{tmp_path / 'coordinator'}")
    try:
        observed = ObservedServer(lambda: StartingServer(host, coordinator, ServerSettings()), host.clock)
        assert str(tmp_path) in observed.not_ready()
        unknown = metrics.COORDINATOR_TROUBLE, metrics.MISSING_SERVERS, metrics.CLOCK_UNFIT
        assert [each.name for each in unknown if each in await observed.samples(Detail())] == [], "not asked yet"
        health = await observed.health()
        assert (health["status"], health["problems"]) == ("not_ready", {"server": [observed.not_ready()]})
    finally:
        await coordinator.close()
        host.close()


async def test_a_server_that_waits_for_its_coordinator_names_it_whatever_else_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = RealHost()
    coordinator = coordinator_at(host, f"file:{tmp_path / 'coordinator'}")
    expires = "the certificate 'node.pem' expires on 2027-01-01: replace the file"
    monkeypatch.setattr("polonaise.server.startingserver.network_trouble", lambda _: expires)
    try:
        observed = ObservedServer(lambda: StartingServer(host, coordinator, ServerSettings()), host.clock)
        health, samples = await observed.health(), await observed.samples(Detail())
        assert health["problems"] == {"server": [observed.not_ready(), expires]}
        assert set(health["reasons"]) == {
            reason for reason in Reason if samples.value(metrics.NODE_DEGRADED, reason.value) == 1
        }
    finally:
        await coordinator.close()
        host.close()


@in_an_application
async def test_a_server_that_follows_no_assignment_says_what_fails_at_its_coordinator(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    parts, observed = town.server.parts, watched(town)
    parts.owned.stop_owning("its registration may have run out")
    parts.shared.trouble.failed("the assignment can't be read", CoordinatorUnavailable("zk:2181 is gone"))
    assert "zk:2181 is gone" in observed.not_ready()
    assert "zk:2181 is gone" in (await observed.health())["problems"]["server"][0]


@in_an_application
async def test_whether_a_server_is_ready_is_not_read_from_its_health_document(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    server, observed = town.server, watched(town)
    server.health = None  # type: ignore[method-assign,assignment]
    try:
        assert observed.not_ready() == ""
    finally:
        del server.health


@in_an_application
async def test_refused_appends_are_counted_by_reason_and_conflicts_by_certainty(town: Town, log: Log) -> None:
    locks = [polonaise.Lock("account", 1)]
    await log.append(b"first", 0, locks=locks)
    refused = [log.append(b"stale", 0, locks=locks, high_water_mark=-1) for _ in range(3)]
    expected = log.append(b"no", 0, expectations=[polonaise.Expectation.position(7)])
    fates = await asyncio.gather(*refused, expected, return_exceptions=True)
    assert [type(fate) for fate in fates] == [LockConflict] * 3 + [ExpectationFailed]
    seen = await of_server(town)
    assert seen.value(metrics.FAILED, "lock_conflict") == 3
    assert seen.value(metrics.FAILED, "expectation_failed") == 1
    assert seen.value(metrics.CONFLICTS, "certain") == 3
    assert seen.value(metrics.CONFLICTS, "before_session") == 0
    assert seen.value(metrics.PARTITION_FAILED, 0) == 4
    assert seen.value(metrics.PARTITION_CONFLICTS, 0) == 3
    assert seen.value(metrics.LOCKS) == 1
    assert seen.value(metrics.LOCK_TABLES) == 0


@in_an_application
async def test_a_request_that_is_refused_is_counted_by_its_code(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    server = town.server
    connection, *_ = server.parts.connections.open
    server.parts.connections.on_message(connection, Flush(), 1, 7)
    # Once the server has read of no such partition in the coordinator.
    await wait_until(lambda: server.parts.connections.refused["unknown_partition"])
    assert (await of_server(town)).value(metrics.REFUSED, "unknown_partition") == 1


@in_an_application
async def test_a_storage_node_that_is_away_lags_by_what_it_has_not_acknowledged(town: Town, log: Log) -> None:
    for _ in range(3):
        await log.append(b"all there", 0)
    away = town.cluster.storage[0]
    name = town.cluster.storage_id(away)
    assert (await of_server(town)).value(metrics.PARTITION_REPLICA_LAG, 0, name) == 0
    held_down(away)
    await owner_of_a_second_session(town)
    for _ in range(5):
        await log.append(b"without one", 0)
    seen = await of_server(town)
    assert seen.value(metrics.PARTITION_REPLICA_LAG, 0, name) == 5
    assert seen.value(metrics.REPLICA_LAG, name) == 5
    assert seen.value(metrics.UNDER_REPLICATED) == 1
    assert seen.value(metrics.PARTITION_ENGAGED, 0) == quorum(range(3))
    assert seen.value(metrics.PARTITION_MEMBERS, 0) == 3
    assert seen.value(metrics.FAULTS) == 1
    away.let_up()

    async def engaged() -> bool:
        return (await of_server(town)).value(metrics.PARTITION_ENGAGED, 0) == 3

    await wait_until(engaged, within_s=300.0, every_s=0.5)
    seen = await of_server(town)
    assert seen.value(metrics.PARTITION_REPLICA_LAG, 0, name) == 0
    assert seen.value(metrics.UNDER_REPLICATED) == 0


@in_an_application
async def test_without_a_quorum_a_partition_is_not_ready_and_its_inbox_fills(town: Town, log: Log) -> None:
    await log.append(b"all there", 0)
    for node in town.cluster.storage[:2]:
        held_down(node)
    server = town.server
    waiting = [log.append(bytes(1000), 0) for _ in range(2)]
    await wait_until(lambda: server.partitions[0].owner.session is None, within_s=60.0, every_s=0.1)
    more = log.append(bytes(1000), 0)
    await wait_until(lambda: server.partitions[0].owner.waiting[1] >= 1000, within_s=60.0, every_s=0.1)
    seen = await of_server(town)
    assert seen.value(metrics.PARTITIONS, "ready") == 0
    assert seen.value(metrics.PARTITIONS, "starting") == 1
    assert seen.value(metrics.PARTITION_READY, 0) == 0
    assert seen.value(metrics.PARTITION_SESSION, 0) == NO_SESSION
    assert seen.value(metrics.INBOX) == 1
    assert seen.value(metrics.INBOX_BYTES) == seen.value(metrics.PARTITION_INBOX_BYTES, 0)
    observed = watched(town)
    assert observed.not_ready() == f"partition 0: {conditions_in(server.health())[0].waits_for}"
    for node in town.cluster.storage[:2]:
        node.let_up()
    await asyncio.gather(*waiting, more, return_exceptions=True)
    assert (await of_server(town)).value(metrics.PARTITIONS, "ready") == 1
    assert observed.not_ready() == ""


@in_an_application
async def test_the_lag_of_a_client_that_does_not_read_is_told(town: Town, log: Log) -> None:
    await log.append(b"mounted", 0)
    owner = town.server.partitions[0].owner
    (mount,) = owner.feeds.mounts.values()
    mount.credit = 0
    writes = [log.append(b"more", 0) for _ in range(4)]
    await wait_until(lambda: owner.committed == 4)
    seen = await of_server(town)
    assert seen.value(metrics.CLIENT_LAG, 0, log.client_id) == 4
    assert seen.value(metrics.FEED_LAG) == seen.value(metrics.PARTITION_FEED_LAG, 0) == 4
    assert (seen.value(metrics.MOUNTS), seen.value(metrics.MOUNTS_BEHIND)) == (1, 1)
    mount.credit = 10**9
    await log.append(b"last", 0)
    await asyncio.gather(*writes)
    assert (await of_server(town)).value(metrics.MOUNTS_BEHIND) == 0


@in_an_application
async def test_reads_from_memory_are_hits_and_older_ones_misses(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    before = await of_server(town)
    assert [tx.data async for tx in log.read(0)] == [b"first"]
    after = await of_server(town)
    hits = [each.value(metrics.CACHE_HITS) for each in (before, after)]
    assert hits[1] > hits[0]  # type: ignore[operator]
    town.server.partitions[0].owner.cache.clear()
    assert (await log.transaction(0, 0)).data == b"first"
    assert (await of_server(town)).value(metrics.CACHE_MISSES) == 1
    assert (await of_server(town)).value(metrics.CACHE_BYTES) == 0


@in_an_application
async def test_totals_never_fall_when_a_partition_goes(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    server = town.server
    before = Counter[str]()
    for served in server.partitions.values():
        before.update(served.totals())
    server.parts.following.follow(Assignment())
    assert not server.partitions
    assert before["committed_transactions"] == 1
    assert server.measures().totals == before


@in_an_application
async def test_trouble_with_the_coordinator_is_in_health_and_metrics(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    server = town.server
    assert (await of_server(town)).value(metrics.COORDINATOR_TROUBLE) == 0
    server.parts.shared.trouble.failed("the lease can't be renewed", CoordinatorUnavailable("no answer"))
    seen = await of_server(town)
    assert seen.value(metrics.COORDINATOR_TROUBLE) == 1
    assert seen.value(metrics.COORDINATOR_ERRORS) == 1
    health = await watched(town).health()
    assert health["status"] == "degraded"
    (problem,) = health["problems"]["server"]
    assert problem.endswith("the lease can't be renewed: [coordinator_unavailable] no answer")
    server.parts.following.follow(Assignment())
    health = await watched(town).health()
    assert health["status"] == "degraded"
    assert health["problems"] == {"server": [problem]}, "also of a server that owns nothing"
    server.parts.shared.trouble.succeeded("the lease can't be renewed")
    seen = await of_server(town)
    assert (seen.value(metrics.COORDINATOR_TROUBLE), seen.value(metrics.COORDINATOR_ERRORS)) == (0, 1)


@in_an_application
async def test_a_coordinator_that_cannot_be_reached_is_trouble_until_it_can(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    trouble = town.server.parts.shared.trouble
    town.cluster.cut_off.add("server-0")
    await wait_until(lambda: str(trouble), within_s=60.0, every_s=0.1)
    assert (await of_server(town)).value(metrics.COORDINATOR_TROUBLE) == 1
    town.cluster.cut_off.clear()
    await wait_until(lambda: not str(trouble), within_s=60.0, every_s=0.1)


@in_an_application
async def test_a_server_that_owns_nothing_is_ready_to_take_over(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    server, observed = town.server, watched(town)
    server.partitions.clear()
    assert observed.not_ready() == ""
    assert (await observed.health())["status"] == "ok"
    server.parts.owned.followed = False
    assert "has not read the assignment" in observed.not_ready()
    assert (await observed.health())["status"] == "not_ready"
    server.parts.owned.followed = True


@in_an_application
async def test_a_replica_that_cannot_be_used_is_told_by_its_node(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    node = town.cluster.stores[town.cluster.storage[0].name]
    (replica,) = node.replicas()
    replica.unavailable = polonaise.errors.fault("partition_unavailable", "its files are damaged")
    seen = await of_storage(town)
    assert seen.value(metrics.REPLICA_USABLE, 0) == 0
    assert seen.value(metrics.REPLICA_LAST, 0) is None
    assert seen.value(metrics.STORAGE_PARTITIONS, "unusable") == 1
    health = await ObservedStorage(node, node._host, node._settings.directory).health()
    assert health["status"] == "degraded"
    assert health["problems"] == ["partition 0 can't be used: [partition_unavailable] its files are damaged"]
    assert health["ready"], "servers are told which replica, and why"
    node._elsewhere = {0}
    health = await ObservedStorage(node, node._host, node._settings.directory).health()
    assert (health["status"], health["problems"]) == ("ok", []), "a copy that was given up is nobody's trouble"
    node._elsewhere = set()
    replica.unavailable = None


@in_an_application
async def test_a_copy_that_was_given_up_counts_as_nothing_else(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    node = town.cluster.stores[town.cluster.storage[0].name]
    seen = await of_storage(town)
    states = ("usable", "unusable", "unopened", "given_up")
    before = {state: seen.value(metrics.STORAGE_PARTITIONS, state) for state in states}
    assert before == {"usable": 1, "unusable": 0, "unopened": 0, "given_up": 0}
    node._elsewhere = {0, 7}
    seen = await of_storage(town)
    after = {state: seen.value(metrics.STORAGE_PARTITIONS, state) for state in states}
    assert after == {"usable": 0, "unusable": 0, "unopened": 0, "given_up": 1}
    node._elsewhere = set()


@in_an_application
async def test_latencies_are_those_of_the_virtual_clock(town: Town, log: Log) -> None:
    began_s = town.world.now
    await log.append(b"first", 0)
    took_s = town.world.now - began_s
    latencies = town.server.measures().latencies
    assert sum(latencies.counts) == 1
    assert 0 < latencies.total < took_s
    syncs = town.cluster.stores[town.cluster.storage[0].name].measures().syncs
    assert sum(syncs.counts) == 1
    assert 0 < syncs.total < latencies.total


def test_a_histogram_counts_each_duration_once_bounds_included() -> None:
    histogram = Histogram()
    for seconds in (0.0, BOUNDS_S[0], 0.003, 60.0):
        histogram.observe(seconds)
    assert histogram.counts[0] == 2
    assert histogram.counts[BOUNDS_S.index(0.005)] == 1
    assert histogram.counts[-1] == 1
    assert sum(histogram.counts) == 4
    assert histogram.total == pytest.approx(60.0032)


@pytest.mark.parametrize(
    ("listing", "count", "lists"),
    [
        (SeriesListed.AUTO, AUTO_MAX, True),
        (SeriesListed.AUTO, AUTO_MAX + 1, False),
        (SeriesListed.ALL, 10_000, True),
        (SeriesListed.NONE, 1, False),
    ],
)
def test_thousands_are_listed_only_when_asked_for(listing: SeriesListed, count: int, lists: bool) -> None:
    assert listing.lists(count) is lists
