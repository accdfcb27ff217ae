"""The table of applied high-water marks: one row per partition, moved in the SQL transaction that applies."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import BigInteger, Column, Connection, CursorResult, Integer, MetaData, Table, bindparam, select, update

from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId


class Marks:
    """How far each partition is applied in one database.

    A row is first written with -1 and from then on only moved, by an UPDATE that names the value it expects: of several
    processes that apply the same transactions, one moves it, and the others learn that they came too late.
    """

    def __init__(self, name: str, schema: str | None) -> None:
        self.table = Table(
            name,
            MetaData(schema=schema),
            Column("partition", Integer, primary_key=True, autoincrement=False),
            Column("high_water_mark", BigInteger, nullable=False),
            mariadb_engine="InnoDB",
            mysql_engine="InnoDB",
        )
        columns = self.table.c
        self._select = select(columns.high_water_mark).where(columns.partition == bindparam("at"))
        self._update = (
            update(self.table)
            .where(columns.partition == bindparam("at"), columns.high_water_mark == bindparam("before"))
            .values(high_water_mark=bindparam("after"))
        )

    def read(self, db: Connection, partition: PartitionId) -> TransactionId | None:
        """The mark; None if the partition has no row."""
        return db.execute(self._select, {"at": partition}).scalar()

    def add(self, db: Connection, partition: PartitionId) -> None:
        """Write the partition's first row. Raises SQLAlchemy's `IntegrityError` when somebody else was quicker."""
        db.execute(self.table.insert(), {"partition": partition, "high_water_mark": NO_TRANSACTION})

    def move(self, db: Connection, partition: PartitionId, before: TransactionId, after: TransactionId) -> bool:
        """Move the mark, unless it is not at `before`. Must be the first statement of its transaction.

        An earlier SELECT would freeze a snapshot (MariaDB's REPEATABLE READ) that lacks what the one who held the row's
        lock before has applied.
        """
        values = {"at": partition, "before": before, "after": after}
        return cast("CursorResult[Any]", db.execute(self._update, values)).rowcount == 1
