"""Running transaction contexts until they commit, are abandoned, fail, or run out of time."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from polonaise.client.appends import PartitionAppends
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Draft, Limits
from polonaise.client.protocol.locks import Lock
from polonaise.client.protocol.outcomes import Again, next_step
from polonaise.client.protocol.outstanding import AppendFailure, Unordered
from polonaise.client.protocol.turns import Turn, checked
from polonaise.client.receipt import Receipt
from polonaise.errors import Abandoned, AppendExpired, AppendUnknown, BadOption, ExpectationFailed, PolonaiseError
from polonaise.host import Host
from polonaise.terms import FailureReason, PartitionId, TransactionId

Context: TypeAlias = Callable[..., Awaitable[Any] | Any]
"""`context(tx, *args)`: builds one transaction on `tx`, a `Draft`. A plain function or a coroutine function.

It may run several times, each time on newer state, so it must do nothing but read and build.
"""

_NOTHING_APPENDED = "the context appended nothing"


class OutcomeKind(enum.Enum):
    """How a submission can end."""

    COMMITTED = "committed"
    """The transaction is in the log: `receipt` says where."""
    ABANDONED = "abandoned"
    """The context decided to append nothing, or did not append anything (`Abandoned`)."""
    EXPIRED = "expired"
    """The deadline passed; nothing was appended, and nothing will be (`AppendExpired`): submit it again."""
    RAISED = "raised"
    """The context, or what it asked for, failed in a way that trying again does not mend; nothing was appended."""
    UNKNOWN = "unknown"
    """The append was sent and its fate is not known (yet), it may commit (`AppendUnknown`): await `receipt`."""


class Outcome(NamedTuple):
    """How a submission ended."""

    kind: OutcomeKind
    receipt: Receipt | None = None
    """COMMITTED and UNKNOWN: the append's."""
    error: BaseException | None = None
    """What awaiting the submission raises; None when committed."""


class _Tally:
    """How often a context has run in vain, and why: said when its time is over."""

    __slots__ = ("because", "conflicts", "last", "overtaken", "races", "refused")

    def __init__(self) -> None:
        self.refused = 0
        self.conflicts = 0
        self.races = 0
        """How often the position that it demanded was taken before its append was ordered."""
        self.last = -1
        """The transaction that the last conflict was with."""
        self.overtaken = ""
        """The position that the last append demanded, if that is why it was refused, and where the log was by then."""
        self.because = ""
        """What kept the last append that failed, as far as is known."""

    def add(self, failure: AppendFailure, position: TransactionId | None) -> None:
        self.refused += 1
        self.overtaken = ""
        self.because = f"; what kept the last one: {failure.cause}" if failure.cause else ""
        if failure.reason is FailureReason.LOCK_CONFLICT:
            self.conflicts += 1
            self.last = failure.value
        elif failure.reason is FailureReason.EXPECTATION_FAILED and position is not None:
            self.races += 1
            self.overtaken = f"; the last demanded position {position}, and the log's next was {failure.value}"

    def __str__(self) -> str:
        told = f"before that the context ran, and its append was refused, {self.refused} times"
        if self.conflicts:
            told += (
                f", {self.conflicts} of them for conflicts of its locks, the last with transaction {self.last}: "
                "lock less, or give it more time"
            )
        return told + self.overtaken


class Running:
    """Runs contexts for one client."""

    def __init__(
        self, host: Host, limits: Limits, encode: Callable[[Any], bytes] | None, retry_s: tuple[float, float]
    ) -> None:
        self._host = host
        self._limits = limits
        self._encode = encode
        self._retry_s = retry_s

    async def run(
        self,
        appends: PartitionAppends,
        context: Context,
        args: tuple[Any, ...],
        timeout: float | None,
        *,
        deadline_s: float | None = None,
        waits_for: Callable[[], str] = lambda: "",
    ) -> Receipt:
        """Run a context until what it appends is committed, as `Log.run` says.

        `deadline_s`, a time of the loop, is when `timeout` is over if part of it was spent before. `waits_for` says
        what a context that is given up was waiting for, if that is not the application's.
        """
        check_leaves_time(timeout, appends.partition)
        run = _Run(self._host, appends, self._retry_s, timeout, deadline_s, waits_for)
        try:
            while True:
                # Most contexts need not wait here, and a coroutine that does not wait still has its price.
                mark = run.begin_now()
                draft = Draft(
                    appends.partition, await run.begin() if mark is None else mark, self._limits, self._encode
                )
                try:
                    value = context(draft, *args)
                    if value is not None and hasattr(value, "__await__"):
                        value = await run.awaited(value)
                    receipt = run.append(draft, value)
                finally:
                    draft.end()
                    appends.admission.give_back()
                del draft  # thousands may wait for their fates at a time, and none needs it for that
                if receipt is None:
                    continue
                try:
                    await receipt.wait(run.deadline_s)
                except (TimeoutError, asyncio.CancelledError) as error:
                    run.give_up(receipt, error)
                if receipt.failure is None:
                    run.committed(receipt)
                    return receipt
                await run.refused(receipt)
        finally:
            run.end()


def check_leaves_time(timeout: float | None, partition: PartitionId) -> None:
    """Raises `AppendExpired` for 0 seconds: that is no time to append anything in."""
    if timeout == 0:
        raise AppendExpired(
            f"nothing was appended to partition {partition}, and nothing will be: "
            "timeout=0 leaves no time to; give it seconds, or None for as long as it takes"
        )


class _Run:
    """One context on its way: its deadline, its turn among others that want the same, and how often it was refused."""

    __slots__ = ("_appends", "_backoff", "_began_s", "_host", "_locks", "_position", "_retry_s", "_tally", "_timeout",
                 "_turn", "_waits_for", "deadline_s")  # fmt: skip

    def __init__(
        self,
        host: Host,
        appends: PartitionAppends,
        retry_s: tuple[float, float],
        timeout: float | None,
        deadline_s: float | None,
        waits_for: Callable[[], str],
    ) -> None:
        self._host = host
        self._appends = appends
        self._retry_s = retry_s
        self._timeout = timeout
        self._backoff: Backoff | None = None
        self._turn: Turn | None = None
        self._tally: _Tally | None = None
        """None before it was refused."""
        self._began_s = 0.0
        self._locks: Sequence[Lock] = ()
        """The locks of the append that was built last; the next field is the position that it demands."""
        self._position: TransactionId | None = None
        self._waits_for = waits_for
        self.deadline_s = appends.loop.time() + timeout if deadline_s is None and timeout is not None else deadline_s

    def begin_now(self) -> TransactionId | None:
        """Begin at once, with what `begin` returns, if there is nothing to wait for; else return None."""
        appends = self._appends
        if self._turn is not None or not appends.admission.take_now():
            return None
        self._began_s = appends.loop.time()
        return appends.mark.value

    async def begin(self) -> TransactionId:
        """Wait until the context may run, with a slot for its append; the mark that it will be judged by."""
        appends = self._appends
        if self._turn is not None:
            try:
                await appends.turntaking.wait(self._turn, self._host.random.random, self.deadline_s)
            except TimeoutError:
                why = f"others that want the same locks came first: {appends.lag()}"
                raise self._expired(why) from None
        try:
            await appends.admission.take(self.deadline_s)
        except TimeoutError:
            raise self._expired(appends.obstacle()) from None
        self._began_s = appends.loop.time()
        return appends.mark.value

    def _took_too_long(self) -> str:
        """What took the time: this run of the context, or those before it that were refused."""
        if waited := self._waits_for():
            return waited
        ran_s = self._appends.loop.time() - self._began_s
        if self._tally is not None and ran_s < (self._timeout or 0) / 2:
            return f"its time was over after one more run of the context, which took {round(ran_s, 2):g} s"
        return "the context took too long"

    async def awaited(self, made: Awaitable[Any]) -> Any:
        """What a context that is a coroutine returns, within the deadline."""
        if self.deadline_s is None:
            return await made
        limit = asyncio.timeout_at(self.deadline_s)
        try:
            async with limit:
                return await made
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._expired(self._took_too_long()) from None

    def append(self, draft: Draft, value: Any) -> Receipt | None:
        """Append what the context built, which returned `value`; None if others that want the same go first.

        Raises unless the context has built something that can be appended, in time.
        """
        _check(draft, value)
        appends = self._appends
        if self.deadline_s is not None and appends.loop.time() >= self.deadline_s:
            raise self._expired(self._took_too_long())
        self._locks, self._position = draft.locks, draft.position
        turns = appends.turntaking.turns
        if self._turn is None and turns.wanted(draft.locks) and turns.contended(wanted := checked(draft.locks)):
            # It would be refused, or push itself in.
            self._turn = turns.join(wanted)
            return None
        receipt = appends.append_draft(draft)
        receipt.value = value
        return receipt

    def committed(self, receipt: Receipt) -> None:
        """The append is in the log: those who wait for its locks go on once this client has applied it."""
        turntaking = self._appends.turntaking
        if turntaking.turns.wanted(self._locks):
            turntaking.turns.committed(checked(self._locks), receipt.last_id)
        if self._turn is not None:
            turntaking.leave_once_applied(self._turn, receipt.last_id, self._began_s)
            self._turn = None

    async def refused(self, receipt: Receipt) -> None:
        """Wait until the context may run again, after its append has failed. Raises what running it can't mend."""
        failure = receipt.failure
        assert failure is not None
        if failure.reason in (Unordered.UNKNOWN, Unordered.STOPPED):
            await receipt
        if self._tally is None:
            self._tally = _Tally()
        again = next_step(failure, self._position, self._tally.races)
        self._tally.add(failure, self._position)
        if again is None:
            await receipt
            raise AssertionError(f"append {receipt.sequence} failed, and says not why")
        turns, conflict = self._appends.turntaking.turns, failure.reason is FailureReason.LOCK_CONFLICT
        if conflict and self._turn is None:
            self._turn = turns.join(checked(self._locks))
        await self._wait_to_run_again(again)
        if conflict and self._turn is not None:
            turns.beaten(self._turn, again.after)

    def end(self) -> None:
        """It is over: whoever waits behind it goes on."""
        if self._turn is not None:
            self._appends.turntaking.leave(self._turn)

    def give_up(self, receipt: Receipt, error: BaseException) -> None:
        """The append's fate is waited for no longer, for this error: raises what the caller is told.

        Returns if the append was settled at that very moment.
        """
        appends = self._appends
        if isinstance(error, asyncio.CancelledError):
            appends.withdraw(receipt)
            raise error
        obstacle = appends.obstacle()
        if appends.withdraw(receipt):
            raise self._expired(f"the append was never sent: {obstacle}") from None
        if not receipt.settled:
            raise AppendUnknown(
                f"append {receipt.sequence} to partition {appends.partition} was sent and is not decided after "
                f"{self._timeout:g} s: it may still commit; await the error's receipt{appends.silence()}",
                receipt,
            ) from None

    async def _wait_to_run_again(self, again: Again) -> None:
        appends, deadline_s = self._appends, self.deadline_s
        try:
            await appends.mark.wait(again.after, deadline_s)
        except TimeoutError:
            raise self._expired(f"waited for {again.after} to be applied: {appends.lag()}") from None
        if not again.pause:
            return
        if self._backoff is None:
            self._backoff = Backoff(*self._retry_s)
        pause_s = self._backoff.pause_s(self._host.random.random())
        now = self._appends.loop.time()
        if deadline_s is not None and now + pause_s >= deadline_s:
            await asyncio.sleep(max(0.0, deadline_s - now))
            raise self._expired(
                f"appends failed again and again{(self._tally and self._tally.because) or appends.because()}"
            )
        await asyncio.sleep(pause_s)

    def _expired(self, why: str) -> AppendExpired:
        often = "" if self._tally is None else f"; {self._tally}"
        return AppendExpired(
            f"nothing was appended to partition {self._appends.partition} within {self._timeout or 0:g} s, "
            f"and nothing will be: {why}{often}"
        )


def _check(draft: Draft, made: Any) -> None:
    if draft.abandoned is not None:
        raise Abandoned(draft.abandoned)
    if not draft.bodies:
        if draft.operations:
            raise BadOption("a context that changes or expects registers has to append something: a body may be empty")
        if isinstance(made, Generator | AsyncGenerator):
            raise BadOption("a context that yields never ran: write a plain function, or a coroutine function")
        raise Abandoned(_NOTHING_APPENDED)
    if draft.position is not None and draft.position <= draft.high_water_mark:
        raise ExpectationFailed(
            f"nothing was appended to partition {draft.partition}: the context demands position {draft.position}, and "
            f"ids up to {draft.high_water_mark} are taken: take the position from tx.high_water_mark"
        )


class Submission:
    """A context that is being run behind the caller's back. `await` it for the receipt, or ask for its outcome."""

    __slots__ = ("_task", "_traceback")

    def __init__(self, task: asyncio.Task[Receipt]) -> None:
        self._task = task
        self._traceback: TracebackType | None = None

    def __await__(self) -> Generator[Any, None, Receipt]:
        """The receipt, once committed; raises what ended it otherwise. Giving up waiting does not end it."""
        return self._ended().__await__()

    async def _ended(self) -> Receipt:
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise self._kept(error)
        return self._task.result()

    def _kept(self, error: BaseException) -> BaseException:
        """What ended it, with the traceback of the first time, however often it is raised."""
        if self._traceback is None:
            self._traceback = error.__traceback__
        return error.with_traceback(self._traceback)

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._task.done()

    def cancel(self) -> None:
        """End it. An append that was sent may commit all the same."""
        self._task.cancel()

    async def outcome(self) -> Outcome:
        """How it ended, as a value: raises nothing but the waiter's own cancellation."""
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return Outcome(OutcomeKind.RAISED, None, asyncio.CancelledError())
        error = self._task.exception()
        if error is None:
            return Outcome(OutcomeKind.COMMITTED, self._task.result())
        self._kept(error)
        if isinstance(error, AppendUnknown):
            return Outcome(OutcomeKind.UNKNOWN, error.receipt, error)
        kinds: dict[type[PolonaiseError], OutcomeKind] = {
            Abandoned: OutcomeKind.ABANDONED,
            AppendExpired: OutcomeKind.EXPIRED,
        }
        for of, kind in kinds.items():
            if isinstance(error, of):
                return Outcome(kind, None, error)
        return Outcome(OutcomeKind.RAISED, None, error)
