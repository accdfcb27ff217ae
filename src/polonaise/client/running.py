"""Running transaction contexts until they commit, are abandoned, fail, or run out of time."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeAlias

from polonaise.client.partition import PartitionAppends
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Draft, Limits
from polonaise.client.protocol.outcomes import Again, next_step
from polonaise.client.protocol.outstanding import Failure, Unordered
from polonaise.client.receipt import Receipt
from polonaise.errors import Abandoned, AppendExpired, AppendUnknown, BadOption, PolonaiseError
from polonaise.host import Host

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
        self, appends: PartitionAppends, context: Context, args: tuple[Any, ...], timeout: float | None
    ) -> Receipt:
        """As `Log.run`."""
        if timeout == 0:
            raise AppendExpired(
                f"nothing was appended to partition {appends.partition}, and nothing will be: "
                "timeout=0 leaves no time to; give it seconds, or None for as long as it takes"
            )
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout is None else loop.time() + timeout
        backoff: Backoff | None = None
        while True:
            try:
                await appends.admission.take(deadline_s)
            except TimeoutError:
                raise self._expired(appends, timeout, appends.obstacle()) from None
            draft = Draft(appends.partition, appends.mark.value, self._limits, self._encode)
            try:
                built = context(draft, *args)
                if built is not None and hasattr(built, "__await__"):
                    await self._awaited(built, appends, deadline_s, timeout)
                self._check(draft, built)
                if deadline_s is not None and loop.time() >= deadline_s:
                    raise self._expired(appends, timeout, "the context took too long")
                receipt = appends.append_draft(draft)
            finally:
                draft.end()
                appends.admission.give_back()
            failure = await self._fate(appends, receipt, deadline_s, timeout)
            if failure is None:
                return receipt
            again = next_step(failure, draft.position)
            if again is None:
                return await receipt
            if again.pause and backoff is None:
                backoff = Backoff(*self._retry_s)
            await self._wait_to_run_again(appends, again, backoff, deadline_s, timeout)

    async def _awaited(
        self, built: Awaitable[Any], appends: PartitionAppends, deadline_s: float | None, timeout: float | None
    ) -> None:
        if deadline_s is None:
            await built
            return
        limit = asyncio.timeout_at(deadline_s)
        try:
            async with limit:
                await built
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._expired(appends, timeout, "the context took too long") from None

    def _check(self, draft: Draft, built: Any) -> None:
        if draft.abandoned is not None:
            raise Abandoned(draft.abandoned)
        if not draft.bodies:
            if draft.operations:
                raise BadOption(
                    "a context that changes or expects registers has to append something: a body may be empty"
                )
            if isinstance(built, Generator | AsyncGenerator):
                raise BadOption("a context that yields never ran: write a plain function, or a coroutine function")
            raise Abandoned(_NOTHING_APPENDED)

    async def _fate(
        self, appends: PartitionAppends, receipt: Receipt, deadline_s: float | None, timeout: float | None
    ) -> Failure | None:
        """Why the append failed; None once it is committed."""
        try:
            await receipt.wait(deadline_s)
        except TimeoutError:
            obstacle = appends.obstacle()
            if appends.withdraw(receipt):
                raise self._expired(appends, timeout, f"the append was never sent: {obstacle}") from None
            if not receipt.settled:
                raise AppendUnknown(
                    f"append {receipt.sequence} to partition {appends.partition} was sent and is not decided after "
                    f"{timeout:g} s: it may still commit; await the error's receipt",
                    receipt,
                ) from None
        except asyncio.CancelledError:
            appends.withdraw(receipt)
            raise
        failure = receipt.failure
        if failure is not None and failure.reason in (Unordered.UNKNOWN, Unordered.STOPPED):
            await receipt
        return failure

    async def _wait_to_run_again(
        self,
        appends: PartitionAppends,
        again: Again,
        backoff: Backoff | None,
        deadline_s: float | None,
        timeout: float | None,
    ) -> None:
        try:
            await appends.mark.wait(again.after, deadline_s)
        except TimeoutError:
            raise self._expired(appends, timeout, f"waited for {again.after} to be applied: {appends.lag()}") from None
        if not again.pause or backoff is None:
            return
        pause_s = backoff.pause_s(self._host.random.random())
        now = asyncio.get_running_loop().time()
        if deadline_s is not None and now + pause_s >= deadline_s:
            await asyncio.sleep(max(0.0, deadline_s - now))
            raise self._expired(appends, timeout, "appends failed again and again")
        await asyncio.sleep(pause_s)

    def _expired(self, appends: PartitionAppends, timeout: float | None, why: str) -> AppendExpired:
        return AppendExpired(
            f"nothing was appended to partition {appends.partition} within {timeout or 0:g} s, "
            f"and nothing will be: {why}"
        )


class Submission:
    """A context that is being run behind the caller's back. `await` it for the receipt, or ask for its outcome."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[Receipt]) -> None:
        self._task = task

    def __await__(self) -> Generator[Any, None, Receipt]:
        """The receipt, once committed; raises what ended it otherwise. Giving up waiting does not end it."""
        return asyncio.shield(self._task).__await__()

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
