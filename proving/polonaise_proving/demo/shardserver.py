"""A shard: a process that serves its database to the player.

    python -m polonaise_proving.demo.shardserver JOB

Reads a `ShardJob`, prints the address that it serves at, and stops on SIGTERM and when standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from polonaise.host.real import run
from polonaise.host.stopsignals import stop_when_stdin_ends
from polonaise.player import serve
from polonaise_proving.demo.shards import ShardAccounts


@dataclass
class ShardJob:
    """What the process of a shard is told, in a file: a database's URL may have a password."""

    database: str
    listen: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ShardJob:
        return cls(**json.loads(path.read_text()))


async def main(job: ShardJob) -> None:
    shard = ShardAccounts(job.database)
    try:
        async with serve(shard, job.listen) as server:
            print(server.address, flush=True)  # noqa: T201 - to the process that has started this one
            await server.ended()
    finally:
        await asyncio.shield(shard.close())


if __name__ == "__main__":
    stop_when_stdin_ends()
    job = ShardJob.read(Path(sys.argv[1]))
    run(lambda _: main(job))
