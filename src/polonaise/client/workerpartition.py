"""The work of one worker in one partition: it reads, handles in order, and goes on after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from polonaise.applicationcode import OrdinaryErrors
from polonaise.client.batchreader import BatchReader
from polonaise.client.clientparts import ClientParts
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.subscription import ahead_of_log
from polonaise.client.waiting import end
from polonaise.client.workerprogress import Progress
from polonaise.errors import (
    DeadlineExceeded,
    InvariantViolated,
    PolonaiseError,
    ViewFailed,
    ViewUnavailable,
    WorkerFenced,
)
from polonaise.log.batch import Batch
from polonaise.redaction import redacted, redacted_text
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

SAVE_S: Final = 1.0
"""Seconds after which a handler's position is saved at the latest."""
_SAVE_COUNT: Final = 1_000
"""Transactions after which it is saved as well."""
_PAUSE_S_MAX: Final = 10.0
_TROUBLE_CHARACTERS: Final = 1_000
"""The most of a trouble that is told: what to do is at its end."""
_SILENT_S_MAX: Final = 5.0
"""Seconds without an answer about the committed high-water mark after which that is told: a hand-over takes one."""

_log = logging.getLogger("polonaise.client")


class PartitionWork:
    """A worker's work in one partition, for as long as it has the lease."""

    def __init__(
        self,
        parts: ClientParts,
        partition: PartitionId,
        progress: Progress,
        holds: Callable[[], bool],
        progress_s_max: float,
    ) -> None:
        """Begin the work; `holds()` says whether this worker has the partition's lease. A step that takes longer than
        `progress_s_max` seconds is told as trouble, and goes on."""
        self._parts = parts
        self.partition = partition
        self.progress = progress
        self._holds = holds
        self._progress_s_max = progress_s_max
        self._step = ""
        """What is being done just now; empty while it waits for transactions, or between two attempts."""
        self._step_s = 0.0
        self._stopping = False
        self._may_be_woken = self._is_woken = False
        self._saved_s = 0.0
        self._saved_at: TransactionId = -1
        self.state = "takes over"
        self._failed = ""
        """The last failure, until that has succeeded which failed."""
        self._unseen_when_over = False
        """Whether it was a read that failed: the next one may wait at the end of the log, and gives no sign of that."""
        self.committed: TransactionId | None = None
        """The committed high-water mark when it was last asked for; None if there was no answer."""
        self._answered_s = self._now_s()
        """When it was answered last, or the work began."""
        self._log_end: TransactionId | None = None
        """Where the log ended when it was found to end below the position; None while it does not."""
        self._unanswered = ""
        """Why the mark was not answered; empty if it was."""
        self.fenced = False
        """Whether another worker has taken the partition over."""
        # Last: the task may use everything above from its first step on.
        self.task: Final = parts.host.spawn(self._run(), f"client: worker of partition {partition}")

    def stop(self) -> None:
        """Let the work come to its end: after the transaction that is being handled, with its position saved."""
        if self._stopping:
            return
        self._stopping = True
        self._wake()

    def give_up(self) -> None:
        end(self.task)

    @property
    def lag(self) -> int | None:
        """How many transactions behind the committed high-water mark it is; None while not known."""
        if self.committed is None or not self.progress.epoch or self._log_end is not None:
            return None
        return max(0, self.committed - self.progress.position)  # which may have moved since that was answered

    @property
    def trouble(self) -> str:
        """What keeps this partition from going on; empty while it goes on."""
        if self._failed:
            return "" if self._unseen_when_over and self.lag == 0 else self._failed
        took_s = self._now_s() - self._step_s
        if self._step and took_s > self._progress_s_max:
            return f"{self._step} has taken {took_s:.0f} s so far{self.progress.may_wait_for}"
        silent_s = self._now_s() - self._answered_s
        if self._unanswered and silent_s > _SILENT_S_MAX:
            return f"how far the log is has not been known for {silent_s:.0f} s: {self._unanswered}"
        return ""

    def health(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "epoch": self.progress.epoch,
            "position": self.progress.position,
            "lag": self.lag,
            "trouble": self.trouble,
        }

    # ------------------------------------------------------------------ beside the task

    async def watch(self, within_s: float) -> None:
        """Ask how far the log is, and do what the task can't while it is stuck, or has nothing to read.

        Keeps the position before a transaction that fails or takes long, ends the work if another worker or an operator
        has taken the partition over, and has a position read anew that the log does not reach. Each request takes at
        most `within_s` seconds.
        """
        position = self.progress.position if self.state == "works" else NO_TRANSACTION
        await self._ask_mark(within_s)
        if self.committed is not None and self.committed < position and self.state == "works":
            self._log_end, self.state = self.committed, "takes over"
            self._tell(ahead_of_log(self.partition, position, self.committed))
            self._wake()
        try:
            async with asyncio.timeout(within_s):
                if self.state == "works" and self.progress.unsaved and self._holds() and self._is_time_to_save():
                    await self._keep_position()
                elif self.state == "works" and (self.progress.doubtful or self._is_stuck()):
                    await self.progress.check()
        except WorkerFenced as error:
            self.fenced = True
            self._failed = str(error)
            _log.info("%s", error)
            self.give_up()
        except (TimeoutError, PolonaiseError) as error:
            _log.debug("worker of partition %d: %r", self.partition, error)  # and again with the next look

    def look(self, error: ViewUnavailable | ViewFailed | None) -> None:
        """Have the partition taken over anew: its view has gone back, or is away, as `error` says."""
        if self.state == "works":
            self.state = "takes over"
            if error is not None:
                self._tell(error)
            self._wake()

    def _is_stuck(self) -> bool:
        return bool(self._failed) or (bool(self._step) and self._now_s() - self._step_s > SAVE_S)

    async def _ask_mark(self, within_s: float) -> None:
        try:
            self.committed = await self._parts.requests.high_water_mark(self.partition, within_s)
        except PolonaiseError as error:
            self.committed = None
            self._unanswered = redacted(error, _TROUBLE_CHARACTERS)
        else:
            self._answered_s, self._unanswered = self._now_s(), ""

    # ------------------------------------------------------------------ the task

    async def _run(self) -> None:
        try:
            while not self._stopping and await self._until_done(self._read):
                pass
            is_sure, self.state = self.state == "works", "stops"
            if is_sure and self.progress.unsaved and self._holds():
                await self._until_done(self._save, once=True)
        except WorkerFenced as error:
            self.fenced = True
            self._failed = str(error)
            _log.info("%s", error)
        finally:
            self.state, self._step = "stopped", ""

    async def _until_done(self, step: Callable[[], Any], *, once: bool = False) -> bool:
        """Do a step until it succeeds; return False if the work is to end first. Raises `WorkerFenced`."""
        backoff = Backoff(self._parts.settings.retry_s_min, _PAUSE_S_MAX)
        while self._holds():
            try:
                with OrdinaryErrors("the handler or view"):
                    await step()
            except (WorkerFenced, InvariantViolated):
                raise
            except Exception as error:  # noqa: BLE001 - the application's own code, among others; told and tried again
                self._unseen_when_over = not self._step
                self._step = ""
                self._tell(error)
            else:
                return True
            if once:
                return False
            await self._wait(asyncio.sleep(backoff.pause_s(self._parts.host.random.random())))
            if self._stopping:
                return False
        return False

    def _tell(self, error: Exception) -> None:
        said = redacted_text(error, repr)
        trouble = redacted(f"from transaction {self.progress.position + 1} on: {said}", _TROUBLE_CHARACTERS)
        if trouble != self._failed:
            self._failed = trouble
            _log.warning("worker of partition %d: %s", self.partition, trouble)

    async def _take_over(self) -> None:
        """Raise the epoch and read the position. Raises `ClientAhead` for one that the log does not reach."""
        self._begin("taking over")
        await self.progress.take_over()
        self._step = ""
        await self._wait(self._compare())
        if not self._stopping:
            self.state, self._failed = "works", ""
            self._saved_s = self._now_s()

    async def _compare(self) -> None:
        """Raise `ClientAhead` if the log ends below the position, or did when that was seen first. A log that has grown
        past it since is another one: to go on would leave out what it has below."""
        position, known = self.progress.position, self._log_end
        self.committed = await self._parts.requests.high_water_mark(self.partition, None)
        end = self.committed if known is None else min(known, self.committed)
        self._log_end = end if position > end else None
        if self._log_end is not None:
            raise ahead_of_log(self.partition, position, end)

    async def _save(self) -> None:
        self._begin("saving the position")
        await self._keep_position()

    async def _keep_position(self) -> None:
        position = self.progress.position
        await self.progress.save()
        self._saved_s, self._saved_at = self._now_s(), position

    def _begin(self, step: str) -> None:
        self._step, self._step_s = step, self._now_s()

    async def _read(self) -> None:
        """Read from the position on, and handle what comes, until the work is to end or the position is in doubt."""
        if self.state != "works":
            await self._take_over()
        if self.progress.unsaved:  # the attempt before this one has failed, and so may this one, for a long time
            await self._save()
        requests, settings = self._parts.requests, self._parts.settings
        reader = BatchReader(
            requests, settings, self.partition,
            after=self.progress.position, follow=True, timeout=settings.answer_s_max,
        )  # fmt: skip
        try:
            while not self._stopping and self._holds() and self.state == "works":
                batch = await self._next(reader)
                if batch is not None and self.state == "works":
                    await self._handle(batch)
                if self.state == "works":
                    self._failed = "" if batch is not None else self._failed
                    if self.progress.unsaved and self._is_time_to_save():
                        await self._save()
                self._step = ""
        finally:
            await reader.aclose()

    async def _next(self, reader: BatchReader) -> Batch | None:
        found: list[Batch] = []

        async def get() -> None:
            try:
                async with asyncio.timeout(SAVE_S if self.progress.unsaved else None):
                    found.append(await anext(reader))
            except (TimeoutError, DeadlineExceeded):
                pass

        await self._wait(get())
        return found[0] if found else None

    async def _handle(self, batch: Batch) -> None:
        settings, progress = self._parts.settings, self.progress
        transactions = list(batch.transactions(progress.position, own=True))
        for start in range(0, len(transactions), settings.run_count_max):
            run = transactions[start : start + settings.run_count_max]
            await progress.handle(run, self._goes_on)
            if progress.position > run[-1].id:  # moved by something else than this worker, who has the epoch
                self.committed, self.state = None, "takes over"
            if not self._goes_on():
                return

    def _goes_on(self) -> bool:
        """Whether to handle what comes next: asked before each transaction, or each run of a view."""
        self._begin(f"transaction {self.progress.position + 1}")
        return not self._stopping and self._holds() and self.state == "works"

    def _is_time_to_save(self) -> bool:
        return self._now_s() - self._saved_s >= SAVE_S or self.progress.position - self._saved_at >= _SAVE_COUNT

    async def _wait(self, waiting: Any) -> bool:
        """Wait for something that `stop`, or a position in doubt, may break off."""
        if self._stopping:
            waiting.close()
            return False
        self._may_be_woken = True
        try:
            await waiting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if not self._is_woken or task.uncancel() > 0:
                raise
            self._is_woken = False
            return False
        finally:
            self._may_be_woken = False
        return True

    def _wake(self) -> None:
        if self._may_be_woken:
            self._may_be_woken, self._is_woken = False, True
            end(self.task)

    def _now_s(self) -> float:
        return self._parts.host.clock.monotonic_s()
