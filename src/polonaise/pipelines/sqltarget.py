"""A view's table in a SQL database, through `polonaise.views`: rows, marks and definition in one SQL transaction."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DateType, DoubleType, FloatType, StringType, TimestampNTZType, TimestampType

from polonaise.errors import ViewUnfit
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.definitions import Definition, check_same, kept_in, other_shape
from polonaise.pipelines.keptframes import kept_on_disk
from polonaise.pipelines.moments import moment_of, with_numbers
from polonaise.pipelines.source import Marks
from polonaise.pipelines.targetlimits import Limit, column_of
from polonaise.pipelines.targets import NewRows, TableState, Target
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.views.dialects import MARIADB, POSTGRESQL, SQLITE, database_url
from polonaise.views.marks import LETTERS, REFUSED
from polonaise.views.tables import Chunks, Field, KeyRoom, MarkedTable, Shape, key_room, snapshot

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

_ROWS: Final = 5_000
_ROWS_READ: Final = 50_000
_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
"""The first microsecond of the year 1 and the last one of 9999: the years that Python and all databases have."""


class SqlTarget(Target):
    """A table with the view's name, and tables of its marks and definition beside it. Raises what `MarkedTable` raises.
    Columns and key of an existing table are never changed. If the view declares them differently, `ViewUnfit` says so:
    an administrator has to drop all three tables, and the next run makes them anew."""

    def __init__(
        self, spark: SparkSession, url: str, view: TableView, cluster: str, marks_table: str | None = None
    ) -> None:
        super().__init__(spark, view, cluster)
        self._url = url
        self._marks_table = marks_table or f"{view.name}_marks"
        self._table: MarkedTable | None = None
        self._is_others = marks_table is not None
        """Whether an application keeps the table: what it can hold is not known here."""

    def limits(self, schema: StructType) -> Sequence[Limit]:
        if self._is_others:
            return ()
        kind = database_url(self._url).get_backend_name()
        sums = [name for name, how in self._view.merge.items() if how == "sum"]
        return _limits_of(kind, schema, self._view.key, sums, key_room(self._shape(schema), kind))

    def _shape(self, schema: StructType) -> Shape:
        return Shape(self._view.name, _fields(schema), tuple(self._view.key), self._view.merge)

    def _opened(self) -> MarkedTable:
        if self._table is None:
            shape = self._shape(self._schema)
            definition = json.dumps(self._definition.fields())
            self._table = MarkedTable(self._url, shape, self._cluster, definition, marks_table=self._marks_table)
            # Before `prepare`, which makes and checks tables: its error would say to alter them.
            self._check_shape(self._kept(self._table))
            self._table.prepare()
        return self._table

    def _kept(self, table: MarkedTable) -> Definition | None:
        text = table.definition()
        return None if text is None else kept_in(json.loads(text))

    def _check_shape(self, kept: Definition | None) -> None:
        difference = None if kept is None else other_shape(kept, self._definition)
        if difference is not None:
            name = self._view.name
            raise ViewUnfit(
                f"table {name} does not fit its view: {difference}; drop the tables {name}, {self._marks_table} and "
                f"{name}_definition and run this again, which makes them anew from the log, or choose another database"
            )

    def marks(self) -> dict[PartitionId, TransactionId]:
        return self._opened().marks()

    def check(self) -> None:
        table = self._opened()
        table.check_marks_kept()
        # The marks are read first: rows, marks and definition are committed together, so a table that has rows by
        # then has its definition too. The other way round, another's first commit in between looks like rows of an
        # unknown view.
        has_rows = any(mark > NO_TRANSACTION for mark in table.marks().values())
        kept = self._kept(table)
        if kept is not None or has_rows:
            check_same(f"table {self._view.name}", kept, self._definition)

    def merge(self, new: NewRows, before: Marks, after: Marks) -> bool:
        return self._changed(self._opened().merge, new, before, after)

    def replace(self, new: NewRows, before: Marks, after: Marks) -> bool:
        return self._changed(self._opened().replace, new, before, after)

    def _changed(self, change: Callable[..., bool], new: NewRows, before: Marks, after: Marks) -> bool:
        # Computed before the SQL transaction begins, and only once, also if the transaction is tried again.
        with kept_on_disk(new.rows) as rows:
            rows.count()
            return change(partial(_chunks, rows), before, after, _chunks_of(new.letters), _chunks_of(new.refused))

    def letters(self) -> str | None:
        return f"{self._view.name}{LETTERS}" if self._opened().left_out()[0] else None

    def refused(self) -> str | None:
        return f"{self._view.name}{REFUSED}" if self._opened().left_out()[1] else None

    @contextmanager
    def state(self, *, with_marks: bool = True) -> Iterator[TableState]:
        """Read the table in one snapshot of the database, once, into a file that Spark reads."""
        directory = Path(tempfile.mkdtemp(prefix="polonaise-"))
        try:
            reading = snapshot(
                self._url,
                _fields(self._schema),
                self._view.name,
                marks_table=self._marks_table if with_marks else None,
                cluster=self._cluster,
                rows_max=_ROWS_READ,
            )
            with reading as (marks, parts):
                _spool(
                    directory / "rows.parquet", parts, to_arrow_schema(self._schema, timezone="UTC"), self._view.name
                )
            yield TableState(marks, self._spark.read.parquet(str(directory)))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        if self._table is not None:
            self._table.close()


def _fields(schema: StructType) -> tuple[Field, ...]:
    return tuple(Field(each.name, each.dataType.simpleString()) for each in schema.fields)


def _chunks_of(rows: DataFrame | None) -> Chunks | None:
    return None if rows is None else partial(_chunks, rows)


def _chunks(rows: DataFrame) -> Iterator[list[dict[str, Any]]]:
    """Yield rows in chunks of `_ROWS`, their times in UTC."""
    numbered, times = with_numbers(rows)
    remaining = iter(numbered.toLocalIterator(prefetchPartitions=True))
    while chunk := [row.asDict() for row in islice(remaining, _ROWS)]:
        for name in times:
            for row in chunk:
                row[name] = moment_of(row[name])
        yield chunk


# ------------------------------------------------------------------ reading


def _spool(path: Path, parts: Iterable[list[tuple[Any, ...]]], schema: pa.Schema, table: str) -> None:
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    with pq.ParquetWriter(path, nullable, compression="zstd") as writer:
        for part in parts:
            columns = zip(*part, strict=True)
            arrays = [_column(list(column), field, table) for column, field in zip(columns, nullable, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=nullable))


def _column(values: list[Any], field: pa.Field, table: str) -> pa.Array:
    try:
        return pa.array([_plain(value, field.type) for value in values], field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise ViewUnfit(
            f"table {table}: column {field.name} holds values that are not {field.type}, such as "
            f"{next((v for v in values if not _fits(v, field.type)), None)!r}"
        ) from error


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([_plain(value, kind)], kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return False
    return True


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Convert a database's value to the column's type: some databases have one kind of number, or no time zones."""
    if isinstance(value, Decimal | float) and pa.types.is_integer(kind) and value == int(value):
        return int(value)
    if isinstance(value, int) and pa.types.is_boolean(kind):
        return bool(value)
    if isinstance(value, datetime) and value.tzinfo is None and pa.types.is_timestamp(kind) and kind.tz:
        return value.replace(tzinfo=UTC)
    return value


def _limits_of(kind: str, schema: StructType, key: Sequence[str], sums: Sequence[str], room: KeyRoom) -> list[Limit]:
    """Return what a table in this kind of database can't hold. Called while a session runs. `sums` names the columns
    that are added up, `room` says how long the texts of the key may be."""
    limits: list[Limit] = []
    for field in schema.fields:
        in_key = field.name in key
        found = _limits_of_column(field, kind, in_key, field.name in sums, room)
        limits += [Limit(field.name, F.coalesce(refused, F.lit(False)), why, in_key) for refused, why in found]
    long = [
        field for field in schema.fields if field.name in key and isinstance(field.dataType, StringType | BinaryType)
    ]
    if long and room.total_bytes is not None:
        total = reduce(lambda one, other: one + other, (F.octet_length(column_of(field)) for field in long))
        why = f"makes the key longer than {room.total_bytes:,} bytes"
        limits.append(Limit(long[0].name, F.coalesce(total > room.total_bytes, F.lit(False)), why, True))
    return limits


def _limits_of_column(
    field: StructField, kind: str, in_key: bool, is_sum: bool, room: KeyRoom
) -> Iterator[tuple[Column, str]]:
    value = column_of(field)
    if in_key:
        yield value.isNull(), "is null, and a column of the key"
    match field.dataType:
        case StringType():
            yield ~F.is_valid_utf8(value), "is no text in UTF-8"
            if kind == POSTGRESQL:
                yield F.contains(value, F.lit("\0")), "has a NUL, which no text of PostgreSQL has"
            if in_key and room.characters is not None:
                yield F.length(value) > room.characters, f"has more than {room.characters} letters, and is in the key"
        case BinaryType() if in_key and room.bytes is not None:
            yield F.octet_length(value) > room.bytes, f"has more than {room.bytes:,} bytes, and is in the key"
        case TimestampType():
            yield ~F.unix_micros(value).between(_FIRST_US, _LAST_US), "is before the year 1, or after 9999"
        case TimestampNTZType():
            first, last = (F.lit(each).cast("timestamp_ntz") for each in ("0001-01-01", "9999-12-31 23:59:59.999999"))
            yield (value < first) | (value > last), "is before the year 1, or after 9999"
        case DateType():
            first, last = (F.lit(each).cast("date") for each in ("0001-01-01", "9999-12-31"))
            yield (value < first) | (value > last), "is before the year 1, or after 9999"
        case DoubleType() | FloatType():
            if kind == SQLITE or kind in MARIADB:
                yield F.isnan(value), "is NaN, which the database has not"
            if kind in MARIADB or (kind == SQLITE and is_sum):
                yield F.abs(value) == float("inf"), "is infinite, which the database can't hold, or add up"
