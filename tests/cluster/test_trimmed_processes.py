"""Trimming by command on real processes, with `kill -9` in the midst of it."""

from __future__ import annotations

import json
import random
import subprocess
from functools import partial
from pathlib import Path

import pytest

import polonaise
from polonaise.node.local import LocalCluster
from rigs.cluster import Writer, connected, running
from rigs.health import until_engaged
from rigs.programs import run_polonaise, start_polonaise
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow


def files(cluster: LocalCluster) -> list[int]:
    """How many segments each storage node has."""
    return [len(list((own / "0").glob("*.seq"))) for own in cluster.storage_directories]


def _has_begun(trimming: subprocess.Popen[str], cluster: LocalCluster, before: list[int]) -> bool:
    return trimming.poll() is not None or files(cluster) != before


async def contents(log: polonaise.Log) -> list[bytes]:
    return [bytes(batch.view) async for batch in log.read_batches(0, timeout=60)]


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
