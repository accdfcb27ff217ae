"""A storage node is added, and another one drained and removed, with real processes under load: no append fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from polonaise.node.local import ChildNode
from rigs.cluster import Writer, connected, running
from rigs.health import until_engaged
from rigs.programs import run_polonaise


@pytest.mark.slow
async def test_adding_a_node_and_draining_another_under_load_fails_no_append(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        arguments = ["storage", "run", "--directory", str(tmp_path / "new"), "--name", "new"]
        new = ChildNode("new", arguments, tmp_path / "new.log")
        await asyncio.to_thread(new.start)

        async def told(*command: str) -> list[str]:
            done = await asyncio.to_thread(run_polonaise, *command, "--coordinator", cluster.coordinator)
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout.splitlines()

        try:
            async with connected(cluster) as log, contextlib.AsyncExitStack() as writing:
                writer = await writing.enter_async_context(Writer(log))
                await writer.writes(200)
                await until_engaged(log, 3)
                early = await asyncio.to_thread(
                    run_polonaise, "storage", "drain", "storage-0", "--coordinator", cluster.coordinator
                )
                assert (early.returncode, "[copy_needed]" in early.stderr) == (1, True)
                assert await told("storage", "add", "new", new.address) == [
                    "storage node new: added",
                    "it answers there",
                ]
                drained = await told("storage", "drain", "storage-0")
                assert drained[0].endswith("copies are left on storage-0")
                assert drained[-1].startswith("storage node storage-0 holds no copies any more")
                freed = await told("storage", "clean", "storage-0")
                assert [line for line in freed if line.startswith("partition 0: ") and line.endswith(" freed")]
                assert await told("storage", "clean", "storage-0") == ["storage node storage-0: 0 B of 0 copies freed"]
                assert (await told("storage", "remove", "storage-0"))[0].startswith(
                    "storage node storage-0 was removed"
                )
                await asyncio.to_thread(cluster.storage[0].stop)
                await writer.writes(200)
                status = json.loads((await told("cluster", "status", "--json"))[0])
                assert status["wellness"] == "well"
                assert {each["name"] for each in status["storage"]} == {"storage-1", "storage-2", "new"}
                assert {*status["partitions"][0]["engaged"]} == {"storage-1", "storage-2", "new"}
                described = json.loads((await told("partition", "describe", "0", "--json"))[0])
                assert described["coordinator"]["next"] is None
        finally:
            await asyncio.to_thread(new.stop)
