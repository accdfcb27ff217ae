"""Storage nodes of real processes: added, drained, moved, and with files and sockets that are taken away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.errors import SegmentDamaged
from polonaise.log.segment import SegmentHeader
from polonaise.node.local import ChildNode
from rigs.cluster import Writer, connected, running
from rigs.health import until_engaged
from rigs.httpget import HttpSaid, http_get
from rigs.programs import run_polonaise, start_polonaise
from rigs.waiting import PATIENCE_S, wait_until


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


NOTICED_S = 30.0
"""Half of an idle owner's pulse."""


def segments(directory: Path) -> dict[str, int]:
    """The files of a copy's segments, each with the CRC that the log had before it; none while they are changed."""
    try:
        return {path.name: SegmentHeader.decode(path.read_bytes()).previous_crc for path in directory.glob("*.seq")}
    except (FileNotFoundError, SegmentDamaged):
        return {}


def written(directory: Path) -> dict[str, int]:
    """When each file of a copy was written last."""
    try:
        return {path.name: path.stat().st_mtime_ns for path in directory.glob("*.seq")}
    except FileNotFoundError:
        return {}


def agrees(found: dict[str, int], before: dict[str, int]) -> bool:
    return all(found[name] == before[name] for name in found.keys() & before.keys())


@pytest.mark.exhaustive("polonaise.storage", "polonaise.log")  # of files
@pytest.mark.slow
@pytest.mark.parametrize("what", ["closed segment", "last segment", "directory"])
async def test_what_is_removed_under_an_idle_node_is_copied_anew_before_anybody_appends(
    tmp_path: Path, what: str
) -> None:
    with running(tmp_path / "cluster", segment_bytes=4096) as cluster:
        async with connected(cluster) as log:
            for number in range(30):
                await log.append(b"%d" % number + bytes(500), 0)
            await until_engaged(log, 3)
            copy = tmp_path / "cluster" / "storage-1" / "0"
            before, taken = segments(copy), tmp_path / "taken"
            assert len(before) > 3
            if what == "directory":
                shutil.move(copy, taken)
            else:
                shutil.move(copy / sorted(before)[1 if what == "closed segment" else -1], taken)
            left = written(copy)

            def is_being_copied() -> bool:
                return written(copy) not in ({}, left)

            # The owner does not count the copy from before it has it cut until it is whole.
            await wait_until(is_being_copied, "the copy is made anew", within_s=NOTICED_S, every_s=0.1)
            await until_engaged(log, 3)
            # Which batches share a segment is another matter: it goes by what came together.
            assert agrees(segments(copy), before)
            assert len(segments(copy)) >= len(before) - 1


@contextlib.contextmanager
def _node(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a node with HTTP at a port that the system chooses; yield it with that address once it serves."""
    process = start_polonaise(*arguments, "--http", "0")
    try:
        assert process.stdout is not None
        said = dict(process.stdout.readline().split() for _ in range(2))
        yield process, said["http"]
    finally:
        process.kill()
        process.communicate()


async def _until_ready_is(status: int, http: str) -> HttpSaid:
    async def look() -> HttpSaid | None:
        said = await http_get(http, "/ready")
        return said if said.status == status else None

    return await wait_until(look, every_s=0.1)  # type: ignore[return-value]


async def _ends_when_nobody_can_connect(process: subprocess.Popen[str], http: str, sockets: Path) -> None:
    await _until_ready_is(200, http)
    sockets.rename(sockets.with_name("elsewhere"))
    said = await _until_ready_is(503, http)
    assert "nobody can connect" in said.document["reason"]
    health = (await http_get(http, "/health")).document
    assert not health["ready"]
    assert health["status"] == "not_ready"
    assert any("nobody can connect" in line for line in str(health["problems"]).split(", "))
    sockets.with_name("elsewhere").rename(sockets)
    await _until_ready_is(200, http)
    sockets.rename(sockets.with_name("elsewhere"))
    await wait_until(lambda: process.poll() is not None, within_s=PATIENCE_S)
    assert process.returncode == 1
    assert process.stderr is not None
    assert "[address_gone] this node ends" in process.stderr.read()


@pytest.mark.slow
async def test_a_storage_node_that_nobody_can_reach_any_more_says_so_and_ends(tmp_path: Path) -> None:
    sockets = tmp_path / "run"
    sockets.mkdir()
    listen = f"unix:{sockets}/storage"
    with _node("storage", "run", "--directory", tmp_path / "storage", "--listen", listen) as (process, http):
        await _ends_when_nobody_can_connect(process, http, sockets)


@pytest.mark.slow
async def test_a_server_that_nobody_can_reach_any_more_says_so_and_ends(tmp_path: Path) -> None:
    sockets = tmp_path / "run"
    sockets.mkdir()
    with (
        running(tmp_path / "cluster") as cluster,
        _node("server", "run", "--coordinator", cluster.coordinator, "--listen", f"unix:{sockets}/server") as node,
    ):
        await _ends_when_nobody_can_connect(*node, sockets)
