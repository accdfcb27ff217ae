"""An application with the library of an earlier version: `python oldclient.py ADDRESS`, until its input ends.

Appends to both partitions in turn, prints what was committed, and ends with an error if an append fails. What 0.1 says
is not in the log and never will be, when an owner changes, is appended again, as that version asks; later libraries do
that themselves. It uses only what every version has.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import polonaise
from polonaise.errors import AppendFailed

EVERY_S = 0.02


async def main(address: str) -> None:
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with polonaise.connect(address) as log:
        for number in itertools.count():
            if ended.done():
                return
            body = f"old/{number}"
            while True:
                try:
                    await log.append(body.encode(), number % 2)
                    break
                except AppendFailed as error:
                    if error.retry is not polonaise.Retry.AGAIN:
                        raise
            print(body)  # noqa: T201
            await asyncio.sleep(EVERY_S)


asyncio.run(main(sys.argv[1]))
