"""Real processes: clients that know servers only, while the server that they asked is killed or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import polonaise
from polonaise.client.serverdiscovery import ServerDiscovery
from polonaise.client.settings import ClientSettings
from polonaise.node.local import ChildNode, LocalCluster
from rigs.cluster import Writer, running
from rigs.programs import output_of, run_polonaise
from rigs.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def two_servers(directory: Path) -> Iterator[tuple[LocalCluster, list[ChildNode]]]:
    """Run a cluster of two partitions with a second server beside the cluster's own."""
    with running(directory, partitions=2) as cluster:
        assert cluster.server is not None
        storage = ",".join(node.address for node in cluster.storage)
        arguments = ["server", "run", "--coordinator", cluster.coordinator, "--storage", storage, "--partitions", "2"]
        second = ChildNode("second server", arguments, directory / "second.log")
        second.start()
        try:
            yield cluster, [cluster.server, second]
        finally:
            second.stop()
        assert "Traceback" not in second.log, second.log[-3000:]


@contextlib.asynccontextmanager
async def asking(*servers: ChildNode) -> AsyncIterator[polonaise.Log]:
    address = "polonaise://" + ",".join(node.address for node in servers)
    async with polonaise.connect(address, settings=ClientSettings(coordinator_s_max=6)) as log:
        yield log


def asked(log: polonaise.Log) -> str:
    """The address of the server that this client asks now; empty for none."""
    discovery = log._discovery
    assert isinstance(discovery, ServerDiscovery)
    current = discovery._current
    return "" if current is None or current[1].closed else current[0]


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_client_whose_server_is_gone_goes_on_with_another(tmp_path: Path, fate: signal.Signals) -> None:
    with two_servers(tmp_path) as (_, servers):
        async with asking(*servers) as log, Writer(log) as writer:
            await writer.writes(50)
            (gone,) = [node for node in servers if node.address == asked(log)]
            (left,) = [node for node in servers if node is not gone]
            assert gone.pid is not None
            os.kill(gone.pid, fate)
            await wait_until(lambda: asked(log) == left.address, within_s=PATIENCE_S)
            await writer.writes(50)
            async with asking(*servers) as newcomer:
                # Whichever it tried first: a stopped process takes connections, too, and then says nothing.
                await wait_until(lambda: asked(newcomer) == left.address, within_s=PATIENCE_S)
                assert newcomer.client_id != log.client_id
                await newcomer.append(b"a new client finds the one that is left", partition=0)
            if fate is signal.SIGSTOP:
                os.kill(gone.pid, signal.SIGCONT)
            else:
                await asyncio.to_thread(gone.kill)  # reaps it
                await asyncio.to_thread(gone.start)
            await writer.writes(50)
        async with asking(*servers) as log:
            await writer.check(log)


async def test_commands_and_clients_work_by_a_servers_address_alone(tmp_path: Path) -> None:
    with two_servers(tmp_path) as (_, servers):
        address = f"polonaise://{servers[1].address}"
        assert output_of(run_polonaise("log", "append", address, "--partition", "1", "1 100")).split()[0] == "1"
        assert "1 100" in output_of(run_polonaise("log", "read", address, "--partition", "1"))
        assert "ready" in output_of(run_polonaise("log", "health", address))
        archive = tmp_path / "archive"
        output_of(run_polonaise("archive", "run", address, str(archive), "--rest"))
        assert list(archive.rglob("*.parquet"))
        shutil.rmtree(archive)


async def test_a_storage_nodes_port_in_the_list_is_said_to_be_no_server(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        done = run_polonaise("log", "read", f"polonaise://{cluster.storage[0].address}", "--partition", "0")
        assert done.returncode == 1
        assert done.stderr.startswith("polonaise: [wrong_role]")
        assert "name servers" in done.stderr
        assert "Traceback" not in done.stderr
