"""Each fault fires its alert, by the metrics of the nodes that meet it; and nothing fires while all is well.

A fault is made at the nodes, in a simulated cluster; then what they tell goes on for twenty minutes of Prometheus.
What can't be made there cheaply is set at the component that measures it, and its test says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import polonaise
from polonaise.client.log import Log
from polonaise.client.protocol.groupleases import partition_lease
from polonaise.coordination.backend import NotAsked
from polonaise.coordination.values import ExpectedServers, Versioned
from polonaise.errors import InsufficientReplicas, LockConflict, PolonaiseError
from polonaise.histogram import Histogram
from polonaise.host.real import RealClock
from polonaise.node.monitoring.face import HttpFace, ObservedServer
from polonaise.node.monitoring.httplistener import HttpRequest
from polonaise.node.monitoring.samples import Detail, Samples
from polonaise.server.settings import ServerSettings
from polonaise.terms import ServerId, Transaction
from polonaise_proving.stages.simulated.cluster import DIRECTORY
from rigs.alerts import Prometheus, Told, fired_by, fires, scraped, scraped_town, told
from rigs.archivedtown import ArchivedTown
from rigs.log import remove_entry
from rigs.town import Town, held_down, in_a_town, in_an_application
from rigs.waiting import wait_until

DAY_S = 86_400.0
ONE = "polonaise-servers/server-0"
FIRST = "polonaise-storage/storage-0"


async def fired(town: Town, *alerts: str, before: dict[str, Told | None] | None = None) -> None:
    """Wait until these alerts would fire, if it goes on like this; none at all, if none is named."""
    firing = set[str]()

    async def as_wished() -> bool:
        nonlocal firing
        firing = Prometheus().lasts(await scraped_town(town), before)
        return set(alerts) <= firing if alerts else not firing

    try:
        await wait_until(as_wished, within_s=120.0, every_s=1.0)
    except AssertionError:
        pytest.fail(f"{sorted(firing)} fire, not {sorted(alerts)}")


@pytest.mark.slow
@in_an_application
async def test_nothing_fires_while_all_is_well(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    before = await scraped_town(town)
    for number in range(50):
        await log.append(b"%d" % number, 0)
    assert Prometheus().lasts(await scraped_town(town), before, for_s=3_600.0) == set()


@pytest.mark.slow
@fires("PolonaiseClockOff", "PolonaiseClocksDiffer")
@in_an_application
async def test_a_clock_that_is_off(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    (node,) = town.cluster.servers
    node.machine.jump_clock(DAY_S)
    await fired(town, "PolonaiseClockOff", "PolonaiseClocksDiffer")
    node.machine.jump_clock(-DAY_S)
    await fired(town)


@fires("PolonaiseClocksDiffer")
@in_an_application
async def test_a_storage_node_whose_clock_differs(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    town.cluster.storage[0].machine.jump_clock(-5.0)
    await fired(town, "PolonaiseClocksDiffer")


@fires("PolonaiseCommitTimesStandStill")
@in_a_town(server=ServerSettings(clock_off_s_max=1e9))
async def test_commit_times_that_stand_still(town: Town) -> None:
    machine = town.cluster.servers[0].machine
    await town.append(b"first")
    machine.jump_clock(3_600.0)
    await town.append(b"ahead")
    machine.jump_clock(-3_600.0)
    await fired(town, "PolonaiseCommitTimesStandStill")


@fires("PolonaiseNodeDown", "PolonaiseStorageDisconnected", "PolonaiseUnderReplicated", "PolonaiseNodeDegraded")
@in_an_application
async def test_a_storage_node_that_is_gone(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    held_down(town.cluster.storage[0])
    await fired(
        town, "PolonaiseNodeDown", "PolonaiseStorageDisconnected", "PolonaiseUnderReplicated", "PolonaiseNodeDegraded"
    )
    town.cluster.storage[0].let_up()
    await fired(town)


@pytest.mark.slow
@fires("PolonaisePartitionsNotReady", "PolonaiseNodeNotReady", "PolonaisePartitionsGivenUp", "PolonaiseOverloaded")
@in_an_application
async def test_a_majority_of_the_storage_nodes_that_is_gone(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    for node in town.cluster.storage[:2]:
        held_down(node)
    await fired(town, "PolonaisePartitionsNotReady", "PolonaiseNodeNotReady")
    await fired(town, "PolonaisePartitionsGivenUp")
    before = await scraped_town(town)
    # As the owner tells an append that it can't order before its deadline: clients mostly give up first.
    served = next(iter(town.server.partitions.values()), None)
    if served is not None:
        served.failures_told[polonaise.terms.FailureReason.DEADLINE] += 60
    else:
        town.server.parts.owned._past["failed_deadline"] += 60
    await fired(town, "PolonaiseOverloaded", before=before)


@fires("PolonaisePartitionsWithoutOwner", "PolonaiseNodeDown")
@in_an_application
async def test_a_server_from_which_no_other_takes_over(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    prometheus, well = Prometheus(), await scraped_town(town)
    assert prometheus.lasts(well) == set()
    held_down(town.cluster.servers[0])
    assert {"PolonaisePartitionsWithoutOwner", "PolonaiseNodeDown"} <= prometheus.lasts(await scraped_town(town))
    town.cluster.servers[0].let_up()


@fires("PolonaiseReplicaNotCatchingUp")
@in_an_application
async def test_a_replica_that_lacks_more_and_more(town: Town, log: Log) -> None:
    """10,000 transactions take long: it is set how far the replica has come."""
    await log.append(b"first", 0)
    held_down(town.cluster.storage[0])
    owner = town.server.partitions[0].owner
    await wait_until(lambda: bool(owner.session and town.name(0) not in owner.session.engaged), every_s=0.5)
    owner.readiness.replica_reached(town.name(0), -20_000)
    await fired(town, "PolonaiseReplicaNotCatchingUp")
    town.cluster.storage[0].let_up()


@pytest.mark.slow
@fires("PolonaiseReplicaFallsBehind")
@in_an_application(
    server=ServerSettings(
        readmit_transactions=5,
        copy_bytes=100_000,
        copy_bytes_per_s=50_000,
        copy_bytes_per_s_min=50_000,
        warn_again_s=10.0,
    )
)
async def test_a_replica_that_is_copied_to_and_comes_no_nearer(town: Town, log: Log) -> None:
    async def go_on_appending() -> None:  # about 200 KB a second, while 50 KB are copied
        while True:
            await log.append(bytes(10_000), 0)
            await asyncio.sleep(0.05)

    await log.append(b"first", 0)
    held_down(town.cluster.storage[2])
    appending = asyncio.create_task(go_on_appending())
    await asyncio.sleep(10.0)
    town.cluster.storage[2].let_up()
    await fired(town, "PolonaiseReplicaFallsBehind")
    appending.cancel()


@pytest.mark.slow
@fires("PolonaiseSessionFaults", "PolonaiseDiskFillsUp")
@in_an_application
async def test_disks_that_are_full(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    before = await scraped_town(town)
    town.fill_disks()
    with pytest.raises(PolonaiseError):
        await log.run(lambda tx: tx.append(bytes(100_000)), partition=0, timeout=60.0)
    await fired(town, "PolonaiseSessionFaults", "PolonaiseDiskFillsUp", before=before)
    for node in town.cluster.storage:
        node.machine.disk.free()


@pytest.mark.slow
@fires("PolonaiseDiskFillsUp", "PolonaiseNodeDegraded")
@in_an_application
async def test_a_disk_that_is_full_before_anybody_writes_to_it(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    disk = town.cluster.storage[0].machine.disk
    disk.fill(10)
    await fired(town, "PolonaiseDiskFillsUp", "PolonaiseNodeDegraded")
    disk.free()
    await fired(town)


@fires("PolonaiseAppendsSlow", "PolonaiseSyncsSlow")
@in_an_application
async def test_disks_that_are_slow(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    before = await scraped_town(town)
    for node in town.cluster.storage:
        node.machine.disk.slow(0.4)
    for number in range(5):
        await log.append(b"%d" % number, 0)
    await fired(town, "PolonaiseAppendsSlow", "PolonaiseSyncsSlow", before=before)


@pytest.mark.slow
@fires("PolonaiseDiskHangs")
@in_an_application
async def test_a_disk_that_hangs(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    disk = town.cluster.storage[0].machine.disk
    disk.slow(3_600.0)
    await log.append(b"with the others", 0)
    await fired(town, "PolonaiseDiskHangs", "PolonaiseUnderReplicated", "PolonaiseNodeDegraded")


@fires("PolonaiseManyConflicts")
@in_an_application
async def test_appends_that_meet_locks_all_the_time(town: Town, log: Log) -> None:
    locks = [polonaise.Lock("account", 1)]
    await log.append(b"first", 0, locks=locks)
    before = await scraped_town(town)
    stale = [log.append(b"stale", 0, locks=locks, high_water_mark=-1) for _ in range(100)]
    assert {type(fate) for fate in await asyncio.gather(*stale, return_exceptions=True)} == {LockConflict}
    await fired(town, "PolonaiseManyConflicts", before=before)


@fires("PolonaiseFeedLag")
@in_an_application
async def test_a_client_that_does_not_read(town: Town, log: Log) -> None:
    """100,000 transactions take long: the mount's place is set."""
    await log.append(b"first", 0)
    (mount,) = town.server.partitions[0].owner.feeds.mounts.values()
    mount.credit, before = 0, mount.next_id
    mount.next_id = -200_000
    assert "PolonaiseFeedLag" in Prometheus().lasts(await scraped_town(town))
    mount.next_id = before


@pytest.mark.slow
@fires("PolonaiseCoordinatorTrouble", "PolonaiseCoordinatorAway")
@in_an_application
async def test_a_coordinator_that_is_out_of_reach(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    (node,) = town.cluster.servers
    town.cluster.cut_off.add(node.name)
    await fired(town, "PolonaiseCoordinatorTrouble", "PolonaiseCoordinatorAway")
    town.cluster.cut_off.discard(node.name)
    await fired(town)


@fires("PolonaiseServerMissing", "PolonaiseCoordinatorServerDown", "PolonaiseZooKeeperDown")
@in_an_application
async def test_servers_that_are_to_be_there_and_are_not(town: Town, log: Log) -> None:
    """Set where a server keeps what it saw last: the simulated coordinator has no servers."""
    await log.append(b"first", 0)
    expected = town.server.parts.expected
    expected.seen = Versioned(0, ExpectedServers())
    expected.missing = {"b": "b:7000"}
    expected.coordinator_servers = {"zk1:2181": "", "zk2:2181": "does not answer"}
    nodes = {**await scraped_town(town), "polonaise-zookeeper/zk2:7000": None}
    firing = Prometheus().lasts(nodes)
    assert {"PolonaiseServerMissing", "PolonaiseCoordinatorServerDown", "PolonaiseZooKeeperDown"} <= firing
    expected.missing, expected.coordinator_servers = {}, {"zk1:2181": "", "zk2:2181": ""}
    assert Prometheus().lasts(await scraped_town(town)) == set()


@in_an_application
async def test_servers_of_the_coordinator_that_this_process_can_not_ask_are_not_down(
    town: Town, log: Log, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(b"first", 0)
    server = town.server
    answers: dict[str, str] = {"zk1:2181": NotAsked("can't be asked: no certificate"), "zk2:2181": ""}

    async def servers(timeout_s: float) -> dict[str, str]:
        return dict(answers)

    backend = server.parts.expected._coordinator._backend
    monkeypatch.setattr(backend, "servers", servers)
    monkeypatch.setattr(type(backend), "has_servers", True)
    looking = asyncio.ensure_future(server.parts.expected.run(ServerId(4711), "here:1"))
    await wait_until(lambda: server.measures().coordinator_servers == {"zk2:2181": True})
    assert server.health()["coordinator_servers"] == []
    assert Prometheus().lasts(await scraped_town(town)) == set()
    answers["zk1:2181"] = "does not answer"
    await wait_until(lambda: server.measures().coordinator_servers == {"zk1:2181": False, "zk2:2181": True})
    assert server.health()["coordinator_servers"] == ["ZooKeeper server zk1:2181 does not answer"]
    assert "PolonaiseCoordinatorServerDown" in Prometheus().lasts(await scraped_town(town))
    looking.cancel()


@fires("PolonaiseGroupHindered")
@in_an_application
async def test_a_group_that_can_not_go_on(town: Town, log: Log) -> None:
    async def handle(tx: Transaction) -> None:
        raise LookupError("no such invoice")

    await log.append(b"first", 0)
    async with log.group("billing", handler=handle):
        await fired(town, "PolonaiseGroupHindered")


@fires("PolonaiseGroupLagUnknown")
@in_an_application
async def test_a_worker_that_does_not_know_how_far_its_partition_reaches(
    town: Town, log: Log, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is the one that a worker has whose partition does not answer, and an application may not."""
    await log.append(b"first", 0)
    monkeypatch.setattr("polonaise.client.lease.GROUP_LEASES", "another prefix")
    async with log.lease(partition_lease("billing", 0), note=b'{"lag": null}'):
        await fired(town, "PolonaiseGroupLagUnknown")


@fires("PolonaiseInsufficientReplicas")
@in_an_application
async def test_appends_that_lack_copies(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    before = await scraped_town(town)
    with pytest.raises(InsufficientReplicas):
        await log.append(b"needs more than there are", 0, copies=4)
    await fired(town, "PolonaiseInsufficientReplicas", before=before)


@fires("PolonaisePacketsLost")
@in_an_application
async def test_a_network_that_loses_packets(town: Town, log: Log) -> None:
    """Set where the kernel's counts are compared: the simulated network counts nothing."""
    await log.append(b"first", 0)
    connection = town.server.parts.shared.links[town.name(0)].session
    assert connection is not None
    connection.losses.resent = 0.2
    assert "PolonaisePacketsLost" in Prometheus().lasts(await scraped_town(town))


@fires("PolonaiseStorageDirectoryGone", "PolonaiseNodeNotReady")
@in_an_application
async def test_a_directory_that_is_removed(town: Town, log: Log) -> None:
    await log.append(b"first", 0)
    remove_entry(town.cluster.storage[0].machine.disk, DIRECTORY)
    await fired(town, "PolonaiseStorageDirectoryGone", "PolonaiseNodeNotReady")


@fires("PolonaiseReplicasUnusable", "PolonaiseDamageFound")
@in_an_application
async def test_replicas_that_are_damaged(town: Town, log: Log) -> None:
    """Set where a storage node keeps what it found: other replicas would mend the damage itself at once."""
    await log.append(b"first", 0)
    store = town.cluster.stores[town.cluster.storage[0].name]
    (replica,) = store.replicas()
    replica.unavailable = polonaise.errors.fault("partition_unavailable", "its files are damaged")
    scrub = store._scrubbing._scrub
    scrub.scrubbed = replace(scrub.scrubbed, found=scrub.scrubbed.repaired + 1)
    assert {"PolonaiseReplicasUnusable", "PolonaiseDamageFound"} <= Prometheus().lasts(await scraped_town(town))
    replica.unavailable = None


@pytest.mark.slow
@fires("PolonaiseScrubStopped")
@in_an_application
async def test_a_scrub_that_ends_no_round(town: Town, log: Log) -> None:
    """A scrub that stands still tells the same for nine days; so long no simulated cluster is run."""
    await log.append(b"first", 0)
    nodes, now_s = await scraped_town(town), town.world.true_us / 1e6
    started = {("process_start_time_seconds", frozenset[tuple[str, str]]()): now_s}
    nodes = {name: None if node is None else {**node, **started} for name, node in nodes.items()}
    prometheus = Prometheus(now_s)
    assert "PolonaiseScrubStopped" not in prometheus.lasts(nodes)
    assert "PolonaiseScrubStopped" in prometheus.lasts(nodes, for_s=9 * DAY_S, every_s=3_600.0)


class TwoDaysLater:
    def __init__(self, clock: Any) -> None:
        self.monotonic_s = clock.monotonic_s
        self.wall_us = lambda: clock.wall_us() + 2 * 86_400_000_000


async def fired_two_days_later(town: Town) -> set[str]:
    clock: Any = TwoDaysLater(town.server.parts.shared.host.clock)
    later = await scraped(ObservedServer(lambda: town.server, clock), clock)
    return Prometheus().lasts({ONE: later})


@pytest.mark.slow
@fires("PolonaiseFragmentsUnreadable", "PolonaiseArchiveBehind", "PolonaiseArchiveLagUnknown")
def test_an_archive_that_is_behind_and_a_store_that_is_away() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"fills a fragment".ljust(1_000))
        await town.lags(1)
        await fired(town)
        assert "PolonaiseArchiveBehind" in await fired_two_days_later(town)
        town.store.away = True
        await fired(town, "PolonaiseFragmentsUnreadable")
        await wait_until(lambda: bool((lag := town.lag()) and lag.unknown), within_s=60.0, every_s=1.0)
        later = Prometheus().lasts(await scraped_town(town), for_s=3_000.0)
        assert "PolonaiseArchiveLagUnknown" in later

    ArchivedTown(archive_fragment_bytes=1_000, scrub_first_s=5.0, scrub_every_s=5.0, scrub_again_s=5.0).tell(story)


@pytest.mark.slow
def test_a_store_that_is_away_long_before_the_scrub_looks_at_it() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        await town.lags(1)
        await fired(town)
        town.store.unmounted = True
        await fired(town, "PolonaiseFragmentsUnreadable")
        town.store.unmounted = False
        await fired(town)

    ArchivedTown(scrub_first_s=DAY_S).tell(story)


def test_an_archive_of_a_log_that_fills_no_fragment_is_not_behind() -> None:
    async def story(town: ArchivedTown) -> None:
        await town.append(b"first")
        await town.lags(1)
        assert await fired_two_days_later(town) == set()

    ArchivedTown(scrub_first_s=5.0).tell(story)


@fires("PolonaiseLoopBlocked", "PolonaiseRestarts", "PolonaiseFewFilesLeft")
@in_an_application
async def test_a_process_that_is_blocked_restarted_or_short_of_files(town: Town, log: Log) -> None:
    """What the system tells of a process is set, as are delays of its loop: a test must not block, nor starve."""
    await log.append(b"first", 0)
    server, delays = town.server, Histogram()
    observed, clock = ObservedServer(lambda: server, server.parts.shared.host.clock), server.parts.shared.host.clock
    before = await scraped(observed, clock, delays)
    for _ in range(60):
        delays.observe(2.0)
    blocked = await scraped(observed, clock, delays)
    assert Prometheus().lasts({ONE: blocked}, {ONE: before}) == {"PolonaiseLoopBlocked"}

    def with_process(name: str, value: float) -> dict[str, Told | None]:
        return {ONE: {**before, (name, frozenset()): value}}

    assert Prometheus().lasts(with_process("process_open_fds", 900.0)) == {"PolonaiseFewFilesLeft"}
    prometheus = Prometheus()
    for number in range(4):
        firing = prometheus.lasts(with_process("process_start_time_seconds", 10.0 * number), for_s=120.0)
    assert firing == {"PolonaiseRestarts"}


class Node:
    """A node with which all is well."""

    def labels(self) -> tuple[str, str]:
        return "server", "1"

    def not_ready(self) -> str:
        return ""

    async def health(self) -> dict[str, Any]:
        return {}

    async def samples(self, detail: Detail) -> Samples:
        return Samples()


@pytest.mark.parametrize(
    ("left_s", "status", "alarms"), [(20 * DAY_S, 200, False), (DAY_S, 200, True), (-1, 503, True)]
)
async def test_a_certificate_that_expires(left_s: float, status: int, alarms: bool) -> None:
    found: list[Samples] = []

    def text(samples: Samples, _: str) -> tuple[bytes, str]:
        found.append(samples)
        return b"", ""

    now_s = RealClock().wall_us() / 1e6
    network: Any = SimpleNamespace(
        expires_s=now_s + left_s, trouble="the certificate has expired on 2027-01-01 12:00 UTC"
    )
    face = HttpFace(Node(), RealClock(), text, Histogram(), "1", network)
    await face.answer(HttpRequest("/metrics", {}, ""))
    firing = Prometheus(now_s).lasts({ONE: told(found[0], process_start_time_seconds=now_s)})
    assert ("PolonaiseCertificateExpires" in firing) == alarms
    answer = await face.answer(HttpRequest("/ready", {}, ""))
    assert answer.status == status
    assert (b"2027-01-01 12:00" in answer.body) == (status == 503)


fired_by.setdefault("PolonaiseCertificateExpires", []).append(test_a_certificate_that_expires.__name__)
