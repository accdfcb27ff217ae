"""The record of a partition in a schedule of the simulated machine: its log at the end, and what clients know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from polonaise.log.batch import Batch
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise_proving.record.bank import Transfer
from polonaise_proving.record.diskaudit import FinalLog
from polonaise_proving.record.observations import ACCOUNT_START, History, Kind, describe, parse_body
from polonaise_proving.record.partitionrecord import (
    AppendPart,
    AskedAppend,
    BatchSeen,
    GivenTransaction,
    TransferMade,
    seen_of,
)
from polonaise_proving.record.serializability import SerializabilityCheck


class ScheduleRecord:
    """A `PartitionRecord` of one schedule. The library's own transactions are held, and are of no append."""

    opening_balance = ACCOUNT_START

    def __init__(self, log: FinalLog, history: History) -> None:
        self._log = log
        self._history = history

    @property
    def partition(self) -> PartitionId:
        return self._log.partition

    @property
    def batches(self) -> Sequence[BatchSeen]:
        return [seen_of(each) for each in self._log.batches]

    @cached_property
    def held(self) -> Mapping[TransactionId, Transaction]:
        return dict(enumerate(self._log.transactions))

    @cached_property
    def parts(self) -> Mapping[TransactionId, AppendPart]:
        return {
            id: AppendPart(None, 0) if body is None else AppendPart(body.number, body.place)
            for id, body in enumerate(self._log.bodies)
            if not self._log.transactions[id].own
        }

    @cached_property
    def asked(self) -> Sequence[AskedAppend]:
        return [
            AskedAppend(each.number, each.fate, each.id, each.count, str(each))
            for each in self._history.tries
            if each.partition == self._log.partition
        ]

    @property
    def given(self) -> Iterator[GivenTransaction]:
        for id, transaction in sorted(self._history.seen[self._log.partition].items()):
            yield GivenTransaction("somebody", id, transaction)

    @property
    def transfers(self) -> Iterator[TransferMade]:
        for id, body in enumerate(self._log.bodies):
            if body is not None and (said := body.fields(Kind.MOVE)) is not None:
                yield TransferMade(id, f"try {body.number}", Transfer(*said))

    @cached_property
    def _judged(self) -> SerializabilityCheck:
        check = SerializabilityCheck(_groups)
        for batch in self._log.batches:
            check.follow(batch)
        return check

    @property
    def stale(self) -> Sequence[str]:
        return [str(each) for each in self._judged.stale]

    @property
    def without_evidence(self) -> int:
        return self._judged.unjudged

    def described(self, contents: object) -> str:
        assert isinstance(contents, Transaction)
        return describe(contents)


def _groups(batch: Batch) -> Iterator[range]:
    """Yield the places of each group, and of each single transaction: those that are of one try."""
    tries = [parse_body(each.data) for each in batch.transactions(own=True)]
    start = 0
    for place in range(1, len(tries) + 1):
        here, before = tries[place] if place < len(tries) else None, tries[place - 1]
        if here is None or before is None or here.number != before.number:
            yield range(start, place)
            start = place
