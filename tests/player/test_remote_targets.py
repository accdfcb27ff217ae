"""A whole player, and a target in another process that is killed and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import polonaise
from polonaise.player import Player, PlayerSettings, remote
from rigs.deliverystreams import REMOTE, Remote
from rigs.targetprocess import TargetProcess, kept
from rigs.waiting import time_passes, wait_until


@pytest.mark.slow
@pytest.mark.parametrize("transport", REMOTE.values(), ids=REMOTE.keys())
async def test_a_target_in_a_process_that_is_killed_has_each_entry_once_when_it_comes_back(
    tmp_path: Path, transport: Remote
) -> None:
    random = Random(3)
    path = tmp_path / "target.db"
    settings = PlayerSettings(retry_s_min=0.02, retry_s_max=0.1, start_patience_s=5.0, batch_entries_max=20)
    with TargetProcess.running(path, transport.address) as process:
        endpoint = remote(process.address)
        async with polonaise.connect(f"embedded:{tmp_path / 'log'}?partitions=2") as log:
            written: dict[int, list[bytes]] = {0: [], 1: []}
            async with Player(log, "p", lambda tx: {"a": tx.data}, {"a": endpoint}, settings=settings) as player:
                for _ in range(5):
                    for _ in range(random.randrange(3, 10)):
                        partition = random.randrange(2)
                        bodies = [b"%d" % random.randrange(10**9) for _ in range(30)]
                        await asyncio.gather(*(log.append(body, partition=partition) for body in bodies))
                        written[partition] += bodies
                        await time_passes(random.random() * 0.02)
                    # While something is on its way, more often than not.
                    process.kill()
                    await wait_until(lambda: not player.health()["well"], "health tells of it")
                    assert "state" in player.health()["targets"]["a"]
                    await asyncio.to_thread(process.start)
                last = {partition: len(bodies) for partition, bodies in written.items() if bodies}
                await wait_until(
                    lambda: {each: len(found) for each, found in kept(path).items()} == last,
                    "everything is there",
                    every_s=0.05,
                )
                await wait_until(lambda: player.health()["well"], "all is well again")
        await endpoint.close()
        assert kept(path) == {partition: bodies for partition, bodies in written.items() if bodies}
