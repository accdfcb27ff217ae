"""The `polonaise demo` commands: a bank on the log, and its accounts on shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from polonaise.cli.exitstatus import ExitStatus
from polonaise.errors import BadOption

if TYPE_CHECKING:
    from polonaise_proving.demo.payments import Book

demo = typer.Typer(help="Run example applications.", no_args_is_help=True)


def add_to(application: typer.Typer) -> None:
    """Add the group `demo` to the command line."""
    application.add_typer(demo, name="demo")


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

    from polonaise_proving.demo.run import run_bank
    from polonaise_proving.stages.processes import end_as_by_control_c

    book = _book(payments, generate, seed)
    end_as_by_control_c()
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

    from polonaise_proving.demo.shardsrun import run_shards
    from polonaise_proving.stages.processes import end_as_by_control_c

    book = _book(payments, generate, seed)
    end_as_by_control_c()
    if not asyncio.run(run_shards(book, tellers, Console(), shard or ())):
        raise typer.Exit(ExitStatus.FAILED)


def _book(payments: Path | None, generate: int, seed: int) -> Book:
    """Return the payments of the file, or made-up ones. Raises `BadOption` for a file without any."""
    from polonaise_proving.demo.payments import make_payments, read_payments

    book = read_payments(payments) if payments else make_payments(generate, seed)
    if not book.payments:
        reason = f": {book.bad_rows[0]}" if book.bad_rows else ""
        raise BadOption(f"{payments} has no valid payment{reason}; correct the file")
    return book
