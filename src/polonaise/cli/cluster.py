"""The `polonaise cluster` commands: run a whole cluster on this machine, and look at a running one."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from polonaise.cli import inputs
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import Json, print_all, renderable, say, say_json
from polonaise.cli.running import Config, UntilStdinEnds, Verbose, say_now, stop_when_stdin_ends
from polonaise.cli.settingoptions import with_settings
from polonaise.host.stopsignals import stop_signals_call

if TYPE_CHECKING:
    from polonaise.admin.cluster import ClusterObserver, ClusterStatus

cluster = typer.Typer(
    help="Run a whole cluster on this machine, and look at a running one.", no_args_is_help=True, epilog=EXIT_STATUS
)

_STOP_S: Final = 60.0
"""Seconds that a whole cluster gets to stop once standard input has ended: servers, storage nodes, then ZooKeeper."""
_STATUSES: Final = (0, ExitStatus.DEGRADED, ExitStatus.FAILED)
"""The exit status for each `Wellness`."""


@cluster.command("status", epilog=EXIT_STATUS)
@on_cluster()
async def cluster_status(
    cluster: OpenCluster,
    all_rows: Annotated[
        bool, Option("--all", help="Show every server, storage node and partition, and all that is wrong with it.")
    ] = False,
    watch: Annotated[bool, Option("--watch", "-w", help="Look again and again, until interrupted.")] = False,
    interval: Annotated[
        float, Option(parser=inputs.seconds_of, metavar="SECONDS", help="How often to look, with --watch.")
    ] = 2.0,
) -> None:
    """Show a cluster on one screen: coordinator, servers, storage nodes, partitions, and what is wrong with each.

    Every node is asked, up to 64 at the same time; one that does not answer is shown with the reason. Of many, those
    that are not well come first, and the rest is counted.

    What can't be read from the coordinator is asked of the servers, those that POLONAISE_LOG names among them.

    Exit status 1 unless all partitions are known to be ready, and if what is read from the coordinator is missing or
    damaged; 3 if only something else is wrong.
    """
    from polonaise.cli.clusterview import ROWS_MAX, screen_of

    if watch:
        await _watch(cluster.observer, interval, all_rows=all_rows, as_json=cluster.as_json)
    status = await cluster.observer.look()
    if cluster.as_json:
        say_json(status.document())
    else:
        print_all(screen_of(status, None if all_rows else ROWS_MAX))
    if status.wellness:
        raise typer.Exit(_STATUSES[status.wellness])


@cluster.command("safe-to-stop", epilog=EXIT_STATUS)
@on_cluster()
async def cluster_safe_to_stop(
    cluster: OpenCluster,
    name: Annotated[
        str | None, Argument(metavar="[NAME]", help="Name, address or server id of a node. Default: each node.")
    ] = None,
) -> None:
    """Say whether everything goes on if a node is stopped now, and if not, what stops.

    Exit status 0 if nothing stops; 1 if something does, or is not known to go on. Without NAME: of each node.
    """
    from polonaise.admin.safestop import safe_to_stop

    verdicts = safe_to_stop(await cluster.observer.look(), name)
    for verdict in verdicts:
        stops = "; ".join(verdict.stops) or "nothing stops without it"
        cluster.tell(verdict.document(), f"{verdict.kind} {verdict.node}: {stops}")
    if any(verdict.stops for verdict in verdicts):
        raise typer.Exit(ExitStatus.FAILED)


async def _watch(observer: ClusterObserver, interval_s: float, *, all_rows: bool, as_json: bool) -> None:
    """Show the cluster's status again and again: on a terminal in place; elsewhere, or as JSON, one below the other."""
    from rich.console import Console, Group
    from rich.live import Live

    from polonaise.cli.clusterview import ROWS_MAX, fitting, screen_of

    console = Console(markup=False, highlight=False, emoji=False)
    if as_json or not console.is_terminal:
        while True:
            status = await observer.look()
            if as_json:
                say_json(status.document(), now=True)
            else:
                print_all([_time_line(status), *screen_of(status, None if all_rows else ROWS_MAX)])
                say("", now=True)
            await asyncio.sleep(interval_s)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            status = await observer.look()
            parts = [
                _time_line(status),
                *(screen_of(status, None) if all_rows else fitting(status, console.height - 1, console.width)),
            ]
            live.update(Group(*map(renderable, parts)), refresh=True)
            await asyncio.sleep(interval_s)


def _time_line(status: ClusterStatus) -> str:
    """Return a line that says when a status was taken, and how long that took."""
    return f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}, asked in {status.took_s:.2f} s"


@cluster.command("start")
@with_settings("cluster")
def cluster_start(
    options: dict[str, Any],
    zookeeper: Annotated[
        bool | None,
        Option(
            "--zookeeper/--file-coordinator",
            help="Coordinator of a new cluster: a ZooKeeper server, or a directory. Default: ZooKeeper.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    verbose: Verbose = False,
    as_json: Json = False,
    until_stdin_ends: UntilStdinEnds = False,
) -> None:
    """Run a whole cluster on this machine until it is interrupted: coordinator, storage nodes and servers.

    For development, tests and demos. Started again on the same directory, it is the same cluster at the same ports.
    It prints where everybody listens, and `ready` once every partition takes appends. Each node is a process with a log
    beside its files; one that ends by itself is started again, after a pause that grows. However this command ends, all
    of them end.
    """
    from polonaise.admin.configuration import configuration_of
    from polonaise.admin.localcluster import LocalClusterRun, Told
    from polonaise.admin.localplan import FILE, ZOOKEEPER, Wanted

    if zookeeper is not None:
        options["coordinator"] = ZOOKEEPER if zookeeper else FILE
    given = configuration_of("cluster", config, options)
    for table in ("server", "storage"):
        configuration_of(table, config, {})  # so that a mistake is told once, and not by each node
    wanted = Wanted(given["coordinator"], given["storage"], given["servers"], given["partitions"], given["port"])

    def tell(told: Told) -> None:
        say_now(json.dumps({"event": told.event, **told.fields}) if as_json else told.text)

    run = LocalClusterRun(
        Path(given.required("directory", "cluster")), wanted, tell,
        restart=given["restart"], config=None if config is None else os.path.abspath(config), verbose=verbose,
    )  # fmt: skip
    if until_stdin_ends:
        stop_when_stdin_ends(_STOP_S)
    with stop_signals_call(run.stop_soon), run:
        run.start()
        run.wait_ready()
        run.follow()
