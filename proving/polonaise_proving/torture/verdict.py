"""What came out, compared with what was there: how many, which, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Rows = Mapping[int, Sequence[str]]
"""Bodies by partition, in order."""


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
