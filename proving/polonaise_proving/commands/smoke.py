"""The `polonaise smoke` command: a whole cluster at work while its parts are killed, stopped, cut off and wiped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.output import Json
from polonaise.cli.running import say_now
from polonaise.errors import BadOption
from polonaise.host.stopsignals import stop_signals_call

if TYPE_CHECKING:
    from polonaise.admin.localcluster import Told


def smoke(
    transactions: Annotated[int, Option(min=100, help="Transactions to be acknowledged.")] = 50_000,
    seed: Annotated[int, Option(help="Seed of the faults: which, when, and of whom.")] = 1,
    directory: Annotated[
        Path, Option(help="Directory for everything that the run keeps; a finished run in it is replaced.")
    ] = Path("polonaise-smoke"),
    hosts: Annotated[
        str | None,
        Option(
            metavar="KIND",
            help="namespaces: each node on a host of its own, whose links are cut too (Linux, root); loopback. "
            "Default: namespaces if possible.",
            show_default=False,
        ),
    ] = None,
    mutation: Annotated[
        str,
        Option(
            metavar="NAME",
            help="A bug that all processes of the run have, to see that it is found: "
            "`python -m polonaise_proving.simulator --list-mutations` names them.",
            show_default=False,
        ),
    ] = "",
    faults: Annotated[
        str,
        Option(
            metavar="NAME,…",
            help="Kinds of faults that happen, such as kill,wipe. Default: all that the hosts can have.",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Run a cluster and its clients while processes are killed, stopped, cut off, wiped and moved; check everything.

    Three ZooKeeper servers, three storage nodes, three servers, two clients with SQL views, and an archiver. Afterwards
    what each client was told and was fed is compared with the log, the replicas, the archive and the views. The report
    is in the directory: report.json and report.txt.

    An interrupted run is resumed by the same command. Exit status 1 if a promise was broken, or the run did not come to
    its end; 130 if it was interrupted; with a mutation 2 if no process has loaded it, and 3 if it was not found.
    """
    from polonaise_proving.scenarios.arguments import Status
    from polonaise_proving.scenarios.smoke.run import LOOPBACK, NAMESPACES, SmokeOptions, SmokeRun

    if hosts not in (None, LOOPBACK, NAMESPACES):
        raise BadOption(f"invalid --hosts {hosts!r}: write {NAMESPACES} or {LOOPBACK}")

    def tell(told: Told) -> None:
        say_now(json.dumps({"event": told.event, **told.fields}) if as_json else told.text)

    run = SmokeRun(SmokeOptions(directory, transactions, seed, hosts or "", mutation, faults), tell)
    with stop_signals_call(run.stop_soon):
        report = run.run()
    if report is None:
        raise typer.Exit(ExitStatus.INTERRUPTED)
    say_now(json.dumps({"event": "report", **report.document()}) if as_json else report.text())
    if report.mutation and report.held:
        raise typer.Exit(Status.NOT_FOUND if report.mutation_loads else Status.UNTRIED)
    if not report.passed:
        raise typer.Exit(ExitStatus.FAILED)


def add_to(application: typer.Typer) -> None:
    """Add `smoke` to the command line."""
    application.command(epilog=EXIT_STATUS)(smoke)
