"""The tables beside a view's table of what is not in it: bodies that do not decode, and rows that it can't hold."""

from __future__ import annotations

from typing import ClassVar, Final

from sqlalchemy import BigInteger, Column, Connection, Integer, Table, inspect

from polonaise.views.columns import LONG_BINARY, LONG_TEXT, TIMESTAMP, transactional_table

LETTERS: Final = "_undecodable"
REFUSED: Final = "_refused"
"""What their names add to that of the view's table."""


class LeftOut:
    """A table of what is not in the view's table, made by the first write that may bring something for it."""

    number: ClassVar[int]
    """The row number, beside those of the definition, that says that this table was made; below 0."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def is_there(self, db: Connection) -> bool:
        """Tell whether the table exists. Another application's of the same name does not count."""
        inspector, name = inspect(db), self.table.name
        columns = {each["name"] for each in inspector.get_columns(name)} if inspector.has_table(name) else set()
        return columns >= set(self.table.c.keys())

    def clear(self, db: Connection) -> None:
        if self.is_there(db):
            db.execute(self.table.delete())


class DeadLetters(LeftOut):
    """The dead-letter table of a view's table: bodies that could not be decoded into rows of it."""

    number = -1

    def __init__(self, table: str) -> None:
        super().__init__(
            transactional_table(
                f"{table}{LETTERS}",
                Column("partition", Integer, primary_key=True, autoincrement=False),
                Column("transaction_id", BigInteger, primary_key=True, autoincrement=False),
                Column("timestamp", TIMESTAMP, nullable=False),
                Column("header", Integer, nullable=False),
                Column("reason", LONG_TEXT, nullable=False),
                Column("data", LONG_BINARY, nullable=False),
            )
        )


class RefusedRows(LeftOut):
    """The table of rows that the view's table can't hold, as JSON, each with the column that is to blame, and why."""

    number = -2

    def __init__(self, table: str) -> None:
        super().__init__(
            transactional_table(
                f"{table}{REFUSED}",
                Column("partition", Integer),
                Column("transaction_id", BigInteger),
                Column("column_name", LONG_TEXT, nullable=False),
                Column("reason", LONG_TEXT, nullable=False),
                Column("row_json", LONG_TEXT, nullable=False),
            )
        )
