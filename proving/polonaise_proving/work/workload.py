"""The work of a schedule: steps that use the log as applications do, and note the outcomes.

Which steps an application takes, and how often, is drawn per seed. An outcome is noted as the library tells it:
`AppendUnknown` as unknown, unless its receipt can still tell the fate and so is awaited; `CopiesUnproved` as committed;
any other error as "not in the log and never will be". Errors of a producer's appends are not noted, as these are made
again.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, cast

from polonaise.client.appends import CopiedReceipt, Receipt
from polonaise.client.log import Log
from polonaise.client.producer import Producer
from polonaise.client.protocol.draft import Change, Draft, Expectation, built
from polonaise.client.protocol.group import Group
from polonaise.client.protocol.locks import Lock
from polonaise.errors import (
    Abandoned,
    AppendUnknown,
    BeyondLog,
    Closed,
    CopiesUnproved,
    LockConflict,
    OwnTransaction,
    PolonaiseError,
    ProducerFenced,
)
from polonaise.host import Host
from polonaise.log.producers import KEY_PREFIX, OPEN, pack_request
from polonaise.terms import ChangeKind, LockMode, PartitionId, TransactionId
from polonaise.wire.appends import CHANGE, AppendColumns, Operation
from polonaise_proving.record.observations import (
    COUNT,
    MOVE,
    NOBODY_HAS,
    PRODUCED,
    Kind,
    Listing,
    ProducerTold,
    ProvedAnswer,
    ReaderRecord,
    Try,
)
from polonaise_proving.work.application import UNWANTED_HEADER, Application

_ACCOUNTS: Final = 4
_COUNTERS: Final = 2

Step = Callable[["ClientLife", PartitionId], Awaitable[None]]
_THINGS: Final = 6
_AGES: Final = (0, 0, 1, 3, 8)
"""The numbers of ids, one drawn per transaction, by which a mark in a group lies below the applied high-water mark."""


class ClientLife:
    """One log object of a client's process, and what several workers do with it at once."""

    def __init__(self, host: Host, application: Application, log: Log) -> None:
        self.host = host
        self.application = application
        self.history = application.history
        self.random: random.Random = application.random
        self.log = log
        self.producers: dict[PartitionId, Producer] = {}
        self.producing = asyncio.Lock()
        self.unsettled: list[Receipt] = []

    # ------------------------------------------------------------------ noting what becomes of an append

    def invoke(self, partition: PartitionId, kind: Kind, rests: Sequence[bytes]) -> Try:
        filler = self.random.choice((0, 0, 5, 60, 400))
        return self.history.invoke(self.application.who, partition, kind, rests, filler)

    def timeout_s(self) -> float:
        return self.random.choice((0.1, 0.5, 2.0, 6.0)) * (0.5 + self.random.random())

    async def settle(self, attempt: Try, receipt: Receipt) -> None:
        """Wait a while for the fate of an append; if it is not told by then, go on, and note it when it is told."""
        self.unsettled.append(receipt)
        try:
            async with asyncio.timeout(self.timeout_s()):
                await self._note(attempt, receipt)
        except TimeoutError:
            self.follow(attempt, receipt)

    async def append(self, attempt: Try, append: Callable[[], Receipt]) -> Receipt | None:
        """Append, and `settle`. Return the receipt; None if the call raised, which is noted as the append's failure."""
        try:
            receipt = append()
        except PolonaiseError as error:
            self.failed(attempt, error)
            return None
        await self.settle(attempt, receipt)
        return receipt

    def follow(self, attempt: Try, receipt: Receipt) -> None:
        """Note the fate of an append as soon as it is told, in a task of its own.

        Where the append needs copies, nobody waits for these: there may never be as many again.
        """

        async def run() -> None:
            await self._note(attempt, receipt, proof=False)
            self.application.following -= 1

        self.application.following += 1
        self.host.spawn(run(), f"fate of try {attempt.number}")

    async def _note(self, attempt: Try, receipt: Receipt, *, proof: bool = True) -> None:
        try:
            if proof or not isinstance(receipt, CopiedReceipt):
                await receipt
            else:
                await Receipt.wait(receipt, None)
                if receipt.failure is not None:
                    await receipt  # raises
        except CopiesUnproved:
            self.history.committed(attempt, receipt.id)
        except AppendUnknown as error:
            self.history.unknown(attempt, error.code)
        except PolonaiseError as error:
            self.failed(attempt, error)
        else:
            self.history.committed(attempt, receipt.id)
            if isinstance(receipt, CopiedReceipt) and proof:
                self.history.proved(attempt, receipt.id, receipt.needs.copies)

    def failed(self, attempt: Try, error: PolonaiseError) -> None:
        self.history.refused(error, str(attempt))
        rests_on = error.conflict if isinstance(error, LockConflict) else None
        self.history.failed(attempt, str(error), rests_on)

    # ------------------------------------------------------------------ contexts

    async def run(self, partition: PartitionId, build: Callable[[Draft], Try | None]) -> None:
        """Run a transaction context, in which `build` makes the try, or returns None to abandon the transaction.

        Each of its runs is a new try, and means that the previous try has failed.
        """
        tries: list[Try] = []

        async def context(tx: Draft) -> None:
            if tries:
                self.history.failed(tries[-1], "its context was run again")
            if self.random.random() < 0.2:
                await asyncio.sleep(0.01 * self.random.random())
            attempt = build(tx)
            if attempt is None:
                tx.abandon()
                tries.clear()
                return
            tries.append(attempt)
            # A group's locks are those of its last transaction.
            attempt.mark = tx.high_water_mark
            attempt.locks = [*[[] for _ in attempt.bodies[1:]], judged_by(built(tx).locks)]
            for body in attempt.bodies:
                tx.append(body, header=self.random.randrange(UNWANTED_HEADER))

        try:
            receipt = await self.log.run(context, partition=partition, timeout=self.timeout_s())
        except Abandoned:
            return
        except AppendUnknown as error:
            if tries and error.receipt is not None and not error.receipt.done:
                self.follow(tries[-1], error.receipt)
            elif tries:
                self.history.unknown(tries[-1], error.code)
        except PolonaiseError as error:
            if tries:
                self.failed(tries[-1], error)
        else:
            self.history.committed(tries[-1], receipt.id)


async def transfer(session: ClientLife, partition: PartitionId) -> None:
    """Move money from one account to another, if the view says that there is enough."""
    source, target = session.random.sample(range(_ACCOUNTS), 2)
    amount = session.random.randrange(1, 60)

    def build(tx: Draft) -> Try | None:
        ledger = session.application.ledger
        tx.write_lock("account", source)
        tx.write_lock("account", target)
        seen = ledger.balance(partition, source), ledger.balance(partition, target)
        if seen[0] < amount:
            return None
        return session.invoke(partition, Kind.MOVE, [MOVE.pack(source, target, amount, *seen)])

    await session.run(partition, build)


async def group(session: ClientLife, partition: PartitionId) -> None:
    """Append a group of transactions, half of the time with locks."""
    count = session.random.randrange(2, 6)

    def build(tx: Draft) -> Try:
        if session.random.random() < 0.5:
            tx.write_lock("group", session.random.randrange(3))
            tx.read_lock("thing", session.random.randrange(6))
        return session.invoke(partition, Kind.GROUP, [b""] * count)

    await session.run(partition, build)


async def step_counter(session: ClientLife, partition: PartitionId) -> None:
    """Raise a counter by compare-and-set of a register, so that it reaches each value once.

    A second register exists while the value is odd, so that registers are also made and deleted.
    """
    counter = session.random.randrange(_COUNTERS)
    key, neighbour = b"counter/%d" % counter, b"odd/%d" % counter
    present = await _register(session, partition, key)
    value = 1 + (int(present) if present else 0)

    def build(tx: Draft) -> Try:
        if present is None:
            tx.expect(key, absent=True)
        else:
            tx.expect(key, equals=present)
        tx.set(key, b"%d" % value)
        if value % 2:
            tx.set(neighbour, b"%d" % value)
        else:
            tx.expect(neighbour, present=True)
            tx.delete(neighbour)
        return session.invoke(partition, Kind.COUNT, [COUNT.pack(counter, value)])

    await session.run(partition, build)
    if session.random.random() < 0.3:
        await _register(session, partition, neighbour)


async def _register(session: ClientLife, partition: PartitionId, key: bytes) -> bytes | None:
    known = session.history.known(partition)
    value = await session.log.register(key, partition, timeout=session.timeout_s())
    floor = session.history.still_known(known)
    session.history.answered(ProvedAnswer(session.application.who, partition, floor, None, key, value))
    return value


async def list_registers(session: ClientLife, partition: PartitionId) -> None:
    """List all registers, or those with a prefix."""
    prefix = session.random.choice((b"", b"", b"counter/", b"odd/", b"producer/", b"nothing/"))
    await _listing(session, partition, prefix, session.timeout_s())


async def _listing(session: ClientLife, partition: PartitionId, prefix: bytes, timeout_s: float) -> None:
    known = session.history.known(partition)
    listed = await session.log.list_registers(prefix, partition, timeout=timeout_s)
    floor = session.history.still_known(known)
    session.history.note(Listing(session.application.who, partition, floor, prefix, list(listed.items())))


async def _mark(session: ClientLife, partition: PartitionId, timeout_s: float) -> int:
    known = session.history.known(partition)
    mark = await session.log.high_water_mark(partition, timeout=timeout_s)
    floor = session.history.still_known(known)
    session.history.answered(ProvedAnswer(session.application.who, partition, floor, mark))
    return mark


def judged_by(locks: Sequence[Lock]) -> list[tuple[int, int]]:
    """Return locks in the form that a batch's evidence has: pairs of hash and mode."""
    return [(lock.hash, lock.mode) for lock in locks]


# ---------------------------------------------------------------------- single appends


async def append(session: ClientLife, partition: PartitionId) -> None:
    """Make one to six appends without waiting in between; half of them have locks, and marks up to 5 ids too low."""
    pending: list[tuple[Try, Receipt]] = []
    for _ in range(session.random.choice((1, 1, 2, 6))):
        locks: list[Lock] = []
        mark = session.log.applied(partition)
        kind = Kind.PLAIN
        if session.random.random() < 0.5:
            kind = Kind.LOCKED
            mark = max(-1, mark - session.random.choice((0, 0, 0, 1, 5)))
            for _ in range(session.random.randrange(1, 4)):
                mode = LockMode(session.random.randrange(3))
                locks.append(Lock("thing", session.random.randrange(6), mode))
        attempt = session.invoke(partition, kind, [b""])
        attempt.mark, attempt.locks = mark, [judged_by(locks)]
        header = session.random.randrange(UNWANTED_HEADER + 1)
        try:
            receipt = session.log.append(attempt.bodies[0], partition, header=header, high_water_mark=mark, locks=locks)
        except PolonaiseError as error:
            session.failed(attempt, error)
            break
        pending.append((attempt, receipt))
    for attempt, receipt in pending:
        await session.settle(attempt, receipt)


async def append_at(session: ClientLife, partition: PartitionId) -> None:
    """Make an append that demands its id."""
    position = 1 + await _mark(session, partition, session.timeout_s())
    attempt = session.invoke(partition, Kind.POSITION, [b""])
    attempt.mark, attempt.position = session.log.applied(partition), position
    changes = [Change.set(b"position", b"%d" % position)]
    await session.append(
        attempt,
        lambda: session.log.append(
            attempt.bodies[0],
            partition,
            high_water_mark=attempt.mark,
            expectations=[Expectation.position(position)],
            changes=changes,
        ),
    )


async def produce(session: ClientLife, partition: PartitionId) -> None:
    """Append the next number of an idempotent producer, or the last one again while its id is not known."""
    async with session.producing:
        await produce_next(session, partition, session.producers.get(partition))


async def produce_next(session: ClientLife, partition: PartitionId, producer: Producer | None) -> None:
    """Append what `next_produced` returns, with this producer or, if None, with one that is opened for it.

    One call at a time: the caller holds `producing`.
    """
    application = session.application
    attempt, number = next_produced(session, partition)
    try:
        if producer is None:
            producer = await open_producer(session, partition)
        transaction = await producer.append(number, attempt.bodies[0], timeout=session.timeout_s())
    except ProducerFenced:
        session.producers.pop(partition, None)
        raise
    session.history.committed(attempt, transaction)
    application.producing[partition] = None


def next_produced(session: ClientLife, partition: PartitionId) -> tuple[Try, int]:
    """Return the try that this application's producer has to make next, and its number.

    That is the last one again while its fate is not known; else a new one, which is noted as the last.
    """
    application = session.application
    attempt = application.producing[partition]
    if attempt is None:
        number = application.next_number[partition]
        producer_id = int(application.who.rpartition("-")[2])
        attempt = session.invoke(partition, Kind.PRODUCED, [PRODUCED.pack(producer_id, number)])
        application.producing[partition] = attempt
        application.next_number[partition] += 1
    return attempt, application.next_number[partition] - 1


async def open_producer(session: ClientLife, partition: PartitionId) -> Producer:
    """Open this application's producer, which fences its earlier openings."""
    who = session.application.who
    producer = await session.log.producer(who, partition=partition, timeout=session.timeout_s())
    session.producers[partition] = producer
    return producer


# ---------------------------------------------------------------------- reading


async def read(session: ClientLife, partition: PartitionId) -> None:
    """Read the log from the beginning or anywhere; sometimes slowly, sometimes following its end for a while."""
    known = session.history.known(partition)
    after = -1 if session.random.random() < 0.4 else session.random.randrange(-1, known.id + 1)
    follow = session.random.random() < 0.3
    pause_s = session.random.choice((0.0, 0.0, 0.02))
    count_left = session.random.randrange(1, 40)
    reading = ReaderRecord(session.history, f"a reader of {session.application.who}", partition, after)
    transactions = session.log.read(partition, after=after, follow=follow, timeout=session.timeout_s())
    async with asyncio.timeout(session.timeout_s()), aclosing(transactions) as stream:
        async for tx in stream:
            reading.take(tx)
            count_left -= 1
            if not count_left:
                return
            if pause_s:
                await asyncio.sleep(pause_s)
    session.history.read_all(reading, session.history.still_known(known))


async def read_since(session: ClientLife, partition: PartitionId) -> None:
    """Read from a commit time on: nothing from before it may be given, and nothing since then left out."""
    seen = session.history.seen[partition]
    if not seen:
        return
    since = session.random.choice(list(seen.values())).commit_time_us
    reading: ReaderRecord | None = None
    transactions = session.log.read_time(partition, since=since, timeout=session.timeout_s())
    async with asyncio.timeout(session.timeout_s()), aclosing(transactions) as stream:
        async for tx in stream:
            if reading is None:
                reading = ReaderRecord(session.history, "a reader by time", partition, tx.id - 1, since)
            reading.take(tx)


async def look_up(session: ClientLife, partition: PartitionId) -> None:
    """Look up one transaction by its id."""
    known = session.history.told[partition]
    id = session.random.randrange(0, known + 3)
    reading = ReaderRecord(session.history, f"a look-up of {session.application.who}", partition, id - 1)
    try:
        reading.take(await session.log.transaction(id, partition, timeout=session.timeout_s()))
    except BeyondLog:
        return
    except OwnTransaction:
        reading.ended(id)


async def flush(session: ClientLife, partition: PartitionId) -> None:
    """Flush: afterwards the fate of every earlier append has to be known."""
    known = session.history.known(partition)
    before = [receipt for receipt in session.unsettled if receipt.partition == partition and not receipt.settled]
    mark = await session.log.flush(partition, timeout=session.timeout_s())
    session.unsettled = [receipt for receipt in session.unsettled if not receipt.settled]
    undecided = [receipt for receipt in before if not receipt.settled]
    floor = session.history.still_known(known)
    session.history.answered(ProvedAnswer(session.application.who, partition, floor, mark, undecided=undecided))


async def ask(session: ClientLife, partition: PartitionId) -> None:
    """Ask for the committed high-water mark or a register."""
    if session.random.random() < 0.5:
        await _mark(session, partition, session.timeout_s())
    else:
        await _register(session, partition, session.random.choice((b"counter/0", b"odd/1", b"position")))


STEPS: Final[tuple[tuple[Step, int], ...]] = (  # with their weights, which each seed changes
    (transfer, 6),
    (append, 6),
    (group, 3),
    (step_counter, 3),
    (append_at, 1),
    (produce, 3),
    (read, 2),
    (read_since, 1),
    (look_up, 1),
    (flush, 1),
    (ask, 2),
)


async def take_step(session: ClientLife, step: Step, partition: PartitionId) -> None:
    """Take one step, which a fault or a time-out ends without being raised.

    A fault is noted in the history: it may tell of a contradiction.
    """
    history = session.history
    what = f"{session.application.who}, partition {partition}: {step.__name__}"
    if history.tell is not None:
        history.tell(f"{what} begins")
    ended = ""
    try:
        await step(session, partition)
    except (TimeoutError, Closed) as error:
        ended = f" by {error!r}"
    except PolonaiseError as error:
        ended = f" by {error!r}"
        history.refused(error, step.__name__)
    if history.tell is not None:
        history.tell(f"{what} ends{ended}")


async def last_step(session: ClientLife, partition: PartitionId) -> None:
    """Make the last append, which must commit, and read the whole log from its beginning to its end.

    Waits as long as it takes: the schedule decides how long that may be.
    """
    application, history = session.application, session.history
    while application.producing[partition] is not None:
        await take_step(session, produce, partition)
        await asyncio.sleep(0.01)  # a step that fails at once, again and again, must not keep virtual time from moving
    while True:
        attempt = session.invoke(partition, Kind.PLAIN, [b"last"])
        attempt.mark = session.log.applied(partition)
        try:
            await session.log.ready(partition)
            receipt = await session.log.append(attempt.bodies[0], partition, high_water_mark=attempt.mark)
            break
        except AppendUnknown as error:
            history.unknown(attempt, error.code)
            await asyncio.sleep(0.1)
        except PolonaiseError as error:
            session.failed(attempt, error)
            await asyncio.sleep(0.1)
    history.committed(attempt, receipt.id)
    await receipt.applied()
    mark = await _mark(session, partition, 60.0)
    await _listing(session, partition, b"", 60.0)
    reading = ReaderRecord(history, f"the last reader of {application.who}", partition, -1)
    while reading.last < mark:
        try:
            async for tx in session.log.read(partition, after=reading.last, until=mark, timeout=5.0):
                reading.take(tx)
            reading.ended(mark)
        except PolonaiseError:
            await asyncio.sleep(0.1)


class MarkedGroup(Group):
    """A group whose transactions were built on different states, and which is judged by the oldest of them."""

    marks: Sequence[TransactionId] = ()

    def columns(
        self, sequence: int, client_high_water_mark: TransactionId, operations: Sequence[tuple[int, bytes, bytes]]
    ) -> AppendColumns:
        columns = super().columns(sequence, client_high_water_mark, operations)
        columns.client_high_water_marks = array("q", self.marks)
        return columns


class Opening(Group):
    """An append that opens a producer under a given epoch, without a look at who has opened it meanwhile."""

    epoch = 0
    key = b""

    def columns(
        self, sequence: int, client_high_water_mark: TransactionId, operations: Sequence[tuple[int, bytes, bytes]]
    ) -> AppendColumns:
        columns = super().columns(sequence, client_high_water_mark, operations)
        columns.operations = [Operation(0, CHANGE + ChangeKind.PRODUCE, self.key, pack_request(self.epoch, OPEN))]
        return columns


async def append_marked_group(session: ClientLife, partition: PartitionId) -> None:
    """Append a group whose transactions have locks and marks of their own."""
    random = session.random
    count, applied = random.randrange(2, 5), session.log.applied(partition)
    marks = [max(-1, applied - random.choice(_AGES)) for _ in range(count)]
    locks = [
        [Lock("thing", random.randrange(_THINGS), LockMode(random.randrange(3))) for _ in range(random.randrange(3))]
        for _ in range(count)
    ]
    attempt = session.invoke(partition, Kind.GROUP, [b""] * count)
    attempt.mark, attempt.marks, attempt.locks = min(marks), marks, [judged_by(each) for each in locks]
    headers = [random.randrange(UNWANTED_HEADER + 1) for _ in range(count)]
    group = cast(MarkedGroup, MarkedGroup.of(attempt.bodies, headers, locks))
    group.marks = marks
    await session.append(attempt, lambda: session.log.append_group(group, partition))


async def open_twice(session: ClientLife, partition: PartitionId) -> None:
    """Open a producer anew while the earlier one goes on: nothing of the earlier one may be accepted any more."""
    async with session.producing:
        older = session.producers.get(partition) or await open_producer(session, partition)
        newer = await open_producer(session, partition)
        attempt, number = next_produced(session, partition)
        going_on = session.random.choice(((_append_fenced,), (_open_late,), (_open_late, _append_fenced)))
        rivals = [rival(session, partition, older, number, attempt.bodies[0]) for rival in going_on]
        results = await asyncio.gather(produce_next(session, partition, newer), *rivals, return_exceptions=True)
        for opened, result in zip((newer, *[older] * len(rivals)), results, strict=True):
            fenced = isinstance(result, ProducerFenced)
            if fenced or isinstance(result, str):
                told = ProducerTold(opened.name, opened.epoch, newer.epoch, fenced, str(result))
                session.history.producer_told(told)
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def _append_fenced(
    session: ClientLife, partition: PartitionId, older: Producer, number: int, body: bytes
) -> str | None:
    """Append by the older producer; return what was taken of that, which is to be nothing."""
    try:
        return f"number {number} as {await older.append(number, body, timeout=session.timeout_s())}"
    except (ProducerFenced, AppendUnknown, Closed):
        return None


async def _open_late(
    session: ClientLife, partition: PartitionId, older: Producer, number: int, body: bytes
) -> str | None:
    """Send the opening of the older producer again, as a message that is sent twice may come late."""
    opening = cast(Opening, Opening.of([b""]))
    opening.epoch, opening.key = older.epoch, KEY_PREFIX + older.name.encode()
    try:
        async with asyncio.timeout(session.timeout_s()):
            receipt = await session.log.append_group(opening, partition)
    except (TimeoutError, PolonaiseError):
        return None
    return f"its opening again, as {receipt.id}"


async def append_copied(session: ClientLife, partition: PartitionId) -> None:
    """Append what needs copies: success means that it has them, and what nobody could have is never written."""
    copies = session.random.choice((1, 2, 3, 3, 3, 5, NOBODY_HAS))
    attempt = session.invoke(partition, Kind.PLAIN, [b""])
    attempt.copies = copies
    await session.append(attempt, lambda: session.log.append(attempt.bodies[0], partition, copies=copies))


RARE_STEPS: Final[tuple[tuple[Step, int], ...]] = (
    (append_marked_group, 6),
    (open_twice, 4),
    (list_registers, 3),
    (append_copied, 8),
)
"""Steps that few seeds have. Nothing is added here or to `STEPS`, see `LATER_STEPS`."""


class LaterStep(NamedTuple):
    """A step that was added when there were kept seeds."""

    number: int
    """The one that it has among all later features (`scenarios.schedule.LATER_FEATURES`)."""
    step: Step
    share: float
    """The share of seeds that have it."""
    weight: int


LATER_STEPS: Final[tuple[LaterStep, ...]] = ()
"""New steps, at the end, each with the next number: `scenarios.schedule.LATER_FEATURES`, which is raised with it."""
