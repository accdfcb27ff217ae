"""SQL tables whose rows a pipeline makes: written, and read, together with their marks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Double,
    Engine,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Table,
    and_,
    case,
    cast,
    column,
    func,
    inspect,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.types import TypeEngine

from polonaise.errors import BadOption, ViewFailed, ViewUnfit
from polonaise.redaction import redacted
from polonaise.terms import PartitionId, TransactionId
from polonaise.views.columntypes import (
    DECIMAL,
    LONG_BINARY,
    LONG_TEXT,
    POSTGRESQL_BYTES,
    TIMESTAMP,
    short_text,
    transactional_table,
)
from polonaise.views.database import Database, check_file
from polonaise.views.databaseerrors import database_errors, first_line
from polonaise.views.dialects import MARIADB, POSTGRESQL, SQLITE, check_names, folded
from polonaise.views.fitness import check_tables, create_tables, has_table
from polonaise.views.marks import LeftOut, Marks, first_row
from polonaise.views.retrying import DrivenAway, RetryingWriter
from polonaise.views.rowstatements import RowsRefused, RowStatements, awake, raise_for_row
from polonaise.views.tablesbeside import MarkMap, PipelineTables
from polonaise.views.writerconnection import WriterConnection

T = TypeVar("T")

Merge: TypeAlias = Literal["sum", "min", "max"]
Chunks: TypeAlias = Callable[[], Iterable[list[dict[str, Any]]]]
"""A function that yields the rows to write, some at a time; called again when the transaction has to be repeated."""

_BUSY_S: Final = 5.0
_KEY_CHARACTERS: Final = 255
_MARIADB_KEY_BYTES: Final = 3_072
_POSTGRESQL_KEY_BYTES: Final = 2_600
"""The most bytes in a key of MariaDB's indexes, of which it counts four for each letter, and in one of PostgreSQL's,
which takes about a hundred more."""
_FIXED_BYTES: Final = 24
"""The most bytes that a column of a key needs that is neither text nor binary."""
_PLAIN_TYPES: Final[Mapping[str, Callable[[], TypeEngine[Any]]]] = {
    "boolean": Boolean,
    "tinyint": Integer,
    "smallint": Integer,
    "int": Integer,
    "bigint": BigInteger,
    "float": Double,
    "double": Double,
    "date": Date,
    "timestamp": lambda: TIMESTAMP,
    "timestamp_ntz": lambda: DateTime().with_variant(mysql.DATETIME(fsp=6), *MARIADB),
    "string": lambda: LONG_TEXT,
    "binary": lambda: LONG_BINARY,
}


class Field(NamedTuple):
    """A column of a table, and its type as Spark writes it: `bigint`, `decimal(10,2)`, `string`, …"""

    name: str
    type: str


class Shape(NamedTuple):
    """The columns of a table, and how rows of the same key become one. Without a `key` rows are only added. `merge`
    says, by column, how a new row's value goes into the row that has the same key; a column that it does not name keeps
    its old value."""

    name: str
    fields: tuple[Field, ...]
    key: tuple[str, ...] = ()
    merge: Mapping[str, Merge] = {}


class MarkedTable:
    """A table that a pipeline makes in a SQL database, beside tables of its marks and its definition.

    The rows and the marks are changed in one SQL transaction, and only if the marks are where the caller believes them
    to be: the rows made of a range of the log are in the table once, whoever dies when, and however many processes make
    them. Blocks; not for several threads.

    `cluster` is the key of the log, in hexadecimal; `definition` is a text that says how the rows are made: they are
    only added to rows that were made the same way. Raises `BadOption` for an engine or types that can't be used,
    `ViewUnfit` for tables of another shape or another log, `ViewUnavailable`, and `ViewFailed` for rows that the
    database refuses.
    """

    def __init__(
        self, engine: Engine | URL | str, shape: Shape, cluster: str, definition: str, *, marks_table: str | None = None
    ) -> None:
        self._database = Database(engine, None, _BUSY_S, utc=True)
        self._shape = shape
        self._table = _table(shape, self._database.kind)
        self._marks = Marks(marks_table or f"{shape.name}_marks", cluster=cluster)
        types = {field.name: field.type for field in shape.fields}
        self._beside = PipelineTables(self._table, self._marks, definition, types)
        check_names(self._database.kind, self._beside.names, types)
        self._statements = RowStatements()
        self._prepared = False
        self._writer = RetryingWriter(self._database, time.sleep, self._look_again)
        self._merging: Any = _upsert(self._table, shape, self._database.kind) if shape.key else self._table.insert()

    def prepare(self) -> None:
        """Make the table and those of its marks and definition if they do not exist, and check them. Raises
        `ViewUnfit`, `ViewUnavailable` and `ViewFailed`."""
        self._tried("looking whether it is there", self._beside.check_before)
        self._made("making it and the tables beside it", self._beside.needed)
        self._tried("looking at its columns", self._beside.check)
        self._prepared = True

    def _look_again(self) -> None:
        self._prepared = False

    def definition(self) -> str | None:
        """Return the view definition that produced the table's rows; None if unset. May be called before `prepare`."""
        return self._tried(
            "reading its definition",
            lambda db: self._beside.kept.read(db) if has_table(db, self._beside.kept.table) else None,
        )

    def check_marks_kept(self) -> None:
        """Raise `ViewUnfit` if the table has a definition, which comes with the first marks, and no mark at all. So it
        does if the mark of a partition is gone whose rows are there, and for rows that have neither."""
        self._tried("reading its marks", self._beside.check_marks_kept)

    def marks(self) -> dict[PartitionId, TransactionId]:
        """Return, by partition, the last id whose rows are in the table; an empty dict for a new table. To be called
        after `prepare`. Raises `ViewUnfit` for a table of another log."""
        return self._tried("reading its marks", lambda db: _marks_in(db, self._marks))

    def left_out(self) -> tuple[bool, bool]:
        """Return whether there is a dead-letter table, and whether there is one of refused rows."""
        return self._tried(
            "looking for the tables beside it",
            lambda db: (self._beside.letters.is_there(db), self._beside.refused.is_there(db)),
        )

    def merge(
        self,
        chunks: Chunks,
        before: MarkMap,
        after: MarkMap,
        letters: Chunks | None = None,
        refused: Chunks | None = None,
    ) -> bool:
        """Add rows, or merge them by key, and move the marks from `before` to `after`.

        Returns False, with nothing changed, if the mark of a partition in `after` is not at `before`, or if the table's
        rows were made by another definition. `letters` go to the dead-letter table, and `refused` to that of rows that
        this table can't hold. Raises `ViewFailed` for a row that the database refuses, by its key.
        """
        if not self._prepared:
            self.prepare()
        if max(before.values(), default=-1) < 0:
            # Marks that were lost under way look like those of a new table, and its rows would be added once more.
            self.check_marks_kept()
        return self._commit(chunks, before, after, (letters, refused), replaces=False)

    def replace(
        self,
        chunks: Chunks,
        before: MarkMap,
        after: MarkMap,
        letters: Chunks | None = None,
        refused: Chunks | None = None,
    ) -> bool:
        """Replace all rows, and move the marks to `after`; partitions that are not in `after` begin anew. Returns
        False, with nothing changed, if the marks are not at `before`. `letters` and `refused` replace what is in their
        tables. Raises as `merge`."""
        after = {**dict.fromkeys(before, -1), **after}
        return self._commit(chunks, before, after, (letters, refused), replaces=True)

    def _commit(
        self, chunks: Chunks, before: MarkMap, after: MarkMap, left_out: Sequence[Chunks | None], *, replaces: bool
    ) -> bool:
        """Write rows and marks in one SQL transaction; see `merge` and `replace` for when it returns False. `left_out`
        has letters and refused rows."""
        statements, tables = self._statements, self._beside
        both = zip((tables.letters, tables.refused), left_out, strict=True)
        beside = [(each, made) for each, made in both if made is not None]
        statement = self._table.insert() if replaces else self._merging

        def commit(db: Connection) -> None:
            statements.begin()
            if not tables.move(db, before, after, replaces=replaces):
                raise _Moved
            for chunk in awake(db, chunks()):
                self._check_keys(chunk)
                statements.write(db, self._table, statement, chunk)
            for each, made in beside:
                tables.kept.remember_made(db, each.number)
                for chunk in awake(db, made()):
                    statements.write(db, each.table, each.table.insert(), chunk)

        while True:
            self._make_ready(before, after, [each for each, _ in beside], replaces)
            try:
                self._tried("writing rows and marks", commit)
            except _Moved:
                return False
            except DrivenAway as error:
                statements.driven_away(error)
            except RowsRefused as error:
                self._raise_for_row(error, replaces)
            else:
                statements.committed()
                tables.committed(after)
                return True

    def _raise_for_row(self, error: RowsRefused, emptied: bool) -> NoReturn:
        sums = [name for name, how in self._shape.merge.items() if how == "sum" and error.table is self._table]
        self._tried("writing rows and marks", lambda db: raise_for_row(db, error, sums, emptied=emptied))
        raise error

    def _make_ready(self, before: MarkMap, after: MarkMap, beside: Sequence[LeftOut], replaces: bool) -> None:
        if not self._prepared:
            self.prepare()
        for each in beside:
            if not replaces:
                looking = partial(self._beside.check_left_out_kept, left_out=each)
                self._tried(f"looking whether {each.what} is there", looking)
            self._made(f"making {each.what}", [each.table])
            self._tried(f"looking at {each.what}", partial(check_tables, tables=[], own=[each.table]))
        marks = self._marks
        for partition in sorted(set(after) - set(before)):
            # If another process is quicker, the transaction finds out whether it has moved the marks, too.
            first = partial(first_row, table=marks.table, partition=partition, add=marks.add, read=marks.read)
            self._done("writing its first mark", first)

    def _check_keys(self, chunk: Sequence[Mapping[str, Any]]) -> None:
        """Raise `ViewFailed` for a null in a key: SQLite would make up a number where a whole key is NULL."""
        for name in self._shape.key:
            if any(row[name] is None for row in chunk):
                raise ViewFailed(
                    f"table {self._table.name} refuses the rows: {name} is a column of the key, and null in one of "
                    "them: leave such rows out, or give them a value with coalesce"
                )

    def close(self) -> None:
        self._writer.close()
        self._database.close()

    def _made(self, doing: str, tables: Sequence[Table]) -> None:
        self._done(doing, lambda connection: create_tables(connection, tables))

    def _tried(self, doing: str, work: Callable[[Connection], T]) -> T:

        def in_transaction(connection: WriterConnection) -> T:
            with connection.transaction() as db:
                return work(db)

        return self._done(doing, in_transaction)

    def _done(self, doing: str, work: Callable[[WriterConnection], T]) -> T:
        """Return the result of `work`, repeated as `RetryingWriter.do` says. Raises `ViewFailed` for any other error of
        the database; `doing` says in it what `work` does."""
        try:
            return self._writer.do(work)
        except database_errors() as error:
            raise ViewFailed(f"table {self._table.name}: {doing} fails: {first_line(error)}") from error


class _Moved(Exception):
    """The marks, or the definition, are not what the caller of `merge` or `replace` believes."""


# ------------------------------------------------------------------ reading


@contextlib.contextmanager
def snapshot(
    engine: Engine | URL | str,
    fields: Sequence[Field],
    table: str,
    *,
    marks_table: str | None,
    cluster: str = "",
    rows_max: int = 10_000,
) -> Iterator[tuple[dict[PartitionId, TransactionId] | None, Iterator[list[tuple[Any, ...]]]]]:
    """Yield (marks, rows) of any table as they were at one moment; the rows come in lists of up to `rows_max`.

    Other processes may write to it meanwhile. The marks are None without a `marks_table`. Raises `BadOption`;
    `ViewUnfit` for tables or columns that do not exist and for the marks of another log than `cluster`; `NotFound` for
    a missing file; `ViewUnavailable`.
    """
    check_file(engine.url if isinstance(engine, Engine) else engine, there=True)
    database = Database(engine, None, _BUSY_S, utc=True)
    try:
        with database.reading() as db:
            shape = Shape(table, tuple(fields))
            declared = _table(shape, database.kind)
            _check_readable(db, declared)
            marks = None
            if marks_table is not None:
                if not inspect(db).has_table(marks_table):
                    raise ViewUnfit(
                        f"no table {marks_table} of high-water marks beside {table}: give its name, or the ids up to "
                        "which the table is made"
                    )
                marks = _marks_in(db, Marks(marks_table, cluster=cluster))
            streamed = db.execution_options(yield_per=rows_max)
            yield marks, (list(map(tuple, part)) for part in streamed.execute(select(declared)).partitions())
    except database_errors() as error:
        raise ViewUnfit(f"table {table} can't be read: {first_line(error)}") from error
    finally:
        database.close()


def _check_readable(db: Connection, table: Table) -> None:
    """Raise `ViewUnfit` unless the table, or SQL view, exists with these columns."""
    inspector = inspect(db)
    if not inspector.has_table(table.name) and table.name not in inspector.get_view_names():
        tables = ", ".join(sorted(inspector.get_table_names())) or "none"
        raise ViewUnfit(f"no table {table.name} in {redacted(db.engine.url)}: its tables are {tables}")
    kind, existing = db.dialect.name, {column["name"] for column in inspector.get_columns(table.name)}
    there = {folded(kind, name) for name in existing}
    missing = [column.name for column in table.columns if folded(kind, column.name) not in there]
    if missing:
        raise ViewUnfit(f"table {table.name} has no column {', '.join(missing)}: it has {', '.join(sorted(existing))}")


def _marks_in(db: Connection, marks: Marks) -> dict[PartitionId, TransactionId]:
    partitions = db.execute(select(marks.table.c.partition).order_by(marks.table.c.partition)).scalars().all()
    read = {partition: marks.read(db, partition) for partition in partitions}
    return {partition: mark for partition, mark in read.items() if mark is not None}


# ------------------------------------------------------------------ as SQL


class KeyRoom(NamedTuple):
    """How long the texts and binaries of a key may be; None for no limit."""

    characters: int | None = None
    """Letters of each text."""
    bytes: int | None = None
    """Bytes of each binary."""
    total_bytes: int | None = None
    """Bytes of all texts and binaries together."""


def key_room(shape: Shape, kind: str) -> KeyRoom:
    """Return how long the texts and binaries of the table's key may be in this kind of database."""
    types = [field.type for field in shape.fields if field.name in shape.key]
    long = sum(each in ("string", "binary") for each in types)
    fixed = _FIXED_BYTES * (len(types) - long)
    if not long:
        return KeyRoom()
    if kind in MARIADB:
        each = (_MARIADB_KEY_BYTES - fixed) // long
        return KeyRoom(min(_KEY_CHARACTERS, each // 4), min(4 * _KEY_CHARACTERS, each))
    return KeyRoom(total_bytes=_POSTGRESQL_KEY_BYTES - fixed) if kind == POSTGRESQL else KeyRoom()


def _table(shape: Shape, kind: str) -> Table:
    room = key_room(shape, kind)
    columns = [
        Column(
            field.name,
            _type(field, room if field.name in shape.key else None, kind),
            primary_key=field.name in shape.key,
            nullable=field.name not in shape.key,
            autoincrement=False,
        )
        for field in shape.fields
    ]
    return transactional_table(shape.name, *columns)


def _type(field: Field, room: KeyRoom | None, kind: str) -> TypeEngine[Any]:
    """Return the SQL type of the field; `room` is that of its key, if any. Raises `BadOption` where there is none."""
    decimal = DECIMAL.fullmatch(field.type)
    if decimal is not None:
        if kind == SQLITE:
            raise BadOption(
                f"column {field.name} is {field.type}, which SQLite keeps as a floating-point number: make it a bigint "
                "of the smallest unit, or take another database"
            )
        return Numeric(int(decimal[1]), int(decimal[2]))
    if room is not None and room.characters is not None and field.type == "string":
        return short_text(room.characters)
    if room is not None and room.bytes is not None and field.type == "binary":
        return LargeBinary().with_variant(mysql.VARBINARY(room.bytes), *MARIADB)
    if field.type not in _PLAIN_TYPES:
        raise BadOption(
            f"column {field.name} is {field.type}, which SQL has no type for: convert it to "
            f"{', '.join(_PLAIN_TYPES)} or decimal, for example with to_json"
        )
    return _PLAIN_TYPES[field.type]()


def _upsert(table: Table, shape: Shape, kind: str) -> Any:
    """Return the statement that inserts a row, or merges it with the one that has the same key."""
    if kind in MARIADB:
        into = mysql.insert(table)
        # Not `into.inserted`: SQLAlchemy doubles the % of a name there once too often.
        new = {name: func.values(column(name), type_=table.c[name].type) for name in shape.merge}
        merged = {name: _merged(table.c[name], new[name], how, kind) for name, how in shape.merge.items()}
        # A statement has to change something: where there is nothing to merge, the key becomes itself.
        return into.on_duplicate_key_update(merged or {name: table.c[name] for name in shape.key[:1]})
    inserted: Any = postgresql.insert(table) if kind == POSTGRESQL else sqlite.insert(table)
    merged = {name: _merged(table.c[name], inserted.excluded[name], how, kind) for name, how in shape.merge.items()}
    if not merged:
        return inserted.on_conflict_do_nothing(index_elements=list(shape.key))
    return inserted.on_conflict_do_update(index_elements=list(shape.key), set_=merged)


def _merged(old: Any, new: Any, how: Merge, kind: str) -> Any:
    """Return the SQL expression that merges two values. Null is no value: the other one stays."""
    if how == "sum":
        total = func.coalesce(old + new, old, new)
        return case((_turned_to_float(old, new), func.abs(text(_SMALLEST))), else_=total) if kind == SQLITE else total
    better = (
        _by_bytes(new, kind) < _by_bytes(old, kind) if how == "min" else _by_bytes(new, kind) > _by_bytes(old, kind)
    )
    return case((or_(old.is_(None), better), new), else_=old)


_SMALLEST: Final = "-9223372036854775808"
"""SQLite's smallest integer, whose absolute value it refuses to compute: "integer overflow"."""


def _turned_to_float(old: Any, new: Any) -> Any:
    """Return whether SQLite makes a floating-point number of a sum of integers, or infinity of one of finite numbers.
    Other databases refuse such a sum, and so must this one."""
    if isinstance(old.type, Integer):
        return func.typeof(old + new) == "real"
    infinity = text("9e999")
    return and_(func.abs(old + new) == infinity, func.abs(old) < infinity, func.abs(new) < infinity)


def _by_bytes(value: Any, kind: str) -> Any:
    """Return a value as it is to be compared: texts by their bytes, also where somebody else has made the table."""
    if not isinstance(value.type, String):
        return value
    if kind in MARIADB:
        return cast(value, mysql.BINARY)
    return value.collate(POSTGRESQL_BYTES if kind == POSTGRESQL else "BINARY")
