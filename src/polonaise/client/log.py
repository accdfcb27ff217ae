"""The `Log` class: the client's public interface to a cluster's log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, Self, TypeVarTuple
from uuid import UUID

from polonaise.client.appends import PartitionAppends, Receipt
from polonaise.client.batchreader import BatchReader, TransactionReader
from polonaise.client.clientparts import ClientParts, Lifetime
from polonaise.client.discovery import Discovery
from polonaise.client.lease import Lease, checked_lease
from polonaise.client.mounting import Form
from polonaise.client.once import once_view, run_once
from polonaise.client.options import Serializer, check_options
from polonaise.client.partitions import Choices, Partitioner, UsedPartitions, find_partitions
from polonaise.client.producer import Producer, open_producer
from polonaise.client.protocol.arguments import checked_id, checked_key, checked_seconds, microseconds, wrong
from polonaise.client.protocol.draft import (
    Change,
    Draft,
    Expectation,
    checked_body,
    checked_header,
    checked_needs,
    joined,
    operations,
)
from polonaise.client.protocol.group import Group
from polonaise.client.protocol.locks import Lock
from polonaise.client.protocol.oncekeys import Once, checked_once_key, digest_of_request
from polonaise.client.requests import Requests
from polonaise.client.running import Context, Running, Submission
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View, close_view
from polonaise.client.waiting import check_loop, deadline_in, first_results_of, is_inherited, results_of
from polonaise.client.workergroup import WorkerGroup, checked_group
from polonaise.client.workerprogress import Handler, WorkedView
from polonaise.coordination.topics import log_key_of
from polonaise.errors import BadOption, Closed, DeadlineExceeded, Overloaded, PolonaiseError
from polonaise.host import Host
from polonaise.redaction import redacted_text
from polonaise.terms import BodyForm, ClientId, ClusterTopics, PartitionId, Transaction, TransactionId
from polonaise.wire.leases import DURATION_MS_MIN, ListedLease
from polonaise.wire.messages import Batches, Health, HealthIs, LogTrimmed, Read, TrimLog

Ts = TypeVarTuple("Ts")

_NONE: Final = 0
"""The default of `copies` and `zones`."""


class Log:
    """One client of a cluster's log: appends, runs transaction contexts, keeps a view, and reads.

    `polonaise.connect` makes one. Use it as an asynchronous context manager, or call `start` and `close`, and only in
    the event loop that started it (`wrong_event_loop` elsewhere; `Forked` in a child process).

    ::

        async with polonaise.connect("embedded:./bank", view=balances) as log:
            receipt = await log.run(withdraw, 1, 30, partition=0, timeout=10)
            await receipt.applied()

    A call without a deadline of its own ends with `close`, which settles every pending append, as unknown
    (`AppendUnknown`) if it was sent. Giving up a wait, by cancellation or by a deadline, changes the fate of no append
    that was sent. The client reconnects, remounts and follows partitions to other servers by itself; no transaction is
    lost or doubled through that.

    Parameters (`polonaise.connect` takes the same without the first two, and the topic as a part of the address):

    - `host`, `discovery`: the machine, and what finds the cluster: its coordinator, or a `ServerDiscovery`.
    - `view`: the application's state, kept up to date from all partitions, or from those in `partitions` and any other
      that is used. Without a view, the client high-water mark is what the server has fed.
    - `topic`: the name of the topic whose partitions the client sees, as 0, 1, 2, …; empty for the log's own, in no
      topic. `partition_count` rises when the topic grows.
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
    """

    def __init__(
        self,
        host: Host,
        discovery: Discovery,
        *,
        view: View | RunView | None = None,
        settings: ClientSettings | None = None,
        serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        partitions: Collection[PartitionId] | None = None,
        bodies: BodyForm = BodyForm.INLINE,
        wants: Callable[[int], bool] | None = None,
        header_filter: tuple[int, int] | None = None,
        topic: str = "",
    ) -> None:
        check_options(
            view=view, settings=settings, serializer=serializer, partitioner=partitioner, partitions=partitions,
            bodies=bodies, wants=wants, header_filter=header_filter,
        )  # fmt: skip
        mask, value = header_filter or (0, 0)
        self._discovery = discovery
        self._settings = settings or ClientSettings()
        # As they travel: unsigned, while the headers that they are compared with may be negative.
        form = Form(bodies, mask & 0xFFFF_FFFF, value & 0xFFFF_FFFF)
        self._encode = None if serializer is None else serializer.encode
        self._choices = Choices(self._settings, self._encode, topic, partitioner, view, partitions, form, wants)
        self._running = Running(host, self._settings, self._encode)
        self._submissions = 0
        """How many submissions there were: the number of the latest, by which `_submitted` has it."""
        self._submitted: dict[int, asyncio.Task[Receipt]] = {}
        """The tasks of unfinished submissions, by number."""
        self._life = life = Lifetime()
        self._find_partitions = partial(find_partitions, host, discovery, self._choices, life)
        self._partitions: UsedPartitions | None = None
        """The partitions, with the parts that they share; None until the client has started."""
        self.topic = topic
        """The name of the topic whose partitions these are; empty for the log's own partitions, in no topic."""
        self.whereabouts: Callable[[], str] = lambda: ""
        """Returns which process serves the log, for messages, or empty. Set by the code that opens the log."""
        self.serializer = serializer
        """The serializer that the log was connected with; None without one."""

    # ------------------------------------------------------------------ life

    @property
    def client_id(self) -> ClientId:
        """This client's id, unique in the cluster; 0 while its coordinator has given it none. Only what appends, leases
        and views need it."""
        return 0 if self._partitions is None else self._partitions.parts.identity.client_id

    @property
    def cluster_key(self) -> bytes:
        """The cluster's key, 16 bytes that no other cluster has; empty before `start`."""
        return b"" if self._partitions is None else self._partitions.parts.cluster_key

    @property
    def partition_count(self) -> int:
        """The number of partitions of the topic, which may grow, or of the log's own; 0 before `start`."""
        return 0 if self._partitions is None else self._partitions.count

    @property
    def log_key(self) -> bytes:
        """A key, 16 bytes, that no other log or topic has: the cluster's key, or for a topic one made of that and the
        name. What is kept from the log elsewhere, such as a view's marks, carries it."""
        return log_key_of(self.cluster_key, self.topic)

    @property
    def clock_ahead_s(self) -> float | None:
        """How far the clock of this machine is ahead of its server's, in seconds, below 0 if it is behind. None until
        it was measured: a second or two after a server was first asked, and always with servers before version 0.2."""
        return None if self._partitions is None else self._partitions.parts.links.clock_ahead_s()

    async def start(self) -> None:
        """Read the cluster's description, and begin to mount the view's partitions, or those in `partitions`.

        `async with` calls it. Returns before the partitions are mounted (`ready` waits for that). If the coordinator
        can give no id, as on a full disk, this client reads, and what it appends waits until it has one.

        Raises what finding the cluster raises, such as `NotInitialized`, `CoordinatorUnavailable`,
        `servers_unavailable` and `UnknownTopic`; `UnknownPartition` for `partitions` that there are not, `Closed` after
        `close`, and `BadOption` if the client was started before.
        """
        self._life.check_open()
        if self._partitions is not None:
            raise BadOption("this client was started before: `async with` starts it, and no further call is needed")
        self._partitions = await self._find_partitions(lambda: self.whereabouts())
        try:
            await self._partitions.start()
        finally:
            if self._life.closed:  # meanwhile: what began after that, `close` has not ended
                await self._partitions.close(())
        self._life.check_open()

    async def close(self) -> None:
        """Close the client, its tasks, submissions, connections and view. Every pending append is settled: as
        `AppendUnknown` if it was sent, as `Closed` if it was not. A second call does nothing."""
        if self._life.closed:
            return
        self._life.closed = True
        if self._partitions is not None:
            if is_inherited(self._partitions.parts.loop):
                return  # in a forked child, which ends: all that there is to be closed is its parent's
            await self._partitions.close(self._submitted.values())
        # Last: until its tasks have ended, one of them may be within the view.
        if self._choices.view is not None:
            await close_view(self._choices.view)

    def fail(self, error: BaseException) -> None:
        """Stop every partition, those to come included: this client can't be trusted any more. Called for a mistake of
        this library's own, and when this process can host its embedded log no more."""
        if self._life.closed or self._life.failure is not None:
            return
        if not isinstance(error, PolonaiseError):
            error = PolonaiseError(f"the client failed: {redacted_text(error, repr)}")
        self._life.failure = error
        if self._partitions is not None:  # else it has not begun with anything
            self._partitions.fail(error)

    @property
    def failure(self) -> PolonaiseError | None:
        """Why this client failed, and stopped all its work for good; None if it has not. A new one may work."""
        return self._life.failure

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _started(self) -> UsedPartitions:
        """Return what the client works with, also when it is closed. Raises `Closed` before `start`."""
        if self._partitions is None:
            self._life.check_open()
            raise Closed("this client was not started: use `async with`, or `await log.start()`")
        return self._partitions

    def _open(self) -> ClientParts:
        """Return what the client works with. Raises `Closed` before `start` and after `close`."""
        self._life.check_open()
        return self._started().parts

    def _appends_of(self, partition: PartitionId | None, given: tuple[Any, ...] = ()) -> PartitionAppends:
        return self._started().appends_of(partition, given)

    def _answer_s(self, timeout: float | None) -> float:
        seconds = checked_seconds("timeout", timeout)
        return self._settings.answer_s_max if seconds is None else seconds

    def _asked(self, partition: PartitionId | None, timeout: float | None) -> tuple[Requests, PartitionId, float]:
        """Return by what a partition's owner is asked, the partition's number, and for how many seconds."""
        partitions = self._started()
        return partitions.parts.requests, partitions.usable(partition), self._answer_s(timeout)

    # ------------------------------------------------------------------ the cluster

    async def cluster_topics(self) -> ClusterTopics:
        """Return the partitions of the whole cluster, its own ones and its topics'. Raises `CoordinatorUnavailable`,
        `servers_unavailable`, `Closed`."""
        self._open()
        return await self._discovery.topics()

    async def servers_health(self) -> dict[str, dict[str, Any] | PolonaiseError]:
        """Return the health report of each server, or why there is none, by address.

        Of a cluster that is found by servers, those in its address and the owners.

        Raises `CoordinatorUnavailable`, `servers_unavailable`, `Closed`.
        """
        parts = self._open()
        return await parts.links.health_of(await parts.routes.server_addresses())

    def id_of(self, partition: PartitionId) -> PartitionId:
        """Return the id of a partition in the cluster, by which its fragments are named. Raises `UnknownPartition`,
        `BadOption`, `Closed`, and as `check_loop`."""
        partitions = self._started()
        return partitions.parts.routes.id_of(partitions.known(partition))

    # ------------------------------------------------------------------ reading

    def read(
        self,
        partition: PartitionId | None = None,
        *,
        after: TransactionId = -1,
        until: TransactionId | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> TransactionReader:
        """Read the application's transactions with ids above `after`, in order.

        ::

            async for tx in log.read(partition=0, after=-1):
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
        reader = self.read_batches(partition, after=after, until=until, follow=follow, timeout=timeout)
        return TransactionReader(reader, after, until)

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
        """Read whole batches: like `read`, but much faster for code that works on a batch's columns.

        The first batch may begin at or below `after`, and the last one may end above `until`. With `with_data=False`
        they come without bodies, whose CRCs can't be checked then. They hold the library's own transactions too, whose
        generation is below 0; `Batch.transactions` leaves them out.
        """
        checked_id("after", after)
        if until is not None:
            checked_id("until", until)
        requests, usable, timeout_s = self._asked(partition, timeout)
        return BatchReader(
            requests, self._settings, usable,
            after=after, until=until, follow=follow, with_data=with_data, timeout=timeout_s,
        )  # fmt: skip

    def read_time(
        self,
        partition: PartitionId | None = None,
        *,
        since: int | datetime,
        follow: bool = False,
        timeout: float | None = None,
    ) -> TransactionReader:
        """Read from the first transaction with a commit time of `since` or later; otherwise like `read`. `since` is
        microseconds UTC as an integer, or a datetime with a time zone. Raises `BadOption` for anything else."""
        since_us, (requests, usable, timeout_s) = microseconds(since), self._asked(partition, timeout)
        reader = BatchReader(requests, self._settings, usable, follow=follow, since_us=since_us, timeout=timeout_s)
        return TransactionReader(reader, -1, None, since_us)

    async def transaction(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> Transaction:
        """Return one transaction by its id, its bytes checked.

        Raises `BadOption` for an invalid id; `BeyondLog` when it is not committed, as far as the server knows;
        `OwnTransaction` for one that the library used for itself, such as to open a producer; `HistoryTrimmed` as
        `read`; `BatchDamaged` or `DataDamaged` for bytes that do not fit their CRC; and `DeadlineExceeded` after
        `timeout` seconds (default `ClientSettings.answer_s_max`).
        """
        requests, usable, timeout_s = self._asked(partition, timeout)
        checked_id("id", id, 0, "a transaction's id is an integer from 0 to 2**63 - 1")
        return await requests.transaction(usable, id, timeout_s)

    # ------------------------------------------------------------------ contexts

    async def run(
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

            receipt = await log.run(withdraw, 1, 30, partition=0, timeout=10)

        The context runs on what the view has applied. When another transaction has meanwhile changed what its locks
        cover, it runs again as soon as this client has applied that transaction (after other contexts that wait for the
        same locks), as it does after failures that may pass. Waits while the partition is not ready or has too many
        appends outstanding.

        `timeout` is in seconds, over all runs; without one, `run` goes on until the client is closed. Raises:

        - what the context raises, and `Abandoned` if the context gives up or appends nothing;
        - after `timeout` seconds `AppendExpired` (nothing was appended, and nothing will be), or `AppendUnknown` (the
          append was sent and may still commit: await the error's `receipt`);
        - `AppendUnknown`, too, when the client is closed, or the partition stops, after the append was sent;
        - `ExpectationFailed`, `BodyTooLarge`, `TooManyLocks`, `RegistersFull` for what the context built;
        - for the copies that it needs (`Draft.need`) `CopiesUnproved`, if it was appended and they are not proved in
          time, and `UnsupportedVersion`;
        - `ClientAhead`, `Closed`, or what else stopped the partition; `UnknownPartition`; `BadOption` for an invalid
          argument.
        """
        self._check_run(context, timeout)
        return await self._running.run(self._appends_of(partition, args), context, args, timeout)

    def submit(
        self,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Submission:
        """Run a context as `run` does, in a task of its own; return its `Submission` at once.

        Raises at once `Overloaded` at `ClientSettings.submissions_max` unfinished submissions, `BadOption`,
        `UnknownPartition`, and `Closed`. Awaiting the submission raises what `run` raises.
        """
        self._check_run(context, timeout)
        if len(self._submitted) >= self._settings.submissions_max:
            raise Overloaded(
                f"{len(self._submitted)} submissions are unfinished, as many as ClientSettings.submissions_max allows: "
                "await some of them first"
            )
        appends = self._appends_of(partition, args)
        self._submissions += 1
        number = self._submissions
        task = asyncio.get_running_loop().create_task(
            self._running.run(appends, context, args, timeout), name=f"client: submission {number}"
        )
        self._submitted[number] = task
        task.add_done_callback(lambda _: self._submitted.pop(number, None))
        return Submission(task, lambda: self.failure)

    async def once(
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

            done = await log.once(idempotency_key, withdraw, 1, 30, request=body, partition=0, timeout=10)

        The client's view keeps the keys of a partition together with what the contexts returned, as JSON
        (`SqlView.once_table`). A context that abandons or raises leaves the key free. `request`, such as the body of
        the request, is compared with that of the first time: the same key for another request raises `OnceDiffers`.

        `timeout` is in seconds. Raises what `run` raises, `ViewUnavailable` when the view's database can't be asked for
        the key, and `BadOption` for an invalid key, a view that keeps no keys, a context that calls `Draft.need`, and a
        returned value that is no JSON or too large. After `AppendUnknown` call again with the same key: the answer says
        what became of the append.
        """
        self._check_run(context, timeout)
        view, text, digest = once_view(self._choices.view), checked_once_key(key), digest_of_request(request)
        appends = self._appends_of(partition, args)
        requests = self._started().parts.requests
        return await run_once(self._running, view, requests, appends, text, digest, context, args, timeout)

    def _check_run(self, context: Context, timeout: float | None) -> None:
        if not callable(context):
            raise wrong("context", context, "a function or coroutine function, not called: run(context, *args)")
        check_loop(self._open().loop)
        checked_seconds("timeout", timeout)

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
        copies: int = _NONE,
        zones: int = _NONE,
    ) -> Receipt:
        """Append one transaction, without a context; return its receipt at once. `await` the receipt, or not.

        ::

            receipt = await log.append(b"1 100", partition=0, locks=[Lock("account", 1)])

        `data` is bytes, or what the client's serializer encodes; `header` an integer of 32 bits, signed.
        `high_water_mark` is the id up to which the application had applied the log when it built the transaction, by
        which its locks are judged; by default, what this client has applied.

        With `copies` or `zones` the append succeeds only once so many engaged replicas, in so many zones, have synced
        it. Awaiting the receipt raises `InsufficientReplicas`, with nothing written, if those of the present session
        can't be as many; `CopiesUnproved` if the append is in the log and the proof can't be had any more; and
        `UnsupportedVersion`, with nothing written, if the server does not know such appends (`append` raises it while
        mounted there).

        Never waits, and tries nothing again. Awaiting the receipt raises `LockConflict`, `ExpectationFailed`,
        `RegistersFull`, `AppendFailed` (not in the log, and never will be: append again), `AppendUnknown`, and so on.
        Refused at once, with `BadOption`, `BodyTooLarge`, `TooManyLocks`, `UnknownPartition`, `Closed`, or the error
        that stopped the partition, is what is invalid; with `Overloaded` what is too much at a time: `await
        log.ready(partition)` waits for room.
        """
        appends = self._appends_of(partition, (data,))
        if self._encode is not None:
            data = self._encode(data)
        limits = self._settings.limits
        body = checked_body(data, limits)
        if header or type(header) is not int:
            checked_header(header)
        if high_water_mark is not None:
            checked_id("high_water_mark", high_water_mark)
        lock_bytes = joined(locks, limits) if locks or (type(locks) is not tuple and locks is not None) else b""
        checked = operations(expectations, changes) if expectations or changes else ()
        # By identity, not by truth: None or False for a number is a mistake, which would silently ask for nothing.
        needs = None if copies is _NONE and zones is _NONE else checked_needs(copies, zones)
        return appends.append(body, header, high_water_mark, lock_bytes, checked, needs)

    def append_group(
        self,
        group: Group,
        partition: PartitionId | None = None,
        *,
        high_water_mark: TransactionId | None = None,
        expectations: Iterable[Expectation] = (),
        changes: Iterable[Change] = (),
        copies: int = _NONE,
        zones: int = _NONE,
    ) -> Receipt:
        """Append many transactions that commit as one, all or none; return their receipt at once.

        Several times as fast as a context for each transaction.

        ::

            receipt = await log.append_group(Group.of([b"1 100", b"2 50"]), partition=0)
            receipt.ids  # one after the other

        The bodies go into the log as they are, without the client's serializer. `expectations`, `changes`, `copies` and
        `zones`, as in `append`, are of the whole group. Raises what `append` raises, and `BodyTooLarge` for a group
        past `Limits`.
        """
        appends = self._appends_of(partition, (group,))
        if not isinstance(group, Group):
            raise wrong("group", group, "make it with Group.of(bodies)")
        group.check(self._settings.limits)
        if high_water_mark is not None:
            checked_id("high_water_mark", high_water_mark)
        needs = checked_needs(copies, zones)
        return appends.append_group(group, high_water_mark, operations(expectations, changes), needs)

    async def ready(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> None:
        """Wait until the partition is mounted and has room for another append. Raises `DeadlineExceeded` after
        `timeout` seconds, and the error that stopped the partition, such as `ClientAhead`."""
        appends = self._appends_of(partition)
        deadline_s = deadline_in(timeout, appends.loop)
        try:
            await appends.admission.wait(deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"partition {appends.partition} was not ready within {timeout:g} s: {appends.why_it_waits()}"
            ) from appends.trouble

    async def flush(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> TransactionId:
        """Wait until the fate of every append made to the partition so far is known; their receipts have it.

        Returns the partition's committed high-water mark at that time. Raises `DeadlineExceeded` after `timeout`
        seconds, and the error that stopped the partition.
        """
        appends = self._appends_of(partition)
        deadline_s = deadline_in(timeout, appends.loop)
        try:
            return await appends.flush(deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"partition {appends.partition} was not flushed within {timeout:g} s: {appends.why_it_waits()}"
            ) from appends.trouble

    async def producer(
        self, name: str, *, partition: PartitionId | None = None, timeout: float | None = None
    ) -> Producer:
        """Open an idempotent producer of the partition, and fence the one that was opened under this name before.

        ::

            producer = await log.producer("billing", partition=0)
            await producer.append(producer.last_sequence + 1, b"invoice 17")

        Raises `BadOption` for an invalid name, `RegistersFull`, and `DeadlineExceeded` after `timeout` seconds (default
        `ClientSettings.answer_s_max`).
        """
        parts = self._open()
        check_loop(parts.loop)
        return await open_producer(name, parts, self._appends_of(partition), self._answer_s(timeout))

    # ------------------------------------------------------------------ leases

    def lease(self, name: str, *, partition: PartitionId = 0, duration_s: float = 5.0, note: bytes = b"") -> Lease:
        """Return a `Lease`: a name that one holder at a time has, granted by the owner of the partition.

        ::

            async with log.lease("billing") as lease:  # waits until no other process has it
                while lease.held:
                    ...

        `duration_s`, 1 to 60 seconds, is for how long it is held without being renewed, and others wait after the death
        of a holder; the same for all that ask for the name. `note` is for whoever lists the leases. Raises `BadOption`,
        `UnknownPartition`, `Closed`.
        """
        checked, partitions = checked_lease(name, duration_s, note), self._started()
        usable, parts = partitions.usable(partition), partitions.parts
        return Lease(parts, usable, *checked, parts.identity.next_holder())

    async def list_leases(
        self, prefix: str = "", *, partition: PartitionId = 0, timeout: float | None = None
    ) -> list[ListedLease]:
        """Return the leases of the partition that anybody holds and whose names begin with `prefix`. Raises
        `DeadlineExceeded` after `timeout` seconds (default `ClientSettings.answer_s_max`)."""
        if not isinstance(prefix, str):
            raise wrong("prefix", prefix, "a lease's name is text")
        requests, usable, timeout_s = self._asked(partition, timeout)
        _, listed = await requests.hold_leases(usable, 0, DURATION_MS_MIN / 1000, [], prefix, timeout_s)
        return listed

    def group(
        self,
        name: str,
        *,
        view: WorkedView | None = None,
        handler: Handler | None = None,
        lease_s: float = 5.0,
        progress_s_max: float = 30.0,
    ) -> WorkerGroup:
        """Return a `WorkerGroup`: processes that join it share the partitions, one worker each at a time.

        `view` is a `SqlView`: each transaction counts exactly once in its database. Or `handler` is a coroutine
        function that is given each transaction in order, at least once. `lease_s`, 1 to 60 seconds, is for how long
        others wait for a member that has died or hangs. All members give the same. A transaction, a view's run or a
        take-over that takes longer than `progress_s_max` seconds is told as trouble in `WorkerGroup.health`. Raises
        `BadOption`, `Closed`.
        """
        checked_group(name, view, handler, lease_s, progress_s_max)
        parts = self._open()
        check_loop(parts.loop)
        return WorkerGroup(
            self._started(), name, view=view, handler=handler, lease_s=lease_s, progress_s_max=progress_s_max,
            holder=parts.identity.next_holder(),
        )  # fmt: skip

    # ------------------------------------------------------------------ marks

    def applied(self, partition: PartitionId | None = None) -> TransactionId:
        """Return the client high-water mark: the last id that this client's view has applied; -1 for none. Without a
        view, the last id that it was fed, or the committed high-water mark at which its feed began."""
        return self._appends_of(partition).mark.value

    async def wait_applied(
        self, id: TransactionId, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> None:
        """Wait until this client's view has applied `id`. Raises `DeadlineExceeded` after `timeout` seconds, and the
        error that stopped the partition."""
        appends = self._appends_of(partition)
        checked_id("id", id)
        deadline_s = deadline_in(timeout, appends.loop)
        try:
            await appends.mark.wait(id, deadline_s)
        except TimeoutError:
            trouble = appends.trouble or appends.mark.trouble
            raise DeadlineExceeded(
                f"transaction {id} of partition {appends.partition} was not applied within {timeout:g} s: "
                f"{appends.lag()}"
            ) from trouble

    async def high_water_mark(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> int:
        """Return the partition's committed high-water mark; -1 for an empty partition. Proved by the owner after the
        request arrived. Raises `DeadlineExceeded` after `timeout` seconds (default `ClientSettings.answer_s_max`)."""
        requests, usable, timeout_s = self._asked(partition, timeout)
        return await requests.high_water_mark(usable, timeout_s)

    async def high_water_marks(
        self, partitions: Iterable[PartitionId], *, timeout: float | None = None
    ) -> dict[PartitionId, TransactionId]:
        """Return the committed high-water marks of several partitions, requested at the same time. Raises what
        `high_water_mark` raises, for the first partition that fails."""
        named = list(partitions)
        marks = await results_of([self.high_water_mark(partition, timeout=timeout) for partition in named])
        return dict(zip(named, marks, strict=True))

    async def wait_committed(
        self, above: Mapping[PartitionId, TransactionId], *, timeout: float
    ) -> dict[PartitionId, TransactionId]:
        """Wait until one of these partitions has committed a transaction above the id given for that partition.

        A server may end the wait before `timeout`: after its `ServerSettings.read_wait_s_max`, 30 seconds by default.

        Returns the committed high-water marks of those that answered first and have moved on; an empty dict after
        `timeout` seconds, or at once if no partition is given. Raises `DeadlineExceeded` when an owner has not answered
        within `timeout` plus `ClientSettings.answer_s_max` seconds.
        """
        wait_s = checked_seconds("timeout", timeout) or 0.0
        if not above:
            return {}
        marks = await first_results_of(
            {partition: self._committed_above(partition, after, wait_s) for partition, after in above.items()}
        )
        return {partition: mark for partition, mark in marks.items() if mark > above[partition]}

    async def _committed_above(self, partition: PartitionId, after: TransactionId, wait_s: float) -> TransactionId:
        # One byte, without bodies: of the answer, only the committed high-water mark is used.
        request = Read(
            first=checked_id("id", after) + 1, bytes_max=1, wait_ms=int(wait_s * 1000), with_data=0, after_time_us=0
        )
        timeout = wait_s + self._settings.answer_s_max
        requests, usable, timeout_s = self._asked(partition, timeout)
        return (await requests.ask(usable, request, Batches, timeout_s, wait_s=wait_s)).committed

    async def register(
        self, key: bytes, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> bytes | None:
        """Return the value of a register; None if the register is absent.

        Proved by the owner after the request arrived. Raises `BadOption` for an invalid key, and `DeadlineExceeded`
        after `timeout` seconds (default `ClientSettings.answer_s_max`).
        """
        requests, usable, timeout_s = self._asked(partition, timeout)
        return await requests.register(usable, checked_key(key), timeout_s)

    async def list_registers(
        self, prefix: bytes = b"", partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> dict[bytes, bytes]:
        """Return the registers whose keys begin with `prefix`, with their values, in the order of their keys.

        In pages of up to 4,096 registers or about 256 KiB, each of one moment and proved by the owner after its request
        arrived. A register that changes meanwhile is returned with its old or its new value. The library's own
        registers are included: keys under `producer/` are producers', under `spark/` Spark sinks', under `group/`
        worker groups'. Raises `BadOption` for an invalid prefix, and `DeadlineExceeded` after `timeout` seconds over
        all pages (default `ClientSettings.answer_s_max`).
        """
        requests, usable, timeout_s = self._asked(partition, timeout)
        return await requests.registers(usable, checked_key(prefix), timeout_s)

    async def health(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> Any:
        """Return the health report of the server that owns the partition: a parsed JSON document.

        Its field `client` has this client's `clock_ahead_s`. Raises `DeadlineExceeded` after `timeout` seconds (default
        `ClientSettings.answer_s_max`).
        """
        requests, usable, timeout_s = self._asked(partition, timeout)
        answer = await requests.ask(usable, Health(), HealthIs, timeout_s)
        document = json.loads(answer.document)
        if isinstance(document, dict):
            document["client"] = {"clock_ahead_s": self.clock_ahead_s}
        return document

    async def trim(
        self, partition: PartitionId, before: TransactionId, fragments: bytes, *, timeout: float | None = None
    ) -> tuple[TransactionId, bool]:
        """Have the storage nodes drop, for good, some of the history below id `before`; repeat until done.

        For `polonaise.admin.trimming.trim`, which verifies the archive first: `fragments` is the fingerprint of the
        verified fragments. Returns the first id that all storage nodes of the session still hold, and whether nothing
        is left to be dropped. Raises `not_archived` when the server has no fragment store, or finds other fragments or
        another log there, `BeyondLog` when `before` is not committed, and `DeadlineExceeded` after `timeout` seconds
        (default `ClientSettings.answer_s_max`).
        """
        requests, usable, timeout_s = self._asked(partition, timeout)
        answer = await requests.ask(usable, TrimLog(before, fragments), LogTrimmed, timeout_s)
        return answer.first, bool(answer.done)

    def trouble(self, partition: PartitionId) -> PolonaiseError | None:
        """Return why a partition is stopped, is not mounted, commits nothing, or why its view does not advance.

        None if nothing is known, or the partition was never used. When disks are full or a quorum is missing, the error
        names the storage nodes. A view that has been applying the same for 5 s counts as trouble, too.
        """
        used = None if self._partitions is None else self._partitions.used.get(partition)
        if used is None:
            return None
        appends = used.appends
        return appends.stopped or appends.trouble or appends.commit_trouble or appends.views_trouble()

    def decode(self, tx: Transaction) -> Any:
        """Return the value of a transaction, decoded by the client's serializer; without one, its data, bytes."""
        return tx.data if self.serializer is None else self.serializer.decode(tx.data)


def partitions_of(log: Log) -> UsedPartitions:
    """Return what a client works with, for other parts of the library. Raises `Closed` before `start`."""
    return log._started()
