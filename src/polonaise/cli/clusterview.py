"""The screen of `polonaise cluster status`: a whole cluster in a few tables, with the worst rows first."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from polonaise.cli.looking import Rows, partition_rows, server_rows, storage_rows
from polonaise.cli.output import printable, table_of
from polonaise.redaction import redacted
from polonaise.terms import counted

if TYPE_CHECKING:
    from rich.table import Table

    from polonaise.admin.cluster import ClusterStatus
    from polonaise.cli.looking import Status

ROWS_MAX: Final = 20
"""The most rows of a table, unless all are asked for."""
_COMMON_MAX: Final = 3
"""The most troubles of partitions that get a line which says how many have them."""
_TOPICS_MAX: Final = 3
"""The most topics that get a line which says what their commits need."""
_COMMON_FROM: Final = 2
"""The least number of partitions with the same trouble that get a line which says how many they are."""
_VERDICTS: Final = ("all is well", "DEGRADED", "FAILED")


def screen_of(status: ClusterStatus, rows_max: int | None = ROWS_MAX) -> list[Table | str]:
    """Return the parts of the screen, tables and lines; no table has more than `rows_max` rows, of one line each."""
    key = "" if status.description is None else f" {status.description.label}"
    parts: list[Table | str] = [
        f"cluster{key}: {_VERDICTS[status.wellness]}",
        f"coordinator {redacted(status.coordinator)}: {status.coordinator_trouble or 'reachable'}",
    ]
    parts += status.coordinator_troubles
    if status.description is None:
        return parts
    if status.coordinator_error is not None:
        parts.append("below is what the coordinator said last, or servers know of it, and what the nodes say now")
    elif status.coordinator_disbelief:
        parts.append("which partitions, servers and owners there are is below as it holds it, and may not be so")
    if status.required:
        parts.append(f"commits need {status.required}")
    if of_topics := status.topics_required:
        parts += [f"commits to topic {topic} need {told}" for topic, told in [*of_topics.items()][:_TOPICS_MAX]]
        if len(of_topics) > _TOPICS_MAX:
            parts.append(f"and to {counted(len(of_topics) - _TOPICS_MAX, 'topic')} more: see `polonaise topic list`")
    parts += _section(status.servers, server_rows, "server", rows_max)
    parts += _section(status.storage, storage_rows, "storage node", rows_max)
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(status.states.items(), key=_worst_last))
    parts += ["", f"{counted(len(status.partitions), 'partition')}: {states}"]
    for trouble, count in status.common_troubles(_COMMON_MAX):
        if count >= _COMMON_FROM:
            parts.append(f"  {count:,} of them: {trouble}")
    changing = [each for each in status.partitions if each.condition is not None and each.condition.change]
    if changing:
        first = changing[0]
        assert first.condition is not None
        parts.append(
            f"  {len(changing):,} changing their members; partition {first.partition}: {first.condition.change}"
        )
    parts += _section(status.partitions, partition_rows, "partition", rows_max)[1:]
    return parts


def fitting(status: ClusterStatus, lines: int, width: int) -> list[Table | str]:
    """Return the screen with as many rows as fit into `lines` lines of `width` characters, but one of each at least."""
    return next(
        (screen for rows in range(ROWS_MAX, 0, -1) if _height(screen := screen_of(status, rows), width) <= lines),
        screen_of(status, 1),
    )


def _height(parts: Sequence[Table | str], width: int) -> int:
    return sum(
        len(textwrap.wrap(printable(part), width)) or 1 if isinstance(part, str) else part.row_count + 1
        for part in parts
    )


def _section(
    each: Sequence[Status], rows_of: Callable[[Sequence[Status]], Rows], noun: str, rows_max: int | None
) -> list[Table | str]:
    """Return a table with the worst of these first, and a line that counts those left out of it."""
    first = sorted(each, key=lambda item: -item.wellness)
    shown = first[:rows_max]
    columns, rows, right = rows_of(shown)
    if rows_max is None:
        return ["", table_of(columns, rows, right=right)]
    parts: list[Table | str] = ["", table_of(columns, [_one_line(row) for row in rows], right=right, lines=True)]
    if rest := first[len(shown) :]:
        well = sum(1 for item in rest if not item.wellness)
        how = "all of them well" if well == len(rest) else f"{len(rest) - well:,} of them not well"
        parts.append(f"and {counted(len(rest), noun)} more, {how} (--all shows all)")
    return parts


def _one_line(row: Sequence[object]) -> list[object]:
    return [_first(cell) if isinstance(cell, list) else cell for cell in row]


def _first(items: list[Any]) -> str:
    more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
    return f"{items[0]}{more}" if items else ""


def _worst_last(item: tuple[str, int]) -> int:
    return ("ready", "degraded", "not ready", "unknown").index(item[0])
