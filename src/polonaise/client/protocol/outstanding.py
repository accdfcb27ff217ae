"""The appends of one client to one partition until their fates are decided, in frames that the window bounds.

Three events settle an append that was sent on the present mount, as in Waltz internals ("Detection of Failed Append
Requests"):

* Its request id arrives in the feed: it is committed. Every older append that is still pending has failed: an owner
  orders a client's appends by sequence, and once it has ordered one, it never takes up an older one.
* A refusal names it.
* A flush that was sent after it is answered. The owner answers only when every append before the flush is decided, and
  fed if committed: what is still pending has failed.

What is sent may be lost, so only an answer proves that an append is not in the log; until one comes, its fate stays
open. The answer READY to a mount proves it for all that was sent on earlier mounts and is still pending. These appends
are sent again, under their old sequences and in their old order, before anything younger; so the end of a mount fails
none of them, but for those that may themselves have ended mounts, and those with needs that the new server does not
know. When nothing more will be heard, what was sent is UNKNOWN. A fate is told once and never changes. A feed that
contradicts it means that a promise of the log was broken (`ConsistencyLost`).
"""

from __future__ import annotations

import enum
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from polonaise.checksum import crc32
from polonaise.client.protocol.draft import bytes_of
from polonaise.client.protocol.locks import lock_columns
from polonaise.errors import ConsistencyLost, invariant
from polonaise.terms import FailureReason, TransactionId
from polonaise.wire.appends import AppendColumns, Operation, inbox_bytes


class Unordered(enum.Enum):
    """The reasons that the client itself gives for a failure, where no server named one."""

    PASSED_OVER = "passed over"
    """Sent on an older mount, not committed, and not sent again. An owner's reason, if there was one, is lost."""
    UNTOLD = "not told of"
    """Sent on the present mount, which brought a younger append or the answer to a flush, and nothing of this one. Told
    apart from PASSED_OVER because an owner has broken a promise then: each append on a mount is fed, or refused."""
    WITHDRAWN = "withdrawn"
    """Never sent: the caller gave up first."""
    STOPPED = "stopped"
    """Never sent: the client was closed, or the partition stopped."""
    NOT_KNOWN_THERE = "not known there"
    """Not sent, or not sent again: the server is of a version that does not know what the append needs."""
    UNKNOWN = "unknown"
    """Sent, and this client can no longer learn its fate."""


class AppendFailure(NamedTuple):
    """Why an append failed, and the number that belongs to it (see `FailureReason`)."""

    reason: FailureReason | Unordered
    value: int = -1
    cause: str = ""
    """What kept the partition from committing, when this client learned of the failure; empty if nothing is known. For
    STOPPED and UNKNOWN the error that stopped the partition; for NOT_KNOWN_THERE why it is not sent."""


class Pending:
    """One append, or a group of `count` transactions that commits as one; settled once `Outstanding` has set `id` or
    `failure`."""

    __slots__ = ("count", "failure", "id", "sequence", "size", "watchers")

    def __init__(self, count: int = 1, size: int = 0) -> None:
        self.count = count
        self.size = size
        self.sequence = 0
        """The sequence, from 1, that `Outstanding.add` assigns; a group's first one; 0 before."""
        self.id: TransactionId = -1
        """The transaction's id, or the first one of a group; -1 until committed."""
        self.failure: AppendFailure | None = None
        self.watchers: Any = None
        """The future that waits for the fate, or a list of them; None for none. Only `client.appends` writes it."""

    @property
    def settled(self) -> bool:
        """Whether the append is committed or has failed. One that failed as UNKNOWN may be committed all the same."""
        return self.id >= 0 or self.failure is not None


class Outstanding:
    """The appends of one client to one partition whose fate is not known yet, by sequence. Sequences rise by one, are
    never reused, and are sent in their order. Methods that settle appends return those that have watchers, because only
    these have to be woken."""

    __slots__ = ("_base", "_entries", "_head", "_mounted_after", "bytes", "count", "sent")

    def __init__(self) -> None:
        self._entries: list[Pending | None] = []
        """The appends from sequence `_base` on. A group is at each of its places; a settled append leaves None."""
        self._base = 1
        self._head = 0
        """The place in `_entries` before which everything is settled."""
        self.count = 0
        """Pending transactions."""
        self.bytes = 0
        """Bytes of the pending transactions."""
        self.sent = 0
        """The highest sequence that was sent, or withdrawn behind all that was; 0 for none. Written here alone."""
        self._mounted_after = 0
        """The highest sequence sent before the present mount; 0 once that is ready. Refusals of these may have been
        told to an older mount, and lost with it."""

    @property
    def next_sequence(self) -> int:
        return self._base + len(self._entries)

    @property
    def first_pending(self) -> int:
        self._skip_settled()
        return self._base + self._head

    @property
    def awaited(self) -> bool:
        self._skip_settled()
        return self._base + self._head <= self.sent

    def is_pending(self, sequence: int) -> bool:
        position = sequence - self._base
        if position < self._head:
            return False
        entry = self._entries[position]
        return entry is not None and not entry.settled

    def add(self, entry: Pending) -> None:
        """Register an append under the next sequence, a group under as many as it has transactions."""
        entries = self._entries
        count = entry.count
        entry.sequence = self._base + len(entries)
        entries.append(entry)
        if count > 1:
            entries.extend([entry] * (count - 1))  # a refusal may name any sequence of the group
        self.count += count
        self.bytes += entry.size

    # ------------------------------------------------------------------ sending

    def sent_through(self, sequence: int) -> None:
        """Count everything up to this sequence as sent: a frame that ends with it was."""
        self.sent = sequence

    def all_sent(self) -> None:
        """Count everything as sent: nothing is left to be. Appends withdrawn at the end were in no frame, and count as
        well, because nothing before the next one is unsent."""
        self.sent = self.next_sequence - 1

    def mount_over(self) -> None:
        """Take note that what was sent so far was sent on a mount that is over."""
        self._mounted_after = self.sent

    def mount_ready(self) -> None:
        """Take note that the present mount is ready. It settles what older ones left open: what is pending from now on
        is sent on it, again or for the first time."""
        self._mounted_after = 0

    # ------------------------------------------------------------------ what settles

    def committed(self, sequences: list[int], ids: list[TransactionId] | range) -> list[Pending]:
        """Settle the sequences of this client that a fed batch holds, in feed order, with the ids that they got. Every
        older append that is pending has failed. Raises `ConsistencyLost` for sequences that do not rise, were never
        sent or have another fate already, and for a group of which only a part is in the batch."""
        first, last = sequences[0], sequences[-1]
        start, stop = first - self._base, last - self._base + 1
        if start < self._head or last > self.sent:
            raise self._contradiction(sequences, ids)
        watched: list[Pending] = []
        # Failures first, then commits: receipts are woken in the order of sequences.
        self._fail(self._head, start, Unordered.PASSED_OVER, watched)
        if sequences == list(range(first, last + 1)):
            self._commit(start, stop, sequences, ids, watched)
        else:
            self._commit_scattered(sequences, ids, watched)
        self._entries[self._head : stop] = [None] * (stop - self._head)
        self._head = stop
        self._compact()
        return watched

    def _commit(
        self, start: int, stop: int, sequences: list[int], ids: list[TransactionId] | range, watched: list[Pending]
    ) -> None:
        """Settle a run of sequences without gaps as committed: the hot path."""
        size = count = rest_of_group = 0
        opening = self._entries[start]
        # A run that begins within a group: its transactions are not all in the log, or not one after the other.
        if opening is None or opening.sequence != self._base + start:
            raise self._contradiction(sequences, ids)
        for entry, transaction in zip(self._entries[start:stop], ids, strict=True):
            if entry is None:  # its fate was told before
                raise self._contradiction(sequences, ids)
            count += 1
            if rest_of_group:  # a further transaction of the group that the run is in
                rest_of_group -= 1
                continue
            rest_of_group = entry.count - 1
            entry.id = transaction
            size += entry.size
            if entry.watchers:
                watched.append(entry)
        if rest_of_group:
            raise ConsistencyLost(
                f"only a part of a group of this client is in the log, up to id {ids[-1]}: "
                "stop writing and compare the log"
            )
        self.count -= count
        self.bytes -= size

    def _commit_scattered(self, sequences: list[int], ids: list[TransactionId] | range, watched: list[Pending]) -> None:
        """Settle sequences with gaps between them, run by run."""
        if sequences != sorted(set(sequences)):  # an owner orders them as they were sent, and each once
            raise self._contradiction(sequences, ids)
        position = sequences[0] - self._base
        run = 0
        for index in range(1, len(sequences) + 1):
            if index < len(sequences) and sequences[index] == sequences[index - 1] + 1:
                continue
            start, stop = sequences[run] - self._base, sequences[index - 1] - self._base + 1
            self._fail(position, start, Unordered.PASSED_OVER, watched)
            self._commit(start, stop, sequences, ids[run:index], watched)
            position, run = stop, index

    def _contradiction(self, sequences: list[int], ids: list[TransactionId] | range) -> ConsistencyLost:
        return ConsistencyLost(
            f"the feed holds sequences {sequences[0]} to {sequences[-1]} of this client as ids {ids[0]} to {ids[-1]}, "
            "but the fate of at least one of them was told otherwise. If the coordinator was put back to an older "
            "state, another client may have been given this one's id: close this one and connect again. Else "
            "stop writing and compare the log"
        )

    def refused(self, sequence: int, failure: AppendFailure) -> list[Pending]:
        """Settle the append that a server's refusal names. A group is refused with a row for each of its sequences, of
        which the first settles it. A sequence that was never sent is ignored."""
        position = sequence - self._base
        if position < self._head or sequence > self.sent:
            return []
        entry = self._entries[position]
        if entry is None:
            return []
        if failure.reason is FailureReason.DUPLICATE:
            # A repetition of a producer's append: it is in the log, under the id of the first time.
            entry.id = failure.value
        else:
            entry.failure = failure
        return self._remove(entry)

    def passed(self, through: int, cause: str = "") -> list[Pending]:
        """Settle as failed what is pending up to this sequence: an answer proves that it is not in the log. The caller
        passes nothing that was sent after what is answered. `cause` says what kept the partition from committing."""
        invariant(through <= self.sent, "only what was sent can be passed over")
        watched: list[Pending] = []
        stop = through - self._base + 1
        if stop > self._head:
            self._fail(self._head, stop, Unordered.PASSED_OVER, watched, cause)
            self._entries[self._head : stop] = [None] * (stop - self._head)
            self._head = stop
            self._compact()
        return watched

    def withdraw(self, entry: Pending) -> bool:
        """Settle an append as withdrawn unless it was sent, or has a fate already; return whether it is withdrawn."""
        if entry.settled or entry.sequence <= self.sent:
            return False
        self.give_up(entry, AppendFailure(Unordered.WITHDRAWN))
        return True

    def give_up(self, entry: Pending, failure: AppendFailure) -> list[Pending]:
        """Settle an append as failed that is certainly not in the log."""
        if entry.settled:
            return []
        entry.failure = failure
        return self._remove(entry)

    def pending(self) -> list[Pending]:
        return list(dict.fromkeys(entry for entry in self._entries[self._head :] if entry is not None))

    def stop(self, cause: str) -> list[Pending]:
        """Settle everything, because nothing more will be sent or heard. What was sent is UNKNOWN, not failed: it may
        commit. What was not sent is STOPPED, and certainly not in the log."""
        watched: list[Pending] = []
        sent = max(self._head, self.sent - self._base + 1)
        self._fail(self._head, sent, Unordered.UNKNOWN, watched, cause)
        self._fail(sent, len(self._entries), Unordered.STOPPED, watched, cause)
        self._base += len(self._entries)
        self._entries.clear()
        self._head = 0
        return watched

    # ------------------------------------------------------------------ places

    def _fail(self, start: int, stop: int, reason: Unordered, watched: list[Pending], cause: str = "") -> None:
        """Settle what is pending at the places from `start` to before `stop` as failed; the caller clears them."""
        for position in range(start, stop):
            entry = self._entries[position]
            if entry is None or entry.settled:  # settled: a further place of a group that was failed just before
                continue
            untold = reason is Unordered.PASSED_OVER and entry.sequence > self._mounted_after
            entry.failure = AppendFailure(Unordered.UNTOLD if untold else reason, cause=cause)
            self.count -= entry.count
            self.bytes -= entry.size
            if entry.watchers:
                watched.append(entry)

    def _remove(self, entry: Pending) -> list[Pending]:
        """Clear the places of a settled append; return it if it has to be woken."""
        position = entry.sequence - self._base
        self._entries[position : position + entry.count] = [None] * entry.count
        self.count -= entry.count
        self.bytes -= entry.size
        return [entry] if entry.watchers else []

    def _skip_settled(self) -> None:
        entries, head = self._entries, self._head
        while head < len(entries) and entries[head] is None:
            head += 1
        self._head = head
        self._compact()

    def _compact(self) -> None:
        """Drop the settled places in front, once they are most of the list: rarely, as all behind them move up."""
        head = self._head
        if head > 1024 and head * 2 > len(self._entries):
            del self._entries[:head]
            self._base += head
            self._head = 0


SENDS_MAX: Final = 8
"""On how many mounts a frame is sent at most: one that itself ends its mount, or the owner, must not do so for ever."""


@dataclass(slots=True, eq=False)
class SentFrame:
    """An append frame that is sent, or is to be sent again."""

    columns: AppendColumns
    size: int
    """The bytes of its columns and bodies; `inbox_bytes` of that counts against the window."""
    sends: int = 0
    """On how many mounts it was sent. `AppendWindow.sent` writes it."""

    @property
    def first(self) -> int:
        return self.columns.sequences[0]

    @property
    def last(self) -> int:
        return self.columns.sequences[-1]


class AppendWindow:
    """Keeps the append frames of one mount that are sent and not decided, and counts their bytes. The owner names the
    bound, one for each partition, so that one that stands still holds up no other on the same connection."""

    __slots__ = ("_frames", "_used", "_window_bytes")

    def __init__(self) -> None:
        self._frames: deque[SentFrame] = deque()
        self._used = 0
        self._window_bytes = 0

    def open(self, window_bytes: int) -> list[SentFrame]:
        """Begin anew for a mount that is ready; return the undecided frames of earlier mounts, in their order."""
        undecided = list(self._frames)
        self.clear()
        self._window_bytes = window_bytes
        return undecided

    def clear(self) -> None:
        self._frames.clear()
        self._used = 0

    def fits(self, size: int) -> bool:
        """Return whether a frame of `size` bytes may be sent now. While no frame is undecided, one of any size may."""
        return not self._used or self._used + inbox_bytes(size) <= self._window_bytes

    @property
    def has_room(self) -> bool:
        return 2 * self._used <= self._window_bytes

    def sent(self, frame: SentFrame) -> None:
        frame.sends += 1
        self._frames.append(frame)
        self._used += inbox_bytes(frame.size)

    def decided_below(self, sequence: int) -> None:
        """Free the room of frames whose sequences are all below this one."""
        frames = self._frames
        while frames and frames[0].columns.sequences[-1] < sequence:
            self._used -= inbox_bytes(frames.popleft().size)


Operations: TypeAlias = Sequence[tuple[int, bytes, bytes]]
"""The expectations and changes of one transaction, each as (kind, key, value)."""

Outgoing: TypeAlias = tuple[Pending, int, TransactionId, int, bytes, bytes, Operations, bool]
"""One transaction to send: append, sequence, client high-water mark, header, data, locks, operations, whether a group
ends here. A plain tuple, because there is one for each transaction."""

_OPERATION_BYTES: Final = 32
"""The bytes that an operation counts as, besides key and value, because servers bound their number in a frame."""


def frames(waiting: Sequence[Outgoing], count_max: int, bytes_max: int) -> Iterator[AppendColumns]:
    """Cut appends into frames of at most `count_max` transactions and `bytes_max` bytes of bodies, locks, operations. A
    group is never cut: a larger one, or a larger append, gets a frame of its own. Failed appends are left out."""
    live = [out for out in waiting if out[0].failure is None]
    start = 0
    for stop in _cuts(live, count_max, bytes_max):
        yield _columns(live[start:stop])
        start = stop


def _cuts(live: Sequence[Outgoing], count_max: int, bytes_max: int) -> Iterator[int]:
    """Yield the positions in `live` before which a frame ends."""
    if not live:
        return
    ends = list(
        accumulate(
            len(body) + len(locks) + (_bytes_on_the_wire(operations) if operations else 0)
            for _, _, _, _, body, locks, operations, _ in live
        )
    )
    if len(live) <= count_max and ends[-1] <= bytes_max:
        yield len(live)
        return
    start = group_start = 0
    for position, out in enumerate(live):
        if not out[7]:  # a group goes on here, and is never cut
            continue
        before = ends[start - 1] if start else 0
        too_much = position + 1 - start > count_max or ends[position] - before > bytes_max
        # Else the group fills the frame alone, and is too much for any.
        if too_much and group_start > start:
            yield group_start
            start = group_start
        group_start = position + 1
    yield len(live)


def _bytes_on_the_wire(operations: Operations) -> int:
    return _OPERATION_BYTES * len(operations) + bytes_of(operations)


def _columns(chunk: Sequence[Outgoing]) -> AppendColumns:
    """Return the columns of one frame, empty for locks and operations where there are none."""
    _, sequences, marks, headers, bodies, locks, operations, group_ends = zip(*chunk, strict=True)
    columns = AppendColumns()
    columns.sequences = array("q", sequences)
    columns.client_high_water_marks = array("q", marks)
    columns.headers = array("i", headers)
    columns.data_crcs = array("I", map(crc32, bodies))
    columns.data_ends = array("I", accumulate(map(len, bodies)))
    columns.data_bytes = columns.data_ends[-1]
    columns.data = [b"".join(bodies)]
    columns.group_ends = bytearray(group_ends)
    if any(locks):
        ends, hashes, columns.lock_modes = lock_columns(locks)
        columns.lock_ends, columns.lock_hashes = array("I", ends), array("Q", hashes)
    if any(operations):
        columns.operations = [
            Operation(position, kind, key, value)
            for position, of_append in enumerate(operations)
            for kind, key, value in of_append
        ]
    return columns


def still_pending(columns: AppendColumns, is_pending: Callable[[int], bool]) -> AppendColumns | None:
    """Return the columns of a frame without the appends that are settled; None if all are. A group is settled as a
    whole, so none is cut."""
    sequences = columns.sequences.tolist()
    kept = [position for position, sequence in enumerate(sequences) if is_pending(sequence)]
    if len(kept) == len(sequences):
        return columns
    if not kept:
        return None
    data = memoryview(b"".join(columns.data))
    left = AppendColumns()
    # Walked once, beside the appends: searched through for each of them, a full frame would take seconds.
    operations = {position: list(of_one) for position, of_one in groupby(columns.operations, attrgetter("position"))}
    for position in kept:
        locks = _span(columns.lock_ends, position) if columns.lock_ends else slice(0)
        left.add(
            sequences[position],
            columns.client_high_water_marks[position],
            columns.headers[position],
            data[_span(columns.data_ends, position)],
            columns.data_crcs[position],
            list(zip(columns.lock_hashes[locks], columns.lock_modes[locks], strict=True)),
            ends_group=bool(columns.group_ends[position]),
            operations=[(o.kind, o.key, o.value) for o in operations.get(position, ())],
        )
    return left


def _span(ends: Sequence[int], position: int) -> slice:
    return slice(ends[position - 1] if position else 0, ends[position])
