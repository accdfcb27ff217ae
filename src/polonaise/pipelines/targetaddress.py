"""The address of a view's table: `parquet:DIRECTORY`, `delta:DIRECTORY`, or the URL of a SQL database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from polonaise.errors import BadOption, NotFound
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.targets import Target
from polonaise.redaction import redacted_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARQUET: Final = "parquet:"
_DELTA: Final = "delta:"


def open_target(
    spark: SparkSession, text: str, view: TableView, cluster: str, *, marks_table: str | None = None
) -> Target:
    """Open the view's table at `parquet:DIRECTORY`, `delta:DIRECTORY`, or in the database at an SQLAlchemy URL. In a
    database the table has the view's name. `cluster` is the log's key, in hexadecimal. Raises `BadOption`,
    `ExtraMissing`."""
    if text.startswith(_PARQUET):
        from polonaise.pipelines.parquettarget import ParquetTarget

        return ParquetTarget(spark, text.removeprefix(_PARQUET), view, cluster)
    if text.startswith(_DELTA):
        from polonaise.pipelines.deltatarget import DeltaTarget

        return DeltaTarget(spark, text.removeprefix(_DELTA), view, cluster)
    _check_url(text)
    from polonaise.pipelines.sqltarget import SqlTarget

    return SqlTarget(spark, text, view, cluster, marks_table)


def has_limits(text: str) -> bool:
    """Whether the table at this address can't hold all rows that Spark has: one in a database."""
    return not text.startswith((_PARQUET, _DELTA))


def check_target(text: str, *, there: bool) -> None:
    """Check an address that `open_target` will get, as far as that is possible without a session. Raises `BadOption`,
    `ExtraMissing`, `ViewUnfit` for a file that is no SQLite database, and where the table has to be `there` `NotFound`
    for a directory or a SQLite file that does not exist."""
    kind = next((each for each in (_PARQUET, _DELTA) if text.startswith(each)), None)
    if kind is None:
        _check_url(text)
        from polonaise.views.database import check_file

        check_file(text, there=there)
    elif there and "://" not in text and not Path(text.removeprefix(kind)).is_dir():
        raise NotFound(f"no directory {redacted_address(text.removeprefix(kind))}: correct the path of the table")


def _check_url(text: str) -> None:
    if "://" not in text:
        shown = redacted_address(text)
        raise BadOption(f"no table at {shown!r}: write parquet:DIRECTORY, delta:DIRECTORY, or a database's URL")
