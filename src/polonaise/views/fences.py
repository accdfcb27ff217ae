"""The table of the epochs of a worker group's partitions: whoever applies has to have the latest."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, cast

from sqlalchemy import BigInteger, Column, Connection, CursorResult, Integer, bindparam, select, update

from polonaise.terms import PartitionId
from polonaise.views.columns import transactional_table
from polonaise.views.marks import row_lost

CLAIM: Final[PartitionId] = -1
"""The number of no partition, in whose row the epoch is the number of the worker group that has claimed the table."""


def group_number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1


class Fences:
    """The epochs of partitions in one database: how often each was taken over by a worker. One group works with it."""

    def __init__(self, name: str, schema: str | None = None) -> None:
        self.table = transactional_table(
            name,
            Column("partition", Integer, primary_key=True, autoincrement=False),
            Column("epoch", BigInteger, nullable=False),
            Column("changes", BigInteger, nullable=False),
            schema=schema,
        )
        columns = self.table.c
        at = columns.partition == bindparam("at")
        self._raise = update(self.table).where(at).values(epoch=columns.epoch + 1)
        self._select = select(columns.epoch).where(at)
        # A change in each case: some drivers count only rows that an UPDATE has changed.
        self._hold = (
            update(self.table).where(at, columns.epoch == bindparam("mine")).values(changes=columns.changes + 1)
        )

    def add(self, db: Connection, partition: PartitionId, epoch: int = 0) -> None:
        """Write the partition's row. Raises SQLAlchemy's `IntegrityError` if there is one, `ViewUnfit` if it is not as
        written."""
        db.execute(self.table.insert(), {"partition": partition, "epoch": epoch, "changes": 0})
        if self.read(db, partition) is None:
            raise row_lost(self.table, f"partition {partition}")

    def read(self, db: Connection, partition: PartitionId) -> int | None:
        return db.execute(self._select, {"at": partition}).scalar_one_or_none()

    def take_over(self, db: Connection, partition: PartitionId) -> int | None:
        """Raise the partition's epoch, and return it; None if the partition has no row. Waits until what is applied
        under an earlier epoch is committed or rolled back: the mark that is read behind this has it."""
        changed = cast("CursorResult[Any]", db.execute(self._raise, {"at": partition})).rowcount
        return int(db.execute(self._select, {"at": partition}).scalar_one()) if changed else None

    def replace_claim(self, db: Connection, before: int, after: int) -> None:
        columns = self.table.c
        claimed = update(self.table).where(columns.partition == CLAIM, columns.epoch == before)
        db.execute(claimed.values(epoch=after))

    def hold(self, db: Connection, partition: PartitionId, epoch: int) -> bool:
        """Return whether this is the partition's epoch; if so, it stays so until the SQL transaction ends."""
        values = {"at": partition, "mine": epoch}
        return cast("CursorResult[Any]", db.execute(self._hold, values)).rowcount == 1
