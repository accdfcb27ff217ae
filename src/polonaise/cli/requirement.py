"""The `polonaise cluster require` command: how many copies, in how many zones, a commit needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from polonaise.cli import looking
from polonaise.cli.cluster import cluster
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.output import say, say_json
from polonaise.cli.tlsoptions import with_tls

if TYPE_CHECKING:
    from polonaise.admin.requiring import RequirementChange
    from polonaise.coordination import Coordinator
    from polonaise.host import Host


@cluster.command("require", epilog=EXIT_STATUS)
@with_tls
def cluster_require(
    copies: Annotated[int, Option(min=0, help="Least number of storage nodes that have synced a commit.")],
    zones: Annotated[int, Option(min=0, help="Least number of zones that these nodes are in.")] = 0,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.TimeoutOfAll = 30.0,
    as_json: looking.Json = False,
) -> None:
    """Require of every commit, beside a quorum, copies on so many storage nodes and in so many zones.

    While fewer can be had, appends are refused at once and nothing is written. Returns when every partition acts by it;
    exit status 1 if some do not in time, which it names: they will as soon as they can. `--copies 0` takes it back.
    """
    from polonaise.admin.requiring import require

    async def do(host: Host, opened: Coordinator) -> None:
        change = await require(host, opened, copies, zones, timeout)
        if as_json:
            say_json(change.document())
        show_change(change, as_json=as_json)

    looking.with_coordinator(coordinator, do)


def show_change(change: RequirementChange, *, as_json: bool) -> None:
    """Print how the partitions follow a requirement, unless as JSON. Raises `typer.Exit` if some do not."""
    if not as_json:
        needs = f"{change.copies} copies in {change.zones} zones" if change.copies else "a quorum, and nothing else"
        say(f"commits need {needs}")
        for partition, why in change.waiting.items():
            say(f"partition {partition} does not act by it yet: {why}")
    if change.waiting:
        raise typer.Exit(ExitStatus.FAILED)
