"""A process that appends at a steady pace (`goodclient.py`), and the latencies that it tells."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

TURNS_MAX = 6
"""How often a measurement beside others may be taken again on a busy machine."""
TOLD_APART_MS = 10.0
"""Latencies below are not compared: with a few processes per processor a turn of the scheduler is as long."""
_PROGRAM = str(Path(__file__).with_name("goodclient.py"))


class GoodClient:
    """The process that appends at a steady pace, and the windows that it has told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def windows(self, count: int) -> list[float]:
        """The 99th percentiles, in ms, of the next windows."""
        assert self._process.stdout is not None
        found: list[float] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                line = await self._process.stdout.readline()
                assert line, "the good client died"
                found.append(float(line.split()[1]))
        return found


@contextlib.asynccontextmanager
async def good_client(coordinator: str) -> AsyncIterator[GoodClient]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, _PROGRAM, coordinator, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield GoodClient(process)
    finally:
        process.kill()
        await process.wait()


def rounded(figures: list[float]) -> str:
    return " ".join(f"{figure:.1f}" for figure in figures)


def is_hardly_slower(calm: list[float], disturbed: list[float], times: float) -> bool:
    return min(disturbed) <= times * max(min(calm), TOLD_APART_MS)
