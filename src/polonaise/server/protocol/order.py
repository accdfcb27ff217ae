"""The judging and ordering of appends: locks and expectations first, then an id, then a batch.

Everything is judged against the state *including* what is ordered and not yet committed. So a refusal may rest on an
append that never commits: it carries that append's id, and is told as it is only once that id is committed.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.errors import BodyTooLarge, DataDamaged, ProtocolError, TooManyLocks, invariant
from polonaise.log import producers, registers
from polonaise.log.batch import Columns, seal
from polonaise.log.registers import Change
from polonaise.server.protocol.locktable import LockTable
from polonaise.terms import (
    NO_TRANSACTION,
    ChangeKind,
    ClientId,
    ExpectationKind,
    FailureReason,
    Generation,
    OwnKind,
    PartitionId,
    SessionId,
    TransactionId,
)
from polonaise.wire.appends import CHANGE, LockColumns, Operation, ReceivedAppends
from polonaise.wire.copies import Needs, parse_needs

LOCKS_MAX: Final = 1_000
"""The most locks that one transaction may carry."""
FRAME_LOCKS_MAX: Final = 1_000_000
"""The most locks in one append frame: they are judged in one turn of the loop."""
INLINE_BYTES_MAX: Final = 1024 * 1024
"""The largest body of an append, in bytes, unless the server's settings say otherwise."""
FRAME_COUNT_MAX: Final = 65_536
"""Likewise, the most transactions."""
FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest append frame, in bytes: a batch made of it, with evidence, still travels to the replicas in one frame."""
_ROW_BYTES: Final = 40
_LOCK_BYTES: Final = 9
_CHANGE_BYTES: Final = 7
_PRODUCE: Final = CHANGE + ChangeKind.PRODUCE
_OWN: Final = CHANGE + ChangeKind.OWN


class Refusal(NamedTuple):
    """An append that was not ordered, and why."""

    rests_on: TransactionId
    """The append on which the refusal rests: it is justified only if that one is committed. NO_TRANSACTION if it rests
    on none."""
    client_id: ClientId
    sequence: int
    value: int
    """The number that goes with `reason` (`FailureReason` says which)."""
    reason: FailureReason


class SealedBatch(NamedTuple):
    """A batch ready to be stored."""

    first: TransactionId
    last: TransactionId
    crc: int
    """The CRC in the batch's header, which the next batch has to name."""
    raw: bytes
    """The bytes that replicas store and clients are fed."""
    received_s: float = 0.0
    """When the oldest append frame in it came in, in monotonic seconds."""


def check_frame(count: int, size: int) -> None:
    """Raise `BodyTooLarge` for a frame beyond the bounds, to be called before anything in it is looked at."""
    if count > FRAME_COUNT_MAX or size > FRAME_BYTES_MAX:
        raise BodyTooLarge(
            f"a frame of {count} appends and {size} bytes; "
            f"the limits are {FRAME_COUNT_MAX} appends and {FRAME_BYTES_MAX} bytes"
        )


def check_bodies(appends: ReceivedAppends, inline_bytes_max: int = INLINE_BYTES_MAX) -> None:
    """Check bodies and locks of a frame against their bounds, then each body against its client's CRC.

    Raises `DataDamaged`, `BodyTooLarge` or `TooManyLocks`: nothing of the frame may be ordered then.
    """
    # Bounds before sums: nobody can have this server sum what it will refuse in any case.
    check_frame(appends.count, appends.size)
    ends = appends.data_ends.tolist()
    largest = max(map(operator.sub, ends, [0, *ends]))
    if largest > inline_bytes_max:
        raise BodyTooLarge(f"a body of {largest} bytes; the limit for one append is {inline_bytes_max} bytes")
    if appends.locks is not None:
        _check_locks(appends.locks.ends.tolist())
    data, start = appends.data, 0
    for end, crc in zip(ends, appends.data_crcs.tolist(), strict=True):
        if crc32(data[start:end]) != crc:
            raise DataDamaged("the data of an append does not fit its CRC: it changed on the way here")
        start = end


def _check_locks(ends: list[int]) -> None:
    if ends[-1] > FRAME_LOCKS_MAX:
        raise TooManyLocks(
            f"{ends[-1]} locks in one frame; the limit is {FRAME_LOCKS_MAX}: lock coarser, or append smaller groups"
        )
    most = max(map(operator.sub, ends, [0, *ends]))
    if most > LOCKS_MAX:
        raise TooManyLocks(f"{most} locks on one transaction; the limit is {LOCKS_MAX}")


class Order:
    """Orders the appends of one partition in one session: which are let in, under which id, in which batch.

    `judge` takes append frames in their order of arrival, and `seal` makes a batch of what was let in since the last
    one.
    """

    def __init__(
        self,
        *,
        partition: PartitionId,
        generation: Generation,
        session: SessionId,
        closing: TransactionId,
        last_crc: int,
        commit_time_us: int,
        registers: dict[bytes, bytes],
        locks: LockTable,
        evidence: bool,
        can_have: Callable[[Needs], bool] = lambda needs: True,
    ) -> None:
        """Begin at the end of the log. `can_have` tells whether the session's replicas can be what an append needs."""
        self.partition: Final = partition
        self.generation: Final = generation
        self.session: Final = session
        self.next_id = closing + 1
        self.registers = registers
        """The registers as they are after everything ordered so far, committed or not."""
        self._registers_bytes = sum(len(key) + len(value) for key, value in registers.items())
        self.locks: Final = locks
        """The locks as they are after everything ordered so far."""
        self._evidence = evidence
        self._can_have = can_have
        self._last_crc = last_crc
        self.commit_time_us = commit_time_us
        """The last batch's commit time, in microseconds UTC; commit times never decrease."""
        self._forming_since_s = 0.0
        self._forming = Columns()
        self._changes: list[Change] = []
        self._changes_bytes = 0

    # ------------------------------------------------------------------ forming

    @property
    def forming_count(self) -> int:
        """The number of transactions let in and not sealed yet."""
        return len(self._forming)

    @property
    def forming_bytes(self) -> int:
        forming = self._forming
        return (
            forming.data_bytes
            + _ROW_BYTES * len(forming)
            + _LOCK_BYTES * len(forming.lock_hashes)
            + self._changes_bytes
        )

    def received(self, at_s: float) -> None:
        """Note when the frame that is judged next came in, in monotonic seconds; of a batch, the oldest counts."""
        if not self._forming.sequences:
            self._forming_since_s = at_s

    def write_own(self, sequence: int, kind: OwnKind, body: bytes) -> None:
        """Order a transaction of the library's own: its client id is 0, which nobody has.

        Its request id is made of the generation and `sequence`, which must not be used again under this generation.
        """
        self._forming.add(0, ~self.generation, sequence, kind, body, client_high_water_mark=self.next_id - 1)
        self.next_id += 1

    def seal(self, wall_us: int) -> SealedBatch:
        """Make a batch of everything let in since the last one.

        Its commit time is `wall_us` (microseconds UTC), or that of the batch before if that is later.
        """
        columns, self._forming = self._forming, Columns()
        changes, self._changes, self._changes_bytes = self._changes, [], 0
        count = len(columns)
        invariant(count > 0, "an empty batch is never stored")
        self.commit_time_us = max(self.commit_time_us, wall_us)
        first = self.next_id - count
        raw = seal(
            columns,
            partition=self.partition,
            first=first,
            session=self.session,
            generation=self.generation,
            commit_time_us=self.commit_time_us,
            previous_crc=self._last_crc,
            registers=registers.encode(changes) if changes else b"",
            evidence=self._evidence,
        )
        # The next batch names this CRC as its predecessor's: that is the chain by which copies of the log are compared.
        self._last_crc = int.from_bytes(raw[4:8], "little")
        return SealedBatch(first, self.next_id - 1, self._last_crc, raw, self._forming_since_s)

    # ------------------------------------------------------------------ judging

    def judge(self, client_id: ClientId, appends: ReceivedAppends, committed: TransactionId) -> list[Refusal]:
        """Order the appends that may be ordered, at the mark `committed`; return a refusal for each of the others.

        Raises `ProtocolError` for a producer's request, or the needs of an append, that do not parse; nothing of the
        frame is ordered then.
        """
        marks = appends.client_high_water_marks.tolist()
        # Before the first append is judged, because what was ordered can't be taken back.
        for operation in appends.operations:
            if operation.kind == _PRODUCE:
                producers.parse_request(operation.value)
            elif operation.kind == ExpectationKind.COPIES:
                parse_needs(operation.value)
        # Nobody has applied what is not committed: such a mark is a mistake of the one append that carries it.
        beyond = max(marks) > committed or min(marks) < NO_TRANSACTION
        if appends.group_ends is not None or appends.operations or beyond:
            return self._judge_groups(client_id, appends, marks, committed)
        if appends.locks is None:
            self._take_all(client_id, appends, marks)
            return []
        return self._judge_singles(client_id, appends, appends.locks, marks)

    def _judge_singles(
        self, client_id: ClientId, appends: ReceivedAppends, locks: LockColumns, marks: list[int]
    ) -> list[Refusal]:
        refused = self.locks.pass_each(
            locks.hashes.tolist(), bytes(locks.modes), locks.ends.tolist(), marks, self.next_id
        )
        if not refused:
            self._take_all(client_id, appends, marks)
            return []
        conflicts = {position for position, _ in refused}
        passed = [position for position in range(appends.count) if position not in conflicts]
        self._take(client_id, appends, marks, passed)
        sequences = appends.sequences
        return [
            Refusal(estimate, client_id, sequences[position], estimate, FailureReason.LOCK_CONFLICT)
            for position, estimate in refused
        ]

    # ------------------------------------------------------------------ taking columns over

    def _take_all(self, client_id: ClientId, appends: ReceivedAppends, marks: list[int]) -> None:
        forming, count = self._forming, appends.count
        forming.sequences.frombytes(appends.sequences.cast("B"))
        forming.headers.frombytes(appends.headers.cast("B"))
        forming.data_crcs.frombytes(appends.data_crcs.cast("B"))
        _add_ends(forming.data_ends, appends.data_ends, forming.data_bytes)
        forming.data.append(appends.data)
        forming.data_bytes += len(appends.data)
        self._fill(client_id, count)
        if self._evidence:
            forming.client_high_water_marks.extend(marks)
            self._take_all_locks(appends)

    def _take(self, client_id: ClientId, appends: ReceivedAppends, marks: list[int], positions: list[int]) -> None:
        if not positions:
            return
        forming = self._forming
        for position in positions:
            body = appends.body(position)
            forming.sequences.append(appends.sequences[position])
            forming.headers.append(appends.headers[position])
            forming.data_crcs.append(appends.data_crcs[position])
            forming.data.append(body)
            forming.data_bytes += len(body)
            forming.data_ends.append(forming.data_bytes)
        self._fill(client_id, len(positions))
        if self._evidence:
            forming.client_high_water_marks.extend([marks[position] for position in positions])
            self._take_locks(appends, positions)

    def _fill(self, client_id: ClientId, count: int) -> None:
        self._forming.client_ids.extend([client_id] * count)
        self._forming.generations.extend([self.generation] * count)
        self.next_id += count

    def _take_all_locks(self, appends: ReceivedAppends) -> None:
        forming, locks = self._forming, appends.locks
        base = len(forming.lock_hashes)
        if locks is None:
            forming.lock_ends.extend([base] * appends.count)
            return
        forming.lock_hashes.frombytes(locks.hashes.cast("B"))
        forming.lock_modes += locks.modes
        _add_ends(forming.lock_ends, locks.ends, base)

    def _take_locks(self, appends: ReceivedAppends, positions: list[int]) -> None:
        forming, locks = self._forming, appends.locks
        for position in positions:
            if locks is not None:
                own = locks.of(position)
                forming.lock_hashes.frombytes(locks.hashes[own].cast("B"))
                forming.lock_modes += locks.modes[own]
            forming.lock_ends.append(len(forming.lock_hashes))

    # ------------------------------------------------------------------ groups, registers, producers

    def _judge_groups(
        self, client_id: ClientId, appends: ReceivedAppends, marks: list[int], committed: TransactionId
    ) -> list[Refusal]:
        """Judge group by group; a group, which lies within one frame, is let in as a whole or not at all."""
        refusals: list[Refusal] = []
        group_ends = bytes(appends.group_ends) if appends.group_ends is not None else b"\1" * appends.count
        operations = appends.operations
        start, taken = 0, 0
        while start < appends.count:
            end = group_ends.index(1, start) + 1
            upto = taken
            while upto < len(operations) and operations[upto].position < end:
                upto += 1
            positions = list(range(start, end))
            own = operations[taken:upto]
            refused: tuple[TransactionId, int, FailureReason] | None
            if own and not self._can_have_all(own):
                # Rests on no append: it is told at once.
                refused = NO_TRANSACTION, committed, FailureReason.INSUFFICIENT_REPLICAS
            elif all(NO_TRANSACTION <= marks[position] <= committed for position in positions):
                refused = self._judge_group(appends, positions, own, marks)
            else:
                refused = NO_TRANSACTION, committed, FailureReason.MARK_BEYOND_LOG
            if refused is None:
                if len(positions) == appends.count:
                    self._take_all(client_id, appends, marks)
                else:
                    self._take(client_id, appends, marks, positions)
                self._mark_own(end, own)
            else:
                rests_on, value, reason = refused
                refusals += [Refusal(rests_on, client_id, appends.sequences[p], value, reason) for p in positions]
            start, taken = end, upto
        return refusals

    def _can_have_all(self, operations: list[Operation]) -> bool:
        return all(
            self._can_have(parse_needs(operation.value))
            for operation in operations
            if operation.kind == ExpectationKind.COPIES
        )

    def _mark_own(self, end: int, operations: list[Operation]) -> None:
        """Mark the library's own transactions in the group that was just let in, before place `end` of its frame."""
        generations = self._forming.generations
        for operation in operations:
            if operation.kind == _OWN or (operation.kind == _PRODUCE and producers.opens(operation.value)):
                generations[len(generations) - (end - operation.position)] = ~self.generation

    def _judge_group(
        self, appends: ReceivedAppends, positions: list[int], operations: list[Operation], marks: list[int]
    ) -> tuple[TransactionId, int, FailureReason] | None:
        """Judge one group; return None if it is let in, with its locks raised and its registers changed.

        Else return the id that the refusal rests on, its value and its reason; nothing has changed.
        """
        locks = appends.locks
        if locks is not None:
            group = slice(locks.of(positions[0]).start, locks.ends[positions[-1]])
            estimate = self.locks.estimate_of(locks.hashes[group].tolist(), bytes(locks.modes[group]))
            # The oldest mark of the group: all of it has to be built on state that holds every raise of its locks.
            if estimate > min(marks[position] for position in positions):
                return estimate, estimate, FailureReason.LOCK_CONFLICT
        # Registers may have been changed by anything ordered so far, so these refusals rest on the newest id.
        newest = self.next_id - 1
        changes: list[Change] = []
        for operation in operations:
            failed = self._judge_operation(operation, changes, appends, positions)
            if failed is not None:
                value, reason = failed
                return newest, value, reason
        # Registers before locks: this can still refuse, and then changes nothing; raising locks can't be taken back.
        if not self._change_registers(changes):
            return newest, registers.TOTAL_BYTES_MAX, FailureReason.REGISTERS_FULL
        # Each lock is raised to the id of the transaction that carries it.
        if locks is not None:
            for transaction, position in enumerate(positions, self.next_id):
                own = locks.of(position)
                self.locks.raise_all(locks.hashes[own].tolist(), bytes(locks.modes[own]), transaction)
        return None

    def _judge_operation(
        self, operation: Operation, changes: list[Change], appends: ReceivedAppends, positions: list[int]
    ) -> tuple[int, FailureReason] | None:
        """Check an expectation, or add a change to `changes`. Return value and reason of a failure, else None."""
        _, kind, key, value = operation
        if kind == _PRODUCE:
            appended = ((appends.headers[position], appends.body(position)) for position in positions)
            return self._judge_produce(key, value, changes, producers.digest_of(appended))
        if kind in (_OWN, ExpectationKind.COPIES):
            return None
        if kind >= CHANGE:
            changes.append((key, None if kind == CHANGE + ChangeKind.DELETE else value))
            return None
        present = self.registers.get(key)
        if kind == ExpectationKind.EQUALS:
            holds = present == value
        elif kind == ExpectationKind.ABSENT:
            holds = present is None
        elif kind == ExpectationKind.PRESENT:
            holds = present is not None
        else:
            holds = len(value) == 8 and int.from_bytes(value, "little", signed=True) == self.next_id
        return None if holds else (self.next_id, FailureReason.EXPECTATION_FAILED)

    def _judge_produce(
        self, key: bytes, value: bytes, changes: list[Change], digest: int
    ) -> tuple[int, FailureReason] | None:
        """Judge a producer's request; return a failure's value and reason, or add the state to `changes`.

        `digest` is of the group's headers and bodies: it tells a repetition from another append under the same number.
        """
        epoch, sequence = producers.parse_request(value)
        register = self.registers.get(key)
        try:
            known = producers.Produced() if register is None else producers.Produced.parse(register)
        except ProtocolError:
            # An application set the register by hand. Only this producer is refused: the connection is not at fault.
            return self.next_id, FailureReason.EXPECTATION_FAILED
        if sequence == producers.OPEN:
            if epoch <= known.epoch:
                return known.epoch, FailureReason.PRODUCER_FENCED
            changes.append((key, known.opened(epoch).pack()))
            return None
        if epoch != known.epoch:
            return known.epoch, FailureReason.PRODUCER_FENCED
        if sequence != known.last_sequence + 1:
            first = known.id_of(sequence)
            if first is not None:
                same = known.is_same(sequence, digest)
                return first, FailureReason.DUPLICATE if same else FailureReason.PRODUCER_DIFFERS
            return known.last_sequence, FailureReason.PRODUCER_GAP
        changes.append((key, known.produced(self.next_id, digest).pack()))
        return None

    def _change_registers(self, changes: list[Change]) -> bool:
        """Make all changes and return True; or none, and return False, if they would pass a bound of the registers."""
        if not changes:
            return True
        # Computed on the side first: a key may be changed more than once, and nothing is taken back afterwards.
        total = self._registers_bytes
        pending: dict[bytes, bytes | None] = {}
        for key, value in changes:
            before = pending[key] if key in pending else self.registers.get(key)
            if before is not None:
                total -= len(key) + len(before)
            if value is not None:
                total += len(key) + len(value)
            pending[key] = value
            if len(key) > registers.KEY_BYTES_MAX or (value is not None and len(value) > registers.VALUE_BYTES_MAX):
                return False
        if total > registers.TOTAL_BYTES_MAX:
            return False
        self._registers_bytes = total
        for key, value in pending.items():
            if value is None:
                self.registers.pop(key, None)
            else:
                self.registers[key] = value
        self._changes += changes
        self._changes_bytes += sum(_CHANGE_BYTES + len(key) + len(value or b"") for key, value in changes)
        return True


def _add_ends(ends: array[int], more: memoryview, base: int) -> None:
    """Append a frame's column of cumulative ends to a batch's, each raised by `base`, where the frame begins."""
    if base:
        ends.extend([end + base for end in more.tolist()])
    else:
        ends.frombytes(more.cast("B"))


_COUNT_MAX: Final = 100_000
"""With so many held, no further append is judged until some were told. The last frame judged may bring more."""
_ALL: Final = 2**63


class HeldRefusals:
    """Keeps refusals by the id that each rests on; those of one id stay in the order they were made."""

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[TransactionId, int, Refusal]] = []
        self._added = 0

    @property
    def is_full(self) -> bool:
        return len(self._heap) >= _COUNT_MAX

    def add(self, refusal: Refusal) -> None:
        self._added += 1
        heappush(self._heap, (refusal.rests_on, self._added, refusal))

    def drop_above(self, sent: TransactionId) -> None:
        """Forget the refusals that rest on ids above `sent`: their appends are judged anew."""
        self._heap = [held for held in self._heap if held[0] <= sent]
        heapify(self._heap)

    def take(self, decided: TransactionId = _ALL) -> Iterator[Refusal]:
        """Yield and forget the refusals that rest on ids up to `decided`; without an id, all of them."""
        while self._heap and self._heap[0][0] <= decided:
            yield heappop(self._heap)[2]
