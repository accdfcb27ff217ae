"""What the processes were told, compared with what is in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from . import journal
from .journal import Line
from .ledger import fold, moves, operation_of


@dataclass
class Verdict:
    """What was compared, and everything that is wrong."""

    asked: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    """Asked, and never answered: its process was killed first."""
    transactions: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class View:
    """What the processes' database holds at the end."""

    high_water_mark: int
    balances: Mapping[int, int]


def judge(log: Sequence[bytes], lines: Iterable[Line], view: View) -> Verdict:
    """`log`: the data of all transactions, by id."""
    verdict = Verdict(transactions=len(log))
    times = Counter(operation_of(data) for data in log)
    asked: set[str] = set()
    answered: set[str] = set()
    for line in lines:
        operation = line.operation
        if line.kind == journal.ASK:
            asked.add(operation)
        elif line.kind == journal.ACK:
            verdict.acknowledged += 1
            answered.add(operation)
            if not 0 <= line.id < len(log) or operation_of(log[line.id]) != operation:
                verdict.wrong.append(f"{operation} was acknowledged as {line.id}, and is not there")
        elif line.kind == journal.FAIL:
            verdict.failed += 1
            answered.add(operation)
            if times[operation]:
                verdict.wrong.append(f"{operation} was reported failed, and is in the log")
    verdict.asked = len(asked)
    verdict.unknown = len(asked - answered)
    verdict.wrong += [f"{operation} is in the log {count} times" for operation, count in times.items() if count > 1]
    verdict.wrong += [f"{operation} is in the log, and nobody asked for it" for operation in times.keys() - asked]
    _judge_serializability(log, verdict)
    if view.high_water_mark != len(log) - 1:
        verdict.wrong.append(f"the view is at {view.high_water_mark}, and the log ends with {len(log) - 1}")
    if dict(view.balances) != fold(log[: view.high_water_mark + 1]):
        verdict.wrong.append(f"the view at {view.high_water_mark} is not what the log says")
    return verdict


def _judge_serializability(log: Sequence[bytes], verdict: Verdict) -> None:
    """A transfer takes half of what its source has: built on another balance, it takes something else."""
    balances: dict[int, int] = {}
    for id, data in enumerate(log):
        changed = moves(data)
        if len(changed) == 2 and balances.get(changed[0][0], 0) + changed[0][1] < 0:
            verdict.wrong.append(f"transaction {id} takes more than there was: {data.decode()}")
        for account, amount in changed:
            balances[account] = balances.get(account, 0) + amount
