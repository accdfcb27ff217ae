"""The table of what was done once: a row for each key of `log.once`, written in the SQL transaction that applies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

from sqlalchemy import BigInteger, Column, Connection, Integer, bindparam, select

from polonaise.client.protocol.oncekeys import OnceRecord
from polonaise.errors import ViewUnfit
from polonaise.terms import OwnKind, PartitionId, Transaction, TransactionId
from polonaise.views.columns import LONG_TEXT, short_text, transactional_table


class OnceKept:
    """The table of the keys of `log.once`.

    A row has, for a partition and a key, the id of the first transaction appended under the key, how many were
    appended, and what the context returned. Rows are found by a digest of the key, so that no collation takes two keys
    for one. All texts are ASCII, so that a database of any encoding holds them. A row may be deleted when its key will
    not come again: `commit_time_us` says how old it is.
    """

    def __init__(self, name: str, schema: str | None) -> None:
        self.table = transactional_table(
            name,
            Column("partition", Integer, primary_key=True, autoincrement=False),
            Column("digest", short_text(64), primary_key=True),
            Column("key", LONG_TEXT, nullable=False),  # for people to read: rows of older versions have it unescaped
            Column("id", BigInteger, nullable=False),
            Column("appended", Integer, nullable=False),
            Column("request", short_text(64), nullable=False),
            Column("value", LONG_TEXT, nullable=False),
            Column("commit_time_us", BigInteger, nullable=False),
            schema=schema,
        )
        columns = self.table.c
        self._select = select(self.table).where(columns.partition == bindparam("at"), columns.digest == bindparam("of"))

    def find(self, db: Connection, partition: PartitionId, key: str) -> tuple[TransactionId, OnceRecord] | None:
        """Return the id of the first transaction under this key, and the key's record; None for an unused key."""
        row = db.execute(self._select, {"at": partition, "of": _digest(key)}).one_or_none()
        return None if row is None else (int(row.id), OnceRecord(key, row.request, int(row.appended), row.value))

    def found(self, db: Connection, partition: PartitionId, key: str) -> tuple[TransactionId, OnceRecord] | None:
        found = self.find(db, partition, key)
        if found is not None:
            try:
                json.loads(found[1].value)
            except (TypeError, ValueError) as error:
                raise ViewUnfit(
                    f"table {self.table.fullname} has a value that is no JSON for key {_escaped(key)} of partition "
                    f"{partition} (transaction {found[0]}): another program has changed that row. Put back the value "
                    "that the context returned, or restore all of the view's tables from a backup of one moment"
                ) from error
        return found

    def keep_all(self, db: Connection, run: Sequence[Transaction]) -> None:
        """Add a row for each key that an own transaction of the run records. A key in the table keeps its row."""
        for tx in run:
            if not tx.own or tx.header != OwnKind.ONCE:
                continue
            record = OnceRecord.parse(tx)
            if self.find(db, tx.partition, record.key) is None:
                values = {
                    "partition": tx.partition, "digest": _digest(record.key), "key": _escaped(record.key),
                    "id": tx.id - record.appended, "appended": record.appended, "request": record.request,
                    "value": record.value, "commit_time_us": tx.commit_time_us,
                }  # fmt: skip
                db.execute(self.table.insert(), values)


def _escaped(key: str) -> str:
    """Return the key as in a JSON string, without the quotes: ASCII without NUL, whatever the key holds."""
    return json.dumps(key)[1:-1]


def _digest(key: str) -> str:
    return blake2b(key.encode(), digest_size=32).hexdigest()
