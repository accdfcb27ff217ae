"""The interface of a view's table, which is kept as Parquet, as a Delta table, or in a SQL database, by the same rules.

Beside its rows a table keeps its *marks* (the id of each partition up to which they are made) and the definition of its
view, and all of these change in one step. So no checkpoint can be lost, be older than the table or belong to another
one, and rows of two definitions never mix.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NamedTuple, TypeVar

from polonaise.errors import BadOption, DiskFailed, ViewUnfit
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.definitions import Definition, check_same, definition_of
from polonaise.pipelines.source import Marks
from polonaise.pipelines.targetlimits import Limit
from polonaise.redaction import redacted_address
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOCK: Final = ".lock"
"""Name of the lock file in a table's directory, held while a run writes the table."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class TableState(NamedTuple):
    """A table as it was at one moment."""

    marks: dict[PartitionId, TransactionId] | None
    """For each partition, the last id that is in the rows; None if the table was read without marks."""
    rows: DataFrame


class NewRows(NamedTuple):
    """What one commit brings to a table, and to the tables beside it, which change in the same step."""

    rows: DataFrame
    letters: DataFrame | None = None
    """Rows for the dead-letter table."""
    refused: DataFrame | None = None
    """Rows for the table of refused rows, which only a table with limits gets."""


class Target(ABC):
    """A view's table. `merge` and `replace` return False, and change nothing, if a mark they move is not at `before`.
    `merge` also returns False if the table's rows were made by another definition."""

    _schema: StructType
    """Columns of the view's rows. Set by `expect`."""
    _definition: Definition
    """The view's definition. Set by `prepare`."""

    def __init__(self, spark: SparkSession, view: TableView, cluster: str) -> None:
        self._spark = spark
        self._view = view
        self._cluster = cluster

    def expect(self, schema: StructType) -> None:
        """Set the columns of the view's rows, which is enough before `state`."""
        self._schema = schema

    def prepare(self, schema: StructType) -> None:
        """Set the columns of the view's rows, and make ready to write, before other methods but `expect`, `state` and
        `close`. Raises `ViewUnfit` if there is no table yet and its directory holds other files, `DiskFailed` if the
        directory can't be read or made, and `BadOption` for a query without a source."""
        self.expect(schema)
        self._definition = definition_of(self._view, schema)

    def limits(self, schema: StructType) -> Sequence[Limit]:
        """Return what the table can't hold of rows with these columns: files hold all that Spark has."""
        return ()

    @abstractmethod
    def marks(self) -> dict[PartitionId, TransactionId]:
        """Return the table's marks; empty for a new table. Raises `ViewUnfit` for the table of another log or view."""

    @abstractmethod
    def check(self) -> None:
        """Raise `ViewUnfit` if the table was made by another definition of the view, or does not say by which."""

    @abstractmethod
    def merge(self, new: NewRows, before: Marks, after: Marks) -> bool:
        """Add rows, or with a key merge them with the table's; move the marks to those in `after`."""

    @abstractmethod
    def replace(self, new: NewRows, before: Marks, after: Marks) -> bool:
        """Replace all rows, letters and refused rows, and set the marks to `after`; other partitions begin anew."""

    @abstractmethod
    def letters(self) -> str | None:
        """Return the location of the dead-letter table, for people to read; None if there is none yet."""

    def refused(self) -> str | None:
        """Return the location of the table of refused rows, for people to read; None if there is none yet."""
        return None

    @abstractmethod
    def state(self, *, with_marks: bool = True) -> AbstractContextManager[TableState]:
        """Read the table as it is at one moment, whatever is written to it meanwhile. Unless `with_marks`, any table
        can be read, also one that no view has made. Raises `ViewUnfit` for a table that does not exist (`NotFound` if
        its SQLite file does not) and, with `with_marks`, for that of another view or log."""

    def close(self) -> None:
        """Close the connection to the table, if it has one."""
        return


Version = TypeVar("Version")


class DirectoryTarget(Target, Generic[Version]):
    """A table in a directory that Spark's driver and tasks both reach. Raises `BadOption` for no path or a URL."""

    kind: ClassVar[str]
    """The word before the directory in the table's address."""

    def __init__(self, spark: SparkSession, directory: str, view: TableView, cluster: str) -> None:
        if not directory or "://" in directory:
            raise BadOption(
                f"{self.kind}:{redacted_address(directory)}: name a directory of a file system that all of "
                "Spark reaches"
            )
        super().__init__(spark, view, cluster)
        self._directory = Path(directory).absolute()

    @abstractmethod
    def _current(self) -> Version | None:
        """Return the table's current version; None for a new table."""

    @abstractmethod
    def _marks_of(self, version: Version) -> dict[PartitionId, TransactionId]:
        """Return the marks of a version. Raises `ViewUnfit` for the table of another view or log."""

    @abstractmethod
    def _kept_in(self, version: Version) -> Definition | None:
        """Return the definition by which the rows of a version were made, if it names one."""

    def marks(self) -> dict[PartitionId, TransactionId]:
        version = self._current()
        return {} if version is None else self._marks_of(version)

    def check(self) -> None:
        version = self._current()
        if version is not None:
            self._marks_of(version)  # raises for a table of another log or view, which comes first
            check_same(f"the table in {self._directory}", self._kept_in(version), self._definition)

    def _check_unused(self, *own: str) -> None:
        """Raise `ViewUnfit` if a new table's directory has more than the lock and what dead runs leave (`own`)."""
        names = sorted(path.name for path in self._directory.iterdir()) if self._directory.is_dir() else ()
        for name in names:
            if not any(fnmatchcase(name, pattern) for pattern in (LOCK, *own)):
                raise ViewUnfit(
                    f"{self._directory} holds {name}, and no table of kind {self.kind}: choose a new or empty directory"
                )


@contextmanager
def disk_faults(directory: Path) -> Iterator[None]:
    """Translate errors of the operating system inside the `with` statement. Raises `DiskFailed`."""
    try:
        yield
    except OSError as error:
        # delta-rs draws a tree in colours, whose last line is the system's.
        lines = _COLOUR.sub("", str(error)).strip(" \n↳").splitlines() or [type(error).__name__]
        what = error.strerror or lines[-1].strip(" ↳")
        raise DiskFailed(
            f"the table in {directory} can't be read or written: {what}; correct its path, its rights or its disk, and "
            "run this again"
        ) from error
