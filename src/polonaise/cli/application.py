"""The `polonaise` command: puts its groups together, and has the command that runs the demo."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from polonaise.cli import creation as creation
from polonaise.cli import deletion as deletion
from polonaise.cli import headreset as headreset
from polonaise.cli import pipeline_archive, pipeline_audit, pipeline_report, pipeline_views
from polonaise.cli import recovery as recovery
from polonaise.cli import requirement as requirement
from polonaise.cli.archive import archive
from polonaise.cli.bench import bench
from polonaise.cli.cluster import cluster
from polonaise.cli.completion import CompletingGroup
from polonaise.cli.config import config
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.group import group
from polonaise.cli.log import log
from polonaise.cli.partition import partition
from polonaise.cli.pipeline import pipeline
from polonaise.cli.player import player
from polonaise.cli.running import say_now
from polonaise.cli.segment import segment
from polonaise.cli.server import server
from polonaise.cli.smoke import smoke
from polonaise.cli.storage import storage
from polonaise.cli.tls import tls
from polonaise.cli.tlsoptions import with_tls
from polonaise.cli.topic import topic
from polonaise.cli.zookeeper import zookeeper
from polonaise.errors import BadOption

if TYPE_CHECKING:
    from polonaise.demo.payments import Book

application = typer.Typer(
    name="polonaise",
    cls=CompletingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
demo = typer.Typer(help="Run example applications.", no_args_is_help=True)
application.add_typer(cluster, name="cluster")
application.add_typer(server, name="server")
application.add_typer(storage, name="storage")
application.add_typer(player, name="player")
application.add_typer(partition, name="partition")
application.add_typer(topic, name="topic")
application.add_typer(zookeeper, name="zookeeper")
application.add_typer(config, name="config")
application.add_typer(log, name="log")
application.add_typer(group, name="group")
application.add_typer(segment, name="segment")
application.add_typer(archive, name="archive")
application.add_typer(pipeline, name="pipeline")
application.add_typer(tls, name="tls")
application.add_typer(bench, name="bench")
application.add_typer(demo, name="demo")
application.command(epilog=EXIT_STATUS)(smoke)

for job in (
    pipeline_archive.archive,
    pipeline_views.views,
    pipeline_report.report,
    pipeline_audit.audit,
):
    pipeline.command(epilog=EXIT_STATUS)(with_tls(job))
_ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}
pipeline.command(hidden=True, context_settings=_ANY_ARGUMENTS)(pipeline_archive.restore)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say_now(f"polonaise {version('polonaise')}")
        raise typer.Exit


@application.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_say_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """A distributed write-ahead log: optimistic locks, quorum commits, feeds in order without gaps."""


def _end_as_by_control_c() -> None:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does: with all processes that it has started."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A script's background job ignores SIGINT: the one that is raised below would do nothing.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signals = [signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signals.remove(signal.SIGHUP)  # started by nohup, to go on when its terminal is gone

    def end(*_: object) -> None:
        # Both the shell and the system may send SIGHUP: a second one would break off the clean end.
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        signal.raise_signal(signal.SIGINT)

    for number in signals:
        signal.signal(number, end)


@demo.command("bank")
def demo_bank(
    payments: Annotated[
        Path | None, Option(help="CSV file of payments: trans_id, account_id, date, direction, amount, balance, ….")
    ] = None,
    generate: Annotated[int, Option(min=1, help="Number of payments to make up if no file is given.")] = 20_000,
    seed: Annotated[int, Option(help="Seed of the made-up payments.")] = 1,
    tellers: Annotated[int, Option(min=1, max=16, help="Number of processes that make the payments.")] = 3,
    output: Annotated[
        Path, Option(help="Directory for the archive, the tables and report.html; replaced if an earlier run made it.")
    ] = Path("bank-demo"),
) -> None:
    """Run a bank on the log: real processes, two of them killed, every balance checked, and a report by Spark."""
    import asyncio

    from rich.console import Console

    from polonaise.demo.run import run_bank

    book = _book(payments, generate, seed)
    _end_as_by_control_c()
    if not asyncio.run(run_bank(book, tellers, Console(), output)):
        raise typer.Exit(ExitStatus.FAILED)


@demo.command("shards")
def demo_shards(
    payments: Annotated[
        Path | None, Option(help="CSV file of payments: trans_id, account_id, date, direction, amount, balance, ….")
    ] = None,
    generate: Annotated[int, Option(min=1, help="Number of payments to make up if no file is given.")] = 5_000,
    seed: Annotated[int, Option(help="Seed of the made-up payments.")] = 1,
    tellers: Annotated[int, Option(min=1, max=16, help="Number of processes that make the payments.")] = 3,
    shard: Annotated[
        list[str] | None,
        Option(help="SQLAlchemy URL of an empty database for a shard; four times. Default: SQLite."),
    ] = None,
) -> None:
    """Run the bank with its accounts on shards: the player and a shard are killed, and every balance is checked."""
    import asyncio

    from rich.console import Console

    from polonaise.demo.shardsrun import run_shards

    book = _book(payments, generate, seed)
    _end_as_by_control_c()
    if not asyncio.run(run_shards(book, tellers, Console(), shard or ())):
        raise typer.Exit(ExitStatus.FAILED)


def _book(payments: Path | None, generate: int, seed: int) -> Book:
    """Return the payments of the file, or made-up ones. Raises `BadOption` for a file without any."""
    from polonaise.demo.payments import make_payments, read_payments

    book = read_payments(payments) if payments else make_payments(generate, seed)
    if not book.payments:
        reason = f": {book.bad_rows[0]}" if book.bad_rows else ""
        raise BadOption(f"{payments} has no valid payment{reason}; correct the file")
    return book
