"""Runs transaction contexts until they commit, are abandoned, fail, or run out of time."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

from polonaise.client.appends import CopiedReceipt, PartitionAppends, Receipt
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Built, Draft, built, finish
from polonaise.client.protocol.locks import Lock
from polonaise.client.protocol.outcomes import Again, lacking, next_step
from polonaise.client.protocol.outstanding import AppendFailure, Unordered
from polonaise.client.protocol.turns import Turn, checked
from polonaise.client.settings import ClientSettings
from polonaise.client.waiting import end, ended_here
from polonaise.errors import (
    Abandoned,
    AppendExpired,
    AppendUnknown,
    BadOption,
    CopiesUnproved,
    ExpectationFailed,
    PolonaiseError,
    fresh,
)
from polonaise.host import Host
from polonaise.terms import FailureReason, PartitionId, TransactionId

Context: TypeAlias = Callable[..., Awaitable[Any] | Any]
"""A transaction context: `context(tx, *args)` builds one transaction on `tx`, a `Draft`. A plain function or a
coroutine function. It may run several times, each time on what the view holds by then, so it must only read the view's
state and build."""


IN_CONTEXT: Final[ContextVar[PartitionId | None]] = ContextVar("polonaise_in_context", default=None)
"""The partition of the context that runs, so that a view knows which mark it is judged at; None outside."""


class OutcomeKind(enum.Enum):
    """The ways in which a submission can end."""

    COMMITTED = "committed"
    """The transaction is in the log; `receipt` says where."""
    ABANDONED = "abandoned"
    """The context gave up, or appended nothing (`Abandoned`)."""
    EXPIRED = "expired"
    """The deadline passed; nothing was appended, and nothing will be (`AppendExpired`)."""
    RAISED = "raised"
    """The context or its append failed in a way that another run does not mend, or was cancelled; see `error`. With
    `CopiesUnproved` the append is in the log, and `receipt` is there to wait for the proof; after a cancellation it may
    be in the log; else it is not."""
    UNKNOWN = "unknown"
    """The append was sent, and may still commit (`AppendUnknown`): await `receipt` for its fate, unless the client was
    closed or the partition stopped."""


class Outcome(NamedTuple):
    """How a submission ended."""

    kind: OutcomeKind
    receipt: Receipt | None = None
    """The append's receipt for COMMITTED, UNKNOWN, and RAISED with `CopiesUnproved`; else None."""
    error: BaseException | None = None
    """The error that awaiting the submission raises; None when COMMITTED."""


class _Tally:
    """Counts the refused appends of one context, for the message of `AppendExpired`."""

    __slots__ = ("because", "conflicts", "lacking", "last", "overtaken", "races", "refused")

    def __init__(self) -> None:
        self.refused = 0
        self.conflicts = 0
        self.races = 0
        """How often another transaction had taken the demanded position."""
        self.last = -1
        """The id to be applied after the last conflict; -1 before any."""
        self.overtaken = ""
        """A clause on the demanded position, if the last append was refused for that."""
        self.lacking = ""
        """A clause on the lacking replicas, if the last append was refused for that."""
        self.because = ""
        """A clause on what held up the last failed append."""

    def add(self, failure: AppendFailure, position: TransactionId | None, receipt: Receipt) -> None:
        self.refused += 1
        self.overtaken = self.lacking = ""
        self.because = f"; what held up the last one: {failure.cause}" if failure.cause else ""
        if failure.reason is FailureReason.LOCK_CONFLICT:
            self.conflicts += 1
            self.last = failure.value
        elif failure.reason is FailureReason.EXPECTATION_FAILED and position is not None:
            self.races += 1
            self.overtaken = f"; the last demanded position {position}, and the log's next was {failure.value}"
        elif failure.reason is FailureReason.INSUFFICIENT_REPLICAS:
            self.lacking = f"; the last because {lacking(receipt)}"

    def __str__(self) -> str:
        text = f"before that the context ran, and its append was refused, {self.refused} times"
        if self.conflicts:
            text += (
                f", {self.conflicts} of them for conflicts of its locks, the last for what transaction {self.last} "
                "or one before it may have changed: lock less, or give it more time"
            )
        return text + self.overtaken + self.lacking


class Running:
    """Runs the contexts of one client."""

    def __init__(self, host: Host, settings: ClientSettings, encode: Callable[[Any], bytes] | None) -> None:
        self._host = host
        self._settings = settings
        self._encode = encode

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
        """Run a context until its append is committed; see `Log.run`.

        `deadline_s`, a time of the loop, is when `timeout` is over, if part of it was spent before the call.
        `waits_for` returns what a context that ran out of time waited for, if that was the library and not the
        application.
        """
        check_leaves_time(timeout, appends.partition)
        run = _Run(self._host, appends, self._settings, timeout, deadline_s, waits_for)
        limits = self._settings.limits
        try:
            while True:
                # The mark is taken before the context reads anything: what it reads later is at least that new, and
                # anything newer counts as a conflict. Most contexts need not wait for their turn or for room, and a
                # coroutine that does not wait still has its price.
                mark = run.begin_now()
                if mark is None:
                    mark = await run.begin()
                draft = Draft(appends.partition, mark, limits, self._encode)
                around = IN_CONTEXT.get()
                IN_CONTEXT.set(appends.partition)
                try:
                    value = context(draft, *args)
                    if value is not None and hasattr(value, "__await__"):
                        value = await run.awaited(value)
                    receipt = run.append(built(draft), value)
                finally:
                    # Refuses what a task that the context left behind would add. By now the append counts by itself,
                    # if there is one; the slot was held so that what the context built could surely be appended.
                    # By its value: with a token it would fail where the coroutine is closed in another task.
                    IN_CONTEXT.set(around)
                    finish(draft)
                    appends.admission.give_back()
                del draft  # frees its bodies: thousands of contexts may wait for a fate at a time
                if receipt is None:
                    continue  # others go first; `begin` waits for its turn
                try:
                    await receipt.wait(run.deadline_s)
                except (TimeoutError, asyncio.CancelledError) as error:
                    run.give_up(receipt, error)  # returns only if the append was settled at the last moment
                if receipt.failure is None:
                    run.committed(receipt)
                    return receipt
                await run.refused(receipt)
        finally:
            # However it ended, cancelled or not: the contexts behind it must not wait for its turn for ever.
            run.end()


def check_leaves_time(timeout: float | None, partition: PartitionId) -> None:
    if timeout == 0:
        raise AppendExpired(
            f"nothing was appended to partition {partition}, and nothing will be: "
            "timeout=0 leaves no time for it; pass seconds, or None for no bound"
        )


class _Run:
    """The runs of one context: their deadline, their turn among contexts with the same locks, their refusals."""

    __slots__ = ("_appends", "_backoff", "_began_s", "_host", "_locks", "_position", "_settings", "_tally", "_timeout",
                 "_turn", "_waits_for", "deadline_s")  # fmt: skip

    def __init__(
        self,
        host: Host,
        appends: PartitionAppends,
        settings: ClientSettings,
        timeout: float | None,
        deadline_s: float | None,
        waits_for: Callable[[], str],
    ) -> None:
        self._host = host
        self._appends = appends
        self._settings = settings
        self._timeout = timeout
        self._backoff: Backoff | None = None
        self._turn: Turn | None = None
        self._tally: _Tally | None = None
        """None until there is a refusal."""
        self._began_s = 0.0
        self._locks: Sequence[Lock] = ()
        """The locks of the append that was built last."""
        self._position: TransactionId | None = None
        """The id that the append that was built last demands; None if it demands none, and before the first append."""
        self._waits_for = waits_for
        self.deadline_s = appends.loop.time() + timeout if deadline_s is None and timeout is not None else deadline_s

    def begin_now(self) -> TransactionId | None:
        """Begin a run if there is nothing to wait for, as `begin` does; else return None."""
        appends = self._appends
        if self._turn is not None or not appends.admission.take_now():
            return None
        self._began_s = appends.loop.time()
        return appends.mark.value

    async def begin(self) -> TransactionId:
        """Wait until the context may run, take a slot for its append, and return the mark that it is judged by. Raises
        `AppendExpired`, and the error that stopped the partition."""
        appends = self._appends
        # The turn first: a slot that is held while waiting for a turn would be missing to contexts that can go on, the
        # ones before it among them.
        if self._turn is not None:
            try:
                await appends.turntaking.wait(self._turn, self._host.random.random, self.deadline_s)
            except TimeoutError:
                why = f"other contexts with the same locks came first: {appends.lag()}"
                raise self._expired(why) from None
        try:
            await appends.admission.take(self.deadline_s)
        except TimeoutError:
            raise self._expired(appends.why_it_waits()) from None
        self._began_s = appends.loop.time()
        return appends.mark.value

    def _took_too_long(self) -> str:
        """Return what took the time, for a message."""
        if waited := self._waits_for():
            return waited
        ran_s = self._appends.loop.time() - self._began_s
        if self._tally is not None and ran_s < (self._timeout or 0) / 2:
            again = f"the time was over after one more run of the context, which took {round(ran_s, 2):g} s"
            return f"{again}{self._held_up()}"
        return "the context took too long"

    def _held_up(self) -> str:
        return (self._tally and self._tally.because) or self._appends.because()

    async def awaited(self, awaitable: Awaitable[Any]) -> Any:
        if self.deadline_s is None:
            return await awaitable
        limit = asyncio.timeout_at(self.deadline_s)
        try:
            async with limit:
                return await awaitable
        except TimeoutError:
            if not limit.expired():
                raise  # the application's own `TimeoutError`
            raise self._expired(self._took_too_long()) from None

    def append(self, built: Built, value: Any) -> Receipt | None:
        """Append what the context built; return its receipt, or None if contexts with the same locks go first.

        Raises `Abandoned`, `BadOption` or `ExpectationFailed` if what it built can't be appended, `AppendExpired` after
        the deadline, and what `PartitionAppends.append_built` raises.
        """
        _check(built, value, self._appends.partition)
        appends = self._appends
        if self.deadline_s is not None and appends.loop.time() >= self.deadline_s:
            raise self._expired(self._took_too_long())  # `awaited` does not see a plain function that took too long
        self._locks, self._position = built.locks, built.position
        turns = appends.turntaking.turns
        if self._turn is None and turns.wanted(built.locks) and turns.contended(wanted := checked(built.locks)):
            # Sent now, the append would be refused, or make the append of a context that came before be refused.
            self._turn = turns.join(wanted)
            return None
        receipt = appends.append_built(built)
        receipt.value = value
        return receipt

    def committed(self, receipt: Receipt) -> None:
        """Let the contexts behind go on once this client has applied the append, which is committed."""
        turntaking = self._appends.turntaking
        if turntaking.turns.wanted(self._locks):
            turntaking.turns.committed(checked(self._locks), receipt.last_id)
        if self._turn is not None:
            # Not at once: the next context would run on a state without this transaction, and be refused.
            turntaking.leave_once_applied(self._turn, receipt.last_id, self._began_s)
            self._turn = None

    async def refused(self, receipt: Receipt) -> None:
        """Wait until the context may run again, after its append has failed. Raises the append's error if another run
        would not help, `AppendExpired`, and the error that stopped the partition."""
        failure = receipt.failure
        assert failure is not None
        if failure.reason in (Unordered.UNKNOWN, Unordered.STOPPED):
            # The partition has stopped, or the client. Where the append was sent, another run might append it twice.
            await receipt  # raises
        if self._tally is None:
            self._tally = _Tally()
        again = next_step(failure, self._position, self._tally.races)
        self._tally.add(failure, self._position, receipt)
        if again is None:
            await receipt  # raises
            raise AssertionError(f"append {receipt.sequence} failed, and its receipt raised no error")
        turns, conflict = self._appends.turntaking.turns, failure.reason is FailureReason.LOCK_CONFLICT
        # Joined before waiting for the conflicting transaction to be applied: places are in the order of refusals.
        if conflict and self._turn is None:
            self._turn = turns.join(checked(self._locks))
        await self._wait_to_run_again(again)
        # After the wait: which client wrote the conflicting transaction is known only once that was fed.
        if conflict and self._turn is not None:
            turns.beaten(self._turn, again.after)

    def end(self) -> None:
        """Give up the turn, if it is still taken: the run is over, whatever has come of it."""
        if self._turn is not None:
            self._appends.turntaking.leave(self._turn)

    def give_up(self, receipt: Receipt, error: BaseException) -> None:
        """Raise what the caller is told when waiting for the append's fate ends with this error. After a deadline,
        returns if the append was settled at that very moment."""
        appends = self._appends
        if isinstance(error, asyncio.CancelledError):
            appends.withdraw(receipt)
            raise error
        why = appends.why_it_waits()  # before withdrawing, which would leave this append out of what is undecided
        if appends.withdraw(receipt):
            raise self._expired(f"the append was never sent: {why}") from None
        if not receipt.settled:
            raise AppendUnknown(
                f"append {receipt.sequence} to partition {appends.partition} was sent and is not decided after "
                f"{self._timeout:g} s: it may still commit; await the error's receipt{appends.silence()}",
                receipt,
            ) from None
        if isinstance(receipt, CopiedReceipt) and not receipt.done:
            raise receipt.unproved(receipt.late(self._timeout)) from None

    async def _wait_to_run_again(self, again: Again) -> None:
        appends, deadline_s = self._appends, self.deadline_s
        try:
            await appends.mark.wait(again.after, deadline_s)
        except TimeoutError:
            raise self._expired(f"waited for transaction {again.after} to be applied: {appends.lag()}") from None
        if not again.pause:
            return
        if self._backoff is None:
            self._backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        pause_s = self._backoff.pause_s(self._host.random.random())
        now = self._appends.loop.time()
        if deadline_s is not None and now + pause_s >= deadline_s:
            # Not before the deadline: a caller who tries again in a loop would else press the log without any pause.
            await asyncio.sleep(max(0.0, deadline_s - now))
            raise self._expired(f"its appends failed repeatedly{self._held_up()}")
        await asyncio.sleep(pause_s)

    def _expired(self, why: str) -> AppendExpired:
        often = "" if self._tally is None else f"; {self._tally}"
        return AppendExpired(
            f"nothing was appended to partition {self._appends.partition} within {self._timeout or 0:g} s, "
            f"and nothing will be: {why}{often}"
        )


def _check(built: Built, value: Any, partition: PartitionId) -> None:
    if built.abandoned is not None:
        raise Abandoned(built.abandoned)
    if not built.bodies:
        if built.operations:
            raise BadOption("a context that changes or expects registers has to append something: a body may be empty")
        if isinstance(value, Generator | AsyncGenerator):
            raise BadOption("a context that yields never ran: write a plain function, or a coroutine function")
        raise Abandoned("the context appended nothing")
    if built.position is not None and built.position <= built.high_water_mark:
        raise ExpectationFailed(
            f"nothing was appended to partition {partition}: the context demands position {built.position}, and "
            f"ids up to {built.high_water_mark} are taken: take the position from tx.high_water_mark"
        )


class Submission:
    """A context that runs in a task of its own; returned by `Log.submit`.

    ::

        submission = log.submit(withdraw, 1, 30, partition=0, timeout=10)
        receipt = await submission  # or, without exceptions:
        outcome = await submission.outcome()

    Any number of tasks may await it. Giving up waiting does not end it; `cancel` does.
    """

    __slots__ = ("_failure", "_task", "_traceback")

    def __init__(self, task: asyncio.Task[Receipt], failure: Callable[[], PolonaiseError | None]) -> None:
        self._task = task
        self._failure = failure
        self._traceback: TracebackType | None = None

    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait for the receipt of the committed append. Raises what `Log.run` raises, `asyncio.CancelledError` after
        `cancel`, and `Log.failure` if somebody else has cancelled the task."""
        return self._ended().__await__()

    async def _ended(self) -> Receipt:
        outcome = await self.outcome()
        if outcome.error is not None:
            raise outcome.error
        return self._task.result()

    @property
    def done(self) -> bool:
        """Whether the submission has ended, in any way."""
        return self._task.done()

    def cancel(self) -> None:
        """Cancel the context's runs. An append that was sent may commit all the same."""
        end(self._task)

    async def outcome(self) -> Outcome:
        """Wait until the submission has ended; return how, as a value. Raises only the waiter's own cancellation."""
        await asyncio.wait([self._task])
        if self._task.cancelled():
            failure = None if ended_here(self._task) else self._failure()
            return Outcome(OutcomeKind.RAISED, None, asyncio.CancelledError() if failure is None else fresh(failure))
        error = self._task.exception()
        if error is None:
            return Outcome(OutcomeKind.COMMITTED, self._task.result())
        # The first traceback: it would otherwise grow each time that the error is raised.
        if self._traceback is None:
            self._traceback = error.__traceback__
        error.__traceback__ = self._traceback
        match error:
            case AppendUnknown():
                return Outcome(OutcomeKind.UNKNOWN, error.receipt, error)
            case CopiesUnproved():
                return Outcome(OutcomeKind.RAISED, error.receipt, error)
            case Abandoned():
                return Outcome(OutcomeKind.ABANDONED, None, error)
            case AppendExpired():
                return Outcome(OutcomeKind.EXPIRED, None, error)
        return Outcome(OutcomeKind.RAISED, None, error)
