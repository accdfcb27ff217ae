"""Statements that write the rows of a table: as many rows at a time as the database takes, down to one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final

from sqlalchemy import Connection, Table, select

from polonaise.errors import ViewFailed
from polonaise.views.databaseerrors import first_line
from polonaise.views.dialects import SQLITE
from polonaise.views.portions import Next, Portion
from polonaise.views.refusals import named, write_rows
from polonaise.views.retrying import DrivenAway

_AWAKE_S: Final = 0.1
"""Seconds after which a database is asked for something while the next rows are awaited."""
_PAUSE_S: Final = 0.25


class RowStatements:
    """Writes rows, and finds out how many of them the database takes in one statement. When one of a transaction's
    statements drives the database away, the whole transaction is tried again with fewer rows in each, down to one,
    which is named."""

    def __init__(self) -> None:
        self._portion = Portion()
        self._sent: tuple[Table, Sequence[Mapping[str, Any]]] | None = None
        """Those that are being written just now."""
        self._most_sent = 0

    def begin(self) -> None:
        """Note that a SQL transaction is tried, perhaps again."""
        self._sent, self._most_sent = None, 0

    def write(self, db: Connection, table: Table, statement: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows of the table by the statement. Raises `RowsRefused`, and what the database raises otherwise."""
        for start in range(0, len(rows), self._portion.most):
            some = rows[start : start + self._portion.most]
            self._sent, self._most_sent = (table, some), max(len(some), self._most_sent)
            write_rows(db, table, statement, some)
            self._sent = None

    def committed(self) -> None:
        """Note that all was written: after many such transactions, more rows at a time are tried."""
        if self._most_sent:
            self._portion.taken(self._most_sent)

    def driven_away(self, error: DrivenAway) -> None:
        """Have fewer rows written at a time, so that the caller can try again. Raises the error if no rows were being
        written, and `ViewFailed` for a row that has driven the database away alone, several times in a row."""
        if self._sent is None:
            raise error
        table, rows = self._sent
        following = self._portion.driven_away(len(rows))
        if following is Next.NAMED:
            raise ViewFailed(
                f"table {table.name}: the row with {named(table, rows[0])} alone drives the database away: "
                f"{first_line(error.__cause__ or error)}; raise the database's limit, or leave such rows out"
            ) from error
        if following is Next.LATER:
            time.sleep(_PAUSE_S)


def awake(db: Connection, chunks: Iterable[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the chunks, which are made in another thread, and keep the transaction from being idle for too long
    meanwhile."""
    if db.dialect.name == SQLITE:
        yield from chunks
        return
    remaining = iter(chunks)
    with ThreadPoolExecutor(1, "polonaise rows") as thread:
        while True:
            coming = thread.submit(next, remaining, None)
            while not wait([coming], _AWAKE_S).done:
                db.execute(select(1))
            chunk = coming.result()
            if chunk is None:
                return
            yield chunk
