"""The interface of a view's table, which is kept as Parquet, as a Delta table, or in a SQL database, by the same rules.

A table carries its own position. Beside its rows it keeps its *marks* (the id of each partition up to which they are
made) and the definition of its view, and all of these change in one step. So no checkpoint can be lost, be older than
the table or belong to another one, and rows of two definitions never mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from polonaise.errors import ViewUnfit
from polonaise.pipelines.source import Marks
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LOCK: Final = ".lock"
"""Name of the lock file in a table's directory, held by the one process that writes the table."""


class TableState(NamedTuple):
    """A table as it was at one moment."""

    marks: dict[PartitionId, TransactionId] | None
    """The last id of each partition in the rows; None for a table that does not say."""
    rows: DataFrame


class Target(Protocol):
    """A view's table. `merge` and `replace` return False, and change nothing, unless the marks are still `before`.

    `merge` also does if the table's rows were made by another definition. `letters` are rows for the dead-letter table
    beside this one, which changes in the same step.
    """

    def prepare(self, schema: StructType) -> None:
        """Tell the columns of the view's rows. Called first, and once. Raises if the table can't have them."""

    def marks(self) -> dict[PartitionId, TransactionId]:
        """Return the table's marks; none for a new table. Raises `ViewUnfit` for the table of another log."""

    def check(self) -> None:
        """Raise `ViewUnfit` if the table was made by another definition of the view, or does not say by which."""

    def merge(self, rows: DataFrame, before: Marks, after: Marks, letters: DataFrame | None = None) -> bool:
        """Add rows, or with a key merge them with the table's, and move the marks to `after`."""

    def replace(self, rows: DataFrame, before: Marks, after: Marks, letters: DataFrame | None = None) -> bool:
        """Replace all rows and letters by these, and set the marks to `after`."""

    def letters(self) -> str:
        """Return the location of the dead-letter table, for people to read."""

    @contextmanager
    def held(self, *, with_marks: bool = True) -> Iterator[TableState]:
        """Give the table's present state, undisturbed by writers. Without marks it may be any table, not a view's."""

    def close(self) -> None: ...


def check_unused(directory: Path, *own: str) -> None:
    """Raise `ViewUnfit` unless a new table's directory is empty, but for names that match the patterns `own`.

    Those are what a run that died before there was a table may have left.
    """
    for name in sorted(each.name for each in directory.iterdir()) if directory.is_dir() else ():
        if not any(fnmatchcase(name, pattern) for pattern in own):
            raise ViewUnfit(f"{directory} holds {name}, and no such table: choose a new directory, or an empty one")
