"""A process with an embedded log open, which carries out commands: one line of JSON in, one line of JSON out.

Its arguments: the log's address, and for how many seconds a peer may be silent before it is called dead.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from typing import Any

import polonaise
from polonaise.client.settings import ClientSettings
from polonaise.link.settings import LinkSettings

held: dict[str, polonaise.Lease] = {}
"""The leases that this process asked for, by name."""


async def do(log: polonaise.Log, verb: str, given: Any) -> Any:
    if verb == "append":
        receipt = await log.run(lambda tx: tx.append(given.encode()), partition=0)
        return receipt.id
    if verb == "hold":
        lease = held[given] = log.lease(given, duration_s=2.0)
        await lease.acquire()
        return lease.holder
    if verb == "held":
        return held[given].held
    if verb == "release":
        await held[given].release()
        return None
    if verb == "read":
        return [tx.data.decode() async for tx in log.read(0)]
    if verb == "block":
        time.sleep(given)  # noqa: ASYNC251 - an application that does not share its loop is what is tried
        return None
    if verb == "fork":
        child = os.fork()
        if not child:
            os.closerange(0, 2)  # or else its parent would seem to go on
            time.sleep(given)  # noqa: ASYNC251 - it only has to outlive its parent
            os._exit(0)
        return child
    if verb == "fork and append":
        child = os.fork()
        if not child:
            try:
                asyncio.run(append_one(sys.argv[1], given))
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        return await asyncio.get_running_loop().run_in_executor(None, lambda: os.waitpid(child, 0)[1])
    raise AssertionError(verb)


async def append_one(address: str, body: str) -> None:
    """Append one transaction in a process that was forked while its parent had the log open."""
    async with polonaise.connect(address) as log:
        await log.run(lambda tx: tx.append(body.encode()), partition=0, timeout=30)


async def main(address: str, silence_s: float) -> None:
    loop = asyncio.get_running_loop()
    settings = ClientSettings(link=LinkSettings(silence_s_max=silence_s))
    async with polonaise.connect(address, settings=settings) as log:
        print(json.dumps("open"), flush=True)  # noqa: T201
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            verb, given = json.loads(line)
            print(json.dumps(await do(log, verb, given)), flush=True)  # noqa: T201


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
