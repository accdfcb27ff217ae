"""Tables of Polonaise's own beside a view's: applied high-water marks, what made a pipeline's rows, workers' epochs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    CursorResult,
    Integer,
    Table,
    Update,
    and_,
    bindparam,
    func,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from polonaise.client.protocol.oncekeys import OnceRecord
from polonaise.errors import ViewUnfit, invariant
from polonaise.terms import NO_TRANSACTION, OwnKind, PartitionId, Transaction, TransactionId
from polonaise.views.columntypes import LONG_BINARY, LONG_TEXT, OTHER_NAME, TIMESTAMP, short_text, transactional_table
from polonaise.views.databaseerrors import OwnRefused, first_line, trouble_in
from polonaise.views.dialects import SQLITE
from polonaise.views.writerconnection import WriterConnection

T = TypeVar("T")

_TORN: Final = -2
"""A mark of -2 - id, so -2 and below: what leads to this id is under way. Others see it only if application code has
itself committed a part of that."""
_DEFINITION: Final = 0
"""The key of the definition's row in the table of a `DefinitionKept`."""
_GIVEN: Final = 1
"""The lowest key of the other rows in it: partition 0 has this one, and so on."""
CLAIM: Final[PartitionId] = -1
"""The number of no partition, in whose row the epoch is the number of the worker group that has claimed the table."""


def first_row(
    writer: WriterConnection,
    table: Table,
    partition: PartitionId,
    add: Callable[[Connection, PartitionId], None],
    read: Callable[[Connection, PartitionId], T | None],
) -> T:
    """Return what `read` finds of a partition's row, after `add` has written it, unless another process was quicker.
    Raises `ViewUnfit` if it is not there then: the database refuses it, and would do so again and again."""
    why = "it was removed meanwhile"
    try:
        with writer.transaction() as db:
            add(db, partition)
    except DBAPIError as error:
        if trouble_in(error) is not None:
            raise
        why = first_line(error)
    with writer.transaction() as db:
        found = read(db, partition)
    if found is None:
        raise row_lost(table, f"partition {partition}", why)
    return found


def row_lost(table: Table, what: str, why: str = "the database makes another row of it") -> ViewUnfit:
    return ViewUnfit(
        f"table {table.fullname} does not keep the row of {what} that is written to it ({why}): see "
        "whether an AUTO_INCREMENT, a trigger, a rule, a policy, a constraint or another program is in the way, and "
        f"remove it; or {OTHER_NAME}"
    )


def checked_mark(table: Table, partition: PartitionId, mark: int | None) -> TransactionId:
    if mark is None:
        raise OwnRefused(
            f"table {table.fullname} has a row of partition {partition} without a high_water_mark (NULL), so what was "
            "applied is not known: set it to the last id that the view's tables hold, or restore all of them from a "
            "backup of one moment"
        )
    return mark


def _changed(db: Connection, statement: Update, values: Mapping[str, object]) -> int:
    """Return how many rows the statement has changed."""
    return cast("CursorResult[Any]", db.execute(statement, values)).rowcount


class Marks:
    """The table of applied high-water marks in one database. Its column `cluster` is empty in rows made by hand. A row
    is first written with -1 and from then on only moved, by an UPDATE that names the value it expects: of several
    processes that apply the same transactions, one moves it, and the others learn that they came too late."""

    def __init__(self, name: str, schema: str | None = None, cluster: str = "") -> None:
        """`cluster` is the key of the log that is applied, in hexadecimal; empty while that is not known, or is kept
        elsewhere."""
        self.cluster = cluster
        self.table = transactional_table(
            name,
            Column("partition", Integer, primary_key=True, autoincrement=False),
            Column("high_water_mark", BigInteger, nullable=False),
            Column("cluster", short_text(32), nullable=False, server_default=""),
            schema=schema,
        )
        columns = self.table.c
        self._select = select(columns.high_water_mark, columns.cluster).where(columns.partition == bindparam("at"))
        self._update = (
            update(self.table)
            .where(columns.partition == bindparam("at"), columns.high_water_mark == bindparam("before"))
            .values(high_water_mark=bindparam("after"))
        )
        kept = func.coalesce(columns.cluster, "")
        self._update_of = self._update.where(or_(kept == "", kept == bindparam("of")))

    def read(self, db: Connection, partition: PartitionId) -> TransactionId | None:
        """Return the partition's mark; None if the partition has no row. Raises `ViewUnfit` if the row names another
        log than `cluster`. Where either is empty, they are not compared."""
        row = db.execute(self._select, {"at": partition}).one_or_none()
        if row is None:
            return None
        mark = self._whole(partition, row.high_water_mark)
        if self.cluster and row.cluster and row.cluster != self.cluster:
            raise ViewUnfit(
                f"table {self.table.fullname} holds the marks of another log, {row.cluster}; this log is "
                f"{self.cluster}. Give the view a database of its own, or {OTHER_NAME}; or drop its tables and this "
                "one, and everything is applied again"
            )
        return mark

    def all(self, db: Connection) -> dict[PartitionId, TransactionId]:
        """Return the marks of all partitions that have a row, whatever log they are of."""
        rows = db.execute(select(self.table.c.partition, self.table.c.high_water_mark))
        return {row.partition: self._whole(row.partition, row.high_water_mark) for row in rows}

    def _whole(self, partition: PartitionId, found: Any) -> TransactionId:
        """Return the mark that was found. Raises `ViewUnfit` for one of a run under way, and for what is no mark."""
        try:
            mark = int(checked_mark(self.table, partition, found))
        except ValueError as error:  # SQLite keeps a text in a column of numbers
            raise ViewUnfit(
                f"table {self.table.fullname} says {found!r} of partition {partition}, which is no id: another program "
                "has changed it. Put its tables and this one back from a backup of one moment; or drop all of them, "
                "and everything is applied again"
            ) from error
        if mark <= _TORN:
            raise ViewUnfit(
                f"table {self.table.fullname}: application code has itself committed a part of what leads to id "
                f"{_TORN - mark} of partition {partition}, so the rest of it may be missing. Mend that code, which may "
                "not end its SQL transaction; then drop the tables and this one, and everything is applied again, or "
                f"mend their rows and set high_water_mark to the id that they hold, at most {_TORN - mark}"
            )
        return mark

    def add(self, db: Connection, partition: PartitionId) -> None:
        """Write the partition's row, with the mark -1. Raises SQLAlchemy's `IntegrityError` if there is one already,
        `ViewUnfit` if it is not there as written."""
        values = {"partition": partition, "high_water_mark": NO_TRANSACTION, "cluster": self.cluster}
        db.execute(self.table.insert(), values)
        if self.read(db, partition) != NO_TRANSACTION:
            raise row_lost(self.table, f"partition {partition}")

    def move(self, db: Connection, partition: PartitionId, before: TransactionId, after: TransactionId) -> bool:
        """Move the partition's mark to `after`. Return False, with nothing changed, unless it was at `before`.

        Nor is the mark of another log than `cluster` moved, unless either is empty; `read` then says so.

        Only other moves may come before it in its transaction: an earlier SELECT would freeze a snapshot (MariaDB's
        REPEATABLE READ) that lacks what the previous holder of the row's lock has applied.
        """
        statement, of = (self._update_of, {"of": self.cluster}) if self.cluster else (self._update, {})
        return _changed(db, statement, {"at": partition, "before": before, "after": after, **of}) == 1

    def begin(self, db: Connection, partition: PartitionId, before: TransactionId, after: TransactionId) -> bool:
        """Move the partition's mark as `move` does, to one that says that what leads to `after` is under way. `read`
        and `all` refuse such a mark: others see it only if application code has itself committed it. `finish` ends it.
        On SQLite, which lets no code commit, this is `move`."""
        return self.move(db, partition, before, after if db.dialect.name == SQLITE else _TORN - after)

    def finish(self, db: Connection, partition: PartitionId, after: TransactionId) -> None:
        """Move the mark that `begin` has left to `after`, as the last statement of its transaction."""
        if db.dialect.name != SQLITE:
            values = {"at": partition, "before": _TORN - after, "after": after}
            invariant(_changed(db, self._update, values) == 1, "a mark that was begun is there to be finished")


class DefinitionKept:
    """The view definition that produced a table's rows, in one row of a table. Further rows, without a definition, have
    the partitions whose rows are among these, of which one without a mark has lost it, and, by numbers below 0, the
    tables of what was left out that were made."""

    def __init__(self, name: str) -> None:
        self.table = transactional_table(
            name,
            Column("number", Integer, primary_key=True, autoincrement=False),
            Column("definition", LONG_TEXT, nullable=False),
        )
        self._select = select(self.table.c.definition).where(self.table.c.number == _DEFINITION)

    def read(self, db: Connection) -> str | None:
        return db.execute(self._select).scalar_one_or_none()

    def agrees(self, db: Connection, definition: str, *, new: bool) -> bool:
        """Return whether the table's rows were made by this definition; it stays so until the transaction ends. With
        `new`, a table that has no definition yet gets this one. Returns False, too, if another process stores one
        first: the transaction must then be rolled back."""
        # Locked, so that no other transaction replaces the rows, and their definition, while this one adds to them.
        kept = db.execute(self._select.with_for_update()).scalar_one_or_none()
        if kept is not None or not new:
            return kept == definition
        try:
            with db.begin_nested():
                db.execute(self.table.insert(), {"number": _DEFINITION, "definition": definition})
        except DBAPIError as error:
            if trouble_in(error) is not None:
                raise
            if db.execute(self._select.with_for_update()).one_or_none() is None:
                raise row_lost(self.table, "the definition", first_line(error)) from error
            return False
        return True

    def replace(self, db: Connection, definition: str) -> None:
        """Store this definition in place of all that the table has, in the transaction that replaces the view's
        rows."""
        db.execute(self.table.delete())
        db.execute(self.table.insert(), {"number": _DEFINITION, "definition": definition})

    def partitions(self, db: Connection) -> set[PartitionId]:
        number = self.table.c.number
        return {each - _GIVEN for each in db.execute(select(number).where(number >= _GIVEN)).scalars()}

    def remember(self, db: Connection, partitions: Iterable[PartitionId]) -> None:
        if rows := [{"number": _GIVEN + each, "definition": ""} for each in sorted(partitions)]:
            db.execute(self.table.insert(), rows)

    def remember_made(self, db: Connection, number: int) -> None:
        if not self.was_made(db, number):
            db.execute(self.table.insert(), {"number": number, "definition": ""})

    def was_made(self, db: Connection, number: int) -> bool:
        return db.execute(select(self.table.c.number).where(self.table.c.number == number)).first() is not None

    def lost(self, db: Connection, marks: Marks) -> bool:
        """Return whether a partition was remembered that has no mark, or none that stands for anything."""
        number, mark = self.table.c.number, marks.table.c.high_water_mark
        # In one statement: all of it is of one moment.
        kept = self.table.outerjoin(
            marks.table, and_(marks.table.c.partition == number - _GIVEN, mark > NO_TRANSACTION)
        )
        return db.execute(select(number).select_from(kept).where(number >= _GIVEN, mark.is_(None))).first() is not None


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
        """Write the partition's row. Raises SQLAlchemy's `IntegrityError` if there is one, `ViewUnfit` if it
        differs."""
        db.execute(self.table.insert(), {"partition": partition, "epoch": epoch, "changes": 0})
        if self.read(db, partition) is None:
            raise row_lost(self.table, f"partition {partition}")

    def read(self, db: Connection, partition: PartitionId) -> int | None:
        return db.execute(self._select, {"at": partition}).scalar_one_or_none()

    def take_over(self, db: Connection, partition: PartitionId) -> int | None:
        """Raise the partition's epoch, and return it; None if the partition has no row. Waits until what is applied
        under an earlier epoch is committed or rolled back: the mark that is read behind this has it."""
        at = {"at": partition}
        return int(db.execute(self._select, at).scalar_one()) if _changed(db, self._raise, at) else None

    def replace_claim(self, db: Connection, before: int, after: int) -> None:
        columns = self.table.c
        claimed = update(self.table).where(columns.partition == CLAIM, columns.epoch == before)
        db.execute(claimed.values(epoch=after))

    def hold(self, db: Connection, partition: PartitionId, epoch: int) -> bool:
        """Return whether this is the partition's epoch; if so, it stays so until the SQL transaction ends."""
        return _changed(db, self._hold, {"at": partition, "mine": epoch}) == 1


LETTERS: Final = "_undecodable"
REFUSED: Final = "_refused"
"""What their names add to that of the view's table."""


class LeftOut:
    """A table of what is not in the view's table, made by the first write that may bring something for it."""

    def __init__(self, number: int, what: str, table: Table) -> None:
        """`number` is that of the row, beside the definition's, that says that this table was made, below 0; `what` it
        is, messages say."""
        self.number = number
        self.what = what
        self.table = table

    def is_there(self, db: Connection) -> bool:
        """Tell whether the table exists. Another application's of the same name does not count."""
        inspector, name = inspect(db), self.table.name
        columns = {each["name"] for each in inspector.get_columns(name)} if inspector.has_table(name) else set()
        return columns >= set(self.table.c.keys())

    def clear(self, db: Connection) -> None:
        if self.is_there(db):
            db.execute(self.table.delete())


def dead_letters(table: str) -> LeftOut:
    """Return the dead-letter table of a view's table: bodies that could not be decoded into rows of it."""
    columns = (
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("transaction_id", BigInteger, primary_key=True, autoincrement=False),
        Column("timestamp", TIMESTAMP, nullable=False),
        Column("header", Integer, nullable=False),
        Column("reason", LONG_TEXT, nullable=False),
        Column("data", LONG_BINARY, nullable=False),
    )
    return LeftOut(-1, "its dead-letter table", transactional_table(f"{table}{LETTERS}", *columns))


def refused_rows(table: str) -> LeftOut:
    """Return the table of rows that the view's table can't hold, as JSON, each with the column to blame, and why."""
    columns = (
        Column("partition", Integer),
        Column("transaction_id", BigInteger),
        Column("column_name", LONG_TEXT, nullable=False),
        Column("reason", LONG_TEXT, nullable=False),
        Column("row_json", LONG_TEXT, nullable=False),
    )
    return LeftOut(-2, "its table of refused rows", transactional_table(f"{table}{REFUSED}", *columns))


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
