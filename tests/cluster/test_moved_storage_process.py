"""A storage node's disk that goes on at another address, with real processes: a new machine with the old disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from pathlib import Path

import pytest

from polonaise.node.local import ANY_PORT, ChildNode
from rigs.cluster import Writer, connected, running
from rigs.health import until_engaged
from rigs.programs import run_polonaise


@pytest.mark.slow
async def test_a_node_whose_directory_moved_is_engaged_again_at_its_new_address(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        async with connected(cluster) as log, contextlib.AsyncExitStack() as writing:
            writer = await writing.enter_async_context(Writer(log))
            await writer.writes(50)
            await until_engaged(log, 3)
            old = cluster.storage[1]
            await asyncio.to_thread(old.stop)
            directory = tmp_path / "elsewhere"
            await asyncio.to_thread(shutil.move, cluster.storage_directories[1], directory)
            await writer.writes(50)
            moved = ChildNode("moved", ["storage", "run", "--directory", str(directory)], tmp_path / "moved.log")
            moved.address = ANY_PORT
            await asyncio.to_thread(moved.start)
            try:
                await writer.writes(50)
                assert len((await log.health(0))["partitions"]["0"]["engaged"]) == 2, "nobody was told yet"
                wrong = ("storage", "move", "storage-0", moved.address, "--coordinator", cluster.coordinator)
                refused = await asyncio.to_thread(run_polonaise, *wrong)
                assert refused.returncode == 1
                assert "[wrong_storage_node]" in refused.stderr
                assert "storage node storage-1 answers at" in refused.stderr
                right = ("storage", "move", "storage-1", moved.address, "--coordinator", cluster.coordinator)
                done = await asyncio.to_thread(run_polonaise, *right)
                assert (done.returncode, done.stderr) == (0, "")
                assert done.stdout.splitlines() == [
                    f"storage node storage-1: {moved.address}, was {old.address}", "it answers there",
                ]  # fmt: skip
                again = await asyncio.to_thread(run_polonaise, *right, "--json")
                assert json.loads(again.stdout) == {
                    "name": "storage-1", "before": moved.address, "address": moved.address, "changed": False,
                    "trouble": "", "copies_missing": 0,
                }  # fmt: skip
                await until_engaged(log, 3)
                await writer.writes(50)
                listing = ("storage", "list", "--coordinator", cluster.coordinator, "--json")
                told = await asyncio.to_thread(run_polonaise, *listing)
                listed = [json.loads(line) for line in told.stdout.splitlines()]
                assert {each["name"]: each["address"] for each in listed} == {
                    "storage-0": cluster.storage[0].address, "storage-1": moved.address,
                    "storage-2": cluster.storage[2].address,
                }  # fmt: skip
                assert [each["directory"] for each in listed if each["name"] == "storage-1"] == [str(directory)]
                await writing.aclose()
                assert not writer.failed
                assert not writer.unknown
                await writer.check(log)
            finally:
                await asyncio.to_thread(moved.stop)
    assert "Traceback" not in moved.log
