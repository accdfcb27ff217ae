"""`make kill-test`: kill, compare, and print what was found as a table."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .campaign import TAKE_OVER_S_MAX, Campaign, GaveUp, Report


def main() -> int:
    parser = argparse.ArgumentParser(prog="make kill-test", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the victims")
    parser.add_argument(
        "--keep", type=Path, help="a new directory that keeps the log, the journals and what was logged"
    )
    arguments = parser.parse_args()
    console = Console()
    with contextlib.ExitStack() as scratch:
        directory = arguments.keep
        if directory is None:
            directory = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="polonaise-kill-")))
        else:
            directory.mkdir(parents=True)
        report = _campaign(directory, arguments.kills, arguments.seed, console)
    if report is None:
        return 1
    console.print(table_of(report))
    for wrong in report.wrong[:20]:
        console.print(f"[red]wrong:[/] {wrong}", soft_wrap=True)
    return int(bool(report.wrong))


def _campaign(directory: Path, kills: int, seed: int, console: Console) -> Report | None:
    with Campaign(directory, seed) as campaign:
        try:
            with Progress(console=console) as progress:
                bar = progress.add_task("kill -9", total=kills)
                campaign.run(kills, lambda done: progress.update(bar, completed=done))
            asyncio.run(campaign.compare())
        except GaveUp as error:
            console.print(f"[red]gave up after {campaign.report.kills} kills:[/] {error}", soft_wrap=True)
            return None
        return campaign.report


def table_of(report: Report) -> Table:
    table = Table("what", "figure", title="Kills of an embedded log's processes")
    verdict = report.verdict
    took_s = sorted(report.take_overs_s)
    rows: list[tuple[str, str]] = [
        ("kills", f"{report.kills:,}"),
        ("of them, of the host", f"{report.host_kills:,}"),
        ("with appends of the killed process unacknowledged", f"{report.unacknowledged:,}"),
        ("operations asked for", f"{verdict.asked:,}"),
        ("acknowledged", f"{verdict.acknowledged:,}"),
        ("reported failed, or abandoned", f"{verdict.failed:,}"),
        ("never answered: killed first", f"{verdict.unknown:,}"),
        ("transactions in the log", f"{verdict.transactions:,}"),
    ]
    if took_s:
        rows.append(("take-over, median", f"{1e3 * statistics.median(took_s):.0f} ms"))
        rows.append(("take-over, 95 %", f"{1e3 * took_s[len(took_s) * 95 // 100]:.0f} ms"))
        rows.append((f"take-over, longest (bound {TAKE_OVER_S_MAX:g} s)", f"{1e3 * took_s[-1]:.0f} ms"))
    rows.append(("wrong", f"{len(report.wrong):,}"))
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    sys.exit(main())
