"""The target's side of a stream, the same for all transports: it has the target apply batches, and answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

from polonaise.applicationcode import is_being_cancelled
from polonaise.errors import BadOption, InvariantViolated, NotFound, PolonaiseError
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, DeliveryTarget
from polonaise.player.endpoint import TargetAnswers
from polonaise.player.protocol.entries import REASON_CHARACTERS_MAX, DeliveryBatch, Fence, TargetName
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.redaction import redacted, redacted_text
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

T = TypeVar("T")

HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""A session that holds more than this of batches that are not applied yet is full: several times what a player sends
ahead, or slow partitions would keep others from being read."""
ACKNOWLEDGE_S: Final = 0.001
"""Seconds for which servers gather acknowledgements, for which an entry waits only if the window is full."""
_LANES_MAX: Final = 1_000
"""The most partitions of a session whose tasks wait for more: of others, each batch gets a new one."""
_BATCH_BYTES: Final = 512
"""What a batch counts for besides its entries: about what its objects take in memory."""
_ID_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1


class SessionAnswers(TargetAnswers, Protocol):
    """What a session tells its transport. Nothing follows `fenced` or `ended`, nor, but `failed`, a `close`."""

    def ended(self, reason: str) -> None:
        """The session has ended."""

    def failed(self, error: BaseException) -> None:
        """A mistake of the library's own has ended the session."""

    def eased(self) -> None:
        """The session was full, and is not any more."""


class ServedTarget:
    """A target, with the sessions that serve it in this process: an accepted one ends those under lower fences."""

    def __init__(self, target: DeliveryTarget, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        """`target` stays the application's. A session is full while it holds more than `held_bytes_max`."""
        self.target = target
        self.held_bytes_max = held_bytes_max
        self.sessions: dict[TargetSession, None] = {}
        """Those that have not ended."""

    def session(self, fence: Fence, answers: SessionAnswers) -> TargetSession:
        session = TargetSession(self, fence, answers)
        self.sessions[session] = None
        return session

    def accepted(self, fence: Fence) -> None:
        for session in list(self.sessions):
            if session.fence < fence:
                session.shut_out(fence)


class ServedTargets:
    """The targets that one server serves: one under every name, or several, each under its own."""

    def __init__(
        self, targets: DeliveryTarget | Mapping[TargetName, DeliveryTarget], held_bytes_max: int = HELD_BYTES_MAX
    ) -> None:
        """Raises `BadOption` for what is neither a target nor a mapping of names to targets."""
        self._only: ServedTarget | None = None
        self._by_name: dict[TargetName, ServedTarget] = {}
        if not isinstance(targets, Mapping):
            self._only = ServedTarget(_checked(targets), held_bytes_max)
        elif not targets:
            raise BadOption("no targets to serve: give one, or a mapping of names to targets")
        else:
            for name, target in targets.items():
                self._by_name[name] = ServedTarget(_checked(target), held_bytes_max)

    def session(self, name: TargetName, fence: Fence, answers: SessionAnswers) -> TargetSession | None:
        """Return a session of the target of this name; None after the answer that says which ones there are."""
        found = self._only or self._by_name.get(name)
        if found is not None:
            return found.session(fence, answers)
        names = ", ".join(sorted(self._by_name))
        answers.ended(str(NotFound(f"no target {redacted(name)!r} is served here: there are {names}")))
        return None


class TargetSession:
    """Serves one stream: `greet` first, then `take` each batch, then `close`.

    Batches of one partition are applied one after the other, those of different partitions side by side: each has a
    *lane*. Whatever the target's code does wrong ends this session alone. Once it has ended, nothing is applied but
    what is being applied just now, which is cancelled; `gone` waits for that.
    """

    def __init__(self, served: ServedTarget, fence: Fence, answers: SessionAnswers) -> None:
        self._served = served
        self._target = served.target
        self._reception = Reception(fence)
        self._answers = answers
        self.held_bytes = 0
        """The bytes of batches that were taken and are not applied yet."""
        self._lanes: dict[PartitionId, _Lane] = {}
        """Those of the partitions that have a task."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = False
        self._takes = True
        self.fence = fence
        self.accepted = False
        """Whether the target has accepted the stream."""
        self.refused: dict[PartitionId, str] = {}
        """By partition, which entry was refused last, and why, until one was applied after that."""

    async def greet(self, source: DeliverySource) -> dict[PartitionId, TransactionId] | None:
        """Offer the stream to the target; return the ids that it has applied, by partition, if it accepts. Else None:
        after the answer that says why, or because the session was closed. A call that is cancelled ends the session."""
        if self._over:
            return None
        task = self._spawn(self._offer(source), "accept a stream")
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            self.close()
            raise
        if self._over or task.cancelled() or task.exception() is not None:
            return None
        acceptance = task.result()
        if acceptance is None:
            return None
        if not acceptance.accepted:
            self.shut_out(acceptance.kept)
            return None
        self._served.accepted(self.fence)
        self.accepted = True
        return dict(acceptance.applied)

    def take(self, batch: DeliveryBatch) -> None:
        """Have the target apply a batch, behind those of its partition; does not wait."""
        if not self._takes:
            return
        held_bytes = batch.size + _BATCH_BYTES
        self.held_bytes += held_bytes
        partition = batch.partition
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _Lane()
            self._spawn(self._work(partition, lane), f"apply partition {partition}")
        lane.batches.append((batch, held_bytes))
        lane.wake()

    @property
    def full(self) -> bool:
        """Whether so much waits to be applied that nothing more should be read; `SessionAnswers.eased` ends that."""
        return self.held_bytes > self._served.held_bytes_max

    def shut_out(self, kept: Fence) -> None:
        if not self._over:
            self.close()
            self._answers.fenced(kept)

    def close(self) -> None:
        """End the session without an answer. What is being applied is cancelled."""
        if self._over:
            return
        self._over = True
        self._takes = False
        self._served.sessions.pop(self, None)
        self._lanes.clear()
        current = asyncio.current_task()
        for task in self._tasks:
            # A lane that tells something just now may have brought this about: it sees that it is over by itself.
            if task is not current:
                task.cancel()

    async def gone(self) -> None:
        """Wait until the target is done with what was being applied when the session was closed."""
        while tasks := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(tasks)

    async def finish(self, reason: str, within_s: float) -> None:
        """Apply nothing more but what is being applied, for `within_s` seconds at most; answer that, and end."""
        self._takes = False
        for lane in self._lanes.values():
            lane.batches.clear()
            lane.wake()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=within_s)
        self._end(reason)

    # ------------------------------------------------------------------ tasks

    def _spawn(self, work: Coroutine[Any, Any, T], what: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=f"session of a target: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def _offer(self, source: DeliverySource) -> Acceptance | None:
        """Offer the stream to the target; return what it says to that. None ends the session, with what was wrong."""
        try:
            answer = await self._target.accept(self.fence, source)
        except BaseException as error:  # noqa: BLE001 - raised again unless it is the target's doing
            self._end(_what_failed(error))
            return None
        if self._is_acceptance(answer):
            return answer
        self._end(_what_is_wrong(answer))
        return None

    async def _work(self, partition: PartitionId, lane: _Lane) -> None:
        """Apply the batches of a partition, and wait for more, until the session takes nothing any more."""
        apply, judge = self._target.apply, self._reception.judge
        while True:
            while lane.batches:
                batch, held_bytes = lane.batches.popleft()
                try:
                    applied = await apply(batch, judge)
                except BaseException as error:  # noqa: BLE001 - likewise
                    self._end(_what_failed(error))
                    return
                # A target may have gone on though it was cancelled: nobody is told any more.
                if self._over:
                    return
                if not _is_applied(batch, applied):
                    self._end(_what_is_wrong(applied))
                    return
                was_full = self.full
                self.held_bytes -= held_bytes
                self._tell(batch, applied)
                if self._over:
                    return
                if was_full and not self.full:
                    self._answers.eased()
            if not self._takes or len(self._lanes) > _LANES_MAX:
                self._lanes.pop(partition, None)
                return
            await lane.more()

    def _tell(self, batch: DeliveryBatch, applied: AppliedBatch) -> None:
        verdict = applied.verdict
        if verdict is Verdict.APPLY and not applied.refusal:
            if self.refused:
                self.refused.pop(batch.partition, None)
            self._answers.acknowledged(batch.partition, applied.last)
        elif verdict is Verdict.APPLY:
            self._reception.refuse(batch.partition)
            reason = redacted_text(applied.refusal, characters_max=REASON_CHARACTERS_MAX)
            self.refused[batch.partition] = f"the entry after id {applied.last}: {reason}"
            self._answers.refused(batch.partition, applied.last, reason)
        elif verdict is Verdict.FENCED:
            self.shut_out(applied.kept)
        elif verdict is Verdict.OUT_OF_PLACE:
            what = f"it has applied {applied.last}, and was sent what follows {batch.previous}"
            self._end(f"partition {batch.partition}: {what}")

    def _end(self, reason: str) -> None:
        if not self._over:
            self.close()
            self._answers.ended(reason)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # By `close`; or else what it had would never be answered.
            self._end("what works on it was cancelled")
        elif (error := task.exception()) is not None:
            self.close()
            self._answers.failed(error)

    def _is_acceptance(self, answer: Any) -> bool:
        return (
            isinstance(answer, Acceptance)
            and isinstance(answer.accepted, bool)
            and _is_fence(answer.kept)
            and (answer.kept == self.fence or not answer.accepted)
            and isinstance(answer.applied, Mapping)
            and all(isinstance(each, int) and 0 <= each <= _PARTITION_MAX for each in answer.applied)
            and all(map(_is_id, answer.applied.values()))
        )


def stream_health(source: DeliverySource, peer: str, session: TargetSession | None) -> dict[str, Any]:
    """Return what a server knows of a stream, for `TargetServer.health`."""
    return {
        "target": source.target,
        "player": source.player,
        "log": source.log_key.hex(),
        "from": peer,
        "accepted": session is not None and session.accepted,
        "epoch": 0 if session is None else session.fence.epoch,
        "term": 0 if session is None else session.fence.term,
        "waiting_bytes": 0 if session is None else session.held_bytes,
        "refused": {} if session is None else {str(each): why for each, why in session.refused.items()},
    }


class _Lane:
    """The batches of one partition that wait to be applied, by a task that waits for more once there are none."""

    __slots__ = ("_more", "batches")

    def __init__(self) -> None:
        self.batches: deque[tuple[DeliveryBatch, int]] = deque()
        """Each with the bytes that it counts for."""
        self._more: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def more(self) -> None:
        self._more = asyncio.get_running_loop().create_future()
        await self._more


def _checked(target: DeliveryTarget) -> DeliveryTarget:
    if isinstance(target, type) or not all(callable(getattr(target, name, None)) for name in ("accept", "apply")):
        what = redacted_text(target, repr)
        raise BadOption(f"{what} is no DeliveryTarget: give an object with methods accept and apply")
    return target


def _what_failed(error: BaseException) -> str:
    """Return what to tell of an error that a method of the target has raised. Raises it if it is a mistake of our own,
    or not the target's doing: a cancellation of the session's task, an exit."""
    if isinstance(error, asyncio.CancelledError) and not is_being_cancelled():
        return "the target cancelled its own call"
    if isinstance(error, InvariantViolated) or not isinstance(error, Exception):
        raise error
    text = redacted_text(error, str if isinstance(error, PolonaiseError) else repr)
    return redacted(f"the target failed: {text}", REASON_CHARACTERS_MAX)


def _what_is_wrong(answer: object) -> str:
    text = redacted(f"the target returned {redacted_text(answer, repr)}", REASON_CHARACTERS_MAX - 50)
    return f"{text}, which is not what DeliveryTarget says"


def _is_applied(batch: DeliveryBatch, answer: Any) -> bool:
    if not (
        isinstance(answer, AppliedBatch)
        and isinstance(answer.verdict, Verdict)
        and _is_fence(answer.kept)
        and isinstance(answer.refusal, str)
        and _is_id(answer.last)
    ):
        return False
    if answer.verdict is not Verdict.APPLY:
        return True
    return batch.previous <= answer.last < batch.last if answer.refusal else answer.last == batch.last


def _is_fence(given: Any) -> bool:
    return isinstance(given, Fence) and all(isinstance(each, int) and 0 <= each <= _ID_MAX for each in given)


def _is_id(given: Any) -> bool:
    return isinstance(given, int) and NO_TRANSACTION <= given <= _ID_MAX
