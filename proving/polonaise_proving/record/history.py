"""What a run has recorded of one partition: all that its judges look at."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from polonaise_proving.record.bank import OPENING_BALANCE, BankOperation, digest_of
from polonaise_proving.record.partitionrecord import (
    AppendPart,
    AskedAppend,
    BatchSeen,
    Fate,
    GivenTransaction,
    TransferMade,
)


class LineKind(StrEnum):
    """The kinds of lines in a client's journal."""

    OPEN = "open"
    """The client has opened the log."""
    ASK = "ask"
    """The client is about to append the operation."""
    ACK = "ack"
    """The operation is in the log, under this id."""
    REFUSED = "refused"
    """The operation is not in the log, and never will be."""
    UNKNOWN = "unknown"
    """The client was told that nobody knows whether the operation is in the log."""
    FAILED = "failed"
    """The append failed for a reason that a planned change gives no append; a line beside tells its fate."""
    QUIET = "quiet"
    """The client has no append without an answer, and makes no more; the line names its life, as its operations do."""
    END = "end"
    """The client has ended cleanly: it was fed all."""
    WRONG = "wrong"
    """The client was told something wrong; what, is in place of the operation."""
    TASKS = "tasks"
    """The number of tasks in the process's event loop, in place of the id."""


class Line(NamedTuple):
    """One line of a client's journal."""

    kind: LineKind
    partition: int = -1
    operation: str = ""
    id: int = -1
    at_s: float = 0.0
    """When it was written, by the monotonic clock that all processes of a machine share."""


class Contents(NamedTuple):
    """What one copy of a partition holds: a replica, the archive, or the log as its owner gives it out."""

    first: int
    """The first id; 0 unless something was trimmed."""
    last: int
    """The last id; one below `first` for none."""
    digest: str
    """A digest over the bytes of all batches from the first to the last id; empty where there is `trouble`."""
    trouble: str = ""
    """What is damaged or can't be read; empty if nothing is."""


class Fed(NamedTuple):
    """One transaction as a consumer was fed it."""

    id: int
    digest: int
    """The digest of its body; see `record.bank.digest_of`."""


NOTHING: Final = Contents(0, -1, "")
"""The contents of a copy of which nothing is known."""


@dataclass
class PartitionHistory:
    """Everything recorded about one partition of a cluster of real processes: a `PartitionRecord`, and its copies."""

    partition: int
    copies: int
    """How many replicas there are to be."""
    lines: list[Line] = field(default_factory=list)
    """The lines of all clients that are about this partition, and those of kind QUIET."""
    batches: list[BatchSeen] = field(default_factory=list)
    """The log's batches in the order in which its owner gave them out."""
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    """Ids and bodies of the log's transactions, without those that the library wrote for itself."""
    stale: list[str] = field(default_factory=list)
    """Transactions that were built on stale locked state, by the log's own evidence."""
    without_evidence: int = 0
    """How many transactions have no evidence; 0 where servers write none."""
    contents: Contents = field(default=NOTHING)
    """What the owner gave out, from the first to the last id."""
    replicas: dict[str, Contents] = field(default_factory=dict)
    """What each storage node's files hold, by its name; a node without files of the partition is left out."""
    archive: Contents | None = None
    fed: dict[str, list[Fed]] = field(default_factory=dict)
    """By consumer: what it was fed, in the order in which it was applied."""
    views: dict[str, dict[int, int]] = field(default_factory=dict)
    """By consumer, and then by account: the balances in its tables."""

    opening_balance = OPENING_BALANCE

    @cached_property
    def held(self) -> Mapping[int, int]:
        """By id: the digest of its body. Of the entries at its first use: judges come when all is recorded."""
        return {id: digest_of(body) for id, body in self.entries}

    @property
    def parts(self) -> Mapping[int, AppendPart]:
        return {id: AppendPart(body.partition(b" ")[0].decode(errors="replace"), 0) for id, body in self.entries}

    @property
    def asked(self) -> Sequence[AskedAppend]:
        """All operations, each with the last answer to it."""
        told: dict[str, AskedAppend] = {}
        for kind, _, name, id, _ in self.lines:
            if kind is LineKind.ASK:
                told.setdefault(name, AskedAppend(name, Fate.UNKNOWN, -1, 1, f"{name}, which was never answered"))
            elif kind is LineKind.ACK:
                told[name] = AskedAppend(name, Fate.COMMITTED, id, 1, f"{name}, which was acknowledged as {id}")
            elif kind is LineKind.REFUSED:
                told[name] = AskedAppend(name, Fate.FAILED, -1, 1, f"{name}, which was refused")
        return list(told.values())

    @property
    def given(self) -> Iterator[GivenTransaction]:
        for consumer, fed in self.fed.items():
            for id, digest in fed:
                yield GivenTransaction(consumer, id, digest)

    @property
    def transfers(self) -> Iterator[TransferMade]:
        for id, body in self.entries:
            with contextlib.suppress(ValueError):  # what is none of an operation is in nobody's name
                operation = BankOperation.decode(body)
                if operation.transfer is not None:
                    yield TransferMade(id, operation.name, operation.transfer)

    def described(self, contents: object) -> str:
        return f"a body with the digest {contents}"

    def digest(self) -> str:
        """Return a digest of the log's contents, the lines and what was fed, in hexadecimal."""
        total = hashlib.sha256(self.contents.digest.encode())
        for line in self.lines:
            total.update(repr(line[:-1]).encode())
        for consumer, fed in sorted(self.fed.items()):
            total.update(repr((consumer, [tuple(each) for each in fed])).encode())
        return total.hexdigest()


@dataclass
class Fates:
    """How many operations were asked for, and what became of them."""

    asked: int = 0
    acknowledged: int = 0
    refused: int = 0
    transactions: int = 0
    """In the log, without those that the library wrote for itself."""

    @property
    def unknown(self) -> int:
        """Operations never answered, because the process was killed or gave up first: the log may have them or not."""
        return self.asked - self.acknowledged - self.refused

    def add(self, history: PartitionHistory) -> None:
        """Count a partition's."""
        operations = {kind: {line.operation for line in history.lines if line.kind is kind} for kind in LineKind}
        self.asked += len(operations[LineKind.ASK])
        self.acknowledged += len(operations[LineKind.ACK])
        self.refused += len(operations[LineKind.REFUSED])
        self.transactions += len(history.entries)
