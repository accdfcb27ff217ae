"""The tables of docs/why.md, from what the sittings came to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.document import write_figures
from benchmarks.loads import Load, best
from benchmarks.peers.figures import Sitting
from benchmarks.peers.peer import ACCOUNTS, OUTSTANDING, WITHDRAWING

PAGE = Path(__file__).parent.parent.parent / "docs" / "why.md"
NAME = "peers"
PLACES = re.compile(r"\w+://\S+|(?<![\w.])~?/[^\s,;:)']+/[^\s,;:)']+")
"""The pattern of network addresses and absolute paths."""
HEADER = (
    "| | 1: median ms | ÷ fdatasync | 1: p99 ms | 64: per second | 1,024: per second | 1,024: p99 ms | fdatasync ms"
    " | echo ms | |"
)
RULE = "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"


def lines(sittings: Sequence[Sitting], command: str, machine: str) -> list[str]:
    """Return the lines that stand between the page's marks."""
    durable = [sitting for sitting in sittings if sitting.configuration.durable]
    rest = [sitting for sitting in sittings if not sitting.configuration.durable]
    text = [f"{command} {machine}".strip()]
    if durable:
        text += ["", "**Synced to disk by two copies or more before it is acknowledged**", "", *_figures(durable)]
    if rest:
        text += ["", "**In the page cache of a copy or more when it is acknowledged**", "", *_figures(rest)]
    if locking := [sitting for sitting in sittings if sitting.withdrawals]:
        title = (
            f"**Read a balance, check it, append: {WITHDRAWING} withdrawals at a time, each repeated until it is in**"
        )
        text += ["", title, "", *_withdrawals(locking)]
    return [*text, "", *_facts(sittings)]


def write(sittings: Sequence[Sitting], command: str, machine: str, page: Path = PAGE) -> None:
    """Replace the lines between the marks of the page."""
    write_figures(NAME, lines(sittings, command, machine), page)


def _figures(sittings: Sequence[Sitting]) -> list[str]:
    return [HEADER, RULE, *(_row(sitting) for sitting in sittings)]


def _row(sitting: Sitting) -> str:
    name = sitting.configuration.name
    if not sitting.runs:
        return _cells(name, *[""] * 8, f"skipped: {_told(sitting.missing)}")
    one, few, many = (_best(sitting.runs, outstanding) for outstanding in OUTSTANDING)
    remarks = [f"noisy, measure again: {', '.join(sitting.noise)}"] if sitting.noise else []
    return _cells(
        name,
        f"{one.p50_ms:.2f}" if one else "",
        f"{one.p50_ms / sitting.fdatasync_ms:.1f}" if one else "",
        f"{one.p99_ms:.2f}" if one else "",
        f"{few.per_second:,.0f}" if few else "",
        f"{many.per_second:,.0f}" if many else "",
        f"{many.p99_ms:.1f}" if many else "",
        _span(sitting, "fdatasync_ms"),
        _span(sitting, "echo_ms"),
        "; ".join(remarks + ([f"not all loads: {_told(sitting.missing)}"] if sitting.missing else [])),
    )


def _best(runs: dict[int, list[Load]], which: int) -> Load | None:
    return best(which, runs[which]) if which in runs else None


def _span(sitting: Sitting, which: str) -> str:
    return f"{getattr(sitting.before, which):.3f} – {getattr(sitting.after, which):.3f}"


def _withdrawals(sittings: Sequence[Sitting]) -> list[str]:
    names = ["one account" if accounts == 1 else f"{accounts:,} accounts" for accounts in ACCOUNTS]
    columns = [f"{name}: {what}" for name in names for what in ("per second", "median ms", "p99 ms")]
    text = [_cells("", *columns, "how"), "| --- |" + " ---: |" * len(columns) + " --- |"]
    for sitting in sittings:
        cells: list[str] = []
        for accounts in ACCOUNTS:
            runs = sitting.withdrawals.get(accounts)
            load = max(runs, key=lambda run: run.per_second) if runs else None
            cells += [f"{load.per_second:,.0f}", f"{load.p50_ms:.2f}", f"{load.p99_ms:.1f}"] if load else [""] * 3
        how = sitting.configuration.locks + ("; noisy, as above" if sitting.noise else "")
        text.append(_cells(sitting.configuration.name, *cells, how))
    return text


def _facts(sittings: Sequence[Sitting]) -> list[str]:
    text = ["| | version | client | acknowledged when |", "| --- | --- | --- | --- |"]
    for sitting in sittings:
        made = sitting.configuration
        text.append(_cells(made.name, sitting.version, made.client, made.acknowledged))
    return text


def _cells(*cells: str) -> str:
    """Return one row. Other programs' output may contain a line break or a bar, which would end the table."""
    return "| " + " | ".join(" ".join(cell.replace("|", "¦").split()) for cell in cells) + " |"


def _told(reason: str) -> str:
    """Return the reason as the page may show it: without addresses and paths of this machine or of others."""
    return PLACES.sub("…", reason)
