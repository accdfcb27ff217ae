"""A server that hangs harms nobody for longer than its lease, and says nothing that counts when it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

import polonaise
from polonaise.coordination.lease import LEASE_S, RENEW_S
from polonaise.log.batch import split
from polonaise.node.local import ChildNode
from polonaise.wire.messages import Feed, Refused
from rigs.cluster import Writer, connected, running
from rigs.hostile import Peer, greet, mount, one_append, target_of
from rigs.tls import Authority
from rigs.waiting import PATIENCE_S, wait_until

ZOMBIE = b"sent to the old owner while it was stopped"
TAKE_OVER_S_MAX = LEASE_S + RENEW_S + 8.0
"""Its lease, a look at it, a session; and a client's way to the new owner."""


def fed_in(message: Feed) -> dict[int, bytes]:
    """Return the transactions of a message, by id."""
    batches = split(memoryview(b"".join(message.payload)))
    return {tx.id: bytes(tx.data) for batch in batches for tx in batch.transactions()}


async def fed_until_the_end(peer: Peer) -> dict[int, bytes]:
    """Return the transactions that a mounted peer was fed, by id, until the server has ended its mount."""
    fed: dict[int, bytes] = {}
    while (message := await peer.hear(PATIENCE_S)) is not None and not isinstance(message, Refused):
        if isinstance(message, Feed):
            fed |= fed_in(message)
    return fed


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
            old = await target_of(cluster, "server")
            async with connected(cluster) as log, Writer(log) as writer, greet(old) as peer:
                await writer.writes(100)
                peer.say(mount(-1), partition=0, request=1)
                while not isinstance(fed_first := await peer.hear(), Feed):
                    assert fed_first is not None
                stopped = cluster.server.pid
                assert stopped is not None
                stopped_s = time.monotonic()
                os.kill(stopped, signal.SIGSTOP)
                try:
                    # It lies at the old owner, which believes to own the partition still when it goes on.
                    peer.say(one_append(ZOMBIE, sequence=1))
                    await writer.writes(100)
                    pause_s = writer.longest_pause_s(stopped_s)
                    print(f"a stopped server: no commit for {pause_s:.1f} s")  # noqa: T201
                    assert pause_s < TAKE_OVER_S_MAX
                finally:
                    os.kill(stopped, signal.SIGCONT)
                await writer.writes(300)
                # On a busy machine the server may have been stopped before it could feed more than the first batch.
                fed = fed_in(fed_first) | await fed_until_the_end(peer)
            async with connected(cluster) as fresh:
                length = await writer.check(fresh)
                logged = [tx.data async for tx in fresh.read(0, timeout=PATIENCE_S)]
                assert ZOMBIE not in logged, "what reached the old owner late was written nowhere"
                assert len(logged) >= length
                assert fed, "it had fed what was committed before"
                assert all(logged[id] == data for id, data in fed.items()), "it fed nothing but the log"
                health = await fresh.health(0, timeout=10)
                assert health["partitions"]["0"]["generation"] == 2, "the one that went on took nothing back"
        finally:
            await asyncio.to_thread(standby.stop)
        assert "Traceback" not in standby.log


def transports(loop: asyncio.AbstractEventLoop) -> list[object]:
    """Return the loop's transports of sockets that are not closed: those of which it warns once it is garbage."""
    return [each for each in loop._transports.values() if each._sock is not None]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["coordinator", "servers"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_a_client_that_is_closed_while_its_server_hangs_leaves_no_connection_open(
    tmp_path: Path, by: str, tls: bool
) -> None:
    """With TLS a connection also waits for the server's answer to its end."""
    ours = Authority(tmp_path)
    with (
        running(tmp_path / "cluster", tls=ours.node() if tls else None) as cluster,
        asyncio.Runner() as runner,
    ):
        assert cluster.server is not None
        stopped = cluster.server.pid
        assert stopped is not None
        address = cluster.coordinator if by == "coordinator" else f"polonaise://{cluster.server.address}"

        async def use() -> float:
            async with polonaise.connect(address, tls=ours.client("app") if tls else None) as log:
                await log.append(b"served", partition=0)
                assert len([tx async for tx in log.read(0)]) == 1
                os.kill(stopped, signal.SIGSTOP)
                for _ in range(20):
                    log.append(bytes(500_000), partition=0)
                await wait_until(lambda: any(each.unsent_bytes for each in log._links._connections()))
                assert len(transports(asyncio.get_running_loop())) > 1
                return time.monotonic()

        try:
            closed_s = runner.run(use())
            assert time.monotonic() - closed_s < PATIENCE_S / 2
            # As asyncio.run does before it closes the loop.
            runner.get_loop().run_until_complete(runner.get_loop().shutdown_asyncgens())
            assert transports(runner.get_loop()) == []
        finally:
            os.kill(stopped, signal.SIGCONT)
