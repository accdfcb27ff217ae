"""What Spark has read or written, and what targets have applied, compared with what was there, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from polonaise.terms import PartitionId, TransactionId

Rows = Mapping[int, Sequence[str]]
"""Bodies by partition, in order."""
GROUP = 50
"""The transactions of each group that is appended while snapshots are taken."""
Entries: TypeAlias = Mapping[PartitionId, Sequence[tuple[TransactionId, bytes | None]]]
"""By partition, ids and payloads in their order; None for an entry that has none."""


def judge(expected: Rows, found: Rows, *, ordered: bool = True) -> list[str]:
    """Return the mistakes, in words; none if `found` is exactly what was expected.

    Without `ordered` the order of a partition may be another: Spark has shuffled it.
    """
    wrong = []
    for partition in sorted({*expected, *found}):
        wanted, there = list(expected.get(partition, ())), list(found.get(partition, ()))
        more, less = Counter(there) - Counter(wanted), Counter(wanted) - Counter(there)
        if len(there) != len(wanted):
            wrong.append(f"partition {partition}: {len(there):,} rows instead of {len(wanted):,}")
        if more:
            wrong.append(f"partition {partition}: too many times: {_some(more)}")
        if less:
            wrong.append(f"partition {partition}: missing: {_some(less)}")
        if not more and not less and ordered and there != wanted:
            place = next(place for place, pair in enumerate(zip(there, wanted, strict=True)) if pair[0] != pair[1])
            wrong.append(f"partition {partition}: {there[place]} at place {place}, where {wanted[place]} belongs")
    return wrong


def _some(rows: Counter[str]) -> str:
    shown = ", ".join(f"{row} ({count}×)" for row, count in sorted(rows.items())[:3])
    return shown if len(rows) <= 3 else f"{shown} and {len(rows) - 3:,} others"


def judge_files(expected: Rows, rows: Sequence[tuple[str, int, int, str]], *, ordered: bool = True) -> list[str]:
    """Do what `judge` does for files: a partition's rows lie in several files, in each by their ids."""
    wrong = []
    by_file: dict[tuple[str, int], list[int]] = {}
    for file, partition, id, _ in rows:
        by_file.setdefault((file, partition), []).append(id)
    wrong += [
        f"{file}: ids of partition {partition} are out of order"
        for (file, partition), ids in by_file.items()
        if ordered and ids != sorted(ids)
    ]
    found: dict[int, list[str]] = {}
    for _, partition, _, body in sorted(rows, key=lambda row: row[1:3]):
        found.setdefault(partition, []).append(body)
    return wrong + judge(expected, found)


def judge_figures(figures: list[list[int]], crcs: list[tuple[int, int]], mark: int, final: list[int]) -> list[str]:
    """`figures`: rows, largest id and sum of ids, each time; `crcs`: of each id; `final`: those of the whole log."""
    wrong = []
    if any(each != figures[0] for each in figures):
        wrong.append(f"one snapshot, used {len(figures)} times, is {figures}")
    count, last, total = figures[0][:3]
    if count != last + 1 or total != last * (last + 1) // 2:
        wrong.append(f"{count} rows up to {last} with the sum {total}: there are gaps, or repetitions")
    if count % GROUP:
        wrong.append(f"{count} rows, appended in groups of {GROUP}: one is there in part")
    if last < mark:
        wrong.append(f"a snapshot ends with {last}, and {mark} was committed before it was taken")
    if [id for id, _ in crcs] != list(range(count)):
        wrong.append(f"the rows of a snapshot of {count} are others when they are collected")
    dirty = [id for id, crc in crcs if id >= len(final) or final[id] != crc]
    if dirty:
        wrong.append(f"{len(dirty)} rows of a snapshot are not in the log, such as {dirty[0]}")
    return wrong


def routed(
    log: Mapping[PartitionId, Sequence[tuple[TransactionId, bytes]]], target: str
) -> dict[PartitionId, list[tuple[TransactionId, bytes]]]:
    """Return what the target is to get of the log."""
    found: dict[PartitionId, list[tuple[int, bytes]]] = {}
    for partition, transactions in log.items():
        for id, body in transactions:
            names, _, rest = body.partition(b":")
            if target.encode() in names:
                found.setdefault(partition, []).append((id, rest))
    return found


def mistakes(who: str, due: Entries, applied: Entries) -> list[str]:
    """P7, P8: return what is wrong with what a target, or a view, has applied: the first mistake of each partition."""
    return [
        f"{who}, partition {partition}: {found}"
        for partition in sorted({*due, *applied})
        if (found := _mistake(due.get(partition, ()), applied.get(partition, ())))
    ]


def _mistake(due: Sequence[tuple[int, bytes | None]], applied: Sequence[tuple[int, bytes | None]]) -> str:
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
