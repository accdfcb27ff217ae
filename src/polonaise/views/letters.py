"""The dead-letter table: transactions whose bodies a view could not decode, beside the view's own table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, Integer, inspect

from polonaise.views.columns import LONG_BINARY, LONG_TEXT, TIMESTAMP, transactional_table

LETTERS: Final = "_undecodable"
"""What the name of a dead-letter table adds to the name of the view's table."""


class DeadLetters:
    """The dead-letter table of a view's table: bodies that could not be decoded into rows of that table.

    The dead-letter table is made by the first write that may bring letters, even if it brings none.
    """

    def __init__(self, table: str) -> None:
        self.table = transactional_table(
            f"{table}{LETTERS}",
            Column("partition", Integer, primary_key=True, autoincrement=False),
            Column("transaction_id", BigInteger, primary_key=True, autoincrement=False),
            Column("timestamp", TIMESTAMP, nullable=False),
            Column("header", Integer, nullable=False),
            Column("reason", LONG_TEXT, nullable=False),
            Column("data", LONG_BINARY, nullable=False),
        )

    def clear(self, db: Connection) -> None:
        """Delete all letters, if the table exists."""
        if inspect(db).has_table(self.table.name):
            db.execute(self.table.delete())

    def add(self, db: Connection, chunks: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        """Add the letters, some rows at a time."""
        for chunk in chunks:
            if chunk:
                db.execute(self.table.insert(), chunk)
