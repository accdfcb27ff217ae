"""A view's table as a Delta table, written by delta-rs: its marks are the table's application transactions.

Every version stays readable for as long as the table keeps it (`VACUUM`), so this is the format for time travel.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow.dataset as ds

from polonaise.errors import BadOption, ExtraMissing, ViewUnfit
from polonaise.pipelines.declarations import View
from polonaise.pipelines.source import Marks
from polonaise.pipelines.targets import Held
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

if find_spec("deltalake") is None:
    raise ExtraMissing("Delta tables need delta-rs: pip install 'polonaise[delta]'")

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

_PARTITIONS_MAX: Final = 4_096
"""Of a cluster."""


class DeltaTarget:
    """A Delta table in a directory that the driver and the tasks of Spark both reach. Raises `ViewUnfit`, `BadOption`.

    The driver looks where the marks are and commits on what it has looked at: of two that write the same range, delta-rs
    refuses the second. With a key, each commit writes the whole table anew.
    """

    def __init__(self, spark: SparkSession, directory: str, view: View, cluster: str) -> None:
        if not directory or "://" in directory:
            raise BadOption(f"delta:{directory}: name a directory of a file system that all of Spark reaches")
        self._spark = spark
        self._directory = Path(directory).absolute()
        self._view = view
        self._app = f"polonaise/{cluster}/{view.name}"
        self._schema: StructType | None = None

    def prepare(self, schema: StructType) -> None:
        self._schema = schema

    def marks(self) -> dict[PartitionId, TransactionId]:
        table = self._table()
        return {} if table is None else self._marks_of(table)

    def merge(self, rows: DataFrame, before: Marks, after: Marks) -> bool:
        table = self._table()
        if table is None or not self._view.key:
            return self._commit(table, rows, before, after, "append")
        return self._commit(table, self._view.merged([self._rows_of(table), rows]), before, after, "overwrite")

    def replace(self, rows: DataFrame, before: Marks, after: Marks) -> bool:
        whole = {**dict.fromkeys(before, -1), **after}
        return self._commit(self._table(), rows, before, whole, "overwrite")

    @contextmanager
    def held(self) -> Iterator[Held]:
        table = self._table()
        if table is None:
            raise ViewUnfit(f"no Delta table in {self._directory}")
        yield Held(self._marks_of(table), self._rows_of(table))

    def close(self) -> None:
        """Nothing is open between two calls."""

    # ------------------------------------------------------------------ in the table

    def _table(self) -> DeltaTable | None:
        directory = str(self._directory)
        return DeltaTable(directory) if DeltaTable.is_deltatable(directory) else None

    def _marks_of(self, table: DeltaTable) -> dict[PartitionId, TransactionId]:
        """An application transaction's version is the next id: it has to be 0 or above."""
        found = {
            partition: version - 1
            for partition in range(_PARTITIONS_MAX)
            if (version := table.transaction_version(f"{self._app}/{partition}")) is not None
        }
        if not found:
            raise ViewUnfit(
                f"{self._directory} is a Delta table, and not of view {self._view.name} of this log: choose another "
                "directory, or remove this one"
            )
        return found

    def _rows_of(self, table: DeltaTable) -> DataFrame:
        files = table.file_uris()
        if not files:
            return self._spark.createDataFrame([], self._schema)  # type: ignore[type-var]
        return self._spark.read.parquet(*files)

    def _commit(
        self,
        table: DeltaTable | None,
        rows: DataFrame,
        before: Marks,
        after: Marks,
        mode: Literal["append", "overwrite"],
    ) -> bool:
        if ({} if table is None else self._marks_of(table)) != dict(before):
            return False
        staging = self._directory / f"_staging-{uuid.uuid4()}"
        try:
            rows.write.parquet(staging.as_uri())
            properties = CommitProperties(
                app_transactions=[Transaction(f"{self._app}/{each}", id + 1) for each, id in sorted(after.items())]
            )
            made: Any = ds.dataset(staging, format="parquet").scanner().to_reader()
            write_deltalake(
                table if table is not None else str(self._directory),
                made,
                mode=mode,
                schema_mode="overwrite" if mode == "overwrite" else None,
                commit_properties=properties,
            )
        except CommitFailedError:
            return False
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return True
