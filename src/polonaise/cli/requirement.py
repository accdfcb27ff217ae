"""The commands `cluster require` and `topic require`: how many copies, in how many zones, a commit needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from polonaise.cli import opencluster
from polonaise.cli.cluster import cluster
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import say
from polonaise.cli.topic import topic

if TYPE_CHECKING:
    from polonaise.admin.requiring import RequirementChange

_Copies = Annotated[int, Option(min=0, help="Least number of storage nodes that have synced a commit.")]
_Zones = Annotated[int, Option(min=0, help="Least number of zones that these nodes are in.")]
_on_cluster = on_cluster(timeout_s=30.0, timeout=opencluster.TimeoutOfAll)


@cluster.command("require", epilog=EXIT_STATUS)
@_on_cluster
async def cluster_require(cluster: OpenCluster, copies: _Copies, zones: _Zones = 0) -> None:
    """Require of every commit, beside a quorum, copies on so many storage nodes and in so many zones.

    While fewer can be had, appends are refused at once and nothing is written. Returns when every partition acts by it;
    exit status 1 if some do not in time, which it names: they will as soon as they can. Fewer copies than zones
    stand for as many as zones; `--copies 0` alone takes it back.
    """
    await _require(cluster, None, copies, zones)


@topic.command("require", epilog=EXIT_STATUS)
@_on_cluster
async def topic_require(
    cluster: OpenCluster,
    name: Annotated[str, Argument(metavar="NAME", help="Name of the topic.")],
    copies: _Copies,
    zones: _Zones = 0,
) -> None:
    """Require of every commit to a topic copies on so many storage nodes and in so many zones.

    Where the whole cluster requires more, that holds. All else is as with `polonaise cluster require`, but for the
    partitions of this topic only, and those that it gets later. `--copies 0` alone takes it back.
    """
    await _require(cluster, name, copies, zones)


async def _require(cluster: OpenCluster, name: str | None, copies: int, zones: int) -> None:
    from polonaise.admin.requiring import require
    from polonaise.wire.copies import needed_text

    change = await require(cluster.host, cluster.coordinator, copies, zones, cluster.timeout_s, name)
    nothing = "what the whole cluster requires, and nothing else" if change.topic else "a quorum, and nothing else"
    to = f" to topic {change.topic}" if change.topic else ""
    needed = needed_text(change.copies, change.zones) or nothing
    cluster.tell(change.document(), f"commits{to} need {needed}")
    show_waiting(change, as_json=cluster.as_json)


def show_waiting(change: RequirementChange, *, as_json: bool) -> None:
    """Print which partitions do not follow a requirement yet, unless as JSON. Raises `typer.Exit` if some do not."""
    if not as_json:
        for partition, why in change.waiting.items():
            say(f"partition {partition} does not act by it yet: {why}")
    if change.waiting:
        raise typer.Exit(ExitStatus.FAILED)
