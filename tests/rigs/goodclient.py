"""A well-behaved client as a process of its own: `python goodclient.py COORDINATOR`.

Appends at a steady pace, and prints one line per window: median and 99th percentile of its commits' latencies in ms.
It is a process of its own, so that only the disturbed cluster slows it, and not the work of disturbing.
"""

from __future__ import annotations

import asyncio
import sys
import time

import polonaise

EVERY_S = 0.005
WINDOW = 200


async def main(coordinator: str) -> None:
    async with polonaise.connect(coordinator) as log:
        await log.append(b"hello", partition=0)
        latencies: list[float] = []

        async def commit() -> None:
            began = time.perf_counter()
            await log.append(b"x" * 100, partition=0)
            latencies.append(time.perf_counter() - began)
            if len(latencies) == WINDOW:
                latencies.sort()
                print(1e3 * latencies[WINDOW // 2], 1e3 * latencies[WINDOW * 99 // 100], flush=True)  # noqa: T201
                latencies.clear()

        next_s = time.perf_counter()
        async with asyncio.TaskGroup() as commits:
            while True:
                commits.create_task(commit())
                next_s = max(next_s + EVERY_S, time.perf_counter())
                await asyncio.sleep(next_s - time.perf_counter())


asyncio.run(main(sys.argv[1]))
