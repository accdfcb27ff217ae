"""A stream to a target in the player's own process: messages go through a queue, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from polonaise.errors import InvariantViolated, PolonaiseError
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, DeliveryTarget
from polonaise.player.endpoint import DeliveryStream, StreamEvents
from polonaise.player.protocol.entries import DeliveryBatch, Fence
from polonaise.player.protocol.reception import Verdict
from polonaise.player.targetsession import TargetSession
from polonaise.redaction import redacted
from polonaise.terms import NO_TRANSACTION

T = TypeVar("T")

_REASON_CHARACTERS_MAX: Final = 500
"""The most characters of a target's error that are told."""


class DirectEndpoint:
    """Opens streams to a target of the player's own process."""

    def __init__(self, target: DeliveryTarget) -> None:
        """`target` stays the application's: `close` does not close it."""
        self._target = target

    def stream(self, fence: Fence, events: StreamEvents) -> DeliveryStream:
        """Return a new stream under this fence; its `serve` opens it."""
        return DirectStream(self._target, fence, events)

    async def close(self) -> None:
        """Do nothing: the streams share nothing."""


class DirectStream:
    """Hands batches to a target of this process, one after the other. `serve` is its task."""

    def __init__(self, target: DeliveryTarget, fence: Fence, events: StreamEvents) -> None:
        self._session = TargetSession(target, fence)
        self._events = events
        self._sent: asyncio.Queue[Sequence[DeliveryBatch]] = asyncio.Queue()
        self._closed = False

    def send(self, batches: Sequence[DeliveryBatch]) -> None:
        """Send batches. Does not wait; `StreamEvents.written` says when more may be sent."""
        self._sent.put_nowait(batches)

    def close(self) -> None:
        """Tell nothing more, and have the target take nothing more than the batch that it is applying just now."""
        self._closed = True

    async def serve(self, source: DeliverySource, open_s_max: float) -> None:
        """Open the stream, and have the target take what is sent, until the stream ends or is cancelled."""
        events = self._events
        try:
            async with asyncio.timeout(open_s_max):
                acceptance = await self._called(self._session.greet(source), _is_acceptance)
        except TimeoutError:  # that of the deadline: those of the target are wrapped
            events.disconnected(f"the target did not answer within {open_s_max:g} s")
            return
        except _TargetFailed as ended:
            events.disconnected(str(ended))
            return
        if self._closed:
            return
        if not acceptance.accepted:
            events.fenced(acceptance.kept)
            return
        events.connected(dict(acceptance.applied))
        while not self._closed:
            batches = await self._sent.get()
            events.written()  # the next ones are gathered meanwhile
            for batch in batches:
                # What the player was told last may have made it close the stream.
                if self._closed:
                    return
                try:
                    applied = await self._called(self._session.take(batch), _is_applied)
                except _TargetFailed as ended:
                    events.disconnected(str(ended))
                    return
                # A target may have gone on though it was cancelled: nobody is told any more.
                if self._closed:
                    return
                if applied is not None and not self._told(batch, applied):
                    return

    async def _called(self, call: Coroutine[Any, Any, T], is_right: Callable[[Any], bool]) -> T:
        """Return the result of a call of the target. Raises `_TargetFailed` for whatever it does wrong.

        Its code is the application's: no error of it may end more than this stream.
        """
        try:
            result = await call
        except InvariantViolated:
            raise  # a mistake of our own
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _TargetFailed("the target cancelled its own call") from error
        except Exception as error:
            text = redacted(str(error)) if isinstance(error, PolonaiseError) else redacted(repr(error))
            raise _TargetFailed(f"the target failed: {text}"[:_REASON_CHARACTERS_MAX]) from error
        if not is_right(result):
            text = f"the target returned {result!r}, which is not what DeliveryTarget says"
            raise _TargetFailed(text[:_REASON_CHARACTERS_MAX])
        return result

    def _told(self, batch: DeliveryBatch, applied: AppliedBatch) -> bool:
        """Tell the player what the target has done; return whether the stream goes on."""
        if applied.verdict is Verdict.FENCED:
            self._events.fenced(applied.kept)
        elif applied.verdict is Verdict.OUT_OF_PLACE:
            what = f"it has applied {applied.last}, and was sent what follows {batch.previous}"
            self._events.disconnected(f"partition {batch.partition}: {what}")
        elif applied.refusal:
            self._events.refused(batch.partition, applied.last, applied.refusal)
            return True
        else:
            self._events.acknowledged(batch.partition, applied.last)
            return True
        return False


class _TargetFailed(Exception):
    """The target has ended the stream; the text says why."""


def _is_acceptance(answer: Any) -> bool:
    return (
        isinstance(answer, Acceptance)
        and isinstance(answer.kept, Fence)
        and isinstance(answer.applied, Mapping)
        and all(_is_id(last) for last in answer.applied.values())
    )


def _is_applied(answer: Any) -> bool:
    return answer is None or (
        isinstance(answer, AppliedBatch)
        and isinstance(answer.verdict, Verdict)
        and isinstance(answer.kept, Fence)
        and isinstance(answer.refusal, str)
        and _is_id(answer.last)
    )


def _is_id(given: Any) -> bool:
    return isinstance(given, int) and given >= NO_TRANSACTION
