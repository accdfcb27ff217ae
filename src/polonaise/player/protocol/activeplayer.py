"""The active player as one state machine: events in, effects out, without clock, I/O or asyncio.

The way of an entry: the main stream of its partition brings it (`fetched`); it waits in the queue of each target that
the route function has named; it is sent (`SendBatches`), applied and acknowledged by the target (`acknowledged`). A
target that was away is caught up by reads of the log (`ReadForTarget`, `recovered`) while the main stream goes on.

What makes each entry reach each target once, in order:

* **one stream at a time**: a target refuses a stream whose fence is not above the one that it keeps, and every message
  of an older one. What the target tells after it has taken the fence is therefore final: no entry of an older stream
  is applied after that, and the player goes on behind it;
* **one source for each entry**: a queue takes entries up to an id from reads and those above it from the main
  stream (`targetqueue`). The id is fixed in the same event in which the queue begins to keep what the main stream
  brings, so none comes from both and none from neither;
* **one step from the queue to the stream**: batches leave the queue in the event that returns `SendBatches`, under the
  term of that event. Events of older terms change nothing;
* **one number for each question**: terms, reads, requests for the mark and main streams are counted for as long as the
  player lives, and an answer names the number that it belongs to. A target that is removed and added again, perhaps at
  an empty place, begins with higher numbers: what was asked for its earlier life answers nobody.

The main stream of a partition begins near what its targets have applied, once all have told that or have had their
time; those that lack much more are caught up as if they had been away. Nothing is sent to a target that tells an id
which the log is not proved to reach, and nothing more of a partition whose log was found to be another one than before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

from polonaise.errors import ClientAhead, invariant
from polonaise.player.protocol.effects import (
    AskMark,
    CloseStream,
    FollowPartition,
    OpenStream,
    PlayerEffect,
    ReadForTarget,
    SendBatches,
    StandDown,
)
from polonaise.player.protocol.entries import TERM_MAX, Epoch, Fence, RoutedEntry, TargetName, Term, shut_out_by
from polonaise.player.protocol.mainstream import MainStream
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.player.protocol.targetpartition import AwaitingMain, Halt, TargetPartition, Unproved
from polonaise.player.protocol.targetqueue import QueueState, TargetQueue
from polonaise.player.protocol.targetstream import StreamState, TargetStream
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

_WENT_BACK: Final = (
    "the log reached {}, and ends with {} now: it was put back to an older state, or lost transactions. Nothing more "
    "of it is delivered: put the targets back as well, or make them anew, and then start the player anew"
)


class ActivePlayer:
    """Delivers partitions to targets under one epoch: decides what is read, sent, and sent again.

    Every public method is an event, unless it says otherwise; the caller carries out the effects that it returns, in
    their order and all of them, before the next event. Events about streams carry the term that the stream was opened
    with. Fields are written here alone.
    """

    def __init__(
        self, epoch: Epoch, partitions: Iterable[PartitionId], settings: PlayerSettings, last_term: Term = 0
    ) -> None:
        """Begin without targets: the first `tick` opens streams to those added. All terms are above `last_term`."""
        self.epoch: Final = epoch
        self.targets: dict[TargetName, TargetStream] = {}
        self.partitions: Final = {partition: MainStream() for partition in partitions}
        self.superseded = ""
        """Why this player has stood down; empty while it is active."""
        self.finishing = False
        """Whether nothing is sent any more."""
        self.settings: Final = settings
        self._reads = 0
        """The number of the last read for a target, never given again."""
        self._last_term = last_term
        """Terms of added targets are above it, and so above those of their earlier lives."""
        self._patient_until_s = inf
        """Until when main streams wait for targets that have not told what they have applied."""
        self._dummies_at_s = -inf
        self._out: list[PlayerEffect] = []

    # ------------------------------------------------------------------ what is delivered

    def has_delivered(self, target: TargetName, partition: PartitionId, id: TransactionId) -> bool:
        """Return whether the target has applied all that is its own of the partition's transactions up to `id`."""
        main = self.partitions[partition]
        if main.current is None or main.lost:  # if it is lost, the id may be that of another transaction
            return False
        return self.targets[target].pairs[partition].delivered >= id

    def why_never(self, target: TargetName, partition: PartitionId, id: TransactionId) -> str:
        """Return why this player won't deliver up to `id`; empty if it may still."""
        if reason := self.targets[target].pairs[partition].given_up:
            return reason
        main = self.partitions[partition]
        return main.stopped if main.current is None or main.current < id else ""

    @property
    def has_finished(self) -> bool:
        """Whether every partition has stopped, and each target has applied all that is its own of what was brought."""
        if not all(main.stopped and not main.lost for main in self.partitions.values()):
            return False
        return all(
            pair.given_up or pair.main.current is None or pair.delivered >= pair.main.current
            for stream in self.targets.values()
            for pair in stream.pairs.values()
        )

    def finish(self) -> None:
        self.finishing = True

    @property
    def at_rest(self) -> bool:
        """Whether the targets have answered all that they were sent on the present streams."""
        return not any(stream.in_flight_bytes for stream in self.targets.values())

    # ------------------------------------------------------------------ targets come and go

    def add_target(self, name: TargetName, start_after: Mapping[PartitionId, TransactionId] | None = None) -> None:
        """Deliver to this target, too: to a new one what follows these ids, or else everything. No event."""
        invariant(name not in self.targets, f"target {name} is added twice")
        self.targets[name] = TargetStream(name, self.settings, self.partitions, start_after or {}, self._last_term)

    def remove_target(self, name: TargetName, now_s: float) -> Sequence[PlayerEffect]:
        stream = self.targets.pop(name)
        self._last_term = max(self._last_term, stream.term)
        if stream.state is not StreamState.DOWN:
            self._out.append(CloseStream(name, stream.term, "the target was removed"))
        for partition in self.partitions:
            # It may be the one that the others waited for.
            self._begin(partition, now_s)
        return self._effects()

    # ------------------------------------------------------------------ events of streams

    def connected(
        self, target: TargetName, term: Term, applied: Mapping[PartitionId, TransactionId], now_s: float
    ) -> Sequence[PlayerEffect]:
        """The target has taken the fence of this stream, and told the last id that it has applied, by partition, if
        any."""
        stream = self._stream(target, term, StreamState.OPENING)
        if stream is not None:
            stream.opened(now_s)
            for partition, pair in stream.pairs.items():
                self._told(stream, pair, applied.get(partition, NO_TRANSACTION), now_s)
            self._send(stream, now_s)
        return self._effects()

    def fenced(self, target: TargetName, term: Term, kept: Fence, now_s: float) -> Sequence[PlayerEffect]:
        """The target has refused the stream, or a message of it, because it keeps this fence."""
        stream = self._stream(target, term, StreamState.OPENING, StreamState.UP)
        if stream is None:
            return self._effects()
        if kept.epoch > self.epoch:
            by = "of a player that began later, or the log was put back to an older state"
            return self.replaced(f"target {target} keeps epoch {kept.epoch}, {by}")
        reason = shut_out_by(kept, Fence(self.epoch, term))
        # The same epoch twice would be two players that were elected as one; the target's word is above ours. But for
        # a number that no player has come to: none would be left above it, and no message could carry the next.
        if kept.term <= TERM_MAX:
            stream.term = max(stream.term, kept.term)
        else:
            reason += ": a term that no player has come to; the target has damaged what it keeps, or made it up"
        stream.close(reason, now_s)
        self._out.append(CloseStream(target, term, stream.reason))
        return self._effects()

    def replaced(self, by: str) -> Sequence[PlayerEffect]:
        """Another player of this name is known to have a higher epoch; `by` says how."""
        self.superseded = f"{by}, and this one has epoch {self.epoch}"
        self._out = [StandDown(self.superseded)]
        return self._effects(standing_down=True)

    def disconnected(self, target: TargetName, term: Term, reason: str, now_s: float) -> Sequence[PlayerEffect]:
        stream = self._stream(target, term, StreamState.OPENING, StreamState.UP)
        if stream is not None:
            stream.close(reason, now_s)
        return self._effects()

    def written(self, target: TargetName, term: Term, now_s: float) -> Sequence[PlayerEffect]:
        stream = self._stream(target, term, StreamState.UP)
        if stream is not None:
            stream.writing = False
            self._send(stream, now_s)
        return self._effects()

    def acknowledged(
        self, target: TargetName, term: Term, partition: PartitionId, through: TransactionId, now_s: float
    ) -> Sequence[PlayerEffect]:
        """The target has applied everything that it was sent of the partition up to `through`."""
        stream = self._stream(target, term, StreamState.UP)
        if stream is not None:
            pair = stream.pairs.get(partition)
            queue = None if pair is None else pair.queue
            if pair is None or (queue is not None and through > queue.sent):
                self._close(stream, f"it acknowledges {through} of partition {partition}, which it was not sent", now_s)
            elif queue is not None:
                stream.acknowledged(pair, queue, through, now_s)
                self._send(stream, now_s)
        return self._effects()

    def refused(
        self, target: TargetName, term: Term, partition: PartitionId, last: TransactionId, reason: str, now_s: float
    ) -> Sequence[PlayerEffect]:
        """The target could not apply the entry behind `last`, the last one that it has applied of the partition. It
        passes over what was sent of the partition after that, until it is sent the entry again."""
        stream = self._stream(target, term, StreamState.UP)
        if stream is not None:
            pair = stream.pairs.get(partition)
            queue = None if pair is None else pair.queue
            if pair is None or queue is None or not pair.acked <= last < queue.sent:
                self._close(stream, f"it refuses an entry of partition {partition} that it was not sent", now_s)
            else:
                # What it has applied before the refused entry is progress, too.
                stream.acknowledged(pair, queue, last, now_s)
                stream.halt(pair, last, f"it refuses the entry after id {last}: {reason}", now_s)
                self._send(stream, now_s)
        return self._effects()

    # ------------------------------------------------------------------ events of the log

    def mark_seen(
        self, partition: PartitionId, known: TransactionId, mark: TransactionId, now_s: float
    ) -> Sequence[PlayerEffect]:
        """The log has told a committed high-water mark that was asked for elsewhere, when `known` was the mark here."""
        self._judge_mark(partition, known, mark, now_s)
        return self._effects()

    def mark_told(
        self, partition: PartitionId, number: int, mark: TransactionId, now_s: float
    ) -> Sequence[PlayerEffect]:
        """The answer to request `number`: this was the committed high-water mark at some time after it was asked."""
        main = self.partitions[partition]
        if not main.asked or number != main.requests:
            return self._effects()
        main.asked = False
        self._judge_mark(partition, main.known, mark, now_s)
        for stream in self.targets.values():
            pair = stream.pairs[partition]
            if not isinstance(pair.state, Unproved) or pair.state.request > number:
                continue
            last = pair.state.last
            if max(last, pair.start_after) <= main.mark:
                self._proved(stream, pair, last, now_s)
                continue
            ahead = last > main.mark
            if ahead:
                reason = f"it has applied {last}, and the log ends with {mark}: it served another log"
            else:
                reason = f"it is to start after {pair.start_after}, and the log ends with {mark}"
            # One that is ahead for good: once the log has grown as far, its ids would stand for other transactions.
            stream.halt(pair, last, reason, now_s, for_good=ahead)
            self._begin(partition, now_s)
        if main.ask_again:
            self._ask(partition)
        return self._effects()

    def forked(self, partition: PartitionId, number: int, reason: str, now_s: float) -> Sequence[PlayerEffect]:
        """Main stream `number` does not follow what was brought before: the log has other transactions in its place."""
        if number == self.partitions[partition].follows:
            self._lose(partition, reason, now_s)
        return self._effects()

    def mark_failed(self, partition: PartitionId, number: int, reason: str) -> Sequence[PlayerEffect]:
        """Request `number` will never be answered: nothing of the partition can be read any more."""
        main = self.partitions[partition]
        if main.asked and number == main.requests:
            main.asked = False
            main.stopped = reason
        return self._effects()

    def fetched(
        self,
        partition: PartitionId,
        number: int,
        first: TransactionId,
        through: TransactionId,
        routed: Mapping[TargetName, Sequence[RoutedEntry]],
        now_s: float,
    ) -> Iterator[PlayerEffect]:
        """The main stream `number` has brought the transactions from `first` to `through`, routed: entries by target.
        Entries for one that is not, or no longer, among the targets are passed over. The event happens while its
        effects are carried out: what the first target is sent need not wait until that of the last one is decided."""
        main = self.partitions[partition]
        if main.current is None or main.stopped or number != main.follows or self.superseded:
            return
        invariant(
            main.current + 1 == first <= through,
            f"partition {partition}: the main stream is at {main.current}, and brings {first} to {through}",
        )
        main.current = through
        main.mark = max(main.mark, through)
        for name, entries in routed.items():
            stream = self.targets.get(name)
            if stream is not None:
                pair = stream.pairs[partition]
                if (queue := pair.queue) is not None:
                    queue.push(entries)
                    self._advance(stream, pair, queue)
                self._send(stream, now_s)
                if self._out:
                    yield from self._effects()
        if through - main.dummies_at >= self.settings.dummy_transactions:
            main.dummies_at = through
            self._push_dummies(partition, through, self.settings.dummy_transactions, now_s)
            yield from self._effects()

    def recovered(
        self,
        target: TargetName,
        partition: PartitionId,
        number: int,
        entries: Sequence[RoutedEntry],
        through: TransactionId,
        now_s: float,
    ) -> Sequence[PlayerEffect]:
        """A read for a target has found these entries, and has come to `through`, which may be before its end."""
        stream = self.targets.get(target)
        if stream is not None:
            pair = stream.pairs[partition]
            if (queue := pair.queue) is not None and queue.recovered(number, entries, through):
                self._advance(stream, pair, queue)
                self._send(stream, now_s)
        return self._effects()

    def recovery_failed(
        self, target: TargetName, partition: PartitionId, number: int, reason: str, now_s: float
    ) -> Sequence[PlayerEffect]:
        """A read for a target has failed, or an entry could not be routed: it is tried again after a pause."""
        stream = self.targets.get(target)
        if stream is not None:
            stream.read_failed(stream.pairs[partition], number, reason, now_s)
        return self._effects()

    def trimmed(
        self, partition: PartitionId, number: int, first_kept: TransactionId, now_s: float
    ) -> Sequence[PlayerEffect]:
        """The main stream could not begin: the log has nothing left before `first_kept`. It begins again without the
        targets that lack what was trimmed."""
        main = self.partitions[partition]
        if main.current is not None and number == main.follows:
            main.first_kept = first_kept
            main.current = None
            # They tell anew what they have applied: of what was sent meanwhile it is not known.
            for stream in self.targets.values():
                if stream.state is StreamState.UP:
                    self._close(stream, f"partition {partition} was trimmed up to {first_kept - 1}", now_s)
        return self._effects()

    def stopped(self, partition: PartitionId, number: int, reason: str) -> Sequence[PlayerEffect]:
        """The main stream brings nothing more: an entry could not be routed, or the log can't be read. What it has
        brought is still delivered."""
        main = self.partitions[partition]
        if number == main.follows:
            main.stopped = reason
        return self._effects()

    def go_on(self, partition: PartitionId) -> Sequence[PlayerEffect]:
        """Begin the main stream of a partition again where it has stopped: what stopped it may have been mended."""
        main = self.partitions[partition]
        if main.stopped and not main.lost:
            main.stopped = ""
            if main.current is not None:
                self._follow(partition, main.current)
            if not main.asked and any(isinstance(pair.state, Unproved) for _, pair in self._pairs(partition)):
                self._ask(partition)
        return self._effects()

    # ------------------------------------------------------------------ time

    def tick(self, now_s: float) -> Sequence[PlayerEffect]:
        """Look at all deadlines: open streams that are due, end those that are stuck, try again what was refused."""
        if self._patient_until_s == inf:
            self._patient_until_s = now_s + self.settings.start_patience_s
        for stream in self.targets.values():
            if stream.state is StreamState.DOWN and stream.retry_at_s <= now_s and not self.finishing:
                self._out.append(OpenStream(stream.name, stream.open(now_s)))
            elif reason := stream.silence(now_s):
                self._close(stream, reason, now_s)
            else:
                stream.forget_troubles()
                for pair, halt in stream.due_halts(now_s):
                    self._told(stream, pair, halt.last, now_s)
                for pair, queue in stream.due_reads(now_s):
                    self._advance(stream, pair, queue)
                self._send(stream, now_s)
        if now_s >= self._dummies_at_s:
            self._dummies_at_s = now_s + self.settings.dummy_s
            for partition, main in self.partitions.items():
                if main.current is not None:
                    self._push_dummies(partition, main.current, 1, now_s)
        if now_s >= self._patient_until_s:
            for partition, main in self.partitions.items():
                if main.current is None:
                    self._begin(partition, now_s)
        return self._effects()

    # ------------------------------------------------------------------ what a target lacks

    def _push_dummies(self, partition: PartitionId, current: TransactionId, lack: int, now_s: float) -> None:
        for stream, pair in self._pairs(partition):
            if (queue := pair.queue) is not None and queue.push_dummy(current, lack):
                self._advance(stream, pair, queue)
                self._send(stream, now_s)

    def _told(self, stream: TargetStream, pair: TargetPartition, last: TransactionId, now_s: float) -> None:
        """Go by the id that a target has told, if the log is proved to reach it; otherwise ask the log."""
        main = pair.main
        if reason := main.stopped if main.lost else pair.given_up:
            stream.halt(pair, last, reason, now_s, for_good=True)
            return
        # An id that it is to start after is proved likewise: the main stream may begin there.
        if max(last, pair.start_after) <= main.mark:
            self._proved(stream, pair, last, now_s)
            return
        # Only a request that is asked after the target has told the id proves that the log lacks it.
        pair.ask(last, main.requests + 1)
        if main.asked:
            main.ask_again = True
        else:
            self._ask(pair.partition)

    def _ask(self, partition: PartitionId) -> None:
        main = self.partitions[partition]
        main.requests += 1
        main.asked = True
        main.known = main.mark
        main.ask_again = False
        self._out.append(AskMark(partition, main.requests))

    def _judge_mark(self, partition: PartitionId, known: TransactionId, mark: TransactionId, now_s: float) -> None:
        """Go by a mark that was asked for when the log was known to reach `known`: it never goes back."""
        main = self.partitions[partition]
        main.mark = max(main.mark, mark)
        if mark < known:
            self._lose(partition, str(ClientAhead(_WENT_BACK.format(known, mark))), now_s)

    def _lose(self, partition: PartitionId, reason: str, now_s: float) -> None:
        """Deliver nothing more of a partition: what its log has now is not what was read, nor what targets applied.
        From which id on the log is another one is not known. The player lives on to tell it: a new one would go by ids
        alone."""
        main = self.partitions[partition]
        if main.lost:
            return
        main.lost, main.stopped = True, reason
        main.asked = main.ask_again = False
        main.follows += 1  # what the main stream still brings is of another log
        for stream, pair in self._pairs(partition):
            stream.halt(pair, pair.acked, reason, now_s, for_good=True)

    def _proved(self, stream: TargetStream, pair: TargetPartition, last: TransactionId, now_s: float) -> None:
        """Serve the target behind `last`, now or once the main stream of the partition has begun."""
        main = pair.main
        after = max(last, pair.start_after)
        if after + 1 < main.first_kept:
            reason = f"it needs the log from {after + 1} on, which was trimmed: the log begins with {main.first_kept}"
            stream.halt(pair, last, reason, now_s)
            self._begin(pair.partition, now_s)
        elif main.current is None:
            pair.await_main(last)
            self._begin(pair.partition, now_s)
        else:
            self._advance(stream, pair, pair.serve(last, main.current))

    def _begin(self, partition: PartitionId, now_s: float) -> None:
        """Begin the main stream, if every target has told what it lacks, or has had its time."""
        main = self.partitions[partition]
        if main.current is not None:
            return
        pairs = self._pairs(partition)
        if now_s < self._patient_until_s and not all(isinstance(pair.state, AwaitingMain | Halt) for _, pair in pairs):
            return
        told = [(stream, pair, pair.state.last) for stream, pair in pairs if isinstance(pair.state, AwaitingMain)]
        if not told:
            return  # the least of nothing is not the log's end
        lacked = [max(last, pair.start_after) for _, pair, last in told]
        # Not behind the one that lacks the most, as in the paper: all others would wait until the main stream has
        # come to what they lack. One that lacks more than this is caught up by reads of its own.
        begin = max(min(lacked), max(lacked) - self.settings.join_transactions)
        main.current = begin
        main.dummies_at = begin
        self._follow(partition, begin)
        for stream, pair, last in told:
            self._advance(stream, pair, pair.serve(last, begin))

    def _follow(self, partition: PartitionId, after: TransactionId) -> None:
        main = self.partitions[partition]
        main.follows += 1
        self._out.append(FollowPartition(partition, main.follows, after + 1))

    # ------------------------------------------------------------------ effects

    def _stream(self, target: TargetName, term: Term, *states: StreamState) -> TargetStream | None:
        """Return the target's stream, if it is still of this term and in one of these states."""
        stream = self.targets.get(target)
        if stream is None or stream.term != term or stream.state not in states:
            return None
        return stream

    def _pairs(self, partition: PartitionId) -> list[tuple[TargetStream, TargetPartition]]:
        return [(stream, stream.pairs[partition]) for stream in self.targets.values()]

    def _advance(self, stream: TargetStream, pair: TargetPartition, queue: TargetQueue) -> None:
        """Read what the queue of a pair lacks next, and note that it may have something to send."""
        current = pair.main.current
        if queue.state is QueueState.FETCHING and current is not None:
            read = queue.next_read(current, self._reads + 1)
            if read is not None:
                self._reads = read.number
                self._out.append(ReadForTarget(stream.name, pair.partition, read))
        if queue.waits:
            stream.ready(pair.partition)

    def _send(self, stream: TargetStream, now_s: float) -> None:
        if not self.finishing and (batches := stream.take(now_s)):
            self._out.append(SendBatches(stream.name, stream.term, batches))
            for batch in batches:
                pair = stream.pairs[batch.partition]
                if (queue := pair.queue) is not None and queue.state is QueueState.FETCHING:
                    self._advance(stream, pair, queue)  # more may be read, now that this is taken

    def _close(self, stream: TargetStream, reason: str, now_s: float) -> None:
        stream.close(reason, now_s)
        self._out.append(CloseStream(stream.name, stream.term, reason))

    def _effects(self, *, standing_down: bool = False) -> Sequence[PlayerEffect]:
        effects, self._out = self._out, []
        return effects if standing_down or not self.superseded else ()
