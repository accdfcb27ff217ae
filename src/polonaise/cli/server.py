"""The `polonaise server` commands: run a server, and list those of a cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Argument

from polonaise.cli import inputs, opencluster, running
from polonaise.cli.addedoptions import with_settings, with_tls
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import say

server = typer.Typer(
    help="Run servers, which own partitions, check locks, order, commit and feed; list and remove them.",
    no_args_is_help=True,
)


@server.command("run")
@with_tls
@with_settings("server")
def server_run(
    options: dict[str, Any],
    config: running.Config = None,
    verbose: running.Verbose = False,
    until_stdin_ends: running.UntilStdinEnds = False,
) -> None:
    """Run one server of a cluster, which `polonaise cluster create` makes, until it is interrupted.

    Settings that are not given here come from the environment (POLONAISE_SERVER_…), then from the table `server` of
    the configuration file; `polonaise config show server` lists them.
    """
    from polonaise.admin.configuration import configuration_of
    from polonaise.host.real import run
    from polonaise.host.tls import SERVER, tls_identity
    from polonaise.node.addresses import storage_nodes_of
    from polonaise.node.processes import check_server_address, run_server

    if until_stdin_ends:
        running.stop_when_stdin_ends()
    with running.reading_settings():
        given = configuration_of("server", config, options)
        running.start_logging(given["log_format"], verbose=verbose)
        settings, served = given.server_settings(), running.http_at(given["http"])
        check_server_address(settings.listen)
        address = given.required("coordinator", "server")
        nodes = storage_nodes_of(inputs.listed(",".join(given["storage"])), "--storage")
        partitions, fragments = given["partitions"], given["fragments"]
        identity = tls_identity(SERVER)
    with running.telling_its_end(given["log_format"]):
        run(
            lambda host: run_server(
                host, address, nodes, partitions, settings, running.say_ready, fragments, served, identity
            ),
            tls=identity,
        )


@server.command("list", epilog=EXIT_STATUS)
@on_cluster()
async def server_list(cluster: OpenCluster) -> None:
    """List the servers of a cluster: where each listens, how many partitions it owns, and whether it answers."""
    opencluster.print_rows((await cluster.look()).servers, opencluster.server_rows, as_json=cluster.as_json)


@server.command("remove", epilog=EXIT_STATUS)
@on_cluster(json=False)
async def server_remove(
    cluster: OpenCluster,
    server: Annotated[
        str,
        Argument(metavar="SERVER", help="Name, number or address of the server, as `polonaise server list` shows it."),
    ],
) -> None:
    """Tell the cluster that a server is gone for good: nobody misses it any more.

    Refused while it is registered: stop it first. A server of that name that is started later is missed again.
    """
    from polonaise.admin.servers import remove_server

    name, removed = await remove_server(cluster.coordinator, server, cluster.timeout_s)
    say(f"server {name}, last at {removed.address}, is not missed any more")
