"""The `polonaise cluster` commands: run a whole cluster on this machine, look at a running one, make and delete one."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from polonaise.cli import inputs, looking, running
from polonaise.cli.addedoptions import with_settings, with_tls
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import Json, print_all, renderable, say, say_either, say_json
from polonaise.cli.running import Config, UntilStdinEnds, Verbose, say_now, stop_when_stdin_ends
from polonaise.errors import BadOption, WrongClusterKey
from polonaise.host.stopsignals import stop_signals_call
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.admin.cluster import ClusterObserver, ClusterStatus
    from polonaise.coordination import Coordinator
    from polonaise.host import Host

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


_TIMEOUT_S: Final = 10.0
"""The default of `--timeout`: storage nodes that were just started take seconds until they listen."""
_NO_STORAGE: Final = (
    "a new cluster needs storage nodes: give --storage NAME=HOST:PORT,NAME=HOST:PORT,…, POLONAISE_SERVER_STORAGE in "
    "the environment or, in the file that --config names, storage in [server]"
)


@cluster.command("create", epilog=EXIT_STATUS)
@with_tls
@with_settings(
    "server",
    ("coordinator", "storage", "partitions", "fragments"),
    variables={"coordinator": "POLONAISE_COORDINATOR"},
)
def cluster_create(
    options: dict[str, Any],
    config: running.Config = None,
    timeout: looking.Timeout = _TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make a new cluster at a coordinator that has none. Its storage nodes have to run, or start, with new directories.

    Settings that are not given here are those of a server: from the environment (POLONAISE_SERVER_…), then from the
    table `server` of the configuration file. Nothing is made while a storage node holds another cluster's data, or does
    not answer.
    """
    from polonaise.admin.configuration import configuration_of
    from polonaise.node.addresses import storage_nodes_of

    given = configuration_of("server", config, options)
    nodes = storage_nodes_of(inputs.listed(",".join(given["storage"])), "--storage")
    if not nodes:
        raise BadOption(_NO_STORAGE)

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.node.processes import create_cluster

        made = await create_cluster(host, opened, nodes, given["partitions"] or 1, given["fragments"], timeout)
        key, names = made.key.hex(), ", ".join(made.storage)
        fields = {"cluster": key, "partitions": made.partitions, "storage": list(made.storage)}
        line = f"cluster {key}: {counted(made.partitions, 'partition')}, on storage nodes {names}"
        say_either(fields, line, as_json=as_json)

    looking.with_coordinator(given.required("coordinator", "server"), do)


@cluster.command("delete", epilog=EXIT_STATUS)
@on_cluster(timeout_s=None)
async def cluster_delete(
    cluster: OpenCluster,
    confirm: Annotated[
        str | None, Option(metavar="KEY", help="The cluster's key, in place of the question.", show_default=False)
    ] = None,
) -> None:
    """Delete a cluster from its coordinator, for good. Its servers have to be stopped first.

    Shows what would be deleted, and asks for the cluster's key. The storage nodes' directories stay: the log is in
    them, and without the cluster nobody serves it. A new cluster of these nodes needs new directories.
    """
    description = await cluster.coordinator.describe()
    key = description.key.hex()
    topics = f", topics {', '.join(sorted(description.topics))}" if description.topics else ""
    if not cluster.as_json:
        nodes = ", ".join(description.storage)
        say(f"cluster {key}: {counted(description.total, 'partition')}{topics}, on storage nodes {nodes}")
    again = confirm
    if again is None:
        again = str(typer.prompt("Type the cluster's key to delete it", err=True))
    if again.strip().lower() != key:
        raise WrongClusterKey(f"{again!r} was given to confirm the cluster's key, {key}: nothing was deleted")
    await cluster.coordinator.delete(description.key)
    cluster.tell(
        {"cluster": key, "deleted": True},
        "the cluster was deleted. The directories of its storage nodes hold the log, perhaps its only copy; a new "
        "cluster of these nodes needs new directories",
    )
