"""`make kill-test`: kill, compare, and print what was found as a table."""

from __future__ import annotations

import asyncio
import statistics
import sys
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from polonaise.admin.localplan import LocalPlan, Wanted
from polonaise.node.local import LocalCluster
from polonaise_proving.mutations.children import put_into_children
from polonaise_proving.scenarios import running
from polonaise_proving.scenarios.kill.campaign import ClusterCampaign, EmbeddedCampaign, KillCampaign, KillReport
from polonaise_proving.stages.waiting import GaveUp


def main() -> int:
    parser = running.options("make kill-test", __doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="kill the nodes of a cluster with ZooKeeper, too, in place of an embedded log",
    )
    options = parser.parse_args()
    console = Console()
    with (
        put_into_children(options.mutation),
        running.directory(options.keep) as directory,
        _cluster_in(directory) if options.cluster else nullcontext() as cluster,
    ):
        report = _campaign(directory, cluster, options.kills, options.seed, console)
    if report is None:
        return 1
    console.print(table_of(report))
    return running.print_wrong(console, report.wrong)


def _cluster_in(directory: Path) -> LocalCluster:
    plan = LocalPlan.new(Wanted(servers=2))
    home = directory / "cluster"
    home.mkdir()
    return LocalCluster(home, addresses=plan.addresses)


def _begun(directory: Path, cluster: LocalCluster | None, seed: int) -> KillCampaign:
    return EmbeddedCampaign(directory, seed) if cluster is None else ClusterCampaign(directory, seed, cluster)


def _campaign(
    directory: Path, cluster: LocalCluster | None, kills: int, seed: int, console: Console
) -> KillReport | None:
    with _begun(directory, cluster, seed) as campaign:
        try:
            with Progress(console=console) as progress:
                bar = progress.add_task("kill -9", total=kills)
                campaign.run(kills, lambda done: progress.update(bar, completed=done))
            asyncio.run(campaign.compare())
        except GaveUp as error:
            console.print(f"[red]gave up after {campaign.report.kills} kills:[/] {error}", soft_wrap=True)
            return None
        return campaign.report


def table_of(report: KillReport) -> Table:
    told = report.fates
    took_s = sorted(report.take_overs_s)
    figures: dict[str, int | str] = {
        "kills": report.kills,
        "of them, of what served the log": report.served_kills,
        "of them, of storage nodes": report.storage_kills,
        "with appends of the killed process unacknowledged": report.unacknowledged,
        "operations asked for": told.asked,
        "acknowledged": told.acknowledged,
        "reported failed, or abandoned": told.refused,
        "never answered: killed first": told.unknown,
        "transactions in the log": told.transactions,
    }
    if took_s:
        figures["take-over, median"] = f"{1e3 * statistics.median(took_s):.0f} ms"
        figures["take-over, 95 %"] = f"{1e3 * took_s[len(took_s) * 95 // 100]:.0f} ms"
        figures[f"take-over, longest (bound {report.take_over_s_max:g} s)"] = f"{1e3 * took_s[-1]:.0f} ms"
    figures["wrong"] = len(report.wrong)
    return running.table("Kills of processes that share a log", figures)


if __name__ == "__main__":
    sys.exit(main())
