"""A teller: a process that makes the payments it is given, many at a time, and those of one account in their order.

    python -m polonaise_proving.demo.teller JOB

Reads a `Job`, writes `TellerReport` lines to standard output, and ends when all payments have an outcome.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import polonaise
from polonaise.client.log import Log
from polonaise.errors import Abandoned, AppendUnknown, PolonaiseError
from polonaise_proving.demo.bank import ALREADY_MADE, NO_MONEY, PARTITION, Accounts, transfer
from polonaise_proving.demo.payments import Payment
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.stages.processes import Program, to_its_end

REPORT_S: Final = 0.1
"""Seconds between two reports."""
_PATIENCE_S: Final = 60.0
"""Seconds that one wait of a teller may take: for an attempt at a payment, its fate, or the view. Passing faults take a
second or two."""
_ENDS_S: Final = 1.0
"""Seconds that a process may take to end after its work is done, or after Ctrl-C has reached it and this process."""


@dataclass
class Job:
    """A teller's work, as its process is given it."""

    coordinator: str
    database: str
    """The URL of the view's database, which the tellers share."""
    at_a_time: int
    refuses_overdrafts: bool
    payments: list[Payment]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        fields = json.loads(path.read_text())
        return cls(**{**fields, "payments": [Payment(*payment) for payment in fields["payments"]]})


@dataclass
class TellerReport:
    """What has happened since the teller's last report."""

    made: list[int] = field(default_factory=list)
    """Ids of payments that this process has made."""
    found_made: list[int] = field(default_factory=list)
    """Ids of payments that a killed process of this teller had made and not reported."""
    refused: list[int] = field(default_factory=list)
    runs: int = 0
    """The number of times that contexts ran: once for each payment that was begun, and again after each conflict or
    failed append."""
    unknown: int = 0
    """Number of appends whose fate was learnt only after a deadline."""
    latencies_s: list[float] = field(default_factory=list)
    """Duration of payments in seconds, from beginning to outcome."""

    def encode(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, line: str) -> TellerReport:
        return cls(**json.loads(line))


class OrderedPayments:
    """Payments in the order that their accounts demand: each is ready when all earlier ones of its accounts are done.

    Payments that wait here for each other do not have to be refused by the log and run again.
    """

    def __init__(self, payments: Sequence[Payment]) -> None:
        self._queues: dict[int, deque[Payment]] = defaultdict(deque)
        self._behind: dict[int, int] = {}
        """By the id of a payment: the number of its accounts in whose queues it is not the first."""
        self._left = len(payments)
        self._ready: asyncio.Queue[Payment | None] = asyncio.Queue()
        for payment in payments:
            self._behind[payment.id] = sum(bool(self._queues[account]) for account in payment.accounts)
            for account in payment.accounts:
                self._queues[account].append(payment)
            if not self._behind[payment.id]:
                self._ready.put_nowait(payment)
        if not payments:
            self._ready.put_nowait(None)

    async def next(self) -> Payment | None:
        """Wait for the next payment to make, and return it; None, each time, once all payments have an outcome."""
        payment = await self._ready.get()
        if payment is None:
            self._ready.put_nowait(None)
        return payment

    def done(self, payment: Payment) -> None:
        """Note that a payment has an outcome."""
        self._left -= 1
        for account in payment.accounts:
            queue = self._queues[account]
            queue.popleft()
            if queue:
                self._behind[queue[0].id] -= 1
                if not self._behind[queue[0].id]:
                    self._ready.put_nowait(queue[0])
        if not self._left:
            self._ready.put_nowait(None)


class Teller:
    """The work of one teller."""

    def __init__(self, log: Log, view: Accounts, job: Job) -> None:
        self._log = log
        self._view = view
        self._job = job
        self._news = TellerReport()

    async def work(self) -> None:
        """Make every payment, and report."""
        payments = OrderedPayments(self._job.payments)
        async with asyncio.TaskGroup() as group:
            # A task of the group: when nobody reads the reports any more, writing one fails, and ends all payments with
            # it.
            reports = group.create_task(self._report())
            await self._opened()
            servers = [group.create_task(self._serve(payments)) for _ in range(self._job.at_a_time)]
            await asyncio.wait(servers)
            reports.cancel()
        self._say()

    async def _opened(self) -> None:
        """Wait until the view knows the accounts, all of which are in the log before a teller begins.

        The log checks what is appended, not what is abandoned: a view without the accounts would abandon payments that
        are covered.
        """
        last = await self._log.high_water_mark(PARTITION, timeout=_PATIENCE_S)
        if last >= 0:
            await self._log.wait_applied(last, PARTITION, timeout=_PATIENCE_S)

    async def _serve(self, payments: OrderedPayments) -> None:
        while (payment := await payments.next()) is not None:
            await self._make(payment)
            payments.done(payment)

    async def _make(self, payment: Payment) -> None:
        began_s = time.perf_counter()
        receipt: polonaise.Receipt | None = None
        while receipt is None:
            try:
                receipt = await self._log.run(self._transfer, payment, partition=PARTITION, timeout=_PATIENCE_S)
            except Abandoned as error:
                if error.text == ALREADY_MADE:
                    self._news.found_made.append(payment.id)
                elif error.text == NO_MONEY:
                    self._news.refused.append(payment.id)
                else:
                    raise  # not a refusal by the bank: counted as one, it would hide a fault
                break
            except AppendUnknown as error:
                receipt = await self._fate(error.receipt)
        self._news.latencies_s.append(time.perf_counter() - began_s)
        if receipt is not None:
            self._news.made.append(payment.id)
            # The next payment of its accounts depends on this one: begun earlier, it would be refused and run again.
            await receipt.applied(timeout=_PATIENCE_S)

    async def _fate(self, receipt: polonaise.Receipt) -> polonaise.Receipt | None:
        """Wait until the fate of an append is known. Return its receipt, or None if it is certainly not in the log.

        Raises `AppendUnknown` if nobody can find out any more, and `TimeoutError`.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await receipt
        except AppendUnknown:
            raise
        except PolonaiseError:
            fate = None  # the payment can be made again: it is judged anew
        else:
            fate = receipt
        self._news.unknown += 1
        return fate

    def _transfer(self, tx: polonaise.Draft, payment: Payment) -> None:
        self._news.runs += 1
        transfer(tx, self._view, payment, self._job.refuses_overdrafts)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._say()

    def _say(self) -> None:
        news, self._news = self._news, TellerReport()
        sys.stdout.write(news.encode() + "\n")
        sys.stdout.flush()


async def main(job: Job) -> None:
    view = Accounts(job.database)
    async with polonaise.connect(job.coordinator, view=view) as log:
        await Teller(log, view, job).work()


class TellerProcess:
    """One teller: its payments, the process that makes them now, and the killed ones before it."""

    def __init__(self, name: str, job: Job, directory: Path, on_progress: Callable[[TellerReport], None]) -> None:
        self.name = name
        self._job = job
        self._path = directory / f"{name}.json"
        command = ["polonaise_proving.demo.teller", str(self._path)]
        self._program = Program(
            name, directory / f"{name}.log", command=command, speaks=True, apart="", hear=self._hear
        )
        self._on_progress = on_progress
        self._loop: asyncio.AbstractEventLoop
        self._over = asyncio.Event()
        """Set once the process that runs says nothing more."""
        self._left = {payment.id: payment for payment in job.payments}
        self._killed = False

    @property
    def left(self) -> int:
        """Number of payments whose outcome the teller has not told."""
        return len(self._left)

    @property
    def pid(self) -> int | None:
        return self._program.pid

    async def work(self) -> None:
        """Run the teller's process until every payment has an outcome; after a `kill`, another one for what is left.

        Raises `GaveUp`.
        """
        while True:
            await self._live()
            if not self._killed:
                break
            self._killed = False
        if self._left:
            raise GaveUp(f"{self.name} ended with {len(self._left)} payments left: {self._program.last_words}")

    def kill(self) -> bool:
        """Kill the process with -9; `work` starts another one for what is left.

        Return False, with nothing done, if no process is running or no payment is left to it.
        """
        if not self._program.alive or not self._left:
            return False
        self._killed = True
        self._program.signal(signal.SIGKILL)
        return True

    async def _live(self) -> None:
        """Run one process, from its start to its end."""
        replace(self._job, payments=list(self._left.values())).write(self._path)
        self._loop = asyncio.get_running_loop()
        self._over.clear()
        self._program.start()
        try:
            await self._over.wait()
        finally:
            await to_its_end(lambda: self._program.end(_ENDS_S))

    def _hear(self, line: str | None) -> None:
        self._loop.call_soon_threadsafe(self._heard, line)

    def _heard(self, line: str | None) -> None:
        if line is None:
            self._over.set()
            return
        report = TellerReport.decode(line)
        for payment in (*report.made, *report.found_made, *report.refused):
            del self._left[payment]
        self._on_progress(report)


def shares(payments: Sequence[Payment], tellers: int) -> list[list[Payment]]:
    """Divide the payments among tellers, in their order: all with the same first account go to one teller.

    The first account is the one that pays, or the one that gets money from outside. Two tellers may touch the same
    account where it is the second one of a payment: then the log refuses one of two payments that conflict, and its
    context runs again.
    """
    shared: list[list[Payment]] = [[] for _ in range(tellers)]
    for payment in payments:
        shared[payment.accounts[0] % tellers].append(payment)
    return shared


if __name__ == "__main__":
    try:
        asyncio.run(main(Job.read(Path(sys.argv[1]))))
    except* (KeyboardInterrupt, BrokenPipeError):
        pass
