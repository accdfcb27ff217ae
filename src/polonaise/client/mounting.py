"""Keeps one partition mounted: finds its owner, mounts, takes the feed, and begins again whenever a mount ends.

A mount is one attempt on one stream (`_Attempt`), and its end a value (`_Ended`). What is known of the feed outlives it
in a `Subscription`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from polonaise.client.appends import PartitionAppends
from polonaise.client.clientparts import ClientParts
from polonaise.client.links import Stream
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.subscription import MountVerdict, Subscription, ahead_of_log
from polonaise.client.settings import PATIENCES
from polonaise.coordination.values import Assignment, Owner
from polonaise.errors import (
    BatchDamaged,
    BodyTooLarge,
    CertificateRefused,
    Closed,
    ConnectionLost,
    ConsistencyLost,
    DeadlineExceeded,
    FrameDamaged,
    FrameTooLarge,
    HistoryTrimmed,
    LogForked,
    NotOwner,
    OutOfOrder,
    PartitionNotReady,
    PolonaiseError,
    ProtocolError,
    Retry,
    TlsNotSpoken,
    TlsRequired,
    TooManyLocks,
    UnknownPartition,
    UnsupportedVersion,
    WrongClusterKey,
    WrongRole,
    fault,
    fresh,
)
from polonaise.link.protocol.peertext import fault_in
from polonaise.log.batch import Batch
from polonaise.terms import BodyForm, FailureReason, Generation, MountState, TransactionId
from polonaise.wire.appends import decode_failures
from polonaise.wire.codec import Message
from polonaise.wire.messages import AppendsFailed, Credit, Feed, Flushed, Mount, Mounted, Refused, Unmount

_log = logging.getLogger("polonaise.client")

_HOPELESS = (UnknownPartition, WrongClusterKey, WrongRole, UnsupportedVersion, HistoryTrimmed)
"""Errors that no pause mends: a mount that ends with one stops the partition."""
_HOPELESS_AT_FIRST = (CertificateRefused, TlsRequired, TlsNotSpoken)
"""Errors that stop the partition if it was never mounted: then they say that this side was set up wrongly."""


class Form(NamedTuple):
    """The form in which a mount asks for bodies: with the feed, on request, or by header."""

    form: BodyForm = BodyForm.INLINE
    filter_mask: int = 0
    filter_value: int = 0


class FeedTaker(Protocol):
    """The receiver of a feed: passes it to the application's view, or only moves the client high-water mark."""

    form: Form
    begins_by: str
    """What `begin` waits for, in words for messages; empty if it is the partition's owner."""

    async def begin(self) -> TransactionId:
        """Return the mark after which the feed has to start."""

    def offer(self, batch: Batch) -> None:
        """Take a batch that continues the feed; give its bytes back by `Mounting.taken` once applied or dropped."""


_OF_APPENDS = (ProtocolError, BodyTooLarge, TooManyLocks)
"""Errors with which a server refuses appends for what they are, as it would again."""
_OF_THE_LINK = (FrameDamaged, FrameTooLarge)
"""Those among them that are no fault of the appends: a frame changed on its way."""


class _Ended(NamedTuple):
    error: PolonaiseError
    pause: bool = True
    told: bool = False
    """Whether the server has refused with this error; False for what was noticed here."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """One mount on one stream."""

    stream: Stream
    request: int
    generation: Generation
    """The owner's, by the assignment, or by the answer to the mount if that is later."""
    ended: asyncio.Future[_Ended]
    heard_s: float
    """The loop's time at which the mount began, or last made progress: feed received, or credit given back."""
    ready: bool = False
    """Whether the owner has answered READY: appends may be sent."""
    silence: asyncio.TimerHandle | None = None
    """The next check whether the mount makes progress."""

    def end(self, error: PolonaiseError, *, pause: bool = True, told: bool = False) -> None:
        """End the mount. Only the first reason counts: what follows is mostly its consequence."""
        if not self.ended.done():
            self.ended.set_result(_Ended(error, pause, told))


def _harmful(attempt: _Attempt) -> bool:
    """Return whether the server has refused what was sent on this mount for what it is, as it would the next time."""
    # Before READY nothing was sent; a cancelled wait leaves no reason.
    if not attempt.ready or not attempt.ended.done():
        return False
    ended = attempt.ended.result()
    return ended.told and isinstance(ended.error, _OF_APPENDS) and not isinstance(ended.error, _OF_THE_LINK)


class Mounting:
    """Keeps this client's mount of one partition. Messages are handled in the order of their arrival, without awaiting:
    an answer settles everything that the feed before it did not bring. Those of a mount that is over are ignored: the
    next one settles what they would have said."""

    def __init__(self, parts: ClientParts, appends: PartitionAppends, taker: FeedTaker) -> None:
        """Begin with `keep_mounted`."""
        self._host = parts.host
        self._identity = parts.identity
        self._loop = appends.loop
        self._partition = appends.partition
        self._id = appends.id
        self._appends = appends
        self._taker = taker
        self._routes = parts.routes
        self._links = parts.links
        self._settings = parts.settings
        self._subscription = Subscription(-1)
        self._attempt: _Attempt | None = None
        self._stream: Stream | None = None
        """The latest attempt's, to be closed once the partition has moved elsewhere."""
        self._untaken_bytes = 0
        """Bytes of feed that the taker has not given back yet."""
        self._owed_bytes = 0
        """Bytes of credit that are not given back to the server yet."""
        self._begun = False
        self._was_ready = False
        self._patience_s = parts.settings.mount_s_max
        """The seconds for which the next mount may be silent."""
        appends.waits_for = self._waits_for
        appends.served_by = self._routes.served_by

    async def keep_mounted(self) -> None:
        """Mount the partition, again and again until it stops; run as a task."""
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        if not self._identity.identified.done():
            await self._wait_for_an_id()
        # The mark comes first, and once: a mount says from where it is to be fed. Later mounts go on where the last
        # one stopped.
        try:
            self._subscription = Subscription(await self._taker.begin())
            self._begun = True
        except PolonaiseError as error:
            self.stop(error)
            return
        self._routes.listeners[self._assigned] = None
        while self._appends.stopped is None:
            ended = await self._mount_once(backoff)
            self._note(ended.error)
            if self._appends.stopped is not None or self._is_hopeless(ended.error):
                self.stop(self._routes.explained(ended.error, self._partition))
                return
            if ended.pause:
                await asyncio.sleep(backoff.pause_s(self._host.random.random()))
            if ended.error.retry is Retry.ELSEWHERE:
                # After the pause: the coordinator may learn of the change only now.
                await self._routes.reread()

    async def _wait_for_an_id(self) -> None:
        try:
            self._identity.own_id()
        except PolonaiseError as error:
            self._note(error)
        await asyncio.shield(self._identity.identified)

    def _is_hopeless(self, error: PolonaiseError) -> bool:
        """Whether mounting again makes no sense. Where TLS was spoken once, a refused certificate is replaced
        meanwhile, and an answer without TLS is of something that stands there for a while."""
        return isinstance(error, _HOPELESS) or (isinstance(error, _HOPELESS_AT_FIRST) and not self._was_ready)

    def _waits_for(self) -> str:
        owner = self._routes.known(self._partition)
        if not self._identity.identified.done():
            return "an id of this client, which the coordinator could not give yet"
        if not self._begun and self._taker.begins_by:
            return self._taker.begins_by
        if owner is None or self._attempt is None:
            return self._routes.waits_for(self._partition)
        return f"an answer of {self._attempt.stream.address} to its mount{self._routes.served_by()}"

    def _note(self, error: PolonaiseError) -> None:
        """Remember why the partition is not mounted; log it if the kind of trouble is new."""
        before = self._appends.trouble
        if before is None or before.code != error.code:
            _log.info("partition %d is not mounted: %s", self._partition, error)
        if isinstance(error, ConnectionLost) and (known := self._routes.served_by()):
            error = fresh(error)
            error.args = (error.text + known,)
        self._appends.trouble = error

    async def _mount_once(self, backoff: Backoff) -> _Ended:
        """Find the owner, mount, and wait until the mount ends; return why."""
        try:
            owner = await self._routes.owner(self._partition)
            stream = await self._links.stream(owner.address, partial(self._routes.route, self._partition, owner))
        except NotOwner as error:  # the assignment has named another one: nothing to pause for
            return _Ended(error, pause=False)
        except PolonaiseError as error:
            return _Ended(error)
        # A stream is shared by the partitions of one server. This may have been the last one on the former owner's.
        before, self._stream = self._stream, stream
        if before is not None and before is not stream:
            before.close_unless_used()
        attempt = self._begin(stream, owner)
        try:
            # It may have closed before this partition was among those that are told; then `lost` is not called.
            if stream.connection.closed:
                return _Ended(stream.connection.closed)
            ended = await attempt.ended
            if attempt.ready:  # not for each connection: an owner that refuses every mount is not to be pressed
                backoff.reset()
                self._patience_s = max(self._settings.mount_s_max, self._patience_s / 2)
                self._was_ready = True
            return ended
        finally:
            self._finish(attempt)

    def _begin(self, stream: Stream, owner: Owner) -> _Attempt:
        subscription, settings = self._subscription, self._settings
        # Raised before the answer: an owner of an earlier generation must not be believed, whatever it answers.
        subscription.generation_known = max(subscription.generation_known, owner.generation)
        request = stream.next_request()
        attempt = _Attempt(stream, request, owner.generation, self._loop.create_future(), self._loop.time())
        # Both before the mount is sent, so that even the first message is received.
        self._attempt = attempt
        stream.partitions[self._id] = self
        self._owed_bytes = 0  # the mount brings its whole credit: what was owed for the one before is in it
        form = self._taker.form
        mount = Mount(
            connection_sequence=stream.sequence,
            generation_known=subscription.generation_known,
            client_high_water_mark=subscription.mount(),
            form=form.form,
            filter_mask=form.filter_mask,
            filter_value=form.filter_value,
            credit=max(1, settings.credit_bytes - self._untaken_bytes),
        )
        stream.connection.send(mount, request=request, partition=self._id)
        attempt.silence = self._loop.call_later(self._patience_s, self._check_silence, attempt)
        return attempt

    def _finish(self, attempt: _Attempt) -> None:
        """Leave a mount that has ended; a server that answered READY is told to end the feed."""
        # Before anything else: an append sent now would belong to a mount whose answers are not heard any more.
        self._appends.shut(send_again=not _harmful(attempt))
        self._attempt = None
        if attempt.silence is not None:
            attempt.silence.cancel()  # or it would keep a closed client, and all that it was fed, in memory
        stream = attempt.stream
        if attempt.ready and not stream.connection.closed:
            stream.connection.send(Unmount(), partition=self._id)
        stream.partitions.pop(self._id, None)

    def _check_silence(self, attempt: _Attempt) -> None:
        """End a mount that has had no answer, and has made no progress, for too long: the next one is given twice as
        long.

        The answer comes after the feed of all that was missed, so it may take long, and only silence counts. While the
        view has half of the credit still to apply, the server may be waiting for credit: that is no silence.
        """
        attempt.silence = None
        if attempt.ready or attempt.ended.done():
            return
        now, patience = self._loop.time(), self._patience_s
        if now - attempt.heard_s >= patience and self._untaken_bytes * 2 < self._settings.credit_bytes:
            attempt.end(DeadlineExceeded(f"{attempt.stream.address} did not answer a mount within {patience:g} s"))
            self._patience_s = min(2 * patience, PATIENCES * self._settings.mount_s_max)
            return
        attempt.silence = self._loop.call_later(patience / 2, self._check_silence, attempt)

    @property
    def received(self) -> TransactionId:
        """The last id that was fed, or the mark after which the feed starts; -1 for none."""
        return self._subscription.received

    # ------------------------------------------------------------------ events

    def stop(self, error: PolonaiseError) -> None:
        """Stop the partition for good: settle its appends, and end its waits and the mount with this error."""
        if self._appends.stopped is None and not isinstance(error, Closed):
            _log.error("partition %d stops: %s", self._partition, error)
        self._appends.stop(error)
        self._routes.listeners.pop(self._assigned, None)
        if self._attempt is not None:
            self._attempt.end(error)

    def rewind(self, client_high_water_mark: TransactionId) -> None:
        """Mount anew, to be fed from this mark, to which the application's view has gone back."""
        self._subscription.rewind(client_high_water_mark)
        if self._attempt is not None:
            self._attempt.end(PartitionNotReady("the view went back to an earlier mark"), pause=False)

    def _assigned(self, assignment: Assignment) -> None:
        """End the mount if the assignment names an owner of a later generation; mount there without a pause."""
        owner, attempt = self._routes.owner_in(assignment, self._partition), self._attempt
        if attempt is not None and owner is not None and owner.generation > attempt.generation:
            attempt.end(NotOwner(f"partition {self._partition} has moved to {owner.address}"), pause=False)

    def lost(self, stream: Stream, error: PolonaiseError) -> None:
        """End the mount if it is on this stream, whose connection has ended with `error`."""
        if self._attempt is not None and self._attempt.stream is stream:
            self._attempt.end(error, told=stream.connection.refused)

    def receive(self, stream: Stream, message: Message, request: int) -> None:
        """Handle a message of this partition. Raises `ProtocolError` for an unexpected one, which closes the stream."""
        attempt = self._attempt
        if attempt is None or attempt.stream is not stream or attempt.ended.done():
            return
        match message:
            case Feed():
                self._fed(attempt, message)
            case AppendsFailed():
                self._refused(attempt, message)
            case Flushed():
                self._appends.flushed(request, message.high_water_mark)
            # The request number tells the answer to this mount from one to a mount before it on the same stream.
            case Mounted() if request == attempt.request and not attempt.ready:
                self._answered(attempt, message)
            case Mounted() if not request and attempt.ready:
                self._take_commit_trouble(message)
            case Mounted():
                pass
            case Refused():
                attempt.end(fault_in(message), told=True)
            case _:
                raise ProtocolError(f"a server sends a mounted partition no {type(message).__name__}")

    def _fed(self, attempt: _Attempt, message: Feed) -> None:
        payload = message.payload[0] if message.payload else b""
        try:
            batch = Batch.parse(payload)
        except BatchDamaged as error:
            # The connection is not to be relied upon: the other partitions on it mount again, too.
            _log.error("a damaged batch in the feed of partition %d: %s", self._partition, error)
            attempt.stream.connection.abort(ConnectionLost(f"damaged feed: {error}"))
            return
        if batch.length != len(payload) or batch.partition != self._id:
            raise ProtocolError(
                f"a server sent a feed message that does not hold exactly one batch of partition {self._partition}"
            )
        batch.partition = self._partition
        attempt.heard_s = self._loop.time()
        try:
            brings = self._subscription.fed(batch)
            # Fates before the view: a receipt is settled though the view may be slow. And once for each batch: after a
            # rewind a batch is fed again whose fates were told.
            if brings and self._subscription.unjudged(batch):
                self._appends.judge(batch)
        except OutOfOrder as error:
            attempt.end(error)
            return
        except (LogForked, ConsistencyLost) as error:
            # A promise of the log is broken. Another mount would only hide it.
            self.stop(error)
            return
        self._untaken_bytes += batch.length
        if brings:
            self._taker.offer(batch)
        else:
            self.taken(batch.length)

    def taken(self, length: int) -> None:
        """Give back bytes of feed that are applied or not needed, so that the server may send as many more."""
        self._untaken_bytes -= length
        self._owed_bytes += length
        attempt = self._attempt
        # In eighths of the credit: few messages, and the server still never runs out while the view keeps up.
        if attempt is None or self._owed_bytes * 8 < self._settings.credit_bytes:
            return
        attempt.heard_s = self._loop.time()
        attempt.stream.connection.send(Credit(self._owed_bytes), partition=self._id)
        self._owed_bytes = 0

    def _refused(self, attempt: _Attempt, message: AppendsFailed) -> None:
        """Settle the refused appends; mount anew if the owner has another generation than they carry. Those stay
        pending, and are sent again under the generation of the next mount."""
        rows = decode_failures(message.rows)
        self._appends.refused([row for row in rows if row.reason is not FailureReason.GENERATION])
        for row in rows:
            if row.reason is FailureReason.GENERATION:
                text = f"appends were sent under generation {attempt.generation}, and the owner has {row.value}"
                attempt.end(fault("wrong_generation", text))
                return

    def _take_commit_trouble(self, message: Mounted) -> None:
        """Remember what keeps the appends of a ready mount from being committed, or that nothing does any more."""
        before, self._appends.commit_trouble = self._appends.commit_trouble, None
        if message.state == MountState.NOT_READY:
            trouble = PartitionNotReady(f"partition {self._partition} commits nothing now: {message.reason}")
            self._appends.commit_trouble = trouble
        if (before is None) != (self._appends.commit_trouble is None):
            _log.info("%s", self._appends.commit_trouble or f"partition {self._partition} commits again")

    def _answered(self, attempt: _Attempt, message: Mounted) -> None:
        try:
            state = MountState(message.state)
        except ValueError as error:
            raise ProtocolError(f"a server answered a mount with the unknown state {message.state}") from error
        match self._subscription.mounted(state, message.generation, message.high_water_mark):
            case MountVerdict.READY:
                attempt.ready = True
                attempt.generation = max(attempt.generation, message.generation)
                self._appends.open(attempt.stream, message.generation, message.append_window)
                self._appends.trouble = None
            case MountVerdict.ASK_AGAIN:
                attempt.end(PartitionNotReady(message.reason or "the owner has no session yet"))
            case MountVerdict.CLIENT_AHEAD:
                # Stops, and does not try again: whatever went on from here would be built on what the log lacks.
                self.stop(ahead_of_log(self._partition, self.received, message.high_water_mark))
            case MountVerdict.OLD_GENERATION:
                known = self._subscription.generation_known
                attempt.end(
                    fault(
                        "wrong_generation",
                        f"partition {self._partition}: an owner of generation {message.generation} answered a mount, "
                        f"but generation {known} has begun",
                    )
                )
            case MountVerdict.INCOMPLETE:
                attempt.end(
                    OutOfOrder(
                        f"partition {self._partition}: the owner answered READY at {message.high_water_mark}, "
                        f"but fed only up to {self._subscription.received}"
                    )
                )
