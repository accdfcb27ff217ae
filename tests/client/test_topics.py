"""Clients of topics: they see numbers, learn of growth by themselves, and are never told less than before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polonaise.admin.logs import conditions
from polonaise.admin.topics import add_partitions, create_topic
from polonaise.client.discovery import Discovery
from polonaise.client.log import Log
from polonaise.client.protocol.arguments import partitions_named
from polonaise.client.view import View
from polonaise.coordination.topics import TopicPartitions, log_key_of
from polonaise.errors import PolonaiseError, UnknownPartition, UnknownTopic
from polonaise.host import Host
from polonaise.node.addresses import split_topic, with_topic
from polonaise.terms import Transaction
from polonaise_proving.stages.simulated.cluster import Node
from rigs.scenarios import runs_tests
from rigs.town import Town, on_a_machine
from rigs.waiting import wait_until


@runs_tests
def in_a_town(story: Callable[[Town], Any]) -> None:
    """Run a test beside a cluster of two servers and two partitions of the log's own."""
    Town(1, servers=2, partitions=2).run(story)


async def create(town: Town, name: str, partitions: int) -> None:
    await town.operator(lambda _, coordinator: create_topic(coordinator, name, partitions, 5.0))


async def grow(town: Town, name: str, partitions: int) -> None:
    await town.operator(lambda _, coordinator: add_partitions(coordinator, name, partitions, 5.0))


async def client(
    town: Town,
    topic: str,
    main: Callable[[Log], Awaitable[None]],
    *,
    asking: bool = True,
    view: View | None = None,
    wrapped: Callable[[Discovery], Discovery] = lambda discovery: discovery,
) -> None:
    """Run a client of a topic on a machine of its own, which asks servers or the coordinator."""

    async def live(node: Node, host: Host) -> None:
        discovery: Discovery = town.cluster.servers_for(host) if asking else town.cluster.coordinator(node, host)
        async with Log(host, wrapped(discovery), topic=topic, view=view) as log:
            await main(log)

    await on_a_machine(town.cluster, "client", live)


class Kept(View):
    """A view that keeps all transactions by partition."""

    def __init__(self) -> None:
        self.seen: dict[int, list[bytes]] = {}
        self.marks: dict[int, int] = {}
        self.of = b""

    def belongs_to(self, key: bytes) -> None:
        self.of = key

    def high_water_mark(self, partition: int) -> int:
        return self.marks.get(partition, -1)

    def apply(self, tx: Transaction) -> None:
        self.seen.setdefault(tx.partition, []).append(tx.data)
        self.marks[tx.partition] = tx.id

    def failed(self, partition: int, id: int, error: Exception) -> None:
        raise error


@in_a_town
async def test_a_client_of_a_topic_sees_numbers_only(town: Town) -> None:
    await create(town, "orders", 1)
    await create(town, "payments", 2)

    async def main(log: Log) -> None:
        assert (log.partition_count, log.topic) == (2, "payments")
        for number in range(2):
            receipt = await log.append(b"p%d" % number, number)
            assert receipt.partition == number
            assert [(tx.partition, tx.data) async for tx in log.read(number)] == [(number, b"p%d" % number)]
            assert [batch.partition async for batch in log.read_batches(number)] == [number]
            assert (await log.transaction(0, number)).partition == number
        producer = await log.producer("p", partition=1)
        await producer.append(producer.last_sequence + 1, b"more")
        await wait_until(lambda: view.seen == {0: [b"p0"], 1: [b"p1", b"more"]})
        with pytest.raises(UnknownPartition, match="partition 2; topic payments has partitions 0 to 1"):
            log.append(b"x", 2)
        with pytest.raises(UnknownPartition, match="partition 2; topic payments has partitions 0 to 1"):
            partitions_named("2", log.partition_count, log.topic)

    view = Kept()
    await client(town, "payments", main, view=view)
    assert view.of == log_key_of(town.cluster.description.key, "payments")

    async def other(log: Log) -> None:
        assert [tx.data async for tx in log.read(0)] == []

    for topic in ("orders", ""):
        await client(town, topic, other, asking=False)


@in_a_town
async def test_health_is_that_of_the_topics_partitions_and_by_their_numbers(town: Town) -> None:
    async def own(log: Log) -> None:
        for partition in (0, 0, 0, 1):
            await log.append(b"own", partition)

    await create(town, "payments", 2)
    await client(town, "", own)

    async def main(log: Log) -> None:
        await log.append(b"1", 1)
        await log.ready(0)
        told = {each.partition: each.committed_high_water_mark for each in await conditions(log, [1, 0], 10.0)}
        assert told == {1: 0, 0: -1}, "and neither 2 nor 0, the marks of the partitions with these ids"
        assert list(told) == [1, 0]

    await client(town, "payments", main)


@in_a_town
async def test_a_topic_that_grows_is_learnt_by_a_running_client(town: Town) -> None:
    for asking in (True, False):
        name = f"t{asking:d}"
        await create(town, name, 1)
        view = Kept()

        async def main(log: Log, name: str = name, view: Kept = view) -> None:
            await log.append(b"0", 0)
            await grow(town, name, 2)
            await wait_until(lambda: log.partition_count == 3)
            for number in (1, 2):
                await log.append(b"%d" % number, number)
            await wait_until(lambda: view.seen == {0: [b"0"], 1: [b"1"], 2: [b"2"]})

        await client(town, name, main, asking=asking, view=view)


@in_a_town
async def test_an_unknown_topic_is_refused_until_it_is_there(town: Town) -> None:
    await town.append(b"servers are up")

    async def main(log: Log) -> None:
        await log.append(b"x", 0)

    for asking in (True, False):
        with pytest.raises(UnknownTopic, match=f"no topic 'none{asking:d}'"):
            await client(town, f"none{asking:d}", main, asking=asking)
        await create(town, f"none{asking:d}", 1)
        await client(town, f"none{asking:d}", main, asking=asking)


@in_a_town
async def test_errors_name_the_topics_partition(town: Town) -> None:
    await create(town, "payments", 2)

    async def main(log: Log) -> None:
        with pytest.raises(PolonaiseError, match=r"partition 1 of topic payments, which is partition 3 of the cluster"):
            await log.trim(1, 5, b"", timeout=5)

    await client(town, "payments", main)


class Late:
    """A discovery whose topic is described late: what it knew first is told until it is let go."""

    def __init__(self, inner: Discovery) -> None:
        self._inner = inner
        self.first: TopicPartitions | None = None
        self.asked = 0
        self.late = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def topic(self, name: str, known: TopicPartitions | None = None, total: int = 0) -> TopicPartitions:
        self.asked += 1
        told = await self._inner.topic(name, known, total)
        self.first = self.first or told
        return self.first if self.late else told


@in_a_town
async def test_a_client_asks_again_until_it_is_told_of_all_that_is_assigned(town: Town) -> None:
    await create(town, "payments", 1)
    late: list[Late] = []

    def wrapped(inner: Discovery) -> Discovery:
        late.append(Late(inner))
        return late[0]

    async def main(log: Log) -> None:
        await grow(town, "payments", 1)
        await wait_until(lambda: late[0].asked > 3)
        assert log.partition_count == 1
        late[0].late = False
        await wait_until(lambda: log.partition_count == 2)

    await client(town, "payments", main, wrapped=wrapped)


@in_a_town
async def test_a_server_that_is_behind_reads_the_coordinator_before_it_answers(town: Town) -> None:
    """Servers get nothing assigned, and so learn nothing, when the operator dies between the two changes."""
    described = await town.operator(lambda _, coordinator: coordinator.description())

    async def half(_: Host, coordinator: Any) -> None:
        grown = described.value.grown("payments", 2)
        assert await coordinator.make_partitions(dict.fromkeys((2, 3), grown.storage), grown.storage)
        assert await coordinator.set_description(grown, described.version)

    await town.operator(half)

    async def main(log: Log) -> None:
        assert log.partition_count == 2  # told at once, whichever server was asked
        receipt = await log.append(b"x", 1)  # and its partitions have an owner soon
        assert receipt.id == 0

    await client(town, "payments", main)


@pytest.mark.parametrize(
    ("address", "cluster", "topic"),
    [
        ("polonaise://a:1,b:2/payments", "polonaise://a:1,b:2", "payments"),
        ("polonaise://a:1,b:2", "polonaise://a:1,b:2", ""),
        ("zookeeper://a:1,b:2/root/x?topic=payments", "zookeeper://a:1,b:2/root/x", "payments"),
        ("zookeeper://a:1/root?tls=no&topic=p", "zookeeper://a:1/root?tls=no", "p"),
        ("zookeeper://a:1/root?tls=no", "zookeeper://a:1/root?tls=no", ""),
        ("file:/a b/c?topic=p.q", "file:/a b/c", "p.q"),
        ("file:/a?b=c#d", "file:/a?b=c#d", ""),
        ("embedded:/a?storage=3", "embedded:/a?storage=3", ""),
        ("fragments:s3://b/p", "fragments:s3://b/p", ""),
    ],
)
def test_the_topic_in_an_address(address: str, cluster: str, topic: str) -> None:
    assert split_topic(address) == (cluster, topic)
    assert with_topic(cluster, topic) == address
