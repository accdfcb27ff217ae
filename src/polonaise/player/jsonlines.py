"""A target in a file: each entry becomes one line of JSON, once and in order, for other programs to read."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import logging
import os
from collections import Counter, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

from polonaise.applicationcode import OrdinaryErrors
from polonaise.errors import BadOption, Closed, DiskFailed, DiskFull, Forked, NotFound, ViewUnavailable, ViewUnfit
from polonaise.host import Disk
from polonaise.host.files import DiskThreads, RealDisk
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, Judge
from polonaise.player.linesfile import LinesFile
from polonaise.player.protocol.entries import NO_FENCE, REASON_CHARACTERS_MAX, DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise.redaction import redacted, redacted_line
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

_log = logging.getLogger("polonaise.player")

_STEP_BYTES_MAX: Final = 8 * 2**20
"""The bytes of batches that are applied in one step, unless the first is larger."""
_CLOSE_S_MAX: Final = 10.0
"""How many seconds `close` waits for a disk that does not answer."""
_LINE_ENDS: Final = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}
"""Characters that some readers take for the end of a line, and their escapes. In JSON they stand within texts only."""
_HOLDING: Final = (dict, list, tuple)
"""What holds other values in JSON."""

LineOf: TypeAlias = Callable[[PartitionId, RoutedEntry], Any]
"""Makes of an entry what becomes its line: anything that JSON can say, as a rule a dict."""


class JsonLinesTarget:
    """A target in a file to which each entry is appended as one line of JSON::

        {"partition": 0, "id": 17, "payload": …}

    The file has nothing but these lines, each once, and those of a partition in order. Beside it, `<path>.memory` says
    up to which byte the lines count, which ids these bytes have brought, and under which fence: what a crash leaves
    behind them is cut at the next start. Both are synced before a batch is acknowledged. Other programs may read the
    file at any time, and leave out a last line without an end; none may write it. The files belong to one target of one
    player for one log, are locked while the target is open, and are kept or moved together.

    - `path`: the file, in a directory that is there. It is made if it is missing; one that holds something already,
      without its memory beside it, is refused.
    - `decode`: makes of a payload what becomes `payload` in its line, such as `json.loads` or `bytes.decode`. Without
      it, the payload is written in Base64, which takes any bytes.
    - `line_of`: makes the whole line, in place of `decode`: a function of the partition and the entry that returns what
      JSON can say. A `Decimal` is a number with all its digits, in both.
    - `disk`: where the files are; None for the file system of this machine.

    `decode` and `line_of` run in a thread and may run again for the same entry. An exception, a value that JSON has no
    word for, or keys that become one text (1 and `"1"`) refuse the entry: it is sent again after a pause. Raises
    `BadOption` for what can't be meant.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        decode: Callable[[bytes], Any] | None = None,
        line_of: LineOf | None = None,
        disk: Disk | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise BadOption(f"path={path!r}: the path of a file")
        if decode is not None and line_of is not None:
            raise BadOption("decode and line_of: give one of the two; line_of makes the whole line")
        for function in (decode, line_of):
            if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
                raise BadOption(f"{function!r} runs in a thread: give a plain function")
        self._threads = DiskThreads(1)
        self._disk = RealDisk(self._threads) if disk is None else disk
        self._path = os.path.abspath(path) if disk is None else os.fspath(path)
        self._line_of = line_of or _usual_line(decode)
        self._pid = os.getpid()
        self._closed = False
        self._files: LinesFile | None = None
        self._answered = False
        """Whether a stream was accepted: a file that is gone since is waited for, and not made."""
        self._unsure = False
        """Whether a step has failed: the files are opened anew before the next one."""
        self._waiting: deque[_StepCall] = deque()
        self._working: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ what a stream calls

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        """Accept a stream; see `DeliveryTarget`. Opens the files first. Raises `ViewUnfit` for files that are not what
        they should be, and for those of another source; `ViewUnavailable` while another process has them open, and for
        what the disk lacks."""
        acceptance: Acceptance = await self._done(_StepCall(_OfferedStream(offered, source)))
        return acceptance

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Apply a batch; see `DeliveryTarget`. Raises what `accept` does."""
        applied: AppliedBatch = await self._done(_StepCall(_GivenBatch(batch, judge)))
        return applied

    async def close(self) -> None:
        """Close and unlock the files, after what is being applied is done."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self._path}")
        await asyncio.shield(self._closing)  # or the files would stay locked

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S_MAX):
                if self._working is not None:
                    await asyncio.wait([self._working])
                await self._let_go()
        except TimeoutError:
            # Locked until this process ends: a call to the disk that hangs might still write.
            _log.warning("%s: the disk has not answered for %g s", self._path, _CLOSE_S_MAX)
        await asyncio.to_thread(self._threads.close, within_s=_CLOSE_S_MAX)

    # ------------------------------------------------------------------ one step after the other

    async def _done(self, call: _StepCall) -> Any:
        """Have the call carried out when its turn comes; return what came of it. Given up before, it is left out."""
        if os.getpid() != self._pid:
            raise Forked("this target was made before the process forked: make one in each process, after the fork")
        if self._closed:
            raise Closed(f"the target of {self._path} was closed")
        self._waiting.append(call)
        if self._working is None:
            self._working = asyncio.create_task(self._work(), name=f"lines of {self._path}")
        try:
            return await call.outcome
        finally:
            if call in self._waiting:
                self._waiting.remove(call)

    async def _work(self) -> None:
        """Carry out what was asked for, until nothing is left: a caller that is cancelled breaks no step off."""
        try:
            while calls := self._next():
                try:
                    await self._carry_out(calls)
                except BaseException as error:
                    self._unsure = True
                    for call in calls:
                        if not call.outcome.done():
                            call.outcome.set_exception(_told(error))
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._working = None

    def _next(self) -> list[_StepCall]:
        """Take the calls of the next step: a stream's offer, or batches of different partitions, synced together."""
        taken: list[_StepCall] = []
        partitions: set[PartitionId] = set()
        size = 0
        while self._waiting:
            call = self._waiting[0]
            if not call.outcome.done():
                match call.what:
                    case _OfferedStream():
                        if taken:
                            break
                        return [self._waiting.popleft()]
                    case _GivenBatch(batch):
                        size += batch.size
                        if taken and (batch.partition in partitions or size > _STEP_BYTES_MAX):
                            break
                        partitions.add(batch.partition)
                        taken.append(call)
            self._waiting.popleft()
        return taken

    async def _carry_out(self, calls: list[_StepCall]) -> None:
        if self._unsure:
            await self._let_go()
            self._unsure = False
        if self._files is None:
            self._files = await LinesFile.opened(self._disk, self._path, again=self._answered)
        if isinstance(calls[0].what, _OfferedStream):
            outcomes: list[Any] = [await self._accept(self._files, calls[0].what)]
        else:
            outcomes = await self._apply(
                self._files, [call.what for call in calls if isinstance(call.what, _GivenBatch)]
            )
        for call, outcome in zip(calls, outcomes, strict=True):
            if not call.outcome.done():
                call.outcome.set_result(outcome)

    async def _let_go(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            await files.close()

    async def _accept(self, files: LinesFile, offer: _OfferedStream) -> Acceptance:
        memory = files.memory
        if memory is not None and memory.source != offer.source:
            raise ViewUnfit(
                f"{self._path} is of {memory.source.in_words}; to be served is {offer.source.in_words}. Give each "
                "target a file of its own; or move both files away, start this process again, and everything is "
                "delivered again"
            )
        kept = NO_FENCE if memory is None else memory.fence
        if not Reception.accepts(kept, offer.fence):
            return Acceptance(False, kept, {})
        await files.keep_fence(offer.fence, offer.source)
        self._answered = True
        return Acceptance(True, offer.fence, {} if memory is None else dict(memory.applied))

    async def _apply(self, files: LinesFile, deliveries: list[_GivenBatch]) -> list[AppliedBatch]:
        memory = files.memory
        if memory is None:
            raise ViewUnavailable(f"{self._path} has no memory: it was moved away while the target was in use")
        last = [memory.applied.get(batch.partition, NO_TRANSACTION) for batch, _ in deliveries]
        verdicts = [judge(memory.fence, id, batch) for id, (batch, judge) in zip(last, deliveries, strict=True)]
        to_apply = [batch for verdict, (batch, _) in zip(verdicts, deliveries, strict=True) if verdict is Verdict.APPLY]
        encoded = {}
        if to_apply:
            made = await asyncio.to_thread(lambda: [self._encoded(batch) for batch in to_apply])
            encoded = {batch.partition: each for batch, each in zip(to_apply, made, strict=True)}
        applied = {
            batch.partition: encoded[batch.partition].last
            for batch in to_apply
            if encoded[batch.partition].last != batch.previous
        }
        if applied:
            await files.append(b"".join(each.lines for each in encoded.values()), applied)
        return [
            AppliedBatch(verdict, encoded[batch.partition].last, memory.fence, encoded[batch.partition].refusal)
            if verdict is Verdict.APPLY
            else AppliedBatch(verdict, id, memory.fence)
            for verdict, id, (batch, _) in zip(verdicts, last, deliveries, strict=True)
        ]

    def _encoded(self, batch: DeliveryBatch) -> _EncodedBatch:
        """Return the lines of a batch, up to the first entry that can't be made one. Runs in a thread."""
        lines = []
        last = batch.previous
        for entry in batch.entries:
            if entry.payload is not None:
                try:
                    with OrdinaryErrors("the function that makes lines"):
                        line = self._line_of(batch.partition, entry)
                    lines.append(_json_line(line))
                except Exception as error:  # noqa: BLE001 - the player is told
                    said = redacted_line(error)
                    reason = redacted(f"{type(error).__name__}: {said}", REASON_CHARACTERS_MAX)
                    return _EncodedBatch(b"".join(lines), last, reason)
            last = entry.id
        return _EncodedBatch(b"".join(lines), last, "")


class _OfferedStream(NamedTuple):
    fence: Fence
    source: DeliverySource


class _GivenBatch(NamedTuple):
    batch: DeliveryBatch
    judge: Judge


class _StepCall:
    """What a caller waits for. Its outcome is cancelled if it gives up."""

    def __init__(self, what: _OfferedStream | _GivenBatch) -> None:
        self.what = what
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class _EncodedBatch(NamedTuple):
    """What can be made of a batch."""

    lines: bytes
    last: TransactionId
    """The last entry that was made a line, or is a dummy; the one before the batch for none."""
    refusal: str
    """Why the next one can't be; empty if there is none."""


def _usual_line(decode: Callable[[bytes], Any] | None) -> LineOf:
    def line(partition: PartitionId, entry: RoutedEntry) -> dict[str, Any]:
        payload = entry.payload or b""
        shown = base64.b64encode(payload).decode() if decode is None else decode(payload)
        return {"partition": partition, "id": entry.id, "payload": shown}

    return line


def _json_line(value: Any) -> bytes:
    """Return the value in one line of JSON. Raises `ValueError` for keys that become one, and what `json.dumps` does
    for what JSON can't say, such as NaN."""
    try:
        line = _dumped(value, ensure_ascii=False).translate(_LINE_ENDS).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only write as an escape
        line = _dumped(value, ensure_ascii=True).encode()
    _check_keys(value)  # behind the encoder, which has refused a value within itself
    return line + b"\n"


def _check_keys(value: Any) -> None:
    """Raise `ValueError` if two keys of an object within the value are the same text, such as 1 and "1"."""
    left: list[Any] = [value] if isinstance(value, _HOLDING) else []
    while left:
        given = left.pop()
        if isinstance(given, dict):
            if set(map(type, given)) - {str}:
                texts = Counter(json.dumps(key if isinstance(key, str) else json.dumps(key)) for key in given)
                (key, times), *_ = texts.most_common(1)
                if times > 1:
                    raise ValueError(f"the key {key} is twice in one object, where all keys are texts")
            given = given.values()
        left += [each for each in given if isinstance(each, _HOLDING)]


class _DecimalMet(Exception):
    """The value has a decimal, which Python's encoder could only write as a float."""


def _dumped(value: Any, *, ensure_ascii: bool) -> str:
    """Return the value in JSON; a decimal keeps all its digits."""

    def other(given: Any) -> Any:
        if isinstance(given, Decimal):
            raise _DecimalMet
        raise TypeError(f"Object of type {type(given).__name__} is not JSON serializable")

    def written(given: Any) -> str:
        return json.dumps(given, ensure_ascii=ensure_ascii, allow_nan=False, default=other)

    def exact(given: Any) -> str:
        match given:
            case Decimal():
                if not given.is_finite():
                    raise ValueError(f"Out of range decimal values are not JSON compliant: {given}")
                return str(given)
            case dict():
                return "{" + ", ".join(written({key: 0})[1:-2] + exact(each) for key, each in given.items()) + "}"
            case list() | tuple():
                return "[" + ", ".join(map(exact, given)) + "]"
            case _:
                return written(given)

    try:
        return written(value)
    except _DecimalMet:
        return exact(value)


def _told(error: BaseException) -> BaseException:
    """Return the error that a caller gets: what the disk lacks, it may have again."""
    if isinstance(error, asyncio.CancelledError):
        return ViewUnavailable("the event loop of this target is ending")
    if isinstance(error, DiskFailed | DiskFull | NotFound):
        unavailable = ViewUnavailable(str(error))
        unavailable.__cause__ = error
        return unavailable
    return error
