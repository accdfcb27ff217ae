"""The `Log` class: the client's public interface to a cluster's log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVarTuple
from uuid import UUID

from polonaise.client.connected import Partitioner
from polonaise.client.discovery import Discovery
from polonaise.client.lease import Lease, checked_lease
from polonaise.client.mounting import Form
from polonaise.client.once import once_view, run_once
from polonaise.client.options import check_options
from polonaise.client.producer import Producer, open_producer
from polonaise.client.protocol.arguments import checked_id, checked_key, checked_seconds, wrong
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
from polonaise.client.readable import ReadableLog
from polonaise.client.receipt import Receipt
from polonaise.client.running import Context, Running, Submission
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View
from polonaise.client.waiting import check_loop, deadline_in, result_of
from polonaise.client.workergroup import WorkerGroup, checked_group
from polonaise.client.workerprogress import Handler, WorkedView
from polonaise.errors import DeadlineExceeded, Overloaded, PolonaiseError
from polonaise.host import Host
from polonaise.host.unawaited import retrieve
from polonaise.terms import BodyForm, PartitionId, Transaction, TransactionId
from polonaise.wire.leases import DURATION_MS_MIN, ListedLease
from polonaise.wire.messages import Batches, Health, HealthIs, LogTrimmed, Read, TrimLog

Ts = TypeVarTuple("Ts")

_NONE: Final = 0
"""The default of `copies` and `zones`."""


class Serializer(Protocol):
    """Converts the application's values into transaction bodies, and back."""

    def encode(self, value: Any) -> bytes:
        """Return the body of a transaction that carries this value."""

    def decode(self, data: bytes) -> Any:
        """Return the value from which `encode` made this body."""


class Log(ReadableLog):
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
        super().__init__(
            host,
            discovery,
            view=view,
            settings=settings or ClientSettings(),
            partitioner=partitioner,
            partitions=partitions,
            # As they travel: unsigned, while the headers that they are compared with may be negative.
            form=Form(bodies, mask & 0xFFFF_FFFF, value & 0xFFFF_FFFF),
            wants=wants,
            topic=topic,
        )
        self._encode = None if serializer is None else serializer.encode
        self._running = Running(host, self._settings, self._encode)
        self._submissions = 0
        self._leases = 0
        self.serializer = serializer
        """The serializer that the log was connected with; None without one."""

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
        view, text, digest = once_view(self._view), checked_once_key(key), digest_of_request(request)
        appends = self._appends_of(partition, args)
        return await run_once(self._running, view, self._requests, appends, text, digest, context, args, timeout)

    def _check_run(self, context: Context, timeout: float | None) -> None:
        if not callable(context):
            raise wrong("context", context, "a function or coroutine function, not called: run(context, *args)")
        self._check_open()
        check_loop(self._loop)
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
        deadline_s = deadline_in(timeout, self._loop)
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
        deadline_s = deadline_in(timeout, self._loop)
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
        self._check_open()
        check_loop(self._loop)
        appends, timeout_s = self._appends_of(partition), self._answer_s(timeout)
        return await open_producer(name, appends, self._requests, self._host, self._encode, self._settings, timeout_s)

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
        checked = checked_lease(name, duration_s, note)
        return Lease(
            self._host, self._requests, self._usable(partition), *checked, self._next_holder(),
            self._lease_keepers, lambda: self.failure,
        )  # fmt: skip

    async def list_leases(
        self, prefix: str = "", *, partition: PartitionId = 0, timeout: float | None = None
    ) -> list[ListedLease]:
        """Return the leases of the partition that anybody holds and whose names begin with `prefix`. Raises
        `DeadlineExceeded` after `timeout` seconds (default `ClientSettings.answer_s_max`)."""
        if not isinstance(prefix, str):
            raise wrong("prefix", prefix, "a lease's name is text")
        readable, timeout_s = self._usable(partition), self._answer_s(timeout)
        _, listed = await self._requests.hold_leases(readable, 0, DURATION_MS_MIN / 1000, [], prefix, timeout_s)
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
        self._check_open()
        check_loop(self._loop)
        return WorkerGroup(
            self, name, view=view, handler=handler, lease_s=lease_s, progress_s_max=progress_s_max,
            holder=self._next_holder(),
        )  # fmt: skip

    def _next_holder(self) -> int:
        """Return a number by which owners know one who holds leases, which no other one has."""
        client_id = self._own_id()
        self._leases += 1
        return client_id << 32 | (self._numbered_above + self._leases) % 2**32

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
        deadline_s = deadline_in(timeout, self._loop)
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
        return await self._requests.high_water_mark(self._usable(partition), self._answer_s(timeout))

    async def high_water_marks(
        self, partitions: Iterable[PartitionId], *, timeout: float | None = None
    ) -> dict[PartitionId, TransactionId]:
        """Return the committed high-water marks of several partitions, requested at the same time. Raises what
        `high_water_mark` raises, for the first partition that fails."""
        named = list(partitions)
        tasks = [asyncio.ensure_future(self.high_water_mark(partition, timeout=timeout)) for partition in named]
        try:
            if tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            failed = [task for task in tasks if task.done() and (task.cancelled() or task.exception() is not None)]
            marks = [result_of(task) for task in (failed or tasks)]
        finally:
            _give_up(tasks)
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
        tasks = {
            asyncio.ensure_future(self._committed_above(partition, after, wait_s)): partition
            for partition, after in above.items()
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            marks = {tasks[task]: result_of(task) for task in done}
        finally:
            _give_up(tasks)
        return {partition: mark for partition, mark in marks.items() if mark > above[partition]}

    async def _committed_above(self, partition: PartitionId, after: TransactionId, wait_s: float) -> TransactionId:
        # One byte, without bodies: of the answer, only the committed high-water mark is used.
        request = Read(
            first=checked_id("id", after) + 1, bytes_max=1, wait_ms=int(wait_s * 1000), with_data=0, after_time_us=0
        )
        timeout = wait_s + self._settings.answer_s_max
        answer = await self._requests.ask(self._usable(partition), request, Batches, timeout, wait_s=wait_s)
        return answer.committed

    async def register(
        self, key: bytes, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> bytes | None:
        """Return the value of a register; None if the register is absent.

        Proved by the owner after the request arrived. Raises `BadOption` for an invalid key, and `DeadlineExceeded`
        after `timeout` seconds (default `ClientSettings.answer_s_max`).
        """
        return await self._requests.register(self._usable(partition), checked_key(key), self._answer_s(timeout))

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
        readable, checked = self._usable(partition), checked_key(prefix)
        return await self._requests.registers(readable, checked, self._answer_s(timeout))

    async def health(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> Any:
        """Return the health report of the server that owns the partition: a parsed JSON document.

        Its field `client` has this client's `clock_ahead_s`. Raises `DeadlineExceeded` after `timeout` seconds (default
        `ClientSettings.answer_s_max`).
        """
        answer = await self._requests.ask(self._usable(partition), Health(), HealthIs, self._answer_s(timeout))
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
        request, timeout_s = TrimLog(before, fragments), self._answer_s(timeout)
        answer = await self._requests.ask(self._usable(partition), request, LogTrimmed, timeout_s)
        return answer.first, bool(answer.done)

    def trouble(self, partition: PartitionId) -> PolonaiseError | None:
        """Return why a partition is stopped, is not mounted, commits nothing, or why its view does not advance.

        None if nothing is known, or the partition was never used. When disks are full or a quorum is missing, the error
        names the storage nodes. A view that has been applying the same for 5 s counts as trouble, too.
        """
        used = self._partitions.get(partition)
        if used is None:
            return None
        appends = used.appends
        return appends.stopped or appends.trouble or appends.commit_trouble or appends.views_trouble()

    def decode(self, tx: Transaction) -> Any:
        """Return the value of a transaction, decoded by the client's serializer; without one, its data, bytes."""
        return tx.data if self.serializer is None else self.serializer.decode(tx.data)


def _give_up(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks; mark the errors of those that are done as seen."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(retrieve)
