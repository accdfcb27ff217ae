"""The `Log` class of the blocking face: the methods of `polonaise.Log`, for threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar, TypeVarTuple
from uuid import UUID

from polonaise.blocking.background import Background
from polonaise.blocking.contexts import check_plain, returned_plainly, run_here
from polonaise.blocking.lease import Lease
from polonaise.blocking.producer import Producer
from polonaise.blocking.reading import Reading
from polonaise.blocking.receipt import Receipt, Submission, receipts_wrapped
from polonaise.blocking.workergroup import HandlerThreads, PlainHandler, WorkerGroup
from polonaise.client.log import Log as AsynchronousLog
from polonaise.client.log import Serializer
from polonaise.client.protocol.draft import Change, Draft, Expectation
from polonaise.client.protocol.group import Group
from polonaise.client.protocol.locks import Lock
from polonaise.client.protocol.oncekeys import Once
from polonaise.client.workerprogress import WorkedView
from polonaise.errors import PolonaiseError
from polonaise.log.batch import Batch
from polonaise.terms import ClientId, PartitionId, Transaction, TransactionId
from polonaise.wire.leases import ListedLease

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Log:
    """One client of a cluster's log, for any number of threads; returned by `polonaise.blocking.connect`.

    ::

        with polonaise.blocking.connect("embedded:./bank", view=balances) as log:
            receipt = log.run(withdraw, 1, 30, partition=0, timeout=10)
            receipt.applied()

    Each method but `call` does what the one of `polonaise.Log` does, with the same parameters and errors, and waits
    where that is awaited. In addition, every method but `close` and `decode` raises `Forked` in a child process, and
    every method that waits raises `WrongThread` in the background thread. Every wait ends: a call without a deadline of
    its own ends when any thread calls `close`, with `Closed`, or with `AppendUnknown` for an append that was sent.
    """

    def __init__(self, background: Background, log: AsynchronousLog, close: Callable[[], Awaitable[None]]) -> None:
        """Wrap `log`, which is open in the background thread; `close` closes it there."""
        self._background = background
        self._log = log
        self._close = close

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Close the client and end its background thread. A second call only waits for that.

        Waits in other threads end with `Closed`; appends that were sent and not decided with `AppendUnknown`. Raises
        `WrongThread` in the background thread; does nothing in a child process. Takes at most 10 seconds, also when the
        view or a submitted context holds up the background thread.
        """
        self._background.close(self._close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client_id(self) -> ClientId:
        """This client's id, unique in the cluster, given out by the coordinator; 0 while none can be had."""
        return self._log.client_id

    @property
    def partition_count(self) -> int:
        """The number of partitions of the topic, which may grow, or of the log's own."""
        return self._log.partition_count

    @property
    def failure(self) -> PolonaiseError | None:
        """Why this client failed, and stopped all its work for good; None if it has not. Opening the log anew may
        help."""
        return self._log.failure

    @property
    def cluster_key(self) -> bytes:
        """The cluster's key, 16 bytes that no other cluster has."""
        return self._log.cluster_key

    @property
    def topic(self) -> str:
        """The name of the topic whose partitions these are; empty for the log's own partitions, in no topic."""
        return self._log.topic

    @property
    def log_key(self) -> bytes:
        """A key, 16 bytes, that no other log has: the cluster's key, or for a topic one made of that and the name."""
        return self._log.log_key

    @property
    def clock_ahead_s(self) -> float | None:
        """How far the clock of this machine is ahead of its server's, in seconds. As `polonaise.Log.clock_ahead_s`."""
        return self._background.now(lambda: self._log.clock_ahead_s)

    @property
    def serializer(self) -> Serializer | None:
        """The serializer that the log was connected with; None without one."""
        return self._log.serializer

    # ------------------------------------------------------------------ contexts

    def run(
        self,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Run `context(tx, *args)` in this thread until its transaction is committed; return the receipt.

        As `polonaise.Log.run`, for a context that is a plain function. A context that is running when `timeout` seconds
        are over runs to its end before `AppendExpired` is raised.
        """
        run = self._log.run
        with receipts_wrapped(self._background):
            receipt = run_here(
                self._background, context, lambda here: run(here, *args, partition=partition, timeout=timeout)
            )
        return Receipt(self._background, receipt)

    def submit(
        self,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Submission:
        """Run a context in the background thread, where it must not wait; return its `Submission` at once.

        As `polonaise.Log.submit`, for a context that is a plain function.
        """
        check_plain(context, "context", "submit(context, *args)")

        def plain(tx: Draft, *given: *Ts) -> Any:
            return returned_plainly(context(tx, *given), "context")

        submit = self._log.submit
        submission = self._background.now(lambda: submit(plain, *args, partition=partition, timeout=timeout))
        return Submission(self._background, submission)

    def once(
        self,
        key: str | UUID,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        request: bytes | str | None = None,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Once:
        """Run `context(tx, *args)` in this thread, unless the key was used before. As `polonaise.Log.once`."""
        once = self._log.once
        with receipts_wrapped(self._background):
            return run_here(
                self._background,
                context,
                lambda here: once(key, here, *args, request=request, partition=partition, timeout=timeout),
            )

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
        copies: int = 0,
        zones: int = 0,
    ) -> Receipt:
        """Append one transaction; return its receipt at once. As `polonaise.Log.append`."""
        append = self._log.append
        receipt = self._background.now(
            lambda: append(
                data,
                partition,
                header=header,
                high_water_mark=high_water_mark,
                locks=locks,
                expectations=expectations,
                changes=changes,
                copies=copies,
                zones=zones,
            )
        )
        return Receipt(self._background, receipt)

    def append_group(
        self,
        group: Group,
        partition: PartitionId | None = None,
        *,
        high_water_mark: TransactionId | None = None,
        expectations: Iterable[Expectation] = (),
        changes: Iterable[Change] = (),
        copies: int = 0,
        zones: int = 0,
    ) -> Receipt:
        """Append transactions that commit as one; return their receipt at once. As `polonaise.Log.append_group`."""
        append_group = self._log.append_group
        receipt = self._background.now(
            lambda: append_group(
                group,
                partition,
                high_water_mark=high_water_mark,
                expectations=expectations,
                changes=changes,
                copies=copies,
                zones=zones,
            )
        )
        return Receipt(self._background, receipt)

    def ready(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> None:
        """Wait until the partition is mounted and has room for another append. As `polonaise.Log.ready`."""
        return self._background.call(lambda: self._log.ready(partition, timeout=timeout))

    def flush(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> TransactionId:
        """Wait until the fate of every append made to the partition so far is known. As `polonaise.Log.flush`."""
        return self._background.call(lambda: self._log.flush(partition, timeout=timeout))

    def producer(self, name: str, *, partition: PartitionId | None = None, timeout: float | None = None) -> Producer:
        """Open an idempotent producer, and fence the one that was opened under this name before.

        As `polonaise.Log.producer`.
        """
        with receipts_wrapped(self._background):
            opened = self._background.call(lambda: self._log.producer(name, partition=partition, timeout=timeout))
        return Producer(self._background, opened)

    # ------------------------------------------------------------------ leases

    def lease(self, name: str, *, partition: PartitionId = 0, duration_s: float = 5.0, note: bytes = b"") -> Lease:
        """Return a lease: a name that one holder at a time has. As `polonaise.Log.lease`."""
        made = self._background.now(
            lambda: self._log.lease(name, partition=partition, duration_s=duration_s, note=note)
        )
        return Lease(self._background, made)

    def list_leases(
        self, prefix: str = "", *, partition: PartitionId = 0, timeout: float | None = None
    ) -> list[ListedLease]:
        """Return the leases that are held and whose names begin with `prefix`. As `polonaise.Log.list_leases`."""
        return self._background.call(lambda: self._log.list_leases(prefix, partition=partition, timeout=timeout))

    # ------------------------------------------------------------------ workers

    def group(
        self,
        name: str,
        *,
        view: WorkedView | None = None,
        handler: PlainHandler | None = None,
        lease_s: float = 5.0,
        progress_s_max: float = 30.0,
    ) -> WorkerGroup:
        """Return a `WorkerGroup`: processes that join it share the partitions, one worker each at a time.

        As `polonaise.Log.group`, for a handler that is a plain function: it runs in threads of the group, one for each
        partition that is being worked on, and may wait, for this log, too.
        """
        threads = None if handler is None else HandlerThreads(self._background, handler, name)
        made = self._background.now(
            lambda: self._log.group(
                name,
                view=view,
                handler=None if threads is None else threads.handle,
                lease_s=lease_s,
                progress_s_max=progress_s_max,
            )
        )
        return WorkerGroup(self._background, made, threads)

    # ------------------------------------------------------------------ marks

    def applied(self, partition: PartitionId | None = None) -> TransactionId:
        """Return the client high-water mark: the last id that this client's view has applied; -1 for none.

        As `polonaise.Log.applied`.
        """
        return self._background.now(lambda: self._log.applied(partition))

    def wait_applied(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> None:
        """Wait until this client's view has applied `id`. As `polonaise.Log.wait_applied`."""
        return self._background.call(lambda: self._log.wait_applied(id, partition, timeout=timeout))

    def high_water_mark(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> int:
        """Return the committed high-water mark; -1 for an empty partition. As `polonaise.Log.high_water_mark`."""
        return self._background.call(lambda: self._log.high_water_mark(partition, timeout=timeout))

    def high_water_marks(
        self, partitions: Iterable[PartitionId], *, timeout: float | None = None
    ) -> dict[PartitionId, TransactionId]:
        """Return the committed high-water marks of several partitions. As `polonaise.Log.high_water_marks`."""
        return self._background.call(lambda: self._log.high_water_marks(partitions, timeout=timeout))

    def wait_committed(
        self, above: Mapping[PartitionId, TransactionId], *, timeout: float
    ) -> dict[PartitionId, TransactionId]:
        """Wait until one of these partitions has committed a transaction above the id given for that partition.

        As `polonaise.Log.wait_committed`.
        """
        return self._background.call(lambda: self._log.wait_committed(above, timeout=timeout))

    def register(
        self, key: bytes, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> bytes | None:
        """Return the value of a register; None if the register is absent. As `polonaise.Log.register`."""
        return self._background.call(lambda: self._log.register(key, partition, timeout=timeout))

    def list_registers(
        self, prefix: bytes = b"", partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> dict[bytes, bytes]:
        """Return the registers whose keys begin with `prefix`, with their values. As `polonaise.Log.list_registers`."""
        return self._background.call(lambda: self._log.list_registers(prefix, partition, timeout=timeout))

    def trim(
        self, partition: PartitionId, before: TransactionId, fragments: bytes, *, timeout: float | None = None
    ) -> tuple[TransactionId, bool]:
        """Have the storage nodes drop some of the history below id `before`. As `polonaise.Log.trim`."""
        return self._background.call(lambda: self._log.trim(partition, before, fragments, timeout=timeout))

    def health(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> Any:
        """Return the health report of the server that owns the partition. As `polonaise.Log.health`."""
        return self._background.call(lambda: self._log.health(partition, timeout=timeout))

    # ------------------------------------------------------------------ reading

    def read(
        self,
        partition: PartitionId | None = None,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reading[Transaction]:
        """Read the transactions with ids above `after`: `for tx in log.read(partition=0)`. As `polonaise.Log.read`."""
        read = self._log.read
        return Reading(
            self._background,
            lambda: read(partition, after=after, until=until, follow=follow, timeout=timeout),
            _body_bytes,
        )

    def read_batches(
        self,
        partition: PartitionId | None = None,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        with_data: bool = True,
        timeout: float | None = None,
    ) -> Reading[Batch]:
        """Read whole batches. As `polonaise.Log.read_batches`."""
        read = self._log.read_batches
        return Reading(
            self._background,
            lambda: read(partition, after=after, until=until, follow=follow, with_data=with_data, timeout=timeout),
            _batch_bytes,
        )

    def read_time(
        self,
        partition: PartitionId | None = None,
        *,
        since: int | datetime,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reading[Transaction]:
        """Read from the first transaction with a commit time of `since` or later. As `polonaise.Log.read_time`."""
        read = self._log.read_time
        return Reading(
            self._background, lambda: read(partition, since=since, follow=follow, timeout=timeout), _body_bytes
        )

    def transaction(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> Transaction:
        """Return one transaction by its id. As `polonaise.Log.transaction`."""
        return self._background.call(lambda: self._log.transaction(id, partition, timeout=timeout))

    def decode(self, tx: Transaction) -> Any:
        """Return the value of a transaction, decoded by the client's serializer; without one, its data, bytes."""
        return self._log.decode(tx)

    # ------------------------------------------------------------------ odds

    def call(self, ask: Callable[[AsynchronousLog], Awaitable[T]]) -> T:
        """Await `ask(log)` in the background thread, with this log's asynchronous face, and return its result.

        For code that makes many requests at the same time. `ask` must not block. Raises what `ask` raises
        (`asyncio.CancelledError` if it is cancelled), `WrongThread`, `Forked` and `Closed`.

        ::

            marks = log.call(lambda log: asyncio.gather(*map(log.high_water_mark, range(log.partition_count))))
        """
        return self._background.call(lambda: ask(self._log))

    def trouble(self, partition: PartitionId) -> PolonaiseError | None:
        """Return why a partition is stopped, is not mounted, commits nothing, or why its view does not advance.

        None if no trouble is known at the moment, or if the partition was never used. As `polonaise.Log.trouble`.
        """
        return self._background.now(lambda: self._log.trouble(partition))


def _body_bytes(tx: Transaction) -> int:
    return len(tx.data)


def _batch_bytes(batch: Batch) -> int:
    return batch.length
