"""Checks of a recorded history: one function for each promise, which returns what is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from polonaise_proving.record.bank import OPENING_BALANCE, BankOperation, Fold, digest_of
from polonaise_proving.record.history import Contents, LineKind, PartitionHistory

_ANSWERS: Final = frozenset({LineKind.ACK, LineKind.REFUSED, LineKind.UNKNOWN})
EXAMPLES_MAX: Final = 5
"""The most violations of one promise in one partition that are told; the others are counted."""


class BrokenPromise(NamedTuple):
    """A promise that a history breaks."""

    promise: str
    """`P1` to `P7`, `replicas`, or `archive`; `status` for a fault that was not told while it lasted, and `planned` for
    appends that failed because of a planned change."""
    text: str


def durability(history: PartitionHistory) -> Iterator[str]:
    """P1: what was acknowledged is in the log under its id."""
    names = dict(_names(history))
    for line in history.lines:
        if line.kind is LineKind.ACK and names.get(line.id) != line.operation:
            yield f"{line.operation} was acknowledged as {line.id}, and there is {names.get(line.id, 'nothing')}"


def agreement(history: PartitionHistory) -> Iterator[str]:
    """P2: every consumer was fed the same under the same id, and what the log holds there."""
    digests = {id: digest_of(body) for id, body in history.entries}
    for consumer, fed in history.fed.items():
        for each in fed:
            if each.id in digests and digests[each.id] != each.digest:
                yield f"{consumer} was fed something else as {each.id} than the log holds"


def density(history: PartitionHistory) -> Iterator[str]:
    """P3: ids follow each other without gaps from 0 on, and commit times never decrease."""
    after, before_us = -1, 0
    for batch in history.batches:
        if batch.first != after + 1:
            yield f"a batch begins with {batch.first} after {after}"
        if batch.commit_time_us < before_us:
            yield f"the batch with {batch.first} was committed at {batch.commit_time_us}, after one at {before_us}"
        after, before_us = batch.last, batch.commit_time_us


def no_dirty_read(history: PartitionHistory) -> Iterator[str]:
    """P4: nothing was fed that is not in the log in the end."""
    ids = {id for id, _ in history.entries}
    for consumer, fed in history.fed.items():
        for each in fed:
            if each.id not in ids:
                yield f"{consumer} was fed {each.id}, which is not in the log"


def serializability(history: PartitionHistory) -> Iterator[str]:
    """P5: no transaction was built on stale state: neither by the log's evidence nor by the balances in its body."""
    yield from history.stale
    transactions = history.contents.last - history.contents.first + 1
    if history.judged is not None and history.judged != transactions:
        yield f"only {history.judged} of {transactions} transactions have evidence to judge them by"
    yield from _folded(history).wrong


def fate(history: PartitionHistory) -> Iterator[str]:
    """P6: an append is in the log once if it was acknowledged, never if it was refused, at most once otherwise.

    Each append of a client that says it has all answers was answered.
    """
    times = Counter(name for _, name in _names(history))
    asked = {line.operation for line in history.lines if line.kind is LineKind.ASK}
    answers = defaultdict(set)
    for line in history.lines:
        if line.kind in (LineKind.ACK, LineKind.REFUSED):
            answers[line.operation].add((line.kind, line.id))
        if line.kind is LineKind.REFUSED and times[line.operation]:
            yield f"{line.operation} was refused, and is in the log"
        if line.kind is LineKind.ACK and not times[line.operation]:
            yield f"{line.operation} was acknowledged, and is not in the log"
    told = {line.operation for line in history.lines if line.kind in _ANSWERS}
    quiet = {line.operation for line in history.lines if line.kind is LineKind.QUIET}
    yield from (f"{name} was never answered" for name in sorted(asked - told) if name.partition("/")[0] in quiet)
    yield from (f"{name} is in the log {count} times" for name, count in times.items() if count > 1)
    yield from (f"{name} is in the log, and nobody asked for it" for name in times if name not in asked)
    yield from (f"{name} was answered in two ways: {sorted(all)}" for name, all in answers.items() if len(all) > 1)


def exactly_once(history: PartitionHistory) -> Iterator[str]:
    """P7: every consumer was fed each transaction once, in order, and its tables are the fold of the log."""
    ids = [id for id, _ in history.entries]
    balances = dict(_folded(history).balances)
    for consumer, fed in history.fed.items():
        given = [each.id for each in fed]
        if given != ids:
            at = next((at for at, (one, other) in enumerate(zip(given, ids, strict=False)) if one != other), None)
            at = min(len(given), len(ids)) if at is None else at
            yield (
                f"{consumer} was fed {len(given)} transactions of {len(ids)}; the first difference is at {at}: "
                f"fed {given[at : at + 1]}, in the log {ids[at : at + 1]}"
            )
    if history.fed.keys() != history.views.keys():
        yield f"there are views of {sorted(history.views)}, and feeds of {sorted(history.fed)}"
    for consumer, view in history.views.items():
        for account in sorted(balances.keys() | view.keys()):
            is_there, is_right = view.get(account, OPENING_BALANCE), balances.get(account, OPENING_BALANCE)
            if is_there != is_right:
                yield f"account {account} has {is_there} in the view of {consumer}, and {is_right} in the log"


def replicas(history: PartitionHistory) -> Iterator[str]:
    """All replicas hold the same bytes as the log, from its beginning to its end."""
    if len(history.replicas) != history.copies:
        yield f"{len(history.replicas)} replicas were found, and there are to be {history.copies}"
    for node, contents in history.replicas.items():
        if contents.first > 0:
            yield f"{node} begins with {contents.first}, and nothing was trimmed"
        yield from _compared(node, contents, history.contents)


def archive(history: PartitionHistory) -> Iterator[str]:
    """The archive holds the same bytes as the log, from its beginning to its end."""
    if history.archive is None:
        yield "there is no archive"
        return
    yield from _compared("the archive", history.archive, history.contents)


def _compared(what: str, contents: Contents, log: Contents) -> Iterator[str]:
    if contents.trouble:
        yield f"{what} can't be read: {contents.trouble}"
    elif contents.last != log.last:
        yield f"{what} ends with {contents.last}, and the log with {log.last}"
    elif (contents.first, contents.digest) != (log.first, log.digest):
        yield f"{what} holds other bytes than the log, from {contents.first} to {contents.last}"


CHECKS: Final[dict[str, Callable[[PartitionHistory], Iterator[str]]]] = {
    "P1": durability,
    "P2": agreement,
    "P3": density,
    "P4": no_dirty_read,
    "P5": serializability,
    "P6": fate,
    "P7": exactly_once,
    "replicas": replicas,
    "archive": archive,
}
"""The checks by the promises' names."""


TOLD_CHECKS: Final = {"P1": durability, "P6": fate}
"""Those of what clients were told of their appends."""
LOG_CHECKS: Final = {promise: check for promise, check in CHECKS.items() if check not in (replicas, archive)}
"""Those that need no copies: the log itself, what was told of it, and views."""


def violations(
    history: PartitionHistory, checks: Mapping[str, Callable[[PartitionHistory], Iterator[str]]] = CHECKS
) -> list[BrokenPromise]:
    """Return what is wrong with a partition's history: some examples for each promise, and how many more there are."""
    found = []
    for promise, check in checks.items():
        texts = list(check(history))
        shown = texts[:EXAMPLES_MAX]
        if len(texts) > EXAMPLES_MAX:
            shown.append(f"and {len(texts) - EXAMPLES_MAX} more")
        found += [BrokenPromise(promise, f"partition {history.partition}: {text}") for text in shown]
    return found


def _names(history: PartitionHistory) -> Iterator[tuple[int, str]]:
    """Yield the id and the operation's name of each transaction."""
    for id, body in history.entries:
        yield id, body.partition(b" ")[0].decode(errors="replace")


def _folded(history: PartitionHistory) -> Fold:
    folded = Fold()
    for id, body in history.entries:
        try:
            folded.follow([(id, BankOperation.decode(body))])
        except ValueError:
            folded.wrong.append(f"transaction {id} is none that a client makes")
    return folded
