"""Output of commands: prints tables for people and one JSON object per line for machines, and sets the exit status."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import shutil
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text
from typer import Option

from polonaise.cli.exitstatus import ExitStatus
from polonaise.errors import DiskFailed

if TYPE_CHECKING:
    from polonaise.terms import Transaction


_GAP: Final = 2
_READABLE: Final = 12
"""Characters of each name and reason that are kept until the headers of numbers have been cut."""
_LEAST: Final = 4
"""Characters of each name and reason that are kept until numbers have to be cut."""


class LineTable(Table):
    """A table that cuts its cells where the terminal is too narrow, each cut marked by an ellipsis.

    First to be cut is the last column, which says reasons; then names; then headers of numbers. Numbers are cut last: a
    number that is cut is a wrong one.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column, width in zip(self.columns, self._widths(options.max_width), strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _widths(self, available: int) -> list[int]:
        cells = [max(map(cell_len, map(str, column.cells)), default=0) for column in self.columns]
        widths = [max(cell, cell_len(str(column.header))) for cell, column in zip(cells, self.columns, strict=True)]
        last = len(widths) - 1
        numbers = [index for index in range(last) if _is_number(self.columns[index])]
        names = [index for index in range(last) if index not in numbers]
        least_of_numbers = [max(1, cell) for cell in cells]
        for indexes, floors in (
            ([last], [_READABLE] * len(widths)),
            (names, [_READABLE] * len(widths)),
            (numbers, least_of_numbers),
            ([*names, last], [_LEAST] * len(widths)),
            (numbers, [1] * len(widths)),
            ([*names, last], [1] * len(widths)),
        ):
            _narrow(widths, indexes, floors, sum(widths) + _GAP * last - available)
        return widths


def _is_number(column: Column) -> bool:
    return column.justify == "right"


def _narrow(widths: list[int], indexes: Sequence[int], floors: Sequence[int], excess: int) -> None:
    """Narrow the columns at these indexes, always the widest, by `excess` characters in all, but not below `floors`."""
    while excess > 0:
        over = [index for index in indexes if widths[index] > floors[index]]
        if not over:
            return
        widths[max(over, key=lambda index: widths[index])] -= 1
        excess -= 1


T = TypeVar("T")

Json = Annotated[bool, Option("--json", help="Print one JSON object per line.")]

_UNLIMITED: Final = 1_000_000
"""The width of a table, in characters, where the output is no terminal: more than any cell needs."""


@contextmanager
def tidy() -> Iterator[None]:
    """Let a command end without a traceback on Ctrl-C, and when its output can't be written, which is flushed here."""
    _output()  # raises for a closed one: better before the work than after it
    # A body may have characters that the terminal's encoding lacks: better escaped than a traceback.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        with _writing():
            _output().flush()
    except KeyboardInterrupt:
        raise typer.Exit(ExitStatus.INTERRUPTED) from None


def _output() -> TextIO:
    """Return standard output. Raises `DiskFailed` if it was closed when the process started (`>&-`)."""
    if sys.stdout is None:
        raise DiskFailed("standard output can't be written: it is closed; redirect it to a file or a pipe")
    return sys.stdout


@contextmanager
def _writing() -> Iterator[None]:
    """Write to standard output, and nothing else: an `OSError` in here is one of the output.

    Raises `typer.Exit` for a reader that went away, and `DiskFailed` if the output can't be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise _reader_gone() from None
    except OSError as error:
        _discard_output()
        raise DiskFailed(f"standard output can't be written: {error.strerror or error}") from error


def _reader_gone() -> typer.Exit:
    _discard_output()
    return typer.Exit(ExitStatus.READER_GONE)


def judge(work: Coroutine[Any, Any, bool]) -> None:
    """Do the work of a command that checks something: exit status 1 unless `work` returns true."""
    with closing(work), tidy():  # `tidy` may refuse before the work has begun
        passed = asyncio.run(work)
    if not passed:
        raise typer.Exit(ExitStatus.FAILED)


async def while_read(work: Coroutine[Any, Any, object]) -> None:
    """Do the work as long as the output has a reader, even between lines: `… --follow | head` ends with `head`."""
    task = asyncio.ensure_future(work)
    reader_gone = False

    def end() -> None:
        nonlocal reader_gone
        reader_gone = True
        task.cancel()

    loop, output = asyncio.get_running_loop(), _output().fileno()
    is_pipe = stat.S_ISFIFO(os.fstat(output).st_mode)
    if is_pipe:
        # The writing end of a pipe never has anything to read. It becomes readable only when its reader is gone.
        loop.add_reader(output, end)
    try:
        await task
    except asyncio.CancelledError:
        if reader_gone:
            raise _reader_gone() from None
        raise
    finally:
        if is_pipe:
            loop.remove_reader(output)


async def limited(rows: AsyncGenerator[T, None], limit: int | None) -> AsyncGenerator[T, None]:
    """Yield the first `limit` rows, or all without a limit; ask for none beyond, because that may wait, or fail."""
    remaining = limit
    async with aclosing(rows):
        if remaining == 0:
            return
        async for row in rows:
            yield row
            if remaining is not None:
                remaining -= 1
                if not remaining:
                    return


def _discard_output() -> None:
    """Send the rest of the output to nowhere: the interpreter would try to write it at exit, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str, *, now: bool = False) -> None:
    """Print a line; with `now`, at once, because somebody may be waiting for it."""
    with _writing():
        _output().write(line + "\n")
        if now:
            _output().flush()


def agreed(text: str) -> bool:
    """Ask a question on standard error, and return whether the answer is yes: not if nobody is there to answer."""
    try:
        return typer.confirm(text, err=True)
    except typer.Abort:
        return False


def say_row(row: str, *, now: bool = False) -> None:
    """Print a row of a table that is printed as its rows come; on a terminal, cut to one line."""
    if _output().isatty():
        width = shutil.get_terminal_size().columns
        row = row if len(row) <= width else row[: width - 1] + "…"
    say(row, now=now)


def say_json(fields: dict[str, Any], *, now: bool = False) -> None:
    """Print one JSON object on one line, in ASCII: any reader of JSON reads the escapes, and any output takes them."""
    say(json.dumps(fields, separators=(",", ":")), now=now)


def say_either(fields: dict[str, Any], line: str, *, as_json: bool, now: bool = False) -> None:
    if as_json:
        say_json(fields, now=now)
    else:
        say(line, now=now)


def print_each(
    things: Iterable[T],
    fields: Callable[[T], dict[str, Any]],
    columns: Sequence[str],
    row: Callable[[T], Sequence[object]] | None = None,
    *,
    right: Sequence[int] = (),
    as_json: bool,
) -> None:
    """Print things: with `as_json` each as a JSON object of its `fields`, else a table, by `row` or the fields."""
    if as_json:
        for each in things:
            say_json(fields(each))
    else:
        rows = [list(fields(each).values()) if row is None else row(each) for each in things]
        print_table(columns, rows, right=right)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> None:
    """Print a table, as wide as its cells need, so that scripts get them whole; at most as wide as a terminal.

    The columns at the indexes `right` are numbers. A list in a cell has a line for each item.
    """
    print_all([table_of(columns, rows, right=right)])


def table_of(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = (), lines: bool = False
) -> Table:
    """Return a table as `print_table` prints it. With `lines`, each row is one line, and cut where that is too long."""
    table = (LineTable if lines else Table)(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if index in right else "left",
            overflow="ellipsis" if lines else "fold",
            no_wrap=lines,
        )
    for row in rows:
        table.add_row(*map(_shown, row))
    return table


def print_all(parts: Sequence[Table | str]) -> None:
    # Printed by `say`: rich would end the process by itself when the reader has gone away.
    printed = io.StringIO()
    console = Console(
        file=printed, force_terminal=_output().isatty() or None, markup=False, highlight=False, emoji=False
    )
    if not console.is_terminal:
        console.width = _UNLIMITED
    for part in parts:
        console.print(renderable(part))
    say(printed.getvalue().removesuffix("\n"))


def renderable(part: Table | str) -> Table | Text:
    """Return what is printed for a table or a line: a line without markup, and with escapes for a terminal's codes."""
    return Text(printable(part)) if isinstance(part, str) else part


def _shown(cell: object) -> str:
    lines = cell if isinstance(cell, list) else [cell]
    return "\n".join(printable(str(line)) for line in lines)


def or_dash(value: object) -> object:
    return "-" if value is None else value


def data_fields(data: bytes, name: str = "data") -> dict[str, str]:
    """Return bytes as a JSON field: as text under `name` if they are UTF-8, else in Base64 under `name` + `_base64`."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def transaction_fields(tx: Transaction) -> dict[str, Any]:
    """Return a transaction as JSON fields, named like the columns of fragments.

    Two are no columns: `own`, which is there only for the library's own transactions, and `data_base64`, which stands
    for `data` if that is not UTF-8.
    """
    return {
        "partition": tx.partition,
        "transaction_id": tx.id,
        "timestamp": timestamp(tx.commit_time_us),
        "header": tx.header,
        "client_id": tx.client_id,
        "generation": tx.request_id.generation,
        "sequence": tx.sequence,
        **({"own": True} if tx.own else {}),
        **data_fields(tx.data),
    }


def shown(data: bytes) -> str:
    """Return a body for people: as text if it is UTF-8, else in hexadecimal after `0x`."""
    try:
        return printable(data.decode())
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def printable(text: str) -> str:
    """Return the text with escapes in place of every character that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def timestamp(time_us: int) -> str:
    """Return a time, given in microseconds since 1970 UTC, as ISO 8601."""
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
