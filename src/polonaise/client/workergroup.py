"""Workers: processes that share the partitions of the log, each worked on by one of them at a time."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, Self, cast

from polonaise.client.partitions import UsedPartitions
from polonaise.client.protocol.arguments import checked_seconds, wrong
from polonaise.client.protocol.groupleases import (
    GROUP_LEASES,
    ToldGroup,
    checked_group_name,
    lease_prefix,
    member_lease,
    next_move,
    partition_lease,
    told_groups,
    total_lag,
)
from polonaise.client.view import close_view, tell_log, watch_view
from polonaise.client.waiting import check_loop, end, forked, is_inherited, own_loop
from polonaise.client.workerpartition import PartitionWork
from polonaise.client.workerprogress import Handler, HandlerProgress, Progress, ViewProgress, WorkedView
from polonaise.coordination.lease import Tenure
from polonaise.errors import BadOption, Closed, PolonaiseError, Retry, fresh
from polonaise.redaction import redacted
from polonaise.terms import PartitionId
from polonaise.wire.leases import (
    ASKED_MAX,
    DURATION_MS_MAX,
    DURATION_MS_MIN,
    NOTE_BYTES_MAX,
    AnsweredLease,
    AskedLease,
    LeaseAnswer,
    ListedLease,
)

COORDINATING: Final[PartitionId] = 0
"""The partition whose owner grants the leases of all groups of a log, or of a topic."""
_LOOK_S: Final = 0.2
"""The pause between two looks at who has what, in seconds."""
_WATCH_S: Final = 2.0
"""Seconds between two looks from outside at the work in each partition, and for each of their requests."""
PARTITIONS_MAX: Final = ASKED_MAX - 1
"""One request has room for all partitions and the member itself."""

_NOT_JOINED: Final = "no lease yet: an owner of the first partition that is new grants none for the time of a lease"

_log = logging.getLogger("polonaise.client")


class WorkerGroup:
    """A group of workers, as one member sees it; returned by `Log.group`.

    ::

        async with log.group("billing", view=Invoices(url)) as group:  # joins; leaves at the end
            await group.ended()

    Each partition has one worker at a time, by a lease, and is handed over when members join, leave, die or hang. One
    that was replaced and does not know it is fenced by an epoch, which its successor has raised.

    With `view`, a `SqlView`, each transaction is applied exactly once: epoch, position and effect are one SQL
    transaction. With `handler`, a coroutine function, it is handled in order at least once: the position is saved in a
    register about once a second and at a hand-over; after a death what was handled since comes again.
    """

    def __init__(
        self,
        partitions: UsedPartitions,
        name: str,
        *,
        view: WorkedView | None,
        handler: Handler | None,
        lease_s: float,
        progress_s_max: float,
        holder: int,
    ) -> None:
        self.name = name
        """The group's name."""
        self.member = holder
        """This member's number, which no other member has."""
        self._log_partitions = partitions
        self._parts = partitions.parts
        self._view = view
        self._handler = handler
        self._lease_s = lease_s
        self._progress_s_max = progress_s_max
        self._loop = own_loop()
        self._tenures: dict[str, Tenure] = {}
        """By name of a lease: until when this member has it."""
        self._work: dict[PartitionId, PartitionWork] = {}
        self._wanted: tuple[PartitionId, ...] = ()
        self._terms = json.dumps({"by": "handler" if view is None else "view", "lease_s": lease_s}).encode()
        """What all members have to have in common; the note of each member's lease."""
        self._members: tuple[int, ...] = ()
        self._present: Collection[str] = ()
        """The groups that had members when they were last listed."""
        self._listed_until_s = float("-inf")
        self._one_lists = asyncio.Lock()
        self._trouble = "no answer yet"
        self._silent_since_s: float | None = None
        """When the first request was made that has had no answer, nor any after it; None if there is none."""
        self._has_joined = False
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving = False
        self._over: asyncio.Future[PolonaiseError] = self._loop.create_future()
        self._changed = asyncio.Event()
        """Set to look at once at who has what."""

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        if self._tasks or self._over.done():
            raise BadOption("this group was joined before: get another one from the log")
        if self._log_partitions.count > PARTITIONS_MAX:
            raise BadOption(f"a group shares at most {PARTITIONS_MAX} partitions: spread them over several topics")
        if self._view is not None:
            tell_log(cast(Any, self._view), self._parts.log_key)
        host = self._parts.host
        self._tasks = [
            host.spawn(self._keep(), f"client: group {self.name}"),
            host.spawn(self._watch(), f"client: watch of group {self.name}"),
        ]
        if self._view is not None:
            watching = watch_view(partial(self._stepped_back, self._view), self._work)
            self._tasks.append(host.spawn(watching, f"client: watch of the view of group {self.name}"))
        for task in self._tasks:
            self._parts.life.lease_keepers.add(task)  # so that they end with the client
            task.add_done_callback(self._task_ended)
        return self

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._parts.life.lease_keepers.discard(task)
        for work in self._work.values():
            work.give_up()
        if not self._over.done():  # both go on until the client is closed, or has failed; this task's host knows by now
            self._over.set_result(self._parts.life.failure or Closed("this client was closed"))

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Leave the group: what is being handled is brought to its end, and others take over at once. Waits for at most
        `lease_s` seconds for that. Does nothing in a forked child."""
        if is_inherited(self._loop):
            return  # the leases are its parent's
        check_loop(self._loop)
        if self._leaving:
            return
        self._leaving = True
        for work in self._work.values():
            work.stop()
        running = [work.task for work in self._work.values() if not work.task.done()]
        try:
            if running:
                await asyncio.wait(running, timeout=self._lease_s)
        finally:
            await self._end(Closed(f"this worker has left the group {self.name}"))

    async def _end(self, error: PolonaiseError) -> None:
        ending = [work.task for work in self._work.values()]
        ending += [task for task in self._tasks if task is not asyncio.current_task()]
        for task in ending:
            end(task)
        if not self._over.done():
            self._over.set_result(error)
        names, now_s = [name for name, tenure in self._tenures.items() if tenure.holds(self._now_s())], self._now_s()
        self._tenures.clear()
        if ending:
            await asyncio.wait(ending)
        if names:
            try:
                left_s = max(0.1, self._lease_s - (self._now_s() - now_s))
                await self._parts.requests.release_leases(COORDINATING, self.member, names, min(left_s, 2.0))
            except PolonaiseError as trouble:
                _log.info("group %s: the leases of member %d run out: %s", self.name, self.member, trouble)
        if self._view is not None:
            await close_view(cast(Any, self._view))

    async def ended(self) -> None:
        """Wait until this member can work no more, and raise why: `Closed` after `leave`."""
        check_loop(self._loop)
        raise fresh(await asyncio.shield(self._over))

    # ------------------------------------------------------------------ what it is doing

    @property
    def partitions(self) -> tuple[PartitionId, ...]:
        """The partitions that this member works on at present."""
        if is_inherited(self._loop):
            return ()
        return tuple(sorted(partition for partition in self._work if self._holds(partition)))

    def health(self) -> dict[str, Any]:
        """Return what this member does, as a document for JSON.

        `well`; the `members` of the group; `trouble` with the leases; `lag`, the sum over this member's partitions, or
        None if not known; and by partition its `state`, `epoch`, `position`, `lag`, and the `trouble` that keeps it
        from going on.
        """
        partitions = {str(partition): work.health() for partition, work in sorted(self._work.items())}
        member = self._tenures.get(member_lease(self.name, self.member))
        is_there = member is not None and member.holds(self._now_s())
        trouble = self._trouble
        if not trouble and not is_there:
            trouble = "the lease of this member is lost" if self._has_joined else _NOT_JOINED
        if self._over.done():
            trouble = str(self._over.result())
        if is_inherited(self._loop):
            trouble = str(forked())
        return {
            "group": self.name,
            "member": self.member,
            "members": list(self._members),
            "well": not trouble and not any(each["trouble"] for each in partitions.values()),
            "trouble": trouble,
            "lag": total_lag(each["lag"] for each in partitions.values()) if is_there else None,
            "partitions": partitions,
        }

    # ------------------------------------------------------------------ leases

    async def _keep(self) -> None:
        """Renew what this member has, take its share, and give up what is more."""
        while not self._over.done():
            began_s = self._now_s()
            self._changed.clear()
            self._drop_lost()
            try:
                await self._look()
                self._trouble = ""
            except PolonaiseError as error:
                self._trouble = redacted(error)
                if error.retry not in (Retry.AGAIN, Retry.ELSEWHERE):
                    _log.warning("group %s: member %d ends: %s", self.name, self.member, error)
                    await self._end(error)
                    return
            self._drop_lost()
            ends_s = [tenure.until_s for tenure in self._tenures.values() if tenure.holds(self._now_s())]
            pause_s = min(began_s + _LOOK_S, *ends_s, began_s + _LOOK_S) - self._now_s()
            try:
                async with asyncio.timeout(max(0.0, pause_s)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        now_s, requests = self._now_s(), self._parts.requests
        asked = [self._asked(member_lease(self.name, self.member), self._terms)]
        asked += [self._asked(partition_lease(self.name, work.partition), _note(work)) for work in self._work.values()]
        if not self._leaving:
            new = [partition for partition in self._wanted if partition not in self._work]
            asked += [AskedLease(partition_lease(self.name, partition)) for partition in new]
        left_s = [tenure.until_s - now_s for tenure in self._tenures.values() if tenure.holds(now_s)]
        timeout_s = max(0.05, min([self._lease_s / 2, *left_s]))
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        answered, listed = await requests.hold_leases(
            COORDINATING, self.member, self._lease_s, asked, lease_prefix(self.name), timeout_s, self._silent_since_s
        )
        self._silent_since_s = None
        for each, answer in zip(asked, answered, strict=True):
            self._take(each, answer, now_s)
        if self._leaving:
            return
        self._start_new()
        await self._share(listed)

    def _asked(self, name: str, note: bytes) -> AskedLease:
        tenure = self._tenures.get(name)
        return AskedLease(name, note, tenure is not None and tenure.holds(self._now_s()))

    def _take(self, asked: AskedLease, answered: AnsweredLease, began_s: float) -> None:
        """Take note of an answer. What comes after the lease has run out gives nothing back."""
        tenure = self._tenures.setdefault(asked.name, Tenure())
        if asked.renews and not tenure.holds(self._now_s()):
            return
        if answered.answer is LeaseAnswer.HELD:
            tenure.renewed(began_s, self._lease_s)
            self._has_joined = True
        elif answered.answer is LeaseAnswer.OTHER_DURATION:
            raise BadOption(f"another worker of group {self.name} has another lease_s: give all the same")
        else:
            self._tenures.pop(asked.name)

    def _drop_lost(self) -> None:
        for partition, work in list(self._work.items()):
            if not self._holds(partition):
                work.give_up()
                del self._work[partition]
                self._tenures.pop(partition_lease(self.name, partition), None)

    def _start_new(self) -> None:
        for partition in self._wanted:
            if partition not in self._work and self._holds(partition):
                progress, holds = self._progress(partition), self._holder(partition)
                work = PartitionWork(self._parts, partition, progress, holds, self._progress_s_max)
                self._work[partition] = work
                work.task.add_done_callback(lambda _: self._changed.set())

    async def _share(self, listed: Sequence[ListedLease]) -> None:
        """Find out this member's share; stop what is more than that, and release what has come to its end."""
        group = told_groups(listed).get(self.name, ToldGroup())
        for member, worker in group.members.items():
            if member < self.member and worker.note != self._terms:
                raise BadOption(
                    f"member {member} of group {self.name} works with {worker.note.decode(errors='replace')}, and "
                    f"this one with {self._terms.decode()}: give all the same, or name the group otherwise"
                )
        self._members = tuple(sorted(group.members))
        count = self._log_partitions.count
        held = {partition: worker.holder for partition, worker in group.workers.items() if partition < count}
        move = next_move(count, self._members, held, self.member)
        # What this member was granted by an answer that was lost, or could not release: it has them, and does not know.
        strays = [p for p, holder in held.items() if holder == self.member and p not in self._work]
        wanted = (*move.wanted, *(partition for partition in strays if partition not in move.surplus))
        if set(wanted) - set(self._wanted):
            self._changed.set()  # asked for at once, and from then on with each look
        self._wanted = wanted
        for partition in move.surplus:
            if partition in self._work:
                self._work[partition].stop()
        over = [partition for partition, work in self._work.items() if work.task.done()]
        over += [partition for partition in strays if partition in move.surplus]
        if over:
            names = [partition_lease(self.name, partition) for partition in over]
            for partition, name in zip(over, names, strict=True):
                self._work.pop(partition, None)
                self._tenures.pop(name, None)
            await self._parts.requests.release_leases(COORDINATING, self.member, names, self._lease_s / 2)

    # ------------------------------------------------------------------ work

    def _holds(self, partition: PartitionId) -> bool:
        tenure = self._tenures.get(partition_lease(self.name, partition))
        return tenure is not None and tenure.holds(self._now_s())

    def _holder(self, partition: PartitionId) -> Callable[[], bool]:
        return lambda: self._holds(partition)

    def _progress(self, partition: PartitionId) -> Progress:
        if self._view is not None:
            return ViewProgress(self._view, partition, self.name, self._groups_present)
        assert self._handler is not None
        return HandlerProgress(self._log_partitions, self.name, partition, self._handler)

    async def _watch(self) -> None:
        """Look after this member's partitions from outside of their tasks, each by itself, again and again."""
        while True:
            await asyncio.gather(*(work.watch(_WATCH_S) for work in self._work.values()))
            await asyncio.sleep(_WATCH_S)

    async def _groups_present(self) -> Collection[str]:
        """Return the names of the log's groups that have members, as they were within the last seconds."""
        async with self._one_lists:  # all partitions may ask for it at once
            while self._now_s() >= self._listed_until_s:
                # The own lease is asked for as if anew: an owner that may not know yet who else is there says so.
                asked = AskedLease(member_lease(self.name, self.member), self._terms)
                (own,), listed = await self._parts.requests.hold_leases(
                    COORDINATING, self.member, self._lease_s, [asked], GROUP_LEASES, self._lease_s / 2
                )
                if own.answer is LeaseAnswer.TOO_EARLY:
                    await asyncio.sleep(own.remaining_ms / 1000)
                    continue
                self._present = [name for name, group in told_groups(listed).items() if group.members]
                self._listed_until_s = self._now_s() + _WATCH_S
            return self._present

    async def _stepped_back(self, view: WorkedView) -> Collection[PartitionId]:
        """Return this member's partitions of which the view has less than was applied."""
        works = (work for work in self._work.values() if work.state == "works")
        return await view.stepped_back({work.partition: work.progress.position for work in works})

    def _now_s(self) -> float:
        return self._parts.host.clock.monotonic_s()


def _note(work: PartitionWork) -> bytes:
    """Return what `polonaise group describe` is to know of a partition, for the note of its lease."""
    told = work.health()
    note = json.dumps(told).encode()
    over = len(note) - NOTE_BYTES_MAX
    if over <= 0:
        return note
    # A letter takes at least a byte, and the sign for what is left out takes six.
    trouble = redacted(told["trouble"], max(1, len(told["trouble"]) - over - 6))
    return json.dumps({**told, "trouble": trouble}).encode()


def checked_group(name: str, view: object, handler: object, lease_s: float, progress_s_max: float) -> None:
    checked_group_name(name)
    if (view is None) == (handler is None):
        raise BadOption("a group has either a view or a handler: give view=… or handler=…")
    if view is not None and not hasattr(view, "apply_run_under"):
        raise wrong("view", view, "the view of a group is a polonaise.SqlView; for other effects give a handler")
    if handler is not None and not inspect.iscoroutinefunction(handler):
        raise wrong("handler", handler, "a handler is a coroutine function: async def handle(tx)")
    seconds = checked_seconds("lease_s", lease_s)
    if seconds is None or not DURATION_MS_MIN / 1000 <= seconds <= DURATION_MS_MAX / 1000:
        raise BadOption(f"lease_s={lease_s!r}: {DURATION_MS_MIN / 1000:g} to {DURATION_MS_MAX / 1000:g} seconds")
    if not checked_seconds("progress_s_max", progress_s_max):
        raise wrong("progress_s_max", progress_s_max, "a number of seconds above 0")
