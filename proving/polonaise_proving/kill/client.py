"""A process of the kill test: `python -m polonaise_proving.kill.client ADDRESS DIRECTORY NAME LIFE`, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path

import polonaise
from polonaise.errors import AppendUnknown, PolonaiseError
from polonaise_proving.campaigns import journal
from polonaise_proving.campaigns.journal import CampaignJournal
from polonaise_proving.kill.ledger import ACCOUNTS, PARTITION, VIEW, KillLedger, deposit, transfer

BURST = 8
"""The number of deposits under way at once: so a kill always hits some."""
PAUSE_S = 0.01
"""Seconds between two bursts: the test is of kills, not of speed."""


class KillClient:
    """The work of the process, noted in its journal."""

    def __init__(self, log: polonaise.Log, ledger: KillLedger, book: CampaignJournal, name: str) -> None:
        self._log = log
        self._ledger = ledger
        self._book = book
        self._name = name
        self._count = 0
        self._random = random.Random(name)
        self.stopping = asyncio.Event()

    async def deposits(self) -> None:
        while not self.stopping.is_set():
            await self._log.ready(PARTITION)
            receipts = []
            for _ in range(BURST):
                operation = self._next()
                data = deposit(operation, self._random.randrange(ACCOUNTS), self._random.randrange(1, 100))
                self._book.write(journal.ASK, operation)
                receipts.append(self._learn(operation, self._log.append(data, partition=PARTITION)))
            await asyncio.gather(*receipts)
            await asyncio.sleep(PAUSE_S)

    async def transfers(self) -> None:
        while not self.stopping.is_set():
            operation = self._next()
            source, target = self._random.sample(range(ACCOUNTS), 2)
            await self._learn(operation, self._log.run(self._transfer, operation, source, target, partition=PARTITION))
            await asyncio.sleep(PAUSE_S)

    def _transfer(self, tx: polonaise.Draft, operation: str, source: int, target: int) -> None:
        self._book.write(journal.ASK, operation)
        tx.write_lock("account", source)
        tx.write_lock("account", target)
        amount = self._ledger.balance(source) // 2
        if amount <= 0:
            return tx.abandon("nothing there")
        return tx.append(transfer(operation, source, target, amount))

    async def _learn(self, operation: str, fate: Awaitable[polonaise.Receipt]) -> None:
        try:
            receipt = await fate
        except AppendUnknown:
            self._book.write(journal.UNKNOWN, operation)
        except PolonaiseError:
            self._book.write(journal.FAIL, operation)
        else:
            self._book.write(journal.ACK, operation, receipt.id)

    def _next(self) -> str:
        self._count += 1
        return f"{self._name}/{self._count}"


async def main(address: str, directory: Path, name: str, life: str) -> None:
    book = CampaignJournal(directory / f"{name}.{life}.journal")
    ledger = KillLedger(directory / VIEW)
    async with polonaise.connect(address, view=ledger) as log:
        client = KillClient(log, ledger, book, f"{name}.{life}")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stopping.set)
        await log.ready(PARTITION)
        book.write(journal.OPEN)
        await asyncio.gather(client.deposits(), client.transfers(), client.transfers())
        await log.wait_applied(await log.high_water_mark(PARTITION), PARTITION)
    if ledger.failure is not None:
        raise ledger.failure
    book.write(journal.END)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(process)d %(name)s: %(message)s")
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
