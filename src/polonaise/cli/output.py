"""How commands speak: tables for people, one JSON object per line for machines, and how they end.

Exit status: 0 done · 1 a fault, told in one line on standard error · 2 a command line that does not parse · 130
interrupted · 141 whoever read the output went away, as when it is piped into `head`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import shutil
import stat
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import typer

from polonaise.errors import DiskFailed

if TYPE_CHECKING:
    from polonaise.terms import Transaction

INTERRUPTED: Final = 130
READER_GONE: Final = 141
_NARROWEST: Final = 80


@contextmanager
def tidy() -> Iterator[None]:
    """Around a command that prints: what its output meets, and Ctrl-C, end it without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(READER_GONE) from None
    except OSError as error:
        _discard_output()
        raise DiskFailed(f"standard output can't be written: {error.strerror or error}") from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def judge(work: Coroutine[Any, Any, bool]) -> None:
    """Do the work of a command that looks whether all is well: exit status 1 if it is not."""
    with tidy():
        well = asyncio.run(work)
    if not well:
        raise typer.Exit(1)


async def while_read(work: Coroutine[Any, Any, None]) -> None:
    """Do the work, as long as somebody reads the output: `… --follow | head` ends when `head` does.

    Raises `BrokenPipeError` when the reader goes away, also while nothing is written.
    """
    task = asyncio.ensure_future(work)
    gone = False

    def end() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    loop, output = asyncio.get_running_loop(), sys.stdout.fileno()
    watched = stat.S_ISFIFO(os.fstat(output).st_mode)
    if watched:
        # A pipe that is written to never has anything to read, but it is told of its reader's end in the same way.
        loop.add_reader(output, end)
    try:
        await task
    except asyncio.CancelledError:
        if gone:
            raise BrokenPipeError from None
        raise
    finally:
        if watched:
            loop.remove_reader(output)


def _discard_output() -> None:
    """What is buffered can't be written any more, and the interpreter would try, and complain, when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str, *, now: bool = False) -> None:
    """A line of output; `now` for what somebody may be waiting for."""
    sys.stdout.write(line + "\n")
    if now:
        sys.stdout.flush()


def say_json(fields: dict[str, Any], *, now: bool = False) -> None:
    """One object, on one line, in ASCII: a machine reads the escapes, and every output can take them."""
    say(json.dumps(fields, separators=(",", ":")), now=now)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> None:
    """A table; the columns at the places `right` are numbers. Where nobody looks at it, it is as wide as it needs.

    A cell that is a list has a line for each of its items.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place in right else "left", overflow="fold")
    cells = [[_shown(cell) for cell in row] for row in rows]
    for row in cells:
        table.add_row(*row)
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = max(_NARROWEST, sum(map(_widest, zip(columns, *cells, strict=True))) + 2 * len(columns))
    console.print(table)


def _shown(cell: object) -> str:
    lines = cell if isinstance(cell, list) else [cell]
    return "\n".join(printable(str(line)) for line in lines)


def _widest(cells: Sequence[str]) -> int:
    return max(len(line) for cell in cells for line in (cell.splitlines() or [""]))


def data_fields(data: bytes, name: str = "data") -> dict[str, str]:
    """A body in JSON: as `data` if it is UTF-8, otherwise as `data_base64`; other bytes likewise under their name."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def transaction_fields(tx: Transaction) -> dict[str, Any]:
    """A transaction in JSON, by the names that Spark's columns and those of fragments have."""
    return {
        "partition": tx.partition,
        "transaction_id": tx.id,
        "timestamp": when(tx.commit_time_us),
        "header": tx.header,
        "client_id": tx.client_id,
        "generation": tx.request_id.generation,
        "sequence": tx.sequence,
        **({"own": True} if tx.own else {}),
        **data_fields(tx.data),
    }


def counted(count: int, one: str) -> str:
    """`1 partition`, `2 partitions`."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def shown(data: bytes) -> str:
    """A body for people: as text if it is text, otherwise in hexadecimal after `0x`."""
    try:
        return printable(data.decode())
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def printable(text: str) -> str:
    """Without anything that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def line_width() -> int | None:
    """How long a line may be on the terminal; None where nobody looks at it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def when(time_us: int) -> str:
    """Microseconds UTC as ISO 8601."""
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
