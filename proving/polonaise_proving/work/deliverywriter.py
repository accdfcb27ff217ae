"""A process that appends until SIGTERM: `python -m polonaise_proving.work.deliverywriter ADDRESS SEED`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import Mapping
from typing import Final

import polonaise
from polonaise.errors import PolonaiseError
from polonaise.terms import Transaction

TARGETS: Final = "abc"
PARTITIONS: Final = 3
BURST_MAX = 12
PAUSE_S = 0.04
"""Seconds between two bursts: the test is of faults, not of speed."""


def route(tx: Transaction) -> Mapping[str, bytes]:
    names, _, rest = tx.data.partition(b":")
    return dict.fromkeys(names.decode(), rest)


async def main(address: str, seed: int) -> None:
    source = random.Random(seed)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    number = 0
    async with polonaise.connect(address) as log:
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        while not stopping.is_set():
            receipts = []
            for _ in range(source.randint(1, BURST_MAX)):
                number += 1
                names = "".join(source.sample(TARGETS, source.randrange(len(TARGETS) + 1)))
                body = f"{names}:{number}/{'x' * source.choice((0, 10, 100, 3_000))}"
                receipts.append(log.append(body.encode(), partition=source.randrange(PARTITIONS)))
            # What becomes of an append does not matter: the log says what is to be delivered.
            for receipt in receipts:
                with contextlib.suppress(PolonaiseError):
                    await receipt
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), PAUSE_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
