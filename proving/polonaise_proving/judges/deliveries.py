"""What targets in databases have applied, compared with the route of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from polonaise.terms import PartitionId, TransactionId

Entries: TypeAlias = Mapping[PartitionId, Sequence[tuple[TransactionId, bytes]]]
"""By partition, ids and payloads in their order."""


def routed(log: Entries, target: str) -> dict[PartitionId, list[tuple[TransactionId, bytes]]]:
    """Return what the target is to get of the log."""
    found: dict[PartitionId, list[tuple[int, bytes]]] = {}
    for partition, transactions in log.items():
        for id, body in transactions:
            names, _, rest = body.partition(b":")
            if target.encode() in names:
                found.setdefault(partition, []).append((id, rest))
    return found


def mistakes(target: str, due: Entries, applied: Entries) -> list[str]:
    """Return what is wrong with what the target has applied: the first mistake of each partition."""
    return [
        f"target {target}, partition {partition}: {found}"
        for partition in sorted({*due, *applied})
        if (found := _mistake(due.get(partition, ()), applied.get(partition, ())))
    ]


def _mistake(due: Sequence[tuple[int, bytes]], applied: Sequence[tuple[int, bytes]]) -> str:
    for place, (wanted, found) in enumerate(zip(due, applied, strict=False)):
        if wanted != found:
            seen = [id for id, _ in applied[:place]]
            if found[0] in seen:
                return f"{found[0]} was applied twice, the second time in place of {wanted[0]}"
            if wanted[0] == found[0]:
                return f"{found[0]} has another payload"
            return f"{found[0]} was applied in place of {wanted[0]}"
    if len(due) > len(applied):
        return f"{due[len(applied)][0]} and what follows it, {len(due) - len(applied)} in all, were not applied"
    if len(applied) > len(due):
        return f"{applied[len(due)][0]} was applied after the last one that is due"
    return ""
