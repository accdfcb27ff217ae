"""A client of a bank, as a process: `python -m polonaise_proving.work.bankclient JOB`, with a `ClientJob`.

It appends notes, and transfers under locks, while its standard input says `go`, and pauses at `pause`. At `quiet` it
appends nothing more, and says in its journal when all appends have answers; at `end` it ends, once its view has
applied all of the log: so `end` comes when all clients are quiet. It ends at once when standard input does.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
from collections.abc import Awaitable
from typing import Final

import polonaise
from polonaise.client.settings import ClientSettings
from polonaise.errors import (
    Abandoned,
    AppendExpired,
    AppendFailed,
    AppendUnknown,
    NotOwner,
    Overloaded,
    PolonaiseError,
    Retry,
)
from polonaise_proving.record.bank import ACCOUNTS, BankOperation, Transfer
from polonaise_proving.record.bankledger import BankLedger
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.record.history import LineKind
from polonaise_proving.record.journal import Journal
from polonaise_proving.stages.hosts.clientjob import END, PAUSE, QUIET, ClientJob

_TASKS: Final = 24
"""The number of operations that a client has under way at the same time."""
_TRANSFERS: Final = 0.4
"""The share of transfers; the rest are notes."""
_PATIENCE_S: Final = 60.0
"""Seconds, over all runs of its context, after which a transfer is not tried again."""
_LAST_S: Final = 120.0
"""Seconds within which each wait for an append's fate has to end, be it that its fate can't be known. At the end, each
partition's high-water mark has to be known within as long, and applied within as long again."""
_PAUSE_S: Final = 0.02


class Client:
    """The work of one client process."""

    def __init__(self, log: polonaise.Log, ledger: BankLedger, job: ClientJob) -> None:
        self._log = log
        self._ledger = ledger
        self._job = job
        self._journal = Journal(job.journal)
        self._random = random.Random(f"{job.seed}/{job.name}/{job.life}")
        self._count = 0
        self._may_go = asyncio.Event()
        self._may_end = asyncio.Event()
        self._quiet = False

    def told(self, word: str) -> None:
        """Obey a word from standard input."""
        self._quiet |= word in (QUIET, END)
        if word == PAUSE:
            self._may_go.clear()
        else:
            self._may_go.set()
        if word == END:
            self._may_end.set()

    async def work(self) -> None:
        """Append until told to be quiet; once told to end, wait until the view has applied all of the log.

        Raises an `ExceptionGroup` of what ended an append: an error that no fault of the cluster explains, or
        `GaveUp` if it got no answer. Raises `DeadlineExceeded` if the end of the log is not told, or a view does
        not come to it, and the error that stopped a view.
        """
        self._journal.write(LineKind.OPEN)
        async with asyncio.TaskGroup() as group:
            for _ in range(_TASKS):
                group.create_task(self._append_on_and_on())
        self._journal.write(LineKind.QUIET, operation=f"{self._job.name}.{self._job.life}")
        await self._may_end.wait()
        for partition in range(self._log.partition_count):
            last = await self._log.high_water_mark(partition, timeout=_LAST_S)
            if last >= 0:
                await self._log.wait_applied(last, partition, timeout=_LAST_S)
        self._journal.write(LineKind.END)

    async def _append_on_and_on(self) -> None:
        pause_s = _TASKS / self._job.rate
        while not self._quiet:
            await self._may_go.wait()
            if self._quiet:
                break
            self._count += 1
            name = f"{self._job.name}.{self._job.life}/{self._count}"
            partition = self._random.randrange(self._log.partition_count)
            if self._random.random() < _TRANSFERS:
                await self._transfer(name, partition)
            else:
                await self._note(name, partition)
            await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.5))

    async def _note(self, name: str, partition: int) -> None:
        self._journal.write(LineKind.ASK, partition, name)
        try:
            receipt = self._log.append(BankOperation(name, None).encode(), partition)
        except Overloaded:
            self._journal.write(LineKind.REFUSED, partition, name)
            await asyncio.sleep(_PAUSE_S)
            return
        await self._fate(name, partition, receipt)

    async def _transfer(self, name: str, partition: int) -> None:
        """Transfer money between two accounts, by a context that runs again after a conflict or a passing failure.

        Each run makes an operation of its own. That the context runs again says that the operation of the run before it
        is not in the log.
        """
        runs: list[str] = []
        source, target = self._random.sample(range(ACCOUNTS), 2)
        amount = self._random.randrange(1, 100)

        def context(tx: polonaise.Draft) -> None:
            if runs:
                self._journal.write(LineKind.REFUSED, partition, runs[-1])
            runs.append(f"{name}/{len(runs) + 1}")
            self._journal.write(LineKind.ASK, partition, runs[-1])
            tx.write_lock("account", source)
            tx.write_lock("account", target)
            seen = self._ledger.seen(partition, [source, target])
            if seen[0] < amount:
                tx.abandon("not covered")
                return
            tx.append(BankOperation(runs[-1], Transfer(source, target, amount, *seen)).encode())

        running = self._log.run(context, partition=partition, timeout=_PATIENCE_S)
        await self._fate(name, partition, running, runs)

    async def _fate(
        self, name: str, partition: int, fate: Awaitable[polonaise.Receipt], runs: list[str] | None = None
    ) -> None:
        """Wait for the fate of an append, and write it down. With `runs`, that of the last run of a context."""
        try:
            receipt = await self._known(fate)
        except AppendUnknown:
            self._journal.write(LineKind.FAILED, partition, runs[-1] if runs else name)
            self._journal.write(LineKind.UNKNOWN, partition, runs[-1] if runs else name)
        except GaveUp:
            raise
        except PolonaiseError as error:
            if isinstance(error, AppendFailed | NotOwner):
                self._journal.write(LineKind.FAILED, partition, runs[-1] if runs else name)
            if runs is None or runs:
                self._journal.write(LineKind.REFUSED, partition, runs[-1] if runs else name)
            if error.retry is Retry.NEVER and not isinstance(error, Abandoned | AppendExpired):
                raise  # no fault of the cluster explains it
        else:
            self._journal.write(LineKind.ACK, partition, runs[-1] if runs else name, receipt.id)

    async def _known(self, fate: Awaitable[polonaise.Receipt]) -> polonaise.Receipt:
        """Wait for a fate, once more if it was unknown after the deadline. Raises what the append failed with.

        Raises `AppendUnknown` if nobody finds out any more, and `GaveUp` if no answer comes: no fault lasts that
        long, so an append without an answer by then was lost by the library.
        """
        try:
            async with asyncio.timeout(_LAST_S):
                return await fate
        except AppendUnknown as error:
            if error.receipt is None or error.receipt is fate:
                raise
            return await self._known(error.receipt)
        except TimeoutError:
            raise GaveUp(f"an append has no answer after {_LAST_S:g} s") from None


def _hear(loop: asyncio.AbstractEventLoop, client: Client) -> None:
    """Hand the words from standard input to the client; end this process at once when there are no more."""

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(client.told, line.strip())
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()


async def main(job: ClientJob) -> None:
    """Run the client."""
    ledger = BankLedger(job.database, busy_s=30.0)
    settings = ClientSettings(name=f"{job.name}.{job.life}")
    async with polonaise.connect(job.log, view=ledger, settings=settings) as log:
        client = Client(log, ledger, job)
        _hear(asyncio.get_running_loop(), client)
        await client.work()


if __name__ == "__main__":
    asyncio.run(main(ClientJob.decode(sys.argv[1])))
