"""What the processes were told, compared with what is in the log and in the view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polonaise_proving.campaigns.comparison import FateComparison, compare
from polonaise_proving.campaigns.journal import JournalLine
from polonaise_proving.kill.ledger import PARTITION, fold, moves


@dataclass
class SharedView:
    """What the processes' database holds at the end."""

    high_water_mark: int
    balances: Mapping[int, int]


def judge(log: Sequence[bytes], lines: Iterable[JournalLine], view: SharedView) -> FateComparison:
    """Compare the journals' lines with `log`, the data of all transactions by id, and with the view."""
    comparison = compare({PARTITION: dict(enumerate(log))}, lines, lambda _: PARTITION)
    _judge_serializability(log, comparison)
    if view.high_water_mark != len(log) - 1:
        comparison.wrong.append(f"the view is at {view.high_water_mark}, and the log ends with {len(log) - 1}")
    if dict(view.balances) != fold(log[: view.high_water_mark + 1]):
        comparison.wrong.append(f"the view at {view.high_water_mark} is not what the log says")
    return comparison


def _judge_serializability(log: Sequence[bytes], comparison: FateComparison) -> None:
    """Check that each transfer takes half of its source's balance: one built on a stale balance takes another sum."""
    balances: dict[int, int] = {}
    for id, data in enumerate(log):
        changed = moves(data)
        if len(changed) == 2 and balances.get(changed[0][0], 0) + changed[0][1] < 0:
            comparison.wrong.append(f"transaction {id} takes more than there was: {data.decode()}")
        for account, amount in changed:
            balances[account] = balances.get(account, 0) + amount
