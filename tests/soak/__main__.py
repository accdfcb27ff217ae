"""`make soak`: run, disturb, sample, compare, and print what was found as tables."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .campaign import Campaign, Report
from .flatness import Course
from .leaks import LEAKS
from .processes import GaveUp
from .sampling import FIGURES


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the victims")
    parser.add_argument("--leak", default="", choices=["", *LEAKS], help="what clients lose on purpose: must be found")
    parser.add_argument(
        "--keep", type=Path, help="a new directory that keeps the log, the journals and what was logged"
    )
    arguments = parser.parse_args()
    console = Console()
    with contextlib.ExitStack() as scratch:
        directory = arguments.keep
        if directory is None:
            directory = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="polonaise-soak-")))
        else:
            directory.mkdir(parents=True)
        report = asyncio.run(_run(directory.resolve(), arguments, console))
    if report is None:
        return 1
    console.print(work_of(report))
    console.print(figures_of(report))
    for wrong in report.wrong[:20]:
        console.print(f"[red]wrong:[/] {wrong}", soft_wrap=True)
    return int(bool(report.wrong))


async def _run(directory: Path, arguments: argparse.Namespace, console: Console) -> Report | None:
    with Campaign(directory, arguments.minutes, arguments.seed, arguments.leak) as campaign:
        try:
            with Progress(console=console) as progress:
                bar = progress.add_task("soak", total=60 * arguments.minutes)
                await campaign.run(lambda seconds: progress.update(bar, completed=seconds))
        except GaveUp as error:
            console.print(f"[red]gave up:[/] {error}", soft_wrap=True)
            return None
        return campaign.report


def work_of(report: Report) -> Table:
    """What was done to the cluster, and what came of what clients asked for."""
    table = Table("what", "figure", title=f"{report.minutes:g} minutes of work")
    told = report.comparison
    for what, count in (
        ("kills of a server", report.server_kills),
        ("restarts of a client", report.client_restarts),
        ("storage nodes stopped for a while", report.storage_stops),
        ("operations asked for", told.asked),
        ("acknowledged", told.acknowledged),
        ("reported failed", told.failed),
        ("given up before an answer", told.unknown),
        ("transactions in the log", told.transactions),
        ("wrong", len(report.wrong)),
    ):
        table.add_row(what, f"{count:,}")
    return table


def figures_of(report: Report) -> Table:
    """What each process held early and late in each part of its lives; what grew is marked."""
    table = Table("process", *FIGURES, title="Medians of the second and the last quarter, after the warm-up")
    rows: dict[str, dict[str, Course]] = {}
    for course in report.courses:
        rows.setdefault(course.stretch, {})[course.figure] = course
    for name, found in sorted(rows.items()):
        table.add_row(name, *(_cell(found.get(figure)) for figure in FIGURES))
    return table


def _cell(course: Course | None) -> str:
    if course is None:
        return ""
    form = "{:.1f}" if course.figure == "memory_mb" else "{:.0f}"
    cell = f"{form.format(course.early)} → {form.format(course.late)}"
    return f"[red]{cell} ![/]" if course.grown else cell


if __name__ == "__main__":
    sys.exit(main())
