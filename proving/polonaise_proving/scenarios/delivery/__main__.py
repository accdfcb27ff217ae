"""`make torture-delivery`: kill, stop, compare, and print what was found as a table."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console
from rich.progress import Progress

from polonaise_proving.mutations.children import put_into_children
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.delivery.campaign import DeliveryTorture, DeliveryTortureReport
from polonaise_proving.stages.databases import KINDS
from polonaise_proving.stages.waiting import GaveUp


def main() -> int:
    parser = running.options("make torture-delivery", __doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--database", choices=KINDS, default="sqlite", help="in which targets keep what they apply")
    options = parser.parse_args()
    console = Console()
    with (
        put_into_children(options.mutation),
        running.directory(options.keep) as directory,
        DeliveryTorture(directory, options.seed, SCHEMES, database=options.database) as campaign,
        Progress(console=console) as progress,
    ):
        bar = progress.add_task("faults", total=60 * options.minutes)
        try:
            campaign.run(60 * options.minutes, lambda done_s: progress.update(bar, completed=done_s))
            asyncio.run(campaign.compare())
        except GaveUp as error:
            console.print(f"[red]gave up:[/] {error}", soft_wrap=True)
            return 1
    report = campaign.report
    console.print(running.table("faults of targets, players and the log", figures_of(report)))
    return running.print_wrong(console, report.wrong)


SCHEMES = ("link", "grpc")


def figures_of(report: DeliveryTortureReport) -> dict[str, int | str]:
    figures: dict[str, int | str] = dict(sorted(report.faults.items()))
    figures["transactions in the log"] = report.transactions
    for name, count in report.delivered.items():
        figures[f"entries of target {name}"] = count
    figures["until every target had all, once nothing failed any more"] = f"{report.caught_up_s:.1f} s"
    figures["mistakes"] = len(report.wrong)
    return figures


if __name__ == "__main__":
    sys.exit(main())
