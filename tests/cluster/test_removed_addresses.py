"""Real nodes at Unix sockets whose directory is taken away: `/ready` says so, and in the end the node makes room."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.cluster import running
from rigs.httpget import HttpSaid, http_get
from rigs.programs import start_polonaise
from rigs.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


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


async def test_a_storage_node_that_nobody_can_reach_any_more_says_so_and_ends(tmp_path: Path) -> None:
    sockets = tmp_path / "run"
    sockets.mkdir()
    listen = f"unix:{sockets}/storage"
    with _node("storage", "run", "--directory", tmp_path / "storage", "--listen", listen) as (process, http):
        await _ends_when_nobody_can_connect(process, http, sockets)


async def test_a_server_that_nobody_can_reach_any_more_says_so_and_ends(tmp_path: Path) -> None:
    sockets = tmp_path / "run"
    sockets.mkdir()
    with (
        running(tmp_path / "cluster") as cluster,
        _node("server", "run", "--coordinator", cluster.coordinator, "--listen", f"unix:{sockets}/server") as node,
    ):
        await _ends_when_nobody_can_connect(*node, sockets)
