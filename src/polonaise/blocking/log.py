"""The `Log` class of the blocking face: the methods of `polonaise.Log`, for threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar, TypeVarTuple
from uuid import UUID

from polonaise.blocking.background import Background
from polonaise.blocking.contexts import PlainContext, check_plain, returned_plainly, run_here
from polonaise.blocking.lease import Lease
from polonaise.blocking.producer import Producer
from polonaise.blocking.reading import Reading
from polonaise.blocking.receipt import Receipt, Submission, receipts_wrapped, waited
from polonaise.blocking.workergroup import HandlerThreads, PlainHandler, WorkerGroup
from polonaise.client.log import Log as AsynchronousLog
from polonaise.client.options import Serializer
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
    # ---- from polonaise.client.log by `make blocking`: change it there

    """One client of a cluster's log: appends, runs transaction contexts, keeps a view, and reads.

    `polonaise.blocking.connect` makes one. Use it as a context manager, or `close` it, and in any number of threads at
    the same time.

    ::

        with polonaise.blocking.connect("embedded:./bank", view=balances) as log:
            receipt = log.run(withdraw, 1, 30, partition=0, timeout=10)
            receipt.applied()

    A call without a deadline of its own ends with `close`, which settles every pending append, as unknown
    (`AppendUnknown`) if it was sent. Giving up a wait, by a deadline or by an exception, changes the fate of no append
    that was sent. The client reconnects, remounts and follows partitions to other servers by itself; no transaction is
    lost or doubled through that.

    Options of `polonaise.blocking.connect`:

    - `view`: the application's state, kept up to date from all partitions, or from those in `partitions` and any other
      that is used. Without a view, the client high-water mark is what the server has fed.
    - `partitions`: the numbers of the partitions that are mounted from the start; by default all with a view, and those
      that the topic gets later; none without. Every other partition is mounted at its first use, other than
      by a request to its owner, such as `read` or `register`.
    - `settings`: bounds and deadlines; see `ClientSettings`.
    - `serializer`: encodes the data that `append`, contexts and producers are given; without one, the data is bytes.
    - `partitioner`: chooses the partition of a call that names none.
    - `bodies`: how bodies travel to the view. `BodyForm.INLINE`: with the feed. `LAZY`: fetched for the headers that
      `wants` accepts (without `wants`, for all), and empty for the others. `FILTERED`: with the feed, all bodies of
      each batch in which `header & mask == value & mask` for some header, given `header_filter=(mask, value)`; of
      other batches as `LAZY`. A partition on whose header `wants` raises stops with `BadOption`.

    Raises `BadOption` for an invalid option.

    Each method does what the one of `polonaise.Log` does, and waits where that is awaited. In addition, every method
    but `close` and `decode` raises `Forked` in a child process, and every method that waits raises `wrong_thread` in
    the background thread.
    """

    @property
    def topic(self) -> str:
        """The name of the topic whose partitions these are; empty for the log's own partitions, in no topic."""
        return self._log.topic

    @property
    def serializer(self) -> Serializer | None:
        """The serializer that the log was connected with; None without one."""
        return self._log.serializer

    @property
    def client_id(self) -> ClientId:
        """This client's id, unique in the cluster; 0 while its coordinator has given it none. Only what appends, leases
        and views need it.
        """
        return self._log.client_id

    @property
    def cluster_key(self) -> bytes:
        """The cluster's key, 16 bytes that no other cluster has."""
        return self._log.cluster_key

    @property
    def partition_count(self) -> int:
        """The number of partitions of the topic, which may grow, or of the log's own."""
        return self._log.partition_count

    @property
    def log_key(self) -> bytes:
        """A key, 16 bytes, that no other log or topic has: the cluster's key, or for a topic one made of that and the
        name. What is kept from the log elsewhere, such as a view's marks, carries it.
        """
        return self._log.log_key

    @property
    def clock_ahead_s(self) -> float | None:
        """How far the clock of this machine is ahead of its server's, in seconds, below 0 if it is behind. None until
        it was measured: a second or two after a server was first asked, and always with servers before version 0.2.
        """
        return self._background.now(lambda: self._log.clock_ahead_s)

    def close(self) -> None:
        """Close the client, its tasks, submissions, connections and view. Every pending append is settled: as
        `AppendUnknown` if it was sent, as `Closed` if it was not. A second call does nothing.

        Waits in other threads end with `Closed`, and a second call waits for the end of the first. Raises
        `wrong_thread` in the background thread; does nothing in a child process. Takes at most 10 seconds, also when
        the view or a submitted context holds up the background thread.
        """
        return self._close()

    @property
    def failure(self) -> PolonaiseError | None:
        """Why this client failed, and stopped all its work for good; None if it has not. A new one may work."""
        return self._log.failure

    def read(
        self,
        partition: PartitionId | None = None,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reading[Transaction]:
        """Read the application's transactions with ids above `after`, in order.

        ::

            for tx in log.read(partition=0, after=-1):
                print(tx.id, tx.data)

        Ends at id `until` (inclusive), or at the committed high-water mark of when the reading began, whichever is
        lower. With `follow` it waits for more transactions instead, and ends only at `until`, if at all. The library's
        own transactions are left out.

        With an `after` beyond the log's end the reading ends at once, or with `follow` waits until the log has grown
        past it. Code that keeps its own position compares it with `high_water_mark` when it begins: a position above
        that is of another log, or the log was restored to an earlier state. Views and worker groups do so, and raise
        `ClientAhead`.

        Raises `BatchDamaged`, `DataDamaged`, `OutOfOrder`, `LogForked` or `ProtocolError` rather than yield what is not
        the log, `HistoryTrimmed` for ids that were trimmed if the cluster reads no fragments, and `DeadlineExceeded`
        when the owner does not answer, or has nothing that it should have, for `timeout` seconds (default
        `ClientSettings.answer_s_max`), with `follow` for `ClientSettings.follow_s_max` longer; the reading can be
        continued then.
        """
        return Reading(
            self._background,
            lambda: self._log.read(partition, after=after, until=until, follow=follow, timeout=timeout),
            body_bytes,
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
        """Read whole batches: like `read`, but much faster for code that works on a batch's columns.

        The first batch may begin at or below `after`, and the last one may end above `until`. With `with_data=False`
        they come without bodies, whose CRCs can't be checked then. They hold the library's own transactions too, whose
        generation is below 0; `Batch.transactions` leaves them out.
        """
        return Reading(
            self._background,
            lambda: self._log.read_batches(
                partition, after=after, until=until, follow=follow, with_data=with_data, timeout=timeout
            ),
            batch_bytes,
        )

    def read_time(
        self,
        partition: PartitionId | None = None,
        *,
        since: int | datetime,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reading[Transaction]:
        """Read from the first transaction with a commit time of `since` or later; otherwise like `read`. `since` is
        microseconds UTC as an integer, or a datetime with a time zone. Raises `BadOption` for anything else.
        """
        return Reading(
            self._background,
            lambda: self._log.read_time(partition, since=since, follow=follow, timeout=timeout),
            body_bytes,
        )

    def transaction(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> Transaction:
        """Return one transaction by its id, its bytes checked.

        Raises `BadOption` for an invalid id; `BeyondLog` when it is not committed, as far as the server knows;
        `OwnTransaction` for one that the library used for itself, such as to open a producer; `HistoryTrimmed` as
        `read`; `BatchDamaged` or `DataDamaged` for bytes that do not fit their CRC; and `DeadlineExceeded` after
        `timeout` seconds (default `ClientSettings.answer_s_max`).
        """
        return waited(self._background, lambda: self._log.transaction(id, partition, timeout=timeout))

    def run(
        self,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Run `context(tx, *args)`, a transaction context, until the transaction that it builds is committed.

        Returns the receipt of the append; its `value` is what the context returned.

        ::

            def withdraw(tx, account, amount):
                tx.write_lock("account", account)
                if balances.of(account) < amount:
                    return tx.abandon("insufficient funds")
                tx.append(b"%d %d" % (account, -amount))

            receipt = log.run(withdraw, 1, 30, partition=0, timeout=10)

        The context runs on what the view has applied. When another transaction has meanwhile changed what its locks
        cover, it runs again as soon as this client has applied that transaction (after other contexts that wait for the
        same locks), as it does after failures that may pass. Waits while the partition is not ready or has too many
        appends outstanding.

        `timeout` is in seconds, over all runs; without one, `run` goes on until the client is closed. Raises:

        - what the context raises, and `Abandoned` if the context gives up or appends nothing;
        - after `timeout` seconds `AppendExpired` (nothing was appended, and nothing will be), or `AppendUnknown` (the
          append was sent and may still commit: wait for the error's `receipt`);
        - `AppendUnknown`, too, when the client is closed, or the partition stops, after the append was sent;
        - `ExpectationFailed`, `BodyTooLarge`, `TooManyLocks`, `RegistersFull` for what the context built;
        - for the copies that it needs (`Draft.need`) `CopiesUnproved`, if it was appended and they are not proved in
          time, and `UnsupportedVersion`;
        - `ClientAhead`, `Closed`, or what else stopped the partition; `UnknownPartition`; `BadOption` for an invalid
          argument.

        The context is a plain function, and runs in this thread. One that is running when `timeout` seconds are over
        runs to its end before `AppendExpired` is raised.
        """
        return self._run(context, *args, partition=partition, timeout=timeout)

    def submit(
        self,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Submission:
        """Run a context as `run` does, in the background thread; return its `Submission` at once.

        Raises at once `Overloaded` at `ClientSettings.submissions_max` unfinished submissions, `BadOption`,
        `UnknownPartition`, and `Closed`. `Submission.result` raises what `run` raises.

        The context is a plain function, and must not wait: nothing else goes on in that thread meanwhile.
        """
        return self._submit(context, *args, partition=partition, timeout=timeout)

    def once(
        self,
        key: str | UUID,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        request: bytes | str | None = None,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Once:
        """Run `context(tx, *args)` as `run` does, unless that was done under this key before.

        Returns what was done, now or then (`Once.repeated` tells which). For requests that bring a key of their own and
        may come twice (`docs/web-services.md`):

        ::

            done = log.once(idempotency_key, withdraw, 1, 30, request=body, partition=0, timeout=10)

        The client's view keeps the keys of a partition together with what the contexts returned, as JSON
        (`SqlView.once_table`). A context that abandons or raises leaves the key free. `request`, such as the body of
        the request, is compared with that of the first time: the same key for another request raises `OnceDiffers`.

        `timeout` is in seconds. Raises what `run` raises, `ViewUnavailable` when the view's database can't be asked for
        the key, and `BadOption` for an invalid key, a view that keeps no keys, a context that calls `Draft.need`, and a
        returned value that is no JSON or too large. After `AppendUnknown` call again with the same key: the answer says
        what became of the append.

        The context is a plain function, and runs in this thread.
        """
        return self._once(key, context, *args, request=request, partition=partition, timeout=timeout)

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
        """Append one transaction, without a context; return its receipt at once. Wait for the receipt, or not.

        ::

            receipt = log.append(b"1 100", partition=0, locks=[Lock("account", 1)]).result()

        `data` is bytes, or what the client's serializer encodes; `header` an integer of 32 bits, signed.
        `high_water_mark` is the id up to which the application had applied the log when it built the transaction, by
        which its locks are judged; by default, what this client has applied.

        With `copies` or `zones` the append succeeds only once so many engaged replicas, in so many zones, have synced
        it. `Receipt.result` raises `InsufficientReplicas`, with nothing written, if those of the present session can't
        be as many; `CopiesUnproved` if the append is in the log and the proof can't be had any more; and
        `UnsupportedVersion`, with nothing written, if the server does not know such appends (`append` raises it while
        mounted there).

        Never waits, and tries nothing again. `Receipt.result` raises `LockConflict`, `ExpectationFailed`,
        `RegistersFull`, `AppendFailed` (not in the log, and never will be: append again), `AppendUnknown`, and so on.
        Refused at once, with `BadOption`, `BodyTooLarge`, `TooManyLocks`, `UnknownPartition`, `Closed`, or the error
        that stopped the partition, is what is invalid; with `Overloaded` what is too much at a time:
        `log.ready(partition)` waits for room.
        """
        return Receipt(
            self._background,
            self._background.now(
                lambda: self._log.append(
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
            ),
        )

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
        """Append many transactions that commit as one, all or none; return their receipt at once.

        Several times as fast as a context for each transaction.

        ::

            receipt = log.append_group(Group.of([b"1 100", b"2 50"]), partition=0).result()
            receipt.ids  # one after the other

        The bodies go into the log as they are, without the client's serializer. `expectations`, `changes`, `copies` and
        `zones`, as in `append`, are of the whole group. Raises what `append` raises, and `BodyTooLarge` for a group
        past `Limits`.
        """
        return Receipt(
            self._background,
            self._background.now(
                lambda: self._log.append_group(
                    group,
                    partition,
                    high_water_mark=high_water_mark,
                    expectations=expectations,
                    changes=changes,
                    copies=copies,
                    zones=zones,
                )
            ),
        )

    def ready(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> None:
        """Wait until the partition is mounted and has room for another append. Raises `DeadlineExceeded` after
        `timeout` seconds, and the error that stopped the partition, such as `ClientAhead`.
        """
        return waited(self._background, lambda: self._log.ready(partition, timeout=timeout))

    def flush(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> TransactionId:
        """Wait until the fate of every append made to the partition so far is known; their receipts have it.

        Returns the partition's committed high-water mark at that time. Raises `DeadlineExceeded` after `timeout`
        seconds, and the error that stopped the partition.
        """
        return waited(self._background, lambda: self._log.flush(partition, timeout=timeout))

    def producer(self, name: str, *, partition: PartitionId | None = None, timeout: float | None = None) -> Producer:
        """Open an idempotent producer of the partition, and fence the one that was opened under this name before.

        ::

            producer = log.producer("billing", partition=0)
            producer.append(producer.last_sequence + 1, b"invoice 17")

        Raises `BadOption` for an invalid name, `RegistersFull`, and `DeadlineExceeded` after `timeout` seconds (default
        `ClientSettings.answer_s_max`).
        """
        return Producer(
            self._background,
            waited(self._background, lambda: self._log.producer(name, partition=partition, timeout=timeout)),
        )

    def lease(self, name: str, *, partition: PartitionId = 0, duration_s: float = 5.0, note: bytes = b"") -> Lease:
        """Return a `Lease`: a name that one holder at a time has, granted by the owner of the partition.

        ::

            with log.lease("billing") as lease:  # waits until no other process has it
                while lease.held:
                    ...

        `duration_s`, 1 to 60 seconds, is for how long it is held without being renewed, and others wait after the death
        of a holder; the same for all that ask for the name. `note` is for whoever lists the leases. Raises `BadOption`,
        `UnknownPartition`, `Closed`.
        """
        return Lease(
            self._background,
            self._background.now(lambda: self._log.lease(name, partition=partition, duration_s=duration_s, note=note)),
        )

    def list_leases(
        self, prefix: str = "", *, partition: PartitionId = 0, timeout: float | None = None
    ) -> list[ListedLease]:
        """Return the leases of the partition that anybody holds and whose names begin with `prefix`. Raises
        `DeadlineExceeded` after `timeout` seconds (default `ClientSettings.answer_s_max`).
        """
        return waited(self._background, lambda: self._log.list_leases(prefix, partition=partition, timeout=timeout))

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

        `view` is a `SqlView`: each transaction counts exactly once in its database. Or `handler` is a plain function
        that is given each transaction in order, at least once. `lease_s`, 1 to 60 seconds, is for how long others wait
        for a member that has died or hangs. All members give the same. A transaction, a view's run or a take-over that
        takes longer than `progress_s_max` seconds is told as trouble in `WorkerGroup.health`. Raises `BadOption`,
        `Closed`.

        The handler runs in threads of the group, one for each partition that is being worked on, and may wait, for this
        log, too.
        """
        return self._group(name, view=view, handler=handler, lease_s=lease_s, progress_s_max=progress_s_max)

    def applied(self, partition: PartitionId | None = None) -> TransactionId:
        """Return the client high-water mark: the last id that this client's view has applied; -1 for none. Without a
        view, the last id that it was fed, or the committed high-water mark at which its feed began.
        """
        return self._background.now(lambda: self._log.applied(partition))

    def wait_applied(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> None:
        """Wait until this client's view has applied `id`. Raises `DeadlineExceeded` after `timeout` seconds, and the
        error that stopped the partition.
        """
        return waited(self._background, lambda: self._log.wait_applied(id, partition, timeout=timeout))

    def high_water_mark(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> int:
        """Return the partition's committed high-water mark; -1 for an empty partition. Proved by the owner after the
        request arrived. Raises `DeadlineExceeded` after `timeout` seconds (default `ClientSettings.answer_s_max`).
        """
        return waited(self._background, lambda: self._log.high_water_mark(partition, timeout=timeout))

    def high_water_marks(
        self, partitions: Iterable[PartitionId], *, timeout: float | None = None
    ) -> dict[PartitionId, TransactionId]:
        """Return the committed high-water marks of several partitions, requested at the same time. Raises what
        `high_water_mark` raises, for the first partition that fails.
        """
        return waited(self._background, lambda: self._log.high_water_marks(partitions, timeout=timeout))

    def wait_committed(
        self, above: Mapping[PartitionId, TransactionId], *, timeout: float
    ) -> dict[PartitionId, TransactionId]:
        """Wait until one of these partitions has committed a transaction above the id given for that partition.

        A server may end the wait before `timeout`: after its `ServerSettings.read_wait_s_max`, 30 seconds by default.

        Returns the committed high-water marks of those that answered first and have moved on; an empty dict after
        `timeout` seconds, or at once if no partition is given. Raises `DeadlineExceeded` when an owner has not answered
        within `timeout` plus `ClientSettings.answer_s_max` seconds.
        """
        return waited(self._background, lambda: self._log.wait_committed(above, timeout=timeout))

    def register(
        self, key: bytes, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> bytes | None:
        """Return the value of a register; None if the register is absent.

        Proved by the owner after the request arrived. Raises `BadOption` for an invalid key, and `DeadlineExceeded`
        after `timeout` seconds (default `ClientSettings.answer_s_max`).
        """
        return waited(self._background, lambda: self._log.register(key, partition, timeout=timeout))

    def list_registers(
        self, prefix: bytes = b"", partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> dict[bytes, bytes]:
        """Return the registers whose keys begin with `prefix`, with their values, in the order of their keys.

        In pages of up to 4,096 registers or about 256 KiB, each of one moment and proved by the owner after its request
        arrived. A register that changes meanwhile is returned with its old or its new value. The library's own
        registers are included: keys under `producer/` are producers', under `spark/` Spark sinks', under `group/`
        worker groups'. Raises `BadOption` for an invalid prefix, and `DeadlineExceeded` after `timeout` seconds over
        all pages (default `ClientSettings.answer_s_max`).
        """
        return waited(self._background, lambda: self._log.list_registers(prefix, partition, timeout=timeout))

    def health(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> Any:
        """Return the health report of the server that owns the partition: a parsed JSON document.

        Its field `client` has this client's `clock_ahead_s`. Raises `DeadlineExceeded` after `timeout` seconds (default
        `ClientSettings.answer_s_max`).
        """
        return waited(self._background, lambda: self._log.health(partition, timeout=timeout))

    def trim(
        self, partition: PartitionId, before: TransactionId, fragments: bytes, *, timeout: float | None = None
    ) -> tuple[TransactionId, bool]:
        """Have the storage nodes drop, for good, some of the history below id `before`; repeat until done.

        For `polonaise.admin.trimming.trim`, which verifies the archive first: `fragments` is the fingerprint of the
        verified fragments. Returns the first id that all storage nodes of the session still hold, and whether nothing
        is left to be dropped. Raises `not_archived` when the server has no fragment store, or finds other fragments or
        another log there, `BeyondLog` when `before` is not committed, and `DeadlineExceeded` after `timeout` seconds
        (default `ClientSettings.answer_s_max`).
        """
        return waited(self._background, lambda: self._log.trim(partition, before, fragments, timeout=timeout))

    def trouble(self, partition: PartitionId) -> PolonaiseError | None:
        """Return why a partition is stopped, is not mounted, commits nothing, or why its view does not advance.

        None if nothing is known, or the partition was never used. When disks are full or a quorum is missing, the error
        names the storage nodes. A view that has been applying the same for 5 s counts as trouble, too.
        """
        return self._background.now(lambda: self._log.trouble(partition))

    def decode(self, tx: Transaction) -> Any:
        """Return the value of a transaction, decoded by the client's serializer; without one, its data, bytes."""
        return self._log.decode(tx)

    # ---- by hand: what differs for threads

    def __init__(self, background: Background, log: AsynchronousLog, closing: Callable[[], Awaitable[None]]) -> None:
        """Wrap `log`, which is open in the background thread; what `closing` returns, awaited there, closes it."""
        self._background = background
        self._log = log
        self._closing = closing

    def _close(self) -> None:
        self._background.close(self._closing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, context: PlainContext, *args: Any, **options: Any) -> Receipt:
        with receipts_wrapped(self._background):
            receipt = run_here(self._background, context, lambda here: self._log.run(here, *args, **options))
        return Receipt(self._background, receipt)

    def _once(self, key: str | UUID, context: PlainContext, *args: Any, **options: Any) -> Once:
        with receipts_wrapped(self._background):
            return run_here(self._background, context, lambda here: self._log.once(key, here, *args, **options))

    def _submit(self, context: PlainContext, *args: Any, **options: Any) -> Submission:
        check_plain(context, "context", "submit(context, *args)")

        def plain(tx: Draft, *given: Any) -> Any:
            return returned_plainly(context(tx, *given), "context")

        submission = self._background.now(lambda: self._log.submit(plain, *args, **options))
        return Submission(self._background, submission)

    def _group(self, name: str, *, handler: PlainHandler | None, **options: Any) -> WorkerGroup:
        threads = None if handler is None else HandlerThreads(self._background, handler, name)
        handle = None if threads is None else threads.handle
        made = self._background.now(lambda: self._log.group(name, handler=handle, **options))
        return WorkerGroup(self._background, made, threads)

    def call(self, ask: Callable[[AsynchronousLog], Awaitable[T]]) -> T:
        """Await `ask(log)` in the background thread, with this log's asynchronous face, and return its result.

        For code that makes many requests at the same time. `ask` must not block. Raises what `ask` raises
        (`asyncio.CancelledError` if it is cancelled), `wrong_thread`, `Forked` and `Closed`.

        ::

            marks = log.call(lambda log: asyncio.gather(*map(log.high_water_mark, range(log.partition_count))))
        """
        return self._background.call(lambda: ask(self._log))


def body_bytes(tx: Transaction) -> int:
    return len(tx.data)


def batch_bytes(batch: Batch) -> int:
    return batch.length
