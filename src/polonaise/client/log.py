"""The log, as an application sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from polonaise.client.applying import Applier, MarkOnly
from polonaise.client.asking import Questions
from polonaise.client.bodies import Bodies
from polonaise.client.links import Links
from polonaise.client.mounting import Form, Mounting
from polonaise.client.partition import PartitionAppends
from polonaise.client.producer import Producer, open_producer
from polonaise.client.protocol.draft import (
    Change,
    Expectation,
    Lock,
    checked_body,
    checked_header,
    lock_hashes,
    operations,
)
from polonaise.client.reading import BatchReader, first_batch, transactions
from polonaise.client.receipt import Receipt
from polonaise.client.routes import Routes
from polonaise.client.running import Context, Running, Submission
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View, close_view
from polonaise.coordination import Coordinator
from polonaise.errors import (
    BadOption,
    BeyondLog,
    Closed,
    DeadlineExceeded,
    Overloaded,
    PolonaiseError,
    UnknownPartition,
)
from polonaise.host import Host
from polonaise.terms import BodyForm, ClientId, PartitionId, Transaction, TransactionId
from polonaise.wire.messages import Batches, Read

if TYPE_CHECKING:
    from typing import Self

Partitioner: TypeAlias = Callable[[tuple[Any, ...], int], PartitionId]
"""(what was given to `append`, or the context's arguments; how many partitions there are) → the partition."""


class Serializer(Protocol):
    """Turns the application's values into bodies and back."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class _Partition(NamedTuple):
    appends: PartitionAppends
    mounting: Mounting


class Log:
    """One client of a cluster's log. Use it as an asynchronous context manager, or `start` and `close` it.

    Nothing waits for ever: what has no deadline of its own ends with `close`, which settles every append that is
    pending, as unknown (`AppendUnknown`) if it was sent. Giving up waiting, by cancellation or a deadline, leaves
    nothing behind and changes no fate. Connections, mounts and moves of partitions are taken care of; nothing is lost
    or doubled through any of them.

    `view` is kept up to date from all partitions (or from those in `partitions`); without one, partitions are mounted
    as they are used, and the client high-water mark is what the server has fed. `bodies` says how they travel to the
    view: with the feed (`BodyForm.INLINE`); fetched for the headers that `wants` accepts, and empty for the others
    (`LAZY`); or with the feed where `header & mask == value`, with `header_filter=(mask, value)`, fetched otherwise as
    for LAZY (`FILTERED`).
    """

    def __init__(
        self,
        host: Host,
        coordinator: Coordinator,
        *,
        view: View | RunView | None = None,
        settings: ClientSettings | None = None,
        serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        partitions: Collection[PartitionId] | None = None,
        bodies: BodyForm = BodyForm.INLINE,
        wants: Callable[[int], bool] | None = None,
        header_filter: tuple[int, int] | None = None,
    ) -> None:
        if (bodies is BodyForm.FILTERED) != (header_filter is not None):
            raise BadOption("bodies=FILTERED goes together with header_filter=(mask, value)")
        if wants is not None and bodies is BodyForm.INLINE:
            raise BadOption("wants= chooses among bodies that are fetched: it goes with bodies=LAZY or FILTERED")
        mask, value = header_filter or (0, 0)
        self._host = host
        self._coordinator = coordinator
        self._view = view
        self._settings = settings or ClientSettings()
        self._partitioner = partitioner
        self._wanted_partitions = partitions
        self._form = Form(bodies, mask & 0xFFFF_FFFF, value & 0xFFFF_FFFF)
        self._wants = wants
        self._running = Running(
            host,
            self._settings.limits,
            serializer.encode if serializer else None,
            (self._settings.retry_s_min, self._settings.retry_s_max),
        )
        self._partitions: dict[PartitionId, _Partition] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._submitted: dict[int, asyncio.Task[Receipt]] = {}
        self._submissions = 0
        self._routes: Routes
        self._links: Links
        self._questions: Questions
        self._closed = False
        self.serializer = serializer
        self.client_id: ClientId = 0
        """Unique in the cluster, from the coordinator; 0 before `start`."""
        self.partition_count = 0

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Learn what the cluster is, and mount what the view needs.

        Raises `NotInitialized`, `CoordinatorUnavailable`, or `UnknownPartition` for partitions the cluster lacks.
        """
        description = await self._coordinator.describe()
        self.partition_count = description.partitions
        self.client_id = await self._coordinator.unique_id()
        self._routes = Routes(self._host, self._coordinator, self._settings)
        self._links = Links(self._host, self.client_id, description.key, self._settings)
        self._questions = Questions(self._host, self._routes, self._links, self._settings)
        self._tasks.append(await self._routes.start())
        wanted = self._wanted_partitions
        if wanted is None:
            wanted = range(self.partition_count) if self._view is not None else ()
        for partition in wanted:
            self._appends_of(partition)

    async def close(self) -> None:
        """End everything. Appends that were sent and not decided are `AppendUnknown`; the others were never sent."""
        if self._closed:
            return
        self._closed = True
        error = Closed("this client was closed")
        for partition in self._partitions.values():
            partition.mounting.stop(error)
        submitted = list(self._submitted.values())
        if submitted:
            await asyncio.wait(submitted, timeout=0)
        ending: list[asyncio.Task[Any]] = [*self._tasks, *submitted]
        for task in ending:
            task.cancel()
        if self.client_id:
            self._links.close()
        if ending:
            await asyncio.wait(ending)
        if self._view is not None:
            await close_view(self._view)

    def fail(self, error: BaseException) -> None:
        """Stop every partition because of a mistake of this library's own: nothing it says later is to be trusted."""
        fault = error if isinstance(error, PolonaiseError) else PolonaiseError(f"the client failed: {error!r}")
        for partition in self._partitions.values():
            partition.mounting.stop(fault)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _appends_of(self, partition: PartitionId | None, given: tuple[Any, ...] = ()) -> PartitionAppends:
        """The partition's appends; begins to mount it if it is not."""
        if partition is None:
            partition = self._choose(given)
        held = self._partitions.get(partition)
        if held is not None:
            return held.appends
        self._check_partition(partition)
        appends = PartitionAppends(partition, self.client_id, self._settings)
        taker: Applier | MarkOnly
        if self._view is None:
            taker = MarkOnly(appends, self._questions)
        else:
            bodies = Bodies(self._host, partition, self._questions, self._wants, self._settings)
            taker = Applier(self._host, self._view, partition, appends.mark, bodies, self._form, self._settings)
            self._tasks.append(self._host.spawn(taker.apply_all(), f"client: apply partition {partition}"))
        mounting = Mounting(self._host, appends, taker, self._routes, self._links, self._settings)
        taker.mounting = mounting
        self._tasks.append(self._host.spawn(mounting.keep_mounted(), f"client: mount partition {partition}"))
        self._partitions[partition] = _Partition(appends, mounting)
        return appends

    def _choose(self, given: tuple[Any, ...]) -> PartitionId:
        self._check_open()
        if self._partitioner is not None:
            return self._partitioner(given, self.partition_count)
        if self.partition_count == 1:
            return 0
        raise BadOption(f"which of {self.partition_count} partitions? Say partition=, or connect with a partitioner")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client was closed")
        if not self.client_id:
            raise Closed("this client was not started: use `async with`, or `await log.start()`")

    def _check_partition(self, partition: PartitionId) -> None:
        self._check_open()
        if not 0 <= partition < self.partition_count:
            raise UnknownPartition(
                f"partition {partition}; this cluster has partitions 0 to {self.partition_count - 1}"
            )

    # ------------------------------------------------------------------ contexts

    async def run(
        self, context: Context, *args: Any, partition: PartitionId | None = None, timeout: float | None = None
    ) -> Receipt:
        """Run `context(tx, *args)` until what it builds is committed; the receipt.

        The client high-water mark is taken before the context runs. When another transaction has changed meanwhile
        what the context's locks cover, it runs again as soon as this client has applied that. Waits while the
        partition is not ready or has too many appends outstanding.

        Raises `Abandoned` if the context gives up, what the context raises, and after `timeout` seconds either
        `AppendExpired` (nothing was appended, nothing will be) or `AppendUnknown` (it was sent and may still commit:
        await the error's `receipt`). Further `ExpectationFailed`, `BodyTooLarge`, `TooManyLocks`, `RegistersFull`,
        `ClientAhead`, `Closed`. Without a timeout it goes on for as long as the client.
        """
        return await self._running.run(self._appends_of(partition, args), context, args, timeout)

    def submit(
        self, context: Context, *args: Any, partition: PartitionId | None = None, timeout: float | None = None
    ) -> Submission:
        """As `run`, but returns at once and goes on behind the caller's back; see `Submission`.

        Raises `Overloaded` when as many submissions as the settings allow are unfinished.
        """
        if len(self._submitted) >= self._settings.submissions_max:
            raise Overloaded(f"{len(self._submitted)} submissions are unfinished: await some of them first")
        appends = self._appends_of(partition, args)
        self._submissions += 1
        number = self._submissions
        task = asyncio.get_running_loop().create_task(
            self._running.run(appends, context, args, timeout), name=f"client: submission {number}"
        )
        self._submitted[number] = task
        task.add_done_callback(lambda _: self._submitted.pop(number, None))
        return Submission(task)

    # ------------------------------------------------------------------ single appends

    def append(
        self,
        data: Any,
        partition: PartitionId | None = None,
        *,
        header: int = 0,
        high_water_mark: TransactionId | None = None,
        locks: Iterable[Lock] = (),
        expectations: Iterable[Expectation] = (),
        changes: Iterable[Change] = (),
    ) -> Receipt:
        """Append one transaction; for those who bring their own loop. Returns at once: `await` the receipt, or not.

        Nothing is tried again: the receipt raises `LockConflict`, `ExpectationFailed`, `AppendFailed` (not in the log
        and never will be; append again) and so on. `high_water_mark` is what the transaction was built on; without it,
        what this client has applied. Never waits: raises `Overloaded` when too much is outstanding, and then
        `await log.ready(partition)` waits for room. All appends of one turn of the loop go out together.
        """
        appends = self._appends_of(partition, (data,))
        if self.serializer is not None:
            data = self.serializer.encode(data)
        limits = self._settings.limits
        body = checked_body(data, limits)
        if header:
            checked_header(header)
        hashes = lock_hashes(locks, limits) if locks else ()
        asked = operations(expectations, changes) if expectations or changes else ()
        return appends.append(body, header, high_water_mark, hashes, asked)

    async def ready(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> None:
        """Wait until the partition is mounted and has room for another append.

        Raises `DeadlineExceeded` after `timeout` seconds, `ClientAhead`, or what else stopped the partition.
        """
        appends = self._appends_of(partition)
        try:
            await appends.admission.take(self._deadline_s(timeout))
        except TimeoutError:
            raise DeadlineExceeded(
                f"partition {appends.partition} was not ready within {timeout:g} s: {appends.trouble or 'it is full'}"
            ) from appends.trouble
        appends.admission.give_back()

    async def flush(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> TransactionId:
        """Wait until the fate of everything appended to the partition so far is known.

        Returns the committed high-water mark then. Raises `DeadlineExceeded` after `timeout` seconds.
        """
        appends = self._appends_of(partition)
        try:
            return await appends.flush(self._deadline_s(timeout))
        except TimeoutError:
            raise DeadlineExceeded(
                f"partition {appends.partition} was not flushed within {timeout:g} s: "
                f"{appends.trouble or 'its appends are undecided'}"
            ) from appends.trouble

    async def producer(
        self, name: str, *, partition: PartitionId | None = None, timeout: float | None = None
    ) -> Producer:
        """Open an idempotent producer of the partition; whoever had it open is fenced.

        Raises `BadOption` for a name that is empty or longer than a register's key, `DeadlineExceeded` after
        `timeout` seconds (default `question_s_max`).
        """
        settings = self._settings
        encode = self.serializer.encode if self.serializer is not None else None

        def check(data: Any) -> bytes:
            return checked_body(data if encode is None else encode(data), settings.limits)

        return await open_producer(
            name,
            self._appends_of(partition),
            self._questions,
            self._host,
            check,
            (settings.retry_s_min, settings.retry_s_max),
            settings.question_s_max if timeout is None else timeout,
        )

    # ------------------------------------------------------------------ marks

    def applied(self, partition: PartitionId | None = None) -> TransactionId:
        """The client high-water mark: the last id that this client's view has applied (or was fed, without one)."""
        return self._appends_of(partition).mark.value

    async def wait_applied(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> None:
        """Wait until this client's view has applied `id`. Raises `DeadlineExceeded` after `timeout` seconds."""
        appends = self._appends_of(partition)
        try:
            await appends.mark.wait(id, self._deadline_s(timeout))
        except TimeoutError:
            trouble = appends.trouble or appends.mark.trouble
            raise DeadlineExceeded(
                f"partition {appends.partition} is applied up to {appends.mark.value}, not {id}, after {timeout:g} s"
                + (f": {trouble}" if trouble else "")
            ) from trouble

    async def high_water_mark(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> int:
        """The committed high-water mark, proved by the owner after it was asked. -1 for an empty partition."""
        return await self._questions.high_water_mark(self._readable(partition), self._question_s(timeout))

    async def register(
        self, key: bytes, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> bytes | None:
        """The value of a register, proved by the owner after it was asked; None if it is absent."""
        return await self._questions.register(self._readable(partition), key, self._question_s(timeout))

    async def health(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> Any:
        """How the server that owns the partition is, as it says itself: a JSON document, read."""
        document = await self._questions.health(self._readable(partition), self._question_s(timeout))
        return json.loads(document)

    # ------------------------------------------------------------------ reading

    def read(
        self,
        partition: PartitionId | None = None,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Transaction]:
        """The transactions with ids above `after`, in order: `async for tx in log.read(0, after=-1)`.

        Ends at `until` (inclusive), or without it at what was committed when the reading began; with `follow` it goes
        on and waits for more. Every byte is checked. Raises `BatchDamaged`, `DataDamaged` or `LogForked` rather than
        yield what is not the log, `DeadlineExceeded` when nothing can be read for `timeout` seconds.
        """
        reader = self.read_batches(partition, after=after, until=until, follow=follow, timeout=timeout)
        return transactions(reader, after, until)

    def read_batches(
        self,
        partition: PartitionId | None = None,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        with_data: bool = True,
        timeout: float | None = None,
    ) -> BatchReader:
        """As `read`, but whole batches: much faster, for those who look at columns.

        The first and the last batch may reach beyond `after` and `until`. With `with_data=False` bodies stay behind,
        and the batches' CRCs can't be checked.
        """
        return BatchReader(
            self._questions,
            self._settings,
            self._readable(partition),
            after=after,
            until=until,
            follow=follow,
            with_data=with_data,
            timeout=timeout,
        )

    def read_time(
        self,
        partition: PartitionId | None = None,
        *,
        since: int | datetime,
        follow: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Transaction]:
        """As `read`, from the first transaction committed at `since` or later: microseconds UTC, or an aware datetime.

        Raises `BadOption` for a datetime without a time zone.
        """
        since_us = _microseconds(since)
        reader = BatchReader(
            self._questions,
            self._settings,
            self._readable(partition),
            follow=follow,
            since_us=since_us,
            timeout=timeout,
        )
        return transactions(reader, -1, None, since_us)

    async def transaction(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> Transaction:
        """One transaction. Raises `BeyondLog` when it is not committed (yet)."""
        partition = self._readable(partition)
        question = Read(first=id, bytes_max=1, wait_ms=0, with_data=1, after_time_us=0)
        if id >= 0:
            answer = await self._questions.ask(partition, question, Batches, self._question_s(timeout))
            batch = first_batch(answer)
            if batch is not None and batch.partition == partition and batch.first <= id <= batch.last:
                return next(batch.transactions(id - 1))
        raise BeyondLog(f"transaction {id} of partition {partition} is not in the log")

    def decode(self, tx: Transaction) -> Any:
        """The value of a transaction, by the client's serializer; its bytes without one."""
        return tx.data if self.serializer is None else self.serializer.decode(tx.data)

    # ------------------------------------------------------------------ odds

    def _readable(self, partition: PartitionId | None) -> PartitionId:
        if partition is None:
            partition = self._choose(())
        self._check_partition(partition)
        return partition

    def _question_s(self, timeout: float | None) -> float:
        return self._settings.question_s_max if timeout is None else timeout

    def _deadline_s(self, timeout: float | None) -> float | None:
        return None if timeout is None else asyncio.get_running_loop().time() + timeout

    def trouble(self, partition: PartitionId) -> PolonaiseError | None:
        """Why a mounted partition is not ready, or its view gets no further, at the moment.

        None if all is well, or the partition was never used.
        """
        held = self._partitions.get(partition)
        if held is None:
            return None
        return held.appends.stopped or held.appends.trouble or held.appends.mark.trouble


def _microseconds(since: int | datetime) -> int:
    if isinstance(since, int):
        return max(1, since)
    if since.tzinfo is None:
        raise BadOption(f"since={since} has no time zone: say which, for example datetime.now(UTC)")
    return max(1, int(since.timestamp() * 1_000_000))
