"""Statements that write the rows of a table, as many at a time as the database takes, and which row it refuses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from decimal import Decimal
from typing import Any, Final, NoReturn

from sqlalchemy import BigInteger, Connection, Numeric, Table, select
from sqlalchemy.exc import DBAPIError

from polonaise.errors import ViewFailed
from polonaise.redaction import redacted
from polonaise.views.databaseerrors import first_line, trouble_in
from polonaise.views.dialects import SQLITE
from polonaise.views.retrying import DrivenAway, Next, Portion

BEYOND: Final = (
    "leave such rows out, or have the query count in a larger unit, or in decimal(38,0); the table stays as it was"
)


class RowsRefused(Exception):
    """Some of these rows were refused, for a reason that lies in them. Its cause is the database's error."""

    def __init__(self, table: Table, statement: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.table = table
        self.statement = statement
        self.rows = rows


def raise_for_row(db: Connection, refused: RowsRefused, sums: Sequence[str], *, emptied: bool) -> NoReturn:
    """Raise `ViewFailed` for the first of these rows that the database refuses. The transaction has to be rolled back.
    `sums` names the columns that are added to those of the row with the same key. With `emptied` the rows are to go
    into the empty table."""
    table = refused.table
    if emptied:
        db.execute(table.delete())
    row, error = _first_refused(db, refused.statement, refused.rows)
    said = str(refused.__cause__) if error is None else first_line(error)
    if row is None:
        raise ViewFailed(f"table {table.name}: writing rows and marks fails: {said}")
    db.execute(select(table).limit(0))  # raises if it is the table that is wrong, and no row: as when it was dropped
    beyond = None if emptied else _sum_beyond(db, table, row, sums)
    why = said if beyond is None else f"{beyond}: {BEYOND}"
    raise ViewFailed(f"table {table.name} refuses the row with {_named(table, row)}: {why}")


def _first_refused(
    db: Connection, statement: Any, rows: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any] | None, DBAPIError | None]:
    """Return the first row that is refused by itself, and the error; None for both if all are taken now."""
    error = _error_of(db, statement, rows)
    while error is not None and len(rows) > 1:
        half = rows[: len(rows) // 2]
        of_half = _error_of(db, statement, half)
        rows = rows[len(rows) // 2 :] if of_half is None else half
        error = of_half or _error_of(db, statement, rows) or error
    return (None, None) if error is None else (rows[0], error)


def _error_of(db: Connection, statement: Any, rows: Sequence[Mapping[str, Any]]) -> DBAPIError | None:
    attempt = db.begin_nested()
    try:
        db.execute(statement, list(rows))
    except DBAPIError as error:
        if trouble_in(error) is not None:
            raise
        return error
    finally:
        attempt.rollback()
    return None


def _named(table: Table, row: Mapping[str, Any]) -> str:
    """Return which row it is: by its key, or else its transaction, or else its first column."""
    key = [column.name for column in table.primary_key]
    naming = key or [name for name in ("partition", "transaction_id") if name in row] or list(row)[:1]
    return ", ".join(f"{name} {redacted(repr(row[name]), 100)}" for name in naming)


def _sum_beyond(db: Connection, table: Table, row: Mapping[str, Any], sums: Sequence[str]) -> str | None:
    """Describe the sum that does not fit its column; None if all do, as far as is known here."""
    same_key = [column == row[column.name] for column in table.primary_key]
    try:
        held = db.execute(select(table).where(*same_key)).mappings().first() if same_key else None
    except DBAPIError as error:
        if trouble_in(error) is not None:
            raise
        return None  # a key that the database does not even look for, such as a text with NUL
    if held is None:
        return None
    for name in sums:
        old, new, kind = held[name], row[name], table.c[name].type
        if old is None or new is None:
            continue
        total = Decimal(old) + Decimal(new) if isinstance(kind, Numeric) else old + new
        if isinstance(kind, BigInteger) and not (isinstance(old, int) and -(2**63) <= total < 2**63):
            return f"{name} would be {old} + {new}, which is beyond bigint"
        if isinstance(kind, Numeric) and kind.asdecimal:
            digits = (kind.precision or 38) - (kind.scale or 0)
            if total.is_finite() and abs(total) >= 10**digits:
                return f"{name} would be {old} + {new}, which is beyond decimal({kind.precision},{kind.scale})"
        if isinstance(total, float) and abs(total) == float("inf"):
            return f"{name} would be {old} + {new}, which is beyond double"
    return None


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
            try:
                db.execute(statement, list(some))
            except DBAPIError as error:
                if trouble_in(error) is not None:
                    raise
                raise RowsRefused(table, statement, some) from error
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
                f"table {table.name}: the row with {_named(table, rows[0])} alone drives the database away: "
                f"{first_line(error.__cause__ or error)}; raise the database's limit, or leave such rows out"
            ) from error
        if following is Next.LATER:
            time.sleep(_PAUSE_S)


def awake(db: Connection, chunks: Iterable[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the chunks, which another thread makes, and keep the transaction from being idle for too long meanwhile."""
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
