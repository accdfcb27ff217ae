"""The judge of what clients are told: compares each note of a schedule's history with those before it, at once.

What is found here is found at the moment when it happens, and ends the schedule soon; `checkers` look at the rest.
"""

from __future__ import annotations

from typing import Final

from polonaise.coordination.values import Assignment
from polonaise.errors import FragmentsAhead, PolonaiseError
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise_proving.record.observations import (
    NOBODY_HAS,
    UNTOLD,
    History,
    ProducerTold,
    ProvedAnswer,
    ReaderRecord,
    Try,
    describe,
)
from polonaise_proving.record.partitionrecord import Fate

_CONTRADICTIONS: Final = frozenset(
    (
        "consistency_lost",
        "log_forked",
        "client_ahead",
        "producer_sequence",
        "producer_differs",
        "invariant_violated",
        "coordinator_damaged",
        "fragments_ahead",
        "history_trimmed",
        "fragment_missing",
    )
)
_NOT_TAKEN: Final = "too many appends wait at the owner"
"""Stands in the text of an error which says that the owner had no room for the append."""


class ClientsJudge(History):
    """The history of a schedule, which judges what it is to note. A changed outcome is a violation, and not noted."""

    def connected(self, client: str, client_id: int) -> None:
        """P6: a client's id is nobody else's, as appends are told apart by it."""
        other = self.client_ids.get(client_id)
        if other is not None:
            self.violated("P6 fate", "client ids that nobody else has", f"{client_id} of {other} given to {client}")
        super().connected(client, client_id)

    def committed(self, attempt: Try, transaction: TransactionId) -> None:
        """P6: an append has one outcome. P1: one that needs what nobody has is not written."""
        if attempt.fate is Fate.FAILED or (attempt.fate is Fate.COMMITTED and attempt.id != transaction):
            seen = f"{attempt}, and then committed as {transaction}"
            self.violated("P6 fate", "one outcome that never changes", seen)
            return
        super().committed(attempt, transaction)
        if attempt.copies >= NOBODY_HAS:
            expected = f"an append that needs {attempt.copies} copies to be refused, and nothing to be written"
            self.violated("P1 durability", expected, str(attempt))

    def failed(self, attempt: Try, why: str, value: TransactionId | None = None) -> None:
        """P6: an append has one outcome, and the owner says why it failed. P11: there is room for what may be sent."""
        if attempt.fate is Fate.COMMITTED:
            self.violated("P6 fate", "one outcome that never changes", f"{attempt}, and then failed: {why}")
            return
        if UNTOLD in why:
            self.violated("P6 fate", f"the owner to say why {attempt} failed", why)
        if self.window_is_kept and _NOT_TAKEN in why:
            self.violated("P11 availability", "room for what fits into a client's window", f"{attempt}: {why}")
        super().failed(attempt, why, value)

    def refused(self, error: PolonaiseError, where: str) -> None:
        """P6: no error tells a client that the log contradicts itself, or what the client knows."""
        allowed = self.tells_of_reset(error) or (self.reset_may_wait and error.code == FragmentsAhead.code)
        if error.code in _CONTRADICTIONS and not allowed and not self.refusal_is_right:
            self.violated("P6 fate", "no contradiction in what clients are told", f"{where}: {error}")
        super().refused(error, where)

    def producer_told(self, told: ProducerTold) -> None:
        """P6: the latest opening of a producer is not fenced, and nothing of an earlier one is taken."""
        if told.fenced and told.epoch == told.newest:
            self.violated("P6 fate", f"{told.name} to be open in epoch {told.epoch}", told.what)
        elif not told.fenced and told.epoch < told.newest:
            self.violated("P6 fate", f"nothing more of {told.name} in epoch {told.epoch}", told.what)

    def saw(self, who: str, transaction: Transaction) -> None:
        """P2: all see the same transaction under an id. P4: what was given up is given to nobody."""
        partition, id = transaction.partition, transaction.id
        first = self.seen[partition].get(id, transaction)
        if transaction in self.given_up[partition].get(id, ()):
            if partition not in self.lingering:
                expected = f"id {id} of partition {partition}, given up by a reset, to be given to nobody"
                self.violated("P4 no dirty read", expected, f"{who} was given {describe(transaction)}")
        elif first is not transaction and first != transaction:
            expected = f"id {id} of partition {partition} to be {describe(first)} for ever"
            self.violated("P2 agreement", expected, f"{who} was given {describe(transaction)}")
        super().saw(who, transaction)

    def given(self, reading: ReaderRecord, transaction: Transaction) -> None:
        """P3: ids rise from a mark on, none comes twice, and a reading by time begins with the first since then."""
        if transaction.partition != reading.partition or transaction.id <= reading.last or transaction.own:
            seen = f"{describe(transaction)} as id {transaction.id} of {transaction.partition}"
            expected = f"id {reading.last + 1} of partition {reading.partition} next"
            self.violated("P3 order and density", expected, f"{reading.who} was given {seen}")
        if reading.since is not None and not reading.count:
            before = self.seen[reading.partition].get(transaction.id - 1)
            if transaction.commit_time_us < reading.since or (
                before is not None and before.commit_time_us >= reading.since
            ):
                seen = f"{transaction.id} was given"
                self.violated("P3 order and density", f"the first since {reading.since}", seen)
        super().given(reading, transaction)

    def read_all(self, reading: ReaderRecord, last: TransactionId) -> None:
        """P2: a reading to the end of the log is given all that was known when it began."""
        if any(id in self.seen[reading.partition] for id in range(reading.last + 1, last + 1)):
            seen = f"{reading.who} came to the end at {reading.last}"
            self.violated("P2 agreement", f"the log up to {last}, which was committed before", seen)
        super().read_all(reading, last)

    def not_applied(self, partition: PartitionId, id: TransactionId, error: Exception) -> None:
        """P2: a view can apply whatever is in the log."""
        self.violated("P2 agreement", f"id {id} of partition {partition} to be applied", repr(error))

    def answered(self, answer: ProvedAnswer) -> None:
        """P2: an answer is no older than what was known before it was asked for. P6: a flush decides the rest."""
        if answer.mark is not None and answer.mark < answer.floor:
            expected = f"an answer at {answer.floor} or later, which was told before it was asked for"
            seen = f"{answer.client} was answered at {answer.mark} (partition {answer.partition})"
            self.violated("P2 agreement", expected, seen)
        if answer.undecided:
            self.violated("P6 fate", "every append before a flush to be decided", repr(answer.undecided))
        super().answered(answer)


class AssignmentCheck:
    """A check of the assignments that one client follows: the generation of no partition falls."""

    def __init__(self, history: ClientsJudge, who: str) -> None:
        self._history = history
        self._who = who
        self._generations: dict[PartitionId, int] = {}

    def __call__(self, assignment: Assignment) -> None:
        for partition, owner in assignment.owners.items():
            known = self._generations.get(partition, 0)
            if owner.generation < known:
                self._history.violated(
                    "P11 availability",
                    f"an owner of partition {partition} of generation {known} or later",
                    f"{self._who} went back to that of generation {owner.generation}",
                )
            self._generations[partition] = owner.generation
