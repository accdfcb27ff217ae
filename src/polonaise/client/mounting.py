"""Keeps one partition mounted: finds its owner, mounts, takes the feed, and begins again whenever a mount ends.

A mount is one attempt on one stream (`_Attempt`). Its end, for whatever reason, is a value (`_Ended`); what is known of
the feed outlives it in a `Subscription`, so the next mount goes on where this one stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from polonaise.client.appends import PartitionAppends
from polonaise.client.links import Links, Stream
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.subscription import MountVerdict, Subscription, ahead_of_log
from polonaise.client.routes import Routes
from polonaise.client.settings import PATIENCES, ClientSettings
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
from polonaise.host import Host
from polonaise.link.protocol.peertext import fault_in
from polonaise.log.batch import Batch
from polonaise.terms import BodyForm, ClientId, FailureReason, Generation, MountState, TransactionId
from polonaise.wire.appends import decode_failures
from polonaise.wire.codec import Message
from polonaise.wire.messages import AppendsFailed, Credit, Feed, Flushed, Mount, Mounted, Refused, Unmount

_log = logging.getLogger("polonaise.client")

_HOPELESS = (UnknownPartition, WrongClusterKey, WrongRole, UnsupportedVersion, HistoryTrimmed)
"""Errors that no pause mends: a mount that ends with one stops the partition. After any other error the partition is
mounted again, but for those of `_HOPELESS_AT_FIRST` and those with which `Mounting.stop` was called."""
_HOPELESS_AT_FIRST = (CertificateRefused, TlsRequired, TlsNotSpoken)
"""Errors that stop the partition if it was never mounted: then they say that this side was set up wrongly."""


class Form(NamedTuple):
    """The form in which a mount asks for bodies: with the feed, on request, or by header."""

    form: BodyForm = BodyForm.INLINE
    filter_mask: int = 0
    filter_value: int = 0


class FeedTaker(Protocol):
    """The receiver of a feed: passes batches to the application's view, or only moves the client high-water mark."""

    form: Form
    begins_by: str
    """What `begin` waits for, in words, for error messages; empty if it waits for the partition's owner."""

    async def begin(self) -> TransactionId:
        """Return the mark after which the feed has to start."""

    def offer(self, batch: Batch) -> None:
        """Take a batch that continues the feed; give its bytes back by `Mounting.taken` once applied or dropped."""


_OF_APPENDS = (ProtocolError, BodyTooLarge, TooManyLocks)
"""Errors with which a server refuses appends for what they are, so that it would refuse them again."""
_OF_THE_LINK = (FrameDamaged, FrameTooLarge)
"""Those among them that are no fault of the appends: a frame changed on its way, as its checksum or length shows."""


class _Ended(NamedTuple):
    """Why a mount, or an attempt to mount, is over."""

    error: PolonaiseError
    pause: bool = True
    """Whether to pause before the next one."""
    told: bool = False
    """Whether the server has refused with this error; False for what was noticed here."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """One mount on one stream."""

    stream: Stream
    request: int
    generation: Generation
    """The generation of the owner, as the assignment says, or the answer to the mount if that names a later one."""
    ended: asyncio.Future[_Ended]
    heard_s: float
    """The loop's time at which the mount began, or last made progress: feed received, or credit given back."""
    ready: bool = False
    """Whether the owner has answered READY, so that appends may be sent."""
    silence: asyncio.TimerHandle | None = None
    """The timer of the next check whether the mount makes progress; None without one."""

    def end(self, error: PolonaiseError, *, pause: bool = True, told: bool = False) -> None:
        """End the mount. Only the first reason counts: what follows is mostly its consequence."""
        if not self.ended.done():
            self.ended.set_result(_Ended(error, pause, told))


def _harmful(attempt: _Attempt) -> bool:
    """Return whether the server has refused what was sent on this mount for what it is, as it would the next time.

    Whatever else ended the mount was no fault of the appends: a connection that broke, or bytes that changed on it.
    """
    # Before READY nothing was sent; a cancelled wait leaves no reason.
    if not attempt.ready or not attempt.ended.done():
        return False
    ended = attempt.ended.result()
    return ended.told and isinstance(ended.error, _OF_APPENDS) and not isinstance(ended.error, _OF_THE_LINK)


class Mounting:
    """Keeps this client's mount of one partition.

    Messages are handled in the order of their arrival, at once and without awaiting: an answer settles everything that
    the feed before it did not bring, so the two must not be taken in another order. Messages of a mount that is over
    are ignored, because the next mount settles what they would have said.
    """

    def __init__(
        self,
        host: Host,
        appends: PartitionAppends,
        taker: FeedTaker,
        routes: Routes,
        links: Links,
        settings: ClientSettings,
        identified: asyncio.Future[None],
        own_id: Callable[[], ClientId],
    ) -> None:
        """Begin with `keep_mounted`. `identified` is done once the client has its id, and `own_id` raises why not."""
        self._host = host
        self._identified = identified
        self._own_id = own_id
        self._loop = appends.loop
        self._partition = appends.partition
        self._id = appends.id
        self._appends = appends
        self._taker = taker
        self._routes = routes
        self._links = links
        self._settings = settings
        self._subscription = Subscription(-1)
        self._attempt: _Attempt | None = None
        self._stream: Stream | None = None
        """The stream of the latest attempt, kept so that it can be closed once the partition has moved elsewhere."""
        self._untaken_bytes = 0
        """Bytes of feed that were offered to the taker, and not given back with `taken` yet."""
        self._owed_bytes = 0
        """Bytes of credit not yet given back to the server: it is sent in steps, not in a message for each batch."""
        self._begun = False
        self._was_ready = False
        """Whether a mount that has ended was ready."""
        self._patience_s = settings.mount_s_max
        """For how long the next mount may be silent, in seconds."""
        appends.waits_for = self._waits_for
        appends.whereabouts = self._routes.whereabouts

    async def keep_mounted(self) -> None:
        """Mount the partition, again and again until it stops; run as a task."""
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        if not self._identified.done():
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
        """Wait until the client has its id, without which no server would tell its appends from others'."""
        try:
            self._own_id()
        except PolonaiseError as error:
            self._note(error)
        await asyncio.shield(self._identified)

    def _is_hopeless(self, error: PolonaiseError) -> bool:
        """Whether there is no sense in mounting again.

        A certificate that was refused is replaced while the client runs; but one that was never taken is a wrong one.
        And where TLS was spoken once, an answer without it is of something else that stands there for a while.
        """
        return isinstance(error, _HOPELESS) or (isinstance(error, _HOPELESS_AT_FIRST) and not self._was_ready)

    def _waits_for(self) -> str:
        """Return what the partition waits for before it is mounted, for error messages."""
        owner = self._routes.known(self._partition)
        if not self._identified.done():
            return "an id of this client, which the coordinator could not give yet"
        if not self._begun and self._taker.begins_by:
            return self._taker.begins_by
        if owner is None or self._attempt is None:
            return self._routes.waits_for(self._partition)
        return f"an answer of {self._attempt.stream.address} to its mount{self._routes.whereabouts()}"

    def _note(self, error: PolonaiseError) -> None:
        """Remember why the partition is not mounted; log it if the kind of trouble is a new one."""
        before = self._appends.trouble
        if before is None or before.code != error.code:
            _log.info("partition %d is not mounted: %s", self._partition, error)
        if isinstance(error, ConnectionLost) and (known := self._routes.whereabouts()):
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
        """Send a mount, and become the receiver of the partition's messages on the stream."""
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
        """Leave a mount that has ended: hold appends back, and tell a server that answered READY to end the feed."""
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
        """End a mount that has no answer, and has made no progress, for `mount_s_max` seconds, or longer after others.

        The next one is given twice as long: where disks are slow, each would else end before it is fed what was read.
        The answer comes after the feed of all that was missed, so it may take long, and only silence counts. A mount is
        not ended while the view has half of the credit or more still to apply: the server may then be waiting for
        credit, because the view is slow.
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
        """The last id that this client was fed, or the mark after which its feed starts; -1 for none."""
        return self._subscription.received

    # ------------------------------------------------------------------ events

    def stop(self, error: PolonaiseError) -> None:
        """Stop the partition for good: settle its appends, end every wait with this error, and end the mount."""
        if self._appends.stopped is None and not isinstance(error, Closed):
            _log.error("partition %d stops: %s", self._partition, error)
        self._appends.stop(error)
        self._routes.listeners.pop(self._assigned, None)
        if self._attempt is not None:
            self._attempt.end(error)

    def rewind(self, client_high_water_mark: TransactionId) -> None:
        """Mount anew, to be fed again from this mark, because the application's view has gone back to it."""
        self._subscription.rewind(client_high_water_mark)
        if self._attempt is not None:
            self._attempt.end(PartitionNotReady("the view went back to an earlier mark"), pause=False)

    def _assigned(self, assignment: Assignment) -> None:
        """End the mount if the assignment names an owner of a later generation; mount there without a pause.

        An assignment of the mount's generation, or of an earlier one, changes nothing: it may be older than the
        answer to the mount, which named the generation.
        """
        owner, attempt = self._routes.owner_in(assignment, self._partition), self._attempt
        if attempt is not None and owner is not None and owner.generation > attempt.generation:
            attempt.end(NotOwner(f"partition {self._partition} has moved to {owner.address}"), pause=False)

    def lost(self, stream: Stream, error: PolonaiseError) -> None:
        """End the mount, if it is on this stream: the connection has closed."""
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
                self._take_hindrance(message)
            case Mounted():
                pass
            case Refused():
                attempt.end(fault_in(message), told=True)
            case _:
                raise ProtocolError(f"a server sends a mounted partition no {type(message).__name__}")

    def _fed(self, attempt: _Attempt, message: Feed) -> None:
        """Check a fed batch, read the fates of this client's appends from it, and offer it to the taker."""
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
        """Give back the bytes of feed that were applied or are not needed, so that the server may send as many more."""
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
        """Settle the appends that the owner refused; mount anew if the owner has another generation than they carry.

        Those stay pending: nothing is wrong with them, and they are sent again under the generation of the next mount.
        """
        rows = decode_failures(message.rows)
        self._appends.refused([row for row in rows if row.reason is not FailureReason.GENERATION])
        for row in rows:
            if row.reason is FailureReason.GENERATION:
                text = f"appends were sent under generation {attempt.generation}, and the owner has {row.value}"
                attempt.end(fault("wrong_generation", text))
                return

    def _take_hindrance(self, message: Mounted) -> None:
        """Remember what keeps the appends of a ready mount from being committed, or that nothing does any more."""
        before, self._appends.hindrance = self._appends.hindrance, None
        if message.state == MountState.NOT_READY:
            hindrance = PartitionNotReady(f"partition {self._partition} commits nothing now: {message.reason}")
            self._appends.hindrance = hindrance
        if (before is None) != (self._appends.hindrance is None):
            _log.info("%s", self._appends.hindrance or f"partition {self._partition} commits again")

    def _answered(self, attempt: _Attempt, message: Mounted) -> None:
        """Act on the answer to the mount, as `Subscription.mounted` judges it."""
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
