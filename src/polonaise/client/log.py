"""The log, as an application sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, TypeVarTuple
from uuid import UUID

from polonaise.client.connected import Partitioner
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
from polonaise.client.waiting import check_loop, retrieve
from polonaise.coordination import Coordinator
from polonaise.errors import (
    DeadlineExceeded,
    Overloaded,
    PolonaiseError,
)
from polonaise.host import Host
from polonaise.terms import BodyForm, PartitionId, Transaction, TransactionId
from polonaise.wire.messages import Batches, Read

Ts = TypeVarTuple("Ts")


class Serializer(Protocol):
    """Turns the application's values into bodies and back."""

    def encode(self, value: Any) -> bytes:
        """The body of a transaction that carries this value."""

    def decode(self, data: bytes) -> Any:
        """The value that `encode` made this body of."""


class Log(ReadableLog):
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
        check_options(
            view=view, settings=settings, serializer=serializer, partitioner=partitioner, partitions=partitions,
            bodies=bodies, wants=wants, header_filter=header_filter,
        )  # fmt: skip
        mask, value = header_filter or (0, 0)
        super().__init__(
            host,
            coordinator,
            view=view,
            settings=settings or ClientSettings(),
            partitioner=partitioner,
            partitions=partitions,
            form=Form(bodies, mask & 0xFFFF_FFFF, value & 0xFFFF_FFFF),
            wants=wants,
        )
        self._running = Running(
            host,
            self._settings.limits,
            serializer.encode if serializer else None,
            (self._settings.retry_s_min, self._settings.retry_s_max),
        )
        self._submissions = 0
        self.serializer = serializer

    # ------------------------------------------------------------------ contexts

    async def run(
        self,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Run `context(tx, *args)` until what it builds is committed; the receipt, whose `value` is what it returned.

        The client high-water mark is taken before the context runs. When another transaction has changed meanwhile
        what the context's locks cover, it runs again as soon as this client has applied that. Waits while the
        partition is not ready or has too many appends outstanding.

        `timeout` is in seconds, over all runs. Raises `Abandoned` if the context gives up, what the context raises, and
        after `timeout` seconds either `AppendExpired` (nothing was appended, nothing will be) or `AppendUnknown` (it
        was sent and may still commit: await the error's `receipt`). Further `ExpectationFailed`, `BodyTooLarge`,
        `TooManyLocks`, `RegistersFull`, `ClientAhead`, `Closed`, and `BadOption` for an argument that cannot be meant.
        Without a timeout it goes on for as long as the client.
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
        """As `run`, but returns at once and goes on behind the caller's back; see `Submission`.

        Raises `Overloaded` when as many submissions as the settings allow are unfinished, `BadOption` for an argument
        that cannot be meant; everything else is the submission's to raise.
        """
        self._check_run(context, timeout)
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

    async def once(
        self,
        key: str | UUID,
        context: Callable[[Draft, *Ts], Any],
        *args: *Ts,
        request: bytes | str | None = None,
        partition: PartitionId | None = None,
        timeout: float | None = None,
    ) -> Once:
        """Run `context(tx, *args)` as `run`, unless that was done under this key before: what was done, either way.

        For requests that bring a key of their own and may come again (`docs/web-services.md`). The client's view keeps
        the keys of a partition with what the contexts returned, as JSON (`SqlView.once_table`); whoever asks at the
        same time waits for the first. A context that abandons or raises leaves the key free. With `request`, such as
        the request's body, the same key for another request raises `OnceDiffers`.

        Raises what `run` raises. After `AppendUnknown` call it again with the same key, which says what became of it.
        """
        self._check_run(context, timeout)
        view, text, asked = once_view(self._view), checked_once_key(key), digest_of_request(request)
        appends = self._appends_of(partition, args)
        return await run_once(self._running, view, self._requests, appends, text, asked, context, args, timeout)

    def _check_run(self, context: Context, timeout: float | None) -> None:
        if not callable(context):
            raise wrong("context", context, "a function or coroutine function, not called: run(context, *args)")
        self._check_open()
        check_loop(self._loop)
        if timeout is not None:
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
    ) -> Receipt:
        """Append one transaction; for those who bring their own loop. Returns at once: `await` the receipt, or not.

        Nothing is tried again: the receipt raises `LockConflict`, `ExpectationFailed`, `AppendFailed` (not in the log
        and never will be; append again) and so on. What cannot be meant or is too large is refused at once:
        `BadOption`, `BodyTooLarge`, `TooManyLocks`, `UnknownPartition`, `Closed`. `high_water_mark` is what the
        transaction was built on; without it, what this client has applied. Never waits: raises `Overloaded` when too
        much is outstanding, and then `await log.ready(partition)` waits for room. All appends of one turn of the loop
        go out together.
        """
        appends = self._appends_of(partition, (data,))
        if self.serializer is not None:
            data = self.serializer.encode(data)
        limits = self._settings.limits
        body = checked_body(data, limits)
        if header or type(header) is not int:
            checked_header(header)
        if high_water_mark is not None:
            checked_id("high_water_mark", high_water_mark)
        held = joined(locks, limits) if locks else b""
        asked = operations(expectations, changes) if expectations or changes else ()
        return appends.append(body, header, high_water_mark, held, asked)

    def append_group(
        self,
        group: Group,
        partition: PartitionId | None = None,
        *,
        high_water_mark: TransactionId | None = None,
        expectations: Iterable[Expectation] = (),
        changes: Iterable[Change] = (),
    ) -> Receipt:
        """As `append`, for many transactions that commit as one: several times as fast as a context for each of them.

        Bodies are in the group as they are to be in the log; the client's serializer is not asked. `expectations` and
        `changes` are the group's. Raises `BodyTooLarge` for a group past `Limits`, `Overloaded` as `append`.
        """
        appends = self._appends_of(partition, (group,))
        if not isinstance(group, Group):
            raise wrong("group", group, "make it with Group.of(bodies)")
        group.check(self._settings.limits)
        if high_water_mark is not None:
            checked_id("high_water_mark", high_water_mark)
        return appends.append_group(group, high_water_mark, operations(expectations, changes))

    async def ready(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> None:
        """Wait until the partition is mounted and has room for another append.

        Raises `DeadlineExceeded` after `timeout` seconds, `ClientAhead`, or what else stopped the partition.
        """
        appends = self._appends_of(partition)
        deadline_s = self._deadline_s(timeout)
        try:
            await appends.admission.take(deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"partition {appends.partition} was not ready within {timeout:g} s: {appends.obstacle()}"
            ) from appends.trouble
        appends.admission.give_back()

    async def flush(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> TransactionId:
        """Wait until the fate of everything appended to the partition so far is known.

        Returns the committed high-water mark then. Raises `DeadlineExceeded` after `timeout` seconds.
        """
        appends = self._appends_of(partition)
        deadline_s = self._deadline_s(timeout)
        try:
            return await appends.flush(deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"partition {appends.partition} was not flushed within {timeout:g} s: {appends.obstacle()}"
            ) from appends.trouble

    async def producer(
        self, name: str, *, partition: PartitionId | None = None, timeout: float | None = None
    ) -> Producer:
        """Open an idempotent producer of the partition; whoever had it open is fenced.

        Raises `BadOption` for a name that is empty or longer than a register's key, `DeadlineExceeded` after
        `timeout` seconds (default `answer_s_max`).
        """
        self._check_open()
        check_loop(self._loop)
        settings = self._settings
        encode = self.serializer.encode if self.serializer is not None else None

        def check(data: Any) -> bytes:
            return checked_body(data if encode is None else encode(data), settings.limits)

        return await open_producer(
            name,
            self._appends_of(partition),
            self._requests,
            self._host,
            check,
            settings.limits,
            (settings.retry_s_min, settings.retry_s_max),
            self._answer_s(timeout),
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
        checked_id("id", id)
        deadline_s = self._deadline_s(timeout)
        try:
            await appends.mark.wait(id, deadline_s)
        except TimeoutError:
            trouble = appends.trouble or appends.mark.trouble
            raise DeadlineExceeded(
                f"transaction {id} of partition {appends.partition} was not applied within {timeout:g} s: "
                f"{appends.lag()}"
            ) from trouble

    async def high_water_mark(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> int:
        """The committed high-water mark, proved by the owner after it was asked. -1 for an empty partition.

        Raises `DeadlineExceeded` after `timeout` seconds (default `answer_s_max`).
        """
        return await self._requests.high_water_mark(self._readable(partition), self._answer_s(timeout))

    async def high_water_marks(
        self, partitions: Iterable[PartitionId], *, timeout: float | None = None
    ) -> dict[PartitionId, TransactionId]:
        """The committed high-water marks of several partitions, asked for at the same time; as `high_water_mark`."""
        asked = {
            partition: asyncio.ensure_future(self.high_water_mark(partition, timeout=timeout))
            for partition in partitions
        }
        try:
            marks = await asyncio.gather(*asked.values())
        finally:
            for task in asked.values():
                task.cancel()
                task.add_done_callback(retrieve)
        return dict(zip(asked, marks, strict=True))

    async def wait_committed(
        self, above: Mapping[PartitionId, TransactionId], *, timeout: float
    ) -> dict[PartitionId, TransactionId]:
        """Wait until something above the id given for it is committed in one of these partitions.

        Returns what is known to be committed in those that answered first; nothing after `timeout` seconds.
        """
        wait_s = checked_seconds("timeout", timeout) or 0.0
        asked = {
            asyncio.ensure_future(self._committed_above(self._readable(partition), after, wait_s)): partition
            for partition, after in above.items()
        }
        try:
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            found = {asked[task]: task.result() for task in done}
        finally:
            for task in asked:
                task.cancel()
                task.add_done_callback(retrieve)
        return {partition: mark for partition, mark in found.items() if mark > above[partition]}

    async def _committed_above(self, partition: PartitionId, after: TransactionId, wait_s: float) -> TransactionId:
        request = Read(
            first=checked_id("id", after) + 1, bytes_max=1, wait_ms=int(wait_s * 1000), with_data=0, after_time_us=0
        )
        timeout = wait_s + self._settings.answer_s_max
        answer = await self._requests.ask(partition, request, Batches, timeout, wait_s=wait_s)
        return answer.committed

    async def register(
        self, key: bytes, partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> bytes | None:
        """The value of a register, proved by the owner after it was asked; None if it is absent.

        Raises `DeadlineExceeded` after `timeout` seconds (default `answer_s_max`).
        """
        return await self._requests.register(self._readable(partition), checked_key(key), self._answer_s(timeout))

    async def list_registers(
        self, prefix: bytes = b"", partition: PartitionId | None = None, *, timeout: float | None = None
    ) -> dict[bytes, bytes]:
        """The registers whose keys begin with `prefix`, with their values, in the order of their keys.

        Proved by the owner after it was asked, in pages of up to 4,096 registers or 256 KiB: what one page holds is all
        of one moment. Of what changes between two pages it has the one or the other value; a register that is there all
        the time is in it, and none is twice. Those of the library are there too: keys that begin with `producer/` are
        its producers', with `spark/` its Spark sinks'. Raises `DeadlineExceeded` after `timeout` seconds over all pages
        (default `answer_s_max`).
        """
        readable, checked = self._readable(partition), checked_key(prefix)
        return await self._requests.registers(readable, checked, self._answer_s(timeout))

    async def health(self, partition: PartitionId | None = None, *, timeout: float | None = None) -> Any:
        """How the server that owns the partition is, as it says itself: a JSON document, read.

        Raises `DeadlineExceeded` after `timeout` seconds (default `answer_s_max`).
        """
        document = await self._requests.health(self._readable(partition), self._answer_s(timeout))
        return json.loads(document)

    async def trim(
        self, partition: PartitionId, before: TransactionId, fragments: bytes, *, timeout: float | None = None
    ) -> tuple[TransactionId, bool]:
        """Have the storage nodes drop, for good, some of what lies below `before`; ask again until it is done.

        For `polonaise.admin.trimming.trim`, which verifies the archive first: `fragments` is the fingerprint of the
        fragments that were verified. Returns the first id that all storage nodes of the session still hold, and
        whether nothing is left to be dropped. Raises `NotArchived` when the server does not find the same, `BeyondLog`
        when `before` is not committed, `DeadlineExceeded` after `timeout` seconds (default `answer_s_max`).
        """
        told = await self._requests.trim(self._readable(partition), before, fragments, self._answer_s(timeout))
        return told.first, bool(told.done)

    def trouble(self, partition: PartitionId) -> PolonaiseError | None:
        """Why a mounted partition is not ready, commits nothing, or its view gets no further, at the moment.

        With full disks, or without a quorum, it names the storage nodes, as the server that owns the partition does. A
        view that has been applying the same for 5 s is told, too. None if all is well, or the partition was never used.
        """
        held = self._partitions.get(partition)
        if held is None:
            return None
        appends = held.appends
        return appends.stopped or appends.trouble or appends.hindrance or appends.views_trouble()

    def decode(self, tx: Transaction) -> Any:
        """The value of a transaction, by the client's serializer; its bytes without one."""
        return tx.data if self.serializer is None else self.serializer.decode(tx.data)
