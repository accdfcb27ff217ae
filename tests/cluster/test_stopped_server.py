"""A server that hangs harms nobody for longer than its lease, and says nothing that counts when it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from polonaise.coordination.lease import LEASE_S, RENEW_S
from polonaise.node.local import ChildNode
from rigs.cluster import Writer, connected, running

TAKE_OVER_S_MAX = LEASE_S + RENEW_S + 8.0
"""Its lease, a look at it, a session; and a client's way to the new owner."""


@pytest.mark.slow
async def test_a_stopped_server_is_taken_over_from_and_changes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        assert cluster.server is not None
        addresses = ",".join(node.address for node in cluster.storage)
        standby = ChildNode(
            "standby",
            ["server", "run", "--coordinator", cluster.coordinator, "--storage", addresses],
            tmp_path / "standby.log",
        )
        await asyncio.to_thread(standby.start)
        try:
            async with connected(cluster) as log, Writer(log) as writer:
                await writer.writes(100)
                stopped = cluster.server.pid
                assert stopped is not None
                stopped_s = time.monotonic()
                os.kill(stopped, signal.SIGSTOP)
                try:
                    await writer.writes(100)
                    pause_s = writer.longest_pause_s(stopped_s)
                    print(f"a stopped server: no commit for {pause_s:.1f} s")  # noqa: T201
                    assert pause_s < TAKE_OVER_S_MAX
                finally:
                    os.kill(stopped, signal.SIGCONT)
                await writer.writes(300)
            async with connected(cluster) as fresh:
                await writer.check(fresh)
                health = await fresh.health(0, timeout=10)
                assert health["partitions"]["0"]["generation"] == 2, "the one that went on took nothing back"
        finally:
            await asyncio.to_thread(standby.stop)
        assert "Traceback" not in standby.log
