"""The appends of one partition, each with a receipt: registered, sent in frames, settled by the server and the feed."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Generator, Iterator, Sequence
from threading import get_ident
from typing import Any, Final, NamedTuple, NoReturn

from polonaise.client import waiting
from polonaise.client.clientparts import ClientParts
from polonaise.client.condition import PartitionCondition
from polonaise.client.links import Stream, check_knows
from polonaise.client.protocol import outcomes
from polonaise.client.protocol.draft import Built, bytes_of, operation_of
from polonaise.client.protocol.group import Group
from polonaise.client.protocol.outstanding import (
    SENDS_MAX,
    AppendFailure,
    AppendWindow,
    Operations,
    Outgoing,
    Pending,
    SentFrame,
    Unordered,
    frames,
    still_pending,
)
from polonaise.client.waiting import Admission, TurnTaking, check_loop, deadline_in, fail_all, until, wake
from polonaise.errors import (
    ConnectionLost,
    CopiesUnproved,
    DeadlineExceeded,
    Overloaded,
    PolonaiseError,
    UnsupportedVersion,
    fresh,
)
from polonaise.log.batch import Batch
from polonaise.terms import ClientId, Generation, PartitionId, TransactionId
from polonaise.wire.appends import AppendColumns, FailedAppend
from polonaise.wire.copies import COPIES_VERSION, Needs
from polonaise.wire.messages import Flush


class Receipt(Pending):
    """One append, or a group that commits as one, on its way or settled.

    ::

        receipt = await log.append(b"1 100", partition=0)
        print("committed as", receipt.id)
        await receipt.applied()  # this client's view has applied it

    `await receipt` returns the receipt itself once the append is committed, and raises the error that it failed with.
    Any number of tasks of the client's event loop may await it, again and again; giving up waiting changes nothing
    about the append.

    `id` is the transaction id, -1 until committed; `sequence` the number among the transactions that this client has
    appended to the partition, from 1: both of the first one if the append is a group of `count`.
    """

    __slots__ = ("_condition", "value")

    def __init__(self, condition: PartitionCondition, count: int, size: int) -> None:
        self._condition = condition
        self.count = count
        """The number of transactions of the append."""
        self.size = size
        self.sequence: int = 0
        """The append's number among this client's appends to the partition, from 1; of a group the first one."""
        self.id = -1
        self.failure = None
        self.watchers = None
        self.value: Any = None
        """What the context returned in the run that built this append; None without a context."""

    @property
    def partition(self) -> PartitionId:
        """The partition of the append."""
        return self._condition.partition

    @property
    def ids(self) -> range:
        """The ids of all transactions of the append; empty until committed."""
        return range(self.id, self.id + self.count) if self.id >= 0 else range(0)

    @property
    def last_id(self) -> TransactionId:
        """The id of the append's last transaction; -1 until committed."""
        return self.id + self.count - 1 if self.id >= 0 else -1

    @property
    def done(self) -> bool:
        """Whether the receipt is settled: committed, failed, or unknown for good (`AppendUnknown`). With `copies` or
        `zones` it is settled by their proof, not by the commit."""
        return self.settled

    @property
    def committed(self) -> bool:
        """Whether the append is known to be committed. False also while the fate is not known."""
        return self.id >= 0

    @property
    def error(self) -> PolonaiseError | None:
        """The error that awaiting the receipt raises; None while pending, and once committed and proved."""
        if self.failure is None:
            return None
        return outcomes.error_of(self.failure, self.partition, self.sequence, self, self._condition.stopped)

    def __await__(self) -> Generator[None, None, Receipt]:
        if self.id < 0:
            if self.failure is None:
                check_loop(self._condition.loop)
                yield from self._future().__await__()
            if self.failure is not None:
                error = self.error
                assert error is not None
                raise error
        return self

    def wait(self, deadline_s: float | None) -> Awaitable[None]:
        """Wait until the receipt is settled (`done`); raise nothing for a failed append. `deadline_s` is a time of the
        loop. Raises `TimeoutError` after it."""
        return _settled() if self.settled else until(self._future(), deadline_s)

    async def applied(self, timeout: float | None = None) -> None:
        """Wait until the append is committed and this client's own view has applied it.

        Raises the error that the append failed with, the error that stopped the partition, and `DeadlineExceeded` after
        `timeout` seconds: wait again, the append goes on.
        """
        condition = self._condition
        deadline_s = deadline_in(timeout, condition.loop)
        which = f"append {self.sequence} to partition {self.partition}"
        try:
            await self.wait(deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{which} is not decided after {timeout:g} s: {condition.why_it_waits()}; "
                "it may still commit, so await the receipt again"
            ) from condition.trouble
        await self
        try:
            await condition.mark.wait(self.last_id, deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{which} is committed as {self.last_id}, and this client's view has not applied it after "
                f"{timeout:g} s: {condition.lag()}; wait again, or see what holds up the view"
            ) from condition.trouble

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._condition.loop.create_future()
        if self.watchers is None:
            self.watchers = future  # nearly always the only one: a list for it would be one more object per append
        else:
            self.watchers = [watcher for watcher in _each(self.watchers) if not watcher.done()]
            self.watchers.append(future)
        return future

    def __reduce__(self) -> NoReturn:
        raise TypeError("a receipt belongs to the process that appended: send another one its id")

    def __repr__(self) -> str:
        fate = f"committed as {self.id}" if self.id >= 0 else self.failure.reason.name if self.failure else "pending"
        return f"<Receipt of append {self.sequence} to partition {self.partition}: {fate}>"


def _each(watchers: Any) -> Any:
    return watchers if type(watchers) is list else (watchers,)


async def _settled() -> None:
    """The awaitable for a receipt that is settled already."""


def tell(settled: list[Pending]) -> None:
    for receipt in settled:
        watchers, receipt.watchers = receipt.watchers, None
        for future in _each(watchers) if watchers is not None else ():
            if not future.done():
                future.set_result(None)


class CopiedReceipt(Receipt):
    """The receipt of an append that needs copies, or zones: as `Receipt`, but `done` only once these are proved.
    `committed` says whether the append is in the log. The owner is asked for the proof while somebody awaits the
    receipt; where it can be had no more, awaiting raises `CopiesUnproved`."""

    __slots__ = ("needs", "proved")

    def __init__(self, condition: PartitionCondition, count: int, size: int, needs: Needs) -> None:
        super().__init__(condition, count, size)
        self.needs = needs
        self.proved = False
        """Whether the append is proved to be on the copies and zones that it needs: only once it was awaited."""

    @property
    def done(self) -> bool:
        """Whether the receipt is settled: proved, failed, or unknown for good (`AppendUnknown`)."""
        return self.proved or self.failure is not None

    @property
    def error(self) -> PolonaiseError | None:
        """The error that awaiting the receipt raises; None while it would go on waiting, and once proved."""
        if self.id >= 0 and not self.proved and self._condition.stopped is not None:
            return self.unproved(str(self._condition.stopped))
        return super().error

    def __await__(self) -> Generator[None, None, Receipt]:
        yield from super().__await__()
        if not self.proved:
            yield from self._prove().__await__()
        return self

    async def wait(self, deadline_s: float | None) -> None:
        async with asyncio.timeout_at(deadline_s):
            await super().wait(None)
            if self.failure is None:
                await self._prove()

    async def _prove(self) -> None:
        if self.proved:
            return
        check_loop(self._condition.loop)
        try:
            await self._condition.proofs.prove(self.last_id, self.needs)
        except PolonaiseError as error:
            raise self.unproved(str(error)) from error
        self.proved = True

    def unproved(self, why: str) -> CopiesUnproved:
        later = "await the error's receipt to wait on"
        if self._condition.stopped is not None:
            later = "this client can't wait for the proof any more, and a new one finds the append under that id"
        return CopiesUnproved(
            f"append {self.sequence} to partition {self.partition} is in the log as {self.id}, for good, and is not "
            f"proved to be on {self.needs}: {why}. Do not append it again; {later}",
            self,
        )

    async def applied(self, timeout: float | None = None) -> None:
        """Wait as `Receipt.applied` does; raises `CopiesUnproved` instead of `DeadlineExceeded` for what is committed
        and not proved."""
        try:
            await super().applied(timeout)
        except DeadlineExceeded as error:
            if self.id < 0 or self.proved:
                raise
            raise self.unproved(self.late(timeout)) from error

    def late(self, timeout: float | None) -> str:
        return f"the {timeout or 0:g} s are over{self._condition.because()}"


_SEND_AT: Final = 512
"""Unsent transactions at which a context's append sends them at once, and not at the end of the turn of the event loop:
the server works on them while other contexts run."""
_NEEDS: Final = "an append that needs copies or zones"


class _OutgoingGroup(NamedTuple):
    after: int
    """How many of `_unsent` are sent before the group."""
    receipt: Receipt
    group: Group
    mark: TransactionId
    operations: Operations


class PartitionAppends(PartitionCondition):
    """The appends of one client to one partition, from the call until their fate is known.

    They are sent while the partition is mounted, mostly those of one turn of the event loop together. Between mounts
    they wait, within the bounds of `ClientSettings`. What was sent on a mount that ended, and is not in the log, is
    sent again on the next one, unless it may itself have ended mounts, or needs what the next server does not know.
    """

    def __init__(self, parts: ClientParts, partition: PartitionId) -> None:
        super().__init__(parts, partition)
        self._settings = parts.settings
        self._window = AppendWindow()
        self._again: deque[SentFrame] = deque()
        """Frames of earlier mounts, to be sent again: what is pending of them is not in the log."""
        self._send_again = True
        self._unsent: list[Outgoing] = []
        self._unsent_groups: list[_OutgoingGroup] = []
        self._sends_soon = False
        self._process, self._thread = waiting.process, get_ident()
        self._waiting_for_mount: list[asyncio.Future[None]] = []
        self._flushes: dict[int, tuple[int, asyncio.Future[TransactionId] | None]] = {}
        """By request number of a flush under way: the highest sequence that it covers, and its caller's future, if
        any."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        """The loop's time of the last news of sent appends, or of the sending that started `_idle_timer`."""
        self.client_id = parts.identity.client_id
        self._above = parts.identity.numbered_above
        """Added to the sequences of appends on the wire and in the log."""
        self.generation: Generation = 0
        """The generation of the latest mount that was ready; 0 before the first."""
        self.admission = Admission(self._is_open)
        self.turntaking = TurnTaking(self.client_id, self.mark)

    def identify(self, client_id: ClientId, numbered_above: int) -> None:
        self.client_id, self._above = client_id, numbered_above
        self.turntaking.turns.identify(client_id)

    def _is_open(self, taken: int) -> bool:
        return self._stream is not None and self._has_room(taken)

    def _has_room(self, taken: int) -> bool:
        """Each slot of `admission` counts as a transaction."""
        outstanding, settings = self._outstanding, self._settings
        return (
            outstanding.count + taken < settings.outstanding_count_max
            and outstanding.bytes < settings.outstanding_bytes_max
        )

    def _check_accepts(self) -> None:
        if not self._has_room(self.admission.taken):
            raise Overloaded(
                f"{self._outstanding.count} transactions ({self._outstanding.bytes} bytes) of partition "
                f"{self.partition} are outstanding; with the contexts that run, ClientSettings allows no more "
                "(outstanding_count_max, outstanding_bytes_max): "
                f"wait with `await log.ready(partition)`{self.because()}"
            )
        if self.stopped:
            raise fresh(self.stopped)

    # ------------------------------------------------------------------ appending

    def append(
        self,
        body: bytes,
        header: int,
        client_high_water_mark: TransactionId | None,
        locks: bytes = b"",
        operations: Operations = (),
        needs: Needs | None = None,
    ) -> Receipt:
        """Register one append, to be sent at the end of this turn of the event loop or once it can be. The client
        high-water mark None stands for what this client has applied. Raises `Overloaded`, the error that stopped the
        partition, `UnsupportedVersion` while mounted at a server that knows no `needs`, and as `check_loop`."""
        # Once for all appends of a turn, as it costs a system call. Thread and process are compared each time: a
        # sending stays scheduled for as long as the server does not read.
        if not self._sends_soon or get_ident() != self._thread or waiting.process is not self._process:
            check_loop(self.loop)
        self._check_accepts()
        size = len(body) + len(locks)
        if needs is None:
            receipt = Receipt(self, 1, size + bytes_of(operations) if operations else size)
        else:
            receipt, operations = self._needing(needs, 1, size + bytes_of(operations), operations)
        self._outstanding.add(receipt)
        mark = self.mark.value if client_high_water_mark is None else client_high_water_mark
        self._unsent.append((receipt, receipt.sequence, mark, header, body, locks, operations, True))
        if not self._sends_soon:
            self._send_soon()
        return receipt

    def _needing(self, needs: Needs, count: int, size: int, operations: Operations) -> tuple[Receipt, Operations]:
        """Return the receipt of an append with needs, and its operations with their row, which `size` is without."""
        if self._stream is not None:
            check_knows(self._stream.connection, COPIES_VERSION, _NEEDS)
        row = operation_of(needs)
        return CopiedReceipt(self, count, size + bytes_of([row]), needs), [*operations, row]

    def append_group(
        self,
        group: Group,
        client_high_water_mark: TransactionId | None,
        operations: Operations,
        needs: Needs | None = None,
    ) -> Receipt:
        check_loop(self.loop)
        self._check_accepts()
        if needs is None:
            receipt = Receipt(self, len(group), group.size + bytes_of(operations))
        else:
            receipt, operations = self._needing(needs, len(group), group.size + bytes_of(operations), operations)
        self._outstanding.add(receipt)
        mark = self.mark.value if client_high_water_mark is None else client_high_water_mark
        self._unsent_groups.append(_OutgoingGroup(len(self._unsent), receipt, group, mark, operations))
        self._send_soon()
        return receipt

    def append_built(self, built: Built) -> Receipt:
        """Register what a context built. The caller took a slot of `admission`, and gives it back. Raises the error
        that stopped the partition, and `UnsupportedVersion` as `append`."""
        if self.stopped:
            raise fresh(self.stopped)
        *others, (header, body) = built.bodies
        mark, operations = built.high_water_mark, built.operations
        if built.needs is None:
            receipt = Receipt(self, len(built.bodies), built.size)
        else:
            receipt, operations = self._needing(built.needs, len(built.bodies), built.size, operations)
        self._outstanding.add(receipt)
        sequence = receipt.sequence
        for other_header, other_body in others:
            self._unsent.append((receipt, sequence, mark, other_header, other_body, b"", (), False))
            sequence += 1
        # A lock is raised to the id of the transaction that carries it: the last one covers the whole group.
        locks = b"".join(built.locks)
        self._unsent.append((receipt, sequence, mark, header, body, locks, operations, True))
        self._send_soon()
        stream = self._stream
        # Only the append with which they become so many: while the window is full, each more would cut a frame in vain.
        reached = 0 <= len(self._unsent) - _SEND_AT < len(built.bodies)
        if reached and stream is not None and stream.connection.writable:
            self._send_all(stream)
        return receipt

    def withdraw(self, receipt: Receipt) -> bool:
        """Settle an append as withdrawn unless it was sent, or has a fate already; return whether it is withdrawn."""
        if not self._outstanding.withdraw(receipt):
            return False
        tell([receipt])
        self.admission.admit()  # there is room for another
        return True

    def _send_soon(self) -> None:
        if not self._sends_soon and self._stream is not None:
            self._sends_soon = True
            self.loop.call_soon(self._send)

    def _send(self) -> None:
        self._sends_soon = False
        stream = self._stream
        if stream is None or not self._has_unsent:
            return
        if not stream.connection.writable:
            self._sends_soon = True
            stream.when_writable(self._send)
            return
        self._send_all(stream)

    @property
    def _has_unsent(self) -> bool:
        return bool(self._unsent or self._unsent_groups or self._again)

    def _send_all(self, stream: Stream) -> None:
        """Send as many of the unsent appends as the window has room for."""
        if not self._has_unsent:
            return
        # Before younger ones, because an owner that has ordered one takes up no older one of the same client.
        if not self._send_old(stream):
            return
        unsent, self._unsent = self._unsent, []
        groups, self._unsent_groups = self._unsent_groups, []
        outstanding, window = self._outstanding, self._window
        for columns in self._frames(unsent, groups):
            message = columns.message(self.generation, self._above)
            size = len(message.columns) + columns.data_bytes
            if not window.fits(size):
                self._keep_unsent(unsent, groups, outstanding.sent)
                break
            stream.connection.send(message, partition=self.id)
            outstanding.sent_through(columns.sequences[-1])
            window.sent(SentFrame(columns, size))
        else:
            outstanding.all_sent()
        self._start_idle_timer()

    def _send_old(self, stream: Stream) -> bool:
        """Send again what waits for that, as far as the window has room; return whether nothing is left of it."""
        again, window = self._again, self._window
        while again:
            frame = again[0]
            columns = still_pending(frame.columns, self._outstanding.is_pending)
            if columns is not None:
                message = columns.message(self.generation, self._above)
                size = len(message.columns) + columns.data_bytes
                if not window.fits(size):
                    return False
                stream.connection.send(message, partition=self.id)
                window.sent(SentFrame(columns, size, frame.sends))
                self._start_idle_timer()
            again.popleft()
        return True

    def _start_idle_timer(self) -> None:
        if self._idle_timer is None:
            self._heard_s = self.loop.time()
            self._idle_timer = self.loop.call_later(self._settings.idle_flush_s, self._flush_if_silent)

    def _keep_unsent(self, unsent: list[Outgoing], groups: Sequence[_OutgoingGroup], sent: int) -> None:
        first = bisect_right(unsent, sent, key=lambda outgoing: outgoing[1])
        self._unsent = unsent[first:] + self._unsent
        self._unsent_groups = [
            group._replace(after=group.after - first) for group in groups if group.receipt.sequence > sent
        ]

    def _frames(self, unsent: Sequence[Outgoing], groups: Sequence[_OutgoingGroup]) -> Iterator[AppendColumns]:
        settings, start = self._settings, 0
        for after, receipt, group, mark, operations in groups:
            yield from frames(unsent[start:after], settings.frame_count_max, settings.frame_bytes_max)
            if receipt.failure is None:  # else it was withdrawn
                yield group.columns(receipt.sequence, mark, operations)
            start = after
        yield from frames(unsent[start:], settings.frame_count_max, settings.frame_bytes_max)

    # ------------------------------------------------------------------ mounts

    def open(self, stream: Stream, generation: Generation, window_bytes: int) -> None:
        """Begin to send on a mount that is ready, under the generation of its answer. What was sent before, and not fed
        by now, is not in the log: it is sent again, or settled as failed. At most `window_bytes` of appends may be
        undecided at the owner."""
        self._stream = stream
        self.generation = generation
        self._again.extendleft(reversed(self._window.open(window_bytes)))
        self._give_up_on_some()
        self._give_up_unknown(stream)
        # The head may have been reset since: what is sent from now on may get ids that were proved before.
        self.proofs.forget()
        self._outstanding.mount_ready()
        mounted, self._waiting_for_mount = self._waiting_for_mount, []
        wake(mounted)
        self._send()

    def _give_up_on_some(self) -> None:
        """Settle as failed the appends that are not sent again, although the mount is ready. Those are all, if a mount
        ended with an error that the same appends bring again; else those up to the youngest frame that was sent too
        often: the owner might be in trouble for an older one."""
        again, may_send, self._send_again = self._again, self._send_again, True
        given_up = 0
        for frame in again:
            if not may_send or frame.sends >= SENDS_MAX:
                given_up = frame.last
        while again and again[0].last <= given_up:
            again.popleft()
        self._settled(self._outstanding.passed(given_up, self._cause()))

    def _give_up_unknown(self, stream: Stream) -> None:
        """Settle as failed the appends with needs that an older server does not know."""
        try:
            check_knows(stream.connection, COPIES_VERSION, _NEEDS)
        except UnsupportedVersion as error:
            settled: list[Pending] = []
            failure = AppendFailure(Unordered.NOT_KNOWN_THERE, cause=error.text)
            for entry in self._outstanding.pending():
                if isinstance(entry, CopiedReceipt):
                    settled += self._outstanding.give_up(entry, failure)
            self._settled(settled)

    def shut(self, *, send_again: bool = True) -> None:
        """Send nothing more until the next mount, because this one is over. What was sent stays pending: the next mount
        brings it in the feed, or it is sent again; without `send_again` it fails then. Flushes end with
        `ConnectionLost`, and their callers send them again."""
        self._stream = None
        self.commit_trouble = None
        self._send_again = self._send_again and send_again
        self._outstanding.mount_over()
        self._sends_soon = False
        flushes, self._flushes = self._flushes, {}
        unanswered = [future for _, future in flushes.values() if future is not None]
        fail_all(unanswered, ConnectionLost("the mount ended before the flush was answered"))

    def stop(self, error: PolonaiseError) -> None:
        """Settle everything that is pending, and end all waits with this error, now and from now on."""
        if self.stopped:
            return
        self.stopped = error  # first: the callers of `flush` whose waits `shut` ends look at it
        self.shut()
        self._unsent.clear()
        self._unsent_groups.clear()
        self._again.clear()
        self._window.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        tell(self._outstanding.stop(str(error)))
        fail_all(self._waiting_for_mount, error)
        self._waiting_for_mount.clear()
        self.admission.stop(error)
        self.turntaking.stop(error)
        self.mark.stop(error)
        self.proofs.stop(error)

    # ------------------------------------------------------------------ what the server says

    def judge(self, batch: Batch) -> None:
        """Read the fates of this client's appends from a fed batch. Raises as `Outstanding.committed`."""
        clients = batch.client_ids.tolist()
        self.turntaking.fed(batch.first, clients)
        own = clients.count(self.client_id)
        if not own:
            return
        above, sequences = self._above, batch.sequences.tolist()
        ids: range | list[int] = range(batch.first, batch.last + 1)
        # Numbers up to `above` are an earlier client's, whose id was given out again: by an older state of the
        # coordinator.
        if own != batch.count or min(sequences) <= above:
            positions = [
                position
                for position, client in enumerate(clients)
                if client == self.client_id and sequences[position] > above
            ]
            if not positions:
                return
            sequences = [sequences[position] for position in positions]
            ids = [batch.first + position for position in positions]
        if above:
            sequences = [sequence - above for sequence in sequences]
        self._settled(self._outstanding.committed(sequences, ids))

    def refused(self, rows: Sequence[FailedAppend]) -> None:
        settled: list[Pending] = []
        cause = self._cause()
        for sequence, value, reason in rows:
            settled += self._outstanding.refused(sequence - self._above, AppendFailure(reason, value, cause))
        self._settled(settled)

    def flushed(self, request: int, high_water_mark: TransactionId) -> None:
        """Settle as failed the pending appends that an answered flush covered."""
        covered, answered = self._flushes.pop(request, (0, None))
        if covered:
            self._settled(self._outstanding.passed(covered, self._cause()))
        if answered is not None and not answered.done():
            answered.set_result(high_water_mark)

    def _settled(self, settled: list[Pending]) -> None:
        """Wake the tasks that wait for these appends, which are settled; use the room that they leave."""
        self._heard_s = self.loop.time()
        self._window.decided_below(self._outstanding.first_pending)
        if settled:
            tell(settled)
        self.admission.admit()
        # Not for each little room: a frame would be cut for every append that is decided.
        if self._has_unsent and self._window.has_room:
            self._send_soon()

    # ------------------------------------------------------------------ asking after appends

    def _flush_if_silent(self) -> None:
        """Send a flush if nothing was heard for a while of appends that were sent. A server drops appends of an older
        mount without a word, and without a younger append or another mount nothing else settles them."""
        self._idle_timer = None
        if self.stopped or not self._outstanding.awaited:
            return  # the next append that is sent starts the timer again
        now, idle_s = self.loop.time(), self._settings.idle_flush_s
        due = self._heard_s + idle_s
        if now >= due:
            due = now + idle_s
            if self._stream is not None and not self._flushes:
                self._send_flush(self._stream, None)
        self._idle_timer = self.loop.call_at(due, self._flush_if_silent)

    @property
    def _sent_here(self) -> int:
        """The highest sequence up to which all that is pending was sent on the present mount."""
        return self._again[0].first - 1 if self._again else self._outstanding.sent

    def _send_flush(self, stream: Stream, answered: asyncio.Future[TransactionId] | None) -> None:
        request = stream.next_request()
        self._flushes[request] = (self._sent_here, answered)
        stream.connection.send(Flush(), request=request, partition=self.id)

    async def flush(self, deadline_s: float | None) -> TransactionId:
        """Wait until the fate of everything appended so far is known; return the committed high-water mark then.
        `deadline_s` is a time of the loop. Raises `TimeoutError` after it, or the error that stopped the partition."""
        last = self._outstanding.next_sequence - 1
        while True:
            if self.stopped:
                raise fresh(self.stopped)
            if self._stream is None:
                mounted: asyncio.Future[None] = self.loop.create_future()
                self._waiting_for_mount = [future for future in self._waiting_for_mount if not future.done()]
                self._waiting_for_mount.append(mounted)
                await until(mounted, deadline_s)
                continue
            self._send_all(self._stream)
            answered: asyncio.Future[TransactionId] = self.loop.create_future()
            covered = self._sent_here
            self._send_flush(self._stream, answered)
            try:
                mark = await until(answered, deadline_s)
            except ConnectionLost:
                continue  # the mount is over: again on the next one
            if covered >= last:  # else the window had no room for all of it
                return mark
