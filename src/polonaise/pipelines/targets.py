"""Where a view's table is kept: Parquet in a directory, a Delta table, or a SQL database, all by the same rules.

A table carries its own position: with its rows it says up to which id of each partition they are made (its *marks*),
and by which definition of the view; all of that changes together or not at all. So there is no checkpoint that could be
lost, be older, or belong to another, and no rows of two definitions in one table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from polonaise.errors import BadOption, NotFound, ViewUnfit
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.source import Marks
from polonaise.redaction import redacted
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOCK: Final = ".lock"
"""Held by whoever writes a table in a directory."""
PARQUET: Final = "parquet:"
DELTA: Final = "delta:"


class TableState(NamedTuple):
    """A table as it was at one moment."""

    marks: dict[PartitionId, TransactionId] | None
    """Up to where its rows are made; None for a table that does not say."""
    rows: DataFrame


class Target(Protocol):
    """A table of a view. `merge` and `replace` say False, and change nothing, if the marks are not `before`.

    So does `merge` if the rows that are there were made by another definition. `letters` are rows of the dead-letter
    table that is beside it, and change in the same step.
    """

    def prepare(self, schema: StructType) -> None:
        """The columns that there will be; told once, before anything else. Raises when these can't be had."""

    def marks(self) -> dict[PartitionId, TransactionId]:
        """Nothing for a new table. Raises `ViewUnfit` for the table of another log."""

    def check(self) -> None:
        """Raises `ViewUnfit` for a table that was made by another definition of the view, or does not say by which."""

    def merge(self, rows: DataFrame, before: Marks, after: Marks, letters: DataFrame | None = None) -> bool:
        """Add rows, or merge them with those of the same key."""

    def replace(self, rows: DataFrame, before: Marks, after: Marks, letters: DataFrame | None = None) -> bool:
        """Have these rows, and these letters, and no others."""

    def letters(self) -> str:
        """Where the dead-letter table is, for people."""

    @contextmanager
    def held(self, *, with_marks: bool = True) -> Iterator[TableState]:
        """What is there now, whoever is writing. Without marks it may be anybody's table."""

    def close(self) -> None: ...


def open_target(
    spark: SparkSession, text: str, view: TableView, cluster: str, *, marks_table: str | None = None
) -> Target:
    """The view's table at `parquet:DIRECTORY`, `delta:DIRECTORY`, or in the database at an URL of SQLAlchemy's.

    In a database the table is called as the view is. `cluster` is the log's key. Raises `BadOption`, `ExtraMissing`.
    """
    if text.startswith(PARQUET):
        from polonaise.pipelines.parquet import ParquetTarget

        return ParquetTarget(spark, text.removeprefix(PARQUET), view, cluster)
    if text.startswith(DELTA):
        from polonaise.pipelines.delta import DeltaTarget

        return DeltaTarget(spark, text.removeprefix(DELTA), view, cluster)
    _check_url(text)
    from polonaise.pipelines.database import SqlTarget

    return SqlTarget(spark, text, view, cluster, marks_table)


def check_unused(directory: Path, *own: str) -> None:
    """A new table needs a directory to itself. Raises `ViewUnfit` for one that holds more than names like these.

    `own` is what a run that died before there was a table may have left.
    """
    for name in sorted(each.name for each in directory.iterdir()) if directory.is_dir() else ():
        if not any(fnmatchcase(name, pattern) for pattern in own):
            raise ViewUnfit(f"{directory} holds {name}, and no such table: choose a new directory, or an empty one")


def check_target(text: str, *, there: bool) -> None:
    """What can be known of `open_target`'s text without a session; `there` if the table is only to be read.

    Raises `BadOption`, `ExtraMissing`, `NotFound` for a directory or a SQLite file that is not there, and `ViewUnfit`
    for a file that is no SQLite database.
    """
    kind = next((each for each in (PARQUET, DELTA) if text.startswith(each)), None)
    if kind is None:
        _check_url(text)
        from polonaise.views.database import check_file

        check_file(text, there=there)
    elif there and "://" not in text and not Path(text.removeprefix(kind)).is_dir():
        raise NotFound(f"no directory {redacted(text.removeprefix(kind))}: correct the path of the table")


def _check_url(text: str) -> None:
    if "://" not in text:
        shown = redacted(text)
        raise BadOption(f"no table at {shown!r}: write parquet:DIRECTORY, delta:DIRECTORY, or a database's URL")
