"""Append frames as clients send them, and the refusals they are told: for tests of the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from zlib import crc32

from polonaise.log import registers
from polonaise.log.batch import Batch
from polonaise.server.protocol.locktable import LockTable
from polonaise.server.protocol.order import Order
from polonaise.terms import ChangeKind, ExpectationKind, FailureReason, LockMode
from polonaise.wire.appends import CHANGE, AppendColumns, ReceivedAppends
from polonaise.wire.messages import Append

READ, WRITE, APPEND = LockMode
SET, DELETE, PRODUCE, OWN = (CHANGE + kind for kind in ChangeKind)
EQUALS, ABSENT, PRESENT, POSITION, _ = ExpectationKind


@dataclass
class Tx:
    """One transaction as a client asks for it."""

    data: bytes = b""
    mark: int = -1
    header: int = 0
    locks: Sequence[tuple[int, int]] = ()
    operations: Sequence[tuple[int, bytes, bytes]] = ()
    ends_group: bool = True
    sequence: int | None = None


def append_of(*transactions: Tx, first_sequence: int = 0) -> Append:
    """Return a frame of these transactions as a client sends it; the last transaction ends its group."""
    columns = AppendColumns()
    for position, tx in enumerate(transactions):
        columns.add(
            first_sequence + position if tx.sequence is None else tx.sequence,
            tx.mark,
            tx.header,
            tx.data,
            crc32(tx.data),
            tx.locks,
            ends_group=tx.ends_group or position == len(transactions) - 1,
            operations=tx.operations,
        )
    return columns.message(generation=1)


def frame(*transactions: Tx, first_sequence: int = 0) -> ReceivedAppends:
    """Return a frame of these transactions as the owner gets it."""
    said = append_of(*transactions, first_sequence=first_sequence)
    bodies = b"".join(said.payload)
    return ReceivedAppends(Append(1, said.count, said.flags, said.columns, payload=[bodies] if bodies else []))


def order_of(
    *,
    closing: int = -1,
    last_crc: int = 0,
    commit_time_us: int = 0,
    held: dict[bytes, bytes] | None = None,
    evidence: bool = False,
) -> Order:
    """Return the order of partition 2 in session 4, which continues after the id `closing`."""
    return Order(
        partition=2,
        generation=1,
        session=4,
        closing=closing,
        last_crc=last_crc,
        commit_time_us=commit_time_us,
        registers=dict(held or {}),
        locks=LockTable(closing, 1 << 16),
        evidence=evidence,
    )


@dataclass
class Log:
    """The batches sealed, opened again and checked: ids without gaps, a chain of CRCs, registers as the changes say."""

    order: Order
    registers: dict[bytes, bytes]
    next_id: int
    crc: int = 0
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def after(cls, order: Order, crc: int = 0) -> Log:
        return cls(order, dict(order.registers), order.next_id, crc)

    def seal(self, wall_us: int = 1_000) -> Batch:
        sealed = self.order.seal(wall_us)
        batch = Batch.parse(sealed.raw)
        assert (batch.first, batch.last, batch.crc) == (sealed.first, sealed.last, sealed.crc)
        assert batch.first == self.next_id, "ids are dense"
        assert batch.previous_crc == self.crc, "each batch names the one before"
        if self.batches:
            assert batch.commit_time_us >= self.batches[-1].commit_time_us
        assert (batch.partition, batch.session, batch.generation) == (2, 4, 1)
        registers.apply(self.registers, batch.registers)
        assert self.registers == self.order.registers
        self.next_id, self.crc = batch.last + 1, batch.crc
        self.batches.append(batch)
        return batch

    @property
    def bodies(self) -> list[bytes]:
        return [tx.data for batch in self.batches for tx in batch.transactions()]


def logged_order_of(*, last_crc: int = 0, **how: Any) -> tuple[Order, Log]:
    """Return an order as `order_of` makes it, and the log that its batches go to."""
    order = order_of(last_crc=last_crc, **how)
    return order, Log.after(order, last_crc)


CLIENT = 7


def lock(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


A, B, C = lock("a"), lock("b"), lock("c")


def refused(order: Order, *transactions: Tx, first_sequence: int = 0) -> list[tuple[int, FailureReason, int, int]]:
    """Return (sequence, reason, value, the id that it rests on) of each refused append."""
    told = order.judge(CLIENT, frame(*transactions, first_sequence=first_sequence), order.next_id - 1)
    assert all(refusal.client_id == CLIENT for refusal in told)
    return [(r.sequence, r.reason, r.value, r.rests_on) for r in told]


def position(transaction: int) -> bytes:
    return transaction.to_bytes(8, "little", signed=True)


def conflict(sequence: int, estimate: int) -> tuple[int, FailureReason, int, int]:
    return sequence, FailureReason.LOCK_CONFLICT, estimate, estimate
