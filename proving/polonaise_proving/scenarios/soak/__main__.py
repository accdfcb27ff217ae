"""`make soak`: run, disturb, sample, compare, and print what was found as tables."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from polonaise_proving.judges.flatness import Course
from polonaise_proving.mutations.children import put_into_children
from polonaise_proving.record.sampling import FIGURES
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.soak.campaign import SoakCampaign, SoakReport
from polonaise_proving.stages.waiting import GaveUp
from polonaise_proving.work.leaks import LEAKS


def main() -> int:
    parser = running.options("make soak", __doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--leak", default="", choices=["", *LEAKS], help="what clients lose on purpose: must be found")
    options = parser.parse_args()
    console = Console()
    with put_into_children(options.mutation), running.directory(options.keep) as directory:
        report = asyncio.run(_run(directory, options, console))
    if report is None:
        return 1
    console.print(work_of(report))
    console.print(figures_of(report))
    return running.print_wrong(console, report.wrong)


async def _run(directory: Path, options: argparse.Namespace, console: Console) -> SoakReport | None:
    with SoakCampaign(directory, options.minutes, options.seed, options.leak) as campaign:
        try:
            with Progress(console=console) as progress:
                bar = progress.add_task("soak", total=60 * options.minutes)
                await campaign.run(lambda seconds: progress.update(bar, completed=seconds))
        except GaveUp as error:
            console.print(f"[red]gave up:[/] {error}", soft_wrap=True)
            return None
        return campaign.report


def work_of(report: SoakReport) -> Table:
    """What was done to the cluster, and what came of what clients asked for."""
    told = report.fates
    figures: dict[str, int | str] = {
        "kills of a server": report.server_kills,
        "restarts of a client": report.client_restarts,
        "storage nodes stopped for a while": report.storage_stops,
        "operations asked for": told.asked,
        "acknowledged": told.acknowledged,
        "reported failed": told.refused,
        "given up before an answer": told.unknown,
        "transactions in the log": told.transactions,
        "wrong": len(report.wrong),
    }
    return running.table(f"{report.minutes:g} minutes of work", figures)


def figures_of(report: SoakReport) -> Table:
    """What each process held early and late in each part of its lives; what grew is marked."""
    table = Table("process", *FIGURES, title="Medians of the second and the last quarter, after the warm-up")
    rows: dict[str, dict[str, Course]] = {}
    for course in report.courses:
        rows.setdefault(course.stretch, {})[course.figure] = course
    for name, figures in sorted(rows.items()):
        table.add_row(name, *(_cell(figures.get(figure)) for figure in FIGURES))
    return table


def _cell(course: Course | None) -> str:
    if course is None:
        return ""
    form = "{:.1f}" if course.figure == "memory_mb" else "{:.0f}"
    cell = f"{form.format(course.early)} → {form.format(course.late)}"
    return f"[red]{cell} ![/]" if course.grown else cell


if __name__ == "__main__":
    sys.exit(main())
