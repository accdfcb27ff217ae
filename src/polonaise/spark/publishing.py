"""Publish a batch: append the rows that tasks have staged, each exactly once, however often, by whichever drivers.

Each partition is published independently, guarded by its register `spark/<appId>` (`protocol.sinkprogress`). A batch of
more than one group in a partition follows a plan, which is stored before its first group is sent, and which the
register names from then on. After a crash the next driver may have staged the same rows in other objects and in another
order; it goes on with the stored plan.
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

from polonaise.client.log import Log, partitions_of
from polonaise.client.partitions import append_group_own, append_own
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Change, Expectation, Limits
from polonaise.client.protocol.group import Group
from polonaise.errors import (
    AppendUnknown,
    DeadlineExceeded,
    ExpectationFailed,
    NotFound,
    PolonaiseError,
    RegistersFull,
    Retry,
    fault,
)
from polonaise.fragments.store import ObjectStore
from polonaise.spark import staging
from polonaise.spark.protocol import blocks
from polonaise.spark.protocol.plans import INLINE, BlockRef, Plan, Staged, check_block, plan_of_nothing, plans_of
from polonaise.spark.protocol.sinkprogress import (
    UNKNOWN,
    Origin,
    Runs,
    SinkProgress,
    Step,
    check_batch,
    check_order,
    check_query,
    latest_of,
    next_step,
    register_key,
)
from polonaise.spark.staging import Collected, collect, discard, store_plan
from polonaise.terms import OwnKind, PartitionId

T = TypeVar("T")

_log = logging.getLogger("polonaise.spark")

PARTITIONS_AT_ONCE: Final = 8
"""Partitions that are published at the same time. Each holds a few groups in memory."""
READ_AHEAD: Final = 4
"""Largest number of groups of a partition that are read at a time, while one commits."""
# Longer than any batch takes: a younger object may belong to a batch that is still being written.
LEFTOVERS_S: Final = 7 * 86_400.0
PAUSE_S_MIN: Final = 0.05
"""Seconds, at most, before a partition is tried again after its first fault; doubled after each further one."""
PAUSE_S_MAX: Final = 2.0
_FULL: Final = (
    "registers are full. It keeps one for each application that ever wrote to it: delete those of applications that "
    "are over, with Change.delete(b'spark/<txnAppId>')"
)


class PublicationPort(Protocol):
    """Everything that `Publication` and `publish_unnamed` ask of the log, the staging store and the clock."""

    async def register(self, key: bytes, partition: PartitionId) -> bytes | None:
        """Return a register's value, not older than this call; None if it is unset."""

    async def append(
        self, partition: PartitionId, group: Group, expectations: Sequence[Expectation], changes: Sequence[Change]
    ) -> None:
        """Append one group and wait until it is committed. Raises the append's error. After `AppendUnknown` the group
        may still commit. For a group without rows only the changes are made."""

    async def store_plan(self, plan: Plan) -> str:
        """Store a plan durably under a new name, and return that name."""

    async def load_plan(self, name: str) -> Plan:
        """Return a stored plan. Raises `NotFound`, and `sink_state_damaged` for bytes that are not a plan."""

    def groups(self, plan: Plan, start: int) -> AsyncGenerator[Group, None]:
        """Yield the groups of a plan, beginning with group number `start` (from 0). Raises `NotFound` for deleted
        objects, `sink_state_damaged` for rows that are not those that were staged, and what the staging store
        raises."""

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt."""

    def chance(self) -> float:
        """Return a random number from 0 to 1."""

    def now_s(self) -> float: ...


class Patience:
    """A deadline that progress renews, and growing pauses between attempts."""

    def __init__(self, port: PublicationPort, limit_s: float) -> None:
        self._port = port
        self.limit_s = limit_s
        self._backoff = Backoff(PAUSE_S_MIN, PAUSE_S_MAX)
        self._until_s = 0.0
        self.renew()

    def renew(self) -> None:
        """Start the deadline and the pauses afresh, after progress."""
        self._until_s = self._port.now_s() + self.limit_s
        self._backoff.reset()

    async def pause(self) -> bool:
        """Wait before the next attempt. Return False at once if the deadline has passed."""
        left_s = self._until_s - self._port.now_s()
        if left_s <= 0:
            return False
        await self._port.pause(min(left_s, self._backoff.pause_s(self._port.chance())))
        return True


class Publication:
    """The publication of one application's batch in one partition."""

    def __init__(
        self,
        port: PublicationPort,
        plan: Plan,
        partitions: int,
        patience_s: float,
        *,
        earlier: Runs = (),
        may_be_overtaken: bool = True,
        origin: Origin = UNKNOWN,
    ) -> None:
        """Prepare to publish `plan`, which is this driver's own and not stored yet. `partitions` is how many partitions
        the batch has rows for, `patience_s` how many seconds may pass without progress. `earlier` are the batches known
        to be whole. If the partition already holds a later batch, `run` does nothing when the batch `may_be_overtaken`;
        otherwise it raises `batch_overtaken`."""
        self._port = port
        self._own = plan
        self._repeated = (partitions, earlier)
        """What the register gets with each group if this driver begins the batch."""
        self._origin = origin
        self._may_be_overtaken = may_be_overtaken
        self._own_name = ""
        self._patience = Patience(port, patience_s)
        self._loaded: tuple[str, Plan] | None = None
        """Name and content of the stored plan in use."""
        self._register: bytes | None = None
        """The register's value, as last read or set."""
        self._begun = False
        """Whether this driver has begun to send groups."""
        self._missed_at: list[bytes | None] = []
        """The register's values at which staged rows, or the stored plan, were found to be gone."""
        self.used: list[str] = []
        """Names in the staging store that nobody needs once the batch is published in all partitions."""

    async def run(self) -> None:
        """Publish until the whole batch is in the partition. Raises `batch_unfinished`, `batch_overtaken`,
        `staging_lost`, `sink_state_damaged`, `RegistersFull`, and other errors that trying again can't mend;
        `DeadlineExceeded` after `patience_s` seconds without progress: the batch may be in the log in part, and running
        it again finishes it."""
        self._patience.renew()
        while True:
            try:
                await self._go_on()
                return
            except NotFound as error:
                self._check_lost(error)
                trouble: PolonaiseError = error
            except RegistersFull as error:
                raise RegistersFull(
                    f"batch {self._own.batch} of {self._own.app!r} can't be published in partition "
                    f"{self._own.partition}, whose {_FULL}"
                ) from error
            except (ExpectationFailed, AppendUnknown) as error:
                # Not fatal here: the register is read again, and says whether the group in doubt, or another driver's,
                # was committed. Should the group commit after that, its copy fails by the same expectation.
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
        own = self._own
        value = await self._port.register(register_key(own.app), own.partition)
        if value != self._register:  # another driver made progress, or an append of ours whose answer was lost
            self._patience.renew()
        self._register = value
        progress = None if self._register is None else SinkProgress.parse(self._register, own.app, own.partition)
        if progress is not None:
            check_query(progress, self._origin.query, own.app)
        step = next_step(progress, own.batch, own.app, own.partition)
        if step is Step.BEGIN:
            # Stored before a register can name it. A single group needs no stored plan: its rows, and the register
            # that says "done", commit in one step. The name is kept, so that a further attempt stores no second copy.
            if len(own.groups) > 1 and not self._own_name:
                self._own_name = await self._port.store_plan(own)
                self.used.append(self._own_name)
            await self._chain(own, self._own_name, 0, self._repeated, self._origin)
        elif step is Step.RESUME:
            assert progress is not None
            name = progress.plan
            # Another driver may have begun the batch: its cut decides, not ours. Ours may put the same rows into other
            # groups, and going on with it would double some rows and lose others.
            plan = own if name == self._own_name else await self._plan(name)
            if (plan.batch, plan.partition, len(plan.groups)) != (own.batch, own.partition, progress.total):
                raise fault(
                    "sink_state_damaged",
                    f"{name} in the staging store is not the plan of batch {own.batch} in partition {own.partition}, "
                    "although the log's register names it: restore the plan, or write the rest under another txnAppId",
                )
            self.used += [name, *plan.objects]
            # The batch's first group has fixed its number of partitions and what came before it: the others repeat it.
            await self._chain(plan, name, progress.done, (progress.partitions, progress.earlier), progress.origin)
        elif step is Step.OVERTAKEN and not self._may_be_overtaken:
            raise fault(
                "batch_overtaken",
                f"another batch of {own.app!r}, of a later number, was written to partition {own.partition} while "
                f"batch {own.batch} was: the rows of batch {own.batch} are not in that partition; write them under "
                "another txnAppId",
            )
        elif progress is not None and not self._begun:
            # No warning after groups of our own: then a finished batch only means that an answer was lost.
            how = "was written before" if step is Step.NOTHING else f"comes after batch {progress.batch}"
            _log.warning("batch %d of %r %s: nothing was added to partition %d", own.batch, own.app, how, own.partition)

    async def _chain(self, plan: Plan, name: str, done: int, repeated: tuple[int, Runs], origin: Origin) -> None:
        """Append the groups of a plan from number `done` on, each in one step with the register that counts it."""
        # One group at a time: several in flight were slower where they were measured (docs/decisions/0013).
        self._begun = True
        key, total = register_key(plan.app), len(plan.groups)
        async with aclosing(self._port.groups(plan, done)) as groups:
            async for group in groups:
                done += 1
                value = SinkProgress(plan.batch, done, total, *repeated, name, origin).pack()
                # Expecting exactly the value that was read makes each step happen once, whoever else is at it.
                expected = (
                    Expectation.absent(key) if self._register is None else Expectation.equals(key, self._register)
                )
                await self._port.append(plan.partition, group, [expected], [Change.set(key, value)])
                self._register = value
                self._patience.renew()

    async def _plan(self, name: str) -> Plan:
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = name, await self._port.load_plan(name)
        return self._loaded[1]

    def _check_lost(self, error: NotFound) -> None:
        """Raise `staging_lost` if rows are missing although the register has not changed since they were found missing.
        A driver that finishes the batch deletes its objects: then the register says that it is done."""
        if self._register in self._missed_at:
            raise fault(
                "staging_lost",
                f"what batch {self._own.batch} of {self._own.app!r} had staged for partition {self._own.partition} is "
                f"gone before it was published ({error.text}): restore it to the staging store, or write the rest "
                "under another txnAppId",
            ) from error
        self._missed_at.append(self._register)


async def publish_unnamed(port: PublicationPort, plan: Plan, patience_s: float) -> None:
    """Append the rows of a write without `txnAppId`: in order, each group whole, without a register. A group that has
    certainly failed, by a passing fault, is appended again. Raises `AppendUnknown` if a group's fate is not known, all
    other errors at once, and `DeadlineExceeded` after `patience_s` seconds without progress."""
    patience = Patience(port, patience_s)
    done = 0
    while done < len(plan.groups):
        try:
            async with aclosing(port.groups(plan, done)) as groups:
                async for group in groups:
                    await port.append(plan.partition, group, [], [])
                    done += 1
                    patience.renew()
        except AppendUnknown as error:
            raise AppendUnknown(
                f"{error.text}: look for its rows in the log before they are written again; with txnAppId and "
                "txnVersion a write can be repeated without repeating rows",
                error.receipt,
            ) from error
        except PolonaiseError as error:
            # A deadline that has passed is not tried again: the wait it ended was already `patience_s` long.
            if error.retry is not Retry.AGAIN or isinstance(error, DeadlineExceeded):
                raise
            if not await patience.pause():
                raise DeadlineExceeded(
                    f"rows got no further in partition {plan.partition} for {patience_s:g} s: {error}. {done} of "
                    f"{len(plan.groups)} groups are in the log; give txnAppId and txnVersion, and a write can be "
                    "repeated without repeating rows"
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
    origin: Origin = UNKNOWN,
) -> bool:
    """Append what these tasks have staged to every partition that has rows, then delete it from the staging store.

    Where one partition fails the others go on, and the first error is raised. `patience_s` is how many seconds a
    partition may be without progress. Without `app` a repeated write may repeat rows. With it, a batch that is already
    in the log adds nothing, and a batch without rows is recorded in a register, unless `in_order`: then the caller,
    such as a Spark stream, finishes each batch before it begins the next one. With `is_next` this batch is known to
    follow the latest one in the log, and the look at all partitions is left out.

    Returns whether this batch is the latest of its application; true without `app`. Raises `BadOption` for a batch
    number that is not from 0 to 2^63 - 1, and what `Publication.run` or `publish_unnamed` raises.
    """
    check_batch(batch)
    port = RealPublicationPort(log, store, patience_s)
    plans = plans_of(app or "", batch, staged, Limits(), log.log_key.hex())
    turns = asyncio.Semaphore(PARTITIONS_AT_ONCE)
    used = [name for task in staged for name in task.objects]
    earlier: Runs | None = ()
    is_latest = True
    if app is not None and not is_next:
        progress = await _progress_in(port, app, log.partition_count)
        is_latest = batch >= latest_of(progress)
        earlier = check_order(
            progress, batch, [plan.partition for plan in plans], app, in_order=in_order, origin=origin
        )
        if earlier is None:
            _log.warning("batch %d of %r was written before: nothing was added", batch, app)
            plans = []
        # Without this record, the same batch written again with rows would be taken for a new one.
        elif not plans and not in_order:
            plans = [plan_of_nothing(app, batch, log.log_key.hex())]

    async def one(plan: Plan) -> None:
        async with turns:
            if app is None:
                await publish_unnamed(port, plan, patience_s)
            else:
                publication = Publication(
                    port, plan, len(plans), patience_s, earlier=earlier or (), may_be_overtaken=in_order, origin=origin
                )
                await publication.run()
                used.extend(publication.used)

    # All partitions come to an end before the first error is raised: none is left half-way by another's fault.
    results = await asyncio.gather(*map(one, plans), return_exceptions=True)
    failed = [error for error in results if error is not None]
    if failed:
        for other in failed[1:]:
            failed[0].add_note(f"and: {other}")
        raise failed[0]
    # Deleted only now: a driver that takes over finishes the stored plans, and needs every object that they name.
    await discard(store, used, patience_s)
    return is_latest


async def _progress_in(port: PublicationPort, app: str, partitions: int) -> dict[PartitionId, SinkProgress]:
    key = register_key(app)
    values = await asyncio.gather(*(port.register(key, partition) for partition in range(partitions)))
    return {number: SinkProgress.parse(value, app, number) for number, value in enumerate(values) if value is not None}


async def collect_leftovers(log: Log, store: ObjectStore, older_than_s: float = LEFTOVERS_S) -> Collected:
    """Delete objects older than `older_than_s` seconds from the staging store that nobody can publish any more. What
    the plan of an unfinished batch refers to stays. Choose an age above that of the longest batch."""
    # A clock that is days ahead would take the objects of the batch that is being written for old ones.
    ahead_s = max(0.0, log.clock_ahead_s or 0.0)
    return await collect(store, partial(_is_needed, log), older_than_s + ahead_s)


async def _is_needed(log: Log, plan: Plan, name: str) -> bool:
    """Whether the register names this plan and its batch is unfinished; true for a plan of another log."""
    if plan.cluster != log.log_key.hex():
        return True
    value = await log.register(register_key(plan.app), plan.partition)
    if value is None:
        return False
    progress = SinkProgress.parse(value, plan.app, plan.partition)
    return progress.plan == name and not progress.finished


class RealPublicationPort:
    """The port to a log and an object store. Every wait for them ends after `patience_s` seconds."""

    def __init__(self, log: Log, store: ObjectStore, patience_s: float) -> None:
        self._log = log
        self._store = store
        self._patience_s = patience_s

    async def register(self, key: bytes, partition: PartitionId) -> bytes | None:
        return await self._log.register(key, partition, timeout=self._patience_s)

    async def append(
        self, partition: PartitionId, group: Group, expectations: Sequence[Expectation], changes: Sequence[Change]
    ) -> None:
        # First: a partition that is not ready ends this while nothing was sent, so that no group's fate is in doubt.
        await self._log.ready(partition, timeout=self._patience_s)
        partitions = partitions_of(self._log)
        if len(group):
            receipt = append_group_own(partitions, partition, group, expectations=expectations, changes=changes)
        else:
            receipt = append_own(partitions, partition, OwnKind.BATCH, expectations=expectations, changes=changes)
        try:
            async with asyncio.timeout(self._patience_s):
                await receipt
        except TimeoutError:
            raise AppendUnknown(
                f"a group of {len(group)} rows for partition {partition} is not decided after {self._patience_s:g} s, "
                "and may still commit",
                receipt,
            ) from None

    async def store_plan(self, plan: Plan) -> str:
        return await self._within(store_plan(self._store, plan))

    async def load_plan(self, name: str) -> Plan:
        return Plan.parse(await self._within(self._store.get(name)), name)

    async def groups(self, plan: Plan, start: int) -> AsyncGenerator[Group, None]:
        """Yield the groups in order, reading at most `READ_AHEAD` of them at a time."""
        ahead: deque[asyncio.Task[Group]] = deque()
        try:
            for refs in plan.groups[start:]:
                ahead.append(asyncio.create_task(self._group(plan, refs)))
                if len(ahead) == READ_AHEAD:
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        # The consumer may stop early, on an error: reads that nobody waits for must not outlive it.
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _group(self, plan: Plan, refs: Iterable[BlockRef]) -> Group:
        raws = [await self._raw(plan, ref) for ref in refs]
        return Group.of([]) if not raws else blocks.joined([blocks.Block.decode(raw) for raw in raws])

    async def _raw(self, plan: Plan, ref: BlockRef) -> bytes:
        if ref.object == INLINE:
            raw, where = plan.inline[ref.offset : ref.offset + ref.length], "the plan"
        else:
            where = plan.objects[ref.object]
            raw = await self._within(self._store.get_range(where, ref.offset, ref.length))
        check_block(ref, raw, where)
        return raw

    async def _within(self, answer: Awaitable[T]) -> T:
        return await staging.within(self._patience_s, answer)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        return random.random()

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()
