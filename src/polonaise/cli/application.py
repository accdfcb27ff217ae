"""The `polonaise` command: puts its groups together, and has the commands that run nodes and the demo."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from polonaise.cli import inputs, pipeline_archive, pipeline_audit, pipeline_report, pipeline_views
from polonaise.cli.archive import archive
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.log import log
from polonaise.cli.pipeline import pipeline
from polonaise.cli.segment import segment
from polonaise.cli.tls import tls
from polonaise.cli.tlsoptions import with_tls
from polonaise.errors import BadOption

application = typer.Typer(
    name="polonaise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
storage = typer.Typer(help="Run storage nodes, which keep the log's files.", no_args_is_help=True)
server = typer.Typer(
    help="Run servers, which own partitions, check locks, order, commit and feed.", no_args_is_help=True
)
zookeeper = typer.Typer(help="Run ZooKeeper servers, for a cluster's coordinator.", no_args_is_help=True)
demo = typer.Typer(help="Run example applications.", no_args_is_help=True)
application.add_typer(storage, name="storage")
application.add_typer(server, name="server")
application.add_typer(zookeeper, name="zookeeper")
application.add_typer(log, name="log")
application.add_typer(segment, name="segment")
application.add_typer(archive, name="archive")
application.add_typer(pipeline, name="pipeline")
application.add_typer(tls, name="tls")
application.add_typer(demo, name="demo")

for job in (
    pipeline_archive.archive,
    pipeline_views.views,
    pipeline_report.report,
    pipeline_audit.audit,
):
    pipeline.command(epilog=EXIT_STATUS)(with_tls(job))
_ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}
pipeline.command(hidden=True, context_settings=_ANY_ARGUMENTS)(pipeline_archive.restore)


def _say(line: str) -> None:
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        sys.stdout = None  # else the interpreter tries to write the rest as it exits, and complains
        raise BadOption(
            f"standard output can't be written: {error.strerror}; redirect it to a file or a pipe that is open"
        ) from error


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        _say(f"polonaise {version('polonaise')}")
        raise typer.Exit


@application.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_say_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """A distributed write-ahead log: optimistic locks, quorum commits, feeds in order without gaps."""


Verbose = Annotated[bool, Option("--verbose", "-v", help="Log to standard error what the node does.")]


def _log_to_stderr(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


Listen = Annotated[
    str, Option(help="Address to listen at: host:port or unix:/path; with port 0 the system chooses one.")
]
_LOOK_S = 0.5
"""Seconds between two looks at whether the ZooKeeper servers run."""
UntilStdinEnds = Annotated[
    bool, Option("--until-stdin-ends", hidden=True, help="Stop as by SIGTERM when standard input ends.")
]
"""An option for a parent that starts a node: by a pipe, the node learns that its parent ended, even by kill -9."""


def _stop_when_stdin_ends() -> None:
    def wait() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:  # standard input was closed, or its terminal is gone: that is an end, too
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def _say_ready(address: str) -> None:
    """Print one line that tells the parent process where the node listens."""
    _say(f"listening {address}")


@storage.command("run")
@with_tls
def storage_run(
    directory: Annotated[str, Option(help="Directory for the log's files; made if missing.")],
    listen: Listen = "127.0.0.1:0",
    segment_bytes: Annotated[int, Option(min=4096, max=2**40, help="Size of a segment file, in bytes.")] = 256 * 2**20,
    scrub_bytes: Annotated[
        int, Option(min=0, max=2**40, help="Bytes per second to read in search of damage; 0: none.")
    ] = 2 * 2**20,
    verbose: Verbose = False,
    until_stdin_ends: UntilStdinEnds = False,
) -> None:
    """Run one storage node until it is interrupted."""
    from polonaise.host import certificates
    from polonaise.host.real import run
    from polonaise.host.tls import tls_identity
    from polonaise.node.processes import run_storage
    from polonaise.storage.settings import StorageSettings

    if until_stdin_ends:
        _stop_when_stdin_ends()
    _log_to_stderr(verbose)
    if not directory:  # an empty path would mean the working directory
        raise BadOption("--directory is empty: give a directory for the log's files")
    settings = StorageSettings(
        directory=os.path.abspath(directory),
        listen=listen,
        segment_bytes_max=segment_bytes,
        scrub_bytes_per_s=scrub_bytes,
    )
    run(
        lambda host: run_storage(host, settings, _say_ready),
        syncs_in_loop=True,
        tls=tls_identity(certificates.STORAGE),
    )


@server.command("run")
@with_tls
def server_run(
    coordinator: Annotated[
        str,
        Option(
            help="Address of the coordinator: zookeeper://HOST:PORT,…/ROOT, or file:PATH, a directory of this machine."
        ),
    ],
    storage: Annotated[str, Option(help="Addresses of the storage nodes of a new cluster: A,B,C.")] = "",
    partitions: Annotated[
        int | None, Option(min=1, max=4096, help="Number of partitions of a new cluster. Default: 1.")
    ] = None,
    listen: Listen = "127.0.0.1:0",
    fragments: Annotated[
        str | None, Option(help="Fragment store that the log is archived to: a directory, or s3://…, gs://…, az://….")
    ] = None,
    scrub_bytes: Annotated[
        int,
        Option(min=0, max=2**40, help="Bytes per second of fragments to read in search of damage; 0: none."),
    ] = 2 * 2**20,
    evidence: Annotated[bool, Option(help="Also store what each append was judged by: its mark and locks.")] = False,
    verbose: Verbose = False,
    until_stdin_ends: UntilStdinEnds = False,
) -> None:
    """Run one server until it is interrupted. The first server makes the cluster."""
    from polonaise.host import certificates
    from polonaise.host.real import run
    from polonaise.host.tls import tls_identity
    from polonaise.node.processes import run_server
    from polonaise.server.settings import ServerSettings

    if until_stdin_ends:
        _stop_when_stdin_ends()
    _log_to_stderr(verbose)
    nodes = inputs.nodes_of(storage, "--storage")
    settings = ServerSettings(listen=listen, evidence=evidence, scrub_bytes_per_s=scrub_bytes)
    identity = tls_identity(certificates.SERVER)
    run(
        lambda host: run_server(host, coordinator, nodes, partitions, settings, _say_ready, fragments, identity),
        tls=identity,
    )


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

    Needs PySpark, whose jars it runs, and Java. With TLS files it takes TLS only. In production, use an ensemble with a
    machine for each server.
    """
    from polonaise.admin.zookeeper import ZooKeeperEnsemble
    from polonaise.host.tls import files_in

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    if until_stdin_ends:
        _stop_when_stdin_ends()
    tls = files_in(os.environ)
    with ZooKeeperEnsemble(directory.absolute(), servers=ensemble, listen=listen, tls=tls) as servers:
        servers.start()
        _say_ready(servers.hosts)
        while not stopped.wait(_LOOK_S):
            servers.check()


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

    from polonaise.demo.payments import make_payments, read_payments
    from polonaise.demo.run import run_bank

    book = read_payments(payments) if payments else make_payments(generate, seed)
    if not book.payments:
        reason = f": {book.bad_rows[0]}" if book.bad_rows else ""
        raise BadOption(f"{payments} has no valid payment{reason}; correct the file")
    _end_as_by_control_c()
    if not asyncio.run(run_bank(book, tellers, Console(), output)):
        raise typer.Exit(ExitStatus.FAILED)
