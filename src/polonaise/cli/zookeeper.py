"""The `polonaise zookeeper` command: run ZooKeeper servers on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from polonaise.cli.addedoptions import with_tls
from polonaise.cli.running import UntilStdinEnds, say_ready, stop_when_stdin_ends
from polonaise.host.stopsignals import StopFlag, stop_signals_call

zookeeper = typer.Typer(help="Run ZooKeeper servers, for a cluster's coordinator.", no_args_is_help=True)

_STOP_S = 12.0
"""Seconds that each ZooKeeper server gets to stop once standard input has ended: they stop one after the other."""
_LOOK_S = 0.5


@zookeeper.command("run")
@with_tls
def zookeeper_run(
    directory: Annotated[Path, Option(help="Directory for the servers' files; made if missing.")],
    listen: Annotated[str, Option(help="Address of the first server, host:port; others have the ports after it.")] = (
        "127.0.0.1:2181"
    ),
    ensemble: Annotated[int, Option(min=1, max=7, help="Number of servers: 1, 3, 5 or 7.")] = 1,
    until_stdin_ends: UntilStdinEnds = False,
) -> None:
    """Run ZooKeeper on this machine until it is interrupted: one server, or an ensemble. For development and tests.

    Needs PySpark, whose jars it runs, and Java. With TLS files it takes TLS only. A server of an ensemble that ends by
    itself is started again, after a pause that grows; one that is alone ends the command. In production, use an
    ensemble with a machine for each server.
    """
    from polonaise.admin.zookeeper import ZooKeeperEnsemble
    from polonaise.host.tls import files_in

    stopped = StopFlag()
    tls = files_in(os.environ)
    run = ZooKeeperEnsemble(directory.absolute(), servers=ensemble, listen=listen, tls=tls)
    with stop_signals_call(stopped.set), run as servers:
        if until_stdin_ends:
            stop_when_stdin_ends(_STOP_S * ensemble)
        servers.start()
        say_ready(servers.hosts)
        while not stopped.wait(_LOOK_S):
            for line in servers.tend():
                typer.echo(line, err=True)
