"""A view's table as a Delta table, written by delta-rs.

The table's marks, and the digest of its view's definition, are kept as application transactions of Delta. Every version
stays readable until `VACUUM` deletes its files. Dead letters are a Delta table of their own, in `_undecodable`. An
application transaction of the view's table says which version of that counts: what a writer added there before it died
is taken back by the next writer.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import pyarrow.dataset as ds
from pyspark.sql.types import StructType

from polonaise.errors import DiskFailed, ExtraMissing, ViewUnfit
from polonaise.host.files import try_lock
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.definitions import DIGITS, Definition, columns_of, is_same
from polonaise.pipelines.source import Marks
from polonaise.pipelines.targets import LOCK, DirectoryTarget, NewRows, TableState, disk_faults
from polonaise.spark.paths import written_to
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

if find_spec("deltalake") is None:
    raise ExtraMissing("Delta tables need delta-rs: pip install 'polonaise[delta]'")

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

Mode: TypeAlias = Literal["append", "overwrite"]

_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
_STAGING: Final = "_staging-"
LETTERS: Final = "_undecodable"
"""The directory of the dead letters' table, which `VACUUM` of the view's table leaves alone."""


@contextmanager
def _zones_kept(spark: SparkSession) -> Iterator[None]:
    """Let Spark write timestamps, inside the `with` statement, in a form that other readers, too, take for UTC."""
    before = str(spark.conf.get(_TIMESTAMPS))
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMESTAMPS, before)


class DeltaTarget(DirectoryTarget[DeltaTable]):
    """A Delta table in a directory that Spark's driver and tasks both reach. One run writes at a time. Of two drivers
    that write the same range, the second commits nothing. With a key, each commit writes the whole table anew. Raises
    `ViewUnfit` for the table of another view or log, `DirectoryInUse` while another run writes to it, and `DiskFailed`
    if its directory or its `_delta_log` can't be read or written."""

    kind: ClassVar = "delta"

    def __init__(self, spark: SparkSession, directory: str, view: TableView, cluster: str) -> None:
        super().__init__(spark, directory, view, cluster)
        self._app = f"polonaise/{cluster}/{view.name}"

    def prepare(self, schema: StructType) -> None:
        super().prepare(schema)
        if self._current() is None:
            with disk_faults(self._directory):
                self._check_unused(f"{_STAGING}*", "_delta_log", "*.parquet", LETTERS)

    def merge(self, new: NewRows, before: Marks, after: Marks) -> bool:
        table = self._current()
        if table is not None and not is_same(self._kept_in(table), self._definition):
            return False
        if table is None or not self._view.key:
            return self._commit(table, new, before, after, "append")
        merged = self._view.merged([self._rows_of(table), new.rows])
        return self._commit(table, new._replace(rows=merged), before, after, "overwrite")

    def replace(self, new: NewRows, before: Marks, after: Marks) -> bool:
        # Partitions that the new rows do not have are at their beginning now, not where the rows before were.
        marks = {**dict.fromkeys(before, -1), **after}
        return self._commit(self._current(), new, before, marks, "overwrite", replaces=True)

    def letters(self) -> str | None:
        return str(self._directory / LETTERS) if self._letters_in(self._current()) else None

    @contextmanager
    def state(self, *, with_marks: bool = True) -> Iterator[TableState]:
        table = self._current()
        if table is None:
            raise ViewUnfit(f"no Delta table in {self._directory}: correct the path of the table")
        yield TableState(self._marks_of(table) if with_marks else None, self._rows_of(table))

    # ------------------------------------------------------------------ in the table

    def _current(self) -> DeltaTable | None:
        return _opened(self._directory)

    def _marks_of(self, table: DeltaTable) -> dict[PartitionId, TransactionId]:
        """Return the table's marks. Each partition with a mark has an application transaction of its own, whose version
        is the mark plus one. That of the view is one more than the highest such partition."""
        partitions = table.transaction_version(self._app)
        if partitions is None:
            raise ViewUnfit(
                f"{self._directory} is a Delta table, and not of view {self._view.name} of this log: choose another "
                "directory, or remove this one"
            )
        ends = {each: table.transaction_version(f"{self._app}/{each}") for each in range(partitions)}
        return {partition: end - 1 for partition, end in ends.items() if end is not None}

    def _kept_in(self, table: DeltaTable) -> Definition | None:
        """Return the definition of the rows; Delta keeps no key, so that is the view's."""
        number = table.transaction_version(f"{self._app}/definition")
        if number is None:
            return None
        columns = columns_of(StructType.fromJson(json.loads(table.schema().to_json())))
        return Definition(f"{number:0{DIGITS}x}", columns, self._definition.key)

    def _transactions(self, marks: Marks, letters: int) -> list[Transaction]:
        """Return a commit's application transactions; `letters` is the version of the letters' table plus 1, or 0."""
        ends = [Transaction(f"{self._app}/{partition}", id + 1) for partition, id in sorted(marks.items())]
        definition = Transaction(f"{self._app}/definition", int(self._definition.digest, 16))
        counts = Transaction(f"{self._app}/undecodable", letters)
        return [*ends, Transaction(self._app, max(marks, default=-1) + 1), definition, counts]

    def _letters_in(self, table: DeltaTable | None) -> int:
        """Return the version of the dead letters' table that the view's `table` names, plus one; 0 for none."""
        return 0 if table is None else table.transaction_version(f"{self._app}/undecodable") or 0

    def _rows_of(self, table: DeltaTable) -> DataFrame:
        files = table.file_uris()
        if not files:
            return self._spark.createDataFrame([], self._schema)
        return self._spark.read.parquet(*files)

    def _commit(
        self, table: DeltaTable | None, new: NewRows, before: Marks, after: Marks, mode: Mode, *, replaces: bool = False
    ) -> bool:
        if ({} if table is None else self._marks_of(table)) != dict(before):
            return False
        with _delta_faults(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = try_lock(str(self._directory / LOCK))
            try:
                # The rows were computed from `table`: if it has changed since, they are stale, whatever the marks say.
                now = self._current()
                if (None if table is None else table.version()) != (None if now is None else now.version()):
                    return False
                # Letters first: until the view's table names their new version, they do not count.
                counts = self._write_letters(self._letters_in(table), new.letters, replaces=replaces)
                transactions = self._transactions({**before, **after}, counts)
                self._write(table if table is not None else self._directory, new.rows, mode, transactions)
            except CommitFailedError:
                return False
            finally:
                lock.release()
        return True

    def _write_letters(self, counts: int, letters: DataFrame | None, *, replaces: bool) -> int:
        """Add dead letters to their table, or replace all in it. Return the new version of that table, plus one; 0 for
        none. `counts` is that of before. Later versions were left by a writer that died before it committed the view's
        table, and are taken back first. Raises `ViewUnfit` for a table that is gone, and would be made anew without the
        letters of before."""
        directory = self._directory / LETTERS
        table = _opened(directory)
        if table is None and counts and not replaces:
            if letters is None:
                return counts
            raise ViewUnfit(
                f"the Delta table of dead letters in {directory} was there and is gone: made anew, it would lack the "
                "letters of before. Put it back, or rebuild the view (polonaise pipeline views --rebuild), which "
                "brings all of it again"
            )
        if table is not None and counts and table.version() != counts - 1:
            table.restore(counts - 1)
        if letters is not None:
            appends = table is not None and counts and not replaces
            self._write(table if table is not None else directory, letters, "append" if appends else "overwrite", [])
        elif table is not None and (replaces or not counts):
            table.delete()
        written = _opened(directory)
        return 0 if written is None else written.version() + 1

    def _write(self, table: DeltaTable | Path, rows: DataFrame, mode: Mode, transactions: list[Transaction]) -> None:
        """Write rows to a Delta table, by way of files of Spark, so that only a part is in this process's memory."""
        for leftover in self._directory.glob(f"{_STAGING}*"):
            shutil.rmtree(leftover)
        staging = self._directory / f"{_STAGING}{uuid.uuid4()}"
        try:
            with _zones_kept(self._spark):
                rows.write.parquet(written_to(staging))
            reader: Any = ds.dataset(staging, format="parquet").scanner().to_reader()
            write_deltalake(
                table if isinstance(table, DeltaTable) else str(table),
                reader,
                mode=mode,
                schema_mode="overwrite" if mode == "overwrite" else None,
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _opened(directory: Path) -> DeltaTable | None:
    with _delta_faults(directory):
        return DeltaTable(str(directory)) if DeltaTable.is_deltatable(str(directory)) else None


@contextmanager
def _delta_faults(directory: Path) -> Iterator[None]:
    """Do what `disk_faults` does, also with errors of delta-rs."""
    try:
        with disk_faults(directory):
            yield
    except DeltaError as error:
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DiskFailed(
            f"the Delta table in {directory} can't be read or written: {what}; restore its _delta_log, or rebuild the "
            "view in another directory"
        ) from error
