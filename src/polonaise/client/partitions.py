"""The partitions that a client uses: each is mounted at its first use, and fed to the view.

A view is fed strictly by id, again after a failure, and no faster than it can apply: bytes of the feed are given back
to the server as credit once the view has applied them, so a slow view stops its own feed, and no queue grows without
bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from polonaise.applicationcode import ordinary, task_here
from polonaise.client.appends import PartitionAppends, Receipt
from polonaise.client.bodies import BodyFetch, BodyFetcher
from polonaise.client.clientparts import ClientParts, Identity, Lifetime
from polonaise.client.discovery import Discovery
from polonaise.client.links import Links
from polonaise.client.mounting import Form, Mounting
from polonaise.client.protocol.arguments import INT64_MAX, wrong
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Change, Expectation, operations
from polonaise.client.protocol.group import Group
from polonaise.client.protocol.subscription import ahead_of_log
from polonaise.client.requests import Requests
from polonaise.client.routes import Routes
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View, gone_back, takes_nothing, takes_own, tell_log, watch_view
from polonaise.client.waiting import AppliedMark, Applying, Asking, check_loop, end, own_loop
from polonaise.coordination.topics import log_key_of, where_of
from polonaise.errors import (
    BadOption,
    Closed,
    Forked,
    PolonaiseError,
    UnknownPartition,
    ViewFailed,
    ViewUnavailable,
    ViewUnfit,
    fresh,
    trace_of,
)
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.redaction import redacted_text
from polonaise.terms import NO_TRANSACTION, BodyForm, ChangeKind, OwnKind, PartitionId, Transaction, TransactionId
from polonaise.wire.appends import CHANGE

_log = logging.getLogger("polonaise.client")

T = TypeVar("T")

Partitioner: TypeAlias = Callable[[tuple[Any, ...], int], PartitionId]
"""A function that chooses the partition of a call without `partition=`: `partitioner(given, partition_count)`.

`given` is a tuple: the arguments of the context; the data given to `append`, or the group given to `append_group`,
alone; empty for every other method, such as `read` or `flush`. What the function raises for an empty `given` is raised
as `BadOption`, which asks for `partition=`.

It must return the same partition every time for the same piece of state: a lock means nothing outside its partition;
and `partition_count` rises when a topic grows. Here it does not, and the first argument of each context is an account's
number::

    polonaise.connect(address, partitioner=lambda given, count: given[0] % count)
"""


class Choices(NamedTuple):
    """What an application has chosen; see `Log`."""

    settings: ClientSettings
    encode: Callable[[Any], bytes] | None
    """The serializer's; None without one."""
    topic: str
    partitioner: Partitioner | None
    view: View | RunView | None
    partitions: Collection[PartitionId] | None
    form: Form
    wants: Callable[[int], bool] | None


_A_MARK: Final = "the id of the last transaction that was applied, -1 for none"


class MarkOnly:
    """Takes the feed of a client without a view, which needs the fates of its appends: moves the mark, drops
    batches."""

    form = Form(BodyForm.LAZY)
    begins_by = ""

    def __init__(self, appends: PartitionAppends, requests: Requests) -> None:
        self._appends = appends
        self._mark = appends.mark
        self._requests = requests
        self.mounting: Mounting

    async def begin(self) -> TransactionId:
        """Return the committed high-water mark, after which the feed starts: what is in the log nobody needs."""
        mark = await self._requests.high_water_mark(self._appends.partition, None, self._report)
        self._mark.reach(mark)
        return mark

    def _report(self, error: PolonaiseError) -> None:
        self._appends.trouble = error

    def offer(self, batch: Batch) -> None:
        self._mark.reach(batch.last)
        self.mounting.taken(batch.length)


class Applier:
    """Applies one partition's feed to the view: one transaction at a time, or in runs for a view with `apply_run`.

    The view's own mark (`_view_mark`) is the last transaction that the view has applied. The client's (`_mark`) may be
    further on: it passes over the library's own transactions. Where a view stands, the view alone decides: it is asked
    after each failure, and a mark below the last one has the feed start again from there.
    """

    begins_by = "the view to tell its high-water mark"

    def __init__(
        self,
        parts: ClientParts,
        view: View | RunView,
        partition: PartitionId,
        mark: AppliedMark,
        bodies: BodyFetcher,
        form: Form,
    ) -> None:
        self._random = parts.host.random
        self._requests = parts.requests
        self._view = view
        self._partition = partition
        self._mark = mark
        self._bodies = bodies
        self._settings = settings = parts.settings
        self._backoff = Backoff(settings.retry_s_min, settings.apply_retry_s_max)
        self._queue: deque[tuple[Batch, BodyFetch | None]] = deque()
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._singly = range(0)
        """The ids of the run that failed last: these transactions are given to the view one by one."""
        self._view_mark = NO_TRANSACTION
        """What the view last named, or reached by applying."""
        self._own = takes_own(view)
        self._to_be_asked = False
        self._was_away = False
        """Whether the view was away when it was to be asked."""
        self.form = form
        self.mounting: Mounting

    async def begin(self) -> TransactionId:
        mark = await self._ask_mark()
        self._mark.trouble = None
        self._view_mark = mark
        self._mark.reach(mark)
        return mark

    def offer(self, batch: Batch) -> None:
        # Bodies are requested now and awaited when the batch is applied: the requests run ahead of the view.
        fetch = None if batch.has_data else self._bodies.begin(batch, self._mark.value)
        self._queue.append((batch, fetch))
        self._arrived.set()

    async def apply_all(self) -> None:
        """Apply the batches that arrive, until cancelled; run as a task. A `PolonaiseError` stops the partition."""
        apply = self._apply_together if hasattr(self._view, "apply_run") else self._apply_each
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                if self._to_be_asked:
                    await self._ask_again()
                while self._queue:
                    await apply()
                    self._give_back()
                    await asyncio.sleep(0)  # a view of plain functions never waits: other tasks need their turn
            except PolonaiseError as error:
                self.mounting.stop(error)
                return

    def look(self, error: ViewUnavailable | ViewFailed | None) -> None:
        """Have the view asked for its mark first: it has gone back, or is away, as `error` says. The task that applies
        asks, because a mark that was asked for while a run was applied is no news."""
        if error is not None:
            self._note(error)
            self._was_away = True
        self._to_be_asked = True
        self._arrived.set()

    async def _ask_again(self) -> None:
        was_away, told, before = self._was_away, self._mark.trouble, self._view_mark
        self._to_be_asked = self._was_away = False
        await self._follow_view()
        if (was_away or self._mark.trouble is not told) and self._view_mark == before:
            self._mark.trouble = None

    def _give_back(self) -> None:
        # By the mark, not by what was just applied: the view may have taken a part, or be far beyond.
        queue, mark = self._queue, self._mark.value
        while queue and queue[0][0].last <= mark:
            self.mounting.taken(queue.popleft()[0].length)

    async def _apply_each(self) -> None:
        here, (batch, fetch) = task_here(), self._queue[0]
        bodies = None if fetch is None else await fetch.bodies()
        apply, reach = cast(View, self._view).apply, self._mark.reach
        for tx in self._transactions(batch, bodies):
            try:
                applied = apply(tx)
                if applied is not None:
                    await self._until_done(applied, Applying(tx.id, tx.id, self._loop.time()))
            except BaseException as raised:  # noqa: BLE001 - the application's own code; told to the application
                # The batch stays in the queue: the mark decides where it is taken up again.
                await self._failed(tx.id, ordinary(raised, "the view", here))
                return
            self._view_mark = tx.id
            reach(tx.id)  # at once, because contexts wait for single ids, and the rest of the batch may take long
        # The batch may end with the library's own transactions, which have no other sign of being passed.
        if batch.last > self._mark.value:
            reach(batch.last)
        self._succeeded()

    async def _apply_together(self) -> None:
        run, through = await self._next_run()
        if not run:  # nothing but the library's own transactions
            self._mark.reach(through)
            return
        here = task_here()
        try:
            applied: Any = cast(RunView, self._view).apply_run(run)
            if hasattr(applied, "__await__"):
                applied = await self._until_done(applied, Applying(run[0].id, run[-1].id, self._loop.time()))
            if not isinstance(applied, int) or not NO_TRANSACTION <= applied <= INT64_MAX:
                raise wrong(f"the view's apply_run(run of partition {self._partition})", applied, _A_MARK)
            reached: TransactionId = applied
        except BaseException as raised:  # noqa: BLE001 - the application's own code; told to the application
            error = ordinary(raised, "the view", here)
            if len(run) == 1 or isinstance(error, ViewUnavailable | ViewUnfit):
                await self._failed(run[0].id, error)
            else:
                # Which transaction can't be applied is not known, so none is reported to `failed`. Given one by one,
                # those before it are applied, and it alone is reported. The mark is asked for because a part of the
                # run may have been applied.
                _log.info("the view failed on a run from %d of partition %d: %r", run[0].id, self._partition, error)
                singly = range(self._mark.value + 1, run[-1].id + 1)
                await self._follow_view()
                self._singly = singly  # only now: a view that goes back with each failure would never be given one
            return
        before = self._view_mark
        await self._moved_to(reached)
        # Only then: after a mark within the run come transactions that the view still needs.
        if self._mark.value == run[-1].id:
            self._mark.reach(through)
        if reached >= run[0].id:
            self._succeeded()
        else:
            if reached == before:
                self._note(takes_nothing(self._partition, run[0].id, reached))
            await self._pause()  # the view took nothing, or went back: at once, it would mostly do the same again

    async def _until_done(self, doing: Awaitable[T], what: Applying | Asking) -> T:
        """Await what the view is doing, of which error messages and `Log.trouble` tell meanwhile."""
        self._mark.applying = what
        try:
            return await doing
        finally:
            self._mark.applying = None

    async def _next_run(self) -> tuple[list[Transaction], TransactionId]:
        """Return the next transactions for the view, within the bounds of a run, and the mark once they are applied.
        The mark may be above the last id, by the library's own transactions. Bodies are waited for only while the run
        is empty."""
        settings, through = self._settings, self._mark.value
        count_max = 1 if through + 1 in self._singly else settings.run_count_max
        run: list[Transaction] = []
        size = 0
        for batch, fetch in tuple(self._queue):  # a copy: batches arrive while bodies are awaited
            bodies = None
            if fetch is not None:
                if run and not fetch.done:
                    break
                bodies = await fetch.bodies()
            for tx in self._transactions(batch, bodies):
                size += len(tx.data)
                if run and size > settings.run_bytes_max:  # the first is always taken, however large
                    return run, through
                run.append(tx)
                through = tx.id
                if len(run) == count_max:
                    return run, through
            through = max(through, batch.last)
        return run, through

    def _transactions(self, batch: Batch, bodies: dict[TransactionId, bytes] | None) -> Iterator[Transaction]:
        """Return the transactions of a batch above the client's mark; `bodies` has their data if the batch has none."""
        if bodies is None:
            return batch.transactions(self._mark.value, own=self._own)
        return _with_bodies(batch, bodies, self._mark.value, self._own)

    def _succeeded(self) -> None:
        self._backoff.reset()
        self._mark.trouble = None

    async def _failed(self, transaction: TransactionId, error: Exception) -> None:
        """Report the failure, pause, ask the view for its mark, and go on from there. The mark may have changed: by the
        failed transaction, by another process, or by a restored backup. Raises the failure itself if it is `ViewUnfit`,
        and as `_ask_mark`."""
        if isinstance(error, ViewUnfit):
            raise error
        if isinstance(error, ViewUnavailable):
            self._note(error)
        else:
            await self._report(transaction, error)
        await self._pause()
        await self._follow_view()

    async def _report(self, transaction: TransactionId, error: Exception) -> None:
        text = (
            f"the view failed on transaction {transaction} of partition {self._partition}: {redacted_text(error, repr)}"
        )
        _log.warning("%s", text)
        self._mark.trouble = ViewFailed(text)
        here = task_here()
        try:
            reported = self._view.failed(self._partition, transaction, error)
            if reported is not None:
                await reported
        except BaseException as raised:  # noqa: BLE001 - the application's own code; logged
            trouble = ordinary(raised, "the view", here)
            what, where = redacted_text(trouble, repr), f"on {transaction} of partition {self._partition}"
            _log.error("the view's `failed` itself failed, %s: %s", where, what, exc_info=trace_of(trouble))

    def _note(self, error: ViewUnavailable | ViewFailed) -> None:
        """Show in `Log.trouble` that the view can't go on; log it once."""
        if self._mark.trouble is None or self._mark.trouble.text != error.text:
            _log.warning("partition %d waits for its view: %s", self._partition, error)
        self._mark.trouble = error

    async def _follow_view(self) -> None:
        await self._moved_to(await self._ask_mark())

    async def _moved_to(self, mark: TransactionId) -> None:
        """Go on from the mark that the view named. Raises `ClientAhead` for one that the log does not reach."""
        # Back compared with its own mark. Compared with the client's, which passes over the library's own transactions,
        # a view that has not moved would seem to have gone back.
        before, self._view_mark = self._view_mark, mark
        if mark < before:
            self._note(gone_back(self._partition, before, mark))
            self._go_back(mark)
        elif mark > self._mark.value:
            if mark > self.mounting.received:  # as another process may have applied it; or the log lacks it
                end = await self._requests.high_water_mark(self._partition, None)
                if mark > end:
                    raise ahead_of_log(self._partition, mark, end)
            self._mark.trouble = None
            self._mark.reach(mark)

    def _go_back(self, mark: TransactionId) -> None:
        """Have everything above `mark` fed again: the view lost what it had applied."""
        self._mark.value = mark
        self._singly = range(0)  # or all that is fed again would come one by one, each in an SQL transaction of its own
        # Dropped, because the new feed brings these batches again. Their bytes are given back before the rewind, whose
        # mount asks for the credit that is free then.
        dropped, self._queue = self._queue, deque()
        for batch, _ in dropped:
            self.mounting.taken(batch.length)
        self.mounting.rewind(mark)

    async def _ask_mark(self) -> TransactionId:
        """Ask the view for its mark until it answers. Raises `ViewUnfit`, `Forked`, and `BadOption` for no mark."""
        logged, here = "", task_here()
        while True:
            try:
                answer: Any = self._view.high_water_mark(self._partition)
                if hasattr(answer, "__await__"):
                    answer = await self._until_done(answer, Asking(self._loop.time()))
                mark = answer
            except (ViewUnfit, Forked):
                raise  # asking again would not help
            except ViewUnavailable as error:
                self._note(error)
            except BaseException as raised:  # noqa: BLE001 - the application's own code; asked until it answers
                trouble = ordinary(raised, "the view", here)
                what = redacted_text(trouble, repr)
                text = f"the view did not return its high-water mark of partition {self._partition}: {what}"
                if text != logged:
                    _log.error("%s", text, exc_info=trace_of(trouble))
                logged, self._mark.trouble = text, ViewFailed(text)
            else:
                if not isinstance(mark, int) or not NO_TRANSACTION <= mark <= INT64_MAX:
                    raise wrong(f"the view's high_water_mark({self._partition})", mark, _A_MARK)
                return mark
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._backoff.pause_s(self._random.random()))


def _with_bodies(
    batch: Batch, bodies: dict[TransactionId, bytes], after: TransactionId, own: bool
) -> Iterator[Transaction]:
    """Yield the transactions above `after` of a batch without data, which is in `bodies` by id, or else empty."""
    partition, time_us = batch.partition, batch.commit_time_us
    rows = zip(batch.headers, batch.client_ids, batch.generations, batch.sequences, strict=True)
    skipped = max(0, after + 1 - batch.first)
    for id, (header, client, generation, sequence) in islice(enumerate(rows, batch.first), skipped, None):
        if generation >= 0 or own:
            yield Transaction(partition, id, header, bodies.get(id, b""), time_us, client, generation, sequence)


class UsedPartition(NamedTuple):
    appends: PartitionAppends
    mounting: Mounting


class UsedPartitions:
    """The partitions that one client uses, of those that its topic has."""

    def __init__(self, parts: ClientParts, choices: Choices, count: int) -> None:
        self.parts = parts
        self._life = parts.life
        self._choices = choices
        self.count = count
        """The number of partitions of the topic, or of the log's own."""
        self.used: dict[PartitionId, UsedPartition] = {}
        self._appliers: dict[PartitionId, Applier] = {}
        parts.routes.grown = self._grow
        parts.identity.given = self._identify

    async def start(self) -> None:
        """Begin to mount those that the application has chosen; by default all if there is a view."""
        parts, partitions = self.parts, self._choices.partitions
        self._life.tasks += await parts.routes.start()
        if parts.identity.without is not None:
            _log.warning("this client can read only, because it was given no id: %s", parts.identity.without)
            self._life.tasks.append(parts.host.spawn(parts.identity.keep_asking(), "client: ask for an id"))
        if partitions is None:
            partitions = range(self.count) if self._choices.view is not None else ()
        for partition in partitions:
            self.appends_of(partition)

    def _identify(self) -> None:
        identity = self.parts.identity
        for partition in self.used.values():
            partition.appends.identify(identity.client_id, identity.numbered_above)

    def _grow(self, count: int) -> None:
        """Take note that the topic has more partitions, which the view begins with unless it was given a selection."""
        before, self.count, life = self.count, count, self._life
        if life.closed or life.failure is not None or self._choices.view is None:
            return
        if self._choices.partitions is None:
            for partition in range(before, count):
                self.appends_of(partition)

    async def close(self, submitted: Collection[asyncio.Task[Any]]) -> None:
        """End what is waited for, the tasks, with those of submissions, and the connections."""
        # First of all: what waits is told why it ends, before the tasks that would have served it are cancelled.
        self._stop(Closed("this client was closed: connect a new one"))
        submissions = list(submitted)
        if submissions:
            await asyncio.wait(submissions, timeout=0)  # one turn of the loop: they end with that reason, uncancelled
        ending: list[asyncio.Task[Any]] = [*self._life.tasks, *self._life.lease_keepers, *submissions]
        for task in ending:
            end(task)
        self.parts.links.close()
        if ending:
            await asyncio.wait(ending)
        await self.parts.links.gone()

    def fail(self, error: PolonaiseError) -> None:
        self._stop(error)
        self.parts.routes.stop(error)
        self.parts.links.close()

    def _stop(self, error: PolonaiseError) -> None:
        for partition in self.used.values():
            partition.mounting.stop(error)

    def appends_of(self, partition: PartitionId | None, given: tuple[Any, ...] = ()) -> PartitionAppends:
        """Return the partition's appends; begin to mount the partition at its first use.

        For None the partitioner chooses, by `given`. Raises `BadOption`, what the partitioner raises, and at the first
        use `UnknownPartition`, `Closed`, as `check_loop`, and the client's failure: afterwards the methods of stopped
        appends raise by themselves.
        """
        if partition is None:
            partition = self._choose(given)
        if type(partition) is int:  # True and 1.0 would be found where 1 is
            try:
                return self.used[partition].appends
            except KeyError:
                pass  # not used yet, or no partition of this log: checked below, off the hot path
        partition = self.usable(partition)
        if partition in self.used:
            return self.used[partition].appends
        parts, view, wants = self.parts, self._choices.view, self._choices.wants
        spawn, tasks = parts.host.spawn, self._life.tasks
        appends = PartitionAppends(parts, partition)
        taker: Applier | MarkOnly
        if view is None:
            taker = MarkOnly(appends, parts.requests)
        else:
            bodies = BodyFetcher(parts, partition, wants, takes_own(view))
            taker = Applier(parts, view, partition, appends.mark, bodies, self._choices.form)
            tasks.append(spawn(taker.apply_all(), f"client: apply partition {partition}"))
            if not self._appliers and (stepped_back := getattr(view, "stepped_back", None)) is not None:
                tasks.append(spawn(watch_view(stepped_back, self._appliers), "client: watch the view"))
            self._appliers[partition] = taker
        mounting = taker.mounting = Mounting(parts, appends, taker)
        tasks.append(spawn(mounting.keep_mounted(), f"client: mount partition {partition}"))
        self.used[partition] = UsedPartition(appends, mounting)
        return appends

    def _choose(self, given: tuple[Any, ...]) -> PartitionId:
        self._life.check_open()
        if self._choices.partitioner is not None:
            try:
                return self._choices.partitioner(given, self.count)
            except Exception as error:
                if given:
                    raise
                raise BadOption(
                    f"the partitioner can't choose a partition without arguments ({error!r}): give partition="
                ) from error
        if self.count == 1:
            return 0
        raise BadOption(f"the log has {self.count} partitions: pass partition=, or connect with a partitioner")

    def known(self, partition: PartitionId) -> PartitionId:
        """Return the number of a partition that there is. Raises `UnknownPartition`, `BadOption`, `Closed`, and as
        `check_loop`."""
        self._life.check_open()
        check_loop(self.parts.loop)
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise wrong("partition", partition, f"a partition is an integer, 0 to {self.count - 1}")
        if not 0 <= partition < self.count:
            where = where_of(self._choices.topic)
            raise UnknownPartition(f"partition {partition}; {where} has partitions 0 to {self.count - 1}")
        return int(partition)

    def usable(self, partition: PartitionId | None) -> PartitionId:
        """Return the number of a partition to which requests can be made; for None the partitioner chooses. Raises as
        `known`, and the client's failure."""
        if partition is None:
            partition = self._choose(())
        partition = self.known(partition)
        if self._life.failure is not None:
            raise fresh(self._life.failure)
        return partition


async def find_partitions(
    host: Host, discovery: Discovery, choices: Choices, life: Lifetime, whereabouts: Callable[[], str]
) -> UsedPartitions:
    """Find the cluster and get an id; connect to nothing yet. Raises what `Log.start` raises."""
    loop, settings, encode = own_loop(), choices.settings, choices.encode
    description = await discovery.describe()
    topic = await discovery.topic(choices.topic) if choices.topic else None
    key, log_key = description.key, log_key_of(description.key, choices.topic)
    if choices.view is not None:
        # Before the first mark is read: a view kept from another log refuses to tell it.
        tell_log(choices.view, log_key)
    identity = Identity(host, discovery, settings)
    await identity.ask()
    routes = Routes(host, discovery, settings, whereabouts, topic)
    links = Links(host, lambda: identity.client_id, key, settings)
    requests = Requests(host, routes, links, settings)
    parts = ClientParts(host, settings, encode, loop, life, key, log_key, identity, routes, links, requests)
    return UsedPartitions(parts, choices, description.partitions if topic is None else len(topic.ids))


_OWN: Final = (CHANGE + ChangeKind.OWN, b"", b"")


def append_own(
    partitions: UsedPartitions,
    partition: PartitionId,
    kind: OwnKind,
    *,
    expectations: Iterable[Expectation] = (),
    changes: Iterable[Change] = (),
) -> Receipt:
    """Append an own transaction, whose header is `kind` and which changes registers; otherwise as `Log.append`."""
    appends = partitions.appends_of(partition)
    return appends.append(b"", int(kind), None, b"", [*operations(expectations, changes, own=True), _OWN])


def append_group_own(
    partitions: UsedPartitions,
    partition: PartitionId,
    group: Group,
    *,
    expectations: Iterable[Expectation],
    changes: Iterable[Change],
) -> Receipt:
    """Append an application's transactions with changes of the library's registers; otherwise as `Log.append_group`."""
    appends = partitions.appends_of(partition)
    group.check(partitions.parts.settings.limits)
    return appends.append_group(group, None, operations(expectations, changes, own=True))
