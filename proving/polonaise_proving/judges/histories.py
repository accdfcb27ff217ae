"""Judges of a history of real processes: what only that has on record, such as views, copies and the archive.

`partitions` judges what every run has on record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from polonaise_proving.judges.partitions import JUDGES_OF_PARTITIONS, durability, fates
from polonaise_proving.judges.rows import mistakes
from polonaise_proving.record.bank import OPENING_BALANCE, BankOperation, Fold
from polonaise_proving.record.failures import Violation
from polonaise_proving.record.history import Contents, LineKind, PartitionHistory

_ANSWERS: Final = frozenset({LineKind.ACK, LineKind.REFUSED, LineKind.UNKNOWN})
EXAMPLES_MAX: Final = 5
"""The most violations of one promise in one partition that are told; the others are counted."""


class BrokenPromise(NamedTuple):
    """A promise that a history breaks."""

    promise: str
    """One of `HELD`; `status` for a fault that was not told while it lasted, and `planned` for
    appends that failed because of a planned change."""
    text: str


def one_answer(history: PartitionHistory) -> Iterator[Violation]:
    """P6: an append has one outcome, and each of a client that says it has all answers was answered."""
    asked = {line.operation for line in history.lines if line.kind is LineKind.ASK}
    answers = defaultdict(set)
    for line in history.lines:
        if line.kind in (LineKind.ACK, LineKind.REFUSED):
            answers[line.operation].add((line.kind, line.id))
    told = {line.operation for line in history.lines if line.kind in _ANSWERS}
    quiet = {line.operation for line in history.lines if line.kind is LineKind.QUIET}
    for name in sorted(asked - told):
        if name.partition("/")[0] in quiet:
            yield Violation("P6 fate", "an answer to each append", f"{name} was never answered")
    for name, all in answers.items():
        if len(all) > 1:
            yield Violation("P6 fate", "one outcome that never changes", f"{name} was answered as {sorted(all)}")


def readable(history: PartitionHistory) -> Iterator[Violation]:
    """P10: every body is that of an operation."""
    for id, body in history.entries:
        try:
            BankOperation.decode(body)
        except ValueError as error:
            yield Violation("P10 corruption", f"the body of {id} to be of an operation", str(error))


def exactly_once(history: PartitionHistory) -> Iterator[Violation]:
    """P7: every consumer was fed each transaction once, in order, and its tables are the fold of the log."""
    due = {history.partition: [(id, None) for id, _ in history.entries]}
    for consumer, fed in history.fed.items():
        for mistake in mistakes(consumer, due, {history.partition: [(each.id, None) for each in fed]}):
            yield Violation("P7 exactly-once views", "each transaction once, in order", mistake)
    if history.fed.keys() != history.views.keys():
        seen = f"there are views of {sorted(history.views)}, and feeds of {sorted(history.fed)}"
        yield Violation("P7 exactly-once views", "the view of each consumer", seen)
    folded = Fold()
    for made in history.transfers:
        folded.apply(*made)
    balances = dict(folded.balances)
    for consumer, view in history.views.items():
        for account in sorted(balances.keys() | view.keys()):
            is_there, is_right = view.get(account, OPENING_BALANCE), balances.get(account, OPENING_BALANCE)
            if is_there != is_right:
                seen = f"account {account} has {is_there} in the view of {consumer}, and {is_right} in the log"
                yield Violation("P7 exactly-once views", "the fold of the log", seen)


def replicas(history: PartitionHistory) -> Iterator[Violation]:
    """All replicas hold the same bytes as the log, from its beginning to its end."""
    if len(history.replicas) != history.copies:
        seen = f"{len(history.replicas)} replicas were found, and there are to be {history.copies}"
        yield Violation("replicas", "each copy", seen)
    for node, contents in history.replicas.items():
        if contents.first > 0:
            seen = f"{node} begins with {contents.first}, and nothing was trimmed"
            yield Violation("replicas", "the whole log", seen)
        if difference := _difference(node, contents, history.contents):
            yield Violation("replicas", "the log's own bytes", difference)


def archive(history: PartitionHistory) -> Iterator[Violation]:
    """The archive holds the same bytes as the log, from its beginning to its end."""
    held = history.archive
    difference = "there is no archive" if held is None else _difference("the archive", held, history.contents)
    if difference:
        yield Violation("archive", "the log's own bytes", difference)


def _difference(what: str, contents: Contents, log: Contents) -> str:
    if contents.trouble:
        return f"{what} can't be read: {contents.trouble}"
    if contents.last != log.last:
        return f"{what} ends with {contents.last}, and the log with {log.last}"
    if (contents.first, contents.digest) != (log.first, log.digest):
        return f"{what} holds other bytes than the log, from {contents.first} to {contents.last}"
    return ""


HistoryJudge = Callable[[PartitionHistory], Iterator[Violation]]
TOLD_CHECKS: Final[tuple[HistoryJudge, ...]] = (durability, fates, one_answer)
"""Those of what clients were told of their appends."""
LOG_CHECKS: Final[tuple[HistoryJudge, ...]] = (*JUDGES_OF_PARTITIONS, one_answer, readable, exactly_once)
"""Those that need no copies: the log itself, what was told of it, and views."""
CHECKS: Final[tuple[HistoryJudge, ...]] = (*LOG_CHECKS, replicas, archive)
HELD: Final = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P10", "replicas", "archive")
"""What `CHECKS` look at."""


def violations(history: PartitionHistory, checks: Sequence[HistoryJudge] = CHECKS) -> list[BrokenPromise]:
    """Return what is wrong with a partition's history: some examples for each promise, and how many more there are."""
    texts: dict[str, list[str]] = defaultdict(list)
    for check in checks:
        for each in check(history):
            texts[each.promise.split()[0]].append(f"expected {each.expected}; seen: {each.seen}")
    found = []
    for promise, told in texts.items():
        shown = told[:EXAMPLES_MAX]
        if len(told) > EXAMPLES_MAX:
            shown.append(f"and {len(told) - EXAMPLES_MAX} more")
        found += [BrokenPromise(promise, f"partition {history.partition}: {text}") for text in shown]
    return found
