"""Topics are archived by the ids of their partitions, and restored with the same ids and numbers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import polonaise
from polonaise.admin.archive import archive
from polonaise.admin.restore import HowToRestore, restore
from polonaise.admin.topics import add_partitions, create_topic
from polonaise.coordination.file import coordinator_in
from polonaise.errors import BadOption
from polonaise.fragments.objects import partitions_in
from polonaise.fragments.store import open_store
from polonaise.host.real import RealHost
from polonaise.node.local import LocalCluster
from rigs.restoring import contents

pytestmark = pytest.mark.slow


async def topics_made(directory: Path) -> None:
    """Make topics a and b; a gets its partition 1 after all of b."""
    host = RealHost()
    coordinator = coordinator_in(host, str(directory / "coordinator"))
    try:
        await create_topic(coordinator, "a", 1, 10.0)
        await create_topic(coordinator, "b", 1, 10.0)
        await add_partitions(coordinator, "a", 1, 10.0)
    finally:
        await coordinator.close()
        host.close()


async def filled(address: str, topic: str) -> None:
    async with polonaise.connect(f"{address}{topic}") as log:
        for partition in range(log.partition_count):
            for number in range(3):
                await log.append(f"{topic} {partition} {number}".encode(), partition)


def test_topics_are_archived_verified_and_restored_with_their_numbers(tmp_path: Path) -> None:
    store = tmp_path / "store"
    topics = ("", "?topic=a", "?topic=b")
    with LocalCluster(tmp_path / "cluster", storage=1, partitions=1) as cluster:
        asyncio.run(topics_made(tmp_path / "cluster"))
        for topic in topics:
            asyncio.run(filled(cluster.coordinator, topic))
        command("archive", "run", "--rest", cluster.coordinator, str(store))
        opened = open_store(str(store))
        assert asyncio.run(partitions_in(opened)) == [0, 1, 2, 3]
        command("archive", "verify", str(store))
        asyncio.run(filled(cluster.coordinator, "?topic=b"))
        command("archive", "run", "--rest", cluster.coordinator, str(store))
        min((store / "2").glob("*.parquet")).unlink()
        again = command("archive", "run", "--rest", cluster.coordinator, str(store))
        assert "topic b, partition 0: no fragment held 0 to 2 when this run began" in again
        assert cluster.server is not None
        address = f"polonaise://{cluster.server.address}/a"  # whose topics the server tells
        assert asyncio.run(written(address, store)) == 0
        before = {topic: asyncio.run(all_of(f"{cluster.coordinator}{topic}")) for topic in topics}
    assert [len(each) for each in before.values()] == [1, 2, 1]
    with pytest.raises(BadOption, match="an embedded log has none"):
        asyncio.run(restore(opened, str(tmp_path / "embedded"), HowToRestore()))
    nodes = {"storage-0": f"unix:{tmp_path}/node"}
    asyncio.run(restore(opened, str(tmp_path / "restored"), HowToRestore(nodes=nodes)))
    copy = LocalCluster(tmp_path / "restored", storage=1, partitions=1)
    copy.storage[0].address = nodes["storage-0"]
    with copy:
        for topic in topics:
            assert asyncio.run(all_of(f"{copy.coordinator}{topic}")) == before[topic]
            asyncio.run(filled(copy.coordinator, topic))


def command(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "polonaise.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def written(address: str, store: Path) -> int:
    opened = open_store(str(store))
    async with polonaise.connect(address) as log:
        assert log.partition_count == 2
        assert (await log.cluster_topics()).topics == {"a": (1, 3), "b": (2,)}
        return len([each for number in (0, 1) async for each in archive(log, opened, number, rest=True)])


async def all_of(address: str) -> list[object]:
    async with polonaise.connect(address) as log:
        return [await contents(log, number) for number in range(log.partition_count)]
