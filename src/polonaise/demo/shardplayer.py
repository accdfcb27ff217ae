"""A process of the player that delivers the bank's transactions to the shards: it stands by, or is the active one.

    python -m polonaise.demo.shardplayer JOB

Reads a `PlayerJob`, and prints `standby`, then `active, epoch N` when it delivers. It stops on SIGTERM and when
standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import polonaise
from polonaise.demo.shards import PLAYER, route_to, shard_name
from polonaise.errors import DirectoryInUse
from polonaise.host.files import RealLock, try_lock
from polonaise.host.real import run
from polonaise.host.standardinput import stop_when_stdin_ends
from polonaise.player import Player, remote

_LOOK_S: Final = 0.1
"""Seconds between two looks of a standby at whether the active process still lives."""


@dataclass
class PlayerJob:
    """What the processes of the player are told."""

    coordinator: str
    lock: str
    """The file that the active process has locked: on one machine, the kernel tells the others when it has died."""
    shards: list[str]
    """Addresses."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> PlayerJob:
        return cls(**json.loads(path.read_text()))


async def main(job: PlayerJob) -> None:
    print("standby", flush=True)  # noqa: T201 - to the process that has started this one
    lock = await _locked(job.lock)
    try:
        targets = {shard_name(number): remote(address) for number, address in enumerate(job.shards)}
        async with (
            polonaise.connect(job.coordinator) as log,
            Player(log, PLAYER, route_to(len(job.shards)), targets) as player,
        ):
            print(f"active, epoch {player.health()['epoch']}", flush=True)  # noqa: T201
            await player.ended()
    finally:
        lock.release()


async def _locked(path: str) -> RealLock:
    while True:
        try:
            return try_lock(path)
        except DirectoryInUse:
            await asyncio.sleep(_LOOK_S)


if __name__ == "__main__":
    stop_when_stdin_ends()
    job = PlayerJob.read(Path(sys.argv[1]))
    run(lambda _: main(job))
