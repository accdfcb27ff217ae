"""Options, logging and stopping, shared by the commands that run nodes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Option

from polonaise.cli.exitstatus import ExitStatus
from polonaise.errors import BadOption, CertificateUnusable, ExtraMissing, PolonaiseError
from polonaise.host.stopsignals import stop_when_stdin_ends as stop_when_stdin_ends  # for the commands
from polonaise.node.local import HTTP_OFF
from polonaise.node.logformat import LogFormat, log_to

if TYPE_CHECKING:
    from polonaise.node.processes import Http

Verbose = Annotated[bool, Option("--verbose", "-v", help="Log to standard error what the node does.")]
Config = Annotated[
    str | None, Option("--config", metavar="FILE", help="File of settings (TOML). Default: POLONAISE_CONFIG, or none.")
]
UntilStdinEnds = Annotated[
    bool, Option("--until-stdin-ends", hidden=True, help="Stop as by SIGTERM when standard input ends.")
]
"""Hidden, for programs that start nodes: by a pipe, a node learns that its parent ended, even by kill -9."""


class UnwritableOutput(BadOption):
    """Standard output can't be written: unlike with other options, starting the node again may help."""


def say_now(line: str) -> None:
    """Print a line at once. Raises `UnwritableOutput`."""
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        sys.stdout = None  # else the interpreter tries to flush it at exit, and adds an error of its own
        raise UnwritableOutput(
            f"standard output can't be written: {error.strerror}; redirect it to a file or a pipe that is open"
        ) from error


def say_ready(address: str) -> None:
    """Print one line that tells the parent process where the node listens."""
    say_now(f"listening {address}")


def start_logging(log_format: str, *, verbose: bool) -> None:
    """Log to standard error in this format: warnings, and with `verbose` what the node does."""
    log_to(None, LogFormat(log_format), verbose=verbose)


_OF_SETTINGS: Final = (BadOption, CertificateUnusable, ExtraMissing)
"""The faults of settings: starting the node again would not help."""


@contextmanager
def reading_settings() -> Iterator[None]:
    """End the command with the exit status for wrong settings if the block finds some: a retry would not help."""
    try:
        yield
    except _OF_SETTINGS as error:
        print(f"polonaise: {error}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(ExitStatus.SETTINGS) from None


@contextmanager
def telling_its_end(log_format: str) -> Iterator[None]:
    """Tell the fault that ends the node, in a line of text or, with a log in JSON, in that log; raise `typer.Exit`."""
    try:
        yield
    except PolonaiseError as error:
        if log_format == LogFormat.JSON:
            logging.getLogger("polonaise").critical("the node ends: %s", error)
        else:
            print(f"polonaise: {error}", file=sys.stderr)  # noqa: T201
        wrong = isinstance(error, _OF_SETTINGS) and not isinstance(error, UnwritableOutput)
        raise typer.Exit(ExitStatus.SETTINGS if wrong else ExitStatus.FAILED) from None


def http_at(address: str | None) -> Http | None:
    """Return where to serve HTTP: None without an address or with `off`, on loopback if the address is a port alone.

    Raises `BadOption` for an invalid address, and `ExtraMissing` if a library for HTTP is missing.
    """
    from polonaise.node.processes import Http, check_http

    if address is None or address == HTTP_OFF:
        return None
    listen = f"127.0.0.1:{address}" if address.isascii() and address.isdigit() else address
    http = Http(listen, lambda at: say_now(f"http {at}"))
    check_http(http)
    return http
