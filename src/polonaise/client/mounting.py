"""Keeps one partition mounted: finds its owner, mounts, takes the feed, and begins again whenever that ends."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

from polonaise.client.appends import PartitionAppends
from polonaise.client.links import Links, Stream
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.subscription import MountVerdict, Subscription
from polonaise.client.routes import Routes
from polonaise.client.settings import ClientSettings
from polonaise.client.waiting import own_loop
from polonaise.coordination.values import Assignment, Owner
from polonaise.errors import (
    BatchDamaged,
    ClientAhead,
    Closed,
    ConnectionLost,
    ConsistencyLost,
    DeadlineExceeded,
    HistoryTrimmed,
    LogForked,
    NotOwner,
    OutOfOrder,
    PartitionNotReady,
    PolonaiseError,
    ProtocolError,
    Retry,
    UnknownPartition,
    UnsupportedVersion,
    WrongClusterKey,
    WrongGeneration,
    WrongRole,
    fresh,
)
from polonaise.host import Host
from polonaise.link.connection import fault_in
from polonaise.log.batch import Batch
from polonaise.terms import BodyForm, FailureReason, Generation, MountState, TransactionId
from polonaise.wire.appends import decode_failures
from polonaise.wire.codec import Message
from polonaise.wire.messages import AppendsFailed, Credit, Feed, Flushed, Mount, Mounted, Refused, Unmount

_log = logging.getLogger("polonaise.client")

_HOPELESS = (UnknownPartition, WrongClusterKey, WrongRole, UnsupportedVersion, HistoryTrimmed)
"""What no pause mends: the partition stops and says so. Anything else may pass."""


class Form(NamedTuple):
    """How bodies are to travel with the feed."""

    form: BodyForm = BodyForm.INLINE
    filter_mask: int = 0
    filter_value: int = 0


class FeedTaker(Protocol):
    """Where a feed goes: to the application's view, or nowhere but the client high-water mark."""

    form: Form
    begins_by: str
    """What `begin` waits for, if that is not the partition's owner."""

    async def begin(self) -> TransactionId:
        """The mark from which the feed has to start."""

    def offer(self, batch: Batch) -> None:
        """A batch that continues the feed. Every byte of it is given back with `Mounting.taken` once applied."""


class _Ended(NamedTuple):
    """Why a mount, or the try of one, is over."""

    error: PolonaiseError
    pause: bool = True


@dataclass(slots=True, eq=False)
class _Attempt:
    """One mount on one stream."""

    stream: Stream
    request: int
    sent_before: int
    """The highest sequence sent before it."""
    generation: Generation
    """The largest generation that the assignment, or the answer, spoke of."""
    ended: asyncio.Future[_Ended]
    heard_s: float
    ready: bool = False

    def end(self, error: PolonaiseError, *, pause: bool = True) -> None:
        if not self.ended.done():
            self.ended.set_result(_Ended(error, pause))


class Mounting:
    """One partition's place in the cluster, as this client has it.

    Everything received is taken up in its order, at once and without awaiting, so that an answer and the feed around
    it can't be confused. What comes of a mount that is over is ignored.
    """

    def __init__(
        self,
        host: Host,
        appends: PartitionAppends,
        taker: FeedTaker,
        routes: Routes,
        links: Links,
        settings: ClientSettings,
    ) -> None:
        self._host = host
        self._loop = own_loop()
        self._partition = appends.partition
        self._appends = appends
        self._taker = taker
        self._routes = routes
        self._links = links
        self._settings = settings
        self._subscription = Subscription(-1)
        self._attempt: _Attempt | None = None
        self._stream: Stream | None = None
        """The stream of the latest attempt."""
        self._untaken_bytes = 0
        """Feed that was offered and not given back."""
        self._owed_bytes = 0
        """Credit to give back to the server, in steps."""
        self._begun = False
        appends.waits_for = self._waits_for
        appends.whereabouts = self._routes.whereabouts

    async def keep_mounted(self) -> None:
        """Until the partition stops; a task of its own."""
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
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
            if self._appends.stopped is not None or isinstance(ended.error, _HOPELESS):
                self.stop(ended.error)
                return
            if ended.pause:
                await asyncio.sleep(backoff.pause_s(self._host.random.random()))
            if ended.error.retry is Retry.ELSEWHERE:
                await self._routes.reread()

    def _waits_for(self) -> str:
        owner = self._routes.known(self._partition)
        if not self._begun and self._taker.begins_by:
            return self._taker.begins_by
        if owner is None or self._attempt is None:
            return self._routes.waits_for(self._partition)
        return f"an answer of {self._attempt.stream.address} to its mount{self._routes.whereabouts()}"

    def _note(self, error: PolonaiseError) -> None:
        before = self._appends.trouble
        if before is None or before.code != error.code:
            _log.info("partition %d is not mounted: %s", self._partition, error)
        if isinstance(error, ConnectionLost) and (known := self._routes.whereabouts()):
            error = fresh(error)
            error.args = (error.text + known,)
        self._appends.trouble = error

    async def _mount_once(self, backoff: Backoff) -> _Ended:
        """Find the owner, mount, and stay until that ends."""
        try:
            owner = await self._routes.owner(self._partition)
            stream = await self._links.stream(owner.address)
        except PolonaiseError as error:
            return _Ended(error)
        before, self._stream = self._stream, stream
        if before is not None and before is not stream:
            before.close_unless_used()
        attempt = self._begin(stream, owner)
        try:
            if stream.connection.closed:
                return _Ended(stream.connection.closed)
            ended = await attempt.ended
            if attempt.ready:
                backoff.reset()
            return ended
        finally:
            self._finish(attempt)

    def _begin(self, stream: Stream, owner: Owner) -> _Attempt:
        subscription, settings = self._subscription, self._settings
        subscription.generation_known = max(subscription.generation_known, owner.generation)
        request = stream.next_request()
        attempt = _Attempt(
            stream, request, self._appends.sent, owner.generation, self._loop.create_future(), self._loop.time()
        )
        self._attempt = attempt
        stream.partitions[self._partition] = self
        self._owed_bytes = 0
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
        stream.connection.send(mount, request=request, partition=self._partition)
        self._loop.call_later(settings.mount_s_max, self._check_silence, attempt)
        return attempt

    def _finish(self, attempt: _Attempt) -> None:
        self._appends.shut()
        self._attempt = None
        stream = attempt.stream
        if attempt.ready and not stream.connection.closed:
            stream.connection.send(Unmount(), partition=self._partition)
        stream.partitions.pop(self._partition, None)

    def _check_silence(self, attempt: _Attempt) -> None:
        """While a mount has no answer: does anything come? A view that takes nothing is not the server's fault."""
        if attempt.ready or attempt.ended.done():
            return
        now, patience = self._loop.time(), self._settings.mount_s_max
        if now - attempt.heard_s >= patience and self._untaken_bytes * 2 < self._settings.credit_bytes:
            attempt.end(DeadlineExceeded(f"{attempt.stream.address} did not answer a mount within {patience:g} s"))
            return
        self._loop.call_later(patience / 2, self._check_silence, attempt)

    # ------------------------------------------------------------------ events

    def stop(self, error: PolonaiseError) -> None:
        """Nothing goes on in this partition any more, and everybody who waits is told why."""
        if self._appends.stopped is None and not isinstance(error, Closed):
            _log.error("partition %d stops: %s", self._partition, error)
        self._appends.stop(error)
        self._routes.listeners.pop(self._assigned, None)
        if self._attempt is not None:
            self._attempt.end(error)

    def rewind(self, client_high_water_mark: TransactionId) -> None:
        """The application's mark has gone back: feed again from there."""
        self._subscription.rewind(client_high_water_mark)
        if self._attempt is not None:
            self._attempt.end(PartitionNotReady("the view went back to an earlier mark"), pause=False)

    def _assigned(self, assignment: Assignment) -> None:
        owner, attempt = assignment.owners.get(self._partition), self._attempt
        if attempt is not None and owner is not None and owner.generation > attempt.generation:
            attempt.end(NotOwner(f"partition {self._partition} has moved to {owner.address}"), pause=False)

    def lost(self, stream: Stream, error: PolonaiseError) -> None:
        if self._attempt is not None and self._attempt.stream is stream:
            self._attempt.end(error)

    def receive(self, stream: Stream, message: Message, request: int) -> None:
        """A message of this partition. Raises `ProtocolError` for what has no business here: the stream is closed."""
        attempt = self._attempt
        if attempt is None or attempt.stream is not stream or attempt.ended.done():
            return
        kind = type(message)
        if kind is Feed:
            self._fed(attempt, cast(Feed, message))
        elif kind is AppendsFailed:
            self._refused(attempt, cast(AppendsFailed, message))
        elif kind is Flushed:
            self._appends.flushed(request, cast(Flushed, message).high_water_mark)
        elif kind is Mounted:
            if request == attempt.request and not attempt.ready:
                self._answered(attempt, cast(Mounted, message))
            elif not request and attempt.ready:
                self._told(cast(Mounted, message))
        elif kind is Refused:
            refused = cast(Refused, message)
            attempt.end(fault_in(refused))
        else:
            raise ProtocolError(f"{kind.__name__} from a server")

    def _fed(self, attempt: _Attempt, message: Feed) -> None:
        payload = message.payload[0] if message.payload else b""
        try:
            batch = Batch.parse(payload)
        except BatchDamaged as error:
            _log.error("a damaged batch in the feed of partition %d: %s", self._partition, error)
            attempt.stream.connection.abort(ConnectionLost(f"damaged feed: {error}"))
            return
        if batch.length != len(payload) or batch.partition != self._partition:
            raise ProtocolError("a feed is one batch of the partition that was mounted")
        attempt.heard_s = self._loop.time()
        try:
            brings = self._subscription.fed(batch)
            if brings and self._subscription.unjudged(batch):
                self._appends.judge(batch)
        except OutOfOrder as error:
            attempt.end(error)
            return
        except (LogForked, ConsistencyLost) as error:
            self.stop(error)
            return
        self._untaken_bytes += batch.length
        if brings:
            self._taker.offer(batch)
        else:
            self.taken(batch.length)

    def taken(self, length: int) -> None:
        """So many bytes of feed were applied, or are not needed: the server may send as many more."""
        self._untaken_bytes -= length
        self._owed_bytes += length
        attempt = self._attempt
        if attempt is None or self._owed_bytes * 8 < self._settings.credit_bytes:
            return
        attempt.heard_s = self._loop.time()
        attempt.stream.connection.send(Credit(self._owed_bytes), partition=self._partition)
        self._owed_bytes = 0

    def _refused(self, attempt: _Attempt, message: AppendsFailed) -> None:
        rows = decode_failures(message.rows)
        self._appends.refused(rows)
        for row in rows:
            if row.reason is FailureReason.GENERATION:
                text = f"appends went out under generation {attempt.generation}, the owner's is {row.value}"
                attempt.end(WrongGeneration(text))
                return

    def _told(self, message: Mounted) -> None:
        """What keeps the appends of a mount that is ready from being committed, if anything does."""
        before, self._appends.hindrance = self._appends.hindrance, None
        if message.state == MountState.NOT_READY:
            hindrance = PartitionNotReady(f"partition {self._partition} commits nothing just now: {message.reason}")
            self._appends.hindrance = hindrance
        if (before is None) != (self._appends.hindrance is None):
            _log.info("%s", self._appends.hindrance or f"partition {self._partition} commits again")

    def _answered(self, attempt: _Attempt, message: Mounted) -> None:
        try:
            state = MountState(message.state)
        except ValueError as error:
            raise ProtocolError(f"unknown mount state {message.state}") from error
        match self._subscription.mounted(state, message.generation, message.high_water_mark):
            case MountVerdict.READY:
                attempt.ready = True
                attempt.generation = max(attempt.generation, message.generation)
                self._appends.open(attempt.stream, message.generation, attempt.sent_before, message.append_window)
                self._appends.trouble = None
            case MountVerdict.ASK_AGAIN:
                attempt.end(PartitionNotReady(message.reason or "the owner has no session yet"))
            case MountVerdict.CLIENT_AHEAD:
                mark, there = self._subscription.received, message.high_water_mark
                self.stop(
                    ClientAhead(
                        f"partition {self._partition}: this client has applied up to {mark}, the log ends at {there}: "
                        "its database is of another log, or the log lost transactions; compare before anything else"
                    )
                )
            case MountVerdict.OLD_GENERATION:
                known = self._subscription.generation_known
                attempt.end(WrongGeneration(f"an owner of generation {message.generation} answered; {known} exists"))
            case MountVerdict.INCOMPLETE:
                attempt.end(OutOfOrder(f"ready at {message.high_water_mark} without having fed everything up to there"))
