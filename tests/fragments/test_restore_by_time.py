"""What is chosen by time where commit times stand still, and topics that are archived and restored."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import polonaise
from polonaise.admin.archive import archive
from polonaise.admin.restore import HowToRestore, Key, restore
from polonaise.admin.topics import add_partitions, create_topic
from polonaise.cli.inputs import ids_of
from polonaise.coordination.file import coordinator_in
from polonaise.errors import BadOption
from polonaise.fragments.columns import last_at
from polonaise.fragments.objects import fragments_of, partitions_in
from polonaise.fragments.protocol.coverage import Span, cover
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.host.real import RealHost
from polonaise.log.batch import Batch
from polonaise.node.local import LocalCluster
from rigs.restoring import archived, contents, filled_and_archived


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored"


@pytest.mark.slow
@pytest.mark.parametrize("fragment_bytes", [1_000, 1_000_000])
async def test_a_time_at_which_commit_times_stand_still_is_refused(
    store: ObstoreStore,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    fragment_bytes: int,
    tmp_path: Path,
) -> None:
    """As in a log whose clock was an hour ahead once, when it was opened."""
    real, ahead = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead * 10**9)
    directory = f"embedded:{tmp_path / 'ahead'}"
    async with polonaise.connect(directory) as wrong:
        for _ in range(5):
            await wrong.append(b"before", 0)
    now_us = real() // 1000
    ahead = 3_600
    async with polonaise.connect(directory) as wrong:
        await wrong.append(b"ahead", 0)
    ahead = 0
    async with polonaise.connect(directory) as wrong:
        await wrong.append(b"now", 0)
        await archived(wrong, store, fragment_bytes=fragment_bytes)
    with pytest.raises(BadOption, match=r"partition 0: commit times stand still from id .*PARTITION=ID") as refused:
        await restore(store, str(target), HowToRestore(until_time_us=now_us + 60_000_000, key=Key.NEW))
    advice = str(refused.value).rpartition("--until ")[2].split()[0]
    until = ids_of([advice])
    assert set(until) == {0}
    assert f"all up to {until[0]} were committed before it" in str(refused.value)
    ahead = 7_200  # it is over: the clock has reached that time
    with pytest.raises(BadOption, match="stand still"):
        await restore(store, str(target / "later"), HowToRestore(until_time_us=now_us + 60_000_000, key=Key.NEW))
    done = await restore(store, str(target / "all"), HowToRestore(until_time_us=now_us + 7_000_000_000, key=Key.NEW))
    assert done.partitions[0].last == done.partitions[0].in_store_up_to


@dataclass
class SetClock:
    """The clock of this machine, which may be set wrong."""

    ahead_s: int = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    real, clock = time.time_ns, SetClock()
    monkeypatch.setattr(time, "time_ns", lambda: real() + clock.ahead_s * 10**9)
    return clock


@pytest.mark.slow
@pytest.mark.parametrize("fragment_bytes", [1_000, 1_000_000])
@pytest.mark.parametrize("until_s", [1_800, 3_610])
async def test_times_that_stand_still_long_behind_the_time_are_found(
    store: ObstoreStore, target: Path, clock: SetClock, tmp_path: Path, fragment_bytes: int, until_s: int
) -> None:
    """The clock was ahead for a while, in which times went on; only then it was set right. A cut at the jump, or behind
    it, leaves out what was committed before that time."""
    directory, now_us = f"embedded:{tmp_path / 'ahead'}?partitions=2", time.time_ns() // 1_000
    async with polonaise.connect(directory) as log:
        await log.append(b"before", 0)
        await log.append(b"before", 1)
    for clock.ahead_s in (3_600, 3_620, 3_640):
        async with polonaise.connect(directory) as log:
            await log.append(bytes(2_000), 0)
    clock.ahead_s = 0
    async with polonaise.connect(directory) as log:
        await log.append(b"right again", 0)
        await log.append(b"later", 1)
        await archived(log, store, fragment_bytes=fragment_bytes)
    how = HowToRestore(until_time_us=now_us + until_s * 1_000_000, key=Key.NEW)
    for clock.ahead_s in (0, 10_000):  # whatever the clock says by which it is restored
        with pytest.raises(BadOption, match=r"partition 0: commit times stand still from id ") as refused:
            await restore(store, str(target), how)
        assert not target.exists(), "nothing is left that was not there"
    until = ids_of([str(refused.value).rpartition("--until ")[2]])
    done = await restore(store, str(target), HowToRestore(until=until, key=Key.NEW))
    assert {each.partition: each.last for each in done.partitions} == until
    assert until[0] in (0, 1) if until_s == 1_800 else until[0] > 0
    assert until[1] == done.partitions[1].in_store_up_to, "the other partition is cut at that time"


@pytest.mark.parametrize("ahead_s", [-10_000, 10_000])
async def test_a_restore_up_to_a_time_takes_no_advice_from_this_machines_clock(
    store: ObstoreStore, target: Path, clock: SetClock, tmp_path: Path, ahead_s: int
) -> None:
    async with polonaise.connect(f"embedded:{tmp_path / 'right'}") as log:
        first = await log.append(b"first", 0)
        (cut_us,) = [tx.commit_time_us async for tx in log.read(0)]
        await log.append(b"second", 0)
        await archived(log, store)
    clock.ahead_s = ahead_s
    done = await restore(store, str(target), HowToRestore(until_time_us=cut_us, key=Key.NEW))
    assert done.partitions[0].last == first.id


@pytest.mark.slow
async def test_the_ids_at_any_time_are_those_that_a_look_at_all_batches_finds(
    store: ObstoreStore, tmp_path: Path
) -> None:
    async with polonaise.connect(f"embedded:{tmp_path / 'log'}") as log:
        await filled_and_archived(log, store, 120, fragment_bytes=500)
        batches = [Batch.parse(raw) for raw in (await contents(log)).batches]
    sizes = await fragments_of(store, 0)
    pieces = cover(sizes, Span(0, batches[-1].last)).pieces
    assert len(pieces) > 5
    for time_us in {batch.commit_time_us + more for batch in batches for more in (-1, 0)}:
        expected = max([-1, *(batch.last for batch in batches if batch.commit_time_us <= time_us)])
        assert last_at(store, pieces, sizes, time_us) == (expected, None)


async def test_a_reading_by_time_that_begins_in_the_future_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = f"embedded:{tmp_path / 'ahead'}"
    async with polonaise.connect(directory) as log:
        await log.append(b"now", 0)
        since = datetime.now(UTC) - timedelta(minutes=1)
        assert [tx.data async for tx in log.read_time(0, since=since)] == [b"now"]
        assert "stand still" not in caplog.text
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600 * 10**9)
    async with polonaise.connect(directory) as log:
        assert [tx.data async for tx in log.read_time(0, since=since)] == [b"now"]
    assert "partition 0: commit times stand still at " in caplog.text


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


@pytest.mark.slow
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
