"""Publishing a batch: what tasks have staged becomes groups of the log, each row once, whoever tries and however often.

Each partition for itself, by the register `spark/<appId>` there (`protocol.progress`). A chain of more than one group
goes by a plan that is stored before its first group is sent and named by the register from then on: whoever goes on
after a crash, with other staged objects in another order, goes on with that plan, so no chain is ever cut twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol, TypeVar

from polonaise.client.log import Log
from polonaise.client.own import append_group_own, append_own
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Change, Expectation, Limits
from polonaise.client.protocol.group import Group
from polonaise.errors import (
    AppendUnknown,
    BatchOvertaken,
    DeadlineExceeded,
    ExpectationFailed,
    NotFound,
    PolonaiseError,
    RegistersFull,
    Retry,
    SinkStateDamaged,
    StagingLost,
)
from polonaise.fragments.store import ObjectStore
from polonaise.spark import staging
from polonaise.spark.protocol import blocks
from polonaise.spark.protocol.plans import INLINE, BlockRef, Plan, Staged, check_block, plan_of_nothing, plans_of
from polonaise.spark.protocol.sinkprogress import (
    Runs,
    SinkProgress,
    Step,
    check_batch,
    check_order,
    latest_of,
    next_step,
    register_key,
)
from polonaise.spark.staging import Collected, collect, discard, store_plan
from polonaise.terms import OwnKind, PartitionId

T = TypeVar("T")

_log = logging.getLogger("polonaise.spark")

PARTITIONS_AT_ONCE: Final = 8
"""Chains under way; each holds a few groups in memory."""
READ_AHEAD: Final = 4
"""Groups of a chain that are read from the staging store while earlier ones commit: it may be far away."""
LEFTOVERS_S: Final = 7 * 86_400.0
PAUSE_S_MIN: Final = 0.05
"""Before a chain is tried again after a fault; twice as long each time that nothing got further."""
PAUSE_S_MAX: Final = 2.0
_FULL: Final = (
    "the partition's registers are full. One is kept of each application that ever wrote to it: delete those of "
    "applications that are over, with Change.delete(b'spark/<txnAppId>')"
)


class PublicationPort(Protocol):
    """What publishing asks of the log and the staging store, and of time. `RealPublicationPort` does it."""

    async def register(self, key: bytes, partition: PartitionId) -> bytes | None:
        """A register's value, proved by the owner after it was asked."""

    async def append(
        self, partition: PartitionId, group: Group, expectations: Sequence[Expectation], changes: Sequence[Change]
    ) -> None:
        """One group, committed. Raises what it failed with; after `AppendUnknown` it may commit all the same.

        Of a group of nothing only the changes, in a transaction of the library's own.
        """

    async def store_plan(self, plan: Plan) -> str:
        """Put a plan under a new name, durably; the name."""

    async def load_plan(self, name: str) -> Plan:
        """Raises `NotFound`."""

    def groups(self, plan: Plan, start: int) -> AsyncGenerator[Group, None]:
        """The groups of a plan from the `start`-th on. Raises `NotFound` when their objects are gone."""

    async def pause(self, seconds: float) -> None:
        """Before something is tried again."""

    def chance(self) -> float:
        """A random number from 0 to 1, so that drivers do not try again in step."""

    def now_s(self) -> float: ...


class Patience:
    """How long nothing may get further before it fails, and how long to wait before it is tried again."""

    def __init__(self, port: PublicationPort, limit_s: float) -> None:
        self._port = port
        self.limit_s = limit_s
        self._backoff = Backoff(PAUSE_S_MIN, PAUSE_S_MAX)
        self._until_s = 0.0
        self.renew()

    def renew(self) -> None:
        """Something got further."""
        self._until_s = self._port.now_s() + self.limit_s
        self._backoff.reset()

    async def pause(self) -> bool:
        """Wait before the next try. False, at once, when patience is at its end."""
        left_s = self._until_s - self._port.now_s()
        if left_s <= 0:
            return False
        await self._port.pause(min(left_s, self._backoff.pause_s(self._port.chance())))
        return True


class Publication:
    """One batch of one application, in one partition."""

    def __init__(
        self,
        port: PublicationPort,
        plan: Plan,
        partitions: int,
        patience_s: float,
        *,
        earlier: Runs = (),
        may_be_overtaken: bool = True,
    ) -> None:
        """`plan` is our own, not stored yet; the batch has rows for so many `partitions`, `earlier` ones were whole.

        `patience_s` is how long nothing may get further before it fails. When a later batch is found in its place,
        there is nothing to do, if it `may_be_overtaken`, or an error.
        """
        self._port = port
        self._own = plan
        self._whole = (partitions, earlier)
        self._may_be_overtaken = may_be_overtaken
        self._own_name = ""
        self._patience = Patience(port, patience_s)
        self._loaded: tuple[str, Plan] | None = None
        """The plan that we go on with, by its name: it never changes, and may be large."""
        self._held: bytes | None = None
        """What the register holds, as far as we know."""
        self._begun = False
        """Groups of ours were sent."""
        self._missed_at: list[bytes | None] = []
        """What it held when rows were found to be gone."""
        self.used: list[str] = []
        """Names in the staging store that nobody needs once the batch is published everywhere."""

    async def run(self) -> None:
        """Until the batch is in the partition, whole.

        Raises `BatchUnfinished`, `BatchOvertaken`, `StagingLost`, `SinkStateDamaged`, `RegistersFull`;
        `DeadlineExceeded` when nothing got further for `patience_s`: the batch may be there in part, and running it
        again finishes it.
        """
        self._patience.renew()
        while True:
            try:
                await self._go_on()
                return
            except NotFound as error:
                self._check_lost(error)
                trouble: PolonaiseError = error
            except RegistersFull as error:
                raise RegistersFull(_FULL) from error
            except (ExpectationFailed, AppendUnknown) as error:
                trouble = error
            except PolonaiseError as error:
                if error.retry is Retry.NEVER:
                    raise
                trouble = error
            if not await self._patience.pause():
                raise DeadlineExceeded(
                    f"batch {self._own.batch} of {self._own.app!r} got no further in partition {self._own.partition} "
                    f"for {self._patience.limit_s:g} s: {trouble}. What is missing is published when the batch is run "
                    "again"
                ) from trouble

    async def _go_on(self) -> None:
        """From where the register says that the batch is, to its end."""
        own = self._own
        held = await self._port.register(register_key(own.app), own.partition)
        if held != self._held:  # somebody got further, if not we
            self._patience.renew()
        self._held = held
        progress = None if self._held is None else SinkProgress.parse(self._held)
        step = next_step(progress, own.batch, own.app, own.partition)
        if step is Step.BEGIN:
            if len(own.groups) > 1 and not self._own_name:
                self._own_name = await self._port.store_plan(own)
                self.used.append(self._own_name)
            await self._chain(own, self._own_name, 0, self._whole)
        elif step is Step.RESUME:
            assert progress is not None
            name = progress.plan
            plan = own if name == self._own_name else await self._plan(name)
            if (plan.batch, plan.partition, len(plan.groups)) != (own.batch, own.partition, progress.total):
                raise SinkStateDamaged(f"{name} in the staging store is not the plan that the log's register means")
            self.used += [name, *plan.objects]
            await self._chain(plan, name, progress.done, (progress.partitions, progress.earlier))
        elif step is Step.OVERTAKEN and not self._may_be_overtaken:
            raise BatchOvertaken(
                f"another batch of {own.app!r}, of a later number, was written to partition {own.partition} while "
                f"batch {own.batch} was: what this one had for it is not there; write it under another txnAppId"
            )
        elif progress is not None and not self._begun:
            how = "was written before" if step is Step.NOTHING else f"comes after batch {progress.batch}"
            _log.warning("batch %d of %r %s: nothing was added to partition %d", own.batch, own.app, how, own.partition)

    async def _chain(self, plan: Plan, name: str, done: int, whole: tuple[int, Runs]) -> None:
        self._begun = True
        key, total = register_key(plan.app), len(plan.groups)
        async with aclosing(self._port.groups(plan, done)) as groups:
            async for group in groups:
                done += 1
                value = SinkProgress(plan.batch, done, total, *whole, name).pack()
                expected = Expectation.absent(key) if self._held is None else Expectation.equals(key, self._held)
                await self._port.append(plan.partition, group, [expected], [Change.set(key, value)])
                self._held = value
                self._patience.renew()

    async def _plan(self, name: str) -> Plan:
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = name, await self._port.load_plan(name)
        return self._loaded[1]

    def _check_lost(self, error: NotFound) -> None:
        """Whoever finishes a batch clears up behind it: then the register says so when it is read again.

        Raises `StagingLost` when it says what it said before.
        """
        if self._held in self._missed_at:
            raise StagingLost(
                f"what batch {self._own.batch} of {self._own.app!r} had staged for partition {self._own.partition} is "
                f"gone before it was published ({error.text}): restore it to the staging store, or write the rest "
                "under another txnAppId"
            ) from error
        self._missed_at.append(self._held)


async def publish_unnamed(port: PublicationPort, plan: Plan, patience_s: float) -> None:
    """The rows of a write that nobody can repeat by name: in order and each group whole, without a register.

    A group that has certainly failed is appended again; where that is not certain, raises `AppendUnknown`.
    """
    patience = Patience(port, patience_s)
    done = 0
    while done < len(plan.groups):
        try:
            async with aclosing(port.groups(plan, done)) as groups:
                async for group in groups:
                    await port.append(plan.partition, group, [], [])
                    done += 1
                    patience.renew()
        except PolonaiseError as error:
            if error.retry is not Retry.AGAIN or isinstance(error, DeadlineExceeded):
                raise
            if not await patience.pause():
                raise DeadlineExceeded(
                    f"rows got no further in partition {plan.partition} for {patience_s:g} s: {error}. {done} of "
                    f"{len(plan.groups)} groups are there; say txnAppId and txnVersion for writes that can be repeated"
                ) from error


# ------------------------------------------------------------------ a whole batch


async def publish(
    log: Log,
    store: ObjectStore,
    app: str | None,
    batch: int,
    staged: Sequence[Staged],
    patience_s: float,
    *,
    in_order: bool,
    is_next: bool = False,
) -> bool:
    """Publish what these tasks have staged, in every partition that has rows, and clear up behind it.

    Partitions are independent: where one fails the others go on, and the first error is raised. Without `app` each row
    is there at least once. With one, all partitions are looked at before anything is written: a batch that is there
    adds nothing, whatever rows it comes with; one without rows leaves its mark. Who comes `in_order` has finished each
    batch before the next one, as Spark has in a stream; one of these that `is_next` after the batch that was the latest
    needs no such look. Returns whether this batch is its application's latest.
    """
    check_batch(batch)
    port = RealPublicationPort(log, store, patience_s)
    plans = plans_of(app or "", batch, staged, Limits(), log.cluster_key.hex())
    turns = asyncio.Semaphore(PARTITIONS_AT_ONCE)
    used = [name for task in staged for name in task.objects]
    earlier: Runs | None = ()
    is_latest = True
    if app is not None and not is_next:
        held = await _held(port, app, log.partition_count)
        is_latest = batch >= latest_of(held)
        earlier = check_order(held, batch, [plan.partition for plan in plans], app, in_order=in_order)
        if earlier is None:
            _log.warning("batch %d of %r was written before: nothing was added", batch, app)
            plans = []
        elif not plans and not in_order:
            plans = [plan_of_nothing(app, batch, log.cluster_key.hex())]

    async def one(plan: Plan) -> None:
        async with turns:
            if app is None:
                await publish_unnamed(port, plan, patience_s)
            else:
                publication = Publication(
                    port, plan, len(plans), patience_s, earlier=earlier or (), may_be_overtaken=in_order
                )
                await publication.run()
                used.extend(publication.used)

    found = await asyncio.gather(*map(one, plans), return_exceptions=True)
    failed = [error for error in found if error is not None]
    if failed:
        for other in failed[1:]:
            failed[0].add_note(f"and: {other}")
        raise failed[0]
    await discard(store, used, patience_s)
    return is_latest


async def _held(port: PublicationPort, app: str, partitions: int) -> dict[PartitionId, SinkProgress]:
    """What each partition has of the application."""
    key = register_key(app)
    values = await asyncio.gather(*(port.register(key, partition) for partition in range(partitions)))
    return {number: SinkProgress.parse(value) for number, value in enumerate(values) if value is not None}


async def collect_leftovers(log: Log, store: ObjectStore, older_than_s: float = LEFTOVERS_S) -> Collected:
    """Delete from the staging store what was made more than so many seconds ago and nobody can publish any more.

    What a plan refers to that is published in part stays, however old. Choose an age above that of the longest batch.
    """
    return await collect(store, partial(_is_needed, log), older_than_s)


async def _is_needed(log: Log, plan: Plan, name: str) -> bool:
    """Whether the register goes by this plan and is not done with it; plans of other logs are not ours to judge."""
    if plan.cluster != log.cluster_key.hex():
        return True
    held = await log.register(register_key(plan.app), plan.partition)
    if held is None:
        return False
    progress = SinkProgress.parse(held)
    return progress.plan == name and not progress.finished


class RealPublicationPort:
    """The port to a log and a store. Every wait in it has a deadline."""

    def __init__(self, log: Log, store: ObjectStore, patience_s: float) -> None:
        self._log = log
        self._store = store
        self._patience_s = patience_s

    async def register(self, key: bytes, partition: PartitionId) -> bytes | None:
        return await self._log.register(key, partition, timeout=self._patience_s)

    async def append(
        self, partition: PartitionId, group: Group, expectations: Sequence[Expectation], changes: Sequence[Change]
    ) -> None:
        await self._log.ready(partition, timeout=self._patience_s)
        if len(group):
            receipt = append_group_own(self._log, partition, group, expectations=expectations, changes=changes)
        else:
            receipt = append_own(self._log, partition, OwnKind.BATCH, expectations=expectations, changes=changes)
        try:
            async with asyncio.timeout(self._patience_s):
                await receipt
        except TimeoutError:
            raise AppendUnknown(
                f"a group of {len(group)} rows for partition {partition} is not decided after {self._patience_s:g} s",
                receipt,
            ) from None

    async def store_plan(self, plan: Plan) -> str:
        return await self._within(store_plan(self._store, plan))

    async def load_plan(self, name: str) -> Plan:
        return Plan.parse(await self._within(self._store.get(name)), name)

    async def groups(self, plan: Plan, start: int) -> AsyncGenerator[Group, None]:
        """Reads ahead; what it reads is at most `READ_AHEAD` groups."""
        ahead: deque[asyncio.Task[Group]] = deque()
        try:
            for refs in plan.groups[start:]:
                ahead.append(asyncio.create_task(self._group(plan, refs)))
                if len(ahead) == READ_AHEAD:
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _group(self, plan: Plan, refs: Iterable[BlockRef]) -> Group:
        raws = [await self._raw(plan, ref) for ref in refs]
        return Group.of([]) if not raws else blocks.joined([blocks.Block(raw) for raw in raws])

    async def _raw(self, plan: Plan, ref: BlockRef) -> bytes:
        if ref.object == INLINE:
            raw, where = plan.inline[ref.offset : ref.offset + ref.length], "the plan"
        else:
            where = plan.objects[ref.object]
            raw = await self._within(self._store.get_range(where, ref.offset, ref.length))
        check_block(ref, raw, where)
        return raw

    async def _within(self, asked: Awaitable[T]) -> T:
        return await staging.within(self._patience_s, asked)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        return random.random()

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()
