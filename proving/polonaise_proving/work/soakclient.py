"""One client of the soak: a process of its own, which works until it is told to stop.

`python -m polonaise_proving.work.soakclient DIRECTORY COORDINATOR NAME LEAK LIFE` starts it. Eight tasks do what
applications do, and give up now and then, by cancellation or a deadline, at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import polonaise
from polonaise.errors import AppendUnknown, PolonaiseError, Retry
from polonaise.host.stopsignals import stop_when_stdin_ends
from polonaise_proving.record.history import LineKind
from polonaise_proving.record.journal import Journal, journal_of
from polonaise_proving.stages.soaknode import PARTITIONS, body, partition_of
from polonaise_proving.work.leaks import leak

ACCOUNTS: Final = 40
PAUSE_S: Final = 0.06
"""Seconds between two steps of a task: the test is of endurance, not of speed."""
BURST: Final = 4
GIVEN_UP: Final = 0.15
"""The share of waits that are given up."""
UNDECIDED_MAX: Final = 500
"""The most undecided appends whose fates are awaited in the background."""
PATIENCE_S: Final = 20.0
STOPS_S_MAX: Final = 45.0
"""Seconds that stopping may take: longer than any wait in this process, shorter than the campaign's patience."""
FOLLOWED_S_MAX: Final = 10.0
LEAK_EVERY_S: Final = 0.5
WANTED: Final = 1
"""The header of transactions whose bodies a lazy view wants."""

SETTINGS: Final = polonaise.ClientSettings(
    outstanding_count_max=256,
    submissions_max=64,
    credit_bytes=256 * 1024,
    read_bytes=64 * 1024,
    coordinator_s_max=0.3,
    follow_s_max=0.5,
)


class SoakFollower:
    """A view that keeps only its applied high-water marks, and checks the transactions that it is given."""

    def __init__(self, marks: dict[int, int], wrong: Callable[[str], None], *, lazy: bool) -> None:
        self._marks = marks
        self._wrong = wrong
        self._lazy = lazy

    def high_water_mark(self, partition: int) -> int:
        return self._marks[partition]

    def apply(self, tx: polonaise.Transaction) -> None:
        if tx.id <= self._marks[tx.partition]:  # there may be gaps: what the library writes for itself is not fed
            self._wrong(f"transaction {tx.id} of partition {tx.partition} was fed after {self._marks[tx.partition]}")
        if self._lazy and bool(tx.data) != (tx.header == WANTED):
            self._wrong(f"transaction {tx.id} of partition {tx.partition} has {len(tx.data)} bytes, header {tx.header}")
        self._marks[tx.partition] = tx.id

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self._wrong(f"transaction {id} of partition {partition} could not be applied: {error!r}")


class SoakClient:
    """The work of the process, noted in its journal."""

    def __init__(self, log: polonaise.Log, book: Journal, name: str, life: str, coordinator: str) -> None:
        self._log = log
        self._book = book
        self._name = name
        self._life = f"{name}.{life}"
        self._coordinator = coordinator
        self._count = 0
        self._random = random.Random(self._life)
        self._undecided: set[asyncio.Task[None]] = set()
        self.stopping = asyncio.Event()

    async def work(self) -> None:
        """Run all eight tasks until the process is told to stop; then await the fates that are still open."""
        tasks = [
            self.append, self.run_context, self.submit_context, self.read, self.produce, self.change_register,
            self.mount_lazily, self.ask,
        ]  # fmt: skip
        await asyncio.gather(*(self._again_and_again(task) for task in tasks))
        if self._undecided:
            await asyncio.wait(self._undecided, timeout=PATIENCE_S)

    async def _again_and_again(self, task: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        while not self.stopping.is_set():
            with self._what_may_pass():
                await task(self._random.randrange(PARTITIONS))
            await asyncio.sleep(PAUSE_S * (0.5 + self._random.random()))

    @contextlib.contextmanager
    def _what_may_pass(self) -> Iterator[None]:
        """Ignore errors that a server's death explains and a retry may cure. Any other error ends this process."""
        try:
            yield
        except PolonaiseError as error:
            if error.retry is Retry.NEVER and not isinstance(error, polonaise.errors.Abandoned | AppendUnknown):
                raise

    async def _perhaps_given_up(self, doing: Coroutine[Any, Any, Any], after_s: float = 0.03) -> bool:
        """Await `doing`; now and then cancel it within `after_s` seconds. Return whether it came to its end."""
        if self._random.random() >= GIVEN_UP:
            await doing
            return True
        task = asyncio.ensure_future(doing)
        await asyncio.wait([task], timeout=self._random.uniform(0, after_s))
        if task.done():
            await task
            return True
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE_S)
        if not task.done():
            self._wrong(f"{doing} does not end when it is cancelled")
        elif not task.cancelled():
            await task
        return False

    def _next(self, partition: int) -> str:
        self._count += 1
        return f"{self._life}/{partition}/{self._count}"

    def _note(self, kind: LineKind, operation: str, id: int = -1) -> None:
        self._book.write(kind, partition_of(operation), operation, id)

    def _wrong(self, what: str) -> None:
        self._book.write(LineKind.WRONG, 0, f"{self._life}: {what}")

    # ------------------------------------------------------------------ fates

    async def _learn(self, operation: str, fate: Any) -> None:
        try:
            receipt = await fate
        except AppendUnknown as error:
            if error.receipt is not None and error.receipt is not fate:
                self._learn_later(operation, error.receipt)
        except PolonaiseError as error:
            self._note(LineKind.REFUSED, operation)
            if error.retry is Retry.NEVER and not isinstance(error, polonaise.errors.Abandoned):
                self._wrong(f"{operation} failed with {error}")
        else:
            self._note(LineKind.ACK, operation, receipt.id)

    def _learn_later(self, operation: str, fate: Any) -> None:
        if len(self._undecided) < UNDECIDED_MAX:
            task = asyncio.get_running_loop().create_task(self._learn(operation, fate))
            self._undecided.add(task)
            task.add_done_callback(self._undecided.discard)

    # ------------------------------------------------------------------ the eight

    async def append(self, partition: int) -> None:
        """Make some appends at once; now and then give up waiting for them: they must be decided all the same."""
        await self._log.ready(partition, timeout=PATIENCE_S)
        for _ in range(BURST):
            operation = self._next(partition)
            data = body(operation, self._random.randrange(200))
            self._note(LineKind.ASK, operation)
            receipt = self._log.append(data, partition, header=self._random.randrange(3))
            if self._random.random() < GIVEN_UP:
                with contextlib.suppress(TimeoutError, PolonaiseError):
                    async with asyncio.timeout(self._random.uniform(0, 0.01)):
                        await receipt
            self._learn_later(operation, receipt)

    async def run_context(self, partition: int) -> None:
        """Run a context with two locks that other contexts also use, and a deadline that is often too short."""
        operation = self._next(partition)
        timeout = self._random.choice([0.005, 0.05, PATIENCE_S, PATIENCE_S])
        running = self._log.run(self._context, operation, partition=partition, timeout=timeout)
        await self._perhaps_given_up(self._learn(operation, running))

    async def submit_context(self, partition: int) -> None:
        """Run such a context in the background by `submit`; now and then cancel it."""
        operation = self._next(partition)
        submission = self._log.submit(self._context, operation, partition=partition, timeout=PATIENCE_S)
        if self._random.random() < GIVEN_UP:
            await asyncio.sleep(self._random.uniform(0, 0.005))
            submission.cancel()
            await submission.outcome()
        else:
            await self._learn(operation, submission)

    async def _context(self, tx: polonaise.Draft, operation: str) -> None:
        self._note(LineKind.ASK, operation)
        for account in self._random.sample(range(ACCOUNTS), 2):
            tx.write_lock("account", account)
        await asyncio.sleep(0)
        if self._random.random() < 0.05:
            return tx.abandon("nothing there")
        return tx.append(body(operation))

    async def read(self, partition: int) -> None:
        """Read from anywhere to the end, or follow the latest transactions; now and then give up half-way."""
        end = await self._log.high_water_mark(partition, timeout=PATIENCE_S)
        if self._random.random() < 0.2:
            following = self._log.read(partition, after=end, follow=True, timeout=PATIENCE_S)
            with contextlib.suppress(TimeoutError):  # it has no end of its own: the others may write no more
                async with asyncio.timeout(FOLLOWED_S_MAX):
                    await self._perhaps_given_up(self._read_in_order(following, end, end + 20), 0.5)
            return
        after = max(-1, end - 300 if self._random.random() < 0.7 else self._random.randrange(end + 2) - 1)
        reading = self._log.read(partition, after=after, until=min(end, after + 300), timeout=PATIENCE_S)
        whole = await self._perhaps_given_up(self._read_in_order(reading, after, end), 0.02)
        if whole and end >= 0:
            with contextlib.suppress(polonaise.errors.OwnTransaction):
                await self._perhaps_given_up(self._log.transaction(self._random.randrange(end + 1), partition))

    async def _read_in_order(self, reading: Any, after: int, until: int) -> None:
        before = after
        async with contextlib.aclosing(reading):
            async for tx in reading:
                if tx.id <= before:
                    self._wrong(f"transaction {tx.id} of partition {tx.partition} was read after {before}")
                before = tx.id
                if before >= until or self._random.random() < 0.001:
                    return

    async def produce(self, partition: int) -> None:
        """Open a producer, which fences its earlier opener, and append each number again until it is decided."""
        timeout = self._random.choice([0.01, PATIENCE_S])
        try:
            name = f"{self._name}/{partition}"
            producer = await self._log.producer(name, partition=partition, timeout=timeout)
        except polonaise.errors.DeadlineExceeded:
            return
        for sequence in range(producer.last_sequence + 1, producer.last_sequence + 30):
            operation = f"{self._life}.producer/{partition}/{sequence}"
            self._note(LineKind.ASK, operation)
            id: int | None = None
            while id is None and not self.stopping.is_set():
                with contextlib.suppress(AppendUnknown):
                    timeout = self._random.choice([0.003, PATIENCE_S])
                    id = await producer.append(sequence, body(operation), header=2, timeout=timeout)
            if id is not None:
                self._note(LineKind.ACK, operation, id)
            await asyncio.sleep(PAUSE_S)

    async def change_register(self, partition: int) -> None:
        """Change a register that only this client writes, read it, and check that it is as was acknowledged."""
        operation = self._next(partition)
        key = f"soak/{self._life}".encode()
        self._note(LineKind.ASK, operation)
        change = polonaise.Change.set(key, operation.encode())
        await self._log.ready(partition, timeout=PATIENCE_S)
        receipt = self._log.append(body(operation), partition, changes=[change])
        await self._learn(operation, receipt)
        if receipt.committed:
            value = await self._log.register(key, partition, timeout=PATIENCE_S)
            if value != operation.encode():
                self._wrong(f"register {key!r} of partition {partition} holds {value!r} after {operation}")
            listed = await self._log.list_registers(b"soak/", partition, timeout=PATIENCE_S)
            if listed.get(key) != value:
                self._wrong(
                    f"register {key!r} of partition {partition} is listed as {listed.get(key)!r}, not {value!r}"
                )
        await self._perhaps_given_up(self._log.register(key, partition), 0.002)
        await self._perhaps_given_up(self._log.list_registers(partition=partition), 0.002)

    async def mount_lazily(self, _: int) -> None:
        """Connect a second client whose view fetches bodies lazily; now and then give it up at any moment."""
        await self._perhaps_given_up(self._mounted_lazily(), 0.2)

    async def _mounted_lazily(self) -> None:
        ends = await self._log.high_water_marks(range(PARTITIONS), timeout=PATIENCE_S)
        view = SoakFollower({partition: max(-1, end - 50) for partition, end in ends.items()}, self._wrong, lazy=True)
        async with polonaise.connect(
            self._coordinator, view=view, settings=SETTINGS, bodies=polonaise.BodyForm.LAZY,
            wants=lambda header: header == WANTED,
        ) as log:  # fmt: skip
            for partition, end in ends.items():
                await log.wait_applied(end, partition, timeout=PATIENCE_S)

    async def ask(self, partition: int) -> None:
        """Make a request of every kind, and waits that end by their deadlines."""
        log = self._log
        end = await log.high_water_mark(partition, timeout=PATIENCE_S)
        soon = self._random.uniform(0.0005, 0.05)
        for request in (
            log.wait_committed({partition: end}, timeout=soon),
            log.wait_applied(end + 1_000, partition, timeout=soon),
            log.flush(partition, timeout=soon),
            log.ready(partition, timeout=soon),
            log.high_water_mark(partition, timeout=soon),
            log.health(partition, timeout=soon),
        ):
            with self._what_may_pass():
                await self._perhaps_given_up(request, 0.01)


async def _count_tasks(book: Journal) -> None:
    while True:
        book.write(LineKind.TASKS, id=len(asyncio.all_tasks()))
        await asyncio.sleep(0.2)


def _tell_what_is_waited_for() -> None:
    """Print what the tasks wait for to standard error: the campaign shows it if this process does not stop."""
    for task in asyncio.all_tasks():
        task.print_stack()


async def main(directory: Path, coordinator: str, name: str, kind: str, life: str) -> None:
    book = Journal(journal_of(directory, name, int(life)))
    marks = dict.fromkeys(range(PARTITIONS), -1)
    view = SoakFollower(marks, lambda what: book.write(LineKind.WRONG, 0, f"{name}.{life}: {what}"), lazy=False)
    async with polonaise.connect(coordinator, view=view, settings=SETTINGS) as log:
        client = SoakClient(log, book, name, life, coordinator)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            client.stopping.set()
            loop.call_later(STOPS_S_MAX, _tell_what_is_waited_for)

        loop.add_signal_handler(signal.SIGTERM, stop)
        beside = [asyncio.create_task(_count_tasks(book)), asyncio.create_task(leak(kind, LEAK_EVERY_S))]
        book.write(LineKind.OPEN)
        await client.work()
        for task in beside:
            task.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop_when_stdin_ends(60.0)
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
