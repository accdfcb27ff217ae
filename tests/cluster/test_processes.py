"""Real processes on loopback: what is killed comes back, what was acknowledged stays, a trim loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

import polonaise
from polonaise.errors import AppendUnknown
from polonaise.node.local import ChildNode, LocalCluster, make_cluster
from rigs.cluster import Writer, connected, nodes, running
from rigs.health import until_engaged
from rigs.programs import run_polonaise, start_polonaise
from rigs.waiting import wait_until


@pytest.mark.slow
async def test_a_clean_stop_leaves_no_process_and_is_no_error(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        pids = [node.pid for node in nodes(cluster)]
        async with connected(cluster) as log:
            await log.append(b"before the stop", partition=0)
            # The stop comes while a client is connected, and waits for nobody.
            await asyncio.to_thread(cluster.stop)
        assert [node.exit_status for node in nodes(cluster)] == [0, 0, 0, 0]
        for pid in pids:
            assert pid is not None
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.slow
async def test_all_processes_killed_at_once_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        async with connected(cluster) as log, Writer(log, every_s=0.001) as writer:
            await writer.writes(300)
            for node in nodes(cluster):
                assert node.pid is not None
                os.kill(node.pid, signal.SIGKILL)
            for node in nodes(cluster):
                node.kill()
            for node in [*cluster.storage, cluster.server]:
                assert node is not None
                await asyncio.to_thread(node.start)
            await writer.writes(100)
        async with connected(cluster) as fresh:
            length = await writer.check(fresh)
            assert await fresh.high_water_mark(0) == length - 1


@pytest.mark.slow
async def test_a_storage_node_under_two_names_counts_once(tmp_path: Path) -> None:
    """As two, it would be a quorum of three by itself, and one disk would hold what was acknowledged."""
    cluster = LocalCluster(tmp_path, storage=2)
    try:
        for node in cluster.storage:
            await asyncio.to_thread(node.start)
        first, second = (node.address for node in cluster.storage)
        alias = first.replace("127.0.0.1", "localhost")
        make_cluster(cluster.coordinator, {name: name for name in (first, alias, second)}, 1)
        options = ["--coordinator", cluster.coordinator]
        cluster.servers = [ChildNode("server", ["server", "run", *options], tmp_path / "server.log")]
        await asyncio.to_thread(cluster.servers[0].start)
        async with connected(cluster) as log:
            await log.append(b"on two disks", partition=0)
            await asyncio.to_thread(cluster.storage[1].kill)
            with pytest.raises(AppendUnknown):
                await log.run(lambda tx: tx.append(b"on one"), partition=0, timeout=5)
            await asyncio.to_thread(cluster.storage[1].start)
            await log.append(b"on two again", partition=0)
            links = (await log.health(0))["storage"]
            # Whichever of the two asked first has given the node its name.
            (refused,) = (links[name]["error"] for name in (first, alias) if not links[name]["connected"])
        assert refused.startswith("[wrong_storage_node]")
        assert first in refused
        assert alias in refused
    finally:
        await asyncio.to_thread(cluster.stop)


@pytest.mark.exhaustive("polonaise.coordination")  # of values
@pytest.mark.slow
@pytest.mark.parametrize("name", ["assignment", "members"])
async def test_a_damaged_coordinator_stops_no_server_and_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    with running(tmp_path) as cluster:
        assert cluster.server is not None
        async with connected(cluster) as log:
            await log.append(b"before", partition=0)
            path = tmp_path / "coordinator" / name
            path = next(each for each in path.iterdir() if each.name.isdecimal()) if path.is_dir() else path
            whole = path.read_bytes()
            path.write_bytes(b"junk")
            await wait_until(lambda: "coordinator_damaged" in cluster.server.log)  # type: ignore[union-attr]
            await log.append(b"meanwhile", partition=0)
            path.write_bytes(whole)
            await log.append(b"after", partition=0)
        assert cluster.server.alive
        assert "Traceback" not in cluster.server.log


def files(cluster: LocalCluster) -> list[int]:
    """How many segments each storage node has."""
    return [len(list((own / "0").glob("*.seq"))) for own in cluster.storage_directories]


def _has_begun(trimming: subprocess.Popen[str], cluster: LocalCluster, before: list[int]) -> bool:
    return trimming.poll() is not None or files(cluster) != before


async def contents(log: polonaise.Log) -> list[bytes]:
    return [bytes(batch.view) async for batch in log.read_batches(0, timeout=60)]


@pytest.mark.slow
async def test_a_trim_among_kills_drops_what_is_archived_and_loses_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running(tmp_path / "cluster", segment_bytes=4_096, fragments=str(store)) as cluster:
        async with connected(cluster) as log, Writer(log, every_s=0.002) as writer:
            await writer.writes(1_500)
            assert run_polonaise("archive", "run", cluster.coordinator, store, "--rest").returncode == 0
            before = files(cluster)
            assert min(before) > 10
            for _ in range(3):
                trimming = start_polonaise("archive", "trim", cluster.coordinator, store)
                await wait_until(partial(_has_begun, trimming, cluster, before), "a trim")
                before = files(cluster)
                node = random.choice(cluster.storage)
                node.kill()
                node.start()
                trimming.kill()
                trimming.communicate()
            await until_engaged(log, 3)
            done = run_polonaise("archive", "trim", cluster.coordinator, store, "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["first"] > 1_000
            await writer.writes(100)
        async with connected(cluster) as log:
            assert await writer.check(log) > 1_500
            whole = await contents(log)
            assert run_polonaise("segment", "verify", cluster.storage_directories[0]).returncode == 0
            # Everything dies, and one disk is new: what is left and what is archived make the log.
            assert cluster.server is not None
            for node in [cluster.server, *cluster.storage]:
                node.kill()
            for path in sorted(cluster.storage_directories[1].rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            for node in [*cluster.storage, cluster.server]:
                node.start()
            await until_engaged(log, 3)
            assert (await contents(log))[: len(whole)] == whole
