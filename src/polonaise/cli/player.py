"""The `polonaise player` command: runs a process of a player, which delivers the log's transactions to targets."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from polonaise.cli import running
from polonaise.cli.addedoptions import with_settings, with_tls
from polonaise.errors import BadOption
from polonaise.redaction import redacted

if TYPE_CHECKING:
    from polonaise.node.playerplan import LoadedPlan

player = typer.Typer(
    help="Run players, which deliver the log's transactions to shards and other targets.", no_args_is_help=True
)


@player.command("start")
@with_tls
@with_settings("player")
def player_start(
    options: dict[str, Any],
    config: running.Config = None,
    check: Annotated[
        bool, Option("--check", help="Only see whether the settings and the code that they name are right.")
    ] = False,
    verbose: running.Verbose = False,
    until_stdin_ends: running.UntilStdinEnds = False,
) -> None:
    """Run one process of a player until it is interrupted. Of those with the same name one delivers, others stand by.

    Settings that are not given here come from the environment (POLONAISE_PLAYER_…), then from the table `player` of the
    configuration file, which also names the targets, in tables `targets.NAME`. `polonaise config show player` lists
    all. On SIGHUP the file is read again, and targets come and go. SIGTERM hands over to a process that stands by.
    """
    from polonaise.admin.configuration import CONFIG_VARIABLE, configuration_of
    from polonaise.host.real import run
    from polonaise.host.tls import CLIENT, tls_identity
    from polonaise.node.playerplan import loaded
    from polonaise.node.playerprocess import run_player

    if until_stdin_ends:
        running.stop_when_stdin_ends()
    file = config or os.environ.get(CONFIG_VARIABLE) or None
    with running.reading_settings():
        given = configuration_of("player", file, options)
        running.start_logging(given["log_format"], verbose=verbose)
        served = running.http_at(given["http"])
        identity = tls_identity(CLIENT)
        files = None if identity is None else identity.files
        plan = loaded(given.player_plan(), files)

    def read_again() -> LoadedPlan:
        return loaded(configuration_of("player", file, options).player_plan(), files)

    if check:
        running.say_now(f"player {plan.plan.name}: the settings are right; targets {', '.join(plan.plan.targets)}")
        return
    with running.telling_its_end(given["log_format"]):
        run(
            lambda host: run_player(host, plan, read_again, _tell, served, identity),
            tls=identity,
        )


def _tell(state: str) -> None:
    """Print one line about the process. It goes on if nobody reads that."""
    with suppress(BadOption):
        running.say_now(redacted(state))
