"""A process of a player on a cluster of processes with TLS, with a target elsewhere: one certificate for both."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

import polonaise
from polonaise.cli.exitstatus import ExitStatus
from polonaise.host.certificates import CLIENT, PLAYER, TARGET
from polonaise.host.tls import VARIABLES, TlsFiles
from polonaise.player import JsonLinesTarget, serve
from rigs.cluster import running
from rigs.playerprocesses import PlayerProcess, ShopWithShards
from rigs.tls import Authority
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow


def in_environment(files: TlsFiles) -> dict[str, str]:
    return {variable: getattr(files, name) for name, variable in VARIABLES.items()}


async def test_a_player_delivers_over_tls_with_a_certificate_for_both_roles(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    client = ours.client()
    target = JsonLinesTarget(tmp_path / "a.jsonl", decode=bytes.decode)
    with running(tmp_path / "cluster", tls=ours.node()) as cluster:
        assert cluster.server is not None
        address = f"polonaise://{cluster.server.address}"
        async with serve(target, "link://localhost:0", tls=ours.issue("target", TARGET)) as server:
            shop = ShopWithShards(tmp_path, address)
            shop.write_settings(addresses={"a": server.address})
            both = in_environment(ours.issue("player", CLIENT, PLAYER, hosts=()))
            with contextlib.closing(PlayerProcess(tmp_path, environment=both)) as process:
                await asyncio.to_thread(process.until, "active")
                async with polonaise.connect(address, tls=client) as log:
                    await log.append(b"a:1", partition=0)
                path = tmp_path / "a.jsonl"
                await wait_until(lambda: path.exists() and path.read_text())
                assert [json.loads(line)["payload"] for line in path.read_text().splitlines()] == ["1"]
                assert await asyncio.to_thread(process.end) == 0
            alone = in_environment(client)
            with contextlib.closing(PlayerProcess(tmp_path, environment=alone)) as process:
                assert await asyncio.to_thread(process.process.wait, 60) == ExitStatus.SETTINGS
                assert "player" in process.errors
    await target.close()
